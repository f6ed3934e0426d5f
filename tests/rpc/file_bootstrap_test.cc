// Calls whose links were made through a shared directory: no TCP at all.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "tests/rpc/testing_service.h"
#include "verbena/transport/connect/file_bootstrap.h"

namespace verbena {
namespace {

class FileBootstrapTest : public RpcTest {
 protected:
  FileBootstrapTest() : directory_(::testing::TempDir() + "/links.XXXXXX") {
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    bootstrap_ = *FileBootstrap::Create(directory_);
    // Each side has its own, as two processes would.
    server_bootstrap_ = *FileBootstrap::Create(directory_);
    StartServer({.address = "store"}, {.use_bootstrap = server_bootstrap_.get()});
    StartClient({.use_bootstrap = bootstrap_.get()});
  }
  ~FileBootstrapTest() override {
    stub_.reset();
    channel_.reset();
    client_runtime_.reset();
    server_.reset();
    server_runtime_.reset();
  }

  std::string directory_;
  std::unique_ptr<FileBootstrap> bootstrap_;
  std::unique_ptr<FileBootstrap> server_bootstrap_;
};

TEST_F(FileBootstrapTest, CallsRunAndTheLinkOutlivesItsHandshake) {
  for (uint64_t number = 0; number < 100; ++number) {
    ASSERT_EQ(Run(EchoOnce(number, "x")), absl::OkStatus());
  }
  EXPECT_EQ(client_runtime_->endpoint_stats(0).links, 1u);
}

TEST_F(FileBootstrapTest, ServerThatGoesIsNoticedAndItsSuccessorFound) {
  ASSERT_EQ(Run(EchoOnce(1, "")), absl::OkStatus());
  server_.reset();
  EXPECT_EQ(Run(EchoOnce(2, "")).code(), absl::StatusCode::kUnavailable);
  Serve({.address = "store"});
  Eventually([&] { return Run(EchoOnce(3, "")).ok(); }, "the channel comes back");
}

}  // namespace
}  // namespace verbena
