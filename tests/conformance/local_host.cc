#include "tests/conformance/local_host.h"

#include <poll.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "fmt/format.h"
#include "tests/conformance/patience.h"
#include "tests/conformance/ping_pong.h"
#include "tests/conformance/post.h"
#include "verbena/transport/device/verbs_status.h"

namespace verbena::internal::conformance {
namespace {

constexpr ibv_gid kNoGid{};

// The GID by which peers on other hosts, or in other processes, reach us: the last one in the table
// that is set (RoCE lists its link-local address before the routable ones).
absl::StatusOr<std::pair<ibv_gid, uint8_t>> ReachableGid(Device& device, int table_length) {
  for (int index = table_length - 1; index >= 0; --index) {
    absl::StatusOr<ibv_gid> gid = device.QueryGid(1, index);
    if (gid.ok() && std::memcmp(&*gid, &kNoGid, sizeof(kNoGid)) != 0) {
      return std::make_pair(*gid, static_cast<uint8_t>(index));
    }
  }
  return absl::NotFoundError(fmt::format("{} has no GID on port 1", device.name()));
}

// Volatile, so that the loop does not become a call of memcpy, which ThreadSanitizer watches.
__attribute__((no_sanitize("thread"))) void CopyUnwatched(const volatile char* from, uint64_t bytes,
                                                          char* to) {
  for (uint64_t i = 0; i < bytes; ++i) to[i] = from[i];
}

}  // namespace

LocalHost::LocalHost(std::shared_ptr<SharedDevice> device, Backing backing)
    : device_(std::move(device)), backing_(backing) {}

LocalHost::~LocalHost() {
  if (absl::Status status = Clear(); !status.ok()) {
    fmt::print(stderr, "a host was left dirty: {}\n", status.ToString());
  }
}

template <typename T>
T* LocalHost::Find(const Table<T>& table, uint32_t id) const {
  if (id == 0) return nullptr;
  std::lock_guard lock(mutex_);
  const auto found = table.find(id);
  if (found != table.end()) return found->second;
  fmt::print(stderr, "a case used object {}, which it never had or has destroyed\n", id);
  std::abort();
}

template <typename T>
uint32_t LocalHost::Add(Table<T>& table, T* object) {
  std::lock_guard lock(mutex_);
  table.emplace(++last_id_, object);
  return last_id_;
}

template <typename T>
absl::Status LocalHost::Destroy(Table<T>& table, uint32_t id, absl::Status (Device::*destroy)(T*)) {
  T* object = Find(table, id);
  device_->Forget(object);
  absl::Status status = (device().*destroy)(object);
  if (status.ok()) {
    std::lock_guard lock(mutex_);
    table.erase(id);
  }
  return status;
}

template <typename T>
absl::Status LocalHost::DestroyAll(Table<T>& table, absl::Status (Device::*destroy)(T*)) {
  absl::Status first;
  for (auto& [id, object] : std::exchange(table, {})) {
    device_->Forget(object);
    absl::Status status = (device().*destroy)(object);
    first.Update(status);
  }
  return first;
}

absl::Status LocalHost::Clear() {
  streamer_.reset();
  for (auto& [id, count] : std::exchange(unacknowledged_, {})) {
    if (count > 0) device().AckCqEvents(Find(cqs_, id), count);
  }
  // Before their QPs, and before what they are bound to.
  absl::Status status = DestroyAll(mws_, &Device::DeallocMw);
  status.Update(DestroyAll(qps_, &Device::DestroyQp));
  if (cm_ != nullptr) cm_->ForgetAll();
  status.Update(DestroyAll(srqs_, &Device::DestroySrq));
  status.Update(DestroyAll(cqs_, &Device::DestroyCq));
  status.Update(DestroyAll(channels_, &Device::DestroyCompChannel));
  status.Update(DestroyAll(mrs_, &Device::DeregMr));
  status.Update(DestroyAll(pds_, &Device::DeallocPd));
  pages_of_.clear();
  pages_.clear();
  return status;
}

absl::StatusOr<HostInfo> LocalHost::Info() {
  HostInfo info;
  info.kind = device().kind();
  info.capabilities = device().capabilities();
  info.attributes = device().attributes();
  const ibv_device* verbs_device = device().context()->device;
  info.iwarp = verbs_device != nullptr && verbs_device->transport_type == IBV_TRANSPORT_IWARP;
  absl::StatusOr<ibv_port_attr> port = device().QueryPort(1);
  if (!port.ok()) return port.status();
  info.port = *port;
  auto gid = ReachableGid(device(), port->gid_tbl_len);
  if (!gid.ok()) return gid.status();
  std::tie(info.gid, info.gid_index) = *gid;
  return info;
}

absl::StatusOr<Pd> LocalHost::AllocPd() {
  absl::StatusOr<ibv_pd*> pd = device().AllocPd();
  if (!pd.ok()) return pd.status();
  return Pd{Add(pds_, *pd)};
}

absl::Status LocalHost::DeallocPd(Pd pd) { return Destroy(pds_, pd.id, &Device::DeallocPd); }

absl::StatusOr<Memory> LocalHost::RegisterPages(uint32_t pages_id, Pd pd, int access) {
  ibv_pd* verbs_pd = Find(pds_, pd.id);
  char* data = nullptr;
  uint64_t bytes = 0;
  {
    std::lock_guard lock(mutex_);
    const Pages& pages = pages_.at(pages_id);
    data = pages.data();
    bytes = pages.size();
  }
  absl::StatusOr<ibv_mr*> mr = device().RegMr(verbs_pd, data, bytes, access);
  if (!mr.ok()) return mr.status();
  Memory memory{.id = Add(mrs_, *mr),
                .lkey = (*mr)->lkey,
                .rkey = (*mr)->rkey,
                .address = reinterpret_cast<uint64_t>(data),
                .bytes = bytes};
  std::lock_guard lock(mutex_);
  pages_of_[memory.id] = pages_id;
  return memory;
}

absl::StatusOr<Memory> LocalHost::Register(Pd pd, uint64_t bytes, int access) {
  absl::StatusOr<Pages> pages = Pages::Allocate(backing_, bytes);
  if (!pages.ok()) return pages.status();
  uint32_t pages_id = 0;
  {
    std::lock_guard lock(mutex_);
    pages_id = ++last_id_;
    pages_.emplace(pages_id, *std::move(pages));
  }
  return RegisterPages(pages_id, pd, access);
}

absl::StatusOr<Memory> LocalHost::RegisterAgain(Memory memory, Pd pd, int access) {
  uint32_t pages_id = 0;
  {
    std::lock_guard lock(mutex_);
    pages_id = pages_of_.at(memory.id);
  }
  return RegisterPages(pages_id, pd, access);
}

absl::Status LocalHost::Deregister(Memory memory) {
  return Destroy(mrs_, memory.id, &Device::DeregMr);
}

absl::StatusOr<Mw> LocalHost::AllocMw(Pd pd) {
  absl::StatusOr<ibv_mw*> mw = device().AllocMw(Find(pds_, pd.id));
  if (!mw.ok()) return mw.status();
  return Mw{.id = Add(mws_, *mw), .rkey = (*mw)->rkey};
}

absl::Status LocalHost::DeallocMw(Mw mw) { return Destroy(mws_, mw.id, &Device::DeallocMw); }

absl::StatusOr<char*> LocalHost::At(Memory memory, uint64_t offset, uint64_t bytes) const {
  if (offset > memory.bytes || bytes > memory.bytes - offset) {
    return absl::OutOfRangeError(
        fmt::format("{} bytes at {} of memory of {} bytes", bytes, offset, memory.bytes));
  }
  // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs address memory by integers.
  return reinterpret_cast<char*>(memory.address) + offset;
}

absl::Status LocalHost::WriteBytes(Memory memory, uint64_t offset, std::string bytes) {
  absl::StatusOr<char*> at = At(memory, offset, bytes.size());
  if (at.ok()) std::memcpy(*at, bytes.data(), bytes.size());
  return at.status();
}

absl::StatusOr<std::string> LocalHost::ReadBytes(Memory memory, uint64_t offset, uint64_t bytes) {
  absl::StatusOr<char*> at = At(memory, offset, bytes);
  if (!at.ok()) return at.status();
  return std::string(*at, bytes);
}

absl::StatusOr<std::string> LocalHost::PeekBytes(Memory memory, uint64_t offset, uint64_t bytes) {
  absl::StatusOr<char*> at = At(memory, offset, bytes);
  if (!at.ok()) return at.status();
  std::string copy(bytes, '\0');
  CopyUnwatched(*at, bytes, copy.data());
  return copy;
}

absl::StatusOr<CqChannel> LocalHost::CreateChannel() {
  absl::StatusOr<ibv_comp_channel*> channel = device().CreateCompChannel();
  if (!channel.ok()) return channel.status();
  return CqChannel{Add(channels_, *channel)};
}

absl::Status LocalHost::DestroyChannel(CqChannel channel) {
  return Destroy(channels_, channel.id, &Device::DestroyCompChannel);
}

absl::StatusOr<Cq> LocalHost::CreateCq(uint32_t entries, CqChannel channel) {
  absl::StatusOr<ibv_cq*> cq =
      device().CreateCq(static_cast<int>(entries), nullptr, Find(channels_, channel.id));
  if (!cq.ok()) return cq.status();
  return Cq{.id = Add(cqs_, *cq), .capacity = static_cast<uint32_t>((*cq)->cqe)};
}

absl::Status LocalHost::DestroyCq(Cq cq) { return Destroy(cqs_, cq.id, &Device::DestroyCq); }

absl::StatusOr<Srq> LocalHost::CreateSrq(Pd pd, uint32_t depth, uint32_t sges) {
  ibv_srq_init_attr attributes{};
  attributes.attr.max_wr = depth;
  attributes.attr.max_sge = sges;
  absl::StatusOr<ibv_srq*> srq = device().CreateSrq(Find(pds_, pd.id), attributes);
  if (!srq.ok()) return srq.status();
  return Srq{Add(srqs_, *srq)};
}

absl::Status LocalHost::ModifySrq(Srq srq, ibv_srq_attr attributes, int mask) {
  return device().ModifySrq(raw(srq), attributes, mask);
}

absl::StatusOr<ibv_srq_attr> LocalHost::QuerySrq(Srq srq) { return device().QuerySrq(raw(srq)); }

absl::Status LocalHost::DestroySrq(Srq srq) { return Destroy(srqs_, srq.id, &Device::DestroySrq); }

absl::StatusOr<Qp> LocalHost::CreateQp(QpOptions options) {
  ibv_qp_init_attr attributes{};
  attributes.send_cq = raw(options.send_cq);
  attributes.recv_cq = raw(options.recv_cq);
  attributes.srq = raw(options.srq);
  attributes.cap = options.cap;
  attributes.qp_type = options.type;
  attributes.sq_sig_all = options.all_signalled ? 1 : 0;
  absl::StatusOr<ibv_qp*> qp = device().CreateQp(Find(pds_, options.pd.id), attributes);
  if (!qp.ok()) return qp.status();
  const uint32_t id = Add(qps_, *qp);
  const QpIdentity identity = device().IdentityOf(*qp);
  std::lock_guard lock(mutex_);
  identities_.emplace(id, identity);
  return Qp{.id = id, .number = (*qp)->qp_num, .cap = attributes.cap};
}

absl::Status LocalHost::ModifyQp(Qp qp, ibv_qp_attr attributes, int mask) {
  return device().ModifyQp(raw(qp), attributes, mask);
}

absl::StatusOr<ibv_qp_attr> LocalHost::QueryQp(Qp qp, int mask) {
  return device().QueryQp(raw(qp), mask);
}

absl::Status LocalHost::DestroyQp(Qp qp) {
  absl::Status status = Destroy(qps_, qp.id, &Device::DestroyQp);
  std::lock_guard lock(mutex_);
  if (status.ok() && cm_ != nullptr) cm_->Forget(qp);
  return status;
}

absl::StatusOr<bool> LocalHost::Quiesced(Qp qp) {
  std::lock_guard lock(mutex_);
  auto found = identities_.find(qp.id);
  if (found == identities_.end()) {
    return absl::NotFoundError(fmt::format("no QP ever had the id {}", qp.id));
  }
  return device().Quiesced(found->second);
}

absl::StatusOr<CmConnector*> LocalHost::Connector() {
  std::lock_guard lock(mutex_);
  if (cm_ == nullptr) {
    absl::StatusOr<HostInfo> info = Info();
    if (!info.ok()) return info.status();
    cm_ = std::make_unique<CmConnector>(device().name(), info->gid);
  }
  return cm_.get();
}

absl::StatusOr<RdmaCmService> LocalHost::CmExpect(Qp qp, CmOptions options) {
  absl::StatusOr<CmConnector*> cm = Connector();
  if (!cm.ok()) return cm.status();
  return (*cm)->Expect(qp, options);
}

absl::Status LocalHost::CmRequest(Qp qp, CmOptions options, RdmaCmService service) {
  absl::StatusOr<CmConnector*> cm = Connector();
  return cm.ok() ? (*cm)->Request(qp, options, service) : cm.status();
}

absl::Status LocalHost::CmJoin(Qp qp) {
  absl::StatusOr<CmConnector*> cm = Connector();
  return cm.ok() ? (*cm)->Join(qp) : cm.status();
}

absl::Status LocalHost::CmAwaitEstablished(Qp qp) {
  absl::StatusOr<CmConnector*> cm = Connector();
  return cm.ok() ? (*cm)->AwaitEstablished(qp) : cm.status();
}

absl::StatusOr<bool> LocalHost::CmHasEnded(Qp qp) {
  absl::StatusOr<CmConnector*> cm = Connector();
  if (!cm.ok()) return cm.status();
  return (*cm)->HasEnded(qp);
}

absl::StatusOr<PostResult> LocalHost::PostSends(Qp qp, std::vector<SendWr> wrs) {
  for (SendWr& wr : wrs) {
    wr.bind.mw = Find(mws_, wr.bind.window);
    wr.bind.mr = Find(mrs_, wr.bind.region);
  }
  const PostResult result = PostSendChain(raw(qp), wrs);
  // As verbs has it, the consumer keeps note of a window's key, and a provider looks for it.
  for (uint32_t i = 0; i < wrs.size() && (result.error == 0 || i < result.accepted); ++i) {
    if (wrs[i].opcode == IBV_WR_BIND_MW) wrs[i].bind.mw->rkey = wrs[i].rkey;
  }
  return result;
}

absl::StatusOr<PostResult> LocalHost::PostReceives(Qp qp, std::vector<RecvWr> wrs) {
  return PostReceiveChain(raw(qp), wrs);
}

absl::StatusOr<PostResult> LocalHost::PostSrqReceives(Srq srq, std::vector<RecvWr> wrs) {
  return PostSrqReceiveChain(raw(srq), wrs);
}

absl::StatusOr<std::vector<ibv_wc>> LocalHost::Poll(Cq cq, uint32_t limit) {
  std::vector<ibv_wc> found(limit);
  const int count = ibv_poll_cq(raw(cq), static_cast<int>(limit), found.data());
  if (count < 0) return absl::InternalError(fmt::format("ibv_poll_cq returned {}", count));
  found.resize(static_cast<size_t>(count));
  return found;
}

absl::StatusOr<std::vector<ibv_wc>> LocalHost::Await(Cq cq, uint32_t count, uint32_t timeout_ms) {
  const TimeLimit deadline(timeout_ms);
  std::vector<ibv_wc> all;
  while (all.size() < count) {
    absl::StatusOr<std::vector<ibv_wc>> some =
        Poll(cq, std::min<uint32_t>(count - static_cast<uint32_t>(all.size()), 32));
    if (!some.ok()) return some.status();
    all.insert(all.end(), some->begin(), some->end());
    if (!some->empty()) continue;
    if (deadline.passed()) break;
    // The completion may be another thread's or process's to make, which wants this core.
    std::this_thread::yield();
  }
  return all;
}

absl::Status LocalHost::Arm(Cq cq, bool solicited_only) {
  const int result = ibv_req_notify_cq(raw(cq), solicited_only ? 1 : 0);
  return result == 0 ? absl::OkStatus() : ErrnoStatus(result, "ibv_req_notify_cq");
}

absl::StatusOr<Cq> LocalHost::AwaitCqEvent(CqChannel channel, uint32_t timeout_ms) {
  ibv_comp_channel* verbs_channel = raw(channel);
  pollfd waiting{.fd = verbs_channel->fd, .events = POLLIN, .revents = 0};
  if (poll(&waiting, 1, static_cast<int>(timeout_ms)) <= 0) {
    return absl::DeadlineExceededError(fmt::format("no completion event in {} ms", timeout_ms));
  }
  absl::StatusOr<ibv_cq*> event = device().GetCqEvent(verbs_channel);
  if (!event.ok()) return event.status();
  std::lock_guard lock(mutex_);
  for (auto& [id, cq] : cqs_) {
    if (cq != *event) continue;
    ++unacknowledged_[id];
    return Cq{.id = id, .capacity = static_cast<uint32_t>(cq->cqe)};
  }
  return absl::InternalError("a completion event names a CQ that does not exist");
}

absl::Status LocalHost::AckCqEvents(Cq cq, uint32_t count) {
  device().AckCqEvents(raw(cq), count);
  std::lock_guard lock(mutex_);
  unacknowledged_[cq.id] -= count;
  return absl::OkStatus();
}

absl::Status LocalHost::AwaitAsyncEvent(ibv_event_type type, uint32_t id, uint32_t timeout_ms) {
  const void* object = nullptr;
  switch (type) {
    case IBV_EVENT_CQ_ERR:
      object = Find(cqs_, id);
      break;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      object = Find(srqs_, id);
      break;
    default:
      object = Find(qps_, id);
  }
  return device_->AwaitEvent(type, object, timeout_ms);
}

absl::Status LocalHost::RunPingPong(PingPong plan) {
  return PingPongLoop(device(), raw(plan.qp), raw(plan.cq), raw(plan.channel), plan).Run();
}

absl::Status LocalHost::StartStream(Stream stream) {
  if (streamer_ != nullptr) return absl::FailedPreconditionError("a stream is running");
  streamer_ = std::make_unique<Streamer>(raw(stream.qp), raw(stream.cq), stream.wr, stream.depth);
  return absl::OkStatus();
}

absl::StatusOr<StreamState> LocalHost::WatchStream() {
  if (streamer_ == nullptr) return absl::FailedPreconditionError("no stream is running");
  return streamer_->state();
}

absl::StatusOr<StreamState> LocalHost::StopStream(uint32_t timeout_ms) {
  if (streamer_ == nullptr) return absl::FailedPreconditionError("no stream is running");
  const StreamState state = streamer_->Stop(timeout_ms);
  streamer_.reset();
  return state;
}

}  // namespace verbena::internal::conformance
