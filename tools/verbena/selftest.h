// verbena selftest DEVICE: tries on one device what Verbena's links ask of it, measures it for some
// seconds, and prints one report: for the first owner of a NIC, without a clone of Verbena.
//
// Two queue pairs of the device are connected to each other, so nothing leaves the host and no
// second one is needed. A check that the device cannot pass by what it says of itself is skipped,
// with the reason. The whole conformance suite, with far processes and hosts, is
// tests/conformance of the sources.
//
//   absl::StatusOr<SelftestReport> report = Selftest(device, {});
//   fmt::print("{}", Describe(*report));

#ifndef VERBENA_TOOLS_VERBENA_SELFTEST_H_
#define VERBENA_TOOLS_VERBENA_SELFTEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/device/device.h"

namespace verbena::doctor {

struct SelftestOptions {
  // Exchanges of the ping-pong, SENDs with 32 in flight, and WRITEs and READs of 1 MiB.
  uint32_t exchanges = 20'000;
  uint32_t sends = 200'000;
  uint32_t transfers = 512;
};

// A property that links rely on, and whether the device has it.
struct Check {
  std::string what;  // "a READ gets the bytes of the target"
  absl::Status result;
  std::string skipped;  // why it was not tried; empty if it was
};

// Each figure is 0 if it was not measured.
struct Measured {
  double half_round_trip_us = 0;  // of 32 bytes, median
  double half_round_trip_p99_us = 0;
  double sends_per_second = 0;        // of 32 bytes, 32 in flight
  double write_bytes_per_second = 0;  // of 1 MiB, two in flight
  double read_bytes_per_second = 0;
};

struct SelftestReport {
  std::string device;
  std::string kind;  // "RoCE v2"
  uint32_t mtu_bytes = 0;
  std::vector<Check> checks;
  Measured measured;

  // Whether no check failed.
  bool passed() const;
};

// Fails only if not even two queue pairs of the device can be connected: UNIMPLEMENTED on iWARP,
// where rdma_cm alone connects.
absl::StatusOr<SelftestReport> Selftest(internal::Device& device, const SelftestOptions& options);

// The report, as it is printed.
std::string Describe(const SelftestReport& report);

// Opens the device of that name ("rdma:mlx5_0", "mlx5_0:2", "eth0", "soft"), tests it and prints
// the report. Returns the exit status: 0 passed, 1 a check failed, 2 the device cannot be tested.
int RunSelftest(const std::string& name);

}  // namespace verbena::doctor

#endif  // VERBENA_TOOLS_VERBENA_SELFTEST_H_
