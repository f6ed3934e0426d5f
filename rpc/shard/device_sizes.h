// DeviceSizes: the LinkLimits that a runtime's devices get, fitted to the memory that its process
// may pin and have.
//
// A runtime whose options leave all sizes at their defaults takes LinkLimits::Small() on devices
// that pin memory, where RLIMIT_MEMLOCK leaves the default ones less room for payloads than the
// small ones have. Sizes that the program chose itself stay. A value; FitSizes() is a pure
// function.
//
//   VERBENA_ASSIGN_OR_RETURN(DeviceSizes sizes,
//                            FitSizes(options.limits, options.executors, devices, memory));
//   for (const std::string& line : sizes.warnings) Log(LogLevel::kWarning, line);

#ifndef VERBENA_RPC_SHARD_DEVICE_SIZES_H_
#define VERBENA_RPC_SHARD_DEVICE_SIZES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/device/process_memory.h"
#include "verbena/transport/link/limits.h"

namespace verbena::internal {

struct DeviceSizes {
  // Not explicit: mostly, all devices get the same.
  DeviceSizes(const LinkLimits& all = {})  // NOLINT(google-explicit-constructor)
      : pinning(all), others(all) {}

  // The devices whose memory is pinned: all but the soft ones.
  LinkLimits pinning;
  LinkLimits others;
  // Why `pinning` is LinkLimits::Small() without being asked for; empty if it is not.
  std::string reduced;
  // For the log: memory that may not suffice under load, a line each.
  std::vector<std::string> warnings;

  const LinkLimits& Of(LinkKind kind) const {
    return kind == LinkKind::kSoft || kind == LinkKind::kTcp ? others : pinning;
  }
  // The bounds of what clients may hold are shares of these, so that one of them cannot take all of
  // a device that has less.
  const LinkLimits& smallest() const { return reduced.empty() ? others : pinning; }
};

// What one device asks of the process's memory.
struct DeviceNeed {
  std::string name;
  bool pins = false;
  bool emulated = false;
  RootPins root = RootPins::kFreely;
};
DeviceNeed NeedOf(const Device& device);

// The sizes for `executors` executors, each of which may use all `devices`. RESOURCE_EXHAUSTED: not
// even LinkLimits::Small() can be pinned, or the cgroup's memory.max is less than what is pinned at
// the start; the message names the limit, what is needed, and what to set.
VERBENA_EXPORT absl::StatusOr<DeviceSizes> FitSizes(const LinkLimits& wanted, int executors,
                                                    const std::vector<DeviceNeed>& devices,
                                                    const ProcessMemory& memory);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SHARD_DEVICE_SIZES_H_
