// An operation that the kernel interrupts or refuses for the moment is started again, within
// bounds. The backend here answers what it is told.

#include "verbena/transport/file/file_service.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/support/turn.h"
#include "tests/transport/file/file_fixture.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/file/operation.h"

namespace verbena::internal {
namespace file_service_test {

using absl::StatusCode;
using Kind = FileRequest::Kind;

// Answers reads in order with `answers`, then with what was asked for, as it answers writes; opens
// with 1000.
class AnsweringBackend final : public FileBackend {
 public:
  explicit AnsweringBackend(Executor& executor) : executor_(executor) {}

  const char* name() const override { return "answers"; }
  size_t bound() const override { return 4; }
  void Start(FileOperation& operation) override {
    ++started;
    operation.result = Answer(operation.request);
    if (holds) {
      held_.push_back(&operation);
    } else {
      executor_.Post(operation);
    }
  }
  void Cancel(FileOperation&) override {}
  void Stop(const size_t&) override { EndHeld(); }
  void EndHeld() {
    for (FileOperation* operation : std::exchange(held_, {})) executor_.Post(*operation);
  }

  std::deque<int32_t> answers;
  int32_t always = 0;  // of every read, unless it is 0
  int started = 0;
  bool holds = false;  // the answers, until EndHeld()

 private:
  int32_t Answer(const FileRequest& request) {
    if (request.kind == Kind::kOpen) return 1000;
    if (request.kind == Kind::kWrite) return static_cast<int32_t>(request.part.size());
    if (request.kind != Kind::kRead) return 0;
    if (always != 0) return always;
    if (answers.empty()) return static_cast<int32_t>(request.part.size());
    const int32_t answer = answers.front();
    answers.pop_front();
    return answer;
  }

  Executor& executor_;
  std::vector<FileOperation*> held_;
};

class FileServiceTest : public FileTest {
 protected:
  void SetUp() override {
    FileTest::SetUp();
    auto backend = std::make_unique<AnsweringBackend>(*executor_);
    backend_ = backend.get();
    FileService::Install(*executor_, std::move(backend));
  }
  // The result of reading 100 bytes.
  absl::StatusOr<size_t> Read(int flags = O_RDONLY) {
    absl::StatusOr<size_t> result = absl::UnknownError("not awaited");
    Run([&]() -> Task<void> {
      absl::StatusOr<File> file = co_await File::Open("anything", {.flags = flags});
      CO_ASSERT_OK(file);
      const Buffer buffer = Take(100);
      backend_->started = 0;
      result = co_await file->Read(buffer.view(), 0);
      started_ = backend_->started;
      EXPECT_TRUE((co_await file->Close()).ok());
    });
    return result;
  }

  AnsweringBackend* backend_ = nullptr;
  int started_ = 0;
};

TEST_F(FileServiceTest, AnInterruptedOperationIsStartedAgain) {
  backend_->answers = {-EINTR, -EINTR};
  const absl::StatusOr<size_t> read = Read();
  EXPECT_EQ(read.value_or(0), 100u) << read.status();
  EXPECT_EQ(started_, 3);
}

TEST_F(FileServiceTest, AnOperationThatIsRefusedForTheMomentIsStartedAgain) {
  backend_->answers = {-EAGAIN, 60, -EAGAIN};
  EXPECT_EQ(Read().value_or(0), 100u);
  EXPECT_EQ(started_, 4) << "refused, 60 bytes, refused, the rest";
}

TEST_F(FileServiceTest, AnOperationThatIsAlwaysRefusedFails) {
  backend_->always = -EAGAIN;
  const absl::StatusOr<size_t> read = Read();
  EXPECT_FALSE(read.ok());
  EXPECT_GT(started_, 10);
}

TEST_F(FileServiceTest, AFileThatIsNotToBlockAnswersAtOnce) {
  backend_->answers = {-EAGAIN};
  EXPECT_FALSE(Read(O_RDONLY | O_NONBLOCK).ok());
  EXPECT_EQ(started_, 1);
}

TEST_F(FileServiceTest, AnInterruptedOperationThatNobodyAwaitsIsNotStartedAgain) {
  backend_->always = -EINTR;
  absl::Status status = absl::UnknownError("not yet");
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open("anything");
    CO_ASSERT_OK(file);
    const Buffer buffer = Take(100);
    TaskScope scope(co_await CurrentContext());
    scope.Spawn([&]() -> Task<void> { status = (co_await file->Read(buffer.view(), 0)).status(); });
    scope.RequestCancel();
    co_await scope.Join();
  });
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
}

class CountingOwner final : public WorkOwner {
 public:
  void OnTaskDone() override {}
  uint64_t client() const override { return 1; }
  void OnChangeLeft() override { ++left; }
  void OnLeftChangeEnded() override { ++ended; }

  int left = 0;
  int ended = 0;
};

class LeftOperationTest : public FileServiceTest {
 protected:
  // Starts what `operation` returns, leaves it when the kernel has it, and lets it end.
  template <typename Operation>
  Task<void> LeaveAndEnd(Operation operation, bool cancel) {
    CancelScope scope;
    scope.set_owner(owner_);
    const FileService& service = *FileService::Of(*executor_).value();
    backend_->holds = true;
    {
      TaskScope tasks(*executor_, &scope);
      tasks.Spawn([&]() -> Task<void> { co_await operation(); });
      while (service.in_flight() == 0) co_await Turn(*executor_);
      if (cancel) {
        tasks.RequestCancel();
        co_await tasks.Join();
      }
    }
    left_before_its_end_ = owner_.left - owner_.ended;
    backend_->holds = false;
    backend_->EndHeld();
    while (service.in_flight() > 0) co_await Turn(*executor_);
  }
  // How many operations the owner hears of if that one is left, cancelled or destroyed.
  template <typename Operation>
  Task<void> ExpectHeard(int count, Operation operation) {
    for (const bool cancel : {false, true}) {
      owner_ = {};
      co_await LeaveAndEnd(operation, cancel);
      EXPECT_EQ(left_before_its_end_, count);
      EXPECT_EQ(owner_.left, count);
      EXPECT_EQ(owner_.ended, count);
    }
  }

  CountingOwner owner_;
  int left_before_its_end_ = 0;
};

TEST_F(LeftOperationTest, AnOwnerHearsOfAChangeThatIsLeftAndOfItsEnd) {
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open("anything", {.flags = O_RDWR});
    CO_ASSERT_OK(file);
    co_await ExpectHeard(1, [&]() -> Task<void> {
      const Buffer buffer = Take(100);
      (void)co_await file->Write(buffer.view(), 0);
    });
    co_await ExpectHeard(1, [&]() -> Task<void> { (void)co_await file->Fallocate(0, 100); });
    co_await ExpectHeard(
        1, []() -> Task<void> { (void)co_await File::Open("new", {.flags = O_RDWR | O_CREAT}); });
    co_await ExpectHeard(
        1, []() -> Task<void> { (void)co_await File::Open("old", {.flags = O_RDWR | O_TRUNC}); });
    co_await ExpectHeard(1, []() -> Task<void> { (void)co_await RenameFile("old", "new"); });
    co_await ExpectHeard(1, []() -> Task<void> { (void)co_await RemoveFile("old"); });
    co_await ExpectHeard(1, []() -> Task<void> { (void)co_await MakeDirectory("new"); });
  });
}

TEST_F(LeftOperationTest, AnOwnerHearsNothingOfWhatChangesNoFileOrIsNotLeft) {
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open("anything", {.flags = O_RDWR});
    CO_ASSERT_OK(file);
    co_await ExpectHeard(0, [&]() -> Task<void> {
      const Buffer buffer = Take(100);
      (void)co_await file->Read(buffer.view(), 0);
    });
    co_await ExpectHeard(0, [&]() -> Task<void> { (void)co_await file->Datasync(); });
    co_await ExpectHeard(0, [&]() -> Task<void> { (void)co_await file->Stat(); });
    co_await ExpectHeard(
        0, []() -> Task<void> { (void)co_await File::Open("old", {.flags = O_RDONLY}); });
    CancelScope scope;
    scope.set_owner(owner_);
    const Buffer buffer = Take(100);
    EXPECT_EQ(co_await file->Write(buffer.view(), 0).In(&scope), absl::OkStatus());
    EXPECT_EQ(owner_.left, 0);
  });
}

// It never came to the kernel.
TEST_F(LeftOperationTest, AnOwnerHearsNothingOfAChangeThatWaitedForItsTurn) {
  Run([&]() -> Task<void> {
    FileService& service = *FileService::Of(*executor_).value();
    backend_->holds = true;
    for (size_t i = 0; i < backend_->bound(); ++i) service.CloseDescriptor(-1);
    CancelScope scope;
    scope.set_owner(owner_);
    {
      TaskScope tasks(*executor_, &scope);
      tasks.Spawn([]() -> Task<void> { (co_await RemoveFile("old")).IgnoreError(); });
      while (service.waiting() == 0) co_await Turn(*executor_);
    }
    EXPECT_EQ(owner_.left, 0);
    backend_->holds = false;
    backend_->EndHeld();
    while (service.in_flight() > 0) co_await Turn(*executor_);
    EXPECT_EQ(owner_.ended, 0);
  });
}

// A check in the service's destructor counts them.
TEST_F(FileServiceTest, ClosesThatWaitAtTheEndOfTheExecutorAreCarriedOut) {
  auto& service = static_cast<FileService&>(*executor_->file_service());
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  backend_->holds = true;
  for (size_t i = 0; i < backend_->bound(); ++i) service.CloseDescriptor(-1);
  service.CloseDescriptor(pipe_ends[1]);
  EXPECT_EQ(service.waiting(), 1u);
  TearDown();
  char byte = 0;
  EXPECT_EQ(read(pipe_ends[0], &byte, 1), 0) << "the other end is closed";
  close(pipe_ends[0]);
}

using FileServiceDeathTest = FileServiceTest;

TEST_F(FileServiceDeathTest, ASecondServiceOfOneExecutorEndsTheProcess) {
  EXPECT_DEATH(FileService::Install(*executor_, std::make_unique<AnsweringBackend>(*executor_)),
               "has its files already");
}

}  // namespace file_service_test
}  // namespace verbena::internal
