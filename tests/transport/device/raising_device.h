// RaisingDevice: a device over another one. A test decides which asynchronous events it raises and
// which state its port reports. Safe from any thread.
//
//   device.Raise(IBV_EVENT_CQ_ERR, device.last_cq());

#ifndef VERBENA_TESTS_TRANSPORT_DEVICE_RAISING_DEVICE_H_
#define VERBENA_TESTS_TRANSPORT_DEVICE_RAISING_DEVICE_H_

#include <infiniband/verbs.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <deque>
#include <mutex>
#include <vector>

#include "tests/transport/device/delegating_device.h"

namespace verbena::internal {

class RaisingDevice : public DelegatingDevice {
 public:
  explicit RaisingDevice(Device& device)
      : DelegatingDevice(device), fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC | EFD_SEMAPHORE)) {
    can.last_wqe_event = false;  // the events of `device` itself are not passed on
  }
  ~RaisingDevice() override { close(fd_); }

  void Raise(ibv_event_type type, void* element = nullptr) {
    ibv_async_event event{};
    event.event_type = type;
    event.element.cq =
        static_cast<ibv_cq*>(element);  // all members are pointers, or a port's number
    if (element == nullptr) event.element.port_num = 1;
    std::lock_guard<std::mutex> lock(mutex_);
    events_.push_back(event);
    (void)eventfd_write(fd_, 1);
  }
  void SetPort(ibv_port_state state, uint16_t lid) {
    std::lock_guard<std::mutex> lock(mutex_);
    state_ = state;
    lid_ = lid;
  }
  // ChoosePortAgain() fails with `missing`, as if the port had lost the address or name by which
  // the device was opened. OK: it succeeds again.
  void SetPortMissing(const absl::Status& missing) {
    std::lock_guard<std::mutex> lock(mutex_);
    missing_ = missing;
  }
  // All CQs, SRQs and QPs that were ever made, in order.
  std::vector<ibv_cq*> cqs() {
    std::lock_guard<std::mutex> lock(mutex_);
    return cqs_;
  }
  std::vector<ibv_srq*> srqs() {
    std::lock_guard<std::mutex> lock(mutex_);
    return srqs_;
  }
  std::vector<ibv_qp*> qps() {
    std::lock_guard<std::mutex> lock(mutex_);
    return qps_;
  }

  absl::StatusOr<DevicePort> ChoosePortAgain() override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!missing_.ok()) return missing_;
    return DelegatingDevice::ChoosePortAgain();
  }
  absl::StatusOr<ibv_port_attr> QueryPort(uint8_t port) override {
    absl::StatusOr<ibv_port_attr> attributes = DelegatingDevice::QueryPort(port);
    std::lock_guard<std::mutex> lock(mutex_);
    attributes->state = state_;
    attributes->lid = lid_;
    return attributes;
  }
  absl::StatusOr<ibv_cq*> CreateCq(int entries, void* context, ibv_comp_channel* channel) override {
    return Keep(DelegatingDevice::CreateCq(entries, context, channel), cqs_);
  }
  absl::StatusOr<ibv_srq*> CreateSrq(ibv_pd* pd, const ibv_srq_init_attr& attributes) override {
    return Keep(DelegatingDevice::CreateSrq(pd, attributes), srqs_);
  }
  absl::StatusOr<ibv_qp*> CreateQp(ibv_pd* pd, ibv_qp_init_attr& attributes) override {
    return Keep(DelegatingDevice::CreateQp(pd, attributes), qps_);
  }

  // Peers find the device by its GID: the LIDs of SetPort() are none of its own.
  absl::Status ModifyQp(ibv_qp* qp, const ibv_qp_attr& attributes, int mask) override {
    ibv_qp_attr own = attributes;
    own.ah_attr.dlid = 0;
    return DelegatingDevice::ModifyQp(qp, own, mask);
  }

  int async_fd() const override { return fd_; }
  absl::StatusOr<ibv_async_event> GetAsyncEvent() override {
    std::lock_guard<std::mutex> lock(mutex_);
    eventfd_t count = 0;
    if (events_.empty() || eventfd_read(fd_, &count) != 0) {
      return absl::UnavailableError("no asynchronous event waits");
    }
    const ibv_async_event event = events_.front();
    events_.pop_front();
    return event;
  }
  void AckAsyncEvent(ibv_async_event&) override {}

 private:
  template <typename T>
  absl::StatusOr<T*> Keep(absl::StatusOr<T*> made, std::vector<T*>& all) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (made.ok()) all.push_back(*made);
    return made;
  }

  const int fd_;
  std::mutex mutex_;  // guards what follows
  std::deque<ibv_async_event> events_;
  ibv_port_state state_ = IBV_PORT_ACTIVE;
  uint16_t lid_ = 0;
  absl::Status missing_;
  std::vector<ibv_cq*> cqs_;
  std::vector<ibv_srq*> srqs_;
  std::vector<ibv_qp*> qps_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_TRANSPORT_DEVICE_RAISING_DEVICE_H_
