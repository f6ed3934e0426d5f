#include "tests/conformance/must.h"

#include "gtest/gtest.h"

namespace verbena::internal::conformance {

void EndCase(const std::string& message, std::source_location where) {
  // Fatal, so that a case whose set-up failed does not run.
  [&] {
    GTEST_MESSAGE_AT_(where.file_name(), static_cast<int>(where.line()), message.c_str(),
                      testing::TestPartResult::kFatalFailure);
  }();
  throw testing::AssertionException(
      testing::TestPartResult(testing::TestPartResult::kFatalFailure, where.file_name(),
                              static_cast<int>(where.line()), message.c_str()));
}

}  // namespace verbena::internal::conformance
