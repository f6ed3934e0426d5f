// A resolver of etcd follows its keys by a watch, notices when that is lost, compacted or silent,
// and leaves out no server but those whose values are wrong.

#include "verbena/rpc/naming/etcd/directory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/rpc/naming/etcd/fake_etcd.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/base/captured_log.h"
#include "verbena/rpc/etcd.h"
#include "verbena/rpc/naming/etcd/client.h"
#include "verbena/transport/base/random.h"

namespace verbena::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Answer = absl::StatusOr<std::vector<ResolvedServer>>;

// Runs Next() while the test moves time.
class Asking final : public TaskListener {
 public:
  Asking(Resolver& resolver, ManualScheduler& scheduler)
      : scheduler_(scheduler), task_(resolver.Next()) {
    task_.StartLater(scheduler, &scope_, this);
    scheduler.RunUntilIdle();
  }
  bool done() {
    scheduler_.RunUntilIdle();
    return done_;
  }
  void Cancel() { scope_.Request(); }
  Answer Take() {
    EXPECT_TRUE(done()) << "Next() waits";
    return done_ ? task_.TakeResult() : Answer(absl::UnknownError("waits"));
  }

 private:
  void OnTaskDone() override { done_ = true; }

  ManualScheduler& scheduler_;
  CancelScope scope_;
  bool done_ = false;
  Task<Answer> task_;
};

std::string Value(const std::string& address) {
  return R"({"addresses":[")" + address + R"("],"weight":3,"zone":"a"})";
}

class EtcdResolverTest : public ::testing::Test {
 protected:
  // "name address" of each server.
  static std::vector<std::string> Names(const Answer& answer) {
    std::vector<std::string> names;
    EXPECT_TRUE(answer.ok()) << answer.status();
    if (answer.ok()) {
      for (const auto& each : *answer) names.push_back(each.name + " " + each.addresses.front());
    }
    return names;
  }
  Answer Next() { return Asking(resolver_, scheduler_).Take(); }

  using Strings = std::vector<std::string>;
  ManualScheduler scheduler_;
  FakeEtcd etcd_;
  EtcdResolver resolver_{EtcdCore::MakeClient(etcd_.Wire()), "s/", Random::Real()};
};

TEST_F(EtcdResolverTest, ListsTheKeysAndFollowsTheirChanges) {
  etcd_.Put("s/a", Value("a:1"));
  const Answer first = Next();
  EXPECT_EQ(Names(first), Strings{"a a:1"});
  EXPECT_EQ(first->front().weight, 3u);
  EXPECT_EQ(first->front().zone, "a");
  // From the revision after the list's, so that no change falls between both.
  Asking waits(resolver_, scheduler_);
  EXPECT_FALSE(waits.done());
  EXPECT_NE(etcd_.watch()->body.find(R"("start_revision":"12")"), std::string::npos)
      << etcd_.watch()->body;
  etcd_.Put("s/b", Value("b:1"));
  EXPECT_EQ(Names(waits.Take()), (Strings{"a a:1", "b b:1"}));
  etcd_.Put("s/a", Value("a:2"));
  EXPECT_EQ(Names(Next()), (Strings{"a a:2", "b b:1"}));
  EXPECT_EQ(etcd_.Count("/v3/kv/range"), 1);
}

TEST_F(EtcdResolverTest, AllChangesThatHaveComeAreOneSet) {
  etcd_.Put("s/a", Value("a:0"));
  (void)Next();
  for (int i = 1; i <= 300; ++i) etcd_.Put("s/a", Value("a:" + std::to_string(i)));
  EXPECT_EQ(Names(Next()), Strings{"a a:300"});
  // Without an end, they are not waited for.
  for (int i = 1; i <= 5000; ++i) etcd_.Put("s/a", Value("a:" + std::to_string(i)));
  EXPECT_EQ(Names(Next()), Strings{"a a:4096"});
  EXPECT_EQ(Names(Next()), Strings{"a a:5000"});
}

TEST_F(EtcdResolverTest, AMessageWithoutChangesDelaysNoSet) {
  etcd_.Put("s/a", Value("a:0"));
  (void)Next();
  etcd_.Put("s/a", Value("a:1"));
  for (int i = 0; i < 3; ++i) etcd_.watch()->Answer(R"({"result":{"header":{"revision":"12"}}})");
  EXPECT_EQ(Names(Next()), Strings{"a a:1"});
  etcd_.Put("s/a", Value("a:2"));
  EXPECT_EQ(Names(Next()), Strings{"a a:2"});
}

TEST_F(EtcdResolverTest, ALargeMessageIsTakenOver) {
  etcd_.Put("s/a", Value("a:1"));
  etcd_.Put("s/b", Value("b:1"));
  (void)Next();
  Asking waits(resolver_, scheduler_);
  // A field that nobody reads makes it large, so that another thread reads it.
  etcd_.watch()->Answer(R"({"pad":")" + std::string(100'000, 'x') +
                        R"(","result":{"header":{"revision":"13"},"events":[{"type":"DELETE",)"
                        R"("kv":{"key":"cy9h","mod_revision":"13"}}]}})");
  while (!waits.done()) scheduler_.RunUntilIdle();
  EXPECT_EQ(Names(waits.Take()), Strings{"b b:1"});
}

TEST_F(EtcdResolverTest, AServerThatLeavesEtcdLeavesTheSet) {
  etcd_.Put("s/a", Value("a:1"));
  etcd_.Put("s/b", Value("b:1"));
  (void)Next();
  etcd_.Delete("s/a");
  EXPECT_EQ(Names(Next()), Strings{"b b:1"});
}

TEST_F(EtcdResolverTest, AnEmptySetIsToldOnlyIfItStaysEmpty) {
  etcd_.Put("s/a", Value("a:1"));
  (void)Next();
  CapturedLog log;
  Asking waits(resolver_, scheduler_);
  etcd_.Delete("s/a");
  scheduler_.AdvanceBy(EtcdResolver::kEmptyGrace - seconds(1));
  EXPECT_FALSE(waits.done());
  const Strings lines = log.Take();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("etcd has no server below s/ any more"), std::string::npos) << lines[0];
  const int asked = etcd_.Count("/v3/kv/range");
  scheduler_.AdvanceBy(seconds(40));
  EXPECT_EQ(Names(waits.Take()), Strings{});
  EXPECT_GT(etcd_.Count("/v3/kv/range"), asked) << "it is confirmed";
  etcd_.Put("s/a", Value("a:1"));
  EXPECT_EQ(Names(Next()), Strings{"a a:1"});
}

TEST_F(EtcdResolverTest, AServerThatComesBackEndsTheWaitForAnEmptySet) {
  etcd_.Put("s/a", Value("a:1"));
  (void)Next();
  for (int i = 0; i < 3; ++i) {
    Asking waits(resolver_, scheduler_);
    etcd_.Delete("s/a");
    scheduler_.AdvanceBy(seconds(15));
    EXPECT_FALSE(waits.done()) << i;
    etcd_.Put("s/a", Value("a:1"));
    EXPECT_EQ(Names(waits.Take()), Strings{"a a:1"});
  }
}

TEST_F(EtcdResolverTest, AnEmptyListAfterALostWatchIsNotToldAtOnce) {
  etcd_.Put("s/a", Value("a:1"));
  (void)Next();
  Asking waits(resolver_, scheduler_);
  etcd_.watch()->Fail("the connection was lost", true);
  etcd_.silent = true;
  etcd_.Delete("s/a");
  scheduler_.AdvanceBy(seconds(10));
  EXPECT_EQ(etcd_.watches.size(), 2u);
  EXPECT_FALSE(waits.done());
}

TEST_F(EtcdResolverTest, AServiceThatHasNoServerYetHasAnEmptySet) {
  EXPECT_EQ(Names(Next()), Strings{});
}

TEST_F(EtcdResolverTest, AServerOfWeightZeroTakesNoCalls) {
  etcd_.Put("s/a", Value("a:1"));
  etcd_.Put("s/b", Value("b:1"));
  (void)Next();
  CapturedLog log;
  etcd_.Put("s/a", R"({"addresses":["a:1"],"weight":0})");
  EXPECT_EQ(Names(Next()), Strings{"b b:1"});
  EXPECT_EQ(log.Take(), Strings{}) << "nothing is wrong";
}

TEST_F(EtcdResolverTest, AValueThatIsWrongLeavesOutItsServerAlone) {
  etcd_.Put("s/a", Value("a:1"));
  etcd_.Put("s/b", "garbage");
  etcd_.Put("s/", Value("nameless:1"));
  EXPECT_EQ(Names(Next()), Strings{"a a:1"});
  etcd_.Put("s/b", Value("b:1"));
  EXPECT_EQ(Names(Next()), (Strings{"a a:1", "b b:1"}));
  etcd_.Put("s/a", R"({"addresses":[]})");
  EXPECT_EQ(Names(Next()), Strings{"b b:1"});
}

TEST_F(EtcdResolverTest, ASilentWatchIsFoundWithin25Seconds) {
  etcd_.Put("s/a", Value("a:1"));
  (void)Next();
  Asking waits(resolver_, scheduler_);
  scheduler_.AdvanceBy(seconds(60));
  etcd_.silent = true;
  etcd_.Put("s/b", Value("b:1"));
  EXPECT_FALSE(waits.done());
  scheduler_.AdvanceBy(seconds(21));
  EXPECT_EQ(Names(waits.Take()), (Strings{"a a:1", "b b:1"}));
  EXPECT_EQ(etcd_.watches.size(), 2u);
  EXPECT_TRUE(etcd_.watches.front()->given_up);
}

TEST_F(EtcdResolverTest, ADeletionThatASilentWatchHidesIsFound) {
  etcd_.Put("s/a", Value("a:1"));
  etcd_.Put("s/b", Value("b:1"));
  (void)Next();
  etcd_.silent = true;
  Asking waits(resolver_, scheduler_);
  etcd_.Delete("s/b");
  scheduler_.AdvanceBy(seconds(8));
  EXPECT_EQ(Names(waits.Take()), Strings{"a a:1"});
}

TEST_F(EtcdResolverTest, AWatchWithoutChangesIsKept) {
  etcd_.Put("s/a", Value("a:1"));
  (void)Next();
  Asking waits(resolver_, scheduler_);
  // Other keys move the store's revision.
  ++etcd_.revision;
  scheduler_.AdvanceBy(seconds(60));
  EXPECT_FALSE(waits.done());
  EXPECT_EQ(etcd_.watches.size(), 1u);
  // Listed once, then compared after 4, 8 and each 16 s, give or take a fifth.
  EXPECT_GE(etcd_.Count("/v3/kv/range"), 5);
  EXPECT_LE(etcd_.Count("/v3/kv/range"), 6);
}

TEST_F(EtcdResolverTest, AServerThatStaysAwayDoesNotMultiplyTheComparisons) {
  etcd_.Put("s/a", Value("a:1"));
  (void)Next();
  Asking waits(resolver_, scheduler_);
  for (int i = 0; i < 600; ++i) {
    resolver_.Refresh();
    scheduler_.AdvanceBy(milliseconds(100));
  }
  EXPECT_FALSE(waits.done());
  EXPECT_LE(etcd_.Count("/v3/kv/range"), 8);
}

TEST_F(EtcdResolverTest, ASilentWatchIsFoundSoonIfAServerCannotBeReached) {
  etcd_.Put("s/a", Value("a:1"));
  (void)Next();
  Asking waits(resolver_, scheduler_);
  scheduler_.AdvanceBy(seconds(60));
  etcd_.silent = true;
  etcd_.Put("s/a", Value("a:2"));
  resolver_.Refresh();
  scheduler_.AdvanceBy(milliseconds(2300));
  EXPECT_EQ(Names(waits.Take()), Strings{"a a:2"});
}

TEST_F(EtcdResolverTest, AWatchThatIsLateIsNotSilent) {
  CapturedLog log;
  etcd_.Put("s/a", Value("a:1"));
  (void)Next();
  Asking waits(resolver_, scheduler_);
  etcd_.silent = true;
  etcd_.Put("s/b", Value("b:1"));
  while (etcd_.Count("/v3/kv/range") < 2) scheduler_.AdvanceTo(scheduler_.next_timer());
  EXPECT_FALSE(waits.done());
  scheduler_.AdvanceBy(milliseconds(100));
  etcd_.silent = false;
  etcd_.Put("s/b", Value("b:2"));
  EXPECT_EQ(Names(waits.Take()), (Strings{"a a:1", "b b:2"}));
  EXPECT_EQ(etcd_.watches.size(), 1u);
  EXPECT_EQ(log.Take(), Strings{});
}

TEST_F(EtcdResolverTest, ClientsThatLoseTheirWatchesTogetherListOneAfterAnother) {
  constexpr int kClients = 50;
  etcd_.Put("s/a", Value("a:1"));
  SeededRandom random(1);
  std::vector<std::unique_ptr<EtcdResolver>> clients;
  std::vector<std::unique_ptr<Asking>> waits;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(
        std::make_unique<EtcdResolver>(EtcdCore::MakeClient(etcd_.Wire()), "s/", random));
    EXPECT_TRUE(Asking(*clients.back(), scheduler_).Take().ok());
    waits.push_back(std::make_unique<Asking>(*clients.back(), scheduler_));
  }
  // An etcd that restarts ends them all.
  for (const auto& each : std::vector(etcd_.watches)) each->Fail("the connection was lost", true);
  int most = 0;
  for (int i = 0, before = etcd_.Count("/v3/kv/range"); i < 30; ++i) {
    scheduler_.AdvanceBy(milliseconds(100));
    const int now = etcd_.Count("/v3/kv/range");
    most = std::max(most, now - before);
    before = now;
  }
  EXPECT_LE(most, kClients / 5);
  for (const auto& each : waits) EXPECT_TRUE(each->Take().ok());
}

TEST_F(EtcdResolverTest, AStoreWhoseRevisionWentBackIsListedAgain) {
  etcd_.Put("s/a", Value("a:1"));
  (void)Next();
  Asking waits(resolver_, scheduler_);
  scheduler_.AdvanceBy(seconds(5));
  etcd_.keys["s/a"] = {Value("a:2"), 3};
  etcd_.revision = 3;
  scheduler_.AdvanceBy(seconds(10));
  EXPECT_EQ(Names(waits.Take()), Strings{"a a:2"});
}

TEST_F(EtcdResolverTest, ACompactedWatchListsTheKeysAtOnce) {
  etcd_.Put("s/a", Value("a:1"));
  (void)Next();
  Asking waits(resolver_, scheduler_);
  etcd_.silent = true;
  etcd_.Put("s/b", Value("b:1"));
  etcd_.watch()->Answer(
      R"({"result":{"header":{"raft_term":"2"},"canceled":true,"compact_revision":"11"}})");
  // Without a pause: no time passes.
  EXPECT_EQ(Names(waits.Take()), (Strings{"a a:1", "b b:1"}));
}

TEST_F(EtcdResolverTest, CompactionAfterCompactionIsWaitedOut) {
  const char* compacted =
      R"({"result":{"header":{"raft_term":"2"},"canceled":true,"compact_revision":"11"}})";
  etcd_.Put("s/a", Value("a:1"));
  (void)Next();
  {
    Asking waits(resolver_, scheduler_);
    etcd_.watch()->Answer(compacted);
    EXPECT_TRUE(waits.done());
  }
  for (int i = 0; i < 3; ++i) {
    Asking waits(resolver_, scheduler_);
    etcd_.watch()->Answer(compacted);
    EXPECT_FALSE(waits.done()) << i;
    scheduler_.AdvanceBy(seconds(3));
    EXPECT_EQ(Names(waits.Take()), Strings{"a a:1"});
  }
  // A watch that tells of a change ends the row.
  etcd_.Put("s/a", Value("a:2"));
  EXPECT_EQ(Names(Next()), Strings{"a a:2"});
  Asking waits(resolver_, scheduler_);
  etcd_.watch()->Answer(compacted);
  EXPECT_TRUE(waits.done());
}

TEST_F(EtcdResolverTest, ALostWatchIsOpenedAgainAfterAPause) {
  etcd_.Put("s/a", Value("a:1"));
  (void)Next();
  Asking waits(resolver_, scheduler_);
  etcd_.watch()->Fail("the connection was lost", true);
  etcd_.silent = true;
  etcd_.Put("s/b", Value("b:1"));
  EXPECT_FALSE(waits.done());
  scheduler_.AdvanceBy(seconds(3));
  EXPECT_EQ(Names(waits.Take()), (Strings{"a a:1", "b b:1"}));
}

TEST_F(EtcdResolverTest, AnErrorOfAWatchIsALossToo) {
  etcd_.Put("s/a", Value("a:1"));
  (void)Next();
  for (const char* line : {R"({"error":{"grpc_code":14,"message":"etcdserver: no leader"}})",
                           "garbage", R"({"result":{"header":{"revision":"x"}}})", "{}"}) {
    Asking waits(resolver_, scheduler_);
    etcd_.watch()->Answer(line);
    EXPECT_FALSE(waits.done()) << line;
    const size_t watches = etcd_.watches.size();
    scheduler_.AdvanceBy(seconds(10));
    EXPECT_EQ(Names(waits.Take()), Strings{"a a:1"});
    EXPECT_EQ(etcd_.watches.size(), watches + 1) << line;
  }
  EXPECT_TRUE(etcd_.watches.front()->avoided) << "an endpoint without a leader";
}

TEST_F(EtcdResolverTest, TellsThatEtcdIsGoneAndListsWhenItIsBack) {
  etcd_.Put("s/a", Value("a:1"));
  (void)Next();
  Asking waits(resolver_, scheduler_);
  etcd_.gone = true;
  scheduler_.AdvanceBy(seconds(8));
  const absl::Status gone = waits.Take().status();
  EXPECT_TRUE(absl::IsUnavailable(gone)) << gone;
  EXPECT_NE(gone.message().find("etcd at fake:1"), std::string::npos) << gone;
  EXPECT_TRUE(absl::IsUnavailable(Next().status()));
  etcd_.gone = false;
  EXPECT_EQ(Names(Next()), Strings{"a a:1"});
}

TEST_F(EtcdResolverTest, NamesTheEndpointThatTalksGarbage) {
  for (const char* garbage : {"garbage", "[]", "{}", R"({"header":{"revision":"-1"}})",
                              R"({"header":{"revision":"2"},"kvs":[{"key":"*"}]})"}) {
    etcd_.answer = garbage;
    const absl::Status status = Next().status();
    EXPECT_TRUE(absl::IsInternal(status)) << garbage << ": " << status;
    EXPECT_NE(status.message().find("etcd at fake:1"), std::string::npos) << status;
  }
}

TEST_F(EtcdResolverTest, RefusesMoreServersThanASetMayHave) {
  for (size_t i = 0; i <= Resolver::kMaxServers; ++i) {
    etcd_.Put("s/" + std::to_string(i), Value("a:1"));
  }
  Asking asking(resolver_, scheduler_);
  // A large answer is read on another thread.
  while (!asking.done()) scheduler_.RunUntilIdle();
  EXPECT_TRUE(absl::IsResourceExhausted(asking.Take().status()));
}

TEST_F(EtcdResolverTest, StopsWhenItIsCancelled) {
  (void)Next();
  Asking waits(resolver_, scheduler_);
  waits.Cancel();
  EXPECT_TRUE(absl::IsCancelled(waits.Take().status()));
}

}  // namespace
}  // namespace verbena::internal
