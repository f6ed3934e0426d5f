// Wire: where the two hosts of a case are: on one device, on two, or in two processes.
//
// The command line selects wires and devices. Only wires.cc opens soft and RDMA devices; cases use
// them as a Device.

#ifndef VERBENA_TESTS_CONFORMANCE_WIRES_H_
#define VERBENA_TESTS_CONFORMANCE_WIRES_H_

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/conformance/objects.h"
#include "tests/conformance/shared_device.h"

namespace verbena::internal::conformance {

struct Wire {
  enum class Far {
    kSameDevice,   // both hosts use one device
    kOtherDevice,  // two devices of this process, or two contexts of one RDMA device
    kOtherProcess,
  };
  std::string name;
  Far far = Far::kSameDevice;
  Backing backing = Backing::kPrivate;
};

inline void PrintTo(const Wire& wire, std::ostream* out) { *out << wire.name; }

// The choices on the command line.
struct Selection {
  std::string device = "soft";     // or the name of an RDMA device
  std::string far_device;          // the far host's, unless it shares `device`; empty: the same
  std::vector<std::string> wires;  // empty: those that differ on the device
};

Selection& selection();

// The selected wires, or by default those that make a difference on the device. INVALID_ARGUMENT
// for an unknown name.
absl::StatusOr<std::vector<Wire>> SelectedWires();

enum class Side { kNear, kFar };

// Opens the device selected for a side.
absl::StatusOr<std::shared_ptr<SharedDevice>> OpenSelectedDevice(Side side);

}  // namespace verbena::internal::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_WIRES_H_
