#include "verbena/transport/memory/buffer_pool.h"

#include <utility>

#include "fmt/format.h"
#include "transport/memory/buffer_pool_core.h"

namespace verbena::internal {

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

}  // namespace verbena::internal
