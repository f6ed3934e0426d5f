// Resolvers of names and files look at the right times, and give a set when it may have changed.

#include "verbena/rpc/naming/resolvers.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/support/in_a_child.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/connect/waiting_scheduler.h"
#include "tests/transport/executor/taken_threads.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/name_lookup.h"
#include "verbena/transport/base/random.h"
#include "verbena/transport/base/socket.h"
#include "verbena/transport/executor/blocking.h"

namespace verbena::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Answer = absl::StatusOr<std::vector<ResolvedServer>>;

// Runs Next() of a resolver, whose work is on a thread, while the test moves time.
class Asking final : public TaskListener {
 public:
  Asking(Resolver& resolver, WaitingScheduler& scheduler)
      : scheduler_(scheduler), task_(resolver.Next()) {
    task_.StartLater(scheduler, &scope_, this);
    scheduler.RunPending();
  }
  bool done() const { return done_; }
  void Cancel() { scope_.Request(); }
  // Waits for the thread, but not for the scheduler's time.
  Answer Take() {
    scheduler_.RunUntil([this] { return done_; });
    return task_.TakeResult();
  }

 private:
  void OnTaskDone() override { done_ = true; }

  WaitingScheduler& scheduler_;
  CancelScope scope_;
  bool done_ = false;
  Task<Answer> task_;
};

// A name that has these addresses.
NameAnswer Has(const std::vector<std::string>& addresses) {
  NameAnswer answer;
  for (const std::string& each : addresses) answer.addresses.emplace_back(*ParseIp(each), 0);
  return answer;
}

class FakeNames final {
 public:
  NameLookups& lookups() { return lookups_; }

  // Not while a lookup is under way.
  NameAnswer answer;
  int count = 0;
  std::string last_name;

 private:
  NameLookups lookups_{[this](const std::string& name) {
    ++count;
    last_name = name;
    return answer;
  }};
};

std::vector<std::string> AddressesOf(const Answer& answer) {
  std::vector<std::string> addresses;
  EXPECT_TRUE(answer.ok()) << answer.status();
  if (answer.ok()) {
    for (const ResolvedServer& each : *answer) addresses.push_back(each.addresses.front());
  }
  return addresses;
}

class DnsResolverTest : public ::testing::Test {
 protected:
  using Strings = std::vector<std::string>;
  // The addresses of the servers of a name that has these.
  Strings ServersOf(const Strings& addresses) {
    names_.answer = Has(addresses);
    DnsResolver resolver({.name = "storage.local", .port = 4000}, names_.lookups());
    return AddressesOf(Asking(resolver, scheduler_).Take());
  }
  // Lets time pass while a server fails ten times a second.
  void PassWhileAServerFails(Duration span) {
    std::optional<Asking> asking;
    for (Duration passed{}; passed < span;) {
      if (!asking.has_value()) asking.emplace(resolver_, scheduler_);
      // A lookup that is under way ends; otherwise the resolver sleeps.
      scheduler_.RunUntil([&] { return asking->done() || scheduler_.timer_count() > 0; });
      if (asking->done()) {
        EXPECT_TRUE(asking->Take().ok());
        asking.reset();
        continue;
      }
      resolver_.Refresh();
      scheduler_.AdvanceBy(milliseconds(100));
      passed += milliseconds(100);
    }
    if (asking.has_value()) {
      scheduler_.RunUntil([&] { return asking->done() || scheduler_.timer_count() > 0; });
    }
  }

  WaitingScheduler scheduler_{WaitingScheduler::Time::kStanding};
  FakeNames names_;
  DnsResolver resolver_{{.name = "storage.local", .port = 4000}, names_.lookups()};
};

TEST(MakeResolverDeathTest, ATargetThatNoParserGivesAborts) {
  EXPECT_DEATH((void)MakeResolver(PlainTarget{}), "one server needs no resolver");
  EXPECT_DEATH((void)MakeResolver(StaticTarget{}), "0 servers");
  EXPECT_DEATH((void)MakeResolver(FileTarget{.path = "servers.list"}), "servers.list");
}

TEST_F(DnsResolverTest, MakesAServerOfEachAddress) {
  EXPECT_EQ(ServersOf({"10.0.0.8", "10.0.0.7", "10.0.0.8"}),
            (Strings{"10.0.0.7:4000", "10.0.0.8:4000"}));
  EXPECT_EQ(names_.last_name, "storage.local");
  EXPECT_EQ(ServersOf({"fd00::7"}), Strings{"[fd00::7]:4000"});
}

TEST_F(DnsResolverTest, AHostWithAddressesOfBothFamiliesIsOneServer) {
  EXPECT_EQ(ServersOf({"127.0.0.1", "::1"}), Strings{"127.0.0.1:4000"});
  EXPECT_EQ(ServersOf({"::1", "127.0.0.1", "127.0.0.2"}),
            (Strings{"127.0.0.1:4000", "127.0.0.2:4000"}));
}

TEST_F(DnsResolverTest, AddressesWithoutARouteAreLeftOut) {
  // Link-local, and no interface is named.
  EXPECT_EQ(ServersOf({"fe80::1", "fe80::2", "127.0.0.1"}), Strings{"127.0.0.1:4000"});
  EXPECT_EQ(ServersOf({"fe80::1", "fe80::2"}), (Strings{"[fe80::1]:4000", "[fe80::2]:4000"}))
      << "there are no others";
}

TEST_F(DnsResolverTest, LooksAgainAfterItsPeriod) {
  names_.answer = Has({"10.0.0.7"});
  (void)Asking(resolver_, scheduler_).Take();
  Asking again(resolver_, scheduler_);
  // Give or take a fifth.
  scheduler_.AdvanceBy(DnsResolver::kPeriod * 4 / 5 - milliseconds(1));
  EXPECT_EQ(names_.count, 1);
  names_.answer = Has({"10.0.0.9"});
  scheduler_.AdvanceBy(DnsResolver::kPeriod * 2 / 5 + milliseconds(1));
  EXPECT_EQ(AddressesOf(again.Take()), std::vector<std::string>{"10.0.0.9:4000"});
  EXPECT_EQ(names_.count, 2);
}

TEST_F(DnsResolverTest, LooksEarlierWhenAServerFailsButNotAtEachFailure) {
  names_.answer = Has({"10.0.0.7"});
  (void)Asking(resolver_, scheduler_).Take();
  resolver_.Refresh();
  Asking again(resolver_, scheduler_);
  EXPECT_FALSE(again.done());
  EXPECT_EQ(names_.count, 1) << "the last lookup is less than a second old";
  scheduler_.AdvanceBy(milliseconds(1200));
  EXPECT_TRUE(again.Take().ok());
  EXPECT_EQ(names_.count, 2);
}

TEST_F(DnsResolverTest, AServerThatStaysAwayDoesNotMultiplyTheLookups) {
  names_.answer = Has({"10.0.0.7"});
  PassWhileAServerFails(seconds(60));
  EXPECT_LE(names_.count, 7);
}

TEST_F(DnsResolverTest, ANewAnswerIsFollowedByOthersSoon) {
  names_.answer = Has({"10.0.0.7"});
  PassWhileAServerFails(seconds(60));
  const int before = names_.count;
  names_.answer = Has({"10.0.0.8"});
  // A look finds the change within 36 s, and two more are due within 3.6 s after it.
  PassWhileAServerFails(seconds(40));
  EXPECT_GE(names_.count, before + 3);
}

TEST_F(DnsResolverTest, ALookupThatFailsIsRepeatedSoon) {
  names_.answer = {.code = absl::StatusCode::kUnavailable, .why = "try again"};
  EXPECT_FALSE(Asking(resolver_, scheduler_).Take().ok());
  Asking again(resolver_, scheduler_);
  names_.answer = Has({"10.0.0.7"});
  scheduler_.AdvanceBy(milliseconds(1200));
  EXPECT_TRUE(again.Take().ok());
}

TEST(PeriodicLookTest, LooksThatBeganTogetherDoNotStayInStep) {
  const auto times = [](uint64_t seed) {
    ManualScheduler scheduler;
    SeededRandom random(seed);
    PeriodicLook look(seconds(30), seconds(30), random);
    std::vector<TimePoint> found;
    for (int i = 0; i < 10; ++i) {
      EXPECT_EQ(scheduler.Run(look.Due()), absl::OkStatus());
      found.push_back(scheduler.now());
    }
    return found;
  };
  const std::vector<TimePoint> first = times(1), second = times(2);
  EXPECT_EQ(first[0], second[0]);
  for (size_t i = 1; i < first.size(); ++i) EXPECT_NE(first[i], second[i]) << i;
  // Nine periods, give or take a fifth.
  EXPECT_GE(first.back() - first.front(), seconds(216));
  EXPECT_LE(first.back() - first.front(), seconds(324));
}

TEST(PeriodicLookTest, PeriodsGrowToTheLongest) {
  ManualScheduler scheduler;
  SeededRandom random(1);
  PeriodicLook look(seconds(4), seconds(16), random);
  for (int i = 0; i < 7; ++i) EXPECT_EQ(scheduler.Run(look.Due()), absl::OkStatus());
  // 4, 8, and 16 four times, give or take a fifth.
  EXPECT_GE(scheduler.now() - ManualScheduler::kStart, seconds(76) * 4 / 5);
  look.NoteLook(scheduler.now());
  const TimePoint noted = scheduler.now();
  EXPECT_EQ(scheduler.Run(look.Due()), absl::OkStatus());
  EXPECT_LE(scheduler.now() - noted, milliseconds(4800));
}

TEST_F(DnsResolverTest, GivesTheErrorOfALookup) {
  names_.answer = {.code = absl::StatusCode::kNotFound, .why = "no such name"};
  EXPECT_TRUE(absl::IsNotFound(Asking(resolver_, scheduler_).Take().status()));
}

TEST_F(DnsResolverTest, StopsWhenItIsCancelled) {
  names_.answer = Has({"10.0.0.7"});
  (void)Asking(resolver_, scheduler_).Take();
  Asking again(resolver_, scheduler_);
  again.Cancel();
  EXPECT_TRUE(absl::IsCancelled(again.Take().status()));
}

// A name server that answers once the test says so.
struct SlowNames {
  struct Shared {
    std::atomic<bool> answers{false};
    std::atomic<int> asked{0};
  };
  std::shared_ptr<Shared> shared = std::make_shared<Shared>();
  NameLookups lookups{[shared = shared](const std::string&) {
    ++shared->asked;
    shared->asked.notify_all();
    shared->answers.wait(false);
    return Has({"10.0.0.7"});
  }};

  void Answer() const {
    shared->answers = true;
    shared->answers.notify_all();
  }
};

TEST(SlowNamesTest, LookupsThatHangStopNoOtherWorkThatBlocks) {
  WaitingScheduler scheduler(WaitingScheduler::Time::kStanding);
  SlowNames names;
  std::vector<std::unique_ptr<DnsResolver>> resolvers;
  std::vector<std::unique_ptr<Asking>> asking;
  for (int i = 0; i <= kDefaultBlockingThreads; ++i) {
    resolvers.push_back(std::make_unique<DnsResolver>(
        DnsTarget{.name = "slow" + std::to_string(i), .port = 1}, names.lookups));
    asking.push_back(std::make_unique<Asking>(*resolvers.back(), scheduler));
  }
  const std::string path = ::testing::TempDir() + "/servers.slow." + std::to_string(getpid());
  std::ofstream(path) << "10.0.0.9:4000\n";
  FileResolver files(path);
  EXPECT_EQ(AddressesOf(Asking(files, scheduler).Take()),
            std::vector<std::string>{"10.0.0.9:4000"});
  std::remove(path.c_str());
  names.Answer();
  for (const auto& each : asking) EXPECT_TRUE(each->Take().ok());
}

TEST(SlowNamesTest, NobodyWaitsForALookupThatHangs) {
  WaitingScheduler scheduler(WaitingScheduler::Time::kStanding);
  SlowNames names;
  {
    DnsResolver resolver({.name = "slow", .port = 1}, names.lookups);
    Asking cancelled(resolver, scheduler);
    names.shared->asked.wait(0);
    cancelled.Cancel();
    EXPECT_TRUE(absl::IsCancelled(cancelled.Take().status()));
    const Asking destroyed(resolver, scheduler);
  }
  names.Answer();
}

class FileResolverTest : public ::testing::Test {
 protected:
  ~FileResolverTest() override { std::remove(path_.c_str()); }

  // As an atomic replacement does it.
  void Write(const std::string& text) {
    const std::string fresh = path_ + ".new";
    std::ofstream(fresh) << text;
    ASSERT_EQ(std::rename(fresh.c_str(), path_.c_str()), 0);
  }
  // The next answer, after as many looks as it takes.
  Answer Next() {
    Asking asking(resolver_, scheduler_);
    while (!HasNews(asking)) scheduler_.AdvanceBy(FileResolver::kPeriod);
    return asking.Take();
  }
  // Waits for the look that is under way. Whether it found something new; otherwise the resolver
  // sleeps.
  bool HasNews(const Asking& asking) {
    scheduler_.RunUntil([&] { return asking.done() || scheduler_.timer_count() > 0; });
    return asking.done();
  }

  const std::string path_ = ::testing::TempDir() + "/servers." + std::to_string(getpid());
  WaitingScheduler scheduler_{WaitingScheduler::Time::kStanding};
  FileResolver resolver_{path_};
};

TEST_F(FileResolverTest, GivesEachNewContentOnce) {
  Write("a:1\n");
  EXPECT_EQ(AddressesOf(Next()), std::vector<std::string>{"a:1"});
  Asking waits(resolver_, scheduler_);
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(HasNews(waits)) << "nothing has changed";
    scheduler_.AdvanceBy(FileResolver::kPeriod);
  }
  EXPECT_FALSE(HasNews(waits));
  Write("b:1\n");
  while (!HasNews(waits)) scheduler_.AdvanceBy(FileResolver::kPeriod);
  EXPECT_EQ(AddressesOf(waits.Take()), std::vector<std::string>{"b:1"});
}

TEST_F(FileResolverTest, NamesALineThatIsWrongAndGoesOn) {
  Write("a:1\n");
  EXPECT_TRUE(Next().ok());
  Write("a:1\nb:x\n");
  const absl::Status wrong = Next().status();
  EXPECT_NE(wrong.message().find(path_ + ":2: "), std::string::npos) << wrong;
  Write("a:1\nb:2\n");
  EXPECT_EQ(AddressesOf(Next()), (std::vector<std::string>{"a:1", "b:2"}));
}

TEST_F(FileResolverTest, SaysThatTheFileIsNotThere) {
  const absl::Status missing = Next().status();
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  EXPECT_NE(missing.message().find(path_), std::string::npos) << missing;
  Write("a:1\n");
  EXPECT_TRUE(Next().ok());
  // The same content after it was gone is news.
  std::remove(path_.c_str());
  EXPECT_TRUE(absl::IsNotFound(Next().status()));
  Write("a:1\n");
  EXPECT_TRUE(Next().ok());
}

TEST_F(FileResolverTest, RefusesAFileThatIsTooLong) {
  Write(std::string(FileResolver::kMaxBytes + 1, '#'));
  EXPECT_TRUE(absl::IsInvalidArgument(Next().status()));
}

TEST_F(FileResolverTest, WaitsForNoThreadOfRunBlocking) {
  Write("a:1\n");
  EXPECT_EQ(AddressesOf(Next()), std::vector<std::string>{"a:1"});
  const TakenThreads taken(scheduler_);
  Write("b:1\n");
  EXPECT_EQ(AddressesOf(Next()), std::vector<std::string>{"b:1"});
}

TEST_F(FileResolverTest, ReadsInAChildOfFork) {
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
  GTEST_SKIP() << "ThreadSanitizer starts no threads in a child of a process with threads";
#endif
#endif
  // The parent has a thread that reads files, and the child none.
  Write("a:1\n");
  EXPECT_TRUE(Next().ok());
  EXPECT_TRUE(SucceedsInAChild([this] {
    WaitingScheduler scheduler(WaitingScheduler::Time::kStanding);
    FileResolver resolver(path_);
    return Asking(resolver, scheduler).Take().ok();
  }));
}

// Files of which one is on a disk that answers once the test says so.
struct SlowFiles {
  std::shared_ptr<SlowNames::Shared> shared = std::make_shared<SlowNames::Shared>();
  FileReads reads{[shared = shared](const std::string& path) {
    if (path == "/slow") {
      ++shared->asked;
      shared->asked.notify_all();
      shared->answers.wait(false);
    }
    return FileContent{.bytes = "a:1\n"};
  }};

  void Answer() const {
    shared->answers = true;
    shared->answers.notify_all();
  }
};

TEST(SlowFilesTest, AFileThatHangsDelaysNoOther) {
  WaitingScheduler scheduler(WaitingScheduler::Time::kStanding);
  SlowFiles files;
  FileResolver slow("/slow", files.reads);
  FileResolver quick("/quick", files.reads);
  Asking hangs(slow, scheduler);
  files.shared->asked.wait(0);
  EXPECT_TRUE(Asking(quick, scheduler).Take().ok());
  EXPECT_FALSE(hangs.done());
  files.Answer();
  EXPECT_TRUE(hangs.Take().ok());
}

TEST(SlowFilesTest, NobodyWaitsForAReadThatHangs) {
  WaitingScheduler scheduler(WaitingScheduler::Time::kStanding);
  SlowFiles files;
  {
    FileResolver resolver("/slow", files.reads);
    Asking cancelled(resolver, scheduler);
    files.shared->asked.wait(0);
    cancelled.Cancel();
    EXPECT_TRUE(absl::IsCancelled(cancelled.Take().status()));
    const Asking destroyed(resolver, scheduler);
  }
  files.Answer();
}

}  // namespace
}  // namespace verbena::internal
