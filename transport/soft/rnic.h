// Rnic: everything that a SoftDevice owns: its objects, its memory table, its engine, its peers.
//
// Control calls take `mutex_`, which comes before every CQ's lock. The data path never takes it: it
// finds receivers through a lock-free table whose entries name the CQ that guards them. Shared by
// the SoftDevice and, briefly, by devices of the same process that connect to it.

#ifndef VERBENA_TRANSPORT_SOFT_RNIC_H_
#define VERBENA_TRANSPORT_SOFT_RNIC_H_

#include <infiniband/verbs.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/soft/address.h"
#include "verbena/transport/soft/completion_queue.h"
#include "verbena/transport/soft/completions.h"
#include "verbena/transport/soft/control_socket.h"
#include "verbena/transport/soft/copies.h"
#include "verbena/transport/soft/copies_under_way.h"
#include "verbena/transport/soft/engine.h"
#include "verbena/transport/soft/memory_table.h"
#include "verbena/transport/soft/options.h"
#include "verbena/transport/soft/peer.h"
#include "verbena/transport/soft/queue_pair.h"
#include "verbena/transport/soft/receive_queue.h"
#include "verbena/transport/soft/shared_memory.h"
#include "verbena/transport/soft/shared_wire.h"
#include "verbena/transport/soft/soft_device.h"
#include "verbena/transport/soft/tcp_socket.h"
#include "verbena/transport/soft/tcp_wire.h"

namespace verbena::internal::soft {

struct ProtectionDomain : ibv_pd {
  std::atomic<int> users{0};
};

// The part of a device that its peers see; outlives the device for as long as one of them looks.
struct DeviceShare {
  SharedRegion controls;      // CqControl[kMaxCompletionQueues], which peers write
  SharedRegion table_memory;  // DeviceTables
  UniqueFd tables_read_only;  // all that peers get of it

  CqControl* control() const { return reinterpret_cast<CqControl*>(controls.data()); }
  DeviceTables& tables() const { return *reinterpret_cast<DeviceTables*>(table_memory.data()); }
};

class Rnic final : public std::enable_shared_from_this<Rnic>, public Engine::Client {
 public:
  static absl::StatusOr<std::shared_ptr<Rnic>> Create(const SoftDeviceOptions& options);
  ~Rnic();
  // Stops the engine, and leaves the view of other devices.
  void Shutdown();

  const std::string& name() const { return options_.name; }
  bool direct_copies() const { return options_.direct_copies; }
  uint64_t least_kernel_copy_bytes() const { return options_.least_kernel_copy_bytes; }
  ibv_context* context() { return &context_; }
  const DeviceAddress& address() const { return address_; }
  const DeviceCapabilities& capabilities() const { return capabilities_; }
  const ibv_device_attr& attributes() const { return attributes_; }
  // Precondition: the options have a profile.
  const SoftProfile& profile() const { return *options_.profile; }
  MemoryTable& memory() { return memory_; }
  MemoryWindows& windows() { return windows_; }
  EventQueue& async_events() { return async_events_; }
  Engine& engine() { return engine_; }

  // The control path of Device.
  absl::StatusOr<ibv_port_attr> QueryPort(uint8_t port);
  absl::StatusOr<ibv_gid> QueryGid(uint8_t port, int index);
  absl::StatusOr<ibv_pd*> AllocPd();
  absl::Status DeallocPd(ibv_pd* pd);
  absl::StatusOr<ibv_mr*> RegMr(ibv_pd* pd, void* address, size_t bytes, int access);
  absl::Status DeregMr(ibv_mr* mr);
  absl::Status ReregMr(ibv_mr* mr, ibv_pd* pd, void* address, size_t bytes, int access);
  absl::StatusOr<ibv_mw*> AllocMw(ibv_pd* pd);
  absl::Status DeallocMw(ibv_mw* mw);
  absl::StatusOr<ibv_comp_channel*> CreateCompChannel();
  absl::Status DestroyCompChannel(ibv_comp_channel* channel);
  absl::StatusOr<ibv_cq*> CreateCq(int entries, void* cq_context, ibv_comp_channel* channel);
  absl::Status ResizeCq(ibv_cq* cq, int entries);
  absl::Status DestroyCq(ibv_cq* cq);
  absl::StatusOr<ibv_srq*> CreateSrq(ibv_pd* pd, const ibv_srq_init_attr& attributes);
  absl::Status ModifySrq(ibv_srq* srq, const ibv_srq_attr& attributes, int mask);
  absl::Status DestroySrq(ibv_srq* srq);
  absl::StatusOr<ibv_qp*> CreateQp(ibv_pd* pd, ibv_qp_init_attr& attributes);
  absl::Status ModifyQp(ibv_qp* qp, const ibv_qp_attr& attributes, int mask);
  absl::StatusOr<ibv_qp_attr> QueryQp(ibv_qp* qp);
  absl::Status DestroyQp(ibv_qp* qp);
  bool Quiesced(QpIdentity qp);
  absl::StatusOr<std::byte*> AllocateShared(size_t bytes);
  absl::Status FreeShared(std::byte* memory);
  CopiedBytes copied_bytes();

  // Peers may access memory through `qp` from OpenToPeer on, until CloseToPeer. After that,
  // Quiesced knows which copies were under way. Both under the lock of its receive CQ.
  void OpenToPeer(QueuePair& qp);
  void CloseToPeer(QueuePair& qp);

  // For the data path, under the lock of `cq`. Null when `qpn` does not receive through `cq`.
  QueuePair* FindReceiver(uint32_t qpn, const CompletionQueue& cq) const {
    const QpSlot& slot = slots_[qpn & (kMaxQueuePairs - 1)];
    if (slot.receive_cq.load(std::memory_order_acquire) != &cq) return nullptr;
    QueuePair* qp = slot.qp.load(std::memory_order_relaxed);
    return qp != nullptr && qp->qp_num == qpn ? qp : nullptr;
  }
  TimePoint Now() { return clock_.Now(); }
  void StartTimer(TimePoint when, uint32_t qpn, uint32_t token) {
    engine_.StartTimer(when, qpn, token);
  }
  // Has our engine look at the CQ of `control`.
  void WakeEngine(CqControl& control);
  void OnCqPolled() { engine_.OnCqPolled(); }
  // `cq` overran: its QPs fail, soon. Callable under its lock.
  void FailQpsOf(CompletionQueue& cq);

  bool Serve() override;
  bool Tick() override;
  bool NeedsTick() override;
  void OnTimer(uint32_t qpn, uint32_t token) override;

  // For the wires. Something came for the CQ `id` over TCP:
  void ServePairs(uint64_t id);
  // As a target:
  std::optional<uint64_t> ReceiveCqOf(uint32_t qpn);
  // False when there is no such CQ, or it has too many lanes.
  bool AcceptLane(std::shared_ptr<Peer> peer, uint32_t send_cq_index, uint64_t receive_cq,
                  uint64_t id, std::shared_ptr<LaneMemory> memory);
  void RemoveLane(const Peer& peer, uint64_t id);
  bool HasCq(uint64_t id);
  // The connection `socket` is for the CQ `ours` and the peer's CQ `theirs`, whose lane has that
  // geometry. `engine_epoll` watches it while nobody polls the CQ. Both lanes' memory holds
  // `share`.
  absl::StatusOr<std::shared_ptr<LanePair>> OpenLanePair(
      uint64_t ours, uint64_t theirs, std::shared_ptr<Peer> peer, UniqueFd socket,
      const LaneGeometry& geometry, const std::shared_ptr<const void>& share, int engine_epoll);
  // Frees the memory of lanes that are over.
  void SweepLanes();
  static absl::StatusOr<std::shared_ptr<Peer>> MakeTcpPeer(const DeviceAddress& address);
  // Precondition: there is a TCP wire.
  const TcpWireOptions& tcp_options() const { return *options_.tcp; }
  int silence_limit_seconds() const {
    return static_cast<int>(options_.tcp->silence_limit.count());
  }
  // As an initiator. `peer` null: the target of `request` cannot be reached, and its sends fail.
  // Otherwise the QP is attached to the lane that leads to `receive_cq`; if that had to be made,
  // its memory is returned, for the target to map.
  struct NewLane {
    std::shared_ptr<LaneMemory> memory;
    uint64_t id = 0;
    uint32_t send_cq_index = 0;
  };
  NewLane FinishConnect(const ConnectRequest& request, const std::shared_ptr<Peer>& peer,
                        uint64_t receive_cq);
  std::optional<uint64_t> SendCqOf(uint32_t qpn);
  // No device of this host answers: another one may.
  void ConnectByTcp(const ConnectRequest& request);
  // The device that an address vector names.
  DeviceAddress AddressOf(const ibv_ah_attr& vector) const;
  // The geometry of the lanes that this device makes over shared memory.
  LaneGeometry lane_geometry() const { return GeometryOf(options_); }
  // The geometry of those that it makes over TCP. Precondition: the options have a TCP wire.
  LaneGeometry tcp_lane_geometry() const { return TcpGeometryOf(options_); }
  // The target refused the lane.
  void FailLane(const Peer& peer, uint64_t id);
  std::shared_ptr<const DeviceShare> share() const { return share_; }
  // The one Peer with that address that everybody uses: `peer`, unless there is one already.
  std::shared_ptr<Peer> AddPeer(std::shared_ptr<Peer> peer);
  // The peer freed an arena.
  void WithdrawArena(Peer& peer, uint32_t id);
  Arenas& arenas() { return arenas_; }
  // The peer's process or device is no more.
  void LosePeer(const Peer& peer);
  void LoseDevice(const DeviceAddress& address);

 private:
  struct QpSlot {
    std::atomic<CompletionQueue*> receive_cq{nullptr};
    std::atomic<QueuePair*> qp{nullptr};
  };

  Rnic(const SoftDeviceOptions& options, std::shared_ptr<DeviceShare> share,
       const DeviceAddress& address);
  static absl::Status CheckOptions(const SoftDeviceOptions& options);
  static LaneGeometry GeometryOf(const SoftDeviceOptions& options) {
    return {.request_lines = options.request_ring_bytes / uint32_t{kLineBytes},
            .answer_lines = options.answer_ring_bytes / uint32_t{kLineBytes}};
  }
  // Precondition: the options have a TCP wire.
  static LaneGeometry TcpGeometryOf(const SoftDeviceOptions& options) {
    const uint32_t least = options.tcp->least_ring_bytes / uint32_t{kLineBytes};
    const LaneGeometry geometry = GeometryOf(options);
    return {.request_lines = std::max(geometry.request_lines, least),
            .answer_lines = std::max(geometry.answer_lines, least)};
  }
  void FillContext();
  void FillAttributes();
  // Whether memory may be registered so.
  absl::Status CheckRegion(const void* address, size_t bytes, uint32_t flags);
  // The place of memory of this process, perhaps in an arena. Under the lock.
  MemoryLocation Locate(const void* address, size_t bytes);
  // Makes the keys of `mr` fail, and waits for accesses under way. `what` is the caller's call.
  absl::Status RevokeRegion(ibv_mr* mr, const char* what);
  CompletionQueue* FindCq(uint64_t id);
  void CloseLanes(CompletionQueue& cq);
  // Waits until `copies` are over, but not for a frozen peer: then false.
  static bool AwaitCopies(std::vector<CopyUnderWay>& copies);

  absl::Status CheckQpInit(const ibv_pd* pd, const ibv_qp_init_attr& attributes) const;
  std::shared_ptr<Peer> PeerOf(Rnic& other);
  bool tcp_only() const { return options_.tcp.has_value() && !options_.shared_memory; }
  // The device of this process at `address`, if it is reached within the process.
  std::shared_ptr<Rnic> FindLocal(const DeviceAddress& address);
  void Connect(const ConnectRequest& request);
  NewLane MakeLane(CompletionQueue& cq, const std::shared_ptr<Peer>& peer, uint64_t receive_cq);

  const SoftDeviceOptions options_;
  Clock& clock_;
  std::shared_ptr<DeviceShare> share_;
  ibv_device device_{};
  ibv_context context_{};
  DeviceAddress address_{};
  ibv_device_attr attributes_{};
  DeviceCapabilities capabilities_;
  MemoryTable memory_;
  MemoryWindows windows_;
  EventQueue async_events_;
  std::unique_ptr<QpSlot[]> slots_;

  std::mutex mutex_;
  uint32_t next_pd_handle_ = 1;
  uint64_t last_qp_identity_ = 0;
  uint64_t next_cq_serial_ = 1;
  std::unordered_map<const ibv_pd*, std::unique_ptr<ProtectionDomain>> pds_;
  std::unordered_map<const ibv_mr*, std::unique_ptr<ibv_mr>> mrs_;
  std::unordered_map<const ibv_mw*, std::unique_ptr<ibv_mw>> mws_;
  Arenas arenas_;
  std::unordered_map<const ibv_comp_channel*, std::unique_ptr<CompletionChannel>> channels_;
  std::unordered_map<const ibv_cq*, std::unique_ptr<CompletionQueue>> cqs_;
  std::unordered_map<const ibv_srq*, std::unique_ptr<SharedReceiveQueue>> srqs_;
  std::unordered_map<uint32_t, std::unique_ptr<QueuePair>> qps_;
  std::deque<uint32_t> free_qpns_;        // the QPN that each free slot gets next, oldest first
  std::deque<uint32_t> free_cq_indices_;  // likewise
  std::atomic<bool> overrun_{false};
  CopiedBytes copied_earlier_;  // by CQs that are no more

  uint64_t next_lane_id_ = 1;
  // Copies that QPs out of service left behind, until they are over. A leaf.
  std::mutex copies_mutex_;
  std::unordered_map<QpIdentity, std::vector<CopyUnderWay>> copies_;
  std::unordered_set<QpIdentity> open_to_peers_;  // likewise guarded: QPs in service

  std::mutex peers_mutex_;                                // a leaf
  std::map<DeviceAddress, std::shared_ptr<Peer>> peers_;  // none behind TCP

  SharedWire wire_;
  std::unique_ptr<TcpWire> tcp_;
  Engine engine_;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_RNIC_H_
