// The wire that a test's devices use: VERBENA_TEST_WIRE says it. Not set: as the test has it.
// "tcp4", "tcp6": TCP alone, over the loopback of IPv4 or IPv6. BUILD runs the tests in each way.

#ifndef VERBENA_TESTS_TRANSPORT_SOFT_TEST_WIRE_H_
#define VERBENA_TESTS_TRANSPORT_SOFT_TEST_WIRE_H_

#include <cstdlib>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal::soft {

inline std::string TestWire() {
  const char* wire = std::getenv("VERBENA_TEST_WIRE");
  return wire != nullptr ? wire : "";
}

inline bool OverTcp() { return !TestWire().empty(); }

inline SoftDeviceOptions OnTestWire(SoftDeviceOptions options) {
  if (!OverTcp()) return options;
  options.shared_memory = false;
  options.tcp = TcpWireOptions{.address = TestWire() == "tcp6" ? "::1" : "127.0.0.1"};
  return options;
}

// False on a machine without IPv6.
inline bool HasIpv6() {
  return SoftDevice::Create({.shared_memory = false, .tcp = TcpWireOptions{.address = "::1"}}).ok();
}

// For tests of what only another wire does, or whose turns the engines would disturb.
#define VERBENA_SKIP_OVER_TCP(reason) \
  if (OverTcp()) GTEST_SKIP() << reason

}  // namespace verbena::internal::soft

#endif  // VERBENA_TESTS_TRANSPORT_SOFT_TEST_WIRE_H_
