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

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/soft/copies.h"
#include "verbena/transport/soft/options.h"

namespace verbena::internal {

namespace soft {
class Rnic;
}

// How a device is reached by other hosts.
struct TcpWireOptions {
  // Numeric IPv4 or IPv6: where it listens, and how it is reached. Empty, 0.0.0.0 or ::: it listens
  // on every address, and announces that of the first interface that is up and not loopback;
  // loopback if there is none. Link-local addresses do not work, since they mean nothing to other
  // hosts.
  std::string address = "";
  // 0: any free port.
  uint16_t port = 0;
  // A peer's host that was silent for this long is dead: its queue pairs fail. 1 s to 1 h.
  std::chrono::seconds silence_limit = std::chrono::seconds(10);
  // Each ring of a lane over TCP has at least this: a power of two from 128 KiB to 16 MiB. A
  // payload is on its way only as far as its ring has room, though it does not pass through it.
  uint32_t least_ring_bytes = 512 * 1024;
  // Memory for the rings of all connections to peers. A connection between two CQs counts with both
  // sides' rings: 2 MiB with the default ones, up to 64 MiB if both sides have the largest. 0: a
  // quarter of the machine's memory, or 4 GiB if that is more. Otherwise the least is two
  // connections with this device's rings on both sides: just over 4 MiB by default, since each lane
  // has a header. It is address space; what is resident is at most what was written. One source (an
  // IPv4 address, or an IPv6 /64) may hold as much as is left for all others, so at most a half. A
  // connection beyond that is refused: its queue pairs fail. (start)
  size_t lane_bytes = 0;
  // Whether a peer may have another GID than the address that it connects from: behind a NAT, or if
  // its host has several addresses. It may then take the name of a third host, until that one comes
  // itself. Absent: as VERBENA_SOFT_ANY_SOURCE says (1: yes; 0 or unset: no).
  std::optional<bool> any_source = std::nullopt;
};

struct SoftDeviceOptions {
  std::string name = "soft0";
  // False: no thread, and Step drives the device.
  bool engine_thread = true;
  // Whether processes beside this one can connect. Needs the engine thread.
  bool shared_memory = true;
  // True: this device executes its one-sided operations itself, as copies, if it can reach the
  // target's memory. False: the target executes them all. Semantics are the same.
  bool direct_copies = true;
  // The clock of the RNR timers. Null: the machine's steady clock. Outlives the device.
  Clock* clock = nullptr;
  // Memory per pair of CQs that exchange messages, and per direction; powers of two. A message
  // waits in the send queue while its ring is full.
  uint32_t request_ring_bytes = 256 * 1024;
  uint32_t answer_ring_bytes = 128 * 1024;
  // Queue pairs at once, at most 16384. The fewer, the sooner a number is given out again.
  uint32_t max_queue_pairs = 16384;
  // The features that the device has or refuses. None: as VERBENA_SOFT_PROFILE says, otherwise all.
  std::optional<SoftProfile> profile = std::nullopt;
  // A TCP wire beside shared memory, or, with `shared_memory` false, instead of it: then the device
  // reaches without TCP only itself. Its rings have at least TcpWireOptions::least_ring_bytes, and
  // at most 16 MiB.
  std::optional<TcpWireOptions> tcp = std::nullopt;
  // The GID of a device without TCP, for a caller that has a plan for GIDs. Absent: one that no
  // other device has. Another process's device of the same GID makes Create fail.
  std::optional<ibv_gid> gid = std::nullopt;
  // The smallest one-sided operation that is copied by the kernel, on memory that the target's
  // device did not allocate. Smaller ones are left to the target, which is faster if it polls, and
  // slow if it waits for the bytes themselves.
  uint64_t least_kernel_copy_bytes = 8192;
  // How long a CQ may go unpolled before the engine makes progress for it. The engine wakes as
  // often while a CQ is polled.
  Duration unpolled_after = std::chrono::milliseconds(5);
};

class SoftDevice final : public Device {
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
  // The CQ's queue then holds `entries`: INVALID_ARGUMENT if more completions wait in it.
  absl::Status ResizeCq(ibv_cq* cq, int entries);

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
  absl::StatusOr<ibv_qp_attr> QueryQp(ibv_qp* qp, int mask) override;
  absl::Status DestroyQp(ibv_qp* qp) override;
  QpIdentity IdentityOf(const ibv_qp* qp) override;
  bool Quiesced(QpIdentity qp) override;

  int async_fd() const override;
  absl::StatusOr<ibv_async_event> GetAsyncEvent() override;
  void AckAsyncEvent(ibv_async_event& event) override;

 private:
  explicit SoftDevice(std::shared_ptr<soft::Rnic> rnic);

  std::shared_ptr<soft::Rnic> rnic_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_SOFT_SOFT_DEVICE_H_
