// Credits never let a peer send more than there are receives for, whatever is on its way in both
// directions. Each counter that breaks the rules is a violation, and lent credits all come home.

#include "verbena/transport/link/credits.h"

#include <cstdint>
#include <deque>
#include <optional>
#include <random>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace verbena {
namespace {

constexpr uint32_t kInitial = 8;
constexpr uint32_t kMax = 64;

TEST(SendCreditsTest, NothingIsSentWithoutACredit) {
  SendCredits credits(2);
  EXPECT_TRUE(credits.TrySpend());
  EXPECT_TRUE(credits.TrySpend());
  EXPECT_FALSE(credits.TrySpend());
}

TEST(SendCreditsTest, ARepeatedHeaderGrantsNothingTwice) {
  SendCredits credits(2);
  ASSERT_TRUE(credits.TrySpend());
  ASSERT_TRUE(credits.OnHeader(3, 0).ok());
  ASSERT_TRUE(credits.OnHeader(3, 0).ok());
  EXPECT_EQ(credits.available(), 2u);
}

TEST(SendCreditsTest, AGrantTakenBackIsAViolation) {
  SendCredits credits(8);
  EXPECT_FALSE(credits.OnHeader(7, 0).ok());
}

TEST(SendCreditsTest, AGrantBeyondTheWindowIsAViolation) {
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
  EXPECT_EQ(credits.GiveBackWithin(12), 11u) << "twelve were lent";
  EXPECT_EQ(credits.GiveBackWithin(12), 0u);
  EXPECT_EQ(credits.GiveBackWithin(5), 0u) << "an older recall";
}

TEST(ReceiveGrantsTest, APeerThatSendsWithoutACreditIsAViolation) {
  CreditPool pool(0);
  ReceiveGrants grants(pool, 2, kMax);
  EXPECT_TRUE(grants.OnSend(false).ok());
  EXPECT_TRUE(grants.OnSend(false).ok());
  EXPECT_FALSE(grants.OnSend(false).ok());
}

TEST(ReceiveGrantsTest, RefillRestoresTheWindowAndNoMore) {
  CreditPool pool(0);
  ReceiveGrants grants(pool, kInitial, kMax);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(grants.OnSend(false).ok());
  grants.Refill();
  grants.Refill();
  EXPECT_EQ(grants.outstanding(), kInitial);
  EXPECT_EQ(grants.granted(), kInitial + 3);
}

TEST(ReceiveGrantsTest, HalfAWindowIsWorthASendOfItsOwn) {
  CreditPool pool(0);
  ReceiveGrants grants(pool, kInitial, kMax);
  for (uint32_t i = 1; i <= kInitial / 2; ++i) {
    EXPECT_FALSE(grants.ShouldAdvertise());
    ASSERT_TRUE(grants.OnSend(false).ok());
  }
  EXPECT_TRUE(grants.ShouldAdvertise());
  grants.Refill();
  grants.MarkAdvertised();
  EXPECT_FALSE(grants.ShouldAdvertise());
}

TEST(ReceiveGrantsTest, AReserveSendCausesNoCreditReturn) {
  CreditPool pool(0);
  ReceiveGrants grants(pool, kInitial, kMax);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(grants.OnSend(true).ok());
    EXPECT_FALSE(grants.ShouldAdvertise());
    grants.MarkAdvertised();
  }
  EXPECT_EQ(grants.reserve_seen(), 20);
}

TEST(ReceiveGrantsTest, MoreThanTwoUnacknowledgedReserveSendsAreAViolation) {
  CreditPool pool(0);
  ReceiveGrants grants(pool, kInitial, kMax);
  ASSERT_TRUE(grants.OnSend(true).ok());
  grants.MarkAdvertised();
  ASSERT_TRUE(grants.OnSend(true).ok());
  ASSERT_TRUE(grants.OnSend(true).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(grants.OnSend(true)));
  EXPECT_EQ(grants.reserve_seen(), 3) << "a refused SEND must change nothing";
}

TEST(ReceiveGrantsTest, ARecallIsAnsweredByGivingBackOrByHavingNoneToSpare) {
  CreditPool pool(kInitial);
  ReceiveGrants grants(pool, kInitial, kMax);
  grants.Grow();
  grants.Refill();
  grants.Recall();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(grants.OnSend(false).ok());
  EXPECT_TRUE(grants.recalled());
  ASSERT_TRUE(grants.OnReturned(kInitial - 3).ok()) << "the others were on their way";
  EXPECT_FALSE(grants.recalled());
  grants.Refill();
  grants.Recall();
  for (uint32_t i = 0; i < grants.window(); ++i) {
    ASSERT_TRUE(grants.OnSend(false).ok());
    grants.Refill();
  }
  EXPECT_TRUE(grants.CheckRecall(/*is_due=*/false).ok());
  EXPECT_FALSE(grants.recalled());
}

TEST(ReceiveGrantsTest, APeerThatGivesOneCreditBackHasNotAnswered) {
  CreditPool pool(kInitial);
  ReceiveGrants grants(pool, kInitial, kMax);
  grants.Grow();
  grants.Refill();
  grants.Recall();
  ASSERT_TRUE(grants.OnReturned(1).ok());
  EXPECT_TRUE(grants.recalled());
  for (uint32_t i = 0; i < kMaxUnansweredRecalls; ++i)
    EXPECT_TRUE(grants.CheckRecall(/*is_due=*/false).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(grants.CheckRecall(/*is_due=*/false)));
}

TEST(ReceiveGrantsTest, ARecallThatIsNotAnsweredIsAViolationAfterAFewChecks) {
  CreditPool pool(kInitial);
  ReceiveGrants grants(pool, kInitial, kMax);
  grants.Grow();
  grants.Refill();
  grants.Recall();
  for (uint32_t i = 0; i < kMaxUnansweredRecalls; ++i) {
    EXPECT_TRUE(grants.CheckRecall(/*is_due=*/false).ok());
    ASSERT_TRUE(grants.OnSend(false).ok());
    grants.Refill();
  }
  EXPECT_TRUE(absl::IsResourceExhausted(grants.CheckRecall(/*is_due=*/false)));
}

TEST(ReceiveGrantsTest, GrowthIsBoundedByThePoolAndTheMaximum) {
  CreditPool pool(20);
  ReceiveGrants grants(pool, kInitial, kMax);
  EXPECT_EQ(grants.Grow(), 8u);
  EXPECT_EQ(grants.Grow(), 12u);
  EXPECT_EQ(grants.Grow(), 0u);
  EXPECT_EQ(pool.free(), 0u);
  CreditPool large(1000);
  ReceiveGrants other(large, kInitial, 20);
  other.Grow();
  other.Grow();
  EXPECT_EQ(other.window(), 20u);
}

TEST(ReceiveGrantsTest, LentCreditsComeHomeWithTheLink) {
  CreditPool pool(100);
  {
    ReceiveGrants grants(pool, kInitial, kMax);
    grants.Grow();
    EXPECT_EQ(pool.lent(), kInitial);
  }
  EXPECT_EQ(pool.lent(), 0u);
}

TEST(ReceiveGrantsTest, CreditsGivenBackAreFreeOnlyOnceThePeerSaysSo) {
  CreditPool pool(8);
  ReceiveGrants grants(pool, kInitial, kMax);
  grants.Grow();
  grants.Refill();
  EXPECT_EQ(pool.free(), 0u);
  ASSERT_TRUE(grants.OnReturned(5).ok());
  EXPECT_EQ(pool.free(), 5u);
  EXPECT_EQ(grants.window(), kInitial + 3);
  EXPECT_EQ(grants.outstanding(), kInitial + 3);
  ASSERT_TRUE(grants.OnReturned(5).ok()) << "a repeated counter returns nothing";
  EXPECT_EQ(pool.free(), 5u);
}

TEST(ReceiveGrantsTest, APeerThatGivesBackMoreThanItWasLentIsAViolation) {
  CreditPool pool(8);
  ReceiveGrants grants(pool, kInitial, kMax);
  EXPECT_FALSE(grants.OnReturned(1).ok()) << "its initial window is not lent";
  grants.Grow();
  grants.Refill();
  EXPECT_FALSE(grants.OnReturned(9).ok());
  EXPECT_FALSE(grants.OnReturned(0xffffffffu).ok());
}

// One end of a link, and what it has sent that has not arrived.
struct Side {
  struct Header {
    bool spends_reserve;
    uint32_t granted;
    uint32_t returned;
    uint16_t reserve_seen;
    std::optional<uint32_t> recall_limit;
  };

  explicit Side(CreditPool& pool) : grants(pool, kInitial, kMax) {}

  void Send(bool spends_reserve, std::optional<uint32_t> recall_limit = std::nullopt) {
    grants.Refill();
    grants.MarkAdvertised();
    wire.push_back({spends_reserve, grants.granted(), credits.returned(), grants.reserve_seen(),
                    recall_limit});
  }

  SendCredits credits{kInitial};
  ReceiveGrants grants;
  std::deque<Header> wire;
  uint64_t ordinary = 0;
  uint64_t reserve = 0;
};

// The receiver has set aside enough for all that the sender holds and all that is on its way.
void ExpectCovered(const Side& sender, const Side& receiver) {
  uint32_t on_the_way = 0;
  for (const Side::Header& header : sender.wire) on_the_way += header.spends_reserve ? 0 : 1;
  ASSERT_LE(sender.credits.available() + on_the_way, receiver.grants.outstanding());
  ASSERT_LE(receiver.grants.outstanding(), receiver.grants.window());
  ASSERT_LE(sender.wire.size() - on_the_way, kReserveCredits);
}

void Deliver(Side& from, Side& to) {
  const Side::Header header = from.wire.front();
  from.wire.pop_front();
  ASSERT_TRUE(to.grants.OnSend(header.spends_reserve).ok());
  ASSERT_TRUE(to.grants.OnReturned(header.returned).ok());
  ASSERT_TRUE(to.credits.OnHeader(header.granted, header.reserve_seen).ok());
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
        if (random() % 64 == 0) side.grants.Grow();
        break;
      case 5:
        // Recalls that come before the answer to an earlier one, too.
        if (random() % 16 == 0 && side.wire.size() < 40 && side.credits.TrySpend()) {
          side.Send(false, side.grants.recall_limit());
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
}  // namespace verbena
