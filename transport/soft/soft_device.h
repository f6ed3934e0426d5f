// SoftDevice: an RDMA device made of software, in user space, without privileges.
//
// It serves reliable connected QPs with the semantics of hardware: per-QP order, SRQs, RNR NAK with
// retry, protection checks on every lkey and rkey, type-2 memory windows (2B: bound to one QP,
// whose destruction leaves them free), flushing, asynchronous events, one-shot arming. The data
// path is verbs itself (ibv_post_send and its like dispatch here through the context); the rest is
// Device. Two devices reach each other by GID and LID, whether they are in one process, in two
// processes of the same user on one host, or, over TCP, on two hosts. A GID, a LID and a QPN
// exchanged out of band are all that it takes.
//
// One control thread per device, its engine, makes progress for CQs that nobody polls. With
// `engine_thread` false there is none: the owner calls Step, and such a device reaches only devices
// of its own process.
//
// The threat model includes a faulty process of the same user, but not a malicious one. Everything
// that a process writes into shared memory is checked; at worst its own QPs fail. Everything that
// comes over TCP is checked, too, but nothing is authenticated or encrypted.
//
//   absl::StatusOr<std::unique_ptr<SoftDevice>> device = SoftDevice::Create({.name = "soft0"});

#ifndef VERBENA_TRANSPORT_SOFT_SOFT_DEVICE_H_
#define VERBENA_TRANSPORT_SOFT_SOFT_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/soft/copies.h"
#include "verbena/transport/soft/options.h"

namespace verbena::internal {

class VERBENA_EXPORT SoftDevice final : public Device {
 public:
  // INVALID_ARGUMENT for options, a profile or a variable of the environment that is out of range,
  // and for a TCP address that is not of this host. FAILED_PRECONDITION for a TCP port in use.
  // Otherwise errors of reading the profile, of sockets, of memfd and of thread creation. Each
  // message names the value.
  static absl::StatusOr<std::unique_ptr<SoftDevice>> Create(const SoftDeviceOptions& options = {});
  // Precondition: every object of the device has been destroyed.
  ~SoftDevice() override;

  // One turn of the engine, for a device without a thread. True when it did something: a simulator
  // calls it until no device has anything left to do, then advances its clock.
  bool Step();

  // Page-aligned memory, zero, that peers in other processes can map. One-sided operations on
  // memory that is registered in it are plain copies by their initiator. Allocations are few and
  // large: RESOURCE_EXHAUSTED beyond 63. FreeShared() frees one once nothing in it is registered
  // any more; the device frees the others when it ends.
  absl::StatusOr<std::byte*> AllocateShared(size_t bytes);
  absl::Status FreeShared(std::byte* memory);

  // Registers `mr` anew, under its keys. FAILED_PRECONDITION while windows are bound to it; then,
  // and for what RegMr refuses, it stays as it is, unless a frozen peer keeps us waiting: then its
  // keys fail, as after DeregMr.
  absl::Status ReregMr(ibv_mr* mr, ibv_pd* pd, void* address, size_t bytes, int access);
  // Waits until Quiesced(qp). False for a peer that is frozen in the middle of a copy: it is given
  // two seconds. They are not given again for the same copy, for this queue pair or another. Call
  // it for a queue pair that has left service.
  bool AwaitQuiesced(QpIdentity qp);
  // The CQ's queue then holds `entries`: INVALID_ARGUMENT if more completions wait in it.
  absl::Status ResizeCq(ibv_cq* cq, int entries);
  // A new CQ drops completions that it has no room for, instead of breaking
  // (IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN). Precondition: `cq` is of this device.
  void IgnoreOverrun(ibv_cq* cq);

  // The bytes that the device has copied so far. Any thread; may miss what another thread is
  // copying, but nothing whose completion the caller has polled.
  CopiedBytes copied_bytes() const;

  // Whether other hosts can reach it, and at which port: its LID. Its GID is its address.
  bool tcp() const { return tcp_port() != 0; }
  uint16_t tcp_port() const;

  DeviceKind kind() const override { return DeviceKind::kSoft; }
  const std::string& name() const override;
  ibv_context* context() override;
  const DeviceCapabilities& capabilities() const override;
  const ibv_device_attr& attributes() const override;
  absl::StatusOr<ibv_port_attr> QueryPort(uint8_t port) override;
  absl::StatusOr<ibv_gid> QueryGid(uint8_t port, int index) override;

  absl::StatusOr<ibv_pd*> AllocPd() override;
  absl::Status DeallocPd(ibv_pd* pd) override;
  absl::StatusOr<std::byte*> AllocateMemory(size_t bytes) override { return AllocateShared(bytes); }
  absl::Status FreeMemory(std::byte* memory, size_t) override { return FreeShared(memory); }
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
  absl::Status DestroyCq(ibv_cq* cq) override;

  absl::StatusOr<ibv_srq*> CreateSrq(ibv_pd* pd, const ibv_srq_init_attr& attributes) override;
  absl::Status ModifySrq(ibv_srq* srq, const ibv_srq_attr& attributes, int mask) override;
  absl::StatusOr<ibv_srq_attr> QuerySrq(ibv_srq* srq) override;
  bool TakeNewestReceivesFirst(ibv_srq* srq) override;
  absl::Status DestroySrq(ibv_srq* srq) override;

  absl::StatusOr<ibv_qp*> CreateQp(ibv_pd* pd, ibv_qp_init_attr& attributes) override;
  absl::Status ModifyQp(ibv_qp* qp, const ibv_qp_attr& attributes, int mask) override;
  absl::Status AwaitPeer(ibv_qp* qp) override;
  absl::StatusOr<ibv_qp_attr> QueryQp(ibv_qp* qp, int mask) override;
  absl::Status DestroyQp(ibv_qp* qp) override;
  QpIdentity IdentityOf(const ibv_qp* qp) override;
  bool Quiesced(QpIdentity qp) override;

  int async_fd() const override;
  absl::StatusOr<ibv_async_event> GetAsyncEvent() override;
  void AckAsyncEvent(ibv_async_event& event) override;

 private:
  struct Parts;
  explicit SoftDevice(std::shared_ptr<Parts> parts);

  // Devices of this process that look at us keep the parts alive, briefly.
  std::shared_ptr<Parts> parts_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_SOFT_SOFT_DEVICE_H_
