#include "verbena/transport/memory/buffer_pool.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/device/control_pool.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/memory/arena.h"
#include "verbena/transport/memory/buffer.h"
#include "verbena/transport/memory/carved_arena.h"

namespace verbena::internal {

// ArenaGrowth: a function that makes the next arena of a pool, and destroys those whose room it
// takes. Internal to transport/memory.
//
// Both are control verbs, which may take milliseconds to seconds. The function owns all that it
// works on, so that it may run on a control thread while the pool is used, and after the pool is
// gone. The device and the PD outlive it.
struct ArenaGrowth {
  Device* device;
  ibv_pd* pd;
  int access;
  ArenaKind kind;
  // The home thread of the arena, and the owner of its blocks.
  Scheduler* home;
  BlockOwner* owner;
  // Makes an arena of `bytes`, or of `least` if the device refuses that. Whole pages.
  size_t bytes = 0;
  size_t least = 0;
  // Arenas to destroy first. No io_uring knows them any more.
  std::vector<std::unique_ptr<CarvedArena>> retired = {};
  size_t retired_bytes = 0;

  absl::StatusOr<std::unique_ptr<CarvedArena>> operator()();
};

// BufferPoolCore: the inside of a BufferPool. Internal to transport/memory.
//
// An object of its own: a buffer that another thread has freed may still be on its way here when
// the pool is destroyed. The core then deletes itself once the inbox item that reports the buffer
// has run.
class BufferPoolCore final : private BlockOwner, private InboxItem, private ControlJob::Waiter {
 public:
  BufferPoolCore(Scheduler& scheduler, Device& device, ibv_pd* pd, BufferPoolOptions options);
  BufferPoolCore(const BufferPoolCore&) = delete;
  BufferPoolCore& operator=(const BufferPoolCore&) = delete;
  ~BufferPoolCore() override = default;

  // The pool is gone. Deletes the core, now or when the last news has arrived.
  void Close();

  // Whether `bytes` can ever be had.
  absl::Status CheckSize(size_t bytes) const;
  // Null if the request must wait, or, with an error in `status`, if waiting is in vain. If the
  // caller may not wait (`may_wait`), this may register more memory at once.
  Block* Take(size_t bytes, bool may_wait, absl::Status& status);
  absl::StatusOr<Buffer> TryAllocate(size_t bytes);

  bool unused() const { return used_ == 0 && !has_waiters(); }
  std::vector<std::unique_ptr<CarvedArena>> TakeArenas();

  bool has_waiters() const { return !waiters_.empty() || !large_waiters_.empty(); }
  // (start) A request for more than a sixteenth of the budget is large: a block for it may come
  // free long after there is room for many others, so these pass it.
  bool IsLarge(size_t bytes) const { return SizeClassBytes(SizeClassOf(bytes)) > budget_ / 16; }
  // Whether a request has to wait for its turn. Not while the pool grows: the new memory serves the
  // waiters first, and the free memory may serve others meanwhile.
  bool MustQueue(size_t bytes) const {
    return growth_ == nullptr && (!waiters_.empty() || (!large_waiters_.empty() && IsLarge(bytes)));
  }
  void Wait(BufferPool::Awaiter& waiter);
  // A waiter that gives up.
  void Leave(BufferPool::Awaiter& waiter);

  BufferPoolStats stats() const;
  const absl::Status& growth_failure() const { return growth_failure_; }
  const std::string& name() const { return options_.name; }

 private:
  void OnUnused(Block& block) override;  // from any thread
  void Run() override;                   // what other threads freed has arrived
  void OnJobDone() override;             // a growth has ended

  void Release(Block& block);
  static void EndHold(Block& block);
  Block* FindBlock(uint32_t size_class, bool may_wait);
  Block* FindBlockSlowly(uint32_t size_class, bool may_wait);
  void EmptyCaches();
  bool has_control_threads() const;
  bool GrowsInBackground(bool may_wait) const;
  size_t room() const {
    VERBENA_CHECK(arena_bytes_ + growing_bytes_ <= bound_)
        << arena_bytes_ << " and " << growing_bytes_ << " bytes of " << bound_;
    return bound_ - arena_bytes_ - growing_bytes_;
  }
  bool Grow(size_t bytes, bool may_wait);
  void GrowAhead();
  ArenaGrowth Plan(size_t bytes);
  bool RetireFreeArenas(ArenaGrowth& growth);
  void StartGrowth(ArenaGrowth growth);
  bool EndGrowth(absl::StatusOr<std::unique_ptr<CarvedArena>> arena, size_t retired_bytes);
  void Refuse(const absl::Status& refused, size_t retired_bytes);
  void AbandonGrowth();
  void PauseGrowth();
  void SetMark();
  size_t NextArenaBytes(size_t bytes) const;
  absl::Status Exhausted(size_t bytes) const;
  void ServeWaiters();
  void Serve(IntrusiveList<BufferPool::Awaiter>& waiters);

  Scheduler& scheduler_;
  Device& device_;
  ibv_pd* const pd_;
  const BufferPoolOptions options_;
  size_t budget_;  // whole pages; none once the arenas are taken
  // The most that may be registered: the budget, or less since the device refused more.
  size_t bound_;
  size_t arena_bytes_ = 0;
  size_t used_ = 0;
  // If more is in use, the pool grows ahead of need. SIZE_MAX when it cannot grow, or grows
  // already.
  size_t mark_ = SIZE_MAX;
  // By class, last in, first out: freed blocks that have not been merged.
  std::array<Block*, kSizeClasses> caches_{};
  BuddyLists buddies_;
  std::vector<std::unique_ptr<CarvedArena>> arenas_;
  IntrusiveList<BufferPool::Awaiter> waiters_;
  IntrusiveList<BufferPool::Awaiter> large_waiters_;
  // The growth that a control thread works on, or nullptr: the bytes that it takes of the budget,
  // those of the arenas that it destroys first, and the fewest that it needs.
  using Growth = TypedControlJob<ArenaGrowth>;
  Growth* growth_ = nullptr;
  size_t growing_bytes_ = 0;
  size_t retiring_bytes_ = 0;
  size_t growing_least_ = 0;
  // Why the bound is less than the budget, and when the device may be asked again for more than it
  // refused.
  absl::Status growth_failure_;
  TimePoint retry_at_ = kBeforeAllTime;
  Duration retry_pause_{};
  // The device refused so many bytes although as many had been given up for them. The pool asks for
  // so many, or more, only after retry_at_.
  size_t refused_bytes_ = SIZE_MAX;
  // The bound that the log last reported.
  size_t logged_bound_ = SIZE_MAX;
  BufferPoolStats stats_;
  bool orphaned_ = false;

  // Blocks that other threads freed, newest first. A thread that finds the list empty posts this
  // item. Only the item empties the list, so that it is never posted twice.
  alignas(64) std::atomic<Block*> returned_{nullptr};
  // The pool is gone although buffers were not home. The scheduler may be gone as well.
  std::atomic<bool> abandoned_{false};
};

namespace {

// (start) Registering 4 MiB takes about a millisecond. A small budget begins with less, so that a
// pool that is hardly used leaves what may be pinned to the others.
constexpr size_t kLargestFirstArena = size_t{4} << 20;
constexpr size_t kSmallestFirstArena = size_t{256} << 10;
// (start) The soft device pins nothing, but has few arenas.
constexpr size_t kFirstSoftArenaBytes = size_t{32} << 20;

// (start) How long a device that has refused to pin more is left alone.
constexpr Duration kFirstRetryPause = std::chrono::milliseconds(100);
constexpr Duration kLongestRetryPause = std::chrono::seconds(10);

size_t WholePages(size_t bytes) { return bytes / kMinBufferBytes * kMinBufferBytes; }

BufferPoolOptions WithDefaults(BufferPoolOptions options, const Device& device) {
  if (options.first_arena_bytes == 0) {
    options.first_arena_bytes =
        device.kind() == DeviceKind::kSoft
            ? kFirstSoftArenaBytes
            : std::clamp(options.budget_bytes / 4, kSmallestFirstArena, kLargestFirstArena);
  }
  return options;
}

// A pool that was destroyed before its buffers came home. Kept for ever: they lie in its memory.
void KeepForEver(BufferPoolCore* core) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<BufferPoolCore*>;
  std::lock_guard<std::mutex> lock(mutex);
  kept->push_back(core);
}

}  // namespace

absl::StatusOr<std::unique_ptr<BufferPool>> BufferPool::Create(Scheduler& scheduler, Device& device,
                                                               ibv_pd* pd,
                                                               BufferPoolOptions options) {
  if (options.budget_bytes < kMinBufferBytes) {
    return absl::InvalidArgumentError(
        fmt::format("the {} budget of {} bytes is less than the smallest buffer, {} bytes",
                    options.name, options.budget_bytes, kMinBufferBytes));
  }
  return std::unique_ptr<BufferPool>(
      new BufferPool(std::make_unique<BufferPoolCore>(scheduler, device, pd, std::move(options))));
}

BufferPool::BufferPool(std::unique_ptr<BufferPoolCore> core) : core_(core.release()) {}

BufferPool::~BufferPool() { core_->Close(); }

absl::StatusOr<Buffer> BufferPool::TryAllocate(size_t bytes) { return core_->TryAllocate(bytes); }

bool BufferPool::unused() const { return core_->unused(); }

std::vector<std::unique_ptr<CarvedArena>> BufferPool::TakeArenas() { return core_->TakeArenas(); }

BufferPoolStats BufferPool::stats() const { return core_->stats(); }

const absl::Status& BufferPool::growth_failure() const { return core_->growth_failure(); }

bool BufferPool::IsLarge(size_t bytes) const { return core_->IsLarge(bytes); }

const std::string& BufferPool::name() const { return core_->name(); }

BufferPool::Awaiter::~Awaiter() { LeaveQueue(); }

bool BufferPool::Awaiter::TakeNow() {
  status_ = pool_.CheckSize(bytes_);
  if (!status_.ok()) return true;
  if (pool_.MustQueue(bytes_)) return false;
  Block* block = pool_.Take(bytes_, /*may_wait=*/true, status_);
  if (block == nullptr) return !status_.ok();
  buffer_ = Buffer(*block, bytes_);
  return true;
}

void BufferPool::Awaiter::Queue() { pool_.Wait(*this); }

void BufferPool::Awaiter::LeaveQueue() {
  if (IntrusiveNode<Awaiter>::linked()) pool_.Leave(*this);
}

BufferPoolCore::BufferPoolCore(Scheduler& scheduler, Device& device, ibv_pd* pd,
                               BufferPoolOptions options)
    : scheduler_(scheduler),
      device_(device),
      pd_(pd),
      options_(WithDefaults(std::move(options), device)),
      budget_(WholePages(options_.budget_bytes)),
      bound_(budget_) {}

void BufferPoolCore::Close() {
  VERBENA_DCHECK(!has_waiters()) << stats_.waiting << " waiters outlive the " << name() << " pool";
  AbandonGrowth();
  Block* const returned = returned_.load(std::memory_order_acquire);
  size_t coming = 0;
  for (const Block* block = returned; block != nullptr; block = block->next) {
    coming += block->capacity;
  }
  if (used_ != coming) {
    abandoned_.store(true, std::memory_order_release);
    VERBENA_LOG_LINE(
        kMemory, kError,
        fmt::format(
            "the {} pool was destroyed while {} bytes of its buffers were in use: all of its "
            "{} bytes stay registered until the process ends. Destroy Buffers and payloads "
            "before their Runtime",
            name(), used_ - coming, arena_bytes_),
        {{"pool", name()}});
    device_.KeepMemory();
    KeepForEver(this);
    return;
  }
  // Every block is home, or in the list that nobody adds to any more. The quotas may live on.
  for (Block* block = returned; block != nullptr; block = block->next) EndHold(*block);
  arenas_.clear();
  if (returned == nullptr) {
    delete this;
  } else {
    orphaned_ = true;
  }
}

// --- Allocating ----------------------------------------------------------------------------------

absl::Status BufferPoolCore::CheckSize(size_t bytes) const {
  if (bytes > kMaxBufferBytes) [[unlikely]] {
    return absl::InvalidArgumentError(fmt::format(
        "a buffer of {} bytes was asked for; the largest has {}", bytes, kMaxBufferBytes));
  }
  const size_t needed = SizeClassBytes(SizeClassOf(bytes));
  if (needed > budget_) [[unlikely]] {
    return absl::ResourceExhaustedError(
        fmt::format("a buffer of {} bytes takes {}; the whole {} budget has {}", bytes, needed,
                    name(), budget_));
  }
  return absl::OkStatus();
}

Block* BufferPoolCore::Take(size_t bytes, bool may_wait, absl::Status& status) {
  VERBENA_DCHECK(Scheduler::Current() == nullptr || Scheduler::Current() == &scheduler_)
      << "the " << name() << " pool is used on the thread of another scheduler";
  VERBENA_DCHECK(bytes <= kMaxBufferBytes) << bytes << " bytes: CheckSize() comes first";
  const uint32_t size_class = SizeClassOf(bytes);
  Block* block = FindBlock(size_class, may_wait);
  if (block == nullptr) {
    // Whether no buffer that comes home would help.
    const bool in_vain = used_ == 0 || SizeClassBytes(size_class) > bound_;
    if (in_vain && growth_ == nullptr) status = growth_failure_;
    return nullptr;
  }
  used_ += block->capacity;
  VERBENA_DCHECK(used_ <= arena_bytes_) << used_ << " of " << arena_bytes_ << " bytes are in use";
  CarvedArena::Of(*block).used += block->capacity;
  stats_.peak_bytes_in_use = std::max(stats_.peak_bytes_in_use, used_);
  ++stats_.allocations;
  ++stats_.classes[size_class].in_use;
  UnpoisonMemory(block->data, block->capacity);
  block->references.store(1, std::memory_order_relaxed);
  if (used_ > mark_) [[unlikely]]
    GrowAhead();
  return block;
}

absl::StatusOr<Buffer> BufferPoolCore::TryAllocate(size_t bytes) {
  VERBENA_RETURN_IF_ERROR(CheckSize(bytes));
  absl::Status status;
  Block* block = MustQueue(bytes) ? nullptr : Take(bytes, /*may_wait=*/false, status);
  if (block != nullptr) return Buffer(*block, bytes);
  ++stats_.refusals;
  return status.ok() ? Exhausted(bytes) : status;
}

absl::Status BufferPoolCore::Exhausted(size_t bytes) const {
  const BufferPoolStats now = stats();
  return absl::ResourceExhaustedError(fmt::format(
      "no buffer of {} bytes: of the {} budget's {} bytes {} are in use, {} more are "
      "being registered, and {} others wait",
      bytes, name(), now.budget_bytes, now.bytes_in_use, now.growing_bytes, now.waiting));
}

Block* BufferPoolCore::FindBlock(uint32_t size_class, bool may_wait) {
  Block* block = caches_[size_class];
  if (block == nullptr) [[unlikely]]
    return FindBlockSlowly(size_class, may_wait);
  caches_[size_class] = block->next;
  VERBENA_DCHECK(block->size_class == size_class && stats_.classes[size_class].free > 0)
      << "a block of class " << block->size_class << " in the cache of " << size_class;
  --stats_.classes[size_class].free;
  return block;
}

Block* BufferPoolCore::FindBlockSlowly(uint32_t size_class, bool may_wait) {
  if (Block* block = buddies_.Take(size_class)) return block;
  EmptyCaches();
  if (Block* block = buddies_.Take(size_class)) return block;
  return Grow(SizeClassBytes(size_class), may_wait) ? buddies_.Take(size_class) : nullptr;
}

void BufferPoolCore::EmptyCaches() {
  for (uint32_t size_class = 0; size_class < kSizeClasses; ++size_class) {
    while (Block* block = caches_[size_class]) {
      caches_[size_class] = block->next;
      buddies_.Give(*block);
    }
    stats_.classes[size_class].free = 0;
  }
}

// --- Arenas --------------------------------------------------------------------------------------

bool BufferPoolCore::has_control_threads() const {
  return options_.control != nullptr && options_.control->threads();
}

// A caller that may wait never blocks. A caller that may not wait blocks only on a thread that runs
// no coroutines.
bool BufferPoolCore::GrowsInBackground(bool may_wait) const {
  return has_control_threads() && (may_wait || Scheduler::Current() != nullptr);
}

// Registers room for a block of `bytes`. False when that fails, or goes on in the background.
bool BufferPoolCore::Grow(size_t bytes, bool may_wait) {
  const bool in_background = GrowsInBackground(may_wait);
  if (in_background && growth_ != nullptr) return false;
  if (in_background && bytes >= refused_bytes_ && scheduler_.now() < retry_at_) return false;
  // On the calling thread, pinning more is worth another try when nothing is in use: no buffer can
  // come home then.
  if (in_background ? scheduler_.now() >= retry_at_ : used_ == 0) bound_ = budget_;
  ArenaGrowth growth = Plan(bytes);
  if (room() < bytes && !RetireFreeArenas(growth)) return false;
  growth.bytes = NextArenaBytes(bytes);
  if (in_background) {
    StartGrowth(std::move(growth));
    return false;
  }
  const size_t retired_bytes = growth.retired_bytes;
  return EndGrowth(growth(), retired_bytes);
}

// Little is free: grows before somebody has to wait.
void BufferPoolCore::GrowAhead() {
  if (used_ <= mark_ || growth_ != nullptr || room() < kMinBufferBytes) return;
  ArenaGrowth growth = Plan(kMinBufferBytes);
  growth.bytes = NextArenaBytes(kMinBufferBytes);
  StartGrowth(std::move(growth));
}

ArenaGrowth BufferPoolCore::Plan(size_t bytes) {
  return {.device = &device_,
          .pd = pd_,
          .access = options_.access,
          .kind = options_.exposed ? ArenaKind::kExposed : ArenaKind::kPrivate,
          .home = &scheduler_,
          .owner = this,
          .least = bytes};
}

size_t BufferPoolCore::NextArenaBytes(size_t bytes) const {
  const size_t wanted =
      std::max(WholePages(options_.first_arena_bytes), std::min(arena_bytes_, kMaxBufferBytes));
  VERBENA_CHECK(bytes <= room()) << "an arena of " << bytes << " bytes, with room for " << room();
  return std::clamp(wanted, bytes, room());
}

// Gives up wholly free arenas until `growth.least` bytes may be registered. Gives up none if all of
// them are not enough. Precondition: every free block is with the buddies.
bool BufferPoolCore::RetireFreeArenas(ArenaGrowth& growth) {
  size_t most = room();
  for (const auto& arena : arenas_) {
    if (arena->used == 0) most += arena->size();
  }
  if (most < growth.least) return false;
  std::ranges::sort(arenas_, {}, [](const auto& arena) { return arena->size(); });
  for (auto& arena : arenas_) {
    if (room() >= growth.least) break;
    if (arena->used != 0) continue;
    buddies_.Remove(*arena);
    arena->LeaveRegistrar();
    arena_bytes_ -= arena->size();
    growth.retired_bytes += arena->size();
    growth.retired.push_back(std::move(arena));
  }
  std::erase(arenas_, nullptr);
  return true;
}

void BufferPoolCore::StartGrowth(ArenaGrowth growth) {
  VERBENA_CHECK(growth_ == nullptr)
      << "the " << name() << " pool grows by " << growing_bytes_ << " bytes already";
  growing_bytes_ = growth.bytes;
  retiring_bytes_ = growth.retired_bytes;
  growing_least_ = growth.least;
  mark_ = SIZE_MAX;
  growth_ = new Growth(*options_.control, ControlKind::kGrowth, /*order=*/nullptr,
                       /*must_run=*/false, std::move(growth), /*source=*/"");
  absl::Status handed_over = growth_->HandOver(scheduler_, *this);
  if (handed_over.ok()) return;
  std::exchange(growth_, nullptr)->Destroy();
  growing_bytes_ = 0;
  Refuse(handed_over, retiring_bytes_);
  PauseGrowth();
}

void BufferPoolCore::OnJobDone() {
  absl::StatusOr<std::unique_ptr<CarvedArena>> arena = growth_->TakeResult();
  std::exchange(growth_, nullptr)->Taken();
  growing_bytes_ = 0;
  if (EndGrowth(std::move(arena), retiring_bytes_)) {
    if (growth_failure_.ok()) retry_pause_ = {};
  } else {
    PauseGrowth();
  }
  ServeWaiters();
  GrowAhead();
}

// A control thread destroys what it makes. Whoever gives the arenas away calls this first.
void BufferPoolCore::AbandonGrowth() {
  if (growth_ == nullptr) return;
  std::exchange(growth_, nullptr)->Leave();
  growing_bytes_ = 0;
}

bool BufferPoolCore::EndGrowth(absl::StatusOr<std::unique_ptr<CarvedArena>> arena,
                               size_t retired_bytes) {
  if (!arena.ok()) {
    Refuse(arena.status(), retired_bytes);
    return false;
  }
  if (bound_ == budget_) growth_failure_ = absl::OkStatus();
  arena_bytes_ += (*arena)->size();
  buddies_.Add(**arena);
  arenas_.push_back(*std::move(arena));
  SetMark();
  return true;
}

void BufferPoolCore::Refuse(const absl::Status& refused, size_t retired_bytes) {
  // The retired arenas could be registered before, so they count.
  bound_ = std::min(budget_, arena_bytes_ + growing_bytes_ + retired_bytes);
  growth_failure_ = absl::Status(
      refused.code(), fmt::format("of the {} budget's {} bytes only {} could be registered: {}",
                                  name(), budget_, bound_, std::string(refused.message())));
  mark_ = SIZE_MAX;
  if (std::exchange(logged_bound_, bound_) == bound_) return;
  VERBENA_LOG_LINE(kMemory, kWarning,
                   fmt::format("the {} budget shrinks from {} to {} bytes: {}", name(), budget_,
                               bound_, refused.ToString()),
                   {{"pool", name()}});
}

void BufferPoolCore::PauseGrowth() {
  retry_pause_ = std::clamp(2 * retry_pause_, kFirstRetryPause, kLongestRetryPause);
  retry_at_ = SaturatingAdd(scheduler_.now(), retry_pause_);
  refused_bytes_ = retiring_bytes_ > 0 ? growing_least_ : SIZE_MAX;
}

void BufferPoolCore::SetMark() {
  const bool may_grow = has_control_threads() && room() >= kMinBufferBytes;
  mark_ = may_grow ? arena_bytes_ - arena_bytes_ / 4 : SIZE_MAX;
}

std::vector<std::unique_ptr<CarvedArena>> BufferPoolCore::TakeArenas() {
  VERBENA_CHECK(unused()) << used_ << " bytes of the " << name() << " pool are in use, and "
                          << stats_.waiting << " wait";
  AbandonGrowth();
  EmptyCaches();
  for (const auto& arena : arenas_) {
    buddies_.Remove(*arena);
    arena->LeaveRegistrar();
  }
  arena_bytes_ = bound_ = budget_ = 0;
  mark_ = SIZE_MAX;
  return std::move(arenas_);
}

// --- Coming home ---------------------------------------------------------------------------------

void BufferPoolCore::OnUnused(Block& block) {
  PoisonMemory(block.data, block.capacity);
  if (Scheduler::Current() == &scheduler_) [[likely]] {
    Release(block);
    if (has_waiters()) ServeWaiters();
    return;
  }
  Scheduler& scheduler = scheduler_;
  const bool tell = !abandoned_.load(std::memory_order_acquire);
  Block* newest = returned_.load(std::memory_order_relaxed);
  do {
    block.next = newest;
    // From here on the block belongs to its home thread. The pool may be gone, unless it has to be
    // told: then it waits for that.
  } while (!returned_.compare_exchange_weak(newest, &block, std::memory_order_release,
                                            std::memory_order_relaxed));
  if (newest == nullptr && tell) scheduler.Post(*this);
}

void BufferPoolCore::Run() {
  Block* block = returned_.exchange(nullptr, std::memory_order_acquire);
  if (orphaned_) {
    delete this;
    return;
  }
  while (block != nullptr) {
    Block* next = block->next;
    ++stats_.returns_from_afar;
    Release(*block);
    block = next;
  }
  ServeWaiters();
}

inline void BufferPoolCore::Release(Block& block) {
  BufferPoolStats::SizeClass& counts = stats_.classes[block.size_class];
  VERBENA_DCHECK(block.capacity <= CarvedArena::Of(block).used && block.capacity <= used_ &&
                 counts.in_use > 0)
      << "a buffer of " << block.capacity << " bytes came home twice; " << used_ << " are in use";
  used_ -= block.capacity;
  CarvedArena::Of(block).used -= block.capacity;
  --counts.in_use;
  ++counts.free;
  block.next = caches_[block.size_class];
  caches_[block.size_class] = &block;
  EndHold(block);
}

inline void BufferPoolCore::EndHold(Block& block) {
  if (block.quota_owner == nullptr) return;
  // The quota lives until its hold is given back.
  const std::shared_ptr<const void> owner = std::move(block.quota_owner);
  block.hold.Give();
}

// --- Waiting -------------------------------------------------------------------------------------

void BufferPoolCore::Wait(BufferPool::Awaiter& waiter) {
  (IsLarge(waiter.bytes_) ? large_waiters_ : waiters_).PushBack(waiter);
  ++stats_.waits;
  ++stats_.waiting;
}

// Waiters behind this one may have waited only for its turn.
void BufferPoolCore::Leave(BufferPool::Awaiter& waiter) {
  VERBENA_DCHECK(stats_.waiting > 0);
  waiter.IntrusiveNode<BufferPool::Awaiter>::Unlink();
  --stats_.waiting;
  ServeWaiters();
}

void BufferPoolCore::ServeWaiters() {
  Serve(waiters_);
  if (waiters_.empty()) Serve(large_waiters_);
}

void BufferPoolCore::Serve(IntrusiveList<BufferPool::Awaiter>& waiters) {
  while (BufferPool::Awaiter* first = waiters.Front()) {
    Block* block = Take(first->bytes_, /*may_wait=*/true, first->status_);
    if (block != nullptr) {
      first->buffer_ = Buffer(*block, first->bytes_);
    } else if (first->status_.ok()) {
      return;
    }
    waiters.PopFront();
    VERBENA_DCHECK(stats_.waiting > 0);
    --stats_.waiting;
    first->Resume();
  }
}

BufferPoolStats BufferPoolCore::stats() const {
  BufferPoolStats stats = stats_;
  stats.budget_bytes = bound_;
  stats.arena_bytes = arena_bytes_;
  stats.arenas = arenas_.size();
  stats.growing_bytes = growing_bytes_;
  stats.bytes_in_use = used_;
  for (uint32_t order = 0; order < kBlockOrders; ++order) {
    stats.classes[SizeClassOf(OrderBytes(order))].free += buddies_.free_blocks(order);
  }
  return stats;
}

absl::StatusOr<std::unique_ptr<CarvedArena>> ArenaGrowth::operator()() {
  retired.clear();
  absl::StatusOr<Arena> arena = Arena::Create(*device, pd, bytes, access, kind);
  if (!arena.ok() && least < bytes) arena = Arena::Create(*device, pd, least, access, kind);
  VERBENA_RETURN_IF_ERROR(arena.status());
  return std::make_unique<CarvedArena>(*std::move(arena), home, *owner);
}

}  // namespace verbena::internal
