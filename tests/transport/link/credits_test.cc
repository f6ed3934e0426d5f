// Credits never let a peer send more than there are receives for, whatever is on its way in both
// directions. Each counter that breaks the rules is a violation, and borrowed credits all come
// home: those that a peer is asked for also if it returns none.

#include "verbena/transport/link/credits.h"

#include <cstdint>
#include <deque>
#include <optional>
#include <random>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace verbena::internal {
namespace credits_test {

constexpr uint32_t kInitial = 8;
constexpr uint32_t kMax = 64;

TEST(SendCreditsTest, NothingIsSentWithoutACredit) {
  SendCredits credits(2);
  EXPECT_TRUE(credits.TrySpend());
  EXPECT_TRUE(credits.TrySpend());
  EXPECT_FALSE(credits.TrySpend());
}

TEST(SendCreditsTest, ARepeatedHeaderIssuesNothingTwice) {
  SendCredits credits(2);
  ASSERT_TRUE(credits.TrySpend());
  ASSERT_TRUE(credits.OnHeader(3, 0).ok());
  ASSERT_TRUE(credits.OnHeader(3, 0).ok());
  EXPECT_EQ(credits.available(), 2u);
}

TEST(SendCreditsTest, IssuedCreditsTakenBackAreAViolation) {
  SendCredits credits(8);
  EXPECT_FALSE(credits.OnHeader(7, 0).ok());
}

TEST(SendCreditsTest, CreditsIssuedBeyondTheWindowAreAViolation) {
  SendCredits credits(8);
  EXPECT_FALSE(credits.OnHeader(8 + kMaxWindow + 1, 0).ok());
  EXPECT_EQ(credits.available(), 8u) << "a refused header must change nothing";
}

TEST(SendCreditsTest, CountersSurviveTheirWrapAround) {
  // Spending them all would take minutes: give back instead, which moves the same counters.
  constexpr uint32_t kStep = kMaxWindow / 2;
  SendCredits credits(1);
  uint32_t all = 0;
  while (all < 0xfffffff0u - kStep) {
    all += kStep;
    ASSERT_TRUE(credits.OnHeader(all + 1, 0).ok());
    ASSERT_EQ(credits.GiveBackWithin(all), kStep);
  }
  ASSERT_TRUE(credits.OnHeader(0xfffffff1u, 0).ok());
  ASSERT_EQ(credits.GiveBackWithin(0xfffffff0u), 0xfffffff0u - all);
  ASSERT_TRUE(credits.OnHeader(0x00000010u, 0).ok());
  EXPECT_EQ(credits.available(), 0x20u);
  for (int i = 0; i < 0x20; ++i) ASSERT_TRUE(credits.TrySpend());
  EXPECT_FALSE(credits.TrySpend());
}

TEST(SendCreditsTest, TheReserveIsTwoAndComesBackOnlyWhenSeen) {
  SendCredits credits(0);
  EXPECT_TRUE(credits.TrySpendReserve());
  EXPECT_TRUE(credits.TrySpendReserve());
  EXPECT_FALSE(credits.TrySpendReserve());
  ASSERT_TRUE(credits.OnHeader(0, 1).ok());
  EXPECT_TRUE(credits.TrySpendReserve());
  EXPECT_FALSE(credits.TrySpendReserve());
}

TEST(SendCreditsTest, APeerThatSawReserveSendsThatNeverWereIsAViolation) {
  SendCredits credits(0);
  ASSERT_TRUE(credits.TrySpendReserve());
  EXPECT_FALSE(credits.OnHeader(0, 2).ok());
}

// Without it, two sides that answer each other's recalls could both have none to say so with.
TEST(SendCreditsTest, ARecallTakesOnlyWhatIsUnspentAndLeavesOne) {
  SendCredits credits(8);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(credits.TrySpend());
  EXPECT_EQ(credits.GiveBackWithin(100), 2u);
  EXPECT_EQ(credits.available(), 1u);
  EXPECT_EQ(credits.GiveBackWithin(100), 0u);
  EXPECT_EQ(credits.returned(), 2u);
  ASSERT_TRUE(credits.TrySpend());
  EXPECT_EQ(credits.GiveBackWithin(100), 0u) << "none is left";
}

// The second is sent before the answer to the first has come.
TEST(SendCreditsTest, RecallsThatCrossDoNotAddUp) {
  SendCredits credits(4);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(credits.TrySpend());
  EXPECT_EQ(credits.GiveBackWithin(12), 1u);
  ASSERT_TRUE(credits.OnHeader(20, 0).ok());
  EXPECT_EQ(credits.GiveBackWithin(12), 11u) << "twelve were borrowed";
  EXPECT_EQ(credits.GiveBackWithin(12), 0u);
  EXPECT_EQ(credits.GiveBackWithin(5), 0u) << "an older recall";
}

TEST(IssuedCreditsTest, APeerThatSendsWithoutACreditIsAViolation) {
  CreditPool pool(0);
  CreditShare share;
  IssuedCredits issued(pool, share, 2, kMax);
  EXPECT_TRUE(issued.OnSend(false).ok());
  EXPECT_TRUE(issued.OnSend(false).ok());
  EXPECT_FALSE(issued.OnSend(false).ok());
}

TEST(IssuedCreditsTest, RefillRestoresTheWindowAndNoMore) {
  CreditPool pool(0);
  CreditShare share;
  IssuedCredits issued(pool, share, kInitial, kMax);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(issued.OnSend(false).ok());
  issued.Refill();
  issued.Refill();
  EXPECT_EQ(issued.outstanding(), kInitial);
  EXPECT_EQ(issued.total(), kInitial + 3);
}

TEST(IssuedCreditsTest, HalfAWindowIsWorthASendOfItsOwn) {
  CreditPool pool(0);
  CreditShare share;
  IssuedCredits issued(pool, share, kInitial, kMax);
  for (uint32_t i = 1; i <= kInitial / 2; ++i) {
    EXPECT_FALSE(issued.ShouldAdvertise());
    ASSERT_TRUE(issued.OnSend(false).ok());
  }
  EXPECT_TRUE(issued.ShouldAdvertise());
  issued.Refill();
  issued.MarkAdvertised();
  EXPECT_FALSE(issued.ShouldAdvertise());
}

TEST(IssuedCreditsTest, AReserveSendCausesNoCreditReturn) {
  CreditPool pool(0);
  CreditShare share;
  IssuedCredits issued(pool, share, kInitial, kMax);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(issued.OnSend(true).ok());
    EXPECT_FALSE(issued.ShouldAdvertise());
    issued.MarkAdvertised();
  }
  EXPECT_EQ(issued.reserve_seen(), 20);
}

TEST(IssuedCreditsTest, MoreThanTwoUnacknowledgedReserveSendsAreAViolation) {
  CreditPool pool(0);
  CreditShare share;
  IssuedCredits issued(pool, share, kInitial, kMax);
  ASSERT_TRUE(issued.OnSend(true).ok());
  issued.MarkAdvertised();
  ASSERT_TRUE(issued.OnSend(true).ok());
  ASSERT_TRUE(issued.OnSend(true).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(issued.OnSend(true)));
  EXPECT_EQ(issued.reserve_seen(), 3) << "a refused SEND must change nothing";
}

// A link whose peer has borrowed as much as its initial window, and holds all.
class RecalledCreditsTest : public testing::Test {
 protected:
  RecalledCreditsTest() {
    issued_.Grow(/*is_shared=*/false);
    issued_.Refill();
    issued_.MarkAdvertised();
  }

  // The peer sends, and hears of what it is issued, as often as that.
  void Spend(uint32_t sends) {
    for (uint32_t i = 0; i < sends; ++i) {
      ASSERT_TRUE(issued_.OnSend(false).ok());
      if (issued_.recalled()) issued_.SettleRecall();
      issued_.Refill();
      issued_.MarkAdvertised();
    }
  }
  // The peer's credits_returned is `all` now.
  absl::Status Return(uint32_t all) {
    absl::Status status = issued_.OnReturned(all);
    if (issued_.recalled()) issued_.SettleRecall();
    return status;
  }

  CreditPool pool_{kInitial};
  CreditShare share_;
  IssuedCredits issued_{pool_, share_, kInitial, kMax};
};

TEST_F(RecalledCreditsTest, CreditsComeBackAsThePeerReturnsAndSpendsThem) {
  issued_.Recall(issued_.surplus());
  Spend(3);
  EXPECT_TRUE(issued_.recalled());
  EXPECT_EQ(pool_.free(), 3u);
  EXPECT_EQ(issued_.recall_limit(), kInitial - 3) << "of a RECALL that leaves only now";
  ASSERT_TRUE(Return(kInitial - 3).ok());
  EXPECT_FALSE(issued_.recalled());
  EXPECT_EQ(pool_.free(), kInitial);
  EXPECT_EQ(issued_.window(), kInitial);
  EXPECT_EQ(issued_.outstanding(), kInitial);
}

TEST_F(RecalledCreditsTest, APeerThatSpendsAndReturnsNothingKeepsNothing) {
  issued_.Recall(5);
  const uint32_t before = issued_.total();
  for (uint32_t spent = 1; spent <= 5; ++spent) {
    EXPECT_TRUE(issued_.recalled());
    Spend(1);
    EXPECT_EQ(issued_.total(), before) << "nothing is issued anew";
    EXPECT_EQ(pool_.free(), spent);
    EXPECT_FALSE(issued_.ShouldAdvertise()) << "there is nothing to tell";
  }
  EXPECT_FALSE(issued_.recalled());
  EXPECT_EQ(issued_.window(), 2 * kInitial - 5);
  Spend(1);
  EXPECT_EQ(issued_.total(), before + 1) << "the rest of the window is the peer's";
  EXPECT_EQ(issued_.outstanding(), issued_.window());
}

TEST_F(RecalledCreditsTest, AWindowThatWasNarrowedIsStillAdvertised) {
  issued_.Recall(issued_.surplus());
  Spend(kInitial);
  ASSERT_FALSE(issued_.recalled());
  for (uint32_t i = 0; i < kInitial / 2; ++i) {
    EXPECT_FALSE(issued_.ShouldAdvertise());
    ASSERT_TRUE(issued_.OnSend(false).ok());
  }
  EXPECT_TRUE(issued_.ShouldAdvertise());
}

TEST_F(RecalledCreditsTest, WhatIsNotIssuedIsTakenWithoutAsking) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(issued_.OnSend(false).ok());
  issued_.Recall(5);
  EXPECT_TRUE(issued_.recalled());
  EXPECT_EQ(pool_.free(), 3u);
  EXPECT_EQ(issued_.recall_limit(), 2u);
  ASSERT_TRUE(Return(2).ok());
  EXPECT_FALSE(issued_.recalled());
  ASSERT_TRUE(issued_.OnSend(false).ok());
  issued_.Recall(1);
  EXPECT_FALSE(issued_.recalled()) << "the peer need not be asked";
  EXPECT_EQ(pool_.free(), 6u);
}

// The peer gave back what it had unspent as the RECALL came. Meanwhile its SENDs were counted.
TEST_F(RecalledCreditsTest, AnAnswerThatCrossesTakesNoCreditTwice) {
  issued_.Recall(5);
  Spend(5);
  ASSERT_FALSE(issued_.recalled());
  const uint32_t window = issued_.window();
  ASSERT_TRUE(Return(5).ok());
  EXPECT_EQ(issued_.window(), window);
  EXPECT_EQ(issued_.outstanding(), window - 5);
  EXPECT_EQ(pool_.free(), 5u);
  issued_.Refill();
  EXPECT_EQ(issued_.outstanding(), window) << "it has them anew";
}

TEST_F(RecalledCreditsTest, AnAnswerThatCrossesIsAcceptedWhenNothingIsBorrowedAnyMore) {
  issued_.Recall(issued_.surplus());
  Spend(kInitial);
  ASSERT_EQ(issued_.surplus(), 0u);
  EXPECT_TRUE(Return(kInitial).ok());
  EXPECT_EQ(issued_.window(), kInitial);
}

// Both answers come after the second RECALL has left. The peer returns no more than the greater
// limit allows.
TEST_F(RecalledCreditsTest, TwoRecallsThatCrossTheirAnswersTakeWhatTheyAskedForAndNoMore) {
  issued_.Recall(3);
  EXPECT_EQ(issued_.recall_limit(), 3u);
  Spend(3);
  ASSERT_FALSE(issued_.recalled());
  issued_.Recall(4);
  EXPECT_EQ(issued_.recall_limit(), 4u);
  ASSERT_TRUE(Return(3).ok());
  EXPECT_TRUE(issued_.recalled());
  ASSERT_TRUE(Return(4).ok());
  EXPECT_FALSE(issued_.recalled());
  EXPECT_EQ(pool_.free(), 7u);
  EXPECT_EQ(issued_.window(), 2 * kInitial - 7);
  EXPECT_EQ(issued_.outstanding(), issued_.window());
}

// The first limit is the greater one: the peer may still use all of it.
TEST_F(RecalledCreditsTest, ALateAnswerToAGreaterRecallIsAccepted) {
  issued_.Recall(6);
  Spend(6);
  issued_.Recall(2);
  ASSERT_TRUE(Return(6).ok());
  EXPECT_FALSE(issued_.recalled());
  EXPECT_EQ(issued_.surplus(), 0u);
  EXPECT_EQ(issued_.outstanding(), kInitial - 4);
  EXPECT_FALSE(Return(7).ok());
}

TEST_F(RecalledCreditsTest, APeerThatReturnsMoreThanItWasAskedForAndHasBorrowedIsAViolation) {
  issued_.Recall(5);
  Spend(5);
  ASSERT_EQ(issued_.surplus(), 3u);
  EXPECT_TRUE(absl::IsInvalidArgument(Return(5 + 3 + 1)));
}

// The credits that are missing are for the recall.
TEST_F(RecalledCreditsTest, APeerThatReturnsMoreThanItBorrowedWhileItIsAskedIsAViolation) {
  issued_.Recall(5);
  EXPECT_TRUE(absl::IsInvalidArgument(Return(kInitial + 1)));
}

TEST_F(RecalledCreditsTest, ReturnsBeyondWhatWasAskedForNarrowTheWindow) {
  issued_.Recall(5);
  ASSERT_TRUE(Return(7).ok());
  EXPECT_FALSE(issued_.recalled());
  EXPECT_EQ(issued_.surplus(), kInitial - 7);
  EXPECT_EQ(pool_.free(), 7u);
}

TEST_F(RecalledCreditsTest, APeerThatGivesOneCreditBackHasNotAnswered) {
  issued_.Recall(issued_.surplus());
  ASSERT_TRUE(Return(1).ok());
  EXPECT_TRUE(issued_.recalled());
  for (uint32_t i = 0; i < kMaxUnansweredRecalls; ++i)
    EXPECT_TRUE(issued_.CheckRecall(/*is_due=*/false).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(issued_.CheckRecall(/*is_due=*/false)));
}

TEST_F(RecalledCreditsTest, ARecallThatIsNotAnsweredIsAViolationAfterAFewChecks) {
  issued_.Recall(issued_.surplus());
  for (uint32_t i = 0; i < kMaxUnansweredRecalls; ++i) {
    EXPECT_TRUE(issued_.CheckRecall(/*is_due=*/false).ok());
    Spend(1);
  }
  EXPECT_TRUE(absl::IsResourceExhausted(issued_.CheckRecall(/*is_due=*/false)));
}

TEST(IssuedCreditsTest, GrowthIsBoundedByThePoolAndTheMaximum) {
  CreditPool pool(20);
  CreditShare share;
  IssuedCredits issued(pool, share, kInitial, kMax);
  EXPECT_EQ(issued.Grow(/*is_shared=*/false), 8u);
  EXPECT_EQ(issued.Grow(/*is_shared=*/false), 12u);
  EXPECT_EQ(issued.Grow(/*is_shared=*/false), 0u);
  EXPECT_EQ(pool.free(), 0u);
  CreditPool large(1000);
  CreditShare of_large;
  IssuedCredits other(large, of_large, kInitial, 20);
  other.Grow(/*is_shared=*/false);
  other.Grow(/*is_shared=*/false);
  EXPECT_EQ(other.window(), 20u);
}

TEST(IssuedCreditsTest, LentCreditsComeHomeWithTheLink) {
  CreditPool pool(100);
  CreditShare share;
  {
    IssuedCredits issued(pool, share, kInitial, kMax);
    issued.Grow(/*is_shared=*/false);
    EXPECT_EQ(pool.borrowed(), kInitial);
  }
  EXPECT_EQ(pool.borrowed(), 0u);
}

TEST(IssuedCreditsTest, CreditsGivenBackAreFreeOnlyOnceThePeerSaysSo) {
  CreditPool pool(8);
  CreditShare share;
  IssuedCredits issued(pool, share, kInitial, kMax);
  issued.Grow(/*is_shared=*/false);
  issued.Refill();
  EXPECT_EQ(pool.free(), 0u);
  ASSERT_TRUE(issued.OnReturned(5).ok());
  EXPECT_EQ(pool.free(), 5u);
  EXPECT_EQ(issued.window(), kInitial + 3);
  EXPECT_EQ(issued.outstanding(), kInitial + 3);
  ASSERT_TRUE(issued.OnReturned(5).ok()) << "a repeated counter returns nothing";
  EXPECT_EQ(pool.free(), 5u);
}

TEST(IssuedCreditsTest, APeerThatGivesBackMoreThanItWasLentIsAViolation) {
  CreditPool pool(8);
  CreditShare share;
  IssuedCredits issued(pool, share, kInitial, kMax);
  EXPECT_FALSE(issued.OnReturned(1).ok()) << "its initial window is not borrowed";
  issued.Grow(/*is_shared=*/false);
  issued.Refill();
  EXPECT_FALSE(issued.OnReturned(9).ok());
  EXPECT_FALSE(issued.OnReturned(0xffffffffu).ok());
}

TEST(IssuedCreditsTest, AnAddressBorrowsNoMoreThanItLeavesFreeForOthers) {
  CreditPool pool(100);
  CreditShare greedy;
  CreditShare modest;
  IssuedCredits one(pool, greedy, kInitial, 1000);
  IssuedCredits two(pool, greedy, kInitial, 1000);
  for (int i = 0; i < 10; ++i) {
    one.Grow(/*is_shared=*/true);
    two.Grow(/*is_shared=*/true);
  }
  EXPECT_EQ(greedy.borrowed, 50u);
  IssuedCredits three(pool, modest, kInitial, 1000);
  EXPECT_EQ(three.Grow(/*is_shared=*/true), kInitial) << "as much as it asked for";
  EXPECT_EQ(modest.borrowed, kInitial);
}

TEST(IssuedCreditsTest, TheOnlyAddressMayBorrowAll) {
  CreditPool pool(100);
  CreditShare share;
  IssuedCredits one(pool, share, kInitial, 1000);
  for (int i = 0; i < 10; ++i) one.Grow(/*is_shared=*/false);
  EXPECT_EQ(share.borrowed, 100u);
  EXPECT_EQ(pool.free(), 0u);
}

TEST(IssuedCreditsTest, AShareIsGivenBackWithItsLinks) {
  CreditPool pool(100);
  CreditShare share;
  {
    IssuedCredits one(pool, share, kInitial, 1000);
    one.Grow(/*is_shared=*/true);
    ASSERT_EQ(share.borrowed, kInitial);
  }
  EXPECT_EQ(share.borrowed, 0u);
  EXPECT_EQ(pool.free(), 100u);
}

// One end of a link, and what it has sent that has not arrived.
struct Side {
  struct Header {
    bool spends_reserve;
    uint32_t issued;
    uint32_t returned;
    uint16_t reserve_seen;
    std::optional<uint32_t> recall_limit;
  };

  explicit Side(CreditPool& pool) : issued(pool, share, kInitial, kMax) {}

  void Send(bool spends_reserve, std::optional<uint32_t> recall_limit = std::nullopt) {
    issued.Refill();
    issued.MarkAdvertised();
    owes_answer = false;
    wire.push_back(
        {spends_reserve, issued.total(), credits.returned(), issued.reserve_seen(), recall_limit});
  }

  SendCredits credits{kInitial};
  CreditShare share;
  IssuedCredits issued;
  std::deque<Header> wire;
  bool owes_answer = false;  // to a recall
  uint64_t ordinary = 0;
  uint64_t reserve = 0;
};

// The receiver has set aside enough for all that the sender holds and all that is on its way.
void ExpectCovered(const Side& sender, const Side& receiver) {
  uint32_t on_the_way = 0;
  for (const Side::Header& header : sender.wire) on_the_way += header.spends_reserve ? 0 : 1;
  ASSERT_LE(sender.credits.available() + on_the_way, receiver.issued.outstanding());
  ASSERT_LE(receiver.issued.outstanding(), receiver.issued.window());
  ASSERT_LE(sender.wire.size() - on_the_way, kReserveCredits);
}

void Deliver(Side& from, Side& to) {
  const Side::Header header = from.wire.front();
  from.wire.pop_front();
  ASSERT_TRUE(to.issued.OnSend(header.spends_reserve).ok());
  ASSERT_TRUE(to.issued.OnReturned(header.returned).ok());
  if (to.issued.recalled()) to.issued.SettleRecall();
  ASSERT_TRUE(to.credits.OnHeader(header.issued, header.reserve_seen).ok());
  if (header.recall_limit && to.credits.GiveBackWithin(*header.recall_limit) != 0) {
    to.owes_answer = true;
  }
}

// Both directions, with up to 40 SENDs on their way in each, in every order that a seed chooses.
// Each counter of reserve SENDs (16 bits) wraps around.
TEST(CreditsTest, TwoSidesNeverDisagreeWhateverIsOnItsWay) {
  std::minstd_rand random(20261122);
  CreditPool pool(64);
  Side sides[2] = {Side(pool), Side(pool)};
  while (sides[0].reserve < 70000 || sides[1].reserve < 70000) {
    const size_t index = random() % 2;
    Side& side = sides[index];
    Side& other = sides[1 - index];
    switch (random() % 8) {
      case 0:
      case 1:
        if (side.wire.size() < 40 && side.credits.TrySpend()) {
          side.Send(false);
          ++side.ordinary;
        }
        break;
      case 2:
      case 3:
        // As a link does: a SEND without credits or returned ones to tell of would spend the
        // reserve for nothing, and the other side may have no credit to acknowledge it.
        if ((side.issued.ShouldAdvertise() || side.owes_answer) && side.credits.TrySpendReserve()) {
          side.Send(true);
          ++side.reserve;
        }
        break;
      case 4:
        if (random() % 64 == 0 && !side.issued.recalled()) side.issued.Grow(/*is_shared=*/false);
        break;
      case 5:
        // Recalls that come before the answer to an earlier one, too.
        if (random() % 16 == 0 && side.wire.size() < 40 && side.credits.TrySpend()) {
          side.issued.Recall(random() % (side.issued.surplus() + 1));
          side.Send(false, side.issued.recall_limit());
        }
        break;
      default:
        if (!other.wire.empty()) Deliver(other, side);
        break;
    }
    ExpectCovered(sides[0], sides[1]);
    ExpectCovered(sides[1], sides[0]);
    ASSERT_EQ(sides[0].issued.surplus() + sides[1].issued.surplus(), pool.borrowed());
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(sides[0].ordinary, 10000u);
  EXPECT_GT(sides[1].ordinary, 10000u);
}

}  // namespace credits_test
}  // namespace verbena::internal
