// WireHost: what the wires of a soft device ask of it.
//
// A wire reaches devices of other processes: SharedWire those of this host, TcpWire those of any.
// It agrees with a peer on the lanes between a CQ here and one there, and has the host attach QPs
// to them. The SoftFabric implements it; the wires call it on the engine's thread.

#ifndef VERBENA_TRANSPORT_SOFT_WIRE_H_
#define VERBENA_TRANSPORT_SOFT_WIRE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "verbena/transport/base/process.h"
#include "verbena/transport/soft/address.h"
#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/peer.h"
#include "verbena/transport/soft/ring.h"

namespace verbena::internal::soft {

class LanePair;

class WireHost {
 public:
  // A lane over shared memory that FinishConnect has made: its memory, for the target to map.
  struct NewLane {
    std::shared_ptr<LaneMemory> memory;  // null: none was made
    uint64_t id = 0;
    uint32_t send_cq_index = 0;
  };

  // As an initiator. The CQ that the QP sends through; nothing when there is no such QP.
  virtual std::optional<uint64_t> SendCqOf(uint32_t qpn) = 0;
  // `peer` null: the target of `request` cannot be reached, and its sends fail. Otherwise the QP is
  // attached to the lane that leads to `receive_cq`, which is made if it must be.
  virtual NewLane FinishConnect(const ConnectRequest& request, const std::shared_ptr<Peer>& peer,
                                uint64_t receive_cq) = 0;
  // The target refused the lane.
  virtual void FailLane(const Peer& peer, uint64_t id) = 0;
  // No device of this host is reached, for the reason `why`: another host's may be.
  virtual void ConnectByTcp(const ConnectRequest& request, const absl::Status& why) = 0;

  // As a target. The CQ that the QP receives through; nothing when there is no such QP.
  virtual std::optional<uint64_t> ReceiveCqOf(uint32_t qpn) = 0;
  // False when there is no such CQ, or it has too many lanes.
  virtual bool AcceptLane(std::shared_ptr<Peer> peer, uint32_t send_cq_index, uint64_t receive_cq,
                          uint64_t id, std::shared_ptr<LaneMemory> memory) = 0;
  // Its initiator has ended the lane.
  virtual void RemoveLane(const Peer& peer, uint64_t id) = 0;

  // Over TCP.
  virtual bool HasCq(uint64_t id) = 0;
  // The connection `socket` is for the CQ `ours` and the peer's CQ `theirs`, whose lane has that
  // geometry. `engine_epoll` watches it while nobody polls the CQ. Both lanes' memory holds
  // `share`.
  virtual absl::StatusOr<std::shared_ptr<LanePair>> OpenLanePair(
      uint64_t ours, uint64_t theirs, std::shared_ptr<Peer> peer, UniqueFd socket,
      const LaneGeometry& geometry, const std::shared_ptr<const void>& share, int engine_epoll) = 0;
  // Something came for the CQ.
  virtual void ServePairs(uint64_t cq) = 0;
  // Frees the memory of lanes that are over.
  virtual void SweepLanes() = 0;

  // Whether a device of this process, this one or another, has the address.
  virtual bool IsLocal(const DeviceAddress& address) = 0;
  // The one Peer with that address that everybody uses: `peer`, unless there is one already.
  virtual std::shared_ptr<Peer> AddPeer(std::shared_ptr<Peer> peer) = 0;
  // The peer's process or device is no more.
  virtual void LosePeer(const Peer& peer) = 0;
  // The peer freed an arena, and those before it in its place: lets go of them once nobody here
  // uses them.
  virtual void ReleaseArena(Peer& peer, uint32_t id) = 0;
  // The arenas that peers may map.
  virtual std::vector<std::shared_ptr<const SharedArena>> SharedArenas() = 0;

 protected:
  ~WireHost() = default;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_WIRE_H_
