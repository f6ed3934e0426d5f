// A Waiter reports each descriptor that is readable, as long as it is watched, and nothing after
// Unwatch(). Built once for each kind of Waiter.

#include "verbena/transport/executor/waiter.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/transport/executor/test_support.h"

namespace verbena::internal {
namespace waiter_test {

class CountingListener final : public ReadableListener {
 public:
  CountingListener() : fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  CountingListener(const CountingListener&) = delete;
  CountingListener& operator=(const CountingListener&) = delete;
  ~CountingListener() override { close(fd); }

  void OnReadable() override {
    ++calls;
    if (read_it) Clear();
  }
  void Set() { EXPECT_EQ(eventfd_write(fd, 1), 0); }
  void Clear() {
    eventfd_t value;
    eventfd_read(fd, &value);
  }

  const int fd;
  bool read_it = true;
  int calls = 0;
};

class WaiterTest : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Waiter>> waiter = CreateWaiter(kTestedWaiter);
    if (!waiter.ok()) GTEST_SKIP() << waiter.status();
    waiter_ = *std::move(waiter);
    ASSERT_TRUE(waiter_->Watch(listener_.fd, listener_).ok());
  }
  // Waits once more than a stale or empty wake-up may take.
  void WaitFor(const int& calls, int wanted) {
    while (calls < wanted) waiter_->Wait(Waiter::kForever);
  }
  bool NestedReadable() {
    pollfd nested = {.fd = waiter_->fd(), .events = POLLIN, .revents = 0};
    return poll(&nested, 1, 0) == 1;
  }

  CountingListener listener_;
  std::unique_ptr<Waiter> waiter_;
};

TEST_F(WaiterTest, ADescriptorThatIsReadableAlreadyIsReported) {
  listener_.Set();
  WaitFor(listener_.calls, 1);
  listener_.Set();
  WaitFor(listener_.calls, 2);
}

TEST_F(WaiterTest, ADescriptorThatStaysReadableIsReportedAgain) {
  listener_.read_it = false;
  listener_.Set();
  WaitFor(listener_.calls, 3);
}

TEST_F(WaiterTest, TheTimeoutEndsAWait) {
  waiter_->Wait(std::chrono::microseconds(100));
  waiter_->Wait(Duration::zero());
  EXPECT_EQ(listener_.calls, 0);
}

TEST_F(WaiterTest, AnUnwatchedDescriptorIsNotReportedAndItsPlaceServesAnother) {
  waiter_->Wait(Duration::zero());
  waiter_->Unwatch(listener_.fd);
  CountingListener other;
  ASSERT_TRUE(waiter_->Watch(other.fd, other).ok());
  listener_.Set();
  other.Set();
  WaitFor(other.calls, 1);
  waiter_->Wait(Duration::zero());
  EXPECT_EQ(listener_.calls, 0);
  ASSERT_TRUE(waiter_->Watch(listener_.fd, listener_).ok());
  WaitFor(listener_.calls, 1);
}

TEST_F(WaiterTest, AWatchedDescriptorIsReportedAsOftenAsItIsUnwatchedAndWatchedAgain) {
  for (int i = 1; i <= 100; ++i) {
    waiter_->Wait(Duration::zero());
    waiter_->Unwatch(listener_.fd);
    ASSERT_TRUE(waiter_->Watch(listener_.fd, listener_).ok());
    listener_.Set();
    WaitFor(listener_.calls, i);
  }
}

TEST_F(WaiterTest, MoreDescriptorsThanOneBatchHoldsAreAllReported) {
  std::vector<std::unique_ptr<CountingListener>> many;
  for (int i = 0; i < 200; ++i) {
    many.push_back(std::make_unique<CountingListener>());
    ASSERT_TRUE(waiter_->Watch(many.back()->fd, *many.back()).ok());
  }
  waiter_->Wait(Duration::zero());
  for (const auto& each : many) each->Set();
  for (const auto& each : many) WaitFor(each->calls, 1);
  for (const auto& each : many) waiter_->Unwatch(each->fd);
}

TEST_F(WaiterTest, AClosedDescriptorIsRefused) {
  const int fd = eventfd(0, EFD_CLOEXEC);
  close(fd);
  EXPECT_FALSE(waiter_->Watch(fd, listener_).ok());
}

TEST_F(WaiterTest, TheNestedDescriptorTellsOfEveryWatch) {
  EXPECT_FALSE(NestedReadable());
  listener_.Set();
  EXPECT_TRUE(NestedReadable());
  waiter_->Dispatch();
  EXPECT_EQ(listener_.calls, 1);
  EXPECT_FALSE(NestedReadable());
}

}  // namespace waiter_test
}  // namespace verbena::internal
