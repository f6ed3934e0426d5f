// HeldDevice: a device over another one, whose control verbs a test can hold up. It counts all
// calls of these verbs, and the calls of one watched thread. Safe from any thread.
//
//   device.Hold(HeldDevice::Verb::kConnect);       // calls wait inside from now on
//   …until device.waiting(HeldDevice::Verb::kConnect) == 1
//   device.Release(HeldDevice::Verb::kConnect);

#ifndef VERBENA_TESTS_TRANSPORT_DEVICE_HELD_DEVICE_H_
#define VERBENA_TESTS_TRANSPORT_DEVICE_HELD_DEVICE_H_

#include <infiniband/verbs.h>

#include <array>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>

#include "tests/transport/device/delegating_device.h"

namespace verbena::internal {

class HeldDevice : public DelegatingDevice {
 public:
  enum class Verb {
    kCreate,
    kConnect,
    kToError,
    kDestroy,
    kAllocWindow,
    kDeallocWindow,
    kRegister,
    kDeregister
  };
  static constexpr size_t kVerbs = 8;

  explicit HeldDevice(Device& device) : DelegatingDevice(device) {}

  void Hold(Verb verb) {
    std::lock_guard<std::mutex> lock(mutex_);
    At(verb).held = true;
  }
  void Release(Verb verb) {
    std::lock_guard<std::mutex> lock(mutex_);
    At(verb).held = false;
    released_.notify_all();
  }
  int waiting(Verb verb) {
    std::lock_guard<std::mutex> lock(mutex_);
    return At(verb).waiting;
  }
  int calls(Verb verb) {
    std::lock_guard<std::mutex> lock(mutex_);
    return At(verb).calls;
  }
  // Calls that this thread made since its WatchThisThread(), to prove that an executor made none;
  // -1 if another thread is watched.
  int calls_of_this_thread() {
    std::lock_guard<std::mutex> lock(mutex_);
    return watched_ == std::this_thread::get_id() ? watched_calls_ : -1;
  }
  void WatchThisThread() {
    std::lock_guard<std::mutex> lock(mutex_);
    watched_ = std::this_thread::get_id();
    watched_calls_ = 0;
  }

  absl::StatusOr<ibv_qp*> CreateQp(ibv_pd* pd, ibv_qp_init_attr& attributes) override {
    Enter(Verb::kCreate);
    return DelegatingDevice::CreateQp(pd, attributes);
  }
  absl::Status ModifyQp(ibv_qp* qp, const ibv_qp_attr& attributes, int mask) override {
    if (attributes.qp_state == IBV_QPS_RTR) Enter(Verb::kConnect);
    if (attributes.qp_state == IBV_QPS_ERR) Enter(Verb::kToError);
    return DelegatingDevice::ModifyQp(qp, attributes, mask);
  }
  absl::Status DestroyQp(ibv_qp* qp) override {
    Enter(Verb::kDestroy);
    return DelegatingDevice::DestroyQp(qp);
  }
  absl::StatusOr<ibv_mw*> AllocMw(ibv_pd* pd) override {
    Enter(Verb::kAllocWindow);
    return DelegatingDevice::AllocMw(pd);
  }
  absl::Status DeallocMw(ibv_mw* mw) override {
    Enter(Verb::kDeallocWindow);
    return DelegatingDevice::DeallocMw(mw);
  }
  absl::StatusOr<ibv_mr*> RegMr(ibv_pd* pd, void* address, size_t bytes, int access) override {
    Enter(Verb::kRegister);
    return DelegatingDevice::RegMr(pd, address, bytes, access);
  }

  absl::Status DeregMr(ibv_mr* mr) override {
    Enter(Verb::kDeregister);
    return DelegatingDevice::DeregMr(mr);
  }

 private:
  struct Gate {
    bool held = false;
    int waiting = 0;
    int calls = 0;
  };

  Gate& At(Verb verb) { return gates_[static_cast<size_t>(verb)]; }
  void Enter(Verb verb) {
    std::unique_lock<std::mutex> lock(mutex_);
    Gate& gate = At(verb);
    ++gate.calls;
    if (watched_ == std::this_thread::get_id()) ++watched_calls_;
    ++gate.waiting;
    released_.wait(lock, [&gate] { return !gate.held; });
    --gate.waiting;
  }

  std::mutex mutex_;  // guards what follows
  std::condition_variable released_;
  std::array<Gate, kVerbs> gates_;
  std::thread::id watched_;
  int watched_calls_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_TRANSPORT_DEVICE_HELD_DEVICE_H_
