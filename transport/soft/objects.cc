#include "verbena/transport/soft/objects.h"

#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/device/verbs_status.h"

namespace verbena::internal::soft {
namespace {

constexpr uint32_t kAccessMask = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                                 IBV_ACCESS_MW_BIND;
// Hints, which change nothing here.
constexpr uint32_t kAccessHints = IBV_ACCESS_HUGETLB | IBV_ACCESS_RELAXED_ORDERING;

// A peer that runs ends a chunk within microseconds. One that does not within this time is frozen.
constexpr auto kPatience = std::chrono::seconds(2);
// As long as AwaitPeer() waits for another process: far longer than a busy machine takes.
constexpr auto kAnswerPatience = std::chrono::seconds(5);

// True when every page of the range is mapped: a registration of anything else fails, as pinning
// would.
bool IsMapped(const void* address, size_t bytes) {
  // From 4 to 64 KiB: mincore takes no address between two pages.
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  constexpr size_t kChunkPages = 4096;
  unsigned char residency[kChunkPages];
  if (bytes > UINTPTR_MAX - reinterpret_cast<uintptr_t>(address)) return false;
  uintptr_t at = reinterpret_cast<uintptr_t>(address) & ~(page - 1);
  const uintptr_t end = reinterpret_cast<uintptr_t>(address) + bytes;
  while (at < end) {
    const size_t chunk = std::min<size_t>(end - at, kChunkPages * page);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): pages are found by arithmetic.
    if (mincore(reinterpret_cast<void*>(at), chunk, residency) != 0) return false;
    at += chunk;
  }
  return true;
}

// PROCMAP_QUERY of Linux 6.11, which the headers of older systems lack: asks /proc/self/maps for
// the one mapping that holds `address`.
struct MappingQuery {
  uint64_t size = sizeof(MappingQuery);
  uint64_t options = 0;
  uint64_t address = 0;
  // The answer.
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t rights = 0;
  uint64_t others[7] = {};  // file, page size, name and build id: not asked for
};
constexpr uint32_t kMappingQuery = _IOWR('f', 17, MappingQuery);
constexpr uint64_t kMayRead = 1;
constexpr uint64_t kMayWrite = 2;

// As IsProtected(), by one system call for each mapping of the range. Nothing if the kernel does
// not answer.
std::optional<bool> AskIfProtected(int maps, uintptr_t at, uintptr_t end, bool writing) {
  while (at < end) {
    MappingQuery query{.address = at};
    if (ioctl(maps, kMappingQuery, &query) != 0) {
      // Another thread has just unmapped it.
      if (errno == ENOENT) return true;
      return std::nullopt;
    }
    if ((query.rights & (writing ? kMayWrite : kMayRead)) == 0) return true;
    at = query.end;
  }
  return false;
}

// As IsProtected(), by reading the mappings of the process from the first on: 0.2 ms for 50 of
// them, 18 ms for 20,000.
bool ReadIfProtected(std::FILE* maps, uintptr_t first, uintptr_t end, bool writing) {
  char* line = nullptr;
  size_t room = 0;
  bool found = false;
  while (!found && getline(&line, &room, maps) >= 0) {
    uintptr_t mapping_begin = 0;
    uintptr_t mapping_end = 0;
    char read = '-';
    char write = '-';
    if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %c%c", &mapping_begin, &mapping_end, &read,
                    &write) != 4) {
      continue;
    }
    if (mapping_begin >= end) break;  // they are in order
    found = mapping_end > first && (writing ? write != 'w' : read != 'r');
  }
  std::free(line);
  return found;
}

// True when the program may not read some of the range or, if `writing`, not write it: pinning
// would fail, too. Without /proc nothing is known.
bool IsProtected(const void* address, size_t bytes, bool writing) {
  std::FILE* const maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return false;
  const auto first = reinterpret_cast<uintptr_t>(address);
  std::optional<bool> found = AskIfProtected(fileno(maps), first, first + bytes, writing);
  if (!found.has_value()) found = ReadIfProtected(maps, first, first + bytes, writing);
  std::fclose(maps);
  return *found;
}

// Waits until over(), but not for a frozen peer: then false.
template <typename Over>
bool WaitUntil(Over over) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!over()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    sched_yield();
  }
  return true;
}

template <typename Map, typename Pointer>
absl::Status NotOurs(const Map& map, Pointer object, const char* what) {
  return map.contains(object)
             ? absl::OkStatus()
             : ErrnoStatus(EINVAL, fmt::format("{} is not an object of this device", what));
}

// Holds the locks of both CQs of a QP, in the order that keeps threads from waiting for one
// another; one lock when they are the same CQ.
class TwoLocks {
 public:
  explicit TwoLocks(QueuePair& qp) : first_(&qp.send_side()), second_(&qp.receive_side()) {
    if (first_ > second_) std::swap(first_, second_);
    first_->lock().lock();
    if (second_ != first_) second_->lock().lock();
  }
  TwoLocks(const TwoLocks&) = delete;
  TwoLocks& operator=(const TwoLocks&) = delete;
  ~TwoLocks() {
    if (second_ != first_) second_->lock().unlock();
    first_->lock().unlock();
  }

 private:
  Completions* first_;
  Completions* second_;
};

}  // namespace

SoftObjects::SoftObjects(SoftState& state) : state_(state), arenas_(state.options().shared_memory) {
  // QPN 0 and 1 mean something in verbs; the generation above the slot's index is never 0.
  for (uint32_t slot = 0; slot < state_.options().max_queue_pairs; ++slot)
    free_qpns_.push_back(kMaxQueuePairs | slot);
  for (uint32_t index = 0; index < kMaxCompletionQueues; ++index) free_cq_indices_.push_back(index);
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

absl::StatusOr<ibv_pd*> SoftObjects::AllocPd() {
  std::lock_guard<std::mutex> lock(mutex_);
  auto pd = std::make_unique<ProtectionDomain>();
  pd->context = &state_.context();
  pd->handle = next_pd_handle_++;
  ibv_pd* raw = pd.get();
  pds_.emplace(raw, std::move(pd));
  return raw;
}

absl::Status SoftObjects::DeallocPd(ibv_pd* pd) {
  std::lock_guard<std::mutex> lock(mutex_);
  VERBENA_RETURN_IF_ERROR(NotOurs(pds_, pd, "the PD"));
  if (pds_[pd]->users.load() != 0) return ErrnoStatus(EBUSY, "ibv_dealloc_pd");
  pds_.erase(pd);
  return absl::OkStatus();
}

absl::StatusOr<ibv_comp_channel*> SoftObjects::CreateCompChannel() {
  auto channel = std::make_unique<CompletionChannel>(&state_.context());
  if (channel->fd < 0) return ErrnoStatus(EMFILE, "ibv_create_comp_channel");
  std::lock_guard<std::mutex> lock(mutex_);
  ibv_comp_channel* raw = channel.get();
  channels_.emplace(raw, std::move(channel));
  return raw;
}

absl::Status SoftObjects::DestroyCompChannel(ibv_comp_channel* channel) {
  std::lock_guard<std::mutex> lock(mutex_);
  VERBENA_RETURN_IF_ERROR(NotOurs(channels_, channel, "the completion channel"));
  if (channels_[channel]->users.load() != 0) return ErrnoStatus(EBUSY, "ibv_destroy_comp_channel");
  channels_.erase(channel);
  return absl::OkStatus();
}

absl::StatusOr<ibv_cq*> SoftObjects::CreateCq(int entries, void* cq_context,
                                              ibv_comp_channel* channel) {
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
  auto cq = std::make_unique<CompletionQueue>(state_, id, entries, cq_context, events,
                                              state_.control(index));
  if (events != nullptr) ++events->users;
  ibv_cq* raw = cq.get();
  cqs_.emplace(raw, std::move(cq));
  state_.engine().OnTickNeeded();
  return raw;
}

absl::Status SoftObjects::ResizeCq(ibv_cq* cq, int entries) {
  const std::string what = fmt::format("ibv_resize_cq(cqe={})", entries);
  if (entries < 1 || entries > state_.attributes().max_cqe) return ErrnoStatus(EINVAL, what);
  std::lock_guard<std::mutex> lock(mutex_);
  VERBENA_RETURN_IF_ERROR(NotOurs(cqs_, cq, "the CQ"));
  if (cqs_[cq]->Resize(entries)) return absl::OkStatus();
  return ErrnoStatus(EINVAL, what + ": more completions wait");
}

absl::Status SoftObjects::DestroyCq(ibv_cq* cq) {
  std::unique_ptr<CompletionQueue> owned;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    VERBENA_RETURN_IF_ERROR(NotOurs(cqs_, cq, "the CQ"));
    if (cqs_[cq]->users().load() != 0) return ErrnoStatus(EBUSY, "ibv_destroy_cq");
    owned = std::move(cqs_[cq]);
    cqs_.erase(cq);
    copied_earlier_ += owned->copied().values();
  }
  connector_->CloseLanes(*owned);
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

CopiedBytes SoftObjects::copied_bytes() {
  std::lock_guard<std::mutex> lock(mutex_);
  CopiedBytes sum = copied_earlier_;
  for (auto& [_, cq] : cqs_) sum += cq->copied().values();
  return sum;
}

absl::StatusOr<ibv_srq*> SoftObjects::CreateSrq(ibv_pd* pd, const ibv_srq_init_attr& attributes) {
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

absl::Status SoftObjects::ModifySrq(ibv_srq* srq, const ibv_srq_attr& attributes, int mask) {
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

absl::Status SoftObjects::DestroySrq(ibv_srq* srq) {
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

// SoftObjects: registered memory, when memory that peers could access may be used again, and memory
// that peers can map.

absl::Status SoftObjects::CheckRegion(const void* address, size_t bytes, uint32_t flags) {
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
  if (arenas_.Find(reinterpret_cast<uint64_t>(address), bytes) != nullptr) return absl::OkStatus();
  if (!IsMapped(address, bytes)) return ErrnoStatus(EFAULT, what);
  const bool writing = (flags & IBV_ACCESS_LOCAL_WRITE) != 0;
  if (!IsProtected(address, bytes, writing)) return absl::OkStatus();
  return ErrnoStatus(EFAULT, fmt::format("{}: the process may not {} all of it", what,
                                         writing ? "write" : "read"));
}

MemoryLocation SoftObjects::Locate(const void* address, size_t bytes) {
  MemoryLocation location{.address = reinterpret_cast<uint64_t>(address)};
  if (auto arena = arenas_.Find(location.address, bytes); arena != nullptr) {
    location.arena = arena->id;
    location.arena_offset = location.address - reinterpret_cast<uint64_t>(arena->region.data());
  }
  return location;
}

absl::StatusOr<ibv_mr*> SoftObjects::RegMr(ibv_pd* pd, void* address, size_t bytes, int access) {
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

absl::Status SoftObjects::ReregMr(ibv_mr* mr, ibv_pd* pd, void* address, size_t bytes, int access) {
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

bool SoftObjects::AwaitCopies(std::vector<CopyUnderWay>& copies) {
  return WaitUntil([&] { return AllOver(copies); });
}

bool SoftObjects::AwaitQuiesced(QpIdentity qp) {
  Quiescence& quiescence = state_.quiescence();
  // Many QPs of one lane leave the same copy behind: a frozen peer is waited for once.
  if (quiescence.GivenUp(qp)) return false;
  if (WaitUntil([&] { return quiescence.Quiesced(qp); })) return true;
  quiescence.GiveUp(qp);
  return false;
}

absl::Status SoftObjects::RevokeRegion(ibv_mr* mr, const char* what) {
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
      cq->in_lanes().AddCopiesUnderWay(nullptr, /*key=*/0, copies);
    }
    // The CQ of those may be gone.
    state_.quiescence().AddCopies(copies);
  }
  if (!AwaitCopies(copies)) {
    return ErrnoStatus(EBUSY, fmt::format("{}: a frozen peer of {} may still be in the "
                                          "middle of a copy; it can start no other one",
                                          what, state_.name()));
  }
  return absl::OkStatus();
}

absl::Status SoftObjects::DeregMr(ibv_mr* mr) {
  VERBENA_RETURN_IF_ERROR(RevokeRegion(mr, "ibv_dereg_mr"));
  std::lock_guard<std::mutex> lock(mutex_);
  state_.memory().Recycle(mr->lkey);
  --pds_[mr->pd]->users;
  mrs_.erase(mr);
  return absl::OkStatus();
}

absl::StatusOr<ibv_mw*> SoftObjects::AllocMw(ibv_pd* pd) {
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

absl::Status SoftObjects::DeallocMw(ibv_mw* mw) {
  std::vector<CopyUnderWay> copies;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!mws_.contains(mw)) {
      return ErrnoStatus(EINVAL, "ibv_dealloc_mw: the MW is not an object of this device");
    }
    const MemoryWindows::Last last = state_.windows().Unbind(mw->handle);
    if (auto found = qps_.find(last.qpn); found != qps_.end()) {
      Completions& cq = found->second->receive_side();
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

absl::StatusOr<std::byte*> SoftObjects::AllocateShared(size_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("a shared arena of no bytes");
  VERBENA_ASSIGN_OR_RETURN(std::shared_ptr<const SharedArena> arena, arenas_.Allocate(bytes));
  connector_->AnnounceArena(arena);
  return arena->region.data();
}

absl::Status SoftObjects::FreeShared(std::byte* memory) {
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
  connector_->WithdrawArena(arena->id);
  return absl::OkStatus();
}

// SoftObjects: creating, connecting and destroying queue pairs.

absl::Status SoftObjects::CheckQpInit(const ibv_pd* pd, const ibv_qp_init_attr& init) const {
  if (!state_.options().profile->reliable_connections) {
    return ErrnoStatus(EOPNOTSUPP, "ibv_create_qp: the profile has no reliable connections");
  }
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

absl::StatusOr<ibv_qp*> SoftObjects::CreateQp(ibv_pd* pd, ibv_qp_init_attr& init) {
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

absl::Status SoftObjects::DestroyQp(ibv_qp* raw) {
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
    if (lane != nullptr) lane->RemoveUser(qpn);
    connecting = lane == nullptr && qp->peer_address() != DeviceAddress{};
    qp->send_queue().Reset();
    state_.windows().InvalidateAll(qpn);
    for (Completions* cq : {&qp->send_side(), &qp->receive_side()}) {
      cq->ForgetCompletions(qpn, /*drop=*/false);
      cq->CancelAttention(*qp);
    }
    state_.RemoveReceiver(*qp);
  }
  if (connecting) {
    connector_->Forget(
        {.qpn = qpn, .address = qp->peer_address(), .remote_qpn = qp->attributes().dest_qp_num});
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

absl::StatusOr<ibv_qp_attr> SoftObjects::QueryQp(ibv_qp* raw) {
  auto* qp = static_cast<QueuePair*>(raw);
  TwoLocks locks(*qp);
  ibv_qp_attr attributes = qp->attributes();
  attributes.qp_state = qp->current_state();
  attributes.cur_qp_state = attributes.qp_state;
  attributes.sq_draining = qp->send_queue().draining() ? 1 : 0;
  qp->state = attributes.qp_state;
  return attributes;
}

absl::Status SoftObjects::ModifyQp(ibv_qp* raw, const ibv_qp_attr& attributes, int mask) {
  auto* qp = static_cast<QueuePair*>(raw);
  std::shared_ptr<PeerAnswer> answer;
  std::vector<CopyUnderWay> withdrawn;
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
    if (to_state && attributes.qp_state == IBV_QPS_RTR) {
      answer = std::make_shared<PeerAnswer>();
      qp->set_peer_answer(answer);
    }
    if (!to_state || attributes.qp_state == IBV_QPS_RTS) {
      CompletionWriter writer(qp->send_side());
      qp->send_queue().Resume(writer);
      writer.Finish();
    }
    // A call that failed for a frozen peer is made again. With a change of state that would be
    // another call, so it waits for none: the flags alone, set after it, do.
    if ((mask & IBV_QP_ACCESS_FLAGS) != 0 && !to_state) withdrawn = qp->withdrawn_copies();
  }
  if (!AwaitCopies(withdrawn)) {
    return ErrnoStatus(EBUSY, fmt::format("ibv_modify_qp: a frozen peer of {} may still be in the "
                                          "middle of a copy; it can start no other one",
                                          state_.name()));
  }
  if (answer != nullptr) {
    connector_->Connect({.qpn = raw->qp_num,
                         .address = state_.AddressOf(attributes.ah_attr),
                         .remote_qpn = attributes.dest_qp_num & 0xffffff,
                         .answer = std::move(answer)});
  }
  return absl::OkStatus();
}

absl::Status SoftObjects::AwaitPeer(ibv_qp* raw) {
  auto* qp = static_cast<QueuePair*>(raw);
  std::shared_ptr<PeerAnswer> answer;
  DeviceAddress address;
  {
    TwoLocks locks(*qp);
    answer = qp->peer_answer();
    address = qp->peer_address();
  }
  if (answer == nullptr) {
    return absl::FailedPreconditionError(
        fmt::format("QPN {:#x} of {} was not connected", raw->qp_num, state_.name()));
  }
  const absl::Status status = answer->Await(kAnswerPatience);
  if (status.ok()) return absl::OkStatus();
  return absl::Status(status.code(),
                      fmt::format("{} does not reach the soft device {}: {}", state_.name(),
                                  AddressText(address), std::string(status.message())));
}

// SoftObjects: for the fabric and the engine.

size_t SoftObjects::size(bool with_memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t of_memory = pds_.size() + mrs_.size() + mws_.size();
  return (with_memory ? of_memory : 0) + channels_.size() + cqs_.size() + qps_.size();
}

bool SoftObjects::WithQp(uint32_t qpn, absl::FunctionRef<void(QueuePair&)> use) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = qps_.find(qpn);
  if (found == qps_.end()) return false;
  use(*found->second);
  return true;
}

bool SoftObjects::WithCq(uint64_t id, absl::FunctionRef<void(CompletionQueue&)> use) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [_, cq] : cqs_) {
    if (cq->id() != id) continue;
    use(*cq);
    return true;
  }
  return false;
}

void SoftObjects::ForEachCq(absl::FunctionRef<void(CompletionQueue&)> use) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [_, cq] : cqs_) {
    std::lock_guard<SpinLock> cq_lock(cq->lock());
    use(*cq);
  }
}

bool SoftObjects::Serve() {
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

bool SoftObjects::Tick() {
  std::lock_guard<std::mutex> lock(mutex_);
  bool progress = false;
  for (auto& [_, cq] : cqs_) progress |= cq->Tick();
  return progress;
}

bool SoftObjects::NeedsTick() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(cqs_.begin(), cqs_.end(),
                     [](auto& entry) { return entry.second->NeedsTick(); });
}

void SoftObjects::OnTimer(uint32_t qpn, uint32_t token) {
  WithQp(qpn, [&](QueuePair& qp) { qp.OnTimer(token); });
}

}  // namespace verbena::internal::soft
