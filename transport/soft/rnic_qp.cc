// Rnic: creating, connecting and destroying queue pairs.

#include <algorithm>
#include <cerrno>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/soft/local_devices.h"
#include "verbena/transport/soft/rnic.h"
#include "verbena/transport/soft/two_locks.h"

namespace verbena::internal::soft {

absl::Status Rnic::CheckQpInit(const ibv_pd* pd, const ibv_qp_init_attr& init) const {
  if (init.qp_type != IBV_QPT_RC) {
    return ErrnoStatus(EOPNOTSUPP, "ibv_create_qp: only reliable connected QPs exist here");
  }
  const ibv_qp_cap& cap = init.cap;
  const auto max_wr = static_cast<uint32_t>(attributes_.max_qp_wr);
  if (!pds_.contains(pd) || !cqs_.contains(init.send_cq) || !cqs_.contains(init.recv_cq) ||
      (init.srq != nullptr && !srqs_.contains(init.srq))) {
    return ErrnoStatus(EINVAL, "ibv_create_qp: its PD, CQ or SRQ is not of this device");
  }
  const auto max_sge = static_cast<uint32_t>(attributes_.max_sge);
  if (cap.max_send_wr > max_wr || cap.max_recv_wr > max_wr || cap.max_send_sge > max_sge ||
      cap.max_recv_sge > max_sge || cap.max_inline_data > capabilities_.max_inline_bytes) {
    return ErrnoStatus(
        EINVAL, fmt::format("ibv_create_qp(max_send_wr={}, max_recv_wr={}, max_send_sge={}, "
                            "max_recv_sge={}, max_inline_data={})",
                            cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge,
                            cap.max_inline_data));
  }
  return absl::OkStatus();
}

absl::StatusOr<ibv_qp*> Rnic::CreateQp(ibv_pd* pd, ibv_qp_init_attr& init) {
  std::lock_guard<std::mutex> lock(mutex_);
  VERBENA_RETURN_IF_ERROR(CheckQpInit(pd, init));
  if (free_qpns_.empty()) return ErrnoStatus(ENOMEM, "ibv_create_qp: max_qp");
  if (init.srq != nullptr) init.cap.max_recv_wr = init.cap.max_recv_sge = 0;
  SharedRegion inline_data;
  if (const size_t bytes = SendQueue::InlineBytes(init.cap); bytes != 0) {
    VERBENA_ASSIGN_OR_RETURN(SharedRegion region, SharedRegion::Anonymous(bytes));
    inline_data = std::move(region);
  }
  const uint32_t qpn = free_qpns_.front();
  free_qpns_.pop_front();
  const QpIdentity identity{++last_qp_identity_};
  auto qp = std::make_unique<QueuePair>(*this, pd, init, qpn, identity, std::move(inline_data));
  ++pds_[pd]->users;
  ++qp->send_side().users();
  ++qp->receive_side().users();
  if (init.srq != nullptr) ++qp->shared_receives()->users();
  QpSlot& slot = slots_[qpn & (kMaxQueuePairs - 1)];
  slot.qp.store(qp.get(), std::memory_order_relaxed);
  slot.receive_cq.store(&qp->receive_side(), std::memory_order_release);
  ibv_qp* raw = qp.get();
  qps_.emplace(qpn, std::move(qp));
  return raw;
}

absl::Status Rnic::DestroyQp(ibv_qp* raw) {
  std::unique_ptr<QueuePair> qp;
  const uint32_t qpn = raw->qp_num;
  QpSlot& slot = slots_[qpn & (kMaxQueuePairs - 1)];
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = qps_.find(qpn);
    if (found == qps_.end() || found->second.get() != raw) {
      return ErrnoStatus(EINVAL, "ibv_destroy_qp: the QP is not an object of this device");
    }
    qp = std::move(found->second);
    qps_.erase(found);
  }
  bool connecting = false;
  // No message finds it from here on; whoever has found it holds one of these locks.
  slot.receive_cq.store(nullptr, std::memory_order_release);
  {
    TwoLocks locks(*qp);
    CloseToPeer(*qp);
    OutLane* const lane = qp->send_queue().lane();
    if (lane != nullptr) lane->RemoveQp(*qp);
    connecting = lane == nullptr && qp->peer_address() != DeviceAddress{};
    qp->send_queue().Reset();
    windows_.InvalidateAll(qpn);
    for (CompletionQueue* cq : {&qp->send_side(), &qp->receive_side()}) {
      cq->ForgetCompletions(*qp, /*drop=*/false);
      cq->CancelAttention(*qp);
    }
    slot.qp.store(nullptr, std::memory_order_relaxed);
  }
  if (connecting && tcp_ != nullptr) {
    tcp_->Forget(
        {.qpn = qpn, .address = qp->peer_address(), .remote_qpn = qp->attributes().dest_qp_num});
    engine_.Wake();
  }
  async_events_.Forget(raw);
  --qp->send_side().users();
  --qp->receive_side().users();
  if (qp->srq != nullptr) --qp->shared_receives()->users();
  std::lock_guard<std::mutex> lock(mutex_);
  --pds_[qp->pd]->users;
  // 24 bits: the slot's index, and above it a generation from 1 to 1023.
  uint32_t next = (qpn + kMaxQueuePairs) & 0xffffff;
  if (next < kMaxQueuePairs) next += kMaxQueuePairs;
  free_qpns_.push_back(next);
  return absl::OkStatus();
}

absl::StatusOr<ibv_qp_attr> Rnic::QueryQp(ibv_qp* raw) {
  auto* qp = static_cast<QueuePair*>(raw);
  TwoLocks locks(*qp);
  ibv_qp_attr attributes = qp->attributes();
  attributes.qp_state = qp->current_state();
  attributes.cur_qp_state = attributes.qp_state;
  qp->state = attributes.qp_state;
  return attributes;
}

absl::Status Rnic::ModifyQp(ibv_qp* raw, const ibv_qp_attr& attributes, int mask) {
  auto* qp = static_cast<QueuePair*>(raw);
  {
    TwoLocks locks(*qp);
    const ibv_qp_state now = qp->current_state();
    int error = CheckWithinProfile(profile(), attributes, mask);
    if (error == 0) error = qp->CheckModify(attributes, mask);
    if (error != 0) {
      return ErrnoStatus(
          error, fmt::format("ibv_modify_qp(QPN {:#x}, state {} to {}, mask {:#x})", raw->qp_num,
                             static_cast<int>(now), static_cast<int>(attributes.qp_state), mask));
    }
    const bool to_state = (mask & IBV_QP_STATE) != 0;
    if (to_state && attributes.qp_state == IBV_QPS_ERR) {
      qp->EnterError();
      return absl::OkStatus();
    }
    qp->Modify(attributes, mask);
    if (!to_state || attributes.qp_state == IBV_QPS_RTS) {
      CompletionWriter writer(qp->send_side());
      qp->send_queue().Resume(writer);
      writer.Finish();
    }
  }
  if ((mask & IBV_QP_STATE) != 0 && attributes.qp_state == IBV_QPS_RTR) {
    Connect({.qpn = raw->qp_num,
             .address = AddressOf(attributes.ah_attr),
             .remote_qpn = attributes.dest_qp_num & 0xffffff});
  }
  return absl::OkStatus();
}

std::shared_ptr<Peer> Rnic::PeerOf(Rnic& other) {
  {
    std::lock_guard<std::mutex> lock(peers_mutex_);
    auto found = peers_.find(other.address_);
    if (found != peers_.end()) return found->second;
  }
  return AddPeer(
      std::make_shared<Peer>(PeerParts{.address = other.address_,
                                       .controls = other.share_->control(),
                                       .tables = &other.share_->tables(),
                                       .doorbell = UniqueFd(other.engine_.DuplicateDoorbell()),
                                       .keep_alive = other.share_,
                                       .in_process = true}));
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): it is moved into the map.
std::shared_ptr<Peer> Rnic::AddPeer(std::shared_ptr<Peer> peer) {
  std::lock_guard<std::mutex> lock(peers_mutex_);
  return peers_.try_emplace(peer->address(), std::move(peer)).first->second;
}

void Rnic::LoseDevice(const DeviceAddress& address) {
  std::shared_ptr<Peer> peer;
  {
    std::lock_guard<std::mutex> lock(peers_mutex_);
    auto found = peers_.find(address);
    if (found == peers_.end()) return;
    peer = found->second;
  }
  LosePeer(*peer);
}

void Rnic::LosePeer(const Peer& peer) {
  {
    std::lock_guard<std::mutex> lock(peers_mutex_);
    auto found = peers_.find(peer.address());
    if (found != peers_.end() && found->second.get() == &peer) peers_.erase(found);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [_, cq] : cqs_) {
    std::lock_guard<SpinLock> cq_lock(cq->lock());
    CompletionWriter writer(*cq);
    cq->ClosePairs(&peer, writer);
    for (auto& lane : cq->out_lanes()) {
      if (&lane->peer() == &peer) lane->Lose(writer);
    }
    cq->in_lanes().ForEach([&](InLane& lane) {
      if (&lane.peer() == &peer) lane.Orphan();
    });
    writer.Finish();
  }
}

std::shared_ptr<Rnic> Rnic::FindLocal(const DeviceAddress& address) {
  std::shared_ptr<Rnic> device = LocalDevices::Get().Find(address);
  if (device == nullptr || device.get() == this) return device;
  return tcp_only() || device->tcp_only() ? nullptr : device;
}

DeviceAddress Rnic::AddressOf(const ibv_ah_attr& vector) const {
  DeviceAddress address{.gid = vector.grh.dgid, .lid = vector.dlid};
  // Without a GID, a LID names a device of our own subnet: of this host.
  if (address_.lid != 0 && vector.is_global == 0) address.gid = address_.gid;
  return address;
}

void Rnic::ConnectByTcp(const ConnectRequest& request) {
  if (tcp_ == nullptr) {
    FinishConnect(request, nullptr, 0);
    return;
  }
  tcp_->Connect(request);
  engine_.Wake();
}

void Rnic::Connect(const ConnectRequest& request) {
  std::shared_ptr<Rnic> target = FindLocal(request.address);
  if (target == nullptr) {
    if (wire_.fd() < 0) {
      ConnectByTcp(request);
      return;
    }
    wire_.Connect(request);
    engine_.Wake();
    return;
  }
  const std::optional<uint64_t> receive_cq = target->ReceiveCqOf(request.remote_qpn);
  std::shared_ptr<Peer> peer = receive_cq.has_value() ? PeerOf(*target) : nullptr;
  NewLane lane = FinishConnect(request, peer, receive_cq.value_or(0));
  if (lane.memory == nullptr) return;
  if (!target->AcceptLane(target->PeerOf(*this), lane.send_cq_index, *receive_cq, lane.id,
                          lane.memory)) {
    FailLane(*peer, lane.id);
  }
}

Rnic::NewLane Rnic::FinishConnect(const ConnectRequest& request, const std::shared_ptr<Peer>& peer,
                                  uint64_t receive_cq) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = qps_.find(request.qpn);
  if (found == qps_.end()) return {};
  QueuePair& qp = *found->second;
  CompletionQueue& cq = qp.send_side();
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
    lane->AddQp(qp);
    qp.send_queue().Attach(lane);
    qp.send_queue().Resume(writer);
  }
  writer.Finish();
  return made;
}

Rnic::NewLane Rnic::MakeLane(CompletionQueue& cq, const std::shared_ptr<Peer>& peer,
                             uint64_t receive_cq) {
  if (!peer->shares_memory()) {
    const std::shared_ptr<LanePair> pair = cq.FindPair(*peer, receive_cq);
    if (pair == nullptr || pair->out_lane() != nullptr) return {};
    cq.SweepOutLanes();
    cq.AddOutLane(
        std::make_unique<OutLane>(cq, peer, receive_cq, next_lane_id_++, pair->out_memory(), pair));
    return {};
  }
  const LaneGeometry geometry = lane_geometry();
  absl::StatusOr<SharedRegion> region =
      peer->in_process() ? SharedRegion::Anonymous(BytesOf(geometry))
                         : SharedRegion::Create("verbena-lane", BytesOf(geometry));
  if (!region.ok()) {
    Log(LogLevel::kError,
        fmt::format("{} has no memory for a lane: {}", name(), region.status().ToString()));
    return {};
  }
  NewLane lane{.memory = std::make_shared<LaneMemory>(*std::move(region), geometry),
               .id = next_lane_id_++,
               .send_cq_index = cq.handle};
  cq.SweepOutLanes();
  cq.AddOutLane(std::make_unique<OutLane>(cq, peer, receive_cq, lane.id, lane.memory));
  return lane;
}

std::optional<uint64_t> Rnic::ReceiveCqOf(uint32_t qpn) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = qps_.find(qpn);
  if (found == qps_.end()) return std::nullopt;
  return found->second->receive_side().id();
}

std::optional<uint64_t> Rnic::SendCqOf(uint32_t qpn) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = qps_.find(qpn);
  if (found == qps_.end()) return std::nullopt;
  return found->second->send_side().id();
}

bool Rnic::HasCq(uint64_t id) {
  std::lock_guard<std::mutex> lock(mutex_);
  return FindCq(id) != nullptr;
}

absl::StatusOr<std::shared_ptr<Peer>> Rnic::MakeTcpPeer(const DeviceAddress& address) {
  // Controls of nobody: they say for ever that the peer polls, so that nobody wakes it.
  auto controls = std::make_shared<SharedRegion>();
  VERBENA_ASSIGN_OR_RETURN(*controls,
                           SharedRegion::Anonymous(sizeof(CqControl) * kMaxCompletionQueues));
  return std::make_shared<Peer>(
      PeerParts{.address = address,
                .controls = reinterpret_cast<CqControl*>(controls->data()),
                .keep_alive = controls});
}

absl::StatusOr<std::shared_ptr<LanePair>> Rnic::OpenLanePair(
    uint64_t ours, uint64_t theirs, std::shared_ptr<Peer> peer, UniqueFd socket,
    const LaneGeometry& geometry, const std::shared_ptr<const void>& share, int engine_epoll) {
  std::shared_ptr<LaneMemory> memory[2];
  const LaneGeometry geometries[2] = {tcp_lane_geometry(), geometry};
  for (int i = 0; i < 2; ++i) {
    VERBENA_ASSIGN_OR_RETURN(SharedRegion region, SharedRegion::Anonymous(BytesOf(geometries[i])));
    memory[i] = std::make_shared<LaneMemory>(std::move(region), geometries[i], share);
  }
  auto pair = std::make_shared<LanePair>(std::move(socket), std::move(peer), theirs,
                                         std::move(memory[0]), std::move(memory[1]));
  std::lock_guard<std::mutex> lock(mutex_);
  CompletionQueue* cq = FindCq(ours);
  if (cq == nullptr) return absl::NotFoundError("the CQ is gone");
  std::lock_guard<SpinLock> cq_lock(cq->lock());
  VERBENA_RETURN_IF_ERROR(cq->AddPair(pair, next_lane_id_++, engine_epoll));
  return pair;
}

void Rnic::SweepLanes() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [_, cq] : cqs_) {
    std::lock_guard<SpinLock> cq_lock(cq->lock());
    cq->in_lanes().Sweep();
    cq->SweepOutLanes();
  }
}

CompletionQueue* Rnic::FindCq(uint64_t id) {
  for (auto& [_, cq] : cqs_) {
    if (cq->id() == id) return cq.get();
  }
  return nullptr;
}

bool Rnic::AcceptLane(std::shared_ptr<Peer> peer, uint32_t send_cq_index, uint64_t receive_cq,
                      uint64_t id, std::shared_ptr<LaneMemory> memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  CompletionQueue* cq = FindCq(receive_cq);
  if (cq == nullptr) return false;
  auto lane = std::make_unique<InLane>(std::move(peer), send_cq_index, id, std::move(memory));
  std::lock_guard<SpinLock> cq_lock(cq->lock());
  if (!cq->in_lanes().Add(std::move(lane))) return false;
  // Requests that were written before nobody could ring for.
  if (cq->unpolled()) WakeEngine(share_->control()[cq->handle]);
  return true;
}

void Rnic::RemoveLane(const Peer& peer, uint64_t id) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [_, cq] : cqs_) {
    std::lock_guard<SpinLock> cq_lock(cq->lock());
    cq->in_lanes().ForEach([&](InLane& lane) {
      if (&lane.peer() == &peer && lane.id() == id) lane.Orphan();
    });
  }
}

void Rnic::FailLane(const Peer& peer, uint64_t id) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [_, cq] : cqs_) {
    std::lock_guard<SpinLock> cq_lock(cq->lock());
    CompletionWriter writer(*cq);
    for (auto& lane : cq->out_lanes()) {
      if (&lane->peer() == &peer && lane->id() == id) lane->Lose(writer);
    }
    writer.Finish();
  }
}

void Rnic::CloseLanes(CompletionQueue& cq) {
  std::vector<std::unique_ptr<OutLane>> out_lanes;
  {
    std::lock_guard<SpinLock> lock(cq.lock());
    CompletionWriter writer(cq);
    cq.ClosePairs(nullptr, writer);
    cq.in_lanes().CloseAll();
    out_lanes.swap(cq.out_lanes());
  }
  for (auto& lane : out_lanes) {
    if (lane->failed()) continue;
    const DeviceAddress& address = lane->peer().address();
    std::shared_ptr<Rnic> target = FindLocal(address);
    if (target != nullptr) {
      target->RemoveLane(*target->PeerOf(*this), lane->id());
    } else {
      wire_.CloseLane(address, lane->id());
      engine_.Wake();
    }
  }
}

}  // namespace verbena::internal::soft
