// Rnic: everything that a SoftDevice owns: its objects, its memory table, its engine, its peers.
//
// Control calls take `mutex_`, which comes before every CQ's lock. The data path never takes it: it
// finds receivers through a lock-free table whose entries name the CQ that guards them. Shared by
// the SoftDevice and, briefly, by devices of the same process that connect to it.

#ifndef VERBENA_TRANSPORT_SOFT_RNIC_H_
#define VERBENA_TRANSPORT_SOFT_RNIC_H_

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
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
#include "verbena/transport/soft/state.h"
#include "verbena/transport/soft/tcp_socket.h"
#include "verbena/transport/soft/tcp_wire.h"

namespace verbena::internal::soft {

struct ProtectionDomain : ibv_pd {
  std::atomic<int> users{0};
};

class Rnic final : public std::enable_shared_from_this<Rnic>, public Engine::Client {
 public:
  static absl::StatusOr<std::shared_ptr<Rnic>> Create(const SoftDeviceOptions& options);
  ~Rnic();
  // Stops the engine, and leaves the view of other devices.
  void Shutdown();

  SoftState& state() { return state_; }
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
  absl::StatusOr<std::byte*> AllocateShared(size_t bytes);
  absl::Status FreeShared(std::byte* memory);
  CopiedBytes copied_bytes();

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
  // The target refused the lane.
  void FailLane(const Peer& peer, uint64_t id);
  // The one Peer with that address that everybody uses: `peer`, unless there is one already.
  std::shared_ptr<Peer> AddPeer(std::shared_ptr<Peer> peer);
  // The peer freed an arena.
  void WithdrawArena(Peer& peer, uint32_t id);
  Arenas& arenas() { return arenas_; }
  // The peer's process or device is no more.
  void LosePeer(const Peer& peer);
  void LoseDevice(const DeviceAddress& address);

 private:
  Rnic(const SoftDeviceOptions& options, std::shared_ptr<DeviceShare> share,
       const DeviceAddress& address, uint64_t guid);
  static absl::Status CheckOptions(const SoftDeviceOptions& options);
  void FillContext();
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
  bool tcp_only() const {
    return state_.options().tcp.has_value() && !state_.options().shared_memory;
  }
  // The device of this process at `address`, if it is reached within the process.
  std::shared_ptr<Rnic> FindLocal(const DeviceAddress& address);
  void Connect(const ConnectRequest& request);
  NewLane MakeLane(CompletionQueue& cq, const std::shared_ptr<Peer>& peer, uint64_t receive_cq);

  Engine engine_;
  SoftState state_;

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
  CopiedBytes copied_earlier_;            // by CQs that are no more

  uint64_t next_lane_id_ = 1;
  std::mutex peers_mutex_;                                // a leaf
  std::map<DeviceAddress, std::shared_ptr<Peer>> peers_;  // none behind TCP

  SharedWire wire_;
  std::unique_ptr<TcpWire> tcp_;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_RNIC_H_
