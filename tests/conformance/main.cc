// Runs the conformance cases on the device and wires that the command line selects.
//
//   --device=soft | NAME   the soft device, or an RDMA device of this host, also "rdma:NAME";
//                          default: VERBENA_DEVICE if it is set, otherwise soft
//   --far_device=NAME      the far host's device, unless it shares the near one's; default: the
//                          same
//   --wires=one_device,…   default: all that make a difference on the device
//   --report               prints a report on the device at the end, for docs/devices.md
//
// gtest's own flags work too. The far host of a wire between processes is this binary again, with
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

namespace verbena::internal::conformance {
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
}  // namespace verbena::internal::conformance

int main(int argc, char** argv) { return verbena::internal::conformance::Main(argc, argv); }
