#include "verbena/transport/link/credits.h"

#include <cstdint>

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
  SendCredits credits(0xfffffff0u);
  // Spending them all would take minutes: give back instead, which moves the same counters.
  credits.GiveBack(0xfffffff0u);
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
  EXPECT_EQ(credits.GiveBack(100), 3u);
  EXPECT_EQ(credits.available(), 0u);
  EXPECT_EQ(credits.returned(), 3u);
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
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(grants.OnSend(true).ok());
  EXPECT_FALSE(grants.ShouldAdvertise());
  EXPECT_EQ(grants.reserve_seen(), 20);
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

TEST(ReceiveGrantsTest, WhatWasLentComesHomeWithTheLink) {
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

// Both sides together, over a "wire" that delivers whatever is sent, for many more SENDs than a
// counter's half range of the reserve (16 bits).
TEST(CreditsTest, TwoSidesNeverDisagreeOverManySends) {
  CreditPool pool(64);
  ReceiveGrants receiver(pool, kInitial, kMax);
  SendCredits sender(kInitial);
  uint64_t sent = 0;
  for (int round = 0; round < 300000; ++round) {
    while (sender.TrySpend()) {
      ++sent;
      ASSERT_TRUE(receiver.OnSend(false).ok());
    }
    if (round % 1000 == 0) receiver.Grow();
    if (round % 1777 == 0) {
      sender.GiveBack(receiver.surplus());
      ASSERT_TRUE(receiver.OnReturned(sender.returned()).ok());
    }
    receiver.Refill();
    receiver.MarkAdvertised();
    ASSERT_TRUE(sender.OnHeader(receiver.granted(), receiver.reserve_seen()).ok());
    ASSERT_EQ(sender.available(), receiver.outstanding());
  }
  EXPECT_GT(sent, 1000000u);
}

}  // namespace
}  // namespace verbena
