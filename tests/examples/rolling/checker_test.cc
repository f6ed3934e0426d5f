// The checker accepts histories that a register could have given, and refuses those that it could
// not: stale reads, lost and repeated writes, and values from nowhere.

#include "examples/rolling/checker.h"

#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace rolling {
namespace {

using Operations = std::vector<Operation>;
constexpr int64_t kNever = Operation::kNeverEnded;

Operation Put(std::string value, int64_t start, int64_t end) {
  return {.kind = Operation::Kind::kPut, .value = std::move(value), .start = start, .end = end};
}
Operation Append(std::string value, int64_t start, int64_t end) {
  return {.kind = Operation::Kind::kAppend, .value = std::move(value), .start = start, .end = end};
}
Operation Get(std::optional<std::string> value, int64_t start, int64_t end) {
  return {.kind = Operation::Kind::kGet, .value = std::move(value), .start = start, .end = end};
}

TEST(CheckKeyTest, AcceptsOneAfterAnother) {
  EXPECT_EQ(CheckKey({}), Verdict::kYes);
  EXPECT_EQ(CheckKey({Get(std::nullopt, 1, 2), Put("a", 3, 4), Get("a", 5, 6), Append("b", 7, 8),
                      Get("ab", 9, 10), Put("c", 11, 12), Get("c", 13, 14)}),
            Verdict::kYes);
}

TEST(CheckKeyTest, RefusesAStaleRead) {
  EXPECT_EQ(CheckKey({Put("a", 1, 2), Put("b", 3, 4), Get("a", 5, 6)}), Verdict::kNo);
  EXPECT_EQ(CheckKey({Put("a", 1, 2), Get(std::nullopt, 3, 4)}), Verdict::kNo);
}

TEST(CheckKeyTest, RefusesAReadThatGoesBack) {
  // While b is written, one client sees it, and a later one does not.
  EXPECT_EQ(CheckKey({Put("a", 1, 2), Put("b", 3, 20), Get("b", 4, 5), Get("a", 6, 7)}),
            Verdict::kNo);
  EXPECT_EQ(CheckKey({Put("a", 1, 2), Put("b", 3, 20), Get("a", 4, 5), Get("b", 6, 7)}),
            Verdict::kYes);
}

TEST(CheckKeyTest, ConcurrentReadsMaySeeEither) {
  EXPECT_EQ(CheckKey({Put("a", 1, 2), Put("b", 3, 10), Get("a", 4, 9), Get("b", 5, 8)}),
            Verdict::kYes);
}

TEST(CheckKeyTest, RefusesAnAppendThatIsLostOrTakesEffectTwice) {
  EXPECT_EQ(CheckKey({Append("a", 1, 2), Append("b", 3, 4), Get("a", 5, 6)}), Verdict::kNo);
  EXPECT_EQ(CheckKey({Append("a", 1, 2), Get("aa", 3, 4)}), Verdict::kNo);
  EXPECT_EQ(CheckKey({Append("a", 1, 2), Append("b", 3, 4), Get("ba", 5, 6)}), Verdict::kNo);
}

TEST(CheckKeyTest, RefusesAValueThatNobodyWrote) {
  EXPECT_EQ(CheckKey({Put("a", 1, 2), Get("x", 3, 4)}), Verdict::kNo);
}

TEST(CheckKeyTest, AWriteWithoutAnAnswerMayHaveHappenedLateOrNever) {
  EXPECT_EQ(CheckKey({Put("a", 1, 2), Put("b", 3, kNever), Get("a", 5, 6), Get("b", 7, 8)}),
            Verdict::kYes);
  EXPECT_EQ(CheckKey({Put("a", 1, 2), Put("b", 3, kNever), Get("a", 5, 6)}), Verdict::kYes);
  EXPECT_EQ(CheckKey({Put("a", 1, 2), Put("b", 3, kNever), Get("b", 5, 6), Get("a", 7, 8)}),
            Verdict::kNo);
  // But not before it began.
  EXPECT_EQ(CheckKey({Get("b", 1, 2), Put("b", 3, kNever)}), Verdict::kNo);
}

TEST(CheckKeyTest, AGetWithoutAnAnswerSaysNothing) {
  EXPECT_EQ(CheckKey({Put("a", 1, 2), Get("x", 3, kNever)}), Verdict::kYes);
}

// Eight clients at a time, and one read in the midst that cannot be.
Operations Crowd(int rounds, bool is_wrong) {
  Operations operations;
  std::string value;
  int64_t now = 0;
  for (int round = 0; round < rounds; ++round) {
    for (int client = 0; client < 8; ++client) {
      const std::string text = std::to_string(round * 8 + client) + ".";
      operations.push_back(Append(text, now + client, now + 100 + client));
      value += text;
    }
    now += 200;
    operations.push_back(Get(value, now, now + 1));
    if (is_wrong && round == rounds / 2) operations.back().value = value + "x";
    now += 10;
  }
  return operations;
}

TEST(CheckKeyTest, FindsAnOrderInACrowd) {
  EXPECT_EQ(CheckKey(Crowd(20, /*is_wrong=*/false)), Verdict::kYes);
}

TEST(CheckKeyTest, FindsOneWrongReadInACrowd) {
  EXPECT_EQ(CheckKey(Crowd(2, /*is_wrong=*/true)), Verdict::kNo);
}

TEST(CheckKeyTest, GivesUpAtItsBound) {
  EXPECT_EQ(CheckKey(Crowd(2, /*is_wrong=*/true), 10'000), Verdict::kUndecided);
}

TEST(CountLossesTest, CountsAppendsThatAreGoneOrTwice) {
  const Operations operations = {Append("1.", 1, 2), Append("2.", 3, 4), Append("3.", 5, kNever)};
  const auto count = [&](const char* final) { return CountLosses(operations, final); };
  EXPECT_EQ(count("1.2.").lost, 0u);
  EXPECT_EQ(count("1.2.3.").lost, 0u);
  EXPECT_EQ(count("1.").lost, 1u);
  EXPECT_EQ(count("").lost, 2u);
  EXPECT_EQ(count("1.2.").duplicated, 0u);
  EXPECT_EQ(count("1.2.1.").duplicated, 1u);
  EXPECT_EQ(CountLosses(operations, std::nullopt).lost, 2u);
}

TEST(CountLossesTest, CountsPutsThatAreGone) {
  const Operations operations = {Put("1.", 1, 2), Put("2.", 3, 6), Put("3.", 5, 7),
                                 Put("4.", 8, kNever)};
  const auto count = [&](const char* final) { return CountLosses(operations, final).lost; };
  EXPECT_EQ(count("2."), 0u);
  EXPECT_EQ(count("3."), 0u);
  EXPECT_EQ(count("4."), 0u);
  EXPECT_EQ(count("1."), 2u);
  EXPECT_EQ(CountLosses(operations, std::nullopt).lost, 3u);
}

}  // namespace
}  // namespace rolling
