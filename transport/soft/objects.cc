#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/soft/local_devices.h"
#include "verbena/transport/soft/rnic.h"
#include "verbena/transport/soft/two_locks.h"

namespace verbena::internal::soft {
namespace {

constexpr uint32_t kAccessMask = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                                 IBV_ACCESS_MW_BIND;
// Hints, which change nothing here.
constexpr uint32_t kAccessHints = IBV_ACCESS_HUGETLB | IBV_ACCESS_RELAXED_ORDERING;

// A peer that runs ends a chunk within microseconds. One that does not within this time is frozen.
constexpr auto kPatience = std::chrono::seconds(2);

// True when every page of the range is mapped: a registration of anything else fails, as pinning
// would.
bool IsMapped(const void* address, size_t bytes) {
  constexpr uintptr_t kPage = 4096;
  constexpr size_t kChunkPages = 4096;
  static thread_local unsigned char residency[kChunkPages];
  if (bytes > UINTPTR_MAX - reinterpret_cast<uintptr_t>(address)) return false;
  uintptr_t at = reinterpret_cast<uintptr_t>(address) & ~(kPage - 1);
  const uintptr_t end = reinterpret_cast<uintptr_t>(address) + bytes;
  while (at < end) {
    const size_t chunk = std::min<size_t>(end - at, kChunkPages * kPage);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): pages are found by arithmetic.
    if (mincore(reinterpret_cast<void*>(at), chunk, residency) != 0) return false;
    at += chunk;
  }
  return true;
}

}  // namespace

// Rnic: registered memory, when memory that peers could access may be used again, and memory that
// peers can map.

absl::Status Rnic::CheckRegion(const void* address, size_t bytes, uint32_t flags) {
  const std::string what = fmt::format("ibv_reg_mr({} bytes, access {:#x})", bytes, flags);
  const bool writable_remotely =
      (flags & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0;
  if ((flags & ~(kAccessMask | kAccessHints)) != 0 || bytes == 0 ||
      (writable_remotely && (flags & IBV_ACCESS_LOCAL_WRITE) == 0)) {
    return ErrnoStatus(EINVAL, what);
  }
  if ((flags & IBV_ACCESS_MW_BIND) != 0 && !state_.capabilities().memory_windows) {
    return ErrnoStatus(EOPNOTSUPP, what + ": this device has no memory windows");
  }
  return IsMapped(address, bytes) ? absl::OkStatus() : ErrnoStatus(EFAULT, what);
}

MemoryLocation Rnic::Locate(const void* address, size_t bytes) {
  MemoryLocation location{.address = reinterpret_cast<uint64_t>(address)};
  if (auto arena = arenas_.Find(location.address, bytes); arena != nullptr) {
    location.arena = arena->id;
    location.arena_offset = location.address - reinterpret_cast<uint64_t>(arena->region.data());
  }
  return location;
}

absl::StatusOr<ibv_mr*> Rnic::RegMr(ibv_pd* pd, void* address, size_t bytes, int access) {
  const uint32_t flags = static_cast<uint32_t>(access);
  VERBENA_RETURN_IF_ERROR(CheckRegion(address, bytes, flags));
  std::lock_guard<std::mutex> lock(mutex_);
  if (!pds_.contains(pd)) {
    return ErrnoStatus(EINVAL, "ibv_reg_mr: the PD is not an object of this device");
  }
  const std::optional<uint32_t> key =
      state_.memory().Register(pd->handle, Locate(address, bytes), bytes, flags & kAccessMask);
  if (!key.has_value()) return ErrnoStatus(ENOMEM, "ibv_reg_mr: all keys are in use");
  auto mr = std::make_unique<ibv_mr>();
  *mr = {.context = &state_.context(),
         .pd = pd,
         .addr = address,
         .length = bytes,
         .handle = *key >> 8,
         .lkey = *key,
         .rkey = *key};
  ++pds_[pd]->users;
  ibv_mr* raw = mr.get();
  mrs_.emplace(raw, std::move(mr));
  return raw;
}

absl::Status Rnic::ReregMr(ibv_mr* mr, ibv_pd* pd, void* address, size_t bytes, int access) {
  const uint32_t flags = static_cast<uint32_t>(access);
  VERBENA_RETURN_IF_ERROR(CheckRegion(address, bytes, flags));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!pds_.contains(pd)) {
      return ErrnoStatus(EINVAL, "ibv_rereg_mr: the PD is not an object of this device");
    }
  }
  VERBENA_RETURN_IF_ERROR(RevokeRegion(mr, "ibv_rereg_mr"));
  std::lock_guard<std::mutex> lock(mutex_);
  state_.memory().Publish(mr->lkey, pd->handle, Locate(address, bytes), bytes, flags & kAccessMask);
  --pds_[mr->pd]->users;
  ++pds_[pd]->users;
  mr->pd = pd;
  mr->addr = address;
  mr->length = bytes;
  return absl::OkStatus();
}

bool Rnic::AwaitCopies(std::vector<CopyUnderWay>& copies) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!AllOver(copies)) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    sched_yield();
  }
  return true;
}

absl::Status Rnic::RevokeRegion(ibv_mr* mr, const char* what) {
  std::vector<CopyUnderWay> copies;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!mrs_.contains(mr)) {
      return ErrnoStatus(EINVAL, fmt::format("{}: the MR is not an object of this device", what));
    }
    if (!state_.windows().RevokeRegion(mr->lkey)) {
      return ErrnoStatus(EBUSY, fmt::format("{}: memory windows are bound to the MR", what));
    }
    for (auto& [_, cq] : cqs_) {
      // Having had its lock also proves that no access of our own is still under way.
      std::lock_guard<SpinLock> cq_lock(cq->lock());
      cq->AddCopiesUnderWay(nullptr, /*key=*/0, copies);
    }
  }
  if (!AwaitCopies(copies)) {
    return ErrnoStatus(EBUSY, fmt::format("{}: a frozen peer of {} may still be in the "
                                          "middle of a copy; it can start no other one",
                                          what, state_.name()));
  }
  return absl::OkStatus();
}

absl::Status Rnic::DeregMr(ibv_mr* mr) {
  VERBENA_RETURN_IF_ERROR(RevokeRegion(mr, "ibv_dereg_mr"));
  std::lock_guard<std::mutex> lock(mutex_);
  state_.memory().Recycle(mr->lkey);
  --pds_[mr->pd]->users;
  mrs_.erase(mr);
  return absl::OkStatus();
}

absl::StatusOr<ibv_mw*> Rnic::AllocMw(ibv_pd* pd) {
  if (!state_.capabilities().memory_windows) {
    return ErrnoStatus(EOPNOTSUPP, "ibv_alloc_mw: this device has no memory windows");
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (!pds_.contains(pd)) {
    return ErrnoStatus(EINVAL, "ibv_alloc_mw: the PD is not an object of this device");
  }
  const std::optional<uint32_t> key = state_.windows().Allocate(pd->handle);
  if (!key.has_value()) return ErrnoStatus(ENOMEM, "ibv_alloc_mw: all keys are in use");
  auto mw = std::make_unique<ibv_mw>();
  *mw = {.context = &state_.context(),
         .pd = pd,
         .rkey = *key,
         .handle = *key >> 8,
         .type = IBV_MW_TYPE_2};
  ++pds_[pd]->users;
  ibv_mw* raw = mw.get();
  mws_.emplace(raw, std::move(mw));
  return raw;
}

absl::Status Rnic::DeallocMw(ibv_mw* mw) {
  std::vector<CopyUnderWay> copies;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!mws_.contains(mw)) {
      return ErrnoStatus(EINVAL, "ibv_dealloc_mw: the MW is not an object of this device");
    }
    const MemoryWindows::Last last = state_.windows().Unbind(mw->handle);
    if (auto found = qps_.find(last.qpn); found != qps_.end()) {
      CompletionQueue& cq = found->second->receive_side();
      // Having had its lock also proves that no access of our own is still under way.
      std::lock_guard<SpinLock> cq_lock(cq.lock());
      // Once the QP has left service, Quiesced tells.
      if (state_.tables().QpAt(last.qpn).qpn.load(std::memory_order_relaxed) == last.qpn) {
        found->second->AddCopiesUnderWay(last.key, copies);
      }
    }
  }
  if (!AwaitCopies(copies)) {
    return ErrnoStatus(EBUSY, fmt::format("ibv_dealloc_mw: a frozen peer of {} may still be in the "
                                          "middle of a copy; it can start no other one",
                                          state_.name()));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  state_.windows().Deallocate(mw->handle);
  --pds_[mw->pd]->users;
  mws_.erase(mw);
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> Rnic::AllocateShared(size_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("a shared arena of no bytes");
  VERBENA_ASSIGN_OR_RETURN(std::shared_ptr<const SharedArena> arena, arenas_.Allocate(bytes));
  wire_.AnnounceArena(arena);
  engine_.Wake();
  return arena->region.data();
}

absl::Status Rnic::FreeShared(std::byte* memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t start = reinterpret_cast<uint64_t>(memory);
  std::shared_ptr<const SharedArena> arena = arenas_.Find(start, 1);
  if (arena == nullptr || arena->region.data() != memory) {
    return absl::InvalidArgumentError("not the start of a shared arena of this device");
  }
  for (const auto& [mr, _] : mrs_) {
    const uint64_t address = reinterpret_cast<uint64_t>(mr->addr);
    if (address < start + arena->region.size() && start < address + mr->length) {
      return ErrnoStatus(EBUSY, "freeing a shared arena with registered memory");
    }
  }
  arenas_.Remove(memory);
  // In this order: a peer that hears of the number's next owner has let go of this arena.
  wire_.WithdrawArena(arena->id);
  arenas_.Recycle(arena->id);
  engine_.Wake();
  return absl::OkStatus();
}

void Rnic::WithdrawArena(Peer& peer, uint32_t id) {
  const SharedRegion region = peer.WithdrawArena(id);
  // Copies run under a CQ's lock: once each was free, the mapping can go.
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [_, cq] : cqs_) std::lock_guard<SpinLock> drained(cq->lock());
}

// Rnic: creating, connecting and destroying queue pairs.

absl::Status Rnic::CheckQpInit(const ibv_pd* pd, const ibv_qp_init_attr& init) const {
  if (init.qp_type != IBV_QPT_RC) {
    return ErrnoStatus(EOPNOTSUPP, "ibv_create_qp: only reliable connected QPs exist here");
  }
  const ibv_qp_cap& cap = init.cap;
  const auto max_wr = static_cast<uint32_t>(state_.attributes().max_qp_wr);
  if (!pds_.contains(pd) || !cqs_.contains(init.send_cq) || !cqs_.contains(init.recv_cq) ||
      (init.srq != nullptr && !srqs_.contains(init.srq))) {
    return ErrnoStatus(EINVAL, "ibv_create_qp: its PD, CQ or SRQ is not of this device");
  }
  const auto max_sge = static_cast<uint32_t>(state_.attributes().max_sge);
  if (cap.max_send_wr > max_wr || cap.max_recv_wr > max_wr || cap.max_send_sge > max_sge ||
      cap.max_recv_sge > max_sge || cap.max_inline_data > state_.capabilities().max_inline_bytes) {
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
  auto qp = std::make_unique<QueuePair>(state_, pd, init, qpn, identity, std::move(inline_data));
  ++pds_[pd]->users;
  ++qp->send_side().users();
  ++qp->receive_side().users();
  if (init.srq != nullptr) ++qp->shared_receives()->users();
  state_.AddReceiver(*qp);
  ibv_qp* raw = qp.get();
  qps_.emplace(qpn, std::move(qp));
  return raw;
}

absl::Status Rnic::DestroyQp(ibv_qp* raw) {
  std::unique_ptr<QueuePair> qp;
  const uint32_t qpn = raw->qp_num;
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
  state_.HideReceiver(*qp);
  {
    TwoLocks locks(*qp);
    qp->CloseToPeer();
    OutLane* const lane = qp->send_queue().lane();
    if (lane != nullptr) lane->RemoveQp(*qp);
    connecting = lane == nullptr && qp->peer_address() != DeviceAddress{};
    qp->send_queue().Reset();
    state_.windows().InvalidateAll(qpn);
    for (CompletionQueue* cq : {&qp->send_side(), &qp->receive_side()}) {
      cq->ForgetCompletions(*qp, /*drop=*/false);
      cq->CancelAttention(*qp);
    }
    state_.RemoveReceiver(*qp);
  }
  if (connecting && tcp_ != nullptr) {
    tcp_->Forget(
        {.qpn = qpn, .address = qp->peer_address(), .remote_qpn = qp->attributes().dest_qp_num});
    engine_.Wake();
  }
  state_.async_events().Forget(raw);
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
    int error = CheckWithinProfile(*state_.options().profile, attributes, mask);
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
             .address = state_.AddressOf(attributes.ah_attr),
             .remote_qpn = attributes.dest_qp_num & 0xffffff});
  }
  return absl::OkStatus();
}

std::shared_ptr<Peer> Rnic::PeerOf(Rnic& other) {
  {
    std::lock_guard<std::mutex> lock(peers_mutex_);
    auto found = peers_.find(other.state_.address());
    if (found != peers_.end()) return found->second;
  }
  return AddPeer(
      std::make_shared<Peer>(PeerParts{.address = other.state_.address(),
                                       .controls = other.state_.share()->control(),
                                       .tables = &other.state_.tables(),
                                       .doorbell = UniqueFd(other.engine_.DuplicateDoorbell()),
                                       .keep_alive = other.state_.share(),
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
  const LaneGeometry geometry = LaneGeometryOf(state_.options());
  absl::StatusOr<SharedRegion> region =
      peer->in_process() ? SharedRegion::Anonymous(BytesOf(geometry))
                         : SharedRegion::Create("verbena-lane", BytesOf(geometry));
  if (!region.ok()) {
    Log(LogLevel::kError,
        fmt::format("{} has no memory for a lane: {}", state_.name(), region.status().ToString()));
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
  const LaneGeometry geometries[2] = {TcpLaneGeometryOf(state_.options()), geometry};
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
  if (cq->unpolled()) state_.WakeEngine(state_.control(cq->handle));
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
