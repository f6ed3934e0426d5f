// Matchers of GoogleMock for Status, StatusOr, outcomes and payloads.
//
//   EXPECT_THAT(status, IsOk());
//   EXPECT_THAT(reply, IsOkAndHolds(Property(&StatReply::bytes, 5)));
//   EXPECT_THAT(reply, StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
//   EXPECT_THAT(status, HasOutcome(Outcome::kNotExecuted));
//   EXPECT_THAT(block, IsOkAndHolds(PayloadIs("sixteen bytes...")));
//
// Each but PayloadIs takes a Status or a StatusOr, and prints the status if it does not match.

#ifndef VERBENA_RPC_TESTING_MATCHERS_H_
#define VERBENA_RPC_TESTING_MATCHERS_H_

#include <cstddef>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "verbena/rpc/status.h"

namespace verbena {
namespace internal {

inline absl::Status StatusOf(const absl::Status& status) { return status; }
template <typename T>
absl::Status StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

class IsOkMatcher {
 public:
  template <typename T>
  bool MatchAndExplain(const T& result, ::testing::MatchResultListener* listener) const {
    *listener << "which is " << StatusOf(result);
    return StatusOf(result).ok();
  }
  void DescribeTo(std::ostream* out) const { *out << "is OK"; }
  void DescribeNegationTo(std::ostream* out) const { *out << "is not OK"; }
};

class StatusIsMatcher {
 public:
  StatusIsMatcher(absl::StatusCode code, ::testing::Matcher<const std::string&> message)
      : code_(code), message_(std::move(message)) {}

  template <typename T>
  bool MatchAndExplain(const T& result, ::testing::MatchResultListener* listener) const {
    const absl::Status status = StatusOf(result);
    *listener << "which is " << status;
    return status.code() == code_ && message_.Matches(std::string(status.message()));
  }
  void DescribeTo(std::ostream* out) const {
    *out << "is " << code_ << ", and its message ";
    message_.DescribeTo(out);
  }
  void DescribeNegationTo(std::ostream* out) const {
    *out << "is not " << code_ << ", or its message ";
    message_.DescribeNegationTo(out);
  }

 private:
  absl::StatusCode code_;
  ::testing::Matcher<const std::string&> message_;
};

class HasOutcomeMatcher {
 public:
  explicit HasOutcomeMatcher(Outcome outcome) : outcome_(outcome) {}

  template <typename T>
  bool MatchAndExplain(const T& result, ::testing::MatchResultListener* listener) const {
    const Outcome outcome = OutcomeOf(StatusOf(result));
    *listener << "whose outcome is " << OutcomeName(outcome) << ", which is " << StatusOf(result);
    return outcome == outcome_;
  }
  void DescribeTo(std::ostream* out) const { *out << "has outcome " << OutcomeName(outcome_); }
  void DescribeNegationTo(std::ostream* out) const {
    *out << "has another outcome than " << OutcomeName(outcome_);
  }

 private:
  Outcome outcome_;
};

// The bytes of a Buffer, a BufferView, a Payload, or a WithPayload.
template <typename T>
std::string BytesOfPayload(const T& value) {
  if constexpr (requires { value.part_count(); }) {
    std::string bytes;
    for (size_t i = 0; i < value.part_count(); ++i) bytes += BytesOfPayload(value.part(i));
    return bytes;
  } else if constexpr (requires { value.payload; }) {
    return BytesOfPayload(value.payload);
  } else {
    return value.size() == 0 ? std::string() : std::string(value.data(), value.size());
  }
}

class PayloadIsMatcher {
 public:
  explicit PayloadIsMatcher(::testing::Matcher<const std::string&> bytes)
      : bytes_(std::move(bytes)) {}

  template <typename T>
  bool MatchAndExplain(const T& value, ::testing::MatchResultListener* listener) const {
    const std::string bytes = BytesOfPayload(value);
    *listener << "whose payload has " << bytes.size() << " bytes";
    if (bytes.size() <= kPrinted) *listener << ": " << ::testing::PrintToString(bytes);
    return bytes_.Matches(bytes);
  }
  void DescribeTo(std::ostream* out) const {
    *out << "has a payload that ";
    bytes_.DescribeTo(out);
  }
  void DescribeNegationTo(std::ostream* out) const {
    *out << "has a payload that ";
    bytes_.DescribeNegationTo(out);
  }

 private:
  static constexpr size_t kPrinted = 256;
  ::testing::Matcher<const std::string&> bytes_;
};

template <typename Inner>
class IsOkAndHoldsMatcher {
 public:
  explicit IsOkAndHoldsMatcher(Inner inner) : inner_(std::move(inner)) {}

  template <typename Result>
  operator ::testing::Matcher<Result>() const {  // NOLINT(google-explicit-constructor)
    return ::testing::Matcher<Result>(new Impl<Result>(inner_));
  }

 private:
  template <typename Result>
  class Impl final : public ::testing::MatcherInterface<Result> {
   public:
    using Value = typename std::remove_cvref_t<Result>::value_type;
    explicit Impl(const Inner& inner) : inner_(::testing::SafeMatcherCast<const Value&>(inner)) {}

    bool MatchAndExplain(Result result, ::testing::MatchResultListener* listener) const override {
      if (result.ok()) return inner_.MatchAndExplain(*result, listener);
      *listener << "which is " << result.status();
      return false;
    }
    void DescribeTo(std::ostream* out) const override {
      *out << "is OK and holds a value that ";
      inner_.DescribeTo(out);
    }
    void DescribeNegationTo(std::ostream* out) const override {
      *out << "is not OK, or holds a value that ";
      inner_.DescribeNegationTo(out);
    }

   private:
    const ::testing::Matcher<const Value&> inner_;
  };

  Inner inner_;
};

}  // namespace internal

namespace testing {

inline auto IsOk() { return ::testing::MakePolymorphicMatcher(internal::IsOkMatcher()); }

// OK, with a value that `inner`, a matcher or a value, matches.
template <typename Inner>
auto IsOkAndHolds(Inner inner) {
  return internal::IsOkAndHoldsMatcher<Inner>(std::move(inner));
}

// Any message, or one that `message`, a matcher or a string, matches.
inline auto StatusIs(absl::StatusCode code,
                     ::testing::Matcher<const std::string&> message = ::testing::_) {
  return ::testing::MakePolymorphicMatcher(internal::StatusIsMatcher(code, std::move(message)));
}

inline auto HasOutcome(Outcome outcome) {
  return ::testing::MakePolymorphicMatcher(internal::HasOutcomeMatcher(outcome));
}

// A Buffer, a BufferView, a Payload or a WithPayload whose bytes `bytes`, a matcher or a string,
// matches.
inline auto PayloadIs(::testing::Matcher<const std::string&> bytes) {
  return ::testing::MakePolymorphicMatcher(internal::PayloadIsMatcher(std::move(bytes)));
}

}  // namespace testing
}  // namespace verbena

#endif  // VERBENA_RPC_TESTING_MATCHERS_H_
