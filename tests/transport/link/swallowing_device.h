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
#include "verbena/transport/link/ids.h"

namespace verbena::internal {

// At most one exists at a time: it replaces poll_cq in the other device's context.
class SwallowingDevice : public DelegatingDevice {
 public:
  explicit SwallowingDevice(Device& device)
      : DelegatingDevice(device), poll_(device.context()->ops.poll_cq) {
    current_ = this;
    context()->ops.poll_cq = [](ibv_cq* cq, int room, ibv_wc* out) {
      return current_->Poll(cq, room, out);
    };
  }
  ~SwallowingDevice() override {
    context()->ops.poll_cq = poll_;
    current_ = nullptr;
  }

  // Reports no receive of the queue pair from now on, until the queue pair is destroyed.
  void HoldReceivesOf(uint32_t qpn) {
    std::lock_guard<std::mutex> lock(mutex_);
    silent_.insert(qpn);
  }
  // The completed receives of the queue pair that are held back.
  size_t held(uint32_t qpn) {
    std::lock_guard<std::mutex> lock(mutex_);
    size_t count = 0;
    for (const auto& [_, queue] : waiting_) {
      for (const ibv_wc& each : queue) count += Silent(each) && each.qp_num == qpn ? 1 : 0;
    }
    return count;
  }
  uint64_t swallowed() {
    std::lock_guard<std::mutex> lock(mutex_);
    return swallowed_;
  }

  // Drops the last-WQE events unless `can.last_wqe_event` promises them.
  absl::StatusOr<ibv_async_event> GetAsyncEvent() override {
    while (true) {
      absl::StatusOr<ibv_async_event> event = DelegatingDevice::GetAsyncEvent();
      if (!event.ok() || can.last_wqe_event) return event;
      if (event->event_type != IBV_EVENT_QP_LAST_WQE_REACHED) return event;
      AckAsyncEvent(*event);
    }
  }
  absl::Status DestroyQp(ibv_qp* qp) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (ibv_cq* cq : {qp->send_cq, qp->recv_cq}) {
        Fetch(cq);
        std::erase_if(waiting_[cq], [&](const ibv_wc& each) {
          if (each.qp_num != qp->qp_num) return false;
          if (IsReceive(each)) ++swallowed_;
          return true;
        });
      }
      silent_.erase(qp->qp_num);
    }
    return DelegatingDevice::DestroyQp(qp);
  }

 private:
  static bool IsReceive(const ibv_wc& completion) {
    return WrId::Unpack(completion.wr_id).kind == WrId::Kind::kReceive;
  }
  bool Silent(const ibv_wc& completion) const {
    return IsReceive(completion) && silent_.contains(completion.qp_num);
  }
  // Moves all completions of the other device's CQ to `waiting_`.
  void Fetch(ibv_cq* cq) {
    ibv_wc completions[32];
    while (const int count = poll_(cq, 32, completions)) {
      if (count < 0) return;
      waiting_[cq].insert(waiting_[cq].end(), completions, completions + count);
    }
  }
  int Poll(ibv_cq* cq, int room, ibv_wc* out) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::deque<ibv_wc>& queue = waiting_[cq];
    Fetch(cq);
    int count = 0;
    for (auto each = queue.begin(); each != queue.end() && count < room;) {
      if (Silent(*each)) {
        ++each;
      } else {
        out[count++] = *each;
        each = queue.erase(each);
      }
    }
    return count;
  }

  inline static SwallowingDevice* current_ = nullptr;
  int (*const poll_)(ibv_cq*, int, ibv_wc*);
  std::mutex mutex_;  // guards what follows
  std::map<ibv_cq*, std::deque<ibv_wc>> waiting_;
  std::set<uint32_t> silent_;
  uint64_t swallowed_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_TRANSPORT_LINK_SWALLOWING_DEVICE_H_
