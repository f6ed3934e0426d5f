// A thread that sleeps on a doorbell hears every ring, however many threads ring. A lost wake-up
// makes these tests run into their time limit.

#include "verbena/transport/soft/peer.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace verbena::internal::soft {
namespace doorbell_test {

constexpr int kRingers = 3;
constexpr uint64_t kMessages = 20'000;  // of each ringer, one after the other has been heard

class DoorbellTest : public testing::Test {
 protected:
  struct alignas(128) Ringer {
    std::atomic<uint64_t> published{0};
    std::atomic<uint64_t> heard{0};
  };

  DoorbellTest() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) { doorbell_->Take(); }
  ~DoorbellTest() override { close(fd_); }

  bool AllHeard() const {
    for (const Ringer& ringer : ringers_) {
      if (ringer.heard.load(std::memory_order_relaxed) != kMessages) return false;
    }
    return true;
  }

  // The engine: sleeps whenever it has looked.
  void HearAll() {
    constexpr int kPatienceMs = 20'000;
    while (!AllHeard()) {
      pollfd watched{.fd = fd_, .events = POLLIN, .revents = 0};
      if (poll(&watched, 1, kPatienceMs) != 1) {
        ADD_FAILURE() << "a wake-up was lost";
        lost_.store(true);
        return;
      }
      eventfd_t count = 0;
      eventfd_read(fd_, &count);
      if (!doorbell_->IsRung()) continue;
      doorbell_->Take();
      for (Ringer& ringer : ringers_) {
        ringer.heard.store(ringer.published.load(std::memory_order_acquire),
                           std::memory_order_release);
      }
    }
  }

  void RingOften(Ringer& ringer) {
    for (uint64_t i = 1; i <= kMessages; ++i) {
      ringer.published.store(i, std::memory_order_release);
      doorbell_->Ring([&] { eventfd_write(fd_, 1); });
      while (ringer.heard.load(std::memory_order_acquire) != i) {
        if (lost_.load(std::memory_order_relaxed)) return;
        sched_yield();
      }
    }
  }

  const int fd_;
  std::unique_ptr<Doorbell> doorbell_ = std::make_unique<Doorbell>();
  std::array<Ringer, kRingers> ringers_;
  std::atomic<bool> lost_{false};
};

TEST_F(DoorbellTest, NoWakeUpIsLostBetweenManyThatRingAndOneThatSleeps) {
  std::vector<std::thread> threads;
  threads.reserve(kRingers);
  for (Ringer& ringer : ringers_) threads.emplace_back([&] { RingOften(ringer); });
  HearAll();
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(AllHeard());
}

TEST_F(DoorbellTest, OneWakeUpServesAllThatIsRungUntilTheNextTaking) {
  int wakings = 0;
  const auto wake = [&] { ++wakings; };
  EXPECT_FALSE(doorbell_->IsRung());
  for (int i = 0; i < 3; ++i) doorbell_->Ring(wake);
  EXPECT_TRUE(doorbell_->IsRung());
  EXPECT_EQ(wakings, 1);
  doorbell_->Take();
  EXPECT_FALSE(doorbell_->IsRung());
  for (int i = 0; i < 3; ++i) doorbell_->Ring(wake);
  EXPECT_EQ(wakings, 2);
}

}  // namespace doorbell_test
}  // namespace verbena::internal::soft
