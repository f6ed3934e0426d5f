// DelegatingDevice: a Device that forwards each call to another one, unless a test overrides it.
//
//   DelegatingDevice device(**SoftDevice::Create({}));
//   device.can.atomics = false;
//   device.limits.max_srq_wr = 512;

#ifndef VERBENA_TESTS_TRANSPORT_DEVICE_DELEGATING_DEVICE_H_
#define VERBENA_TESTS_TRANSPORT_DEVICE_DELEGATING_DEVICE_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/device/device.h"

namespace verbena::internal {

class DelegatingDevice : public Device {
 public:
  // `device` must outlive this object.
  explicit DelegatingDevice(Device& device)
      : can(device.capabilities()),
        limits(device.attributes()),
        told_kind(device.kind()),
        device_(device) {}

  // What this device says of itself; at first the same as the other one.
  DeviceCapabilities can;
  ibv_device_attr limits;
  DeviceKind told_kind;

  DeviceKind kind() const override { return told_kind; }
  const std::string& name() const override { return device_.name(); }
  ibv_context* context() override { return device_.context(); }
  const DeviceCapabilities& capabilities() const override { return can; }
  const ibv_device_attr& attributes() const override { return limits; }
  DevicePort default_port() const override { return device_.default_port(); }
  absl::StatusOr<DevicePort> ChoosePortAgain() override { return device_.ChoosePortAgain(); }
  absl::StatusOr<ibv_port_attr> QueryPort(uint8_t port) override { return device_.QueryPort(port); }
  absl::StatusOr<ibv_gid> QueryGid(uint8_t port, int index) override {
    return device_.QueryGid(port, index);
  }

  absl::StatusOr<ibv_pd*> AllocPd() override { return device_.AllocPd(); }
  absl::Status DeallocPd(ibv_pd* pd) override { return device_.DeallocPd(pd); }
  absl::StatusOr<std::byte*> AllocateMemory(size_t bytes) override {
    return device_.AllocateMemory(bytes);
  }
  absl::Status FreeMemory(std::byte* memory, size_t bytes) override {
    return device_.FreeMemory(memory, bytes);
  }
  absl::StatusOr<ibv_mr*> RegMr(ibv_pd* pd, void* address, size_t bytes, int access) override {
    return device_.RegMr(pd, address, bytes, access);
  }
  absl::Status DeregMr(ibv_mr* mr) override { return device_.DeregMr(mr); }
  absl::StatusOr<ibv_mw*> AllocMw(ibv_pd* pd) override { return device_.AllocMw(pd); }
  absl::Status DeallocMw(ibv_mw* mw) override { return device_.DeallocMw(mw); }

  absl::StatusOr<ibv_comp_channel*> CreateCompChannel() override {
    return device_.CreateCompChannel();
  }
  absl::Status DestroyCompChannel(ibv_comp_channel* channel) override {
    return device_.DestroyCompChannel(channel);
  }
  absl::StatusOr<ibv_cq*> GetCqEvent(ibv_comp_channel* channel) override {
    return device_.GetCqEvent(channel);
  }
  void AckCqEvents(ibv_cq* cq, unsigned count) override { device_.AckCqEvents(cq, count); }
  absl::StatusOr<ibv_cq*> CreateCq(int entries, void* cq_context,
                                   ibv_comp_channel* channel) override {
    return device_.CreateCq(entries, cq_context, channel);
  }
  absl::Status DestroyCq(ibv_cq* cq) override { return device_.DestroyCq(cq); }

  absl::StatusOr<ibv_srq*> CreateSrq(ibv_pd* pd, const ibv_srq_init_attr& attributes) override {
    return device_.CreateSrq(pd, attributes);
  }
  absl::Status ModifySrq(ibv_srq* srq, const ibv_srq_attr& attributes, int mask) override {
    return device_.ModifySrq(srq, attributes, mask);
  }
  absl::StatusOr<ibv_srq_attr> QuerySrq(ibv_srq* srq) override { return device_.QuerySrq(srq); }
  absl::Status DestroySrq(ibv_srq* srq) override { return device_.DestroySrq(srq); }

  absl::StatusOr<ibv_qp*> CreateQp(ibv_pd* pd, ibv_qp_init_attr& attributes) override {
    return device_.CreateQp(pd, attributes);
  }
  absl::Status ModifyQp(ibv_qp* qp, const ibv_qp_attr& attributes, int mask) override {
    return device_.ModifyQp(qp, attributes, mask);
  }
  absl::Status AwaitPeer(ibv_qp* qp) override { return device_.AwaitPeer(qp); }
  absl::StatusOr<ibv_qp_attr> QueryQp(ibv_qp* qp, int mask) override {
    return device_.QueryQp(qp, mask);
  }
  absl::Status DestroyQp(ibv_qp* qp) override { return device_.DestroyQp(qp); }
  QpIdentity IdentityOf(const ibv_qp* qp) override { return device_.IdentityOf(qp); }
  bool Quiesced(QpIdentity qp) override { return device_.Quiesced(qp); }

  int async_fd() const override { return device_.async_fd(); }
  absl::StatusOr<ibv_async_event> GetAsyncEvent() override { return device_.GetAsyncEvent(); }
  void AckAsyncEvent(ibv_async_event& event) override { device_.AckAsyncEvent(event); }

 private:
  Device& device_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_TRANSPORT_DEVICE_DELEGATING_DEVICE_H_
