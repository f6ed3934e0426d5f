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

  void Hold(Verb verb);
  void Release(Verb verb);
  int waiting(Verb verb);
  int calls(Verb verb);
  // Calls that this thread made since its WatchThisThread(), to prove that an executor made none;
  // -1 if another thread is watched.
  int calls_of_this_thread();
  void WatchThisThread();

  absl::StatusOr<ibv_qp*> CreateQp(ibv_pd* pd, ibv_qp_init_attr& attributes) override;
  absl::Status ModifyQp(ibv_qp* qp, const ibv_qp_attr& attributes, int mask) override;
  absl::Status DestroyQp(ibv_qp* qp) override;
  absl::StatusOr<ibv_mw*> AllocMw(ibv_pd* pd) override;
  absl::Status DeallocMw(ibv_mw* mw) override;
  absl::StatusOr<ibv_mr*> RegMr(ibv_pd* pd, void* address, size_t bytes, int access) override;
  absl::Status DeregMr(ibv_mr* mr) override;

 private:
  struct Gate {
    bool held = false;
    int waiting = 0;
    int calls = 0;
  };

  Gate& At(Verb verb) { return gates_[static_cast<size_t>(verb)]; }
  void Enter(Verb verb);

  std::mutex mutex_;  // guards what follows
  std::condition_variable released_;
  std::array<Gate, kVerbs> gates_;
  std::thread::id watched_;
  int watched_calls_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_TRANSPORT_DEVICE_HELD_DEVICE_H_
