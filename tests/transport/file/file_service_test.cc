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
#include "tests/transport/file/file_fixture.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/file/operation.h"

namespace verbena::internal {
namespace file_service_test {

using absl::StatusCode;
using Kind = FileRequest::Kind;

// Answers reads in order with `answers`, then with what was asked for; opens with 1000.
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
  void Stop(const size_t&) override {
    for (FileOperation* operation : held_) executor_.Post(*operation);
  }

  std::deque<int32_t> answers;
  int32_t always = 0;  // of every read, unless it is 0
  int started = 0;
  bool holds = false;  // the answers, until Stop()

 private:
  int32_t Answer(const FileRequest& request) {
    if (request.kind == Kind::kOpen) return 1000;
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
