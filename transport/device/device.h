// Device: an RDMA device's control path. The data path is verbs itself.
//
// Two implementations: RdmaDevice (transport/verbs, any provider of libibverbs) and SoftDevice
// (transport/soft, user space only). In rdma-core the data path (ibv_post_send, ibv_post_srq_recv,
// ibv_poll_cq, ibv_req_notify_cq) is inline and dispatches through ibv_context::ops, so it is
// called directly on the objects created here, with no cost of abstraction. Everything else is a
// library function that would crash on a software device's objects, and goes through this class
// instead. ibv_wr_*, ibv_create_cq_ex and macro'd queries do not dispatch through ops: Verbena uses
// none of them.
//
// Objects are destroyed in the order that verbs demands (MRs and MWs before their PD, MWs before
// the MR that they are bound to, QPs before their CQ and SRQ); destroying one too early returns
// FAILED_PRECONDITION with EBUSY in the message. A DeviceHandle owns one object and destroys it. A
// Device outlives its objects. All calls are safe from any thread; they may block for milliseconds,
// and belong to set-up and teardown.

#ifndef VERBENA_TRANSPORT_DEVICE_DEVICE_H_
#define VERBENA_TRANSPORT_DEVICE_DEVICE_H_

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/device/process_memory.h"

namespace verbena::internal {

enum class DeviceKind { kRdma, kSoft };

// One queue pair among all that its device ever makes. Queue pair numbers are given out again, also
// while memory that was leased through their last owner is still in doubt; identities never are.
enum class QpIdentity : uint64_t {};

// A device's capabilities beyond ibv_device_attr, found by probing once when it is opened.
struct DeviceCapabilities {
  uint32_t max_inline_bytes = 0;  // accepted as ibv_qp_cap::max_inline_data with 4 send SGEs
  bool srq = false;               // shared receive queues
  bool srq_limit_event = false;   // IBV_EVENT_SRQ_LIMIT_REACHED is raised
  bool last_wqe_event = false;    // IBV_EVENT_QP_LAST_WQE_REACHED is raised
  bool write_with_immediate = false;
  bool send_with_immediate = false;
  bool atomics = false;
  // Type 2; their requests (BIND_MW, LOCAL_INV and SEND_WITH_INV) are taken.
  bool memory_windows = false;
  // A window's range and queue pair are checked, and its invalidation by the peer is reported (rxe
  // 6.1: neither).
  bool windows_checked = false;
  bool rnr_nak = false;             // a SEND without a receive is retried, then fails
  bool flushes_in_error = true;     // a WR that is posted in ERR is flushed (siw: never)
  bool remote_key_checked = false;  // a bad rkey fails the WR (siw: it does not)
  bool emulated = false;            // a kernel does the work of a NIC (rxe, siw)
  // A SEND or WRITE of more bytes must be signalled: a later completion does not prove that its
  // memory has been read (siw).
  uint32_t max_unsignalled_bytes = std::numeric_limits<uint32_t>::max();
  // Where memory is pinned, which is on each device but the soft one (DeviceKind).
  RootPins root_pins = RootPins::kFreely;
  // The revision of the wire that a device of software has for itself: two devices of different
  // ones cannot talk. 0: the wire is that of RDMA.
  uint32_t wire_revision = 0;
};

// The local end of a device's links: a port, counted from 1, and the GID by which peers reach it.
struct DevicePort {
  uint8_t port = 1;
  uint8_t gid_index = 0;
  bool roce_v1 = false;  // that GID is one of RoCE v1
  // Other GIDs of the port that the device's name and the kind of the first one admit. A link takes
  // one of them if its bootstrap connection has that address.
  std::vector<uint8_t> alike = {};
};

class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;
  virtual const std::string& name() const = 0;
  // The context whose ops serve the data path. Owned by the Device.
  virtual ibv_context* context() = 0;
  virtual const DeviceCapabilities& capabilities() const = 0;
  virtual const ibv_device_attr& attributes() const = 0;

  // The port and GID that links use, decided when the device was opened.
  virtual DevicePort default_port() const { return {}; }
  // Chooses the port and GID again, because the port's addresses may have changed. Fails as opening
  // the device does.
  virtual absl::StatusOr<DevicePort> ChoosePortAgain() { return default_port(); }
  // `port` is counted from 1.
  virtual absl::StatusOr<ibv_port_attr> QueryPort(uint8_t port) = 0;
  virtual absl::StatusOr<ibv_gid> QueryGid(uint8_t port, int index) = 0;

  virtual absl::StatusOr<ibv_pd*> AllocPd() = 0;
  virtual absl::Status DeallocPd(ibv_pd* pd) = 0;

  // Zeroed, page-aligned memory that peers may reach one-sided: in huge pages if there are any, and
  // on the soft device such that peers can map it. Ask for few, large pieces: RESOURCE_EXHAUSTED
  // beyond a bound of the device. FreeMemory() takes the same size; FAILED_PRECONDITION while
  // something in the memory is registered.
  virtual absl::StatusOr<std::byte*> AllocateMemory(size_t bytes);
  virtual absl::Status FreeMemory(std::byte* memory, size_t bytes);

  // `access` is a set of IBV_ACCESS_*. RESOURCE_EXHAUSTED names RLIMIT_MEMLOCK and the bytes needed
  // when that is the reason.
  virtual absl::StatusOr<ibv_mr*> RegMr(ibv_pd* pd, void* address, size_t bytes, int access) = 0;
  virtual absl::Status DeregMr(ibv_mr* mr) = 0;

  // A type-2 memory window, which IBV_WR_BIND_MW binds and IBV_WR_LOCAL_INV or a peer's
  // IBV_WR_SEND_WITH_INV frees again; the consumer adds 1 to the low 8 bits of its key at each
  // binding. An error if DeviceCapabilities::memory_windows is false.
  virtual absl::StatusOr<ibv_mw*> AllocMw(ibv_pd* pd) = 0;
  // Also for a window that is bound: its key then admits no new access. An access that began before
  // may still be under way (Quiesced). Call it before the window's QP is destroyed (rxe: a
  // millisecond, against a minute for the QP), and before its MR is deregistered.
  virtual absl::Status DeallocMw(ibv_mw* mw) = 0;

  virtual absl::StatusOr<ibv_comp_channel*> CreateCompChannel() = 0;
  virtual absl::Status DestroyCompChannel(ibv_comp_channel* channel) = 0;
  // The next completion event of a channel whose fd is readable (it is non-blocking). UNAVAILABLE
  // when there is none. Every event is to be acknowledged before its CQ is destroyed.
  virtual absl::StatusOr<ibv_cq*> GetCqEvent(ibv_comp_channel* channel) = 0;
  virtual void AckCqEvents(ibv_cq* cq, unsigned count) = 0;

  // `channel` may be null. The CQ holds at least `entries`.
  virtual absl::StatusOr<ibv_cq*> CreateCq(int entries, void* cq_context,
                                           ibv_comp_channel* channel) = 0;
  // The same for a device with several completion vectors (ibv_context::num_comp_vectors), whose
  // interrupts may go to different cores: `comp_vector` is that of the CQ's events. Other devices
  // ignore it.
  virtual absl::StatusOr<ibv_cq*> CreateCqOnVector(int entries, void* cq_context,
                                                   ibv_comp_channel* channel, int comp_vector) {
    (void)comp_vector;
    return CreateCq(entries, cq_context, channel);
  }
  virtual absl::Status DestroyCq(ibv_cq* cq) = 0;

  virtual absl::StatusOr<ibv_srq*> CreateSrq(ibv_pd* pd, const ibv_srq_init_attr& attributes) = 0;
  virtual absl::Status ModifySrq(ibv_srq* srq, const ibv_srq_attr& attributes, int mask) = 0;
  virtual absl::StatusOr<ibv_srq_attr> QuerySrq(ibv_srq* srq) = 0;
  // Lets the device take those receives first that were posted last, because their memory is still
  // in the cache. Call it before the first receive is posted, and only if their wr_id alone tells
  // the receives apart. False from a device that takes them in the order posted, as RDMA hardware
  // does.
  virtual bool TakeNewestReceivesFirst(ibv_srq* srq) {
    (void)srq;
    return false;
  }
  virtual absl::Status DestroySrq(ibv_srq* srq) = 0;

  // `attributes.cap` is updated to what the QP got.
  virtual absl::StatusOr<ibv_qp*> CreateQp(ibv_pd* pd, ibv_qp_init_attr& attributes) = 0;
  virtual absl::Status ModifyQp(ibv_qp* qp, const ibv_qp_attr& attributes, int mask) = 0;
  // Waits, for seconds at most, until the device of the peer that `qp` was connected to by its move
  // to RTR has answered. An error says why it is not reached. OK from a device that cannot know, as
  // RDMA hardware: there the first work request shows it.
  virtual absl::Status AwaitPeer(ibv_qp* qp) {
    (void)qp;
    return absl::OkStatus();
  }
  virtual absl::StatusOr<ibv_qp_attr> QueryQp(ibv_qp* qp, int mask) = 0;
  virtual absl::Status DestroyQp(ibv_qp* qp) = 0;

  // The identity of `qp`, which is not destroyed yet: no other queue pair ever has the same. Never
  // waits.
  virtual QpIdentity IdentityOf(const ibv_qp* qp) = 0;
  // True when no one-sided transfer of a peer that began before `qp` left service can still touch
  // our memory. Hardware: true once the QP is destroyed (rxe 6.1 still copies the packet that it is
  // at when a QP enters ERR). The soft device: once it is in ERR, but false while a frozen peer is
  // in the middle of a copy. Memory leased through `qp` may be reused only once this is true.
  // A queue pair that has the number of `qp` by then does not matter.
  virtual bool Quiesced(QpIdentity qp) = 0;

  // Readable when an asynchronous event waits; non-blocking.
  virtual int async_fd() const = 0;
  // UNAVAILABLE when there is none. What an event names exists until the event is acknowledged;
  // then another object may get its number or address. Look its owner up, and acknowledge it at
  // once: destroying the object waits for that.
  virtual absl::StatusOr<ibv_async_event> GetAsyncEvent() = 0;
  virtual void AckAsyncEvent(ibv_async_event& event) = 0;

  // Says that the program still has memory that is registered with the device. The memory stays so
  // until the process ends, and whoever calls this has logged it. From any thread.
  void KeepMemory() { keeps_memory_.store(true, std::memory_order_relaxed); }
  bool keeps_memory() const { return keeps_memory_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> keeps_memory_{false};
};

// Whether memory that the program keeps (Device::keeps_memory()) may be the reason that an object
// of this kind cannot be destroyed. Such memory holds its region, its windows and its protection
// domain. For any other object a failure is a bug of ours.
enum class Excuse { kKeptMemory, kNone };

// Logs that an object could not be destroyed, unless kept memory is the likely reason.
void LogLeakedObject(const Device& device, const char* kind, const absl::Status& status,
                     Excuse excuse);

// Owners of verbs objects: each destroys its object through the Device that made it.
//
// Move-only, single owner, destroyed on any thread. A destruction that verbs refuses (an object
// still in use: our own bug) is logged and the object leaks, since nothing safe can be done with
// it.
//
//   absl::StatusOr<ibv_pd*> pd = device.AllocPd();
//   PdHandle owner(device, *pd);
template <typename T, absl::Status (Device::*kDestroy)(T*)>
class DeviceHandle {
 public:
  DeviceHandle() = default;
  DeviceHandle(Device& device, T* object) : device_(&device), object_(object) {}
  DeviceHandle(DeviceHandle&& other) noexcept
      : device_(other.device_), object_(std::exchange(other.object_, nullptr)) {}
  DeviceHandle& operator=(DeviceHandle&& other) noexcept {
    if (this != &other) {
      Reset();
      device_ = other.device_;
      object_ = std::exchange(other.object_, nullptr);
    }
    return *this;
  }
  ~DeviceHandle() { Reset(); }

  T* get() const { return object_; }
  T* operator->() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }
  Device& device() const { return *device_; }

  // Leaves the object to the caller.
  T* Release() { return std::exchange(object_, nullptr); }
  void Reset() {
    T* object = std::exchange(object_, nullptr);
    if (object == nullptr) return;
    absl::Status status = (device_->*kDestroy)(object);
    if (!status.ok()) LogLeakedObject(*device_, "verbs object", status, kExcuse);
  }

 private:
  static constexpr Excuse kExcuse =
      std::is_same_v<T, ibv_mr> || std::is_same_v<T, ibv_mw> || std::is_same_v<T, ibv_pd>
          ? Excuse::kKeptMemory
          : Excuse::kNone;

  Device* device_ = nullptr;
  T* object_ = nullptr;
};

using PdHandle = DeviceHandle<ibv_pd, &Device::DeallocPd>;
using MrHandle = DeviceHandle<ibv_mr, &Device::DeregMr>;
using MwHandle = DeviceHandle<ibv_mw, &Device::DeallocMw>;
using CompChannelHandle = DeviceHandle<ibv_comp_channel, &Device::DestroyCompChannel>;
using CqHandle = DeviceHandle<ibv_cq, &Device::DestroyCq>;
using SrqHandle = DeviceHandle<ibv_srq, &Device::DestroySrq>;
using QpHandle = DeviceHandle<ibv_qp, &Device::DestroyQp>;

// NUMA: memory near the device that reads and writes it.
//
// Any thread. Nothing here fails: without a known node, or without leave to ask for one, memory
// lies where the kernel puts it.

// The node of the device whose directory in sysfs is `sysfs_path` (ibv_device::ibdev_path); -1 when
// it has none, or none is known.
int NumaNodeOf(const char* sysfs_path);

// Asks the kernel to take the pages of [memory, memory + bytes) that are not there yet from `node`,
// or from another node when that is full. `memory` is aligned to pages; `node` -1 does nothing.
// True when the kernel agreed.
bool PreferNumaNode(void* memory, size_t bytes, int node);

// Pages: zeroed memory straight from the kernel, in huge pages if there are any.
//
// For regions that are registered with a device: few and large. From 2 MiB on, the memory begins at
// a huge page, and its size is rounded up to whole huge pages. The administrator's pool (hugetlb)
// serves them while it has some. Otherwise the kernel is asked for transparent huge pages. Without
// those everything works, with more TLB misses. Any thread.
//
//   VERBENA_ASSIGN_OR_RETURN(std::byte* pages, MapPages(bytes));
//   UnmapPages(pages, bytes);

// At least `bytes`, which is not 0. RESOURCE_EXHAUSTED when there is no memory.
absl::StatusOr<std::byte*> MapPages(size_t bytes);
// `bytes` is what the pages were mapped with.
void UnmapPages(std::byte* pages, size_t bytes);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_DEVICE_DEVICE_H_
