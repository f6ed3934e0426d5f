#include "transport/memory/buffer_pool_core.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/coro/poison.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/log/log.h"

namespace verbena::internal {
namespace {

// (start) Registering 4 MiB takes about a millisecond, and fits the usual RLIMIT_MEMLOCK of 8 MiB.
constexpr size_t kFirstArenaBytes = size_t{4} << 20;
// (start) The soft device pins nothing, but has few arenas.
constexpr size_t kFirstSoftArenaBytes = size_t{32} << 20;

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
  // Every block is home, or in the list that nobody adds to any more.
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

Block* BufferPoolCore::Take(size_t bytes, absl::Status& status) {
  const uint32_t size_class = SizeClassOf(bytes);
  Block* block = FindBlock(size_class);
  if (block == nullptr) {
    // Nothing can come home, and yet it is not to be had.
    if (used_ == 0) status = growth_failure_;
    return nullptr;
  }
  used_ += block->capacity;
  CarvedArena::Of(*block).used += block->capacity;
  stats_.peak_bytes_in_use = std::max(stats_.peak_bytes_in_use, used_);
  ++stats_.allocations;
  ++stats_.classes[size_class].in_use;
  UnpoisonMemory(block->data, block->capacity);
  block->references.store(1, std::memory_order_relaxed);
  return block;
}

absl::StatusOr<Buffer> BufferPoolCore::TryAllocate(size_t bytes) {
  absl::Status status = CheckSize(bytes);
  if (!status.ok()) return status;
  Block* block = has_waiters() ? nullptr : Take(bytes, status);
  if (block != nullptr) return Buffer(*block, bytes);
  ++stats_.refusals;
  return status.ok() ? Exhausted(bytes) : status;
}

absl::Status BufferPoolCore::Exhausted(size_t bytes) const {
  const BufferPoolStats now = stats();
  return absl::ResourceExhaustedError(
      fmt::format("no buffer of {} bytes: of the {} budget's {} bytes {} are in use, and {} others "
                  "wait",
                  bytes, name(), now.budget_bytes, now.bytes_in_use, now.waiting));
}

Block* BufferPoolCore::FindBlock(uint32_t size_class) {
  Block* block = caches_[size_class];
  if (block == nullptr) [[unlikely]]
    return FindBlockSlowly(size_class);
  caches_[size_class] = block->next;
  --stats_.classes[size_class].free;
  return block;
}

Block* BufferPoolCore::FindBlockSlowly(uint32_t size_class) {
  if (Block* block = buddies_.Take(size_class)) return block;
  EmptyCaches();
  if (Block* block = buddies_.Take(size_class)) return block;
  return Grow(SizeClassBytes(size_class)) ? buddies_.Take(size_class) : nullptr;
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

// Makes room for a block of `bytes`, where there is none.
bool BufferPoolCore::Grow(size_t bytes) {
  // With nothing in use it is worth another try to pin more.
  if (used_ == 0) bound_ = budget_;
  if (bound_ - arena_bytes_ < bytes && !RetireFreeArenas(bytes)) return false;
  const size_t room = bound_ - arena_bytes_;
  growth_failure_ = AddArena(NextArenaBytes(bytes, room));
  if (!growth_failure_.ok()) growth_failure_ = AddArena(bytes);
  if (growth_failure_.ok()) return true;
  bound_ = arena_bytes_;
  if (std::exchange(logged_bound_, bound_) != bound_) {
    Log(LogLevel::kWarning, fmt::format("the {} budget shrinks from {} to {} bytes: {}", name(),
                                        budget_, bound_, growth_failure_.ToString()));
  }
  return false;
}

size_t BufferPoolCore::NextArenaBytes(size_t bytes, size_t room) const {
  const size_t wanted =
      std::max(WholePages(options_.first_arena_bytes), std::min(arena_bytes_, kMaxBufferBytes));
  return std::clamp(wanted, bytes, room);
}

absl::Status BufferPoolCore::AddArena(size_t bytes) {
  absl::StatusOr<Arena> arena =
      Arena::Create(device_, pd_, bytes, options_.access,
                    options_.exposed ? ArenaKind::kExposed : ArenaKind::kPrivate);
  if (!arena.ok()) return arena.status();
  BlockOwner& owner = *this;
  arenas_.push_back(std::make_unique<CarvedArena>(*std::move(arena), &scheduler_, owner));
  buddies_.Add(*arenas_.back());
  arena_bytes_ += bytes;
  return absl::OkStatus();
}

// Gives up arenas that are wholly free until `bytes` more may be registered; none when that is not
// enough. Every free block is with the buddies.
bool BufferPoolCore::RetireFreeArenas(size_t bytes) {
  size_t room = bound_ - arena_bytes_;
  for (const auto& arena : arenas_) {
    if (arena->used == 0) room += arena->size();
  }
  if (room < bytes) return false;
  std::ranges::sort(arenas_, {}, [](const auto& arena) { return arena->size(); });
  for (auto& arena : arenas_) {
    if (bound_ - arena_bytes_ >= bytes) break;
    if (arena->used != 0) continue;
    buddies_.Remove(*arena);
    arena_bytes_ -= arena->size();
    arena.reset();
  }
  std::erase(arenas_, nullptr);
  return true;
}

// --- Coming home ---------------------------------------------------------------------------------

void BufferPoolCore::OnUnused(Block& block) {
  PoisonMemory(block.data, block.capacity);
  if (Scheduler::Current() == &scheduler_) [[likely]] {
    Release(block);
    if (has_waiters()) GrantWaiters();
    return;
  }
  Scheduler& scheduler = scheduler_;
  const bool tell = !abandoned_.load(std::memory_order_acquire);
  Block* newest = returned_.load(std::memory_order_relaxed);
  do {
    block.next = newest;
    // From here on the block is its home thread's, and the pool may be gone; unless it has to be
    // told, which it waits for.
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
  GrantWaiters();
}

inline void BufferPoolCore::Release(Block& block) {
  used_ -= block.capacity;
  CarvedArena::Of(block).used -= block.capacity;
  BufferPoolStats::SizeClass& counts = stats_.classes[block.size_class];
  --counts.in_use;
  ++counts.free;
  block.next = caches_[block.size_class];
  caches_[block.size_class] = &block;
}

// --- Waiting -------------------------------------------------------------------------------------

void BufferPoolCore::Wait(BufferPool::Awaiter& waiter) {
  waiters_.PushBack(waiter);
  ++stats_.waits;
  ++stats_.waiting;
}

// Those behind may have waited only for this one's turn.
void BufferPoolCore::Leave(BufferPool::Awaiter& waiter) {
  waiter.IntrusiveNode<BufferPool::Awaiter>::Unlink();
  --stats_.waiting;
  GrantWaiters();
}

void BufferPoolCore::GrantWaiters() {
  while (BufferPool::Awaiter* first = waiters_.Front()) {
    Block* block = Take(first->bytes_, first->status_);
    if (block != nullptr) {
      first->buffer_ = Buffer(*block, first->bytes_);
    } else if (first->status_.ok()) {
      return;
    }
    waiters_.PopFront();
    --stats_.waiting;
    first->Resume();
  }
}

BufferPoolStats BufferPoolCore::stats() const {
  BufferPoolStats stats = stats_;
  stats.budget_bytes = bound_;
  stats.arena_bytes = arena_bytes_;
  stats.arenas = arenas_.size();
  stats.bytes_in_use = used_;
  for (uint32_t i = 0; i < kSizeClasses; ++i) stats.classes[i].free += buddies_.free_blocks(i);
  return stats;
}

}  // namespace verbena::internal
