// LinkBreaker: breaks a link when one of its calls comes to a given event.
//
//   LinkBreaker breaker;
//   runtime = StartRuntime({}, breaker.device());
//   breaker.Arm(CallEvent::kResponsePosted);

#ifndef VERBENA_TESTS_RPC_LINK_BREAKER_H_
#define VERBENA_TESTS_RPC_LINK_BREAKER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

#include "tests/rpc/watched_device.h"
#include "verbena/rpc/shard/runtime.h"

namespace verbena::internal {

// Safe from any thread. Must outlive the runtimes that it watches.
class LinkBreaker {
 public:
  LinkBreaker() = default;
  LinkBreaker(const LinkBreaker&) = delete;
  LinkBreaker& operator=(const LinkBreaker&) = delete;

  // For a runtime whose links it breaks.
  TestDevice device() {
    return {.open = OpenerOfWatched([this](CallEvent event, WatchedDevice& at, uint32_t qpn) {
              Visit(event, at, qpn);
            })};
  }

  // The link breaks that comes to `event` as the `visits`th from now.
  void Arm(CallEvent event, int visits = 1) { Set(event, visits); }
  // The link breaks that comes to any event as the `visits`th from now.
  void ArmAny(int visits) { Set(std::nullopt, visits); }
  void Disarm() { Set(std::nullopt, 0); }

  // A handler of the test's service comes to `event`: of the link whose request came last.
  void OfHandler(CallEvent event) {
    std::unique_lock<std::mutex> lock(mutex_);
    WatchedDevice* const device = server_;
    const uint32_t qpn = server_qpn_;
    lock.unlock();
    if (device != nullptr) Visit(event, *device, qpn);
  }

  // Links that were broken, and those of them at that event.
  int broken() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return broken_;
  }
  int broken_at(CallEvent event) const {
    std::lock_guard<std::mutex> lock(mutex_);
    return broken_at_[static_cast<size_t>(event)];
  }

 private:
  void Set(std::optional<CallEvent> event, int visits) {
    std::lock_guard<std::mutex> lock(mutex_);
    event_ = event;
    visits_left_ = visits;
  }

  void Visit(CallEvent event, WatchedDevice& device, uint32_t qpn) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (event == CallEvent::kRequestArrived) {
        server_ = &device;
        server_qpn_ = qpn;
      }
      if (event_.value_or(event) != event || visits_left_ == 0 || --visits_left_ > 0) return;
      // Before the link breaks: a call that has lost it finds it counted.
      Count(event, 1);
    }
    if (device.Break(qpn)) return;
    std::lock_guard<std::mutex> lock(mutex_);
    Count(event, -1);
  }
  void Count(CallEvent event, int links) {
    broken_ += links;
    broken_at_[static_cast<size_t>(event)] += links;
  }

  mutable std::mutex mutex_;  // guards what follows
  std::optional<CallEvent> event_;
  int visits_left_ = 0;
  int broken_ = 0;
  std::array<int, kCallEvents> broken_at_ = {};
  // The device and the queue pair at which the last request arrived.
  WatchedDevice* server_ = nullptr;
  uint32_t server_qpn_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_RPC_LINK_BREAKER_H_
