// Report: what a device is, has and does otherwise, as the cases that ran have found it.
//
// A Markdown section for docs/devices.md: properties and capabilities as probed, departures as
// seen, and the cases that were skipped, with their reasons.

#ifndef VERBENA_TESTS_CONFORMANCE_REPORT_H_
#define VERBENA_TESTS_CONFORMANCE_REPORT_H_

#include "absl/status/status.h"

namespace verbena::conformance {

// Prints it to stdout, after RUN_ALL_TESTS.
absl::Status PrintReport();

}  // namespace verbena::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_REPORT_H_
