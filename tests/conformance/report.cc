#include "tests/conformance/report.h"

#include <sys/utsname.h>

#include <map>
#include <string>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "tests/conformance/departures.h"
#include "tests/conformance/local_host.h"
#include "tests/conformance/wires.h"

namespace verbena::conformance {
namespace {

void Row(const std::string& what, const std::string& value) {
  fmt::print("| {} | {} |\n", what, value);
}

void Row(const std::string& what, bool has) { Row(what, std::string(has ? "yes" : "no")); }

void PrintProperties(const HostInfo& info) {
  const DeviceCapabilities& can = info.capabilities;
  const ibv_device_attr& attributes = info.attributes;
  fmt::print("| property | value |\n| --- | --- |\n");
  Row("vendor", fmt::format("{:#x}", attributes.vendor_id));
  Row("shared receive queues", can.srq);
  Row("SRQ limit event", can.srq_limit_event);
  Row("last WQE event", can.last_wqe_event);
  Row("WRs posted in ERR flushed", can.flushes_in_error);
  Row("SEND with immediate", can.send_with_immediate);
  Row("WRITE with immediate", can.write_with_immediate);
  Row("atomics", can.atomics);
  Row("memory windows, type 2", can.memory_windows);
  Row("RNR NAK", can.rnr_nak);
  Row("remote keys checked", can.remote_key_checked);
  Row("inline bytes", std::to_string(can.max_inline_bytes));
  Row("WRs of a QP", std::to_string(attributes.max_qp_wr));
  Row("SGEs", std::to_string(attributes.max_sge));
  Row("completions of a CQ", std::to_string(attributes.max_cqe));
  Row("receives of an SRQ", std::to_string(attributes.max_srq_wr));
  Row("READs in flight", std::to_string(attributes.max_qp_init_rd_atom));
  Row("bytes of a message", std::to_string(info.port.max_msg_sz));
  Row("path MTU", std::to_string(128 << info.port.active_mtu));
}

void PrintDepartures() {
  const std::vector<Departure> noted = NotedDepartures();
  if (noted.empty()) {
    fmt::print("\nNo case saw it depart from verbs.\n");
    return;
  }
  fmt::print("\n| case | verbs demand | the device |\n| --- | --- | --- |\n");
  for (const Departure departure : noted) {
    const DepartureText text = TextOf(departure);
    fmt::print("| {} | {} | {} |\n", text.what, text.demanded, text.instead);
  }
}

struct Cases {
  int ran = 0;
  std::map<std::string, std::string> skipped;  // the reason, by case
};

Cases CountCases() {
  Cases cases;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const testing::TestInfo& test = *suite.GetTestInfo(t);
      if (test.should_run() && !test.result()->Skipped()) ++cases.ran;
      for (int p = 0; p < test.result()->total_part_count(); ++p) {
        const testing::TestPartResult& part = test.result()->GetTestPartResult(p);
        if (!part.skipped()) continue;
        // "Conformance/Suite" and "Case/wire": the same for every wire.
        const std::string name = fmt::format("{}.{}", suite.name(), test.name());
        cases.skipped[name.substr(name.find('/') + 1, name.rfind('/') - name.find('/') - 1)] =
            part.message();
      }
    }
  }
  return cases;
}

void PrintSkipped(const std::map<std::string, std::string>& skipped) {
  if (skipped.empty()) return;
  fmt::print("\n| not run | because |\n| --- | --- |\n");
  for (const auto& [name, reason] : skipped) fmt::print("| {} | {} |\n", name, reason);
}

// Of a device that no case could run on, the properties are all that was found.
void PrintFindings() {
  const Cases cases = CountCases();
  if (cases.ran == 0 && !cases.skipped.empty()) {
    fmt::print("\nNo case ran: {}.\n", cases.skipped.begin()->second);
    return;
  }
  PrintDepartures();
  PrintSkipped(cases.skipped);
}

}  // namespace

absl::Status PrintReport() {
  absl::StatusOr<std::shared_ptr<SharedDevice>> device = OpenSelectedDevice(Side::kNear);
  if (!device.ok()) return device.status();
  absl::StatusOr<HostInfo> info = LocalHost(*device, Backing::kPrivate).Info();
  if (!info.ok()) return info.status();
  utsname system{};
  uname(&system);
  fmt::print("\n### {}, Linux {}\n\n", selection().device, system.release);
  PrintProperties(*info);
  PrintFindings();
  return absl::OkStatus();
}

}  // namespace verbena::conformance
