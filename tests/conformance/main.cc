// Runs the conformance cases: on which device and wires, the command line says.
//
//   --device=soft | NAME   our software device, or an RDMA device of this host, also "rdma:NAME";
//                          default: what VERBENA_DEVICE says, else soft
//   --far_device=NAME      of the far host where it does not share the near one's; default: the
//                          same
//   --wires=one_device,…   default: all that differ on the device
//   --report               ends with what the device has and does otherwise, for docs/devices.md
//
// beside gtest's own flags. The far host of a wire between processes is this binary again, with
// --serve_host.

#include <signal.h>
#include <sys/prctl.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_split.h"
#include "fmt/format.h"
#include "gtest/gtest.h"
#include "tests/conformance/local_host.h"
#include "tests/conformance/remote_host.h"
#include "tests/conformance/report.h"
#include "tests/conformance/watchdog.h"
#include "tests/conformance/wires.h"

namespace verbena::conformance {
namespace {

// True when `argument` is "--name=…"; `value` is then what follows.
bool TakeFlag(const std::string& argument, const std::string& name, std::string& value) {
  const std::string prefix = "--" + name + "=";
  if (!argument.starts_with(prefix)) return false;
  value = argument.substr(prefix.size());
  return true;
}

int Fail(const absl::Status& status) {
  fmt::print(stderr, "{}\n", status.ToString());
  return EXIT_FAILURE;
}

int ServeHostMain() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  absl::StatusOr<std::vector<Wire>> wires = SelectedWires();
  if (!wires.ok()) return Fail(wires.status());
  absl::StatusOr<std::shared_ptr<SharedDevice>> device = OpenSelectedDevice(Side::kFar);
  if (!device.ok()) return Fail(device.status());
  LocalHost host(*device, wires->front().backing);
  ServeHost(host, MessageSocket(RemoteHost::kHostSocketFd));
  return EXIT_SUCCESS;
}

int Main(int argc, char** argv) {
  bool serve = false;
  bool report = false;
  if (const char* name = std::getenv("VERBENA_DEVICE")) selection().device = name;
  for (int i = 1; i < argc; ++i) {
    std::string value;
    if (TakeFlag(argv[i], "device", value)) selection().device = value;
    if (TakeFlag(argv[i], "far_device", value)) selection().far_device = value;
    if (TakeFlag(argv[i], "wires", value)) selection().wires = absl::StrSplit(value, ',');
    if (std::string(argv[i]) == "--serve_host") serve = true;
    if (std::string(argv[i]) == "--report") report = true;
  }
  if (serve) return ServeHostMain();
  if (absl::StatusOr<std::vector<Wire>> wires = SelectedWires(); !wires.ok()) {
    return Fail(wires.status());
  }
  testing::InitGoogleTest(&argc, argv);
  Watchdog::Install();
  const int result = RUN_ALL_TESTS();
  if (!report) return result;
  const absl::Status printed = PrintReport();
  return printed.ok() ? result : Fail(printed);
}

}  // namespace
}  // namespace verbena::conformance

int main(int argc, char** argv) { return verbena::conformance::Main(argc, argv); }
