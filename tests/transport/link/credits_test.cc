// Credits never let a peer send more than there are receives for, whatever is on its way in both
// directions. Each counter that breaks the rules is a violation, and borrowed credits all come
// home.

#include "verbena/transport/link/credits.h"

#include <cstdint>
#include <deque>
#include <optional>
#include <random>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace verbena::internal {
namespace {

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
  SendCredits credits(0);
  for (uint32_t all = kMaxWindow; all < 0xfffffff0u - kMaxWindow; all += kMaxWindow) {
    ASSERT_TRUE(credits.OnHeader(all, 0).ok());
    ASSERT_EQ(credits.GiveBackWithin(all), kMaxWindow);
  }
  const uint32_t left = 0xfffffff0u - credits.returned();
  ASSERT_TRUE(credits.OnHeader(credits.returned() + kMaxWindow, 0).ok());
  ASSERT_EQ(credits.GiveBackWithin(credits.returned() + kMaxWindow), kMaxWindow);
  ASSERT_TRUE(credits.OnHeader(0xfffffff0u, 0).ok());
  ASSERT_EQ(credits.GiveBackWithin(0xfffffff0u), left - kMaxWindow);
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

TEST(SendCreditsTest, ARecallTakesOnlyWhatIsUnspent) {
  SendCredits credits(8);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(credits.TrySpend());
  EXPECT_EQ(credits.GiveBackWithin(100), 3u);
  EXPECT_EQ(credits.available(), 0u);
  EXPECT_EQ(credits.returned(), 3u);
}

// The second is sent before the answer to the first has come.
TEST(SendCreditsTest, RecallsThatCrossDoNotAddUp) {
  SendCredits credits(4);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(credits.TrySpend());
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

TEST(IssuedCreditsTest, ARecallIsAnsweredByGivingBackOrByHavingNoneToSpare) {
  CreditPool pool(kInitial);
  CreditShare share;
  IssuedCredits issued(pool, share, kInitial, kMax);
  issued.Grow(/*is_shared=*/false);
  issued.Refill();
  issued.Recall(issued.surplus());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(issued.OnSend(false).ok());
  EXPECT_TRUE(issued.recalled());
  ASSERT_TRUE(issued.OnReturned(kInitial - 3).ok()) << "the others were on their way";
  EXPECT_FALSE(issued.recalled());
  issued.Refill();
  issued.Recall(issued.surplus());
  for (uint32_t i = 0; i < issued.window(); ++i) {
    ASSERT_TRUE(issued.OnSend(false).ok());
    issued.Refill();
  }
  EXPECT_TRUE(issued.CheckRecall(/*is_due=*/false).ok());
  EXPECT_FALSE(issued.recalled());
}

TEST(IssuedCreditsTest, APeerThatGivesOneCreditBackHasNotAnswered) {
  CreditPool pool(kInitial);
  CreditShare share;
  IssuedCredits issued(pool, share, kInitial, kMax);
  issued.Grow(/*is_shared=*/false);
  issued.Refill();
  issued.Recall(issued.surplus());
  ASSERT_TRUE(issued.OnReturned(1).ok());
  EXPECT_TRUE(issued.recalled());
  for (uint32_t i = 0; i < kMaxUnansweredRecalls; ++i)
    EXPECT_TRUE(issued.CheckRecall(/*is_due=*/false).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(issued.CheckRecall(/*is_due=*/false)));
}

TEST(IssuedCreditsTest, ARecallThatIsNotAnsweredIsAViolationAfterAFewChecks) {
  CreditPool pool(kInitial);
  CreditShare share;
  IssuedCredits issued(pool, share, kInitial, kMax);
  issued.Grow(/*is_shared=*/false);
  issued.Refill();
  issued.Recall(issued.surplus());
  for (uint32_t i = 0; i < kMaxUnansweredRecalls; ++i) {
    EXPECT_TRUE(issued.CheckRecall(/*is_due=*/false).ok());
    ASSERT_TRUE(issued.OnSend(false).ok());
    issued.Refill();
  }
  EXPECT_TRUE(absl::IsResourceExhausted(issued.CheckRecall(/*is_due=*/false)));
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
    wire.push_back(
        {spends_reserve, issued.total(), credits.returned(), issued.reserve_seen(), recall_limit});
  }

  SendCredits credits{kInitial};
  CreditShare share;
  IssuedCredits issued;
  std::deque<Header> wire;
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
  ASSERT_TRUE(to.credits.OnHeader(header.issued, header.reserve_seen).ok());
  if (header.recall_limit) to.credits.GiveBackWithin(*header.recall_limit);
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
        if (side.credits.TrySpendReserve()) {
          side.Send(true);
          ++side.reserve;
        }
        break;
      case 4:
        if (random() % 64 == 0) side.issued.Grow(/*is_shared=*/false);
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
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(sides[0].ordinary, 10000u);
  EXPECT_GT(sides[1].ordinary, 10000u);
}

}  // namespace
}  // namespace verbena::internal
