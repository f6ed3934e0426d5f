// RaisingDevice: a device over another one. A test decides which asynchronous events it raises and
// which state its port reports. Safe from any thread.
//
//   device.Raise(IBV_EVENT_CQ_ERR, device.last_cq());

#ifndef VERBENA_TESTS_TRANSPORT_DEVICE_RAISING_DEVICE_H_
#define VERBENA_TESTS_TRANSPORT_DEVICE_RAISING_DEVICE_H_

#include <infiniband/verbs.h>
#include <unistd.h>

#include <deque>
#include <mutex>
#include <vector>

#include "tests/transport/device/delegating_device.h"

namespace verbena::internal {

class RaisingDevice : public DelegatingDevice {
 public:
  explicit RaisingDevice(Device& device);
  ~RaisingDevice() override { close(fd_); }

  void Raise(ibv_event_type type, void* element = nullptr);
  void SetPort(ibv_port_state state, uint16_t lid);
  // ChoosePortAgain() fails with `missing`, as if the port had lost the address or name by which
  // the device was opened. OK: it succeeds again.
  void SetPortMissing(const absl::Status& missing);
  // All CQs, SRQs and QPs that were ever made, in order.
  std::vector<ibv_cq*> cqs();
  std::vector<ibv_srq*> srqs();
  std::vector<ibv_qp*> qps();

  absl::StatusOr<DevicePort> ChoosePortAgain() override;
  absl::StatusOr<ibv_port_attr> QueryPort(uint8_t port) override;
  absl::StatusOr<ibv_cq*> CreateCq(int entries, void* context, ibv_comp_channel* channel) override;
  absl::StatusOr<ibv_srq*> CreateSrq(ibv_pd* pd, const ibv_srq_init_attr& attributes) override;
  absl::StatusOr<ibv_qp*> CreateQp(ibv_pd* pd, ibv_qp_init_attr& attributes) override;

  // Peers find the device by its GID: the LIDs of SetPort() are none of its own.
  absl::Status ModifyQp(ibv_qp* qp, const ibv_qp_attr& attributes, int mask) override;

  int async_fd() const override { return fd_; }
  absl::StatusOr<ibv_async_event> GetAsyncEvent() override;
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
