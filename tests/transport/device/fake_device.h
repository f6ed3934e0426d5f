// FakeDevice: a Device that makes no objects. It records which objects it is told to destroy, and
// can refuse to destroy them. For tests of handles, and to derive from.

#ifndef VERBENA_TESTS_TRANSPORT_DEVICE_FAKE_DEVICE_H_
#define VERBENA_TESTS_TRANSPORT_DEVICE_FAKE_DEVICE_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/device/device.h"

namespace verbena::internal {

class FakeDevice : public Device {
 public:
  // Every object that the device was told to destroy, in order.
  std::vector<const void*> destroyed;
  // Each destruction returns this.
  absl::Status destroy_status;
  // The capabilities and limits that the device reports.
  DeviceCapabilities can;
  ibv_device_attr limits{};

  DeviceKind kind() const override { return DeviceKind::kSoft; }
  const std::string& name() const override { return name_; }
  ibv_context* context() override { return nullptr; }
  const DeviceCapabilities& capabilities() const override { return can; }
  const ibv_device_attr& attributes() const override { return limits; }

  absl::StatusOr<ibv_port_attr> QueryPort(uint8_t) override { return Unused(); }
  absl::StatusOr<ibv_gid> QueryGid(uint8_t, int) override { return Unused(); }
  absl::StatusOr<ibv_pd*> AllocPd() override { return Unused(); }
  absl::StatusOr<ibv_mr*> RegMr(ibv_pd*, void*, size_t, int) override { return Unused(); }
  absl::StatusOr<ibv_mw*> AllocMw(ibv_pd*) override { return Unused(); }
  absl::StatusOr<ibv_comp_channel*> CreateCompChannel() override { return Unused(); }
  absl::StatusOr<ibv_cq*> GetCqEvent(ibv_comp_channel*) override { return Unused(); }
  void AckCqEvents(ibv_cq*, unsigned) override {}
  absl::StatusOr<ibv_cq*> CreateCq(int, void*, ibv_comp_channel*) override { return Unused(); }
  absl::StatusOr<ibv_srq*> CreateSrq(ibv_pd*, const ibv_srq_init_attr&) override {
    return Unused();
  }
  absl::Status ModifySrq(ibv_srq*, const ibv_srq_attr&, int) override { return Unused(); }
  absl::StatusOr<ibv_srq_attr> QuerySrq(ibv_srq*) override { return Unused(); }
  absl::StatusOr<ibv_qp*> CreateQp(ibv_pd*, ibv_qp_init_attr&) override { return Unused(); }
  absl::Status ModifyQp(ibv_qp*, const ibv_qp_attr&, int) override { return Unused(); }
  absl::StatusOr<ibv_qp_attr> QueryQp(ibv_qp*, int) override { return Unused(); }
  QpIdentity IdentityOf(const ibv_qp*) override { return {}; }
  bool Quiesced(QpIdentity) override { return true; }
  int async_fd() const override { return -1; }
  absl::StatusOr<ibv_async_event> GetAsyncEvent() override { return Unused(); }
  void AckAsyncEvent(ibv_async_event&) override {}

  absl::Status DeallocPd(ibv_pd* pd) override { return Destroy(pd); }
  absl::Status DeregMr(ibv_mr* mr) override { return Destroy(mr); }
  absl::Status DeallocMw(ibv_mw* mw) override { return Destroy(mw); }
  absl::Status DestroyCompChannel(ibv_comp_channel* channel) override { return Destroy(channel); }
  absl::Status DestroyCq(ibv_cq* cq) override { return Destroy(cq); }
  absl::Status DestroySrq(ibv_srq* srq) override { return Destroy(srq); }
  absl::Status DestroyQp(ibv_qp* qp) override { return Destroy(qp); }

 private:
  absl::Status Destroy(const void* object) {
    destroyed.push_back(object);
    return destroy_status;
  }
  static absl::Status Unused() { return absl::UnimplementedError("not part of the fake device"); }

  std::string name_ = "fake0";
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_TRANSPORT_DEVICE_FAKE_DEVICE_H_
