#include "tests/transport/link/swallowing_device.h"

#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>
#include <mutex>

#include "verbena/transport/link/ids.h"

namespace verbena::internal {

SwallowingDevice::SwallowingDevice(Device& device)
    : DelegatingDevice(device), poll_(device.context()->ops.poll_cq) {
  current_ = this;
  context()->ops.poll_cq = [](ibv_cq* cq, int room, ibv_wc* out) {
    return current_->Poll(cq, room, out);
  };
}

SwallowingDevice::~SwallowingDevice() {
  context()->ops.poll_cq = poll_;
  current_ = nullptr;
}

void SwallowingDevice::HoldReceivesOf(uint32_t qpn) {
  std::lock_guard<std::mutex> lock(mutex_);
  silent_.insert(qpn);
}

size_t SwallowingDevice::held(uint32_t qpn) {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t count = 0;
  for (const auto& [_, queue] : waiting_) {
    for (const ibv_wc& each : queue) count += Silent(each) && each.qp_num == qpn ? 1 : 0;
  }
  return count;
}

uint64_t SwallowingDevice::swallowed() {
  std::lock_guard<std::mutex> lock(mutex_);
  return swallowed_;
}

absl::StatusOr<ibv_async_event> SwallowingDevice::GetAsyncEvent() {
  while (true) {
    absl::StatusOr<ibv_async_event> event = DelegatingDevice::GetAsyncEvent();
    if (!event.ok() || can.last_wqe_event) return event;
    if (event->event_type != IBV_EVENT_QP_LAST_WQE_REACHED) return event;
    AckAsyncEvent(*event);
  }
}

absl::Status SwallowingDevice::DestroyQp(ibv_qp* qp) {
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

bool SwallowingDevice::IsReceive(const ibv_wc& completion) {
  return WrId::Unpack(completion.wr_id).kind == WrId::Kind::kReceive;
}

bool SwallowingDevice::Silent(const ibv_wc& completion) const {
  return IsReceive(completion) && silent_.contains(completion.qp_num);
}

void SwallowingDevice::Fetch(ibv_cq* cq) {
  ibv_wc completions[32];
  while (const int count = poll_(cq, 32, completions)) {
    if (count < 0) return;
    waiting_[cq].insert(waiting_[cq].end(), completions, completions + count);
  }
}

int SwallowingDevice::Poll(ibv_cq* cq, int room, ibv_wc* out) {
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

}  // namespace verbena::internal
