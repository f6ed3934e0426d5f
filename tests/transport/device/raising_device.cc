#include "tests/transport/device/raising_device.h"

#include <infiniband/verbs.h>
#include <sys/eventfd.h>

#include <mutex>
#include <vector>

namespace verbena::internal {

RaisingDevice::RaisingDevice(Device& device)
    : DelegatingDevice(device), fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC | EFD_SEMAPHORE)) {
  can.last_wqe_event = false;  // the events of `device` itself are not passed on
}

void RaisingDevice::Raise(ibv_event_type type, void* element) {
  ibv_async_event event{};
  event.event_type = type;
  event.element.cq = static_cast<ibv_cq*>(element);  // all members are pointers, or a port's number
  if (element == nullptr) event.element.port_num = 1;
  std::lock_guard<std::mutex> lock(mutex_);
  events_.push_back(event);
  (void)eventfd_write(fd_, 1);
}

void RaisingDevice::SetPort(ibv_port_state state, uint16_t lid) {
  std::lock_guard<std::mutex> lock(mutex_);
  state_ = state;
  lid_ = lid;
}

void RaisingDevice::SetPortMissing(const absl::Status& missing) {
  std::lock_guard<std::mutex> lock(mutex_);
  missing_ = missing;
}

std::vector<ibv_cq*> RaisingDevice::cqs() {
  std::lock_guard<std::mutex> lock(mutex_);
  return cqs_;
}

std::vector<ibv_srq*> RaisingDevice::srqs() {
  std::lock_guard<std::mutex> lock(mutex_);
  return srqs_;
}

std::vector<ibv_qp*> RaisingDevice::qps() {
  std::lock_guard<std::mutex> lock(mutex_);
  return qps_;
}

absl::StatusOr<DevicePort> RaisingDevice::ChoosePortAgain() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!missing_.ok()) return missing_;
  return DelegatingDevice::ChoosePortAgain();
}

absl::StatusOr<ibv_port_attr> RaisingDevice::QueryPort(uint8_t port) {
  absl::StatusOr<ibv_port_attr> attributes = DelegatingDevice::QueryPort(port);
  std::lock_guard<std::mutex> lock(mutex_);
  attributes->state = state_;
  attributes->lid = lid_;
  return attributes;
}

absl::StatusOr<ibv_cq*> RaisingDevice::CreateCq(int entries, void* context,
                                                ibv_comp_channel* channel) {
  return Keep(DelegatingDevice::CreateCq(entries, context, channel), cqs_);
}

absl::StatusOr<ibv_srq*> RaisingDevice::CreateSrq(ibv_pd* pd, const ibv_srq_init_attr& attributes) {
  return Keep(DelegatingDevice::CreateSrq(pd, attributes), srqs_);
}

absl::StatusOr<ibv_qp*> RaisingDevice::CreateQp(ibv_pd* pd, ibv_qp_init_attr& attributes) {
  return Keep(DelegatingDevice::CreateQp(pd, attributes), qps_);
}

absl::Status RaisingDevice::ModifyQp(ibv_qp* qp, const ibv_qp_attr& attributes, int mask) {
  ibv_qp_attr own = attributes;
  own.ah_attr.dlid = 0;
  return DelegatingDevice::ModifyQp(qp, own, mask);
}

absl::StatusOr<ibv_async_event> RaisingDevice::GetAsyncEvent() {
  std::lock_guard<std::mutex> lock(mutex_);
  eventfd_t count = 0;
  if (events_.empty() || eventfd_read(fd_, &count) != 0) {
    return absl::UnavailableError("no asynchronous event waits");
  }
  const ibv_async_event event = events_.front();
  events_.pop_front();
  return event;
}

}  // namespace verbena::internal
