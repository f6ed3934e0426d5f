// SwallowingDevice: a device over another one. It drops a queue pair's unpolled completions when
// the queue pair is destroyed, as mlx5 does. A test can make it hold back completed receives until
// then. Safe from any thread.
//
//   device.HoldReceivesOf(qpn);
//   …the queue pair is destroyed…
//   device.swallowed()

#ifndef VERBENA_TESTS_TRANSPORT_LINK_SWALLOWING_DEVICE_H_
#define VERBENA_TESTS_TRANSPORT_LINK_SWALLOWING_DEVICE_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <set>

#include "tests/transport/device/delegating_device.h"

namespace verbena::internal {

// At most one exists at a time: it replaces poll_cq in the other device's context.
class SwallowingDevice : public DelegatingDevice {
 public:
  explicit SwallowingDevice(Device& device);
  ~SwallowingDevice() override;

  // Reports no receive of the queue pair from now on, until the queue pair is destroyed.
  void HoldReceivesOf(uint32_t qpn);
  // The completed receives of the queue pair that are held back.
  size_t held(uint32_t qpn);
  uint64_t swallowed();

  // Drops the last-WQE events unless `can.last_wqe_event` promises them.
  absl::StatusOr<ibv_async_event> GetAsyncEvent() override;
  absl::Status DestroyQp(ibv_qp* qp) override;

 private:
  static bool IsReceive(const ibv_wc& completion);
  bool Silent(const ibv_wc& completion) const;
  // Moves all completions of the other device's CQ to `waiting_`.
  void Fetch(ibv_cq* cq);
  int Poll(ibv_cq* cq, int room, ibv_wc* out);

  inline static SwallowingDevice* current_ = nullptr;
  int (*const poll_)(ibv_cq*, int, ibv_wc*);
  std::mutex mutex_;  // guards what follows
  std::map<ibv_cq*, std::deque<ibv_wc>> waiting_;
  std::set<uint32_t> silent_;
  uint64_t swallowed_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_TRANSPORT_LINK_SWALLOWING_DEVICE_H_
