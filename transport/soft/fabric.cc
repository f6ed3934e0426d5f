#include "verbena/transport/soft/fabric.h"

#include <pthread.h>

#include <cerrno>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/soft/completion_queue.h"
#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/options.h"
#include "verbena/transport/soft/queue_pair.h"
#include "verbena/transport/soft/ring.h"
#include "verbena/transport/soft/shared_memory.h"
#include "verbena/transport/soft/tcp_lane.h"

namespace verbena::internal::soft {
namespace {

// The soft devices of this process, by address. Holds no device alive; any thread.
class LocalDevices {
 public:
  static LocalDevices& Get() {
    // A child of fork() has copies of them, whose threads are not there. It knows none of them, so
    // that it reaches those of its parent as any other process does.
    [[maybe_unused]] static const int registered =
        pthread_atfork(nullptr, nullptr, [] { Current() = new LocalDevices; });
    return *Current();
  }

  void Add(const DeviceAddress& address, std::weak_ptr<SoftFabric> device) {
    std::lock_guard<std::mutex> lock(mutex_);
    devices_[address] = std::move(device);
  }

  void Remove(const DeviceAddress& address) {
    std::lock_guard<std::mutex> lock(mutex_);
    devices_.erase(address);
  }

  // Null when there is none.
  std::shared_ptr<SoftFabric> Find(const DeviceAddress& address) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = devices_.find(address);
    return found == devices_.end() ? nullptr : found->second.lock();
  }

  bool Has(const DeviceAddress& address) {
    std::lock_guard<std::mutex> lock(mutex_);
    return devices_.contains(address);
  }

  std::vector<std::shared_ptr<SoftFabric>> All() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::shared_ptr<SoftFabric>> all;
    for (auto& [_, device] : devices_) {
      if (std::shared_ptr<SoftFabric> alive = device.lock()) all.push_back(std::move(alive));
    }
    return all;
  }

 private:
  static LocalDevices*& Current() {
    static LocalDevices* devices = new LocalDevices;
    return devices;
  }

  std::mutex mutex_;
  std::map<DeviceAddress, std::weak_ptr<SoftFabric>> devices_;
};

}  // namespace

SoftFabric::SoftFabric(SoftState& state, SoftObjects& objects) : state_(state), objects_(objects) {
  objects.SetConnector(*this);
}

absl::Status SoftFabric::Start(TcpWireListener listener) {
  if (state_.options().engine_thread && state_.options().shared_memory) {
    wire_ = std::make_unique<SharedWire>(state_, *this);
    if (absl::Status status = wire_->Start(); !status.ok()) {
      if (!state_.options().tcp.has_value()) return status;
      // With an address and a port, everybody knows the name of the Unix socket. A process of
      // another user may have taken it, and must not keep the device from its work.
      VERBENA_LOG_LINE(
          kDevice, kWarning,
          fmt::format("{} reaches other processes of this host over TCP alone, because its shared "
                      "memory cannot be announced: {}",
                      state_.name(), status.ToString()),
          {{"device", state_.name()}});
      wire_.reset();
    }
  }
  if (!state_.options().tcp.has_value()) return absl::OkStatus();
  tcp_ = std::make_unique<TcpWire>(state_, *this, std::move(listener));
  return tcp_->Start();
}

std::vector<Engine::Wire*> SoftFabric::wires() {
  std::vector<Engine::Wire*> wires;
  if (wire_ != nullptr) wires.push_back(wire_.get());
  if (tcp_ != nullptr) wires.push_back(tcp_.get());
  return wires;
}

void SoftFabric::Join(const std::shared_ptr<SoftFabric>& fabric) {
  LocalDevices::Get().Add(fabric->state_.address(), fabric);
}

void SoftFabric::Hide() { LocalDevices::Get().Remove(state_.address()); }

void SoftFabric::Leave() {
  for (const std::shared_ptr<SoftFabric>& other : LocalDevices::Get().All()) {
    other->LoseDevice(state_.address());
  }
  // Its peers learn of it now, even if somebody of this process still looks at us.
  tcp_.reset();
}

std::shared_ptr<SoftFabric> SoftFabric::FindLocal(const DeviceAddress& address) {
  std::shared_ptr<SoftFabric> device = LocalDevices::Get().Find(address);
  if (device == nullptr || device.get() == this) return device;
  return tcp_only() || device->tcp_only() ? nullptr : device;
}

// SoftFabric: peers.

std::shared_ptr<Peer> SoftFabric::FindPeer(const DeviceAddress& address) {
  std::lock_guard<std::mutex> lock(peers_mutex_);
  auto found = peers_.find(address);
  return found == peers_.end() ? nullptr : found->second;
}

absl::StatusOr<std::shared_ptr<Peer>> SoftFabric::PeerOf(SoftFabric& other) {
  auto known = FindPeer(other.state_.address());
  if (known != nullptr && known->in_process()) return known;
  UniqueFd doorbell(other.state_.engine().DuplicateDoorbell());
  // Without it nobody could wake the engine of `other`.
  if (!doorbell && other.state_.engine().doorbell_fd() >= 0) {
    return ErrnoStatus(errno, "another descriptor of a soft device's doorbell");
  }
  auto made = std::make_shared<Peer>(PeerParts{.address = other.state_.address(),
                                               .controls = other.state_.share()->control(),
                                               .tables = &other.state_.tables(),
                                               .doorbell = std::move(doorbell),
                                               .keep_alive = other.state_.share(),
                                               .in_process = true});
  std::lock_guard<std::mutex> lock(peers_mutex_);
  std::shared_ptr<Peer>& peer = peers_[other.state_.address()];
  // Another thread may have been faster. A process that claimed the address keeps its own lanes.
  if (peer == nullptr || !peer->in_process()) peer = std::move(made);
  return peer;
}

bool SoftFabric::IsLocal(const DeviceAddress& address) { return LocalDevices::Get().Has(address); }

// NOLINTNEXTLINE(performance-unnecessary-value-param): it is moved into the map.
std::shared_ptr<Peer> SoftFabric::AddPeer(std::shared_ptr<Peer> peer) {
  std::lock_guard<std::mutex> lock(peers_mutex_);
  return peers_.try_emplace(peer->address(), std::move(peer)).first->second;
}

void SoftFabric::LoseDevice(const DeviceAddress& address) {
  const std::shared_ptr<Peer> peer = FindPeer(address);
  if (peer == nullptr) return;
  peer->SetGone();
  LosePeer(*peer);
}

void SoftFabric::LosePeer(const Peer& peer) {
  {
    std::lock_guard<std::mutex> lock(peers_mutex_);
    auto found = peers_.find(peer.address());
    if (found != peers_.end() && found->second.get() == &peer) peers_.erase(found);
  }
  objects_.ForEachCq([&](CompletionQueue& cq) { cq.LosePeer(peer); });
}

void SoftFabric::AnnounceArena(std::shared_ptr<const SharedArena> arena) {
  if (wire_ == nullptr) return;
  wire_->AnnounceArena(std::move(arena));
  state_.engine().Wake();
}

void SoftFabric::WithdrawArena(uint32_t id) {
  if (wire_ == nullptr) return;
  wire_->WithdrawArena(id);
  state_.engine().Wake();
}

void SoftFabric::ReleaseArena(Peer& peer, uint32_t id) {
  const SharedRegion region = peer.WithdrawArena(id);
  // Copies run under a CQ's lock: once each was free, the mapping can go.
  objects_.ForEachCq([](CompletionQueue&) {});
}

std::vector<std::shared_ptr<const SharedArena>> SoftFabric::SharedArenas() {
  return objects_.arenas().All();
}

// SoftFabric: connecting queue pairs.

void SoftFabric::ConnectByTcp(const ConnectRequest& request, const absl::Status& why) {
  if (tcp_ == nullptr) {
    FinishConnect(request, nullptr, 0);
    request.NotFound(why);
    return;
  }
  tcp_->Connect(request);
  // A peer behind a firewall answers only once its own QP is connected, so nobody may wait for it.
  request.Found();
  state_.engine().Wake();
}

void SoftFabric::Connect(const ConnectRequest& request) {
  std::shared_ptr<SoftFabric> target = FindLocal(request.address);
  if (target == nullptr) {
    if (wire_ == nullptr) {
      ConnectByTcp(request, absl::UnavailableError("no device of this process has that address"));
      return;
    }
    wire_->Connect(request);
    state_.engine().Wake();
    return;
  }
  const absl::StatusOr<std::shared_ptr<Peer>> peer = PeerOf(*target);
  const absl::StatusOr<std::shared_ptr<Peer>> self = target->PeerOf(*this);
  if (!peer.ok() || !self.ok()) {
    FinishConnect(request, nullptr, 0);
    request.NotFound(peer.ok() ? self.status() : peer.status());
    return;
  }
  const std::optional<uint64_t> receive_cq = target->ReceiveCqOf(request.remote_qpn);
  NewLane lane =
      FinishConnect(request, receive_cq.has_value() ? *peer : nullptr, receive_cq.value_or(0));
  request.Found();
  if (lane.memory == nullptr) return;
  if (!target->AcceptLane(*self, lane.send_cq_index, *receive_cq, lane.id, lane.memory)) {
    FailLane(**peer, lane.id);
  }
}

void SoftFabric::Forget(const ConnectRequest& request) {
  if (wire_ == nullptr && tcp_ == nullptr) return;
  if (wire_ != nullptr) wire_->Forget(request);
  if (tcp_ != nullptr) tcp_->Forget(request);
  state_.engine().Wake();
}

std::optional<uint64_t> SoftFabric::SendCqOf(uint32_t qpn) {
  std::optional<uint64_t> id;
  objects_.WithQp(qpn, [&](QueuePair& qp) { id = qp.send_side().id(); });
  return id;
}

std::optional<uint64_t> SoftFabric::ReceiveCqOf(uint32_t qpn) {
  std::optional<uint64_t> id;
  objects_.WithQp(qpn, [&](QueuePair& qp) { id = qp.receive_side().id(); });
  return id;
}

SoftFabric::NewLane SoftFabric::FinishConnect(const ConnectRequest& request,
                                              const std::shared_ptr<Peer>& peer,
                                              uint64_t receive_cq) {
  NewLane made;
  objects_.WithQp(request.qpn,
                  [&](QueuePair& qp) { made = Attach(qp, request, peer, receive_cq); });
  return made;
}

SoftFabric::NewLane SoftFabric::Attach(QueuePair& qp, const ConnectRequest& request,
                                       const std::shared_ptr<Peer>& peer, uint64_t receive_cq) {
  auto& cq = static_cast<CompletionQueue&>(qp.send_side());
  std::lock_guard<SpinLock> cq_lock(cq.lock());
  // The QP may have been reset, and connected elsewhere, in the meantime.
  if (!qp.CanReceive() || !qp.IsConnectedTo(request.address, request.remote_qpn) ||
      qp.send_queue().lane() != nullptr) {
    return {};
  }
  CompletionWriter writer(cq);
  NewLane made;
  OutLane* lane = peer != nullptr ? cq.FindOutLane(*peer, receive_cq) : nullptr;
  if (lane == nullptr && peer != nullptr) {
    made = MakeLane(cq, peer, receive_cq);
    lane = cq.FindOutLane(*peer, receive_cq);
  }
  if (lane == nullptr) {
    qp.send_queue().LoseTarget(writer);
  } else {
    lane->AddUser(qp.qp_num, qp.send_queue());
    qp.send_queue().Attach(lane);
    qp.send_queue().Resume(writer);
  }
  writer.Finish();
  return made;
}

SoftFabric::NewLane SoftFabric::MakeLane(CompletionQueue& cq, const std::shared_ptr<Peer>& peer,
                                         uint64_t receive_cq) {
  if (!peer->shares_memory()) {
    const std::shared_ptr<LanePair> pair = cq.FindPair(*peer, receive_cq);
    if (pair == nullptr || pair->out_lane() != nullptr) return {};
    cq.AddOutLane(
        std::make_unique<OutLane>(cq, peer, receive_cq, next_lane_id_++, pair->out_memory(), pair));
    return {};
  }
  const LaneGeometry geometry = LaneGeometryOf(state_.options());
  absl::StatusOr<SharedRegion> region =
      peer->in_process() ? SharedRegion::Anonymous(BytesOf(geometry))
                         : SharedRegion::Create("verbena-lane", BytesOf(geometry));
  if (!region.ok()) {
    VERBENA_LOG_THROTTLED(
        no_memory_, kError, state_.Now(),
        fmt::format("{} has no memory for a lane: {}", state_.name(), region.status().ToString()),
        {{"device", state_.name()}});
    return {};
  }
  NewLane lane{.memory = std::make_shared<LaneMemory>(*std::move(region), geometry),
               .id = next_lane_id_++,
               .send_cq_index = cq.handle};
  cq.AddOutLane(std::make_unique<OutLane>(cq, peer, receive_cq, lane.id, lane.memory));
  return lane;
}

// SoftFabric: the lanes of CQs.

bool SoftFabric::AcceptLane(std::shared_ptr<Peer> peer, uint32_t send_cq_index, uint64_t receive_cq,
                            uint64_t id, std::shared_ptr<LaneMemory> memory) {
  bool accepted = false;
  objects_.WithCq(receive_cq, [&](CompletionQueue& cq) {
    std::lock_guard<SpinLock> lock(cq.lock());
    accepted = cq.AddInLane(
        std::make_unique<InLane>(std::move(peer), send_cq_index, id, std::move(memory)));
    // Requests that were written before nobody could ring for.
    if (accepted && cq.unpolled()) cq.WakeEngine();
  });
  return accepted;
}

void SoftFabric::RemoveLane(const Peer& peer, uint64_t id) {
  objects_.ForEachCq([&](CompletionQueue& cq) { cq.CloseInLane(peer, id); });
}

void SoftFabric::FailLane(const Peer& peer, uint64_t id) {
  objects_.ForEachCq([&](CompletionQueue& cq) { cq.LoseOutLane(peer, id); });
}

bool SoftFabric::HasCq(uint64_t id) {
  return objects_.WithCq(id, [](CompletionQueue&) {});
}

absl::StatusOr<std::shared_ptr<LanePair>> SoftFabric::OpenLanePair(
    uint64_t ours, uint64_t theirs, std::shared_ptr<Peer> peer, UniqueFd socket,
    const LaneGeometry& geometry, const std::shared_ptr<const void>& share, int engine_epoll) {
  std::shared_ptr<LaneMemory> memory[2];
  const LaneGeometry geometries[2] = {TcpLaneGeometryOf(state_.options()), geometry};
  for (int i = 0; i < 2; ++i) {
    VERBENA_ASSIGN_OR_RETURN(SharedRegion region, SharedRegion::Anonymous(BytesOf(geometries[i])));
    memory[i] = std::make_shared<LaneMemory>(std::move(region), geometries[i], share);
  }
  auto pair = std::make_shared<LanePair>(std::move(socket), std::move(peer), theirs,
                                         std::move(memory[0]), std::move(memory[1]));
  absl::Status status = absl::NotFoundError("the CQ is gone");
  objects_.WithCq(ours, [&](CompletionQueue& cq) {
    std::lock_guard<SpinLock> lock(cq.lock());
    status = cq.AddPair(pair, next_lane_id_++, engine_epoll);
  });
  VERBENA_RETURN_IF_ERROR(status);
  return pair;
}

void SoftFabric::ServePairs(uint64_t cq) {
  objects_.WithCq(cq, [](CompletionQueue& found) { found.ServePairs(); });
}

void SoftFabric::SweepLanes() {
  objects_.ForEachCq([](CompletionQueue& cq) { cq.SweepLanes(); });
}

void SoftFabric::CloseLanes(CompletionQueue& cq) {
  std::vector<std::unique_ptr<OutLane>> lanes;
  {
    std::lock_guard<SpinLock> lock(cq.lock());
    lanes = cq.CloseLanes();
  }
  for (const std::unique_ptr<OutLane>& lane : lanes) {
    if (lane->failed()) continue;
    const DeviceAddress& address = lane->peer().address();
    std::shared_ptr<SoftFabric> target = FindLocal(address);
    if (target != nullptr) {
      const std::shared_ptr<Peer> self = target->FindPeer(state_.address());
      if (self != nullptr) target->RemoveLane(*self, lane->id());
    } else if (wire_ != nullptr) {
      wire_->CloseLane(address, lane->id());
      state_.engine().Wake();
    }
  }
}

}  // namespace verbena::internal::soft
