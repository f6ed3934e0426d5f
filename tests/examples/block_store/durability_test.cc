// Data and names reach the disk before the store says so, and after a failed flush nothing passes
// for durable. The test notes the system calls that the store's files make, and lets some fail. On
// threads: no program sees the calls that a ring makes.

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "examples/block_store/limits.h"
#include "examples/block_store/volume_store.h"
#include "gmock/gmock.h"
#include "tests/examples/block_store/store_fixture.h"
#include "tests/support/turn.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/spawn.h"

namespace {

// Shared with the threads that make the calls.
struct SystemCalls {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> noted;
  std::string failing;  // calls of this name fail with `error` from now on
  int error = 0;
  std::string held;  // the next call of this name waits, and then returns `held_error`
  int held_error = 0;
  bool let_go = false;
};

SystemCalls& Calls() {
  static SystemCalls calls;
  return calls;
}

// Notes "NAME FILE", without the directory. Returns 0, or the errno with which the call must fail.
int Note(const std::string& name, const std::string& path) {
  SystemCalls& calls = Calls();
  std::unique_lock<std::mutex> lock(calls.mutex);
  calls.noted.push_back(name + " " + std::filesystem::path(path).filename().string());
  if (calls.held == name) {
    // The kernel reports an error once, so later calls succeed.
    calls.held.clear();
    calls.changed.wait(lock, [&calls] { return calls.let_go; });
    return calls.held_error;
  }
  return calls.failing == name ? calls.error : 0;
}

std::string PathOf(int fd) {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), error).string();
}

int Fail(int error) {
  errno = error;
  return -1;
}

}  // namespace

// These replace the functions of the C library.
extern "C" {

int fdatasync(int fd) {
  if (const int error = Note("fdatasync", PathOf(fd))) return Fail(error);
  return static_cast<int>(syscall(SYS_fdatasync, fd));
}

int fsync(int fd) {
  if (const int error = Note("fsync", PathOf(fd))) return Fail(error);
  return static_cast<int>(syscall(SYS_fsync, fd));
}

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  if (const int error = Note("pwrite", PathOf(fd))) return Fail(error);
  return syscall(SYS_pwrite64, fd, data, bytes, offset);
}

int renameat2(int from_directory, const char* from, int to_directory, const char* to,
              unsigned flags) noexcept {
  if (const int error = Note("rename", to)) return Fail(error);
  return static_cast<int>(syscall(SYS_renameat2, from_directory, from, to_directory, to, flags));
}

}  // extern "C"

namespace block_store {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ResultOf;
using verbena::BlockOn;
using verbena::CurrentContext;
using verbena::Executor;
using verbena::ExecutorThread;
using verbena::Task;
using verbena::TaskScope;
using verbena::Turn;
using verbena::Yield;

class DurabilityTest : public StoreTest {
 protected:
  void SetUp() override {
    Fail("", 0);
    StoreTest::SetUp();
  }
  void TearDown() override {
    Fail("", 0);
    StoreTest::TearDown();
  }

  static void Fail(const std::string& call, int error) {
    const std::lock_guard<std::mutex> lock(Calls().mutex);
    Calls().failing = call;
    Calls().error = error;
  }
  static std::vector<std::string> TakeNoted() {
    const std::lock_guard<std::mutex> lock(Calls().mutex);
    return std::exchange(Calls().noted, {});
  }
  // The next call of this name waits for LetGo(), and then fails with `error`, unless that is 0.
  static void HoldNext(const std::string& call, int error) {
    const std::lock_guard<std::mutex> lock(Calls().mutex);
    Calls().held = call;
    Calls().held_error = error;
    Calls().let_go = false;
  }
  static void LetGo() {
    const std::lock_guard<std::mutex> lock(Calls().mutex);
    Calls().let_go = true;
    Calls().changed.notify_all();
  }
  // Whether the call that HoldNext() waits for has come.
  static bool IsHeld() {
    const std::lock_guard<std::mutex> lock(Calls().mutex);
    return Calls().held.empty();
  }
  static Task<void> UntilHeld() {
    while (!IsHeld()) (co_await Yield()).IgnoreError();
  }
  // Lets the executor run everything that can go on without the held call.
  static Task<void> Turns(Executor& executor) {
    for (int i = 0; i < 1000; ++i) co_await Turn(executor);
  }
  Task<void> FlushInto(absl::Status& status) { status = co_await store_->Flush(kVolume); }

  const std::string kVolume = "v";
  std::string DirectoryName() const { return directory_.filename().string(); }
};

TEST_F(DurabilityTest, AVolumeIsWholeOnTheDiskBeforeItHasItsNameAndTheNameBeforeTheAnswer) {
  TakeNoted();
  ASSERT_TRUE(Create("v", 4).ok());
  EXPECT_THAT(TakeNoted(),
              ElementsAre("fsync v.1.creating", "rename v.volume", "fsync " + DirectoryName()));
}

TEST_F(DurabilityTest, AWriteIsFlushedWhenItAsksForItAndOnlyAfterItsData) {
  ASSERT_TRUE(Create("v", 4).ok());
  TakeNoted();
  ASSERT_TRUE(Write("v", 0, Blocks(1, 'a')).ok());
  EXPECT_THAT(TakeNoted(), ElementsAre("pwrite v.volume"));
  ASSERT_TRUE(Write("v", 0, Blocks(1, 'b'), /*flush=*/true).ok());
  EXPECT_THAT(TakeNoted(), ElementsAre("pwrite v.volume", "fdatasync v.volume"));
  ASSERT_TRUE(Await(store_->Flush("v")).ok());
  EXPECT_THAT(TakeNoted(), ElementsAre("fdatasync v.volume"));
}

TEST_F(DurabilityTest, AVolumeThatCannotBeMadeDurableIsNone) {
  for (const char* call : {"fsync", "rename"}) {
    Fail(call, EIO);
    EXPECT_FALSE(Create("v", 4).ok()) << call;
    Fail("", 0);
    EXPECT_TRUE(std::filesystem::is_empty(directory_)) << call;
    EXPECT_EQ(Await(store_->Flush("v")).code(), StatusCode::kNotFound) << call;
  }
  EXPECT_TRUE(Create("v", 4).ok()) << "the name is free again";
}

TEST_F(DurabilityTest, AFullDiskIsSaidByTheWriteAndTheRestOfTheVolumeIsWell) {
  ASSERT_TRUE(Create("v", 4).ok());
  ASSERT_TRUE(Write("v", 0, Blocks(1, 'a'), /*flush=*/true).ok());
  Fail("pwrite", ENOSPC);
  const absl::Status full = Write("v", kBlockBytes, Blocks(2, 'b'), /*flush=*/true);
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted) << full;
  EXPECT_THAT(full.ToString(), AllOf(HasSubstr("v.volume"), HasSubstr("ENOSPC")));
  Fail("", 0);
  EXPECT_EQ(Read("v", 0, 2 * kBlockBytes).value(), Blocks(1, 'a') + Blocks(1, '\0'));
  EXPECT_TRUE(Write("v", kBlockBytes, Blocks(2, 'b'), /*flush=*/true).ok())
      << "there is room again";
}

TEST_F(DurabilityTest, AfterAFlushThatFailedNothingPassesForDurable) {
  ASSERT_TRUE(Create("v", 4).ok());
  ASSERT_TRUE(Create("other", 4).ok());
  ASSERT_TRUE(Write("v", 0, Blocks(1, 'a')).ok());
  Fail("fdatasync", EIO);
  const absl::Status failed = Await(store_->Flush("v"));
  EXPECT_EQ(failed.code(), StatusCode::kDataLoss) << failed;
  // The kernel, too, reports an error once and forgets it.
  Fail("", 0);
  TakeNoted();
  for (const absl::Status& status : {Await(store_->Flush("v")), Write("v", 0, Blocks(1, 'b')),
                                     Write("v", 0, Blocks(1, 'b'), /*flush=*/true)}) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(status.ToString(), AllOf(HasSubstr("'v'"), HasSubstr("restarted")));
  }
  EXPECT_THAT(TakeNoted(), IsEmpty());
  EXPECT_TRUE(Read("v", 0, kBlockBytes).ok());
  EXPECT_TRUE(Write("other", 0, Blocks(1, 'b'), /*flush=*/true).ok()) << "another volume";
  Reopen();
  EXPECT_TRUE(Write("v", 0, Blocks(1, 'b'), /*flush=*/true).ok());
}

TEST_F(DurabilityTest, AFlushThatOverlapsOneWhichFailsFailsToo) {
  ASSERT_TRUE(Create("v", 4).ok());
  ASSERT_TRUE(Write("v", 0, Blocks(1, 'a')).ok());
  HoldNext("fdatasync", EIO);
  absl::Status first;
  absl::Status second;
  Run([&]() -> Task<void> {
    TaskScope scope(co_await CurrentContext());
    scope.Spawn(FlushInto(first));
    co_await UntilHeld();
    scope.Spawn(FlushInto(second));
    co_await Turns(*executor_);
    LetGo();
    co_await scope.Join();
  });
  EXPECT_EQ(first.code(), StatusCode::kDataLoss) << first;
  EXPECT_EQ(second.code(), StatusCode::kFailedPrecondition) << second;
}

TEST_F(DurabilityTest, AFlushOnAnotherExecutorThatOverlapsOneWhichFailsFailsToo) {
  ASSERT_TRUE(Create("v", 4).ok());
  ASSERT_TRUE(Write("v", 0, Blocks(1, 'a')).ok());
  store_.reset();
  std::vector<std::unique_ptr<ExecutorThread>> threads;
  std::vector<Executor*> executors;
  for (int i = 0; i < 2; ++i) {
    threads.push_back(ExecutorThread::Start({.waiter = verbena::internal::kTestedWaiter}).value());
    executors.push_back(&threads.back()->executor());
  }
  store_ = VolumeStore::Open(directory_, executors).value();
  HoldNext("fdatasync", EIO);
  absl::Status statuses[2];
  std::thread first([&] { BlockOn(*executors[0], FlushInto(statuses[0])); });
  while (!IsHeld()) std::this_thread::yield();
  const auto flush_beside = [&]() -> Task<void> {
    TaskScope scope(co_await CurrentContext());
    scope.Spawn(FlushInto(statuses[1]));
    co_await Turns(*executors[1]);
    LetGo();
    co_await scope.Join();
  };
  BlockOn(*executors[1], flush_beside());
  first.join();
  EXPECT_EQ(statuses[0].code(), StatusCode::kDataLoss) << statuses[0];
  EXPECT_EQ(statuses[1].code(), StatusCode::kFailedPrecondition) << statuses[1];
  store_.reset();
}

TEST_F(DurabilityTest, FlushesThatWaitForOneShareTheNext) {
  ASSERT_TRUE(Create("v", 4).ok());
  ASSERT_TRUE(Write("v", 0, Blocks(1, 'a')).ok());
  TakeNoted();
  HoldNext("fdatasync", 0);
  std::vector<absl::Status> statuses(6, absl::UnknownError("not yet"));
  Run([&]() -> Task<void> {
    TaskScope scope(co_await CurrentContext());
    scope.Spawn(FlushInto(statuses[0]));
    co_await UntilHeld();
    for (size_t i = 1; i < statuses.size(); ++i) scope.Spawn(FlushInto(statuses[i]));
    co_await Turns(*executor_);
    EXPECT_EQ(statuses[1].code(), StatusCode::kUnknown) << "it waits for the one before";
    LetGo();
    co_await scope.Join();
  });
  EXPECT_THAT(statuses, Each(ResultOf([](const absl::Status& s) { return s.ok(); }, true)));
  EXPECT_THAT(TakeNoted(), ElementsAre("fdatasync v.volume", "fdatasync v.volume"));
}

// Nobody learns the result that the kernel gives.
TEST_F(DurabilityTest, AFlushWhoseTaskIsDestroyedCountsAsFailed) {
  ASSERT_TRUE(Create("v", 4).ok());
  HoldNext("fdatasync", EIO);
  absl::Status abandoned = absl::UnknownError("never");
  Run([&]() -> Task<void> {
    {
      TaskScope scope(co_await CurrentContext());
      scope.Spawn(FlushInto(abandoned));
      co_await UntilHeld();
    }
    LetGo();
  });
  EXPECT_EQ(abandoned.code(), StatusCode::kUnknown);
  EXPECT_EQ(Await(store_->Flush("v")).code(), StatusCode::kFailedPrecondition);
}

// A process may have died between the rename of a volume and the sync of its directory.
TEST_F(DurabilityTest, NamesThatAreFoundAreMadeDurableBeforeTheyAreServed) {
  ASSERT_TRUE(Create("v", 4).ok());
  store_.reset();
  TakeNoted();
  store_ = OpenStore().value();
  EXPECT_THAT(TakeNoted(), ElementsAre("fsync " + DirectoryName()));
  store_.reset();
  Fail("fsync", EIO);
  const absl::Status refused = OpenStore().status();
  EXPECT_EQ(refused.code(), StatusCode::kDataLoss) << refused;
  EXPECT_THAT(refused.ToString(), HasSubstr(directory_.string()));
}

TEST_F(DurabilityTest, ACreateWhoseTaskIsDestroyedInItsRenameLeavesTheNameTakenAndTheFile) {
  HoldNext("rename", 0);
  Run([&]() -> Task<void> {
    const auto create = [this]() -> Task<void> {
      (co_await store_->Create(kVolume, 4)).IgnoreError();
    };
    {
      TaskScope scope(co_await CurrentContext());
      scope.Spawn(create());
      co_await UntilHeld();
    }
    LetGo();
    while (!std::filesystem::exists(Path("v.volume"))) co_await Turn(*executor_);
  });
  EXPECT_EQ(Create("v", 4).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(Await(store_->Flush("v")).code(), StatusCode::kNotFound);
  Reopen();
  EXPECT_TRUE(Await(store_->Flush("v")).ok()) << "it is a whole volume";
}

}  // namespace
}  // namespace block_store
