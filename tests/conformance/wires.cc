#include "tests/conformance/wires.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/soft/soft_device.h"
#include "verbena/transport/verbs/rdma_device.h"

namespace verbena::conformance {
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
  if (selection().wires.empty()) return AllWires();
  std::vector<Wire> selected;
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

absl::StatusOr<std::shared_ptr<SharedDevice>> OpenSelectedDevice() {
  if (selection().device == "soft") return Share(SoftDevice::Create(SoftDeviceOptions()));
  return Share(RdmaDevice::Open(selection().device));
}

}  // namespace verbena::conformance
