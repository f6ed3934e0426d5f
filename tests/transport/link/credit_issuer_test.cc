// Many links that starve share the pool out once. Then nothing is recalled, and no link is looked
// at for another. Quiet links return all that they borrowed, each looked at once after a check. A
// busy link that returns nothing still ends at its fair share.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>

#include "verbena/transport/link/credits.h"
#include "verbena/transport/link/limits.h"

namespace verbena::internal {
namespace credit_issuer_test {

constexpr uint32_t kInitial = 4;
constexpr uint32_t kMax = 512;

// Work counts what a link that starves makes its issuer do.
struct Work {
  const RecallableLink* starving = nullptr;
  uint32_t looks = 0;  // at other links
  uint32_t recalls = 0;
};

class CountedLink final : public RecallableLink {
 public:
  CountedLink(CreditIssuer& issuer, CreditShare& share, Work& work)
      : credits(issuer.pool(), share, kInitial, kMax), work_(work) {}

  IssuedCredits& issued() override {
    if (this != work_.starving) ++work_.looks;
    return credits;
  }
  void Recall(uint32_t count) override {
    ++work_.recalls;
    credits.Recall(count);
  }
  bool heard() const override { return is_heard; }

  IssuedCredits credits;
  bool is_heard = false;

 private:
  Work& work_;
};

class CreditIssuerTest : public testing::Test {
 protected:
  void Start(uint32_t pool, int links) {
    issuer_.emplace(pool);
    for (int i = 0; i < links; ++i) Add(share_);
  }
  CountedLink& Add(CreditShare& share) { return links_.emplace_back(*issuer_, share, work_); }

  // The peer of `link` sends, and says that it lacks credits. Returns what that makes of work.
  Work Starve(CountedLink& link, bool is_shared = false) {
    work_ = {.starving = &link};
    link.is_heard = true;
    (void)issuer_->Grow(link, is_shared);
    link.credits.Refill();
    return work_;
  }
  // The peer of `link`, which is recalled, returns all that it was asked for.
  void Answer(CountedLink& link) {
    ASSERT_TRUE(link.credits.OnReturned(link.credits.recall_limit()).ok());
    link.credits.SettleRecall();
    ASSERT_FALSE(link.credits.recalled());
    issuer_->NoteRecallAnswered(link);
  }
  // The peer of `link` sends, and returns nothing.
  void Send(CountedLink& link, uint32_t sends) {
    for (uint32_t i = 0; i < sends; ++i) {
      ASSERT_TRUE(link.credits.OnSend(/*spends_reserve=*/false).ok());
      if (link.credits.recalled()) {
        link.credits.SettleRecall();
        if (!link.credits.recalled()) issuer_->NoteRecallAnswered(link);
      }
      link.credits.Refill();
    }
  }
  void AnswerAll() {
    for (CountedLink& link : links_) {
      if (link.credits.recalled()) Answer(link);
    }
  }
  // All links starve, and recalls are answered. Returns what all that made of work.
  Work StarveAll() {
    Work all;
    for (CountedLink& link : links_) {
      const Work work = Starve(link);
      EXPECT_LE(work.looks, 1u) << "none is quiet";
      all.looks += work.looks;
      all.recalls += work.recalls;
    }
    AnswerAll();
    return all;
  }
  void Check(CountedLink& link) {
    if (link.linked()) issuer_->NoteChecked(link, link.is_heard);
    link.is_heard = false;
  }
  void CheckAll() {
    for (CountedLink& link : links_) Check(link);
  }

  Work work_;
  CreditShare share_;
  CreditShare other_;  // of another address
  std::optional<CreditIssuer> issuer_;
  std::deque<CountedLink> links_;
};

// As a server with the default limits has it: a credit pool of 2,032, and a thousand links whose
// windows of 4 are too small.
TEST_F(CreditIssuerTest, AThousandLinksThatStarveShareThePoolOutAndThenRecallNothing) {
  constexpr uint32_t kPool = 2032;
  constexpr uint32_t kLinks = 1000;
  Start(kPool, kLinks);
  uint32_t recalls = 0;
  for (int round = 0; round < 32; ++round) recalls += StarveAll().recalls;
  EXPECT_LT(recalls, kLinks) << "less than one for each link";
  for (int round = 0; round < 4; ++round) {
    const Work work = StarveAll();
    EXPECT_EQ(work.recalls, 0u);
    EXPECT_EQ(work.looks, 0u);
    CheckAll();
  }
  uint32_t fewest = kMax;
  for (const CountedLink& link : links_) fewest = std::min(fewest, link.credits.surplus());
  EXPECT_EQ(fewest, kPool / kLinks);
}

TEST_F(CreditIssuerTest, MoreLinksThanThereAreCreditsRecallNothingInTheEnd) {
  Start(/*pool=*/128, /*links=*/1000);
  for (int round = 0; round < 8; ++round) StarveAll();
  for (int round = 0; round < 4; ++round) {
    EXPECT_EQ(StarveAll().recalls, 0u);
    CheckAll();
  }
  EXPECT_EQ(issuer_->borrowed(), 128u);
}

TEST_F(CreditIssuerTest, WithMoreLinksThanCreditsNoneKeepsTwo) {
  constexpr uint32_t kPool = 16;
  Start(kPool, /*links=*/2 * kPool);
  for (int i = 0; i < 3; ++i) Starve(links_[0]);
  ASSERT_EQ(links_[0].credits.surplus(), kPool);
  for (int round = 0; round < 8; ++round) StarveAll();
  for (const CountedLink& link : links_) EXPECT_LE(link.credits.surplus(), 1u);
  EXPECT_EQ(links_[0].credits.surplus(), 1u);
  EXPECT_EQ(issuer_->borrowed(), kPool);
}

// Links of one address, each of which lacks its credit, leave another address its part.
TEST_F(CreditIssuerTest, ManyLinksOfOneAddressLeaveAnotherItsFairShare) {
  constexpr uint32_t kPool = 60;
  Start(kPool, /*links=*/10 * kPool);
  CountedLink& alone = Add(other_);
  for (int round = 0; round < 8; ++round) {
    for (CountedLink& link : links_) Starve(link, /*is_shared=*/true);
    AnswerAll();
  }
  EXPECT_LE(issuer_->borrowed(), kPool);
  EXPECT_GE(alone.credits.surplus(), kPool / 4);
  EXPECT_LE(alone.credits.surplus(), kPool / 3);
}

TEST_F(CreditIssuerTest, ABusyLinkIsAskedForWhatItHasBeyondItsFairShare) {
  Start(/*pool=*/16, /*links=*/2);
  for (int i = 0; i < 3; ++i) Starve(links_[0]);
  ASSERT_EQ(links_[0].credits.surplus(), 16u);
  EXPECT_EQ(Starve(links_[1]).recalls, 1u);
  AnswerAll();
  EXPECT_EQ(links_[0].credits.surplus(), 8u);
  Starve(links_[0]);
  EXPECT_EQ(links_[0].credits.surplus(), 8u) << "the rest is for the other";
  Starve(links_[1]);
  Starve(links_[1]);
  EXPECT_EQ(links_[1].credits.surplus(), 8u);
}

// As a server with the default limits has it: four busy links of the first client have the whole
// pool, and return nothing.
TEST_F(CreditIssuerTest, AnAddressThatReturnsNothingKeepsItsFairShareAndNoMore) {
  constexpr uint32_t kPool = 4 * (kMax - kInitial);
  Start(kPool, /*links=*/4);
  for (CountedLink& link : links_) {
    while (!link.credits.at_maximum()) Starve(link);
  }
  ASSERT_EQ(share_.borrowed, kPool);
  CountedLink& late = Add(other_);
  for (int round = 0; round < 64; ++round) {
    Starve(late, /*is_shared=*/true);
    for (CountedLink& link : links_) Send(link, /*sends=*/kMax);
  }
  EXPECT_TRUE(late.credits.at_maximum());
  const uint32_t fair = issuer_->pool().FairShare(share_, /*is_shared=*/true);
  int at_fair_share = 0;
  for (int i = 0; i < 4; ++i) {
    EXPECT_GE(links_[i].credits.surplus(), fair);
    EXPECT_FALSE(links_[i].credits.recalled());
    if (links_[i].credits.surplus() == fair) ++at_fair_share;
  }
  EXPECT_GE(at_fair_share, 3);
  EXPECT_EQ(issuer_->borrowed(), share_.borrowed + other_.borrowed);
}

TEST_F(CreditIssuerTest, ALinkWhosePeerReturnedNothingMayBeAskedAgain) {
  Start(/*pool=*/60, /*links=*/1);
  while (issuer_->borrowed() < 60) Starve(links_[0]);
  CountedLink& second = Add(other_);
  EXPECT_EQ(Starve(second, /*is_shared=*/true).recalls, 1u);
  EXPECT_FALSE(links_[0].linked());
  Send(links_[0], links_[0].credits.window());
  EXPECT_TRUE(links_[0].linked());
  EXPECT_EQ(links_[0].credits.surplus(), 20u);
  EXPECT_EQ(issuer_->borrowed(), 20u);
}

TEST_F(CreditIssuerTest, ALinkLacksNoMoreThanItMayBorrow) {
  Start(/*pool=*/2'000, /*links=*/1);
  Starve(links_[0]);
  ASSERT_EQ(links_[0].credits.surplus(), 4u);
  EXPECT_EQ(links_[0].credits.lacking(/*is_shared=*/false), kMax - kInitial - 4);
}

TEST_F(CreditIssuerTest, ALinkThatNoLongerStarvesKeepsNothingFromOthers) {
  Start(/*pool=*/16, /*links=*/2);
  for (int i = 0; i < 3; ++i) Starve(links_[0]);
  Starve(links_[1]);
  AnswerAll();
  // The other asks no more, though its peer sends.
  Starve(links_[0]);
  ASSERT_EQ(links_[0].credits.surplus(), 8u);
  links_[1].is_heard = true;
  CheckAll();
  Starve(links_[0]);
  EXPECT_EQ(links_[0].credits.surplus(), 16u);
}

TEST_F(CreditIssuerTest, ALinkThatIsLostKeepsNothingFromOthers) {
  Start(/*pool=*/16, /*links=*/2);
  for (int i = 0; i < 3; ++i) Starve(links_[0]);
  Starve(links_[1]);
  AnswerAll();
  links_[1].Unlink();
  links_[1].credits.LeavePool();
  Starve(links_[0]);
  EXPECT_EQ(links_[0].credits.surplus(), 16u);
}

TEST_F(CreditIssuerTest, AQuietLinkIsAskedForAllThatItBorrowed) {
  Start(/*pool=*/16, /*links=*/3);
  for (int i = 0; i < 3; ++i) Starve(links_[0]);
  CheckAll();  // finds it heard
  CheckAll();
  EXPECT_EQ(Starve(links_[1]).recalls, 1u);
  AnswerAll();
  EXPECT_EQ(links_[0].credits.surplus(), 0u);
  EXPECT_FALSE(links_[0].credits.takes_part());
  for (int i = 0; i < 3; ++i) Starve(links_[1]);
  EXPECT_EQ(links_[1].credits.surplus(), 16u) << "no other takes part any more";
}

TEST_F(CreditIssuerTest, ALinkThatSentAgainAfterItsCheckIsBusy) {
  Start(/*pool=*/16, /*links=*/2);
  for (int i = 0; i < 3; ++i) Starve(links_[0]);
  CheckAll();
  CheckAll();
  links_[0].is_heard = true;
  EXPECT_EQ(Starve(links_[1]).recalls, 1u);
  AnswerAll();
  EXPECT_EQ(links_[0].credits.surplus(), 8u);
}

// Each has its fair share, so that busy links are not looked at.
TEST_F(CreditIssuerTest, AQuietLinkThatIsNotAskedIsLookedAtOnceUntilItsNextCheck) {
  constexpr uint32_t kLinks = 100;
  Start(/*pool=*/4 * kLinks, kLinks);
  StarveAll();
  ASSERT_EQ(issuer_->borrowed(), 4 * kLinks);
  CheckAll();
  CheckAll();
  for (CountedLink& link : links_) link.is_heard = true;
  uint32_t looks = 0;
  for (int round = 0; round < 3; ++round) {
    for (CountedLink& link : links_) {
      const Work work = Starve(link);
      EXPECT_LE(work.looks, static_cast<uint32_t>(kRecallCandidates));
      EXPECT_EQ(work.recalls, 0u);
      looks += work.looks;
    }
  }
  EXPECT_LE(looks, kLinks);
}

// By address first: three links of one have together what the only one of another has.
TEST_F(CreditIssuerTest, TheFairShareOfALinkIsAPartOfThatOfItsAddress) {
  Start(/*pool=*/90, /*links=*/3);
  CountedLink& alone = Add(other_);
  for (CountedLink& link : links_) Starve(link, /*is_shared=*/true);
  const CreditPool& pool = issuer_->pool();
  EXPECT_EQ(pool.FairShare(share_, /*is_shared=*/true), 10u);
  EXPECT_EQ(pool.FairShare(other_, /*is_shared=*/true), 30u);
  EXPECT_EQ(alone.credits.lacking(/*is_shared=*/true), 30 - alone.credits.surplus());
}

}  // namespace credit_issuer_test
}  // namespace verbena::internal
