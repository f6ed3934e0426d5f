// PinningDevice: a FakeDevice that registers memory up to a limit and counts what is registered.

#ifndef VERBENA_TESTS_TRANSPORT_MEMORY_PINNING_DEVICE_H_
#define VERBENA_TESTS_TRANSPORT_MEMORY_PINNING_DEVICE_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "tests/transport/device/fake_device.h"

namespace verbena::internal {

class PinningDevice final : public FakeDevice {
 public:
  // The bytes that may be registered at a time, as RLIMIT_MEMLOCK limits them.
  size_t limit = ~size_t{0};
  // The most bytes of one registration.
  size_t largest = ~size_t{0};
  // Unless OK, every deregistration fails with this status, and the MR stays registered.
  absl::Status dereg_status;

  size_t pinned() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return pinned_;
  }
  size_t regions() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return regions_.size();
  }
  size_t registrations() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return registrations_;
  }
  // Memory that AllocateMemory handed out and did not get back.
  int allocations() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return allocations_;
  }

  DeviceKind kind() const override { return DeviceKind::kRdma; }

  absl::StatusOr<ibv_mr*> RegMr(ibv_pd* pd, void* address, size_t bytes, int) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (bytes > limit - pinned_) {
      return absl::ResourceExhaustedError(
          fmt::format("RLIMIT_MEMLOCK is {}, and {} more are needed", limit, bytes));
    }
    if (bytes > largest) {
      return absl::ResourceExhaustedError(fmt::format("{} bytes are more than {}", bytes, largest));
    }
    auto mr = std::make_unique<ibv_mr>();
    mr->pd = pd;
    mr->addr = address;
    mr->length = bytes;
    mr->lkey = static_cast<uint32_t>(++registrations_);
    mr->rkey = mr->lkey + 1000;
    pinned_ += bytes;
    ibv_mr* key = mr.get();
    regions_.emplace(key, std::move(mr));
    return key;
  }
  absl::Status DeregMr(ibv_mr* mr) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!dereg_status.ok()) return dereg_status;
    pinned_ -= mr->length;
    return regions_.erase(mr) == 1 ? absl::OkStatus() : absl::InternalError("no such MR");
  }
  absl::StatusOr<std::byte*> AllocateMemory(size_t bytes) override {
    if (!allocate_status.ok()) return allocate_status;
    std::lock_guard<std::mutex> lock(mutex_);
    ++allocations_;
    return FakeDevice::AllocateMemory(bytes);
  }
  absl::Status FreeMemory(std::byte* memory, size_t bytes) override {
    std::lock_guard<std::mutex> lock(mutex_);
    --allocations_;
    return FakeDevice::FreeMemory(memory, bytes);
  }
  // Unless OK, AllocateMemory returns this instead of memory.
  absl::Status allocate_status;

 private:
  mutable std::mutex mutex_;  // guards what follows: a pool grows on a control thread
  std::map<const ibv_mr*, std::unique_ptr<ibv_mr>> regions_;
  size_t pinned_ = 0;
  size_t registrations_ = 0;
  int allocations_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_TRANSPORT_MEMORY_PINNING_DEVICE_H_
