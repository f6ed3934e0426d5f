#include "tests/conformance/must.h"

#include "gtest/gtest.h"

namespace verbena::conformance {

void EndCase(const std::string& message, std::source_location where) {
  ADD_FAILURE_AT(where.file_name(), static_cast<int>(where.line())) << message;
  throw testing::AssertionException(
      testing::TestPartResult(testing::TestPartResult::kFatalFailure, where.file_name(),
                              static_cast<int>(where.line()), message.c_str()));
}

}  // namespace verbena::conformance
