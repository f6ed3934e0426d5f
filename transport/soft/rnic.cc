#include "verbena/transport/soft/rnic.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/soft/local_devices.h"
#include "verbena/transport/soft/tcp_source.h"

namespace verbena::internal::soft {
namespace {

absl::Status CheckRing(const char* option, uint32_t bytes, const SoftDeviceOptions& options) {
  constexpr uint32_t kSmallest = std::bit_ceil(4 * (kMaxFragmentBytes + uint32_t{kLineBytes}));
  const uint32_t most = options.tcp.has_value() ? TcpGreeting::kMaxRingLines * uint32_t{kLineBytes}
                                                : std::bit_floor(~uint32_t{0});
  if (std::has_single_bit(bytes) && bytes >= kSmallest && bytes <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{} is {}, but must be a power of two from {} to {}{}", option, bytes, kSmallest,
                  most, options.tcp.has_value() ? " with a TCP wire" : ""));
}

template <typename Map, typename Pointer>
absl::Status NotOurs(const Map& map, Pointer object, const char* what) {
  return map.contains(object)
             ? absl::OkStatus()
             : ErrnoStatus(EINVAL, fmt::format("{} is not an object of this device", what));
}

}  // namespace

absl::StatusOr<std::shared_ptr<Rnic>> Rnic::Create(const SoftDeviceOptions& options) {
  VERBENA_RETURN_IF_ERROR(CheckOptions(options));
  VERBENA_ASSIGN_OR_RETURN(std::shared_ptr<DeviceShare> share, DeviceShare::Create());
  TcpWireListener listener;
  if (options.tcp.has_value()) {
    VERBENA_ASSIGN_OR_RETURN(listener, ListenTcp(options.tcp->address, options.tcp->port));
  } else {
    listener.address.gid =
        options.gid.has_value() ? *options.gid : NewGid(/*predictable=*/!options.engine_thread);
  }
  // Devices of one host may share an IP address, but no GUID.
  const ibv_gid guid =
      options.tcp.has_value() ? NewGid(/*predictable=*/false) : listener.address.gid;
  std::shared_ptr<Rnic> rnic(
      new Rnic(options, std::move(share), listener.address, guid.global.interface_id));
  if (rnic->state_.async_events().fd() < 0 ||
      (options.engine_thread && rnic->engine_.doorbell_fd() < 0)) {
    return ErrnoStatus(EMFILE, "creating the descriptors of a soft device");
  }
  if (options.engine_thread && options.shared_memory) {
    VERBENA_RETURN_IF_ERROR(rnic->wire_.Start());
  }
  if (options.tcp.has_value()) {
    // A host often has several IPv6 addresses, of which the kernel may choose another one.
    const bool from_own = !listener.everywhere || (!IsIpv4Gid(listener.address.gid) &&
                                                   !IsLoopbackGid(listener.address.gid));
    rnic->tcp_ = std::make_unique<TcpWire>(*rnic, std::move(listener),
                                           /*dial_from_own_address=*/from_own);
    VERBENA_RETURN_IF_ERROR(rnic->tcp_->Start());
  }
  LocalDevices::Get().Add(rnic->state_.address(), rnic);
  std::vector<Engine::Wire*> wires = {&rnic->wire_};
  if (rnic->tcp_ != nullptr) wires.push_back(rnic->tcp_.get());
  rnic->engine_.Start(*rnic, std::move(wires));
  return rnic;
}

absl::Status Rnic::CheckOptions(const SoftDeviceOptions& options) {
  VERBENA_RETURN_IF_ERROR(CheckRing("request_ring_bytes", options.request_ring_bytes, options));
  VERBENA_RETURN_IF_ERROR(CheckRing("answer_ring_bytes", options.answer_ring_bytes, options));
  if (options.tcp.has_value()) {
    VERBENA_RETURN_IF_ERROR(CheckRing("least_ring_bytes", options.tcp->least_ring_bytes, options));
  }
  if (options.max_queue_pairs == 0 || options.max_queue_pairs > kMaxQueuePairs) {
    return absl::InvalidArgumentError(fmt::format("max_queue_pairs is {}, but must be from 1 to {}",
                                                  options.max_queue_pairs, kMaxQueuePairs));
  }
  constexpr std::chrono::seconds kLongest = std::chrono::hours(1);
  if (options.tcp.has_value() && (options.tcp->silence_limit < std::chrono::seconds(1) ||
                                  options.tcp->silence_limit > kLongest)) {
    return absl::InvalidArgumentError(
        fmt::format("silence_limit is {} s, but must be from 1 to {} s",
                    options.tcp->silence_limit.count(), kLongest.count()));
  }
  // One source may have one of two connections with rings like ours.
  if (options.tcp.has_value()) {
    const size_t least = 4 * BytesOf(TcpLaneGeometryOf(options));
    if (options.tcp->lane_bytes < least) {
      return absl::InvalidArgumentError(
          fmt::format("lane_bytes is {}, but must be at least {}: two connections' rings",
                      options.tcp->lane_bytes, least));
    }
  }
  return absl::OkStatus();
}

Rnic::Rnic(const SoftDeviceOptions& options, std::shared_ptr<DeviceShare> share,
           const DeviceAddress& address, uint64_t guid)
    : engine_(options.clock != nullptr ? *options.clock : Clock::Real(), options.engine_thread,
              options.unpolled_after),
      state_(options, std::move(share), address, guid, engine_),
      wire_(*this) {
  // QPN 0 and 1 mean something in verbs; the generation above the slot's index is never 0.
  for (uint32_t slot = 0; slot < options.max_queue_pairs; ++slot)
    free_qpns_.push_back(kMaxQueuePairs | slot);
  for (uint32_t index = 0; index < kMaxCompletionQueues; ++index) free_cq_indices_.push_back(index);
  FillContext();
}

Rnic::~Rnic() = default;

void Rnic::Shutdown() {
  LocalDevices::Get().Remove(state_.address());
  engine_.Stop();
  for (const std::shared_ptr<Rnic>& other : LocalDevices::Get().All())
    other->LoseDevice(state_.address());
  // Its peers learn of it now, even if somebody of this process still looks at us.
  tcp_.reset();
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t leaked =
      pds_.size() + mrs_.size() + mws_.size() + channels_.size() + cqs_.size() + qps_.size();
  if (leaked == 0) return;
  Log(LogLevel::kError,
      fmt::format("{} is destroyed with {} objects alive", state_.name(), leaked));
}

void Rnic::FillContext() {
  ibv_context& context = state_.context();
  context.ops.poll_cq = [](ibv_cq* cq, int room, ibv_wc* out) {
    return static_cast<CompletionQueue*>(cq)->Poll(room, out);
  };
  context.ops.req_notify_cq = [](ibv_cq* cq, int solicited_only) {
    return static_cast<CompletionQueue*>(cq)->Arm(solicited_only != 0);
  };
  context.ops.post_send = [](ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
    return static_cast<QueuePair*>(qp)->send_queue().Post(wr, bad_wr);
  };
  context.ops.post_recv = [](ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
    return static_cast<QueuePair*>(qp)->responder().Post(wr, bad_wr);
  };
  context.ops.post_srq_recv = [](ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
    return static_cast<SharedReceiveQueue*>(srq)->Post(wr, bad_wr);
  };
}

absl::StatusOr<ibv_port_attr> Rnic::QueryPort(uint8_t port) {
  if (port != 1) return ErrnoStatus(EINVAL, fmt::format("port {} of {}", port, state_.name()));
  return state_.port_attributes();
}

absl::StatusOr<ibv_gid> Rnic::QueryGid(uint8_t port, int index) {
  if (port != 1 || index != 0) {
    return ErrnoStatus(EINVAL, fmt::format("GID {} of port {} of {}", index, port, state_.name()));
  }
  return state_.address().gid;
}

absl::StatusOr<ibv_pd*> Rnic::AllocPd() {
  std::lock_guard<std::mutex> lock(mutex_);
  auto pd = std::make_unique<ProtectionDomain>();
  pd->context = &state_.context();
  pd->handle = next_pd_handle_++;
  ibv_pd* raw = pd.get();
  pds_.emplace(raw, std::move(pd));
  return raw;
}

absl::Status Rnic::DeallocPd(ibv_pd* pd) {
  std::lock_guard<std::mutex> lock(mutex_);
  VERBENA_RETURN_IF_ERROR(NotOurs(pds_, pd, "the PD"));
  if (pds_[pd]->users.load() != 0) return ErrnoStatus(EBUSY, "ibv_dealloc_pd");
  pds_.erase(pd);
  return absl::OkStatus();
}

absl::StatusOr<ibv_comp_channel*> Rnic::CreateCompChannel() {
  auto channel = std::make_unique<CompletionChannel>(&state_.context());
  if (channel->fd < 0) return ErrnoStatus(EMFILE, "ibv_create_comp_channel");
  std::lock_guard<std::mutex> lock(mutex_);
  ibv_comp_channel* raw = channel.get();
  channels_.emplace(raw, std::move(channel));
  return raw;
}

absl::Status Rnic::DestroyCompChannel(ibv_comp_channel* channel) {
  std::lock_guard<std::mutex> lock(mutex_);
  VERBENA_RETURN_IF_ERROR(NotOurs(channels_, channel, "the completion channel"));
  if (channels_[channel]->users.load() != 0) return ErrnoStatus(EBUSY, "ibv_destroy_comp_channel");
  channels_.erase(channel);
  return absl::OkStatus();
}

absl::StatusOr<ibv_cq*> Rnic::CreateCq(int entries, void* cq_context, ibv_comp_channel* channel) {
  const std::string what = fmt::format("ibv_create_cq(cqe={})", entries);
  if (entries < 1 || entries > state_.attributes().max_cqe) return ErrnoStatus(EINVAL, what);
  std::lock_guard<std::mutex> lock(mutex_);
  if (channel != nullptr) {
    VERBENA_RETURN_IF_ERROR(NotOurs(channels_, channel, "the completion channel"));
  }
  if (free_cq_indices_.empty()) return ErrnoStatus(ENOMEM, what + ": max_cq");
  const uint32_t index = free_cq_indices_.front();
  free_cq_indices_.pop_front();
  const uint64_t id = next_cq_serial_++ * kMaxCompletionQueues + index;
  auto* events = static_cast<CompletionChannel*>(channel);
  auto cq = std::make_unique<CompletionQueue>(state_, index, id, entries, cq_context, events,
                                              state_.control(index));
  if (events != nullptr) ++events->users;
  ibv_cq* raw = cq.get();
  cqs_.emplace(raw, std::move(cq));
  engine_.OnCqPolled();
  return raw;
}

absl::Status Rnic::ResizeCq(ibv_cq* cq, int entries) {
  const std::string what = fmt::format("ibv_resize_cq(cqe={})", entries);
  if (entries < 1 || entries > state_.attributes().max_cqe) return ErrnoStatus(EINVAL, what);
  std::lock_guard<std::mutex> lock(mutex_);
  VERBENA_RETURN_IF_ERROR(NotOurs(cqs_, cq, "the CQ"));
  if (cqs_[cq]->Resize(entries)) return absl::OkStatus();
  return ErrnoStatus(EINVAL, what + ": more completions wait");
}

absl::Status Rnic::DestroyCq(ibv_cq* cq) {
  std::unique_ptr<CompletionQueue> owned;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    VERBENA_RETURN_IF_ERROR(NotOurs(cqs_, cq, "the CQ"));
    if (cqs_[cq]->users().load() != 0) return ErrnoStatus(EBUSY, "ibv_destroy_cq");
    owned = std::move(cqs_[cq]);
    cqs_.erase(cq);
    copied_earlier_ += owned->copied().values();
  }
  CloseLanes(*owned);
  state_.async_events().Forget(cq);
  auto* events = static_cast<CompletionChannel*>(owned->channel);
  if (events != nullptr) {
    events->events.Forget(cq);
    --events->users;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  free_cq_indices_.push_back(cq->handle);
  return absl::OkStatus();
}

CopiedBytes Rnic::copied_bytes() {
  std::lock_guard<std::mutex> lock(mutex_);
  CopiedBytes sum = copied_earlier_;
  for (auto& [_, cq] : cqs_) sum += cq->copied().values();
  return sum;
}

absl::StatusOr<ibv_srq*> Rnic::CreateSrq(ibv_pd* pd, const ibv_srq_init_attr& attributes) {
  const ibv_srq_attr& wanted = attributes.attr;
  if (!state_.capabilities().srq) {
    return ErrnoStatus(EOPNOTSUPP, "ibv_create_srq: this device has no shared receive queues");
  }
  if (wanted.max_wr == 0 || wanted.max_wr > static_cast<uint32_t>(state_.attributes().max_srq_wr) ||
      wanted.max_sge > static_cast<uint32_t>(state_.attributes().max_srq_sge)) {
    return ErrnoStatus(EINVAL, fmt::format("ibv_create_srq(max_wr={}, max_sge={})", wanted.max_wr,
                                           wanted.max_sge));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  VERBENA_RETURN_IF_ERROR(NotOurs(pds_, pd, "the PD"));
  auto srq =
      std::make_unique<SharedReceiveQueue>(&state_.context(), pd, attributes, state_.async_events(),
                                           state_.capabilities().srq_limit_event);
  ++pds_[pd]->users;
  ibv_srq* raw = srq.get();
  srqs_.emplace(raw, std::move(srq));
  return raw;
}

absl::Status Rnic::ModifySrq(ibv_srq* srq, const ibv_srq_attr& attributes, int mask) {
  std::lock_guard<std::mutex> lock(mutex_);
  VERBENA_RETURN_IF_ERROR(NotOurs(srqs_, srq, "the SRQ"));
  if ((mask & IBV_SRQ_MAX_WR) != 0) return ErrnoStatus(EOPNOTSUPP, "resizing an SRQ");
  SharedReceiveQueue& queue = *srqs_[srq];
  if ((mask & IBV_SRQ_LIMIT) == 0) return absl::OkStatus();
  if (attributes.srq_limit > queue.Attributes().max_wr) {
    return ErrnoStatus(EINVAL, fmt::format("ibv_modify_srq(limit={})", attributes.srq_limit));
  }
  queue.SetLimit(attributes.srq_limit);
  return absl::OkStatus();
}

absl::Status Rnic::DestroySrq(ibv_srq* srq) {
  std::unique_ptr<SharedReceiveQueue> owned;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    VERBENA_RETURN_IF_ERROR(NotOurs(srqs_, srq, "the SRQ"));
    if (srqs_[srq]->users().load() != 0) return ErrnoStatus(EBUSY, "ibv_destroy_srq");
    owned = std::move(srqs_[srq]);
    srqs_.erase(srq);
    --pds_[owned->pd]->users;
  }
  state_.async_events().Forget(srq);
  return absl::OkStatus();
}

bool Rnic::Serve() {
  bool progress = false;
  std::lock_guard<std::mutex> lock(mutex_);
  if (state_.TakeOverrun()) {
    for (auto& [_, qp] : qps_) {
      if (!qp->send_side().overrun() && !qp->receive_side().overrun()) continue;
      std::lock_guard<SpinLock> cq_lock(qp->send_side().lock());
      CompletionWriter writer(qp->send_side());
      qp->Fail(qp->send_side(), writer);
      writer.Finish();
      progress = true;
    }
  }
  for (auto& [_, cq] : cqs_) progress |= cq->Serve();
  return progress;
}

bool Rnic::Tick() {
  std::lock_guard<std::mutex> lock(mutex_);
  bool progress = false;
  for (auto& [_, cq] : cqs_) progress |= cq->Tick();
  return progress;
}

bool Rnic::NeedsTick() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(cqs_.begin(), cqs_.end(),
                     [](auto& entry) { return entry.second->NeedsTick(); });
}

void Rnic::ServePairs(uint64_t id) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (CompletionQueue* cq = FindCq(id); cq != nullptr) cq->ServePairs();
}

void Rnic::OnTimer(uint32_t qpn, uint32_t token) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = qps_.find(qpn);
  if (found != qps_.end()) found->second->OnTimer(token);
}

}  // namespace verbena::internal::soft
