// Waking a peer's engine costs one system call for many messages. A process that is stopped in the
// middle of a wake-up delays the messages of no other.

#include "verbena/transport/soft/peer.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <memory>
#include <thread>

#include "gtest/gtest.h"

namespace verbena::internal::soft {
namespace {

// How often the engine was woken since the last look.
uint64_t Wakings(int fd) {
  eventfd_t count = 0;
  return eventfd_read(fd, &count) == 0 ? count : 0;
}

class WakeTest : public testing::Test {
 protected:
  WakeTest() { control_->doorbell.Take(); }

  std::unique_ptr<Peer> NewPeer(int doorbell) {
    return std::make_unique<Peer>(
        PeerParts{.controls = control_.get(), .tables = nullptr, .doorbell = UniqueFd(doorbell)});
  }

  // Belongs to a CQ that nobody polls.
  std::unique_ptr<CqControl> control_ = std::make_unique<CqControl>();
};

TEST_F(WakeTest, OneWakeUpServesManyMessagesUntilTheEngineHasTakenTheDoorbell) {
  const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  const std::unique_ptr<Peer> peer = NewPeer(fd);
  for (int i = 0; i < 3; ++i) peer->Wake(*control_);
  EXPECT_EQ(Wakings(fd), 1u);
  control_->doorbell.Take();
  EXPECT_FALSE(control_->doorbell.IsRung());
  for (int i = 0; i < 3; ++i) peer->Wake(*control_);
  EXPECT_EQ(Wakings(fd), 1u);
}

// Between ringing and waking, that is. Without this the engine sleeps on, with the messages of all
// other peers, until the stopped one goes on.
TEST_F(WakeTest, APeerThatIsStoppedWhileItWakesTheEngineHoldsUpNoOther) {
  // Its write blocks, since the count is full.
  const int stuck = eventfd(0, EFD_CLOEXEC);
  ASSERT_EQ(eventfd_write(stuck, UINT64_MAX - 1), 0);
  const std::unique_ptr<Peer> stopped = NewPeer(stuck);
  std::thread waker([&] { stopped->Wake(*control_); });
  while (!control_->doorbell.IsRung()) sched_yield();

  const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  const std::unique_ptr<Peer> peer = NewPeer(fd);
  peer->Wake(*control_);
  EXPECT_EQ(Wakings(fd), 1u);
  control_->doorbell.Take();
  peer->Wake(*control_);
  EXPECT_EQ(Wakings(fd), 1u);
  control_->doorbell.Take();

  // Goes on, and says that the engine was woken, which has taken the doorbell twice since.
  eventfd_t count = 0;
  ASSERT_EQ(eventfd_read(stuck, &count), 0);
  waker.join();
  peer->Wake(*control_);
  EXPECT_EQ(Wakings(fd), 1u);
}

}  // namespace
}  // namespace verbena::internal::soft
