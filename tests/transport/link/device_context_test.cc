// A device's asynchronous events are acknowledged at once, whatever the executors do, and reach the
// owner of their queue pair in order. A later owner of the same number hears none of them.

#include "verbena/transport/link/device_context.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/base/captured_log.h"
#include "tests/transport/device/fake_device.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::internal {
namespace device_context_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A device that raises the asynchronous events that a test tells it to.
class EventfulDevice final : public FakeDevice {
 public:
  EventfulDevice() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC | EFD_SEMAPHORE)) {}
  ~EventfulDevice() override { close(fd_); }

  void Raise(ibv_event_type type, ibv_qp* qp = nullptr) {
    ibv_async_event event{};
    event.event_type = type;
    if (qp != nullptr) {
      event.element.qp = qp;
    } else {
      event.element.port_num = 1;
    }
    Push(event);
  }
  void Lose(ibv_cq* cq) {
    ibv_async_event event{};
    event.event_type = IBV_EVENT_CQ_ERR;
    event.element.cq = cq;
    Push(event);
  }
  // Runs at each acknowledgement. What an event names may be destroyed from then on.
  std::function<void()> on_acknowledged = [] {};
  int unacknowledged() {
    std::lock_guard lock(mutex_);
    return static_cast<int>(events_.size()) + read_;
  }

  absl::StatusOr<ibv_port_attr> QueryPort(uint8_t) override {
    ibv_port_attr port{};
    port.state = IBV_PORT_ACTIVE;
    port.active_mtu = IBV_MTU_4096;
    return port;
  }
  // Without others it has GID 0 alone, as an address of all zeros.
  void SetOtherGids(std::vector<uint8_t> indexes) {
    std::lock_guard lock(mutex_);
    others_ = std::move(indexes);
  }
  DevicePort default_port() const override {
    std::lock_guard lock(mutex_);
    return {.alike = others_};
  }
  // 10.0.0.INDEX
  absl::StatusOr<ibv_gid> QueryGid(uint8_t, int index) override {
    ibv_gid gid{};
    if (index == 0) return gid;
    const std::array<uint8_t, 6> end = {0xff, 0xff, 10, 0, 0, static_cast<uint8_t>(index)};
    std::copy(end.begin(), end.end(), gid.raw + 10);
    return gid;
  }
  absl::StatusOr<ibv_pd*> AllocPd() override { return &pd_; }
  int async_fd() const override { return fd_; }
  absl::StatusOr<ibv_async_event> GetAsyncEvent() override {
    std::lock_guard lock(mutex_);
    if (events_.empty()) return absl::UnavailableError("no asynchronous event waits");
    eventfd_t count = 0;
    EXPECT_EQ(eventfd_read(fd_, &count), 0);
    const ibv_async_event event = events_.front();
    events_.pop_front();
    ++read_;
    return event;
  }
  void AckAsyncEvent(ibv_async_event&) override {
    {
      std::lock_guard lock(mutex_);
      --read_;
    }
    on_acknowledged();
  }

 private:
  void Push(const ibv_async_event& event) {
    std::lock_guard lock(mutex_);
    events_.push_back(event);
    EXPECT_EQ(eventfd_write(fd_, 1), 0);
  }

  const int fd_;
  ibv_pd pd_{};
  mutable std::mutex mutex_;
  std::vector<uint8_t> others_;
  std::deque<ibv_async_event> events_;
  int read_ = 0;
};

class DeviceContextTest : public ::testing::Test {
 protected:
  DeviceContextTest() {
    one_.qp_num = 1;
    other_.qp_num = 2;
    context_ = *DeviceContext::Create(device_, {});
    Subscribe(one_);
    Subscribe(other_);
  }

  void Subscribe(const ibv_qp& qp) {
    context_->Subscribe(qp.qp_num, *executor_, [this, qpn = qp.qp_num](ibv_event_type type) {
      EXPECT_EQ(std::this_thread::get_id(), executors_thread_);
      seen_.emplace_back(qpn, type);
    });
  }
  // The executor does not run meanwhile.
  void AwaitAcknowledgements() {
    while (device_.unacknowledged() != 0) std::this_thread::yield();
  }
  using Seen = std::pair<uint32_t, ibv_event_type>;
  std::vector<Seen> TakeSeen(size_t count) {
    while (seen_.size() < count) executor_->Poll();
    for (int i = 0; i < 10; ++i) executor_->Poll();  // what would be too much
    return std::exchange(seen_, {});
  }

  const std::thread::id executors_thread_ = std::this_thread::get_id();
  CapturedLog log_;
  EventfulDevice device_;
  std::unique_ptr<Executor> executor_ = *Executor::Create({});
  ibv_qp one_{}, other_{};
  std::vector<Seen> seen_;
  std::unique_ptr<DeviceContext> context_;
};

TEST(DeviceContextStartTest, AThreadThatTheSystemRefusesIsAStatus) {
  EventfulDevice device;
  const auto refuse = [](std::function<void()>) -> std::thread {
    throw std::system_error(EAGAIN, std::generic_category());
  };
  const absl::Status status = DeviceContext::Create(device, {.start_thread = refuse}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

// A context whose events only the test reads. The owner of what an event names is gone, and another
// has its number or address, as soon as the event is acknowledged.
class LaterOwnerTest : public ::testing::Test {
 protected:
  // Reads the event that was raised, and lets the executor run.
  void Read() {
    context_->PollEvents();
    for (int i = 0; i < 10; ++i) executor_->Poll();
  }
  DeviceContext::EventHandler Hears(int& count) {
    return [&count](ibv_event_type) { ++count; };
  }

  CapturedLog log_;
  EventfulDevice device_;
  std::unique_ptr<Executor> executor_ = *Executor::Create({});
  std::unique_ptr<DeviceContext> context_ =
      *DeviceContext::Create(device_, {.event_thread = false});
  int former_ = 0;
  int later_ = 0;
};

TEST_F(LaterOwnerTest, ALateEventIsNotTheNextOwnersOfTheQueuePairsNumber) {
  ibv_qp qp{};
  qp.qp_num = 1;
  context_->Subscribe(1, *executor_, Hears(former_));
  device_.on_acknowledged = [this] {
    context_->Unsubscribe(1);
    context_->Subscribe(1, *executor_, Hears(later_));
  };
  device_.Raise(IBV_EVENT_QP_FATAL, &qp);
  Read();
  EXPECT_EQ(former_, 1);
  EXPECT_EQ(later_, 0);
}

TEST_F(LaterOwnerTest, ALateEventIsNotTheNextQueuesAtTheSameAddress) {
  ibv_cq cq{};
  context_->SubscribeQueue(&cq, *executor_, Hears(former_));
  device_.on_acknowledged = [this, &cq] {
    context_->UnsubscribeQueue(&cq);
    context_->SubscribeQueue(&cq, *executor_, Hears(later_));
  };
  device_.Lose(&cq);
  Read();
  EXPECT_EQ(former_, 1);
  EXPECT_EQ(later_, 0);
}

TEST_F(DeviceContextTest, ALinkGetsTheGidOfItsBootstrapsAddressIfThePortHasIt) {
  const auto index_for = [this](const std::string& own) {
    return context_->CurrentAddress(own).value().gid_index;
  };
  EXPECT_EQ(index_for("10.0.0.3"), 0);
  device_.SetOtherGids({3, 5});
  device_.Raise(IBV_EVENT_GID_CHANGE);
  while (index_for("10.0.0.3") == 0) std::this_thread::yield();  // its thread reads the event
  EXPECT_EQ(index_for("10.0.0.3"), 3);
  EXPECT_EQ(index_for("10.0.0.5"), 5);
  EXPECT_EQ(context_->CurrentAddress("::ffff:10.0.0.5")->gid.raw[15], 5);
  for (const char* other : {"", "10.0.0.4", "fe80::1", "storage-7"}) EXPECT_EQ(index_for(other), 0);
  EXPECT_EQ(context_->address().gid_index, 0);
}

TEST_F(DeviceContextTest, AnEventIsAcknowledgedBeforeItsOwnerHasRun) {
  device_.Raise(IBV_EVENT_QP_FATAL, &one_);
  AwaitAcknowledgements();
  EXPECT_THAT(seen_, IsEmpty());
  EXPECT_THAT(TakeSeen(1), ElementsAre(Seen(1, IBV_EVENT_QP_FATAL)));
}

TEST_F(DeviceContextTest, EachQueuePairsEventsReachItsOwnerInTheirOrder) {
  device_.Raise(IBV_EVENT_QP_ACCESS_ERR, &other_);
  device_.Raise(IBV_EVENT_QP_LAST_WQE_REACHED, &one_);
  device_.Raise(IBV_EVENT_QP_LAST_WQE_REACHED, &other_);
  EXPECT_THAT(TakeSeen(3),
              ElementsAre(Seen(2, IBV_EVENT_QP_ACCESS_ERR), Seen(1, IBV_EVENT_QP_LAST_WQE_REACHED),
                          Seen(2, IBV_EVENT_QP_LAST_WQE_REACHED)));
}

TEST_F(DeviceContextTest, AnUnsubscribedListenerIsNotTold) {
  context_->Unsubscribe(1);
  device_.Raise(IBV_EVENT_QP_FATAL, &one_);
  device_.Raise(IBV_EVENT_QP_FATAL, &other_);
  EXPECT_THAT(TakeSeen(1), ElementsAre(Seen(2, IBV_EVENT_QP_FATAL)));
}

TEST_F(DeviceContextTest, ADeviceThatFailsOrIsRemovedIsToldToEveryOwner) {
  device_.Raise(IBV_EVENT_DEVICE_FATAL);
  EXPECT_THAT(TakeSeen(2), ::testing::UnorderedElementsAre(Seen(1, IBV_EVENT_DEVICE_FATAL),
                                                           Seen(2, IBV_EVENT_DEVICE_FATAL)));
}

TEST_F(DeviceContextTest, APortThatGoesDownAndUpIsLoggedByNumberAndEndsNoLink) {
  (void)log_.Take();
  device_.Raise(IBV_EVENT_PORT_ERR);
  device_.Raise(IBV_EVENT_PORT_ACTIVE);
  AwaitAcknowledgements();
  context_.reset();  // what it logs is out
  EXPECT_THAT(log_.Take(), ElementsAre("fake0: port 1 is down", "fake0: port 1 is active"));
  EXPECT_THAT(TakeSeen(0), IsEmpty());
}

}  // namespace device_context_test
}  // namespace verbena::internal
