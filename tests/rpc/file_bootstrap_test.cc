// Calls run over links that were made through a shared directory, without TCP. A server that goes
// is noticed, and its successor is found.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "tests/rpc/testing_service.h"
#include "verbena/transport/connect/file_bootstrap.h"

namespace verbena {
namespace file_bootstrap_test {

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

  // Until it is cancelled, which the end of the client's runtime does.
  static Task<void> Hold(Channel& channel) {
    testing::Testing::Stub stub(channel);
    testing::Empty reply;
    (void)co_await stub.Wait(testing::WaitRequest(), reply);
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

TEST_F(FileBootstrapTest, LinksOfOneClientAddUpToItsBound) {
  server_.reset();
  Serve({.address = "store", .handshakes = {.links_per_client = 1}});
  ASSERT_EQ(Run(EchoOnce(1, "")), absl::OkStatus());
  Channel second(*client_runtime_, "store", {.server_key = 1});
  const absl::Status refused = Run(second.Connect());
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(server_->stats().links_refused, 1u);
}

TEST_F(FileBootstrapTest, ClientsOfADirectoryMayHaveAllCallsTogether) {
  server_.reset();
  Serve({.address = "store", .max_concurrent_calls = 4});
  auto second_bootstrap = *FileBootstrap::Create(directory_);
  std::unique_ptr<Runtime> second = StartRuntime({.use_bootstrap = second_bootstrap.get()});
  Channel of_second(*second, "store");
  for (int i = 0; i < 2; ++i) {
    client_runtime_->Spawn(Hold(*channel_));
    second->Spawn(Hold(of_second));
  }
  EXPECT_EQ(Run(service_.waiting.Until(4)), absl::OkStatus()) << "all calls of the server run";
  // Their calls end before their channels do.
  second.reset();
  client_runtime_.reset();
}

TEST_F(FileBootstrapTest, ServerThatGoesIsNoticedAndItsSuccessorFound) {
  ASSERT_EQ(Run(EchoOnce(1, "")), absl::OkStatus());
  server_.reset();
  EXPECT_EQ(Run(EchoOnce(2, "")).code(), absl::StatusCode::kUnavailable);
  Serve({.address = "store"});
  Eventually([&] { return Run(EchoOnce(3, "")).ok(); }, "the channel comes back");
}

}  // namespace file_bootstrap_test
}  // namespace verbena
