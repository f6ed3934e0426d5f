// The fixture of the file tests: an executor, a pool of buffers and a directory. Each test is built
// once per Waiter, and so once per backend: io_uring, and threads.

#ifndef VERBENA_TESTS_TRANSPORT_FILE_FILE_FIXTURE_H_
#define VERBENA_TESTS_TRANSPORT_FILE_FILE_FIXTURE_H_

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/transport/executor/test_support.h"
#include "tests/transport/memory/pinning_device.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/spawn.h"
#include "verbena/transport/file/file.h"
#include "verbena/transport/memory/buffer_pool.h"

namespace verbena::internal {

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Executor>> executor =
        Executor::Create({.mode = mode(), .waiter = kTestedWaiter});
    if (!executor.ok()) GTEST_SKIP() << executor.status();
    executor_ = *std::move(executor);
    pool_ = BufferPool::Create(*executor_, device_, nullptr, {.name = "test"}).value();
    std::string directory = ::testing::TempDir() + "/verbena_file_XXXXXX";
    ASSERT_NE(mkdtemp(directory.data()), nullptr);
    directory_ = directory;
  }
  void TearDown() override {
    // The executor waits for the operations under way; their buffers return to the pool.
    executor_.reset();
    pool_.reset();
    if (!directory_.empty()) std::filesystem::remove_all(directory_);
  }
  virtual ExecutorMode mode() const { return ExecutorMode::kEvent; }

  // Runs `body()`, a coroutine, to its end on the executor, on this thread.
  template <typename Body>
  void Run(Body body) {
    bool ended = false;
    Spawn(*executor_, Ending(body, *executor_, ended));
    executor_->Run();
    EXPECT_TRUE(ended);
  }

  std::string Path(const std::string& name) const { return directory_ / name; }
  std::string Contents(const std::string& name) const {
    std::ifstream file(Path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void MakeFile(const std::string& name, const std::string& contents) const {
    std::ofstream(Path(name), std::ios::binary) << contents;
  }
  Buffer Take(size_t bytes) { return pool_->TryAllocate(bytes).value(); }
  // A buffer that holds `text`.
  Buffer TakeWith(const std::string& text) {
    Buffer buffer = Take(text.size());
    text.copy(buffer.data(), text.size());
    return buffer;
  }
  static std::string Text(const Buffer& buffer, size_t bytes) { return {buffer.data(), bytes}; }

  PinningDevice device_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<BufferPool> pool_;
  std::filesystem::path directory_;

 private:
  template <typename Body>
  static Task<void> Ending(Body& body, Executor& executor, bool& ended) {
    co_await body();
    ended = true;
    executor.Stop();
  }
};

// For coroutines: gtest's ASSERT_* use `return`, which a coroutine must not.
#define CO_ASSERT_TRUE(...)                        \
  if (const bool held = (__VA_ARGS__); !held) {    \
    ADD_FAILURE() << "not true: " << #__VA_ARGS__; \
    co_return;                                     \
  }
#define CO_ASSERT_OK(status_or)                                  \
  if (!(status_or).ok()) {                                       \
    ADD_FAILURE() << #status_or << ": " << (status_or).status(); \
    co_return;                                                   \
  }

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_TRANSPORT_FILE_FILE_FIXTURE_H_
