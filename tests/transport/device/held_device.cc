#include "tests/transport/device/held_device.h"

#include <infiniband/verbs.h>

#include <cstddef>
#include <mutex>
#include <thread>

namespace verbena::internal {

void HeldDevice::Hold(Verb verb) {
  std::lock_guard<std::mutex> lock(mutex_);
  At(verb).held = true;
}

void HeldDevice::Release(Verb verb) {
  std::lock_guard<std::mutex> lock(mutex_);
  At(verb).held = false;
  released_.notify_all();
}

int HeldDevice::waiting(Verb verb) {
  std::lock_guard<std::mutex> lock(mutex_);
  return At(verb).waiting;
}

int HeldDevice::calls(Verb verb) {
  std::lock_guard<std::mutex> lock(mutex_);
  return At(verb).calls;
}

int HeldDevice::calls_of_this_thread() {
  std::lock_guard<std::mutex> lock(mutex_);
  return watched_ == std::this_thread::get_id() ? watched_calls_ : -1;
}

void HeldDevice::WatchThisThread() {
  std::lock_guard<std::mutex> lock(mutex_);
  watched_ = std::this_thread::get_id();
  watched_calls_ = 0;
}

absl::StatusOr<ibv_qp*> HeldDevice::CreateQp(ibv_pd* pd, ibv_qp_init_attr& attributes) {
  Enter(Verb::kCreate);
  return DelegatingDevice::CreateQp(pd, attributes);
}

absl::Status HeldDevice::ModifyQp(ibv_qp* qp, const ibv_qp_attr& attributes, int mask) {
  if (attributes.qp_state == IBV_QPS_RTR) Enter(Verb::kConnect);
  if (attributes.qp_state == IBV_QPS_ERR) Enter(Verb::kToError);
  return DelegatingDevice::ModifyQp(qp, attributes, mask);
}

absl::Status HeldDevice::DestroyQp(ibv_qp* qp) {
  Enter(Verb::kDestroy);
  return DelegatingDevice::DestroyQp(qp);
}

absl::StatusOr<ibv_mw*> HeldDevice::AllocMw(ibv_pd* pd) {
  Enter(Verb::kAllocWindow);
  return DelegatingDevice::AllocMw(pd);
}

absl::Status HeldDevice::DeallocMw(ibv_mw* mw) {
  Enter(Verb::kDeallocWindow);
  return DelegatingDevice::DeallocMw(mw);
}

absl::StatusOr<ibv_mr*> HeldDevice::RegMr(ibv_pd* pd, void* address, size_t bytes, int access) {
  Enter(Verb::kRegister);
  return DelegatingDevice::RegMr(pd, address, bytes, access);
}

absl::Status HeldDevice::DeregMr(ibv_mr* mr) {
  Enter(Verb::kDeregister);
  return DelegatingDevice::DeregMr(mr);
}

void HeldDevice::Enter(Verb verb) {
  std::unique_lock<std::mutex> lock(mutex_);
  Gate& gate = At(verb);
  ++gate.calls;
  if (watched_ == std::this_thread::get_id()) ++watched_calls_;
  ++gate.waiting;
  released_.wait(lock, [&gate] { return !gate.held; });
  --gate.waiting;
}

}  // namespace verbena::internal
