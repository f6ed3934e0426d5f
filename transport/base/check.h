// VERBENA_CHECK and VERBENA_DCHECK(condition) << values: what must be true here, whatever peers and
// users do.
//
// A check that fails prints the file, the line, the condition and the values to standard error, and
// aborts the process. Only a fault of Verbena's own, or misuse that is visible in the program, can
// fail one. Anything that depends on a peer or on data returns a Status instead. A check that holds
// costs a compare and a branch that is never taken; the values are evaluated only if it fails.
//
//   VERBENA_CHECK(bytes <= capacity_) << "bytes " << bytes << ", capacity " << capacity_;
//
// Take VERBENA_CHECK where an instruction or two suffice, or where no call passes in steady state:
// construction, shutdown, errors, sleeps, control verbs. Take VERBENA_DCHECK on the data path, and
// for conditions that cost more. It is a VERBENA_CHECK in builds without NDEBUG and under the
// sanitizers of addresses and threads. In other builds the condition compiles, so that its
// variables count as used, but is not evaluated. So a condition has no side effects.
//
//   VERBENA_DCHECK(size_ > 0);

#ifndef VERBENA_TRANSPORT_BASE_CHECK_H_
#define VERBENA_TRANSPORT_BASE_CHECK_H_

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "verbena/transport/base/export.h"

// 1 if VERBENA_DCHECK checks, otherwise 0.
#ifndef VERBENA_DCHECK_IS_ON
#if !defined(NDEBUG) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define VERBENA_DCHECK_IS_ON 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define VERBENA_DCHECK_IS_ON 1
#endif
#endif
#endif
#ifndef VERBENA_DCHECK_IS_ON
#define VERBENA_DCHECK_IS_ON 0
#endif

namespace verbena::internal {

// The report of one check that failed. It is not an object of the function that checks, and takes
// what it prints by value: so that function keeps nothing in memory for it, and needs no stack
// protector for a check that holds.
class VERBENA_EXPORT CheckFailure {
 public:
  // Never freed: the process ends with it.
  [[gnu::cold, gnu::noinline]] static CheckFailure& Begin(const char* file, int line,
                                                          const char* condition);
  CheckFailure(const CheckFailure&) = delete;
  CheckFailure& operator=(const CheckFailure&) = delete;
  [[noreturn, gnu::cold, gnu::noinline]] void End();

  // Appends a value: text, a number, a bool, an enumerator or an address.
  [[gnu::cold, gnu::noinline]] CheckFailure& operator<<(std::string_view text);
  CheckFailure& operator<<(const std::string& text) { return *this << std::string_view(text); }
  CheckFailure& operator<<(const char* text) { return *this << std::string_view(text); }
  template <typename T>
    requires std::is_arithmetic_v<T>
  CheckFailure& operator<<(T value) {
    if constexpr (std::same_as<T, bool>) {
      return *this << std::string_view(value ? "true" : "false");
    } else if constexpr (std::is_floating_point_v<T>) {
      return AddNumber(static_cast<double>(value));
    } else if constexpr (std::is_signed_v<T>) {
      return AddNumber(static_cast<int64_t>(value));
    } else {
      return AddNumber(static_cast<uint64_t>(value));
    }
  }
  template <typename T>
    requires std::is_enum_v<T>
  CheckFailure& operator<<(T value) {
    return *this << static_cast<std::underlying_type_t<T>>(value);
  }
  template <typename T>
    requires(!std::is_convertible_v<T*, const char*>)
  CheckFailure& operator<<(T* address) {
    return AddAddress(address);
  }

 private:
  CheckFailure() = default;
  [[gnu::cold, gnu::noinline]] CheckFailure& AddNumber(double value);
  [[gnu::cold, gnu::noinline]] CheckFailure& AddNumber(int64_t value);
  [[gnu::cold, gnu::noinline]] CheckFailure& AddNumber(uint64_t value);
  [[gnu::cold, gnu::noinline]] CheckFailure& AddAddress(const void* address);

  std::string report_;
  bool has_values_ = false;
};

// Ends a report, and gives both arms of the check's conditional operator the type void.
struct CheckVoid {
  [[noreturn, gnu::cold]] void operator&(CheckFailure& failure) const { failure.End(); }
};

}  // namespace verbena::internal

// NOLINTBEGIN(bugprone-macro-parentheses): the report is streamed into what it ends with.
#define VERBENA_CHECK(condition)                      \
  (__builtin_expect(static_cast<bool>(condition), 1)) \
      ? static_cast<void>(0)                          \
      : ::verbena::internal::CheckVoid() &            \
            ::verbena::internal::CheckFailure::Begin(__FILE__, __LINE__, #condition)
// NOLINTEND(bugprone-macro-parentheses)

#if VERBENA_DCHECK_IS_ON
#define VERBENA_DCHECK(condition) VERBENA_CHECK(condition)
#else
#define VERBENA_DCHECK(condition) VERBENA_CHECK(true || static_cast<bool>(condition))
#endif

#endif  // VERBENA_TRANSPORT_BASE_CHECK_H_
