// SoftFabric: whom a soft device reaches, and how: its peers, its wires, and the lanes between CQs.
//
// It finds devices of its own process by their address, and reaches others by the shared-memory
// wire and the TCP wire. A QP that is connected is attached to the lane between its send CQ and the
// CQ that its peer receives through; the fabric makes the lanes, and ends them with their CQ or
// their peer.
//
// Owned by the SoftDevice, beside the engine, the state and the objects; devices of the same
// process hold it briefly. Any thread. Peers are as many as were met and not lost; the CQs bound
// their lanes.

#ifndef VERBENA_TRANSPORT_SOFT_FABRIC_H_
#define VERBENA_TRANSPORT_SOFT_FABRIC_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/process.h"
#include "verbena/transport/soft/address.h"
#include "verbena/transport/soft/engine.h"
#include "verbena/transport/soft/objects.h"
#include "verbena/transport/soft/peer.h"
#include "verbena/transport/soft/shared_wire.h"
#include "verbena/transport/soft/state.h"
#include "verbena/transport/soft/tcp_wire.h"
#include "verbena/transport/soft/wire.h"

namespace verbena::internal::soft {

class CompletionQueue;
class LaneMemory;
class LanePair;
class QueuePair;
struct LaneGeometry;

class SoftFabric final : public WireHost, public SoftObjects::Connector {
 public:
  // Connects what `objects` asks for. Both outlive it.
  SoftFabric(SoftState& state, SoftObjects& objects);
  SoftFabric(const SoftFabric&) = delete;
  SoftFabric& operator=(const SoftFabric&) = delete;

  // Starts the wires that the options ask for. `listener`: the TCP wire's, if there is one.
  absl::Status Start(TcpWireListener listener);
  // Those that were started, for the engine to drive.
  std::vector<Engine::Wire*> wires();
  // Devices of this process find `fabric` by its address from here on.
  static void Join(const std::shared_ptr<SoftFabric>& fabric);
  // Nobody finds it from here on.
  void Hide();
  // Its peers learn that it is gone. Precondition: Hide() was called, and the engine has stopped.
  void Leave();

  // SoftObjects::Connector.
  void Connect(const ConnectRequest& request) override;
  void Forget(const ConnectRequest& request) override;
  void CloseLanes(CompletionQueue& cq) override;
  void AnnounceArena(std::shared_ptr<const SharedArena> arena) override;
  void WithdrawArena(uint32_t id) override;

  // WireHost.
  std::optional<uint64_t> SendCqOf(uint32_t qpn) override;
  NewLane FinishConnect(const ConnectRequest& request, const std::shared_ptr<Peer>& peer,
                        uint64_t receive_cq) override;
  void FailLane(const Peer& peer, uint64_t id) override;
  void ConnectByTcp(const ConnectRequest& request, const absl::Status& why) override;
  std::optional<uint64_t> ReceiveCqOf(uint32_t qpn) override;
  bool AcceptLane(std::shared_ptr<Peer> peer, uint32_t send_cq_index, uint64_t receive_cq,
                  uint64_t id, std::shared_ptr<LaneMemory> memory) override;
  void RemoveLane(const Peer& peer, uint64_t id) override;
  bool HasCq(uint64_t id) override;
  absl::StatusOr<std::shared_ptr<LanePair>> OpenLanePair(uint64_t ours, uint64_t theirs,
                                                         std::shared_ptr<Peer> peer,
                                                         UniqueFd socket,
                                                         const LaneGeometry& geometry,
                                                         const std::shared_ptr<const void>& share,
                                                         int engine_epoll) override;
  void ServePairs(uint64_t cq) override;
  void SweepLanes() override;
  bool IsLocal(const DeviceAddress& address) override;
  std::shared_ptr<Peer> AddPeer(std::shared_ptr<Peer> peer) override;
  void LosePeer(const Peer& peer) override;
  void ReleaseArena(Peer& peer, uint32_t id) override;
  std::vector<std::shared_ptr<const SharedArena>> SharedArenas() override;

 private:
  bool tcp_only() const {
    return state_.options().tcp.has_value() && !state_.options().shared_memory;
  }
  // The device of this process at `address`, if it is reached within the process.
  std::shared_ptr<SoftFabric> FindLocal(const DeviceAddress& address);
  // Null if that device is no peer yet, or was lost.
  std::shared_ptr<Peer> FindPeer(const DeviceAddress& address);
  // A Peer within the process, even if another process claimed the address before `other` had it.
  // RESOURCE_EXHAUSTED: the process has no descriptor left for its doorbell.
  absl::StatusOr<std::shared_ptr<Peer>> PeerOf(SoftFabric& other);
  // The device of this process at `address` is no more.
  void LoseDevice(const DeviceAddress& address);
  // Both under the mutex of the objects.
  NewLane Attach(QueuePair& qp, const ConnectRequest& request, const std::shared_ptr<Peer>& peer,
                 uint64_t receive_cq);
  NewLane MakeLane(CompletionQueue& cq, const std::shared_ptr<Peer>& peer, uint64_t receive_cq);

  SoftState& state_;
  SoftObjects& objects_;
  std::atomic<uint64_t> next_lane_id_{1};
  ThrottledLog no_memory_{LogComponent::kDevice,
                          {}};  // for lanes: each queue pair that a peer asks for may need one
  std::mutex peers_mutex_;      // a leaf
  std::map<DeviceAddress, std::shared_ptr<Peer>> peers_;  // none behind TCP
  std::unique_ptr<SharedWire> wire_;  // null: there is no wire over shared memory
  std::unique_ptr<TcpWire> tcp_;      // null: there is no TCP wire
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_FABRIC_H_
