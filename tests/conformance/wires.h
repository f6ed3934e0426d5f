// Wires: between what hosts the cases run, and on which device.
//
// The one place of the suite that knows a kind of device; cases know Device alone.

#ifndef VERBENA_TESTS_CONFORMANCE_WIRES_H_
#define VERBENA_TESTS_CONFORMANCE_WIRES_H_

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/conformance/objects.h"
#include "tests/conformance/shared_device.h"

namespace verbena::conformance {

struct Wire {
  enum class Far {
    kSameDevice,   // both hosts use one device
    kOtherDevice,  // two devices of this process (two contexts of one device, where it is real)
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
  std::string far_device;          // of the far host, where it does not share; empty: the same
  std::vector<std::string> wires;  // empty: those that differ on the device
};

Selection& selection();

// The selected wires, or by default those that make a difference on the device. INVALID_ARGUMENT
// for a name that is none.
absl::StatusOr<std::vector<Wire>> SelectedWires();

enum class Side { kNear, kFar };

// Opens the device selected for a side.
absl::StatusOr<std::shared_ptr<SharedDevice>> OpenSelectedDevice(Side side);

}  // namespace verbena::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_WIRES_H_
