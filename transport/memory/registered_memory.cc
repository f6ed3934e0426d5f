#include "verbena/transport/memory/registered_memory.h"

#include <mutex>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/device/device.h"

namespace verbena {

class RegisteredMemory::Core final : private internal::BlockOwner {
 public:
  Core(internal::MrHandle mr, char* memory, size_t bytes, int access, Scheduler* home)
      : mr_(std::move(mr)), region_(mr_.device().name(), memory, bytes, mr_.get(), access, home) {}
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;
  ~Core() override {
    VERBENA_CHECK(in_use_ == 0) << in_use_ << " buffers lie in memory that is deregistered";
    while (Wrapped* wrapped = free_) {
      free_ = static_cast<Wrapped*>(wrapped->next);
      delete wrapped;
    }
  }

  Buffer Wrap(size_t offset, size_t bytes, absl::AnyInvocable<void()> released) {
    Wrapped* wrapped = TakeWrapped();
    wrapped->data = region_.data() + offset;
    wrapped->capacity = bytes;
    wrapped->released = std::move(released);
    wrapped->references.store(1, std::memory_order_relaxed);
    return {*wrapped, bytes};
  }

  const internal::MemoryRegion& region() const { return region_; }
  internal::Device& device() const { return mr_.device(); }
  void LeaveRing() { region_.LeaveRegistrar(); }
  void HoldDevice(std::shared_ptr<const void> holder) { holder_ = std::move(holder); }
  size_t in_use() {
    std::lock_guard<std::mutex> lock(mutex_);
    return in_use_;
  }

 private:
  struct Region final : internal::MemoryRegion {
    using internal::MemoryRegion::LeaveRegistrar;
    using internal::MemoryRegion::MemoryRegion;
  };
  // Reused, and so never destroyed while a buffer of it is out.
  struct Wrapped final : internal::Block {
    using Block::Block;
    absl::AnyInvocable<void()> released;
  };

  Wrapped* TakeWrapped() {
    std::lock_guard<std::mutex> lock(mutex_);
    ++in_use_;
    Wrapped* wrapped = free_;
    if (wrapped == nullptr) return new Wrapped(nullptr, 0, region_, *this);
    free_ = static_cast<Wrapped*>(wrapped->next);
    return wrapped;
  }

  void OnUnused(internal::Block& block) override {
    auto& wrapped = static_cast<Wrapped&>(block);
    absl::AnyInvocable<void()> released = std::exchange(wrapped.released, nullptr);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      VERBENA_CHECK(in_use_ > 0) << "a buffer of registered memory came home twice";
      --in_use_;
      wrapped.next = free_;
      free_ = &wrapped;
    }
    // The callee may destroy this object.
    if (released) released();
  }

  std::shared_ptr<const void> holder_;  // goes last
  const internal::MrHandle mr_;
  Region region_;
  std::mutex mutex_;  // guards what follows
  Wrapped* free_ = nullptr;
  size_t in_use_ = 0;
};

absl::StatusOr<std::unique_ptr<RegisteredMemory>> RegisteredMemory::Register(
    internal::Device& device, ibv_pd* pd, void* memory, size_t bytes, int access, Scheduler* home) {
  VERBENA_ASSIGN_OR_RETURN(ibv_mr * mr, device.RegMr(pd, memory, bytes, access));
  return std::unique_ptr<RegisteredMemory>(new RegisteredMemory(std::make_unique<Core>(
      internal::MrHandle(device, mr), static_cast<char*>(memory), bytes, access, home)));
}

RegisteredMemory::RegisteredMemory(std::unique_ptr<Core> core) : core_(std::move(core)) {}

RegisteredMemory::~RegisteredMemory() {
  const size_t in_use = core_->in_use();
  if (in_use == 0) {
    const internal::MemoryRegion& region = core_->region();
    VERBENA_CHECK(region.registrar() == nullptr || Scheduler::Current() == region.home())
        << "memory of " << region.size()
        << " bytes is in the io_uring of another thread: call LeaveRing() there first";
    return;
  }
  VERBENA_LOG_LINE(
      kMemory, kError,
      fmt::format(
          "registered memory was destroyed while {} buffers of it were in use: its {} bytes "
          "stay registered with {} until the process ends. Destroy its Buffers first",
          in_use, core_->region().size(), core_->device().name()),
      {{"device", core_->device().name()}});
  core_->device().KeepMemory();
  // Kept for ever: the buffers refer to it.
  static std::mutex mutex;
  // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new): without memory the process ends.
  static auto* const kept = new std::vector<std::unique_ptr<Core>>;
  std::lock_guard<std::mutex> lock(mutex);
  kept->push_back(std::move(core_));
}

absl::StatusOr<Buffer> RegisteredMemory::Wrap(size_t offset, size_t bytes,
                                              absl::AnyInvocable<void()> released) {
  const size_t size = core_->region().size();
  if (offset > size || bytes > size - offset) {
    return absl::OutOfRangeError(
        fmt::format("[{}, +{}) is not within the {} bytes registered", offset, bytes, size));
  }
  return core_->Wrap(offset, bytes, std::move(released));
}

const internal::MemoryRegion& RegisteredMemory::region() const { return core_->region(); }
void RegisteredMemory::HoldDevice(std::shared_ptr<const void> holder) {
  core_->HoldDevice(std::move(holder));
}
size_t RegisteredMemory::in_use() const { return core_->in_use(); }

bool RegisteredMemory::LeaveRing() {
  const internal::MemoryRegion& region = core_->region();
  if (region.home() == nullptr) return true;
  VERBENA_CHECK(Scheduler::Current() == region.home())
      << "memory of " << region.size() << " bytes leaves its ring on its home's thread alone";
  // A Buffer in use could enter the ring again.
  if (core_->in_use() != 0) return false;
  core_->LeaveRing();
  return true;
}

}  // namespace verbena
