#include "verbena/rpc/shard/device_sizes.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/str_join.h"
#include "fmt/format.h"
#include "verbena/transport/base/status.h"

namespace verbena::internal {
namespace {

// The least payload memory, 1 MiB for each of three pools: with less, calls with payloads wait for
// each other. LinkLimits::Small() has as much.
constexpr uint64_t kLeastPayloads = uint64_t{3} << 20;
// The payload memory with which these pools begin.
constexpr uint64_t kFirstPayloads = uint64_t{3} * (256 << 10);

std::string Kib(uint64_t bytes) { return fmt::format("{} KiB", (bytes + 1023) / 1024); }

std::string Of(int executors, const std::vector<std::string>& names) {
  return fmt::format("{} executor{} on {}", executors, executors == 1 ? "" : "s",
                     absl::StrJoin(names, ", "));
}

// Sums over the devices that pin memory and that RLIMIT_MEMLOCK bounds.
class Pinning {
 public:
  Pinning(int executors, const std::vector<DeviceNeed>& devices, const ProcessMemory& memory)
      : executors_(executors) {
    for (const DeviceNeed& device : devices) {
      if (!device.pins || memory.MayPin(device.root) == kNoMemoryLimit) continue;
      bounded_.push_back(device);
      names_.push_back(device.name);
      // Each bounded device has the same bound.
      may_pin_ = memory.MayPin(device.root);
    }
  }

  bool is_bounded() const { return !bounded_.empty(); }
  uint64_t may_pin() const { return may_pin_; }
  // With `payloads` bytes of payload memory on each device.
  uint64_t Need(const LinkLimits& limits, uint64_t payloads) const {
    uint64_t bytes = 0;
    for (const DeviceNeed& device : bounded_) {
      bytes += PinnedMemoryOf(limits, device.emulated).at_start + payloads;
    }
    return bytes * static_cast<uint64_t>(executors_);
  }
  bool Fits(const LinkLimits& limits, uint64_t payloads) const {
    return Need(limits, payloads) <= may_pin_;
  }
  std::string who() const { return Of(executors_, names_); }

 private:
  const int executors_;
  std::vector<DeviceNeed> bounded_;
  std::vector<std::string> names_;
  uint64_t may_pin_ = kNoMemoryLimit;
};

std::string Limit(const ProcessMemory& memory) {
  std::string text = fmt::format("RLIMIT_MEMLOCK is {}", Kib(memory.memlock));
  if (memory.pinned > 0) text += fmt::format(", of which {} are pinned", Kib(memory.pinned));
  if (memory.memlock_hard > memory.memlock) {
    text += memory.memlock_hard == kNoMemoryLimit
                ? " (the hard limit is none)"
                : fmt::format(" (the hard limit is {})", Kib(memory.memlock_hard));
  }
  return text;
}

absl::Status FitPinning(const LinkLimits& wanted, const Pinning& pinning,
                        const ProcessMemory& memory, DeviceSizes& sizes) {
  if (!pinning.is_bounded() || pinning.Fits(wanted, kLeastPayloads)) return absl::OkStatus();
  if (!HasDefaultSizes(wanted)) {
    // Small() itself, and what programs chose: the device decides.
    if (pinning.Fits(wanted, kFirstPayloads)) return absl::OkStatus();
    sizes.warnings.push_back(fmt::format(
        "{}; {} pin {} with the given LinkLimits, beside payloads: what is refused fails. Lower "
        "srq_depth and send_buffers, or {}",
        Limit(memory), pinning.who(), Kib(pinning.Need(wanted, 0)), kMemlockRemedy));
    return absl::OkStatus();
  }
  const LinkLimits small = WithSmallSizes(wanted);
  if (!pinning.Fits(small, kFirstPayloads)) {
    return absl::ResourceExhaustedError(fmt::format(
        "{}; {} pin {} at least, with LinkLimits::Small(): use fewer executors or devices, or {}",
        Limit(memory), pinning.who(), Kib(pinning.Need(small, kFirstPayloads)), kMemlockRemedy));
  }
  sizes.pinning = small;
  sizes.reduced = fmt::format(
      "runs with LinkLimits::Small(), because {}, and {} pin {} with default limits; for more "
      "links and larger payloads {}",
      Limit(memory), pinning.who(), Kib(pinning.Need(wanted, kLeastPayloads)), kMemlockRemedy);
  return absl::OkStatus();
}

// Memory that is pinned counts at once. The soft device's and the budgets count as they are used.
absl::Status FitCgroup(int executors, const std::vector<DeviceNeed>& devices,
                       const ProcessMemory& memory, DeviceSizes& sizes) {
  if (memory.cgroup_max == kNoMemoryLimit) return absl::OkStatus();
  uint64_t pinned = 0, most = 0;
  std::vector<std::string> names;
  for (const DeviceNeed& device : devices) {
    const LinkLimits& limits = device.pins ? sizes.pinning : sizes.others;
    const PinnedMemory need = PinnedMemoryOf(limits, !device.pins || device.emulated);
    if (device.pins) pinned += need.at_start;
    most += need.all();
    names.push_back(device.name);
  }
  pinned *= static_cast<uint64_t>(executors);
  most *= static_cast<uint64_t>(executors);
  if (pinned > memory.cgroup_max) {
    return absl::ResourceExhaustedError(fmt::format(
        "{} says {}, but {} pin {} at their start, for which the kernel would kill the process: "
        "raise the memory limit of the container or unit (MemoryMax=), or use fewer executors or "
        "LinkLimits::Small()",
        memory.cgroup_file, Kib(memory.cgroup_max), Of(executors, names), Kib(pinned)));
  }
  if (most > memory.cgroup_max) {
    sizes.warnings.push_back(fmt::format(
        "{} says {}, but {} may take {} under load, payloads included, for which the kernel would "
        "kill the process: lower LinkLimits::memory or executors so that this fits, or raise the "
        "memory limit of the container or unit (MemoryMax=)",
        memory.cgroup_file, Kib(memory.cgroup_max), Of(executors, names), Kib(most)));
  }
  return absl::OkStatus();
}

}  // namespace

DeviceNeed NeedOf(const Device& device) {
  return {.name = device.name(),
          .pins = device.kind() == DeviceKind::kRdma,
          .emulated = device.capabilities().emulated,
          .root = device.capabilities().root_pins};
}

absl::StatusOr<DeviceSizes> FitSizes(const LinkLimits& wanted, int executors,
                                     const std::vector<DeviceNeed>& devices,
                                     const ProcessMemory& memory) {
  DeviceSizes sizes(wanted);
  const Pinning pinning(executors, devices, memory);
  VERBENA_RETURN_IF_ERROR(FitPinning(wanted, pinning, memory, sizes));
  VERBENA_RETURN_IF_ERROR(FitCgroup(executors, devices, memory, sizes));
  return sizes;
}

}  // namespace verbena::internal
