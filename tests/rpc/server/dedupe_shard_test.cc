// Which requests run, wait, get a kept result or are refused; and which results and clients are
// dropped first at the bounds of count, bytes and time, on a clock that the test moves.

#include "verbena/rpc/server/dedupe.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::internal {
namespace dedupe_shard_test {

using std::chrono::seconds;
using enum DedupeClaim::Verdict;

constexpr uint64_t kIncarnation = 77;

class DedupeShardTest : public ::testing::Test {
 protected:
  void Make(DedupeLimits limits) {
    limits.keep_for = seconds(60);
    shard_ = std::make_unique<DedupeShard>(limits, kIncarnation);
  }
  // A request of the client `client`, whose runtime and address have that number, too.
  static DedupeRequest Request(uint8_t client, uint64_t number, uint64_t earlier = 0) {
    DedupeRequest request;
    request.name = {.id = {.client = {client}, .number = number}, .earlier = earlier};
    request.runtime.bytes = {client};
    request.source = std::string("10.0.0.") + static_cast<char>('0' + client);
    request.method = 1;
    return request;
  }
  // A request of a client that had given `highest` when it left.
  static DedupeRequest Telling(uint8_t client, uint64_t number, uint64_t highest,
                               uint64_t earlier = 0) {
    DedupeRequest request = Request(client, number, earlier);
    request.name.highest = highest;
    return request;
  }
  DedupeClaim Begin(const DedupeRequest& request) {
    return shard_->Begin(request, *executor_, now_);
  }
  DedupeWaiters End(const DedupeRequest& request, const std::string& reply, bool is_final = true) {
    auto result = std::make_shared<KeptResult>();
    result->reply = reply;
    result->is_final = is_final;
    return shard_->End(request.name.id, result, now_);
  }
  void RunCall(const DedupeRequest& request, const std::string& reply = "ok") {
    EXPECT_EQ(Begin(request).verdict, kRun) << request.name.id.number;
    End(request, reply);
  }
  static void ExpectUnproven(const DedupeClaim& claim) {
    EXPECT_EQ(claim.verdict, kRefused);
    EXPECT_EQ(claim.outcome, Outcome::kMaybeExecuted);
    EXPECT_TRUE(absl::IsAborted(claim.refusal)) << claim.refusal;
    EXPECT_TRUE(claim.refusal.GetPayload(kUnprovenPayloadUrl).has_value());
  }

  const std::unique_ptr<Executor> executor_ = *Executor::Create({});
  TimePoint now_{};
  std::unique_ptr<DedupeShard> shard_;
};

TEST_F(DedupeShardTest, ARepeatedRequestWaitsForTheCallAndLaterGetsItsResult) {
  Make({.max_results = 8, .max_bytes = 800});
  const DedupeRequest request = Request(1, 1);
  EXPECT_EQ(Begin(request).verdict, kRun);
  EXPECT_EQ(Begin(request).verdict, kWait);
  EXPECT_EQ(Begin(Request(1, 1, kIncarnation)).verdict, kWait);
  EXPECT_EQ(End(request, "seven").size(), 2u);
  const DedupeClaim again = Begin(Request(1, 1, DedupeName::kSeveral));
  EXPECT_EQ(again.verdict, kKept) << "the table knows, whatever the client fears";
  EXPECT_EQ(again.result->reply, "seven");
}

TEST_F(DedupeShardTest, RequestsThatGaveUpWaitingAreForgotten) {
  Make({.max_results = 8, .max_bytes = 800});
  const DedupeRequest request = Request(1, 1);
  EXPECT_EQ(Begin(request).verdict, kRun);
  std::vector<DedupeClaim> waiting;
  for (int i = 0; i < 3; ++i) waiting.push_back(Begin(request));
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(Begin(request).verdict, kWait);
  waiting.push_back(Begin(request));
  const DedupeWaiters told = End(request, "ok");
  EXPECT_LE(told.size(), 16u);
  for (const DedupeClaim& each : waiting) {
    EXPECT_EQ(std::count(told.begin(), told.end(), each.waiter), 1);
  }
}

TEST_F(DedupeShardTest, ACallThatHasNotRunMayRunLater) {
  Make({.max_results = 8, .max_bytes = 800});
  const DedupeRequest request = Request(1, 1, kIncarnation);
  EXPECT_EQ(Begin(request).verdict, kRun);
  End(request, "", /*is_final=*/false);
  EXPECT_EQ(shard_->results(), 0u);
  EXPECT_EQ(Begin(request).verdict, kRun);
  End(request, "ok");
  EXPECT_EQ(Begin(request).verdict, kKept);
}

TEST_F(DedupeShardTest, AnEarlierAttemptElsewhereCannotBeJudged) {
  Make({.max_results = 8, .max_bytes = 800});
  ExpectUnproven(Begin(Request(1, 1, kIncarnation + 1)));
  ExpectUnproven(Begin(Request(1, 1, DedupeName::kSeveral)));
  EXPECT_EQ(shard_->records(), 0u);
  EXPECT_EQ(Begin(Request(1, 1, kIncarnation)).verdict, kRun) << "it came here, and got lost";
}

TEST_F(DedupeShardTest, AStoreIsAskedForEachRepeatedRequestThatTheTableDoesNotKnow) {
  Make({.max_results = 8, .max_bytes = 800, .has_store = true});
  EXPECT_EQ(Begin(Request(1, 1)).verdict, kRun);
  EXPECT_EQ(Begin(Request(1, 2, kIncarnation + 1)).verdict, kLookUp);
  EXPECT_EQ(Begin(Request(1, 2, kIncarnation + 1)).verdict, kWait);
  EXPECT_EQ(Begin(Request(1, 3, kIncarnation)).verdict, kLookUp)
      << "it may have run at another server since";
}

TEST_F(DedupeShardTest, AnAcknowledgedResultIsDroppedAndItsCallNeverRunsAgain) {
  Make({.max_results = 8, .max_bytes = 800});
  for (uint64_t number = 1; number <= 3; ++number) RunCall(Request(1, number));
  EXPECT_EQ(Begin(Request(1, 4)).verdict, kRun);
  DedupeRequest acknowledging = Request(1, 5);
  acknowledging.name.acknowledged_below = 5;
  EXPECT_EQ(Begin(acknowledging).verdict, kRun);
  EXPECT_EQ(shard_->results(), 0u);
  EXPECT_EQ(shard_->bytes(), 0u);
  End(Request(1, 4), "late");
  EXPECT_EQ(shard_->results(), 0u) << "it was acknowledged while it ran";
  const DedupeClaim late = Begin(Request(1, 2));
  EXPECT_EQ(late.verdict, kRefused);
  EXPECT_TRUE(absl::IsFailedPrecondition(late.refusal)) << late.refusal;
  EXPECT_EQ(late.outcome, Outcome::kMaybeExecuted);
}

TEST_F(DedupeShardTest, ADroppedResultLeavesItsNumberBehind) {
  Make({.max_results = 3, .max_bytes = 3000});
  for (uint64_t number = 1; number <= 5; ++number) RunCall(Request(1, number));
  EXPECT_EQ(shard_->results(), 3u);
  ExpectUnproven(Begin(Request(1, 1, kIncarnation)));
  ExpectUnproven(Begin(Request(1, 2)));
  EXPECT_EQ(Begin(Request(1, 3)).verdict, kKept);
}

TEST_F(DedupeShardTest, BytesAreBounded) {
  Make({.max_results = 1000, .max_bytes = 100});
  for (uint64_t number = 1; number <= 5; ++number)
    RunCall(Request(1, number), std::string(40, 'r'));
  EXPECT_EQ(shard_->results(), 2u);
  EXPECT_EQ(shard_->bytes(), 80u);
}

TEST_F(DedupeShardTest, ResultsAreDroppedWithTime) {
  Make({.max_results = 8, .max_bytes = 800});
  RunCall(Request(1, 1));
  now_ += seconds(59);
  RunCall(Request(2, 1));
  EXPECT_EQ(Begin(Request(1, 1)).verdict, kKept);
  now_ += seconds(2);
  ExpectUnproven(Begin(Request(1, 1)));
  EXPECT_EQ(shard_->results(), 1u);
}

TEST_F(DedupeShardTest, OneRequestDropsAFewOfManyOldResults) {
  Make({.max_results = 1000, .max_bytes = 100000});
  for (uint64_t number = 1; number <= 200; ++number) RunCall(Request(1, number));
  now_ += seconds(60);
  size_t requests = 0;
  while (shard_->results() > 0) {
    const size_t before = shard_->results();
    EXPECT_EQ(Begin(Request(2, ++requests)).verdict, kRun);
    EXPECT_LT(shard_->results(), before);
  }
  EXPECT_GE(requests, 3u);
}

TEST_F(DedupeShardTest, AClientIsForgottenWithTimeAndThenNothingOfItIsProven) {
  Make({.max_results = 8, .max_bytes = 800});
  RunCall(Request(1, 1));
  now_ += seconds(60);
  EXPECT_EQ(Begin(Request(2, 1)).verdict, kRun);
  EXPECT_EQ(shard_->records(), 2u);
  now_ += seconds(60);
  EXPECT_EQ(Begin(Request(2, 2)).verdict, kRun);
  EXPECT_EQ(shard_->records(), 1u) << "a client with a running call stays";
  ExpectUnproven(Begin(Request(1, 1, kIncarnation)));
  EXPECT_EQ(Begin(Request(1, 2)).verdict, kRun);
}

TEST_F(DedupeShardTest, AForgottenClientsCallDoesNotRunAgainAfterALaterOne) {
  Make({.max_results = 8, .max_bytes = 800});
  RunCall(Request(1, 1));
  now_ += seconds(60);
  RunCall(Request(2, 1));
  now_ += seconds(60);
  RunCall(Request(2, 2));
  EXPECT_EQ(shard_->records(), 1u);
  // The client is known again, but not what it did before.
  RunCall(Request(1, 3));
  ExpectUnproven(Begin(Request(1, 1, kIncarnation)));
  EXPECT_EQ(Begin(Request(1, 4, kIncarnation)).verdict, kRun) << "it came here, and got lost";
}

// As when an earlier call waited at its client for long, or was refused by another server.
TEST_F(DedupeShardTest, AForgottenClientsCallDoesNotRunAgainAfterAnEarlierOneThatCameLate) {
  Make({.max_results = 8, .max_bytes = 800});
  RunCall(Request(1, 9));
  now_ += seconds(60);
  RunCall(Request(2, 1));
  now_ += seconds(60);
  RunCall(Request(2, 2));
  ASSERT_EQ(shard_->records(), 1u);
  RunCall(Request(1, 8));
  ExpectUnproven(Begin(Request(1, 9, kIncarnation)));
  EXPECT_EQ(Begin(Request(1, 10, kIncarnation)).verdict, kRun) << "it came here, and got lost";
}

TEST_F(DedupeShardTest, AForgottenClientIsBoundedInMemoryAndThenTakenForEachUnknownOne) {
  Make({.max_results = 2, .max_bytes = 200});
  // Each pushes the one before out.
  for (uint8_t client = 1; client <= 4; ++client) RunCall(Request(client, 1));
  EXPECT_EQ(Begin(Request(9, 1, kIncarnation)).verdict, kRun) << "all that were dropped are known";
  End(Request(9, 1), "ok");
  RunCall(Request(5, 1));
  ExpectUnproven(Begin(Request(8, 1, kIncarnation)));
}

TEST_F(DedupeShardTest, OfAClientThatMayHaveBeenForgottenNoNumberIsProven) {
  Make({.max_results = 1, .max_bytes = 100});
  RunCall(Request(1, 6));
  // Each pushes the one before out, and the second of them client 1 out of the dropped ones.
  for (uint8_t client = 2; client <= 4; ++client) RunCall(Request(client, 1));
  ASSERT_EQ(Begin(Request(1, 5)).verdict, kRun) << "the first request for it";
  // That call still runs, so its record stays.
  ExpectUnproven(Begin(Request(1, 6, kIncarnation)));
  ExpectUnproven(Begin(Request(1, 7, kIncarnation)));
  EXPECT_EQ(Begin(Request(1, 8)).verdict, kRun) << "nobody has asked for it before";
}

// Client 1 has run call 6, and was forgotten. Call 5, which it had given before, comes late.
TEST_F(DedupeShardTest, AForgottenClientThatTellsItsHighestNumberHasItsLaterOnesProven) {
  Make({.max_results = 1, .max_bytes = 100});
  RunCall(Request(1, 6));
  for (uint8_t client = 2; client <= 4; ++client) RunCall(Request(client, 1));
  now_ += seconds(121);
  ASSERT_EQ(Begin(Telling(1, 5, 7)).verdict, kRun);
  ExpectUnproven(Begin(Request(1, 6, kIncarnation)));
  ExpectUnproven(Begin(Request(1, 7, kIncarnation)));
  EXPECT_EQ(Begin(Request(1, 8, kIncarnation)).verdict, kRun) << "it came here, and got lost";
}

TEST_F(DedupeShardTest, ARepetitionOfAForgottenClientIsUnprovenThoughItTellsTheHighestNumber) {
  Make({.max_results = 1, .max_bytes = 100});
  RunCall(Request(1, 6));
  for (uint8_t client = 2; client <= 4; ++client) RunCall(Request(client, 1));
  now_ += seconds(121);
  ExpectUnproven(Begin(Telling(1, 6, 6, kIncarnation)));
}

// A call with a higher number may have overtaken the request, run, and be forgotten by now: each
// may have taken keep_for from its client to its handler, and waited as long at the server.
TEST_F(DedupeShardTest, AHighestNumberProvesNothingIfAClientWasForgottenLately) {
  Make({.max_results = 1, .max_bytes = 100});
  RunCall(Request(1, 6));
  for (uint8_t client = 2; client <= 4; ++client) RunCall(Request(client, 1));
  now_ += seconds(120);
  ASSERT_EQ(Begin(Telling(1, 5, 5)).verdict, kRun);
  ExpectUnproven(Begin(Request(1, 6, kIncarnation)));
}

// The request that tells the number may be any of the client's, also long after the first.
TEST_F(DedupeShardTest, AHighestNumberProvesLaterCallsOnceNoForgottenOneCanHaveOvertakenIt) {
  Make({.max_results = 1, .max_bytes = 100});
  RunCall(Request(1, 6));
  for (uint8_t client = 2; client <= 4; ++client) RunCall(Request(client, 1));
  now_ += seconds(120);
  ASSERT_EQ(Begin(Telling(1, 5, 5)).verdict, kRun);
  // That call still runs, so its record stays.
  ExpectUnproven(Begin(Telling(1, 7, 7, kIncarnation)));
  now_ += seconds(1);
  ExpectUnproven(Begin(Request(1, 8, kIncarnation)));
  ExpectUnproven(Begin(Telling(1, 9, 9, kIncarnation)));
  EXPECT_EQ(Begin(Telling(1, 10, 10, kIncarnation)).verdict, kRun) << "it came here, and got lost";
  ExpectUnproven(Begin(Telling(1, 6, 11, kIncarnation)));
  EXPECT_EQ(Begin(Telling(1, 12, 12, kIncarnation)).verdict, kRun)
      << "it was given after the request that told 9";
}

TEST_F(DedupeShardTest, WhatIsUnprovenOfAClientStaysSoWhenItIsDroppedAgain) {
  Make({.max_results = 1, .max_bytes = 100});
  RunCall(Request(1, 7));
  for (uint8_t client = 2; client <= 4; ++client) RunCall(Request(client, 1));
  now_ += seconds(120);
  RunCall(Telling(1, 5, 5));
  RunCall(Request(2, 2));
  ExpectUnproven(Begin(Telling(1, 7, 7, kIncarnation)));
  now_ += seconds(1);
  ExpectUnproven(Begin(Telling(1, 8, 8, kIncarnation)));
  RunCall(Telling(1, 9, 9));
  EXPECT_EQ(Begin(Telling(1, 10, 10, kIncarnation)).verdict, kRun)
      << "its calls that may have run came long ago, though its last one did not";
}

TEST_F(DedupeShardTest, ARuntimeWithManyNamesUnprovesItsOwnCallsAlone) {
  Make({.max_results = 8, .max_bytes = 800});
  const auto of_greedy = [](uint64_t name, uint64_t earlier = 0) {
    DedupeRequest request = Request(2, 1, earlier);
    request.name.id.client = {2, static_cast<uint8_t>(name >> 8), static_cast<uint8_t>(name)};
    return request;
  };
  RunCall(Request(1, 6));
  now_ += seconds(60);
  RunCall(of_greedy(0));
  now_ += seconds(60);
  for (uint64_t name = 1; name <= 10'000; ++name) RunCall(of_greedy(name));
  EXPECT_EQ(Begin(Request(3, 1, kIncarnation)).verdict, kRun) << "a client that nobody knew";
  ExpectUnproven(Begin(of_greedy(10'001, kIncarnation)));
  ExpectUnproven(Begin(Request(1, 6, kIncarnation)));
  EXPECT_EQ(Begin(Request(1, 7, kIncarnation)).verdict, kRun) << "it came here, and got lost";
}

class DroppedNamesTest : public ::testing::Test {
 protected:
  static RuntimeId Runtime(uint8_t runtime) {
    RuntimeId id;
    id.bytes = {runtime};
    return id;
  }
  void Add(uint8_t client, uint8_t runtime, uint64_t below, seconds last) {
    names_.Add({client}, "host", Runtime(runtime), {.below = below}, kBegin + last);
  }
  UnprovenCalls Of(uint8_t client, uint8_t runtime) const {
    return names_.UnprovenOf({client}, Runtime(runtime));
  }

  static constexpr TimePoint kBegin{};
  DroppedNames names_{3};
};

TEST_F(DroppedNamesTest, OfRuntimesThatHaveAsManyTheOneWithTheOldestGoesFirst) {
  Add(1, 1, 5, seconds(4));
  Add(2, 2, 7, seconds(2));
  Add(3, 3, 8, seconds(3));
  EXPECT_EQ(Of(1, 1).below, 5u);
  EXPECT_EQ(Of(9, 9).any_until, std::nullopt) << "none was forgotten";
  Add(4, 4, 9, seconds(5));
  EXPECT_EQ(names_.size(), 3u);
  EXPECT_EQ(Of(1, 1).any_until, kBegin + seconds(4));
  EXPECT_EQ(Of(4, 4).below, 9u);
  EXPECT_EQ(Of(4, 4).any_until, std::nullopt);
  Add(5, 5, 9, seconds(6));
  EXPECT_EQ(Of(2, 2).any_until, kBegin + seconds(4)) << "client 2 was idle for longer";
}

TEST_F(DroppedNamesTest, TheRuntimeThatHasTheMostLosesFirstAndUnprovesItsOwnClients) {
  Add(1, 1, 5, seconds(1));
  Add(2, 2, 6, seconds(3));
  Add(3, 2, 7, seconds(2));
  Add(4, 2, 8, seconds(4));
  EXPECT_EQ(Of(1, 1).below, 5u);
  EXPECT_EQ(Of(9, 1).any_until, std::nullopt);
  EXPECT_EQ(Of(2, 2).any_until, kBegin + seconds(3));
  Add(5, 2, 9, seconds(5));
  EXPECT_EQ(Of(9, 2).any_until, kBegin + seconds(3)) << "client 3 was idle for longer";
  EXPECT_EQ(Of(4, 2).below, 8u);
  names_.Remove({4}, Runtime(2));
  EXPECT_EQ(Of(9, 1).any_until, std::nullopt);
  names_.Remove({5}, Runtime(2));
  EXPECT_EQ(names_.size(), 1u);
  EXPECT_EQ(Of(9, 1).any_until, kBegin + seconds(3)) << "nobody knows whose client that was";
}

TEST_F(DroppedNamesTest, ANameThatTwoRuntimesHaveGivenLeavesTheFirstOneUnproven) {
  Add(1, 1, 5, seconds(1));
  Add(2, 1, 6, seconds(2));
  EXPECT_EQ(Of(1, 3).below, 0u);
  names_.Remove({1}, Runtime(3));
  EXPECT_EQ(Of(1, 1).below, 5u);
  Add(1, 3, 4, seconds(3));
  EXPECT_EQ(Of(1, 3).below, 4u);
  EXPECT_EQ(Of(1, 1).any_until, kBegin + seconds(1));
  EXPECT_EQ(names_.size(), 2u);
}

TEST_F(DedupeShardTest, TheClientWithTheMostLosesFirst) {
  Make({.max_results = 10, .max_bytes = 1000});
  RunCall(Request(1, 1));
  RunCall(Request(1, 2));
  for (uint64_t number = 1; number <= 50; ++number) RunCall(Request(2, number));
  EXPECT_EQ(shard_->results(), 10u);
  EXPECT_EQ(Begin(Request(1, 1)).verdict, kKept);
  EXPECT_EQ(Begin(Request(1, 2)).verdict, kKept);
  ExpectUnproven(Begin(Request(2, 1)));
}

TEST_F(DedupeShardTest, TheClientWithTheMostLosesFirstAmongThoseOfOneAddress) {
  Make({.max_results = 10, .max_bytes = 1000});
  const auto at_one_address = [](uint8_t client, uint64_t number) {
    DedupeRequest request = Request(client, number);
    request.source = "10.0.0.9";
    return request;
  };
  RunCall(at_one_address(1, 1));
  for (uint64_t number = 1; number <= 50; ++number) RunCall(at_one_address(2, number));
  EXPECT_EQ(Begin(at_one_address(1, 1)).verdict, kKept);
}

TEST_F(DedupeShardTest, AnAddressWithManyClientsLosesBeforeOneWithFewResults) {
  Make({.max_results = 10, .max_bytes = 1000});
  for (uint64_t number = 1; number <= 3; ++number) RunCall(Request(1, number));
  for (uint8_t client = 2; client < 60; ++client) {
    DedupeRequest request = Request(client, 1);
    request.source = "10.0.0.9";
    RunCall(request);
  }
  EXPECT_LE(shard_->records(), 10u);
  for (uint64_t number = 1; number <= 3; ++number) {
    EXPECT_EQ(Begin(Request(1, number)).verdict, kKept) << number;
  }
}

TEST_F(DedupeShardTest, ClientsWhoseCallsAllRunFillTheTableAndAFurtherOneIsRefused) {
  Make({.max_results = 4, .max_bytes = 400});
  for (uint8_t client = 1; client <= 4; ++client)
    EXPECT_EQ(Begin(Request(client, 1)).verdict, kRun);
  const DedupeClaim refused = Begin(Request(5, 1));
  EXPECT_EQ(refused.verdict, kRefused);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.refusal)) << refused.refusal;
  EXPECT_EQ(refused.outcome, Outcome::kNotExecuted);
}

TEST_F(DedupeShardTest, AnotherRuntimesNameIsRefused) {
  Make({.max_results = 8, .max_bytes = 800});
  RunCall(Request(1, 1));
  DedupeRequest foreign = Request(1, 1);
  foreign.runtime.bytes = {9};
  const DedupeClaim claim = Begin(foreign);
  EXPECT_EQ(claim.verdict, kRefused);
  EXPECT_TRUE(absl::IsPermissionDenied(claim.refusal)) << claim.refusal;
  foreign.name.id.number = 2;
  EXPECT_EQ(Begin(foreign).verdict, kRefused) << "also for a call that has not run";
}

TEST_F(DedupeShardTest, ANameThatIsUsedForAnotherRequestIsRefused) {
  Make({.max_results = 8, .max_bytes = 800});
  const DedupeRequest request = Request(1, 1);
  EXPECT_EQ(Begin(request).verdict, kRun);
  DedupeRequest other = request;
  other.fingerprint = 1;
  EXPECT_TRUE(absl::IsInvalidArgument(Begin(other).refusal));
  End(request, "ok");
  EXPECT_TRUE(absl::IsInvalidArgument(Begin(other).refusal));
  other = request;
  other.method = 2;
  EXPECT_TRUE(absl::IsInvalidArgument(Begin(other).refusal));
}

TEST(SequenceSetTest, HoldsWhatWasAddedAndJoinsNeighbours) {
  SequenceSet set;
  for (const uint64_t number : {5, 3, 9, 4, 8}) set.Add(number);
  EXPECT_EQ(set.ranges(), 2u);
  for (uint64_t number = 1; number <= 11; ++number) {
    EXPECT_EQ(set.Contains(number), (number >= 3 && number <= 5) || number == 8 || number == 9)
        << number;
  }
  set.Add(5);
  set.RemoveBelow(5);
  EXPECT_FALSE(set.Contains(4));
  EXPECT_TRUE(set.Contains(5));
  set.RemoveBelow(100);
  EXPECT_EQ(set.ranges(), 0u);
}

TEST(SequenceSetTest, IsBoundedAndNeverLosesANumber) {
  SequenceSet set;
  for (uint64_t i = 1; i <= 1000; ++i) set.Add(2 * i);
  EXPECT_EQ(set.ranges(), SequenceSet::kMaxRanges);
  for (uint64_t i = 1; i <= 1000; ++i) EXPECT_TRUE(set.Contains(2 * i)) << i;
  EXPECT_FALSE(set.Contains(1999));
}

TEST(DedupeTableTest, PayloadsOfCallsThatRunAreBounded) {
  DedupeTable table({.max_results = 8, .max_bytes = 100, .max_result_bytes = 80});
  EXPECT_TRUE(table.TakeUnfinished(60));
  EXPECT_FALSE(table.TakeUnfinished(41));
  EXPECT_TRUE(table.TakeUnfinished(40));
  table.ReturnUnfinished(60);
  EXPECT_TRUE(table.TakeUnfinished(41));
}

TEST(DedupeOptionsTest, OptionsOutOfRangeAreNamed) {
  const auto says = [](const DedupeOptions& options, const std::string& text) {
    const absl::Status status = CheckDedupe(options);
    return absl::IsInvalidArgument(status) &&
           std::string(status.message()).find(text) != std::string::npos;
  };
  EXPECT_TRUE(CheckDedupe({}).ok());
  EXPECT_TRUE(CheckDedupe({.max_results = 1, .max_bytes = 0, .max_result_bytes = 0}).ok());
  EXPECT_TRUE(says({.max_results = 0}, "max_results is 0"));
  EXPECT_TRUE(says({.max_results = (size_t{1} << 24) + 1}, "max_results is 16777217"));
  EXPECT_TRUE(says({.max_bytes = 10, .max_result_bytes = 11}, "max_result_bytes is 11"));
  EXPECT_TRUE(says({.keep_for = Duration::zero()}, "keep_for is 0"));
}

}  // namespace dedupe_shard_test
}  // namespace verbena::internal
