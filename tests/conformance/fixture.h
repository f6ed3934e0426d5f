// ConformanceTest: the two hosts of a wire, opened for one case and found empty after it.
//
// `near` is always in this process. `far` may be, and a case must not tell the difference, unless
// it asks for a process that it can kill.

#ifndef VERBENA_TESTS_CONFORMANCE_FIXTURE_H_
#define VERBENA_TESTS_CONFORMANCE_FIXTURE_H_

#include <initializer_list>
#include <memory>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/conformance/connect.h"
#include "tests/conformance/departures.h"
#include "tests/conformance/end.h"
#include "tests/conformance/host.h"
#include "tests/conformance/local_host.h"
#include "tests/conformance/matchers.h"
#include "tests/conformance/must.h"
#include "tests/conformance/objects.h"
#include "tests/conformance/remote_host.h"
#include "tests/conformance/wires.h"

namespace verbena::conformance {

// Both ends of a connection whose QPs are in RTS.
struct Connection {
  End near;
  End far;
};

class ConformanceTest : public testing::TestWithParam<Wire> {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Why none of a suite's cases is for this device, or "". Asked before the far host is opened.
  virtual std::string ReasonToSkip() const { return {}; }

  LocalHost& near() { return *near_; }
  Host& far() { return *far_; }
  // Null unless the wire's far side is another process.
  RemoteHost* far_process() { return far_process_; }
  const HostInfo& near_info() const { return near_info_; }
  const HostInfo& far_info() const { return far_info_; }
  const DeviceCapabilities& capabilities() const { return near_info_.capabilities; }

  // Opens another far process in place of one that was killed.
  void ReplaceFarProcess();

  Connection Connect(const EndOptions& options = {}, const LinkOptions& link = {},
                     std::source_location where = std::source_location::current());
  // One more connection between the objects of two ends, by QPs of their own.
  Connection ConnectAgain(const Connection& other, const EndOptions& options = {},
                          const LinkOptions& link = {},
                          std::source_location where = std::source_location::current());

  // Expects what verbs demand: `done`, or, of a device known for it, the departure, which is noted.
  // True when the demand was met.
  bool Demand(bool done, Departure departure,
              std::source_location where = std::source_location::current()) const;
  // The same of a completion's status.
  testing::Matcher<ibv_wc_status> DemandStatus(ibv_wc_status demanded, Departure departure,
                                               ibv_wc_status instead) const;
  // The same where devices depart in different ways.
  testing::Matcher<ibv_wc_status> DemandStatus(
      ibv_wc_status demanded,
      std::initializer_list<std::pair<Departure, ibv_wc_status>> departures) const;
  // The status of a SEND or WRITE that its target refuses: `demanded`; on iWARP, where it completes
  // once TCP has its bytes, also success, or a flush when the connection has ended by then.
  testing::Matcher<ibv_wc_status> FailsAtTarget(
      const testing::Matcher<ibv_wc_status>& demanded) const;
  // The end's one SEND fails, for its peer has gone; where it may have completed before (iWARP) its
  // QP leaves service.
  void ExpectSendFails(End& end,
                       std::source_location where = std::source_location::current()) const;
  // For a case that is not to be tried on a device that departs so: why not; empty on any other.
  std::string ReasonToSpare(Departure departure) const;

 private:
  void OpenFar();

  std::shared_ptr<SharedDevice> device_;
  std::unique_ptr<LocalHost> near_;
  std::unique_ptr<Host> far_;
  RemoteHost* far_process_ = nullptr;
  HostInfo near_info_;
  HostInfo far_info_;
};

// Waits until the host's stream has done `count` WRs.
void AwaitStreamed(Host& host, uint64_t count,
                   std::source_location where = std::source_location::current());
// Waits until the stream of the end's QP has failed, and ends it.
StreamState AwaitStreamFailure(End& end,
                               std::source_location where = std::source_location::current());

// Bytes at the end of each side's memory that ExpectWorks uses.
inline constexpr uint64_t kWorksBytes = 64;

// One SEND, with its receive: the connection works in this direction.
void ExpectWorks(Connection& connection,
                 std::source_location where = std::source_location::current());

// The selected wires for which `applies`.
template <typename Predicate>
std::vector<Wire> WiresWhere(Predicate applies) {
  std::vector<Wire> wires = SelectedWires().value();
  std::erase_if(wires, [&](const Wire& wire) { return !applies(wire); });
  return wires;
}

// Instantiates a suite of cases for those of the selected wires for which `applies`, which may be
// none.
#define VERBENA_CONFORMANCE_SUITE_WHERE(Suite, applies)                               \
  GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Suite);                               \
  INSTANTIATE_TEST_SUITE_P(                                                           \
      Conformance, Suite,                                                             \
      testing::ValuesIn(::verbena::conformance::WiresWhere(                           \
          [](const ::verbena::conformance::Wire& wire) -> bool { return applies; })), \
      [](const testing::TestParamInfo<::verbena::conformance::Wire>& info) {          \
        return info.param.name;                                                       \
      })

// For every selected wire, and for those with a far process that can be stopped and killed.
#define VERBENA_CONFORMANCE_SUITE(Suite) VERBENA_CONFORMANCE_SUITE_WHERE(Suite, !wire.name.empty())
#define VERBENA_CONFORMANCE_PROCESS_SUITE(Suite) \
  VERBENA_CONFORMANCE_SUITE_WHERE(Suite,         \
                                  wire.far == ::verbena::conformance::Wire::Far::kOtherProcess)

}  // namespace verbena::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_FIXTURE_H_
