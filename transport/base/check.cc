#include "verbena/transport/base/check.h"

#include <cstdio>
#include <cstdlib>

#include "fmt/format.h"

namespace verbena::internal {

CheckFailure& CheckFailure::Begin(const char* file, int line, const char* condition) {
  auto* const failure = new CheckFailure;
  failure->report_ = fmt::format("{}:{}: check failed: {}", file, line, condition);
  return *failure;
}

void CheckFailure::End() {
  report_ += '\n';
  // Not through Log(): a sink of the application must not run while its process is broken.
  std::fputs(report_.c_str(), stderr);
  std::fflush(stderr);
  std::abort();
}

CheckFailure& CheckFailure::operator<<(std::string_view text) {
  if (!has_values_) report_ += ": ";
  has_values_ = true;
  report_.append(text);
  return *this;
}

CheckFailure& CheckFailure::AddNumber(double value) { return *this << fmt::format("{}", value); }
CheckFailure& CheckFailure::AddNumber(int64_t value) { return *this << fmt::format("{}", value); }
CheckFailure& CheckFailure::AddNumber(uint64_t value) { return *this << fmt::format("{}", value); }

CheckFailure& CheckFailure::AddAddress(const void* address) {
  return *this << fmt::format("{}", address);
}

}  // namespace verbena::internal
