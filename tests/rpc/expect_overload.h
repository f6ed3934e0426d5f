// ExpectOverload: a call was refused by a bound of its server, which said when to try again.

#ifndef VERBENA_TESTS_RPC_EXPECT_OVERLOAD_H_
#define VERBENA_TESTS_RPC_EXPECT_OVERLOAD_H_

#include <chrono>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/task.h"

namespace verbena::internal {

inline void ExpectOverload(const absl::Status& status,
                           Duration retry_after = std::chrono::milliseconds(10)) {
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  EXPECT_EQ(RetryAfterOf(status), retry_after);
}

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_RPC_EXPECT_OVERLOAD_H_
