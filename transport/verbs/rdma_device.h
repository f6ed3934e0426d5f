// RdmaDevice: a Device over libibverbs, for any provider that has RC QPs (mlx5, irdma, rxe, siw,
// …).
//
// Owned by whoever opened it, and outlives every object that it created. All calls are safe from
// any thread. Opening probes what the device can do, which takes from milliseconds to 200 ms
// and leaves nothing behind. (On siw the device keeps a CQ: siw.h.)
//
//   absl::StatusOr<std::unique_ptr<RdmaDevice>> device = RdmaDevice::Open("mlx5_0");
//   if (!device.ok()) return device.status();   // NOT_FOUND names the devices that there are
//
// The process may fork while a device is open: the kernel gives a child copies of pinned pages
// (Linux 5.12 and later); on older kernels the first Open() prepares for it.

#ifndef VERBENA_TRANSPORT_VERBS_RDMA_DEVICE_H_
#define VERBENA_TRANSPORT_VERBS_RDMA_DEVICE_H_

#include <infiniband/verbs.h>
#include <sys/resource.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/device/device.h"

namespace verbena::internal {

// One device of this host, as far as it is known without opening it.
struct RdmaDeviceInfo {
  std::string name;        // "mlx5_0"
  uint64_t node_guid = 0;  // in host byte order
  bool iwarp = false;      // connections need rdma_cm, and there are no immediates
};

class RdmaDevice final : public Device {
 public:
  // Empty where the kernel has no RDMA, or no device is visible.
  static std::vector<RdmaDeviceInfo> List();

  // `name` is that of a device, an interface or an address, as port.h has it; it decides
  // default_port(), too. NOT_FOUND lists what exists, UNAVAILABLE means that the port is down,
  // PERMISSION_DENIED that /dev/infiniband is closed to us, UNIMPLEMENTED that the device has no
  // reliable connections.
  static absl::StatusOr<std::unique_ptr<RdmaDevice>> Open(const std::string& name);

  RdmaDevice(const RdmaDevice&) = delete;
  RdmaDevice& operator=(const RdmaDevice&) = delete;
  ~RdmaDevice() override;

  DeviceKind kind() const override { return DeviceKind::kRdma; }
  const std::string& name() const override { return name_; }
  ibv_context* context() override { return context_; }
  const DeviceCapabilities& capabilities() const override { return capabilities_; }
  const ibv_device_attr& attributes() const override { return attributes_; }

  DevicePort default_port() const override { return default_port_; }
  absl::StatusOr<DevicePort> ChoosePortAgain() override;
  absl::StatusOr<ibv_port_attr> QueryPort(uint8_t port) override;
  absl::StatusOr<ibv_gid> QueryGid(uint8_t port, int index) override;

  absl::StatusOr<ibv_pd*> AllocPd() override;
  absl::Status DeallocPd(ibv_pd* pd) override;
  absl::StatusOr<ibv_mr*> RegMr(ibv_pd* pd, void* address, size_t bytes, int access) override;
  absl::Status DeregMr(ibv_mr* mr) override;
  absl::StatusOr<ibv_mw*> AllocMw(ibv_pd* pd) override;
  absl::Status DeallocMw(ibv_mw* mw) override;

  absl::StatusOr<ibv_comp_channel*> CreateCompChannel() override;
  absl::Status DestroyCompChannel(ibv_comp_channel* channel) override;
  absl::StatusOr<ibv_cq*> GetCqEvent(ibv_comp_channel* channel) override;
  void AckCqEvents(ibv_cq* cq, unsigned count) override;
  absl::StatusOr<ibv_cq*> CreateCq(int entries, void* cq_context,
                                   ibv_comp_channel* channel) override;
  absl::StatusOr<ibv_cq*> CreateCqOnVector(int entries, void* cq_context, ibv_comp_channel* channel,
                                           int comp_vector) override;
  absl::Status DestroyCq(ibv_cq* cq) override;

  absl::StatusOr<ibv_srq*> CreateSrq(ibv_pd* pd, const ibv_srq_init_attr& attributes) override;
  absl::Status ModifySrq(ibv_srq* srq, const ibv_srq_attr& attributes, int mask) override;
  absl::StatusOr<ibv_srq_attr> QuerySrq(ibv_srq* srq) override;
  absl::Status DestroySrq(ibv_srq* srq) override;

  absl::StatusOr<ibv_qp*> CreateQp(ibv_pd* pd, ibv_qp_init_attr& attributes) override;
  absl::Status ModifyQp(ibv_qp* qp, const ibv_qp_attr& attributes, int mask) override;
  absl::StatusOr<ibv_qp_attr> QueryQp(ibv_qp* qp, int mask) override;
  absl::Status DestroyQp(ibv_qp* qp) override;

  QpIdentity IdentityOf(const ibv_qp* qp) override;
  bool Quiesced(QpIdentity qp) override;

  int async_fd() const override { return context_->async_fd; }
  absl::StatusOr<ibv_async_event> GetAsyncEvent() override;
  void AckAsyncEvent(ibv_async_event& event) override { ibv_ack_async_event(&event); }

 private:
  RdmaDevice(ibv_context* context, std::string wanted, DevicePort default_port);

  // Everything after ibv_open_device that can fail.
  absl::Status Initialize();

  // `result` is what a verbs call returned; OK for 0. `what` is the call, as the message shows it.
  absl::Status Check(int result, const std::string& what) const;
  absl::Status Failed(const std::string& what) const;

  const std::string name_;
  const std::string wanted_;  // the name that it was opened by
  ibv_context* const context_;
  const DevicePort default_port_;
  ibv_device_attr attributes_{};
  DeviceCapabilities capabilities_;
  CqHandle queue_key_cover_;  // siw.h

  std::mutex qps_mutex_;  // guards what follows
  uint64_t last_identity_ = 0;
  // QPs that exist, except those that are being destroyed: the address of such a QP may be given
  // out again before DestroyQp() has returned.
  absl::flat_hash_map<const ibv_qp*, QpIdentity> qps_;
  // The queue pairs in qps_, and those that are being destroyed.
  absl::flat_hash_set<QpIdentity> existing_;
};

// How libibverbs' functions report failure, and what a failed registration means.
//
// Pure functions. They are not part of RdmaDevice, so that tests of them need no such device.

// The errno of a call that returned `result` != 0. Most verbs return the errno, some -1 with errno
// set, and a few providers a negative errno. EIO if there is no errno.
int ErrorOfResult(int result, int errno_value);

// Why ibv_reg_mr of `bytes` failed with `error`. ENOMEM under a finite `memlock_limit` is nearly
// always that limit, which counts what the process has pinned already (`pinned_bytes`), so the
// message names it and the least value that would do.
absl::Status RegistrationStatus(int error, const std::string& what, size_t bytes,
                                rlim_t memlock_limit, uint64_t pinned_bytes);

// ProbeCapabilities: tries once what ibv_device_attr does not say.
//
// Nothing is sent: objects are created, modified and destroyed, and requests are posted to a QP in
// ERR. Capabilities that only traffic could show (immediates, RNR NAK, checks of remote keys)
// follow from the transport's specification.
//
// UNIMPLEMENTED says that the device has no RC queue pairs, which links are made of (EFA);
// otherwise the error of the first object that cannot be made.
//
// `device` is open, its async fd non-blocking, and used by nobody else yet. Takes at least
// 100 ms on a device that does not raise IBV_EVENT_QP_LAST_WQE_REACHED, and as long again on a
// device that does not flush WRs that are posted in ERR.
absl::StatusOr<DeviceCapabilities> ProbeCapabilities(Device& device);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_VERBS_RDMA_DEVICE_H_
