#include "transport/memory/buffer_pool_core.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/poison.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/device/control_pool.h"
#include "verbena/transport/device/device.h"

namespace verbena::internal {
namespace {

// (start) Registering 4 MiB takes about a millisecond, and fits the usual RLIMIT_MEMLOCK of 8 MiB.
constexpr size_t kFirstArenaBytes = size_t{4} << 20;
// (start) The soft device pins nothing, but has few arenas.
constexpr size_t kFirstSoftArenaBytes = size_t{32} << 20;

// (start) How long a device that has refused to pin more is left alone.
constexpr Duration kFirstRetryPause = std::chrono::milliseconds(100);
constexpr Duration kLongestRetryPause = std::chrono::seconds(10);

size_t WholePages(size_t bytes) { return bytes / kMinBufferBytes * kMinBufferBytes; }

BufferPoolOptions WithDefaults(BufferPoolOptions options, const Device& device) {
  if (options.first_arena_bytes == 0) {
    options.first_arena_bytes =
        device.kind() == DeviceKind::kSoft ? kFirstSoftArenaBytes : kFirstArenaBytes;
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

BufferPoolCore::BufferPoolCore(Scheduler& scheduler, Device& device, ibv_pd* pd,
                               BufferPoolOptions options)
    : scheduler_(scheduler),
      device_(device),
      pd_(pd),
      options_(WithDefaults(std::move(options), device)),
      budget_(WholePages(options_.budget_bytes)),
      bound_(budget_) {}

void BufferPoolCore::Close() {
  AbandonGrowth();
  Block* const returned = returned_.load(std::memory_order_acquire);
  size_t coming = 0;
  for (const Block* block = returned; block != nullptr; block = block->next) {
    coming += block->capacity;
  }
  if (used_ != coming) {
    abandoned_.store(true, std::memory_order_release);
    Log(LogLevel::kError,
        fmt::format("the {} pool was destroyed while {} bytes of its buffers were "
                    "in use: all of its {} bytes stay registered",
                    name(), used_ - coming, arena_bytes_));
    KeepForEver(this);
    return;
  }
  // Every block is home, or in the list that nobody adds to any more. The listeners may live on.
  for (Block* block = returned; block != nullptr; block = block->next) TellListener(*block);
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
  const uint32_t size_class = SizeClassOf(bytes);
  Block* block = FindBlock(size_class, may_wait);
  if (block == nullptr) {
    // Whether no buffer that comes home would help.
    const bool in_vain = used_ == 0 || SizeClassBytes(size_class) > bound_;
    if (in_vain && growth_ == nullptr) status = growth_failure_;
    return nullptr;
  }
  used_ += block->capacity;
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
  Log(LogLevel::kWarning, fmt::format("the {} budget shrinks from {} to {} bytes: {}", name(),
                                      budget_, bound_, refused.ToString()));
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
  VERBENA_CHECK(unused()) << used_ << " bytes of the " << name() << " pool are in use";
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
  used_ -= block.capacity;
  CarvedArena::Of(block).used -= block.capacity;
  BufferPoolStats::SizeClass& counts = stats_.classes[block.size_class];
  --counts.in_use;
  ++counts.free;
  block.next = caches_[block.size_class];
  caches_[block.size_class] = &block;
  TellListener(block);
}

inline void BufferPoolCore::TellListener(Block& block) {
  if (block.listener != nullptr)
    std::exchange(block.listener, nullptr)->OnBlockHome(block.capacity);
}

// --- Waiting -------------------------------------------------------------------------------------

void BufferPoolCore::Wait(BufferPool::Awaiter& waiter) {
  (IsLarge(waiter.bytes_) ? large_waiters_ : waiters_).PushBack(waiter);
  ++stats_.waits;
  ++stats_.waiting;
}

// Waiters behind this one may have waited only for its turn.
void BufferPoolCore::Leave(BufferPool::Awaiter& waiter) {
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

}  // namespace verbena::internal
