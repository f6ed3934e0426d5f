// The memory of a file's operation stays until the kernel lets go of it, whether the operation is
// cancelled or abandoned, or its executor goes. Built once per backend; AddressSanitizer sees what
// outlives what.

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <barrier>
#include <chrono>
#include <filesystem>
#include <latch>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/support/turn.h"
#include "tests/transport/file/file_fixture.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/spawn.h"
#include "verbena/transport/file/file_service.h"

namespace verbena::internal {
namespace file_lifetime_test {

using absl::StatusCode;
using std::chrono::milliseconds;

// A FIFO without a writer's data: a read of it stays under way until somebody writes.
class FileLifetimeTest : public FileTest {
 protected:
  void SetUp() override {
    FileTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
    fifo_ = open(Path("fifo").c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(fifo_, 0);
  }
  void TearDown() override {
    // Ends the reads that nobody waits for, so that their threads go on.
    if (fifo_ >= 0) {
      EXPECT_GT(write(fifo_, std::string(4096, 'w').data(), 4096), 0);
    }
    FileTest::TearDown();
    if (fifo_ >= 0) close(fifo_);
  }
  size_t InUse() const { return pool_->stats().bytes_in_use; }
  // Until so many operations are with the kernel or wait for their turn.
  Task<void> UntilAsked(size_t operations) {
    const FileService& service = *FileService::Of(*executor_).value();
    while (service.in_flight() + service.waiting() < operations) (co_await Yield()).IgnoreError();
  }

  // Until the kernel and the threads have let go of all memory.
  Task<void> UntilFree() {
    while (InUse() > 0) co_await Turn(*executor_);
  }

  int fifo_ = -1;
};

size_t CountDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& _ : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

Task<void> ReadInto(File& file, Buffer buffer, absl::Status& result) {
  const absl::StatusOr<size_t> read = co_await file.Read(buffer.view(), 0);
  result = read.status();
}

TEST_F(FileLifetimeTest, ACancelledReadReturnsAtOnceAndItsMemoryStaysUntilTheKernelLetsGo) {
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open(Path("fifo"), {.flags = O_RDONLY});
    CO_ASSERT_OK(file);
    TaskScope scope(co_await CurrentContext());
    absl::Status result = absl::UnknownError("not yet");
    scope.Spawn(ReadInto(*file, Take(100), result));
    co_await UntilAsked(1);
    EXPECT_EQ(result.code(), StatusCode::kUnknown);
    EXPECT_EQ(InUse(), 4096u);
    scope.RequestCancel();
    co_await scope.Join();
    EXPECT_EQ(result.code(), StatusCode::kCancelled);
    // Threads cannot be interrupted: they read what comes, into memory that nobody else has.
    EXPECT_EQ(write(fifo_, "late", 4), 4);
    co_await UntilFree();
  });
}

Task<void> ReadView(File& file, BufferView view, absl::Status& result) {
  result = (co_await file.Read(view, 0)).status();
}

// Otherwise the first read could fill what the second has read.
TEST_F(FileLifetimeTest, MemoryThatACancelledReadMayStillFillIsRefused) {
  Run([&]() -> Task<void> {
    absl::StatusOr<File> fifo = co_await File::Open(Path("fifo"), {.flags = O_RDONLY});
    CO_ASSERT_OK(fifo);
    absl::StatusOr<File> other = co_await File::Open(Path("other"), {.flags = O_RDWR | O_CREAT});
    CO_ASSERT_OK(other);
    const Buffer buffer = Take(100);
    TaskScope scope(co_await CurrentContext());
    absl::Status result;
    scope.Spawn(ReadView(*fifo, buffer.Slice(20, 30), result));
    co_await UntilAsked(1);
    scope.RequestCancel();
    co_await scope.Join();
    EXPECT_EQ(result.code(), StatusCode::kCancelled);
    const absl::Status again = (co_await other->Read(buffer.Slice(0, 21), 0)).status();
    EXPECT_EQ(again.code(), StatusCode::kFailedPrecondition) << again;
    EXPECT_EQ((co_await other->Write(buffer.Slice(49, 1), 0)).code(),
              StatusCode::kFailedPrecondition);
    EXPECT_EQ(co_await other->Write(buffer.Slice(0, 20), 0), absl::OkStatus());
    EXPECT_EQ(co_await other->Write(buffer.Slice(50, 50), 0), absl::OkStatus());
    EXPECT_EQ(write(fifo_, "late", 4), 4);
    const FileService& service = *FileService::Of(*executor_).value();
    while (service.in_flight() > 0) co_await Turn(*executor_);
    EXPECT_EQ(co_await other->Write(buffer.view(), 0), absl::OkStatus());
  });
}

TEST_F(FileLifetimeTest, ADeadlineEndsARead) {
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open(Path("fifo"), {.flags = O_RDONLY});
    CO_ASSERT_OK(file);
    Buffer buffer = Take(100);
    const absl::StatusOr<size_t> read =
        co_await WithDeadline(file->Read(buffer.view(), 0), milliseconds(5));
    EXPECT_EQ(read.status().code(), StatusCode::kDeadlineExceeded);
  });
}

TEST_F(FileLifetimeTest, ATaskDestroyedWhileItReadsLeavesItsMemoryToTheKernel) {
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open(Path("fifo"), {.flags = O_RDONLY});
    CO_ASSERT_OK(file);
    absl::Status result = absl::UnknownError("never");
    {
      TaskScope scope(co_await CurrentContext());
      scope.Spawn(ReadInto(*file, Take(100), result));
      co_await UntilAsked(1);
    }
    *file = File();
    EXPECT_EQ(write(fifo_, "late", 4), 4);
    co_await UntilFree();
    EXPECT_EQ(result.code(), StatusCode::kUnknown);
  });
}

TEST_F(FileLifetimeTest, ACancelledScopeStartsNothing) {
  MakeFile("a", "abc");
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open(Path("a"), {.flags = O_RDWR});
    CO_ASSERT_OK(file);
    CancelScope scope;
    scope.Request();
    Buffer buffer = TakeWith("xyz");
    EXPECT_EQ((co_await file->Write(buffer.view(), 0).In(&scope)).code(), StatusCode::kCancelled);
    EXPECT_EQ(
        (co_await File::Open(Path("b"), {.flags = O_RDWR | O_CREAT}).In(&scope)).status().code(),
        StatusCode::kCancelled);
  });
  EXPECT_EQ(Contents("a"), "abc");
  EXPECT_FALSE(std::filesystem::exists(Path("b")));
}

// More waits than the backend takes; those behind are cancelled, abandoned, or have their turn.
TEST_F(FileLifetimeTest, OperationsBeyondTheBoundWaitAndCanBeCancelledThere) {
  constexpr int kReads = 1400;
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open(Path("fifo"), {.flags = O_RDONLY});
    CO_ASSERT_OK(file);
    std::vector<absl::Status> results(kReads, absl::UnknownError("not yet"));
    const TaskContext context = co_await CurrentContext();
    {
      TaskScope abandoned(context);
      TaskScope cancelled(context);
      for (int i = 0; i < kReads; ++i) {
        (i % 2 == 0 ? abandoned : cancelled).Spawn(ReadInto(*file, Take(10), results[i]));
      }
      co_await UntilAsked(kReads);
      cancelled.RequestCancel();
      co_await cancelled.Join();
    }
    for (int i = 0; i < kReads; ++i) {
      EXPECT_EQ(results[i].code(), i % 2 == 0 ? StatusCode::kUnknown : StatusCode::kCancelled);
    }
    // The backend serves again, once threads that read the FIFO are through.
    EXPECT_EQ(write(fifo_, std::string(4096, 'w').data(), 4096), 4096);
    EXPECT_TRUE((co_await file->Stat()).ok());
    co_await UntilFree();
  });
}

// Destroyed after each number of turns: while it opens, looks for the alignment, reads, writes,
// syncs, closes.
TEST_F(FileLifetimeTest, ATaskMayBeDestroyedAtEveryAwait) {
  const auto everything = [this](bool& ended) -> Task<void> {
    absl::StatusOr<File> file =
        co_await File::Open(Path("a"), {.flags = O_RDWR | O_CREAT, .direct = true});
    CO_ASSERT_OK(file);
    Buffer buffer = Take(4096);
    EXPECT_TRUE((co_await file->Write(buffer.view(), 0)).ok());
    EXPECT_TRUE((co_await file->Datasync()).ok());
    EXPECT_TRUE((co_await file->Read(buffer.view(), 0)).ok());
    EXPECT_TRUE((co_await file->Stat()).ok());
    EXPECT_TRUE((co_await file->Close()).ok());
    ended = true;
  };
  const size_t descriptors_before = CountDescriptors();
  bool ended = false;
  int destroyed = 0;
  for (int turns = 0; !ended; turns += 1 + turns / 16) {
    Run([&]() -> Task<void> {
      TaskScope scope(co_await CurrentContext());
      scope.Spawn(everything(ended));
      for (int i = 0; i < turns && !ended; ++i) co_await Turn(*executor_);
      if (!ended) ++destroyed;
    });
  }
  EXPECT_GT(destroyed, 5);
  // Nothing is left open.
  Run([&]() -> Task<void> {
    while (InUse() > 0 || CountDescriptors() > descriptors_before) co_await Turn(*executor_);
  });
}

TEST_F(FileLifetimeTest, AnExecutorThatGoesWaitsForItsOperations) {
  MakeFile("a", std::string(1 << 20, 'a'));
  bool started = false;
  const auto read_all = [this](bool& began, Executor& executor) -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open(Path("a"), {.flags = O_RDWR});
    CO_ASSERT_OK(file);
    TaskScope scope(co_await CurrentContext());
    std::vector<absl::Status> results(500);
    for (absl::Status& result : results) scope.Spawn(ReadInto(*file, Take(65536), result));
    (co_await Yield()).IgnoreError();
    began = true;
    executor.Stop();
    co_await scope.Join();
  };
  Spawn(*executor_, read_all(started, *executor_));
  executor_->Run();
  EXPECT_TRUE(started);
  executor_.reset();
  EXPECT_EQ(InUse(), 0u);
}

TEST_F(FileLifetimeTest, AnExecutorMayGoOnAnotherThreadThanTheOneThatStartedItsOperations) {
  MakeFile("a", std::string(1 << 20, 'a'));
  const auto read_all = [this](Executor& executor) -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open(Path("a"), {.flags = O_RDWR});
    CO_ASSERT_OK(file);
    absl::StatusOr<File> fifo = co_await File::Open(Path("fifo"), {.flags = O_RDONLY});
    CO_ASSERT_OK(fifo);
    TaskScope scope(co_await CurrentContext());
    std::vector<absl::Status> results(500);
    for (size_t i = 0; i < results.size(); ++i) {
      scope.Spawn(ReadInto(i == 199 ? *fifo : *file, Take(65536), results[i]));
    }
    (co_await Yield()).IgnoreError();
    executor.Stop();
    (co_await SleepUntil(kNever)).IgnoreError();
  };
  Spawn(*executor_, read_all(*executor_));
  std::thread([this] { executor_->Run(); }).join();
  EXPECT_GT(write(fifo_, std::string(4096, 'w').data(), 4096), 0);
  executor_.reset();
  EXPECT_EQ(InUse(), 0u);
}

TEST_F(FileLifetimeTest, AnyThreadMayMakeTasksOfAFileAndTheFileKnowsHowManyThereAre) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 100;
  constexpr int kTasksPerRound = 20;
  MakeFile("a", "abcd");
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open(Path("a"), {.flags = O_RDWR});
    CO_ASSERT_OK(file);
    const size_t descriptors = CountDescriptors();
    std::barrier<> together(kThreads);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        // In step, so that the threads meet however few processors there are.
        for (int round = 0; round < kRounds; ++round) {
          together.arrive_and_wait();
          std::vector<Task<absl::Status>> never_awaited;
          for (int task = 0; task < kTasksPerRound; ++task) {
            never_awaited.push_back(file->Datasync());
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    // A reference too few would have closed it, in the background: the threads have posted that.
    const FileService& service = *FileService::Of(*executor_).value();
    do {
      co_await Turn(*executor_);
    } while (service.in_flight() + service.waiting() > 0);
    EXPECT_EQ(CountDescriptors(), descriptors) << "it was closed while its File was there";
    const absl::Status closed = co_await file->Close();
    EXPECT_TRUE(closed.ok()) << closed << ": a reference is left over";
  });
}

TEST_F(FileLifetimeTest, ThreadsThatBlockOnAFileDoNotRaceWithItsExecutor) {
  constexpr int kReads = 200;
  MakeFile("a", "abcd");
  File file;
  Run([&]() -> Task<void> {
    absl::StatusOr<File> opened = co_await File::Open(Path("a"), {.flags = O_RDWR});
    CO_ASSERT_OK(opened);
    file = *std::move(opened);
  });
  std::vector<Buffer> buffers;
  for (int i = 0; i < 2; ++i) buffers.push_back(Take(4));
  std::thread loop([this] { executor_->Run(); });
  std::vector<std::thread> threads;
  for (Buffer& buffer : buffers) {
    threads.emplace_back([&] {
      for (int i = 0; i < kReads; ++i) {
        EXPECT_EQ(BlockOn(*executor_, file.Read(buffer.view(), 0)).value_or(0), 4u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(BlockOn(*executor_, file.Close()).ok());
  executor_->Stop();
  loop.join();
}

TEST_F(FileLifetimeTest, ATaskThatAnotherThreadDropsLastClosesTheFileOnItsExecutor) {
  MakeFile("a", "abcd");
  const size_t descriptors_before = CountDescriptors();
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open(Path("a"), {.flags = O_RDWR});
    CO_ASSERT_OK(file);
    Task<absl::Status> never_awaited = file->Datasync();
    *file = File();
    std::thread([task = std::move(never_awaited)]() mutable { task = {}; }).join();
    while (CountDescriptors() > descriptors_before) co_await Turn(*executor_);
  });
}

// --- Misuse --------------------------------------------------------------------------------------

using FileDeathTest = FileLifetimeTest;

TEST_F(FileDeathTest, AFileThatWasClosedEndsTheProcessWithAReason) {
  const Buffer buffer = Take(4);
  File none;
  EXPECT_DEATH({ const auto task = none.Read(buffer.view(), 0); }, "file_ != nullptr.*no file");
  EXPECT_DEATH({ const auto task = none.Close(); }, "file_ != nullptr.*no file");
}

TEST_F(FileDeathTest, AFileOnAnotherExecutorEndsTheProcessWithAReason) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto use_elsewhere = [this] {
    File file;
    MakeFile("a", "abcd");
    Run([&]() -> Task<void> {
      file = (co_await File::Open(Path("a"), {.flags = O_RDWR})).value();
    });
    absl::StatusOr<std::unique_ptr<ExecutorThread>> other = ExecutorThread::Start({});
    BlockOn((*other)->executor(), file.Sync()).IgnoreError();
  };
  EXPECT_DEATH(use_elsewhere(), "another executor than the one that opened it");
}

// --- Hosts ---------------------------------------------------------------------------------------

TEST_F(FileLifetimeTest, AHostThatSleepsInTheExecutorsSteadIsWokenByCompletions) {
  absl::Status result = absl::UnknownError("not yet");
  File file;
  bool ended = false;
  const auto read = [&]() -> Task<void> {
    absl::StatusOr<File> opened = co_await File::Open(Path("fifo"), {.flags = O_RDONLY});
    CO_ASSERT_OK(opened);
    file = *std::move(opened);
    co_await ReadInto(file, Take(4), result);
    file = File();
    ended = true;
  };
  Spawn(*executor_, read());
  std::latch armed(1);
  std::thread writer([&] {
    armed.wait();
    EXPECT_EQ(write(fifo_, "abcd", 4), 4);
  });
  while (!ended) {
    executor_->Poll();
    if (!executor_->Arm()) continue;
    if (file && !armed.try_wait()) armed.count_down();
    pollfd readable = {.fd = executor_->fd(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&readable, 1, -1), 1);
  }
  writer.join();
  EXPECT_TRUE(result.ok()) << result;
}

}  // namespace file_lifetime_test
}  // namespace verbena::internal
