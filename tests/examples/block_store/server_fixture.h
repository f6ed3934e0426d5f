// A fixture that runs block_store_server as a process, on a directory that outlives the process.

#ifndef VERBENA_TESTS_EXAMPLES_BLOCK_STORE_SERVER_FIXTURE_H_
#define VERBENA_TESTS_EXAMPLES_BLOCK_STORE_SERVER_FIXTURE_H_

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/common/server_process.h"
#include "examples/common/signals.h"
#include "gtest/gtest.h"

namespace block_store {

class ServerProcessTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string directory = testing::TempDir() + "/verbena_blocks_XXXXXX";
    ASSERT_NE(mkdtemp(directory.data()), nullptr);
    directory_ = directory;
    signals_ = examples::StopSignals::Block().value();
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(directory_);
  }

  // Event mode: the processes of a test share few cores.
  void StartServer(int executors = 1) {
    auto server = examples::ServerProcess::Start(
        "examples/block_store/block_store_server",
        {"--directory=" + directory_, "--address=127.0.0.1:0", "--mode=event",
         "--executors=" + std::to_string(executors)});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    const absl::Status ready = server_->WaitUntilReady(*signals_);
    ASSERT_TRUE(ready.ok()) << ready;
  }
  // By SIGKILL.
  void KillServer() { server_.reset(); }

  std::string directory_;
  std::unique_ptr<examples::StopSignals> signals_;
  std::unique_ptr<examples::ServerProcess> server_;
};

}  // namespace block_store

#endif  // VERBENA_TESTS_EXAMPLES_BLOCK_STORE_SERVER_FIXTURE_H_
