// Report: a device's properties, capabilities and departures, as found by the cases that ran.
//
// The report is a Markdown section for docs/devices.md, and also lists the cases that were skipped,
// with their reasons.

#ifndef VERBENA_TESTS_CONFORMANCE_REPORT_H_
#define VERBENA_TESTS_CONFORMANCE_REPORT_H_

#include "absl/status/status.h"

namespace verbena::internal::conformance {

// Prints the report to stdout. Call it after RUN_ALL_TESTS.
absl::Status PrintReport();

}  // namespace verbena::internal::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_REPORT_H_
