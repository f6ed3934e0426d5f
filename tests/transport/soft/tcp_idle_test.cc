// A process with TCP connections that nobody uses takes no processor time: its threads sleep, and
// the engines among them without a timeout.

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "tests/support/asleep.h"
#include "tests/transport/soft/exchanges.h"
#include "tests/transport/soft/qp_end.h"
#include "tests/transport/soft/test_wire.h"

namespace verbena::internal::soft {
namespace {

// How the engines sleep: they alone call ppoll() here. For any thread.
class EngineSleeps {
 public:
  static EngineSleeps& Get() {
    static EngineSleeps sleeps;
    return sleeps;
  }

  // The calling thread is about to sleep, perhaps until it is woken.
  void Note(bool until_woken) {
    const std::lock_guard lock(mutex_);
    until_woken_[gettid()] = until_woken;
    ++count_;
    changed_.notify_all();
  }

  // Waits until so many engines sleep until they are woken, and nobody is awake to do that. False
  // if this takes far longer than threads stand still.
  bool AwaitLastOnes(size_t engines) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    const auto all_until_woken = [&] {
      return until_woken_.size() == engines &&
             std::ranges::all_of(until_woken_, [](const auto& each) { return each.second; });
    };
    for (;;) {
      std::unique_lock lock(mutex_);
      if (!changed_.wait_until(lock, limit, all_until_woken)) return false;
      const uint64_t seen = count_;
      lock.unlock();
      while (!OthersAreAsleep()) std::this_thread::yield();
      lock.lock();
      if (count_ == seen) return true;
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<pid_t, bool> until_woken_;
  uint64_t count_ = 0;
};

}  // namespace
}  // namespace verbena::internal::soft

// In place of the C library's.
extern "C" int ppoll(pollfd* descriptors, nfds_t count, const timespec* timeout,
                     const sigset_t* mask) {
  verbena::internal::soft::EngineSleeps::Get().Note(timeout == nullptr);
  // The kernel writes the time that is left.
  timespec left = timeout == nullptr ? timespec{} : *timeout;
  return static_cast<int>(syscall(SYS_ppoll, descriptors, count,
                                  timeout == nullptr ? nullptr : &left, mask, _NSIG / 8));
}

namespace verbena::internal::soft {
namespace {

SoftDeviceOptions Tcp() {
  return {.name = "tcp0", .shared_memory = false, .tcp = TcpWireOptions{.address = "127.0.0.1"}};
}

TEST(TcpIdleTest, ConnectionsThatNobodyUsesTakeNoProcessorTime) {
  Process a({.with_channel = true}, Tcp());
  Process b({.with_channel = true}, Tcp());
  PostReceives(b.endpoint, 4);
  Connect(a.endpoint, b.endpoint);
  ASSERT_EQ(a.endpoint.SendText(1, "hello"), 0);
  ASSERT_EQ(AwaitByEvents(b.endpoint).status, IBV_WC_SUCCESS);
  ASSERT_EQ(AwaitByEvents(a.endpoint).status, IBV_WC_SUCCESS);
  // Nobody polls from here on, which each engine notices at its next tick or the one after.
  EXPECT_TRUE(EngineSleeps::Get().AwaitLastOnes(2)) << "an engine goes on with its ticks";
}

}  // namespace
}  // namespace verbena::internal::soft
