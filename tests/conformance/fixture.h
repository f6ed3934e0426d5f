// ConformanceTest: the two hosts of a wire, opened for one case and found empty after it.
//
// `near` is always in this process. `far` is in this process or in another one; only a case that
// kills its far process may depend on which.

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

namespace verbena::internal::conformance {

// Both ends of a connection whose QPs are in RTS.
struct QpPair {
  End near;
  End far;
};

class ConformanceTest : public testing::TestWithParam<Wire> {
 protected:
  void SetUp() override;
  void TearDown() override;

  // The reason to skip all cases of a suite on this device, or "" to run them. Called before the
  // far host is opened.
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

  QpPair Connect(const EndOptions& options = {}, const LinkOptions& link = {},
                 std::source_location where = std::source_location::current());
  // One more connection, by new QPs, between the objects of another connection's ends.
  QpPair ConnectAgain(const QpPair& other, const EndOptions& options = {},
                      const LinkOptions& link = {},
                      std::source_location where = std::source_location::current());

  // Expects `done`, which says that the device did what verbs demand. If it did not, notes the
  // departure if the device is known for it, and otherwise fails the test. Returns `done`.
  bool Demand(bool done, Departure departure,
              std::source_location where = std::source_location::current()) const;
  // The same for a completion's status: matches `demanded`, or `instead` from a device known for
  // it.
  testing::Matcher<ibv_wc_status> DemandStatus(ibv_wc_status demanded, Departure departure,
                                               ibv_wc_status instead) const;
  // The same for devices that depart in different ways.
  testing::Matcher<ibv_wc_status> DemandStatus(
      ibv_wc_status demanded,
      std::initializer_list<std::pair<Departure, ibv_wc_status>> departures) const;
  // Matches the status of a SEND or WRITE from memory whose lkey is bad.
  testing::Matcher<ibv_wc_status> FailsAtSource() const;
  // Matches the status of a SEND or WRITE that its target refuses: `demanded`. On iWARP it
  // completes once TCP has its bytes, so success matches too, and a flush if the connection has
  // ended by then.
  testing::Matcher<ibv_wc_status> FailsAtTarget(
      const testing::Matcher<ibv_wc_status>& demanded) const;
  // Expects the end's only SEND to fail, because its peer has gone. On iWARP, where the SEND may
  // have completed before, expects the QP to enter ERR instead.
  void ExpectSendFails(End& end,
                       std::source_location where = std::source_location::current()) const;
  // The reason to skip a case that must not be tried on a device with this departure; "" on any
  // other device.
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
// Waits until the stream of the end's QP has failed, then stops the stream and returns its state.
StreamState AwaitStreamFailure(End& end,
                               std::source_location where = std::source_location::current());

// Bytes at the end of each side's memory that ExpectWorks uses.
inline constexpr uint64_t kWorksBytes = 64;

// One SEND, with its receive: the connection works in this direction.
void ExpectWorks(QpPair& connection, std::source_location where = std::source_location::current());

// The selected wires for which `applies`.
template <typename Predicate>
std::vector<Wire> WiresWhere(Predicate applies) {
  std::vector<Wire> wires = SelectedWires().value();
  std::erase_if(wires, [&](const Wire& wire) { return !applies(wire); });
  return wires;
}

// Instantiates a suite of cases for those of the selected wires for which `applies` is true. There
// may be none.
#define VERBENA_CONFORMANCE_SUITE_WHERE(Suite, applies)                                         \
  GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Suite);                                         \
  INSTANTIATE_TEST_SUITE_P(                                                                     \
      Conformance, Suite,                                                                       \
      testing::ValuesIn(::verbena::internal::conformance::WiresWhere(                           \
          [](const ::verbena::internal::conformance::Wire& wire) -> bool { return applies; })), \
      [](const testing::TestParamInfo<::verbena::internal::conformance::Wire>& info) {          \
        return info.param.name;                                                                 \
      })

// The first is for every selected wire, the second for those with a far process that can be stopped
// and killed.
#define VERBENA_CONFORMANCE_SUITE(Suite) VERBENA_CONFORMANCE_SUITE_WHERE(Suite, !wire.name.empty())
#define VERBENA_CONFORMANCE_PROCESS_SUITE(Suite) \
  VERBENA_CONFORMANCE_SUITE_WHERE(               \
      Suite, wire.far == ::verbena::internal::conformance::Wire::Far::kOtherProcess)

}  // namespace verbena::internal::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_FIXTURE_H_
