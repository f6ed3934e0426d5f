// How long a case waits for what must come.

#ifndef VERBENA_TESTS_CONFORMANCE_PATIENCE_H_
#define VERBENA_TESTS_CONFORMANCE_PATIENCE_H_

#include <chrono>
#include <cstdint>

namespace verbena::internal::conformance {

// Far longer than any awaited event takes, in a sanitized build, too: an event that has not come by
// then never will.
inline constexpr uint32_t kPatienceMs = 30000;

// A point in time, and how long it is until then.
class TimeLimit {
 public:
  explicit TimeLimit(uint32_t timeout_ms)
      : at_(std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms)) {}

  bool passed() const { return std::chrono::steady_clock::now() >= at_; }
  // Rounded up, for poll(2); 0 once it has passed.
  int left_ms() const {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(at_ - std::chrono::steady_clock::now());
    return left.count() > 0 ? static_cast<int>(left.count()) : 0;
  }

 private:
  std::chrono::steady_clock::time_point at_;
};

}  // namespace verbena::internal::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_PATIENCE_H_
