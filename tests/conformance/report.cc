#include "tests/conformance/report.h"

#include <sys/utsname.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "tests/conformance/departures.h"
#include "tests/conformance/local_host.h"
#include "tests/conformance/wires.h"

namespace verbena::internal::conformance {
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

// The cases of one suite, whatever the wire.
struct SuiteCases {
  std::set<std::string> all;
  std::map<std::string, std::string> skipped;  // the reason, by case

  // The one reason for which all of them are, or "".
  std::string CommonReason() const {
    if (skipped.size() < all.size()) return {};
    const std::string& first = skipped.begin()->second;
    const auto same = [&](const auto& entry) { return entry.second == first; };
    return std::all_of(skipped.begin(), skipped.end(), same) ? first : std::string();
  }
};

// By the suite's name.
std::map<std::string, SuiteCases> CollectCases() {
  std::map<std::string, SuiteCases> suites;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    // "Conformance/Suite" and "Case/wire": the same for every wire.
    const std::string suite_name = suite.name();
    SuiteCases& cases = suites[suite_name.substr(suite_name.find('/') + 1)];
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const testing::TestInfo& test = *suite.GetTestInfo(t);
      const std::string test_name = test.name();
      const std::string name = test_name.substr(0, test_name.rfind('/'));
      cases.all.insert(name);
      for (int p = 0; p < test.result()->total_part_count(); ++p) {
        const testing::TestPartResult& part = test.result()->GetTestPartResult(p);
        if (part.skipped()) cases.skipped[name] = part.message();
      }
    }
  }
  return suites;
}

void PrintSkipped() {
  bool first = true;
  const auto row = [&](const std::string& name, const std::string& reason) {
    if (std::exchange(first, false)) fmt::print("\n| not run | because |\n| --- | --- |\n");
    fmt::print("| {} | {} |\n", name, reason);
  };
  for (const auto& [suite, cases] : CollectCases()) {
    if (cases.skipped.empty()) continue;
    if (const std::string reason = cases.CommonReason(); !reason.empty()) {
      row(suite + ".*", reason);
      continue;
    }
    for (const auto& [name, reason] : cases.skipped) row(fmt::format("{}.{}", suite, name), reason);
  }
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
  PrintDepartures();
  PrintSkipped();
  return absl::OkStatus();
}

}  // namespace verbena::internal::conformance
