// The ring asks the kernel not to interrupt its thread, if the kernel knows how. A thread sees what
// other threads have completed or started on the ring.

#include "verbena/transport/executor/io_ring.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <thread>

#include "gtest/gtest.h"

namespace verbena::internal {
namespace io_ring_test {

class NoTags final : public RingListener {
 public:
  void OnTagged(uint64_t, int32_t) override {}
};

class NotedOperation final : public RingOperation {
 public:
  void OnComplete(int32_t its_result) override {
    done = true;
    result = its_result;
  }
  bool done = false;
  int32_t result = 0;
};

// Skipped where the kernel forbids io_uring.
class IoRingTest : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<IoRing>> ring = IoRing::Create(tags_);
    if (!ring.ok()) GTEST_SKIP() << ring.status();
    ring_ = *std::move(ring);
    ASSERT_EQ(pipe(pipe_), 0);
  }
  void TearDown() override {
    for (const int fd : pipe_) {
      if (fd >= 0) close(fd);
    }
  }
  void StartRead(NotedOperation& operation, char* into, unsigned bytes) {
    io_uring_sqe* sqe = ring_->NextSqe();
    io_uring_prep_read(sqe, pipe_[0], into, bytes, 0);
    IoRing::Bind(*sqe, operation);
    ring_->Submit();
  }

  NoTags tags_;
  std::unique_ptr<IoRing> ring_;
  int pipe_[2] = {-1, -1};
};

TEST_F(IoRingTest, AsksTheKernelNotToInterruptTheThreadWhereItKnowsHow) {
  utsname kernel;
  ASSERT_EQ(uname(&kernel), 0);
  int major = 0;
  int minor = 0;
  ASSERT_EQ(std::sscanf(kernel.release, "%d.%d", &major, &minor), 2);
  EXPECT_EQ(ring_->cooperative(), major > 5 || (major == 5 && minor >= 19)) << kernel.release;
}

TEST_F(IoRingTest, AThreadThatOnlyReapsSeesWhatAnotherThreadCompletes) {
  NotedOperation read;
  char text[4] = {};
  StartRead(read, text, sizeof(text));
  ring_->Reap();
  EXPECT_FALSE(read.done);
  std::thread writer([this] { EXPECT_EQ(write(pipe_[1], "abcd", 4), 4); });
  while (!read.done) ring_->Reap();
  writer.join();
  EXPECT_EQ(read.result, 4);
}

// As an executor is destroyed by its host while the thread that polled it lives on.
TEST_F(IoRingTest, AnotherThreadWaitsForWhatTheFirstOneStarted) {
  NotedOperation read;
  char text[4] = {};
  StartRead(read, text, sizeof(text));
  std::thread other([&] {
    EXPECT_EQ(write(pipe_[1], "abcd", 4), 4);
    while (!read.done) {
      ring_->SubmitAndWait(std::chrono::milliseconds(10));
      ring_->Reap();
    }
  });
  other.join();
  EXPECT_EQ(read.result, 4);
}

}  // namespace io_ring_test
}  // namespace verbena::internal
