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

#include "tests/rpc/call_event.h"

namespace verbena::internal {

struct TestDevice;    // verbena/rpc/shard/runtime.h
class WatchedDevice;  // tests/rpc/watched_device.h

// Safe from any thread. Must outlive the runtimes that it watches.
class LinkBreaker {
 public:
  LinkBreaker() = default;
  LinkBreaker(const LinkBreaker&) = delete;
  LinkBreaker& operator=(const LinkBreaker&) = delete;

  // For a runtime whose links it breaks.
  TestDevice device();

  // The link breaks that comes to `event` as the `visits`th from now.
  void Arm(CallEvent event, int visits = 1) { Set(event, visits); }
  // The link breaks that comes to any event as the `visits`th from now.
  void ArmAny(int visits) { Set(std::nullopt, visits); }
  void Disarm() { Set(std::nullopt, 0); }

  // A handler of the test's service comes to `event`: of the link whose request came last.
  void OfHandler(CallEvent event);

  // Links that were broken, and those of them at that event.
  int broken() const;
  int broken_at(CallEvent event) const;

 private:
  void Set(std::optional<CallEvent> event, int visits);
  void Visit(CallEvent event, WatchedDevice& device, uint32_t qpn);
  void Count(CallEvent event, int links);

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
