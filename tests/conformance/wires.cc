#include "tests/conformance/wires.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/soft/soft_device.h"
#include "verbena/transport/verbs/rdma_device.h"

namespace verbena::internal::conformance {
namespace {

// Whether a device maps its peer's memory matters only between processes.
const std::vector<Wire>& AllWires() {
  static const auto* const kAll = new std::vector<Wire>{
      {"one_device", Wire::Far::kSameDevice, Backing::kPrivate},
      {"two_devices", Wire::Far::kOtherDevice, Backing::kPrivate},
      {"processes", Wire::Far::kOtherProcess, Backing::kPrivate},
      {"processes_shared", Wire::Far::kOtherProcess, Backing::kShared},
  };
  return *kAll;
}

// A real device's own memory management makes nothing of memfds, and two contexts of one device are
// no more than two processes that use it.
bool IsByDefault(const Wire& wire) {
  if (selection().device == "soft") return true;
  if (wire.far == Wire::Far::kOtherDevice) return !selection().far_device.empty();
  return wire.backing == Backing::kPrivate;
}

template <typename T>
absl::StatusOr<std::shared_ptr<SharedDevice>> Share(absl::StatusOr<std::unique_ptr<T>> device) {
  if (!device.ok()) return device.status();
  return std::make_shared<SharedDevice>(*std::move(device));
}

}  // namespace

Selection& selection() {
  static Selection* const kSelection = new Selection();
  return *kSelection;
}

absl::StatusOr<std::vector<Wire>> SelectedWires() {
  std::vector<Wire> selected;
  if (selection().wires.empty()) {
    std::copy_if(AllWires().begin(), AllWires().end(), std::back_inserter(selected), IsByDefault);
    return selected;
  }
  for (const std::string& name : selection().wires) {
    const auto found = std::find_if(AllWires().begin(), AllWires().end(),
                                    [&](const Wire& wire) { return wire.name == name; });
    if (found == AllWires().end()) {
      return absl::InvalidArgumentError(fmt::format("no wire is named \"{}\"", name));
    }
    selected.push_back(*found);
  }
  return selected;
}

absl::StatusOr<std::shared_ptr<SharedDevice>> OpenSelectedDevice(Side side) {
  const Selection& chosen = selection();
  const bool far = side == Side::kFar && !chosen.far_device.empty();
  const std::string& name = far ? chosen.far_device : chosen.device;
  if (name == "soft") return Share(SoftDevice::Create(SoftDeviceOptions()));
  constexpr std::string_view kPrefix = "rdma:";
  return Share(RdmaDevice::Open(name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name));
}

}  // namespace verbena::internal::conformance
