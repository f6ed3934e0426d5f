// A queue pair is quiesced once it is out of service and no copy that it left behind is under way.

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/soft/copies_under_way.h"
#include "verbena/transport/soft/peer.h"

namespace verbena::internal::soft {
namespace quiescence_test {

class QuiescenceTest : public testing::Test {
 protected:
  // A copy that ends when `word` changes.
  CopyUnderWay CopyBy(const std::shared_ptr<std::atomic<uint64_t>>& word) const {
    return {.peer = peer_, .copying = word, .sequence = word->load()};
  }

  const std::shared_ptr<Peer> peer_ = std::make_shared<Peer>(PeerParts{.in_process = true});
  const std::shared_ptr<std::atomic<uint64_t>> word_ = std::make_shared<std::atomic<uint64_t>>(1);
  const QpIdentity qp_{1};
  Quiescence quiescence_;
};

TEST_F(QuiescenceTest, AQpInServiceIsNotQuiesced) {
  quiescence_.Enter(qp_);
  EXPECT_FALSE(quiescence_.Quiesced(qp_));
  quiescence_.Leave(qp_, {});
  EXPECT_TRUE(quiescence_.Quiesced(qp_));
}

TEST_F(QuiescenceTest, AQpThatWasNeverInServiceIsQuiesced) {
  EXPECT_TRUE(quiescence_.Quiesced(qp_));
}

TEST_F(QuiescenceTest, EachCopyLeftBehindHasToEnd) {
  const auto other = std::make_shared<std::atomic<uint64_t>>(3);
  quiescence_.Enter(qp_);
  quiescence_.Leave(qp_, {CopyBy(word_), CopyBy(other)});
  EXPECT_FALSE(quiescence_.Quiesced(qp_));
  ++*word_;
  EXPECT_FALSE(quiescence_.Quiesced(qp_));
  ++*other;
  EXPECT_TRUE(quiescence_.Quiesced(qp_));
}

// Destroying a hundred queue pairs to one frozen peer waits for it once.
TEST_F(QuiescenceTest, ACopyThatWasGivenUpIsGivenUpForEachQpThatLeftItBehind) {
  const QpIdentity next{2};
  quiescence_.Leave(qp_, {CopyBy(word_)});
  quiescence_.Leave(next, {CopyBy(word_)});
  EXPECT_FALSE(quiescence_.GivenUp(next));
  quiescence_.GiveUp(qp_);
  EXPECT_TRUE(quiescence_.GivenUp(qp_));
  EXPECT_TRUE(quiescence_.GivenUp(next));
  EXPECT_FALSE(quiescence_.Quiesced(next)) << "its bytes may still land";
}

TEST_F(QuiescenceTest, AnotherCopyOfAPeerThatWasGivenUpIsWorthAWait) {
  const QpIdentity next{2};
  const auto other = std::make_shared<std::atomic<uint64_t>>(1);
  quiescence_.Leave(qp_, {CopyBy(word_)});
  quiescence_.GiveUp(qp_);
  quiescence_.Leave(next, {CopyBy(word_), CopyBy(other)});
  EXPECT_FALSE(quiescence_.GivenUp(next));
  // The peer goes on, and freezes in its next copy.
  *word_ += 2;
  ++*other;
  quiescence_.Leave(next, {CopyBy(word_)});
  EXPECT_FALSE(quiescence_.GivenUp(next));
}

TEST_F(QuiescenceTest, AQpWithoutCopiesIsNotGivenUp) {
  quiescence_.Enter(qp_);
  quiescence_.GiveUp(qp_);
  EXPECT_FALSE(quiescence_.GivenUp(qp_));
  quiescence_.Leave(qp_, {CopyBy(word_)});
  quiescence_.GiveUp(qp_);
  ++*word_;
  EXPECT_FALSE(quiescence_.GivenUp(qp_));
  EXPECT_TRUE(quiescence_.Quiesced(qp_));
}

TEST_F(QuiescenceTest, KnowsTheCopiesOfAllQps) {
  quiescence_.Enter(qp_);
  quiescence_.Leave(qp_, {CopyBy(word_)});
  quiescence_.Enter(QpIdentity{2});
  quiescence_.Leave(QpIdentity{2}, {CopyBy(word_)});
  std::vector<CopyUnderWay> copies;
  quiescence_.AddCopies(copies);
  EXPECT_EQ(copies.size(), 2u);
  EXPECT_FALSE(AllOver(copies));
  ++*word_;
  EXPECT_TRUE(AllOver(copies));
}

TEST_F(QuiescenceTest, CopiesThroughOneQpDoNotHoldUpAnother) {
  const QpIdentity next{2};
  quiescence_.Enter(qp_);
  quiescence_.Enter(next);
  quiescence_.Leave(qp_, {CopyBy(word_)});
  quiescence_.Leave(next, {});
  EXPECT_TRUE(quiescence_.Quiesced(next));
  EXPECT_FALSE(quiescence_.Quiesced(qp_));
}

}  // namespace quiescence_test
}  // namespace verbena::internal::soft
