// Executors are asked for reports as often as their last ones have aged, however often somebody
// wants to know.

#include "verbena/rpc/shard/report.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "gtest/gtest.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/transport/base/clock.h"

namespace verbena::internal {
namespace report_test {

class ReporterTest : public testing::Test {
 protected:
  void Start(Duration fresh) {
    reporter_ = std::make_unique<RuntimeReporter>(*runtime_, [this] { ++answers_; }, fresh);
  }
  // Asks, and waits for the answers.
  void AskAndWait(bool with_peers = false) {
    const TimePoint asked = Clock::Real().Now();
    reporter_->Ask(with_peers);
    while (!reporter_->Answered(asked, with_peers)) std::this_thread::yield();
  }
  // Executors have come to all that they were asked.
  void Settle() {
    for (int i = 0; i < runtime_->executors(); ++i) {
      runtime_->BlockOn([]() -> Task<void> { co_return; }(), i);
    }
  }

  const std::unique_ptr<Runtime> runtime_ = *Runtime::Start({.executors = 2, .device = "soft"});
  std::atomic<int> answers_ = 0;
  std::unique_ptr<RuntimeReporter> reporter_;
};

TEST_F(ReporterTest, WhoHasAnsweredLatelyIsNotAskedAgain) {
  Start(std::chrono::hours(1));
  AskAndWait();
  Settle();
  EXPECT_EQ(answers_, 2);
  const TimePoint first = reporter_->Read().executors[0].time;
  EXPECT_NE(first, TimePoint{}) << "who has never answered is asked";
  for (int i = 0; i < 100; ++i) AskAndWait();
  Settle();
  EXPECT_EQ(answers_, 2);
  EXPECT_EQ(reporter_->Read().executors[0].time, first);
}

TEST_F(ReporterTest, AFreshAnswerWithoutPeersDoesNotDoForThem) {
  Start(std::chrono::hours(1));
  AskAndWait();
  EXPECT_FALSE(reporter_->Answered(Clock::Real().Now(), /*with_peers=*/true));
  AskAndWait(/*with_peers=*/true);
  Settle();
  EXPECT_EQ(answers_, 4);
  AskAndWait();
  AskAndWait(/*with_peers=*/true);
  Settle();
  EXPECT_EQ(answers_, 4);
}

TEST_F(ReporterTest, AnAnswerThatIsOldDoesNotDo) {
  Start(Duration::zero());
  AskAndWait();
  const TimePoint first = reporter_->Read().executors[0].time;
  const TimePoint asked = Clock::Real().Now();
  EXPECT_FALSE(reporter_->Answered(asked + std::chrono::nanoseconds(1)));
  AskAndWait();
  EXPECT_GE(reporter_->Read().executors[0].time, asked);
  EXPECT_GE(asked, first);
}

}  // namespace report_test
}  // namespace verbena::internal
