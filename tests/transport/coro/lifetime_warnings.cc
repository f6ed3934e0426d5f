// Compiled with -Xclang -verify: the build fails unless clang warns at each line marked below,
// which it does because of Task's attributes. Never run.

#include <string>

#include "verbena/transport/coro/generator.h"
#include "verbena/transport/coro/task.h"

namespace verbena {
namespace {

[[maybe_unused]] Task<int> Length(const std::string& text) {
  co_return static_cast<int>(text.size());
}

[[maybe_unused]] Task<int> DanglingTemporary() {
  Task<int> length = Length(std::string("gone"));  // expected-warning {{temporary}}
  co_return co_await std::move(length);
}

[[maybe_unused]] [[clang::coro_wrapper]] Task<int> DanglingLocal() {
  std::string local = "gone";
  return Length(local);  // expected-warning {{address of stack memory}}
}

[[maybe_unused]] Task<int> DanglingCapture() {
  std::string text = "captured";
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-capturing-lambda-coroutines)
  Task<int> length = [text]() -> Task<int> {
    co_return static_cast<int>(text.size());
  }();  // expected-warning@-2 {{temporary}}
  co_return co_await std::move(length);
}

[[maybe_unused]] Generator<char> Letters(const std::string& text) {
  for (const char letter : text) co_yield letter;
}

[[maybe_unused]] Task<int> DanglingTemporaryOfAGenerator() {
  Generator<char> letters = Letters(std::string("gone"));  // expected-warning {{temporary}}
  co_return (co_await letters.Next()).has_value() ? 1 : 0;
}

[[maybe_unused]] Task<int> ArgumentsOfACoAwaitAreFine() {
  co_return co_await Length(std::string("lives to the end of the expression"));
}

[[maybe_unused]] Task<int> Discarded() {
  Length(std::string("never runs"));  // expected-warning {{nodiscard}}
  co_return 0;
}

}  // namespace
}  // namespace verbena
