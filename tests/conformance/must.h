// Must: the value of a call that a case cannot go on without.
//
// A failure is reported where Must was called, and ends the case by an exception of gtest. The
// fixture's TearDown() then runs as always.

#ifndef VERBENA_TESTS_CONFORMANCE_MUST_H_
#define VERBENA_TESTS_CONFORMANCE_MUST_H_

#include <source_location>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::internal::conformance {

// Ends the case with a failure at `where`.
[[noreturn]] void EndCase(const std::string& message, std::source_location where);

inline void Must(const absl::Status& status,
                 std::source_location where = std::source_location::current()) {
  if (!status.ok()) EndCase(status.ToString(), where);
}

template <typename T>
T Must(absl::StatusOr<T> value, std::source_location where = std::source_location::current()) {
  if (!value.ok()) EndCase(value.status().ToString(), where);
  return *std::move(value);
}

}  // namespace verbena::internal::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_MUST_H_
