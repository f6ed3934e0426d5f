// A client of etcd says truly whether a transaction may have run, whatever etcd answers, and logs
// in when it must. What it reads waits for no other work that blocks.

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "tests/rpc/naming/etcd/fake_etcd.h"
#include "tests/support/forbidden_call.h"
#include "tests/support/in_a_child.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/connect/waiting_scheduler.h"
#include "tests/transport/coro/started.h"
#include "tests/transport/executor/taken_threads.h"
#include "verbena/rpc/etcd.h"
#include "verbena/rpc/naming/etcd/client.h"
#include "verbena/rpc/naming/etcd/directory.h"
#include "verbena/rpc/naming/etcd/http.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/coro/cancel.h"

namespace verbena::internal {
namespace etcd_client_test {

constexpr const char* kCommitted = R"({"header":{"revision":"7"},"succeeded":true,"pad":")";

class EtcdClientTest : public ::testing::Test {
 protected:
  absl::StatusOr<EtcdTxnResult> Commit() {
    return scheduler_.Run(client_->Commit(EtcdTxn().Put("a", "1")));
  }

  ManualScheduler scheduler_;
  FakeEtcd etcd_;
  const std::unique_ptr<EtcdClient> client_ = EtcdCore::MakeClient(etcd_.Wire());
};

// In a process of its own, in which no thread of RunBlocking() has begun.
[[noreturn]] void ReadWithoutAnotherThread() {
  std::thread([] {
    if (!Forbid(SYS_clone3, EAGAIN) || !Forbid(SYS_clone, EAGAIN)) _exit(0);
    ManualScheduler scheduler;
    FakeEtcd etcd;
    etcd.answer = kCommitted + std::string(70'000, 'x') + R"("})";
    const auto client = EtcdCore::MakeClient(etcd.Wire());
    const auto committed = scheduler.Run(client->Commit(EtcdTxn().Put("a", "1")));
    _exit(committed.ok() && committed->succeeded ? 0 : 1);
  }).join();
  _exit(2);
}

TEST_F(EtcdClientTest, ALargeAnswerIsReadWithoutAnotherThread) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(ReadWithoutAnotherThread(), ::testing::ExitedWithCode(0), "");
}

// Likewise. The password cannot be read.
[[noreturn]] void LogInWithoutAnotherThread() {
  std::thread([] {
    if (!Forbid(SYS_clone3, EAGAIN) || !Forbid(SYS_clone, EAGAIN)) _exit(0);
    ManualScheduler scheduler;
    FakeEtcd etcd;
    const auto client =
        EtcdCore::MakeClient(etcd.Wire(), {.user = "me", .password_file = "/there/is/none"});
    const absl::Status status = scheduler.Run(client->Commit(EtcdTxn().Put("a", "1"))).status();
    const bool is_right = absl::IsResourceExhausted(status) &&
                          OutcomeOf(status) == Outcome::kNotExecuted && etcd.paths.empty();
    _exit(is_right ? 0 : 1);
  }).join();
  _exit(2);
}

TEST_F(EtcdClientTest, ACommitWhosePasswordNoThreadReadsIsNotExecuted) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(LogInWithoutAnotherThread(), ::testing::ExitedWithCode(0), "");
}

TEST_F(EtcdClientTest, ACommitThatFillsEtcdMayHaveBeenExecuted) {
  etcd_.answer = R"({"code":8,"message":"etcdserver: mvcc: database space exceeded"})";
  etcd_.answer_status = 429;
  const absl::Status full = Commit().status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_EQ(OutcomeOf(full), Outcome::kMaybeExecuted);
}

TEST_F(EtcdClientTest, ACommitThatEtcdRefusesWasNotExecuted) {
  etcd_.answer = R"({"code":5,"message":"etcdserver: requested lease not found"})";
  etcd_.answer_status = 404;
  const absl::Status refused = Commit().status();
  EXPECT_TRUE(absl::IsNotFound(refused)) << refused;
  EXPECT_EQ(OutcomeOf(refused), Outcome::kNotExecuted);
}

TEST_F(EtcdClientTest, AnAnswerThatCannotBeReadLeavesTheOutcomeOpen) {
  etcd_.answer = "garbage";
  const absl::Status garbage = Commit().status();
  EXPECT_EQ(OutcomeOf(garbage), Outcome::kMaybeExecuted) << garbage;
}

class EtcdLoginTest : public ::testing::Test {
 protected:
  EtcdLoginTest() {
    etcd_.password = "secret";
    WritePassword("secret");
  }
  ~EtcdLoginTest() override { std::remove(path_.c_str()); }

  void WritePassword(const std::string& password) { std::ofstream(path_) << password << "\n"; }
  absl::Status Get() { return scheduler_.Run(client_->Get("a")).status(); }
  // The next changes of a watch, which are to be those of a key that is put once it has begun.
  absl::StatusOr<EtcdChanges> NextOf(EtcdWatch& watch) {
    Started<absl::StatusOr<EtcdChanges>> next(scheduler_, watch.Next());
    scheduler_.RunUntil([&] { return next.done() || etcd_.watch() != nullptr; });
    etcd_.Put("a", "1");
    scheduler_.RunUntil([&] { return next.done(); });
    return next.result();
  }

  const std::string path_ = ::testing::TempDir() + "/password." + std::to_string(getpid());
  WaitingScheduler scheduler_{WaitingScheduler::Time::kStanding};
  FakeEtcd etcd_;
  const std::unique_ptr<EtcdClient> client_ =
      EtcdCore::MakeClient(etcd_.Wire(), {.user = "me", .password_file = path_});
};

TEST_F(EtcdLoginTest, LogsInOnceBeforeItsFirstRequest) {
  EXPECT_EQ(Get(), absl::OkStatus());
  EXPECT_EQ(Get(), absl::OkStatus());
  EXPECT_EQ(etcd_.logins, 1);
  const auto watch = client_->Watch("a", 1);
  EXPECT_EQ(etcd_.watch()->token, "token-1");
}

TEST_F(EtcdLoginTest, LogsInAgainWithTheNewPasswordWhenItsTokenIsRefused) {
  EXPECT_EQ(Get(), absl::OkStatus());
  // Etcd has forgotten the token, and the password has changed.
  ++etcd_.logins;
  etcd_.password = "other";
  WritePassword("other");
  EXPECT_EQ(Get(), absl::OkStatus());
  EXPECT_EQ(etcd_.logins, 3);
}

TEST_F(EtcdLoginTest, AWatchThatComesFirstLogsIn) {
  const auto watch = client_->Watch("a", 1);
  EXPECT_FALSE(watch->HasMore());
  EXPECT_EQ(etcd_.watch(), nullptr) << "it would be refused";
  const absl::StatusOr<EtcdChanges> changes = NextOf(*watch);
  ASSERT_TRUE(changes.ok()) << changes.status();
  EXPECT_EQ(changes->events.size(), 1u);
  EXPECT_EQ(etcd_.logins, 1);
  EXPECT_EQ(etcd_.watches_refused, 0);
  EXPECT_EQ(etcd_.watch()->token, "token-1");
}

TEST_F(EtcdLoginTest, AWatchLogsInAgainWhenItsTokenIsRefused) {
  for (const char* refusal : {"etcdserver: invalid auth token", "etcdserver: permission denied"}) {
    EXPECT_EQ(Get(), absl::OkStatus());
    etcd_.refusal = refusal;
    const int logins = ++etcd_.logins;  // etcd has forgotten the token
    const auto watch = client_->Watch("a", 1);
    const absl::StatusOr<EtcdChanges> changes = NextOf(*watch);
    ASSERT_TRUE(changes.ok()) << changes.status();
    EXPECT_EQ(etcd_.logins, logins + 1);
  }
  EXPECT_EQ(etcd_.watches_refused, 2);
}

TEST_F(EtcdLoginTest, AWatchThatIsRefusedAfterALoginFails) {
  EXPECT_EQ(Get(), absl::OkStatus());
  const auto watch = client_->Watch("a", 1);
  ASSERT_TRUE(NextOf(*watch).ok());
  // Etcd ends a watch that it has taken.
  etcd_.watch()->Answer(R"({"result":{"header":{},"canceled":true,"cancel_reason":")" +
                        etcd_.refusal + "\"}}");
  EXPECT_TRUE(absl::IsUnauthenticated(scheduler_.Run(watch->Next()).status()));
  EXPECT_EQ(etcd_.logins, 1) << "what it told would come again";
  WritePassword("wrong");
  ++etcd_.logins;
  const auto other = client_->Watch("a", 1);
  EXPECT_TRUE(absl::IsInvalidArgument(scheduler_.Run(other->Next()).status()));
  EXPECT_EQ(etcd_.watches_refused, 1);
}

TEST_F(EtcdLoginTest, ALoginOfAWatchThatIsCancelledIsMadeByTheNextAwait) {
  const auto watch = client_->Watch("a", 1);
  CancelScope given_up;
  given_up.Request();
  EXPECT_TRUE(absl::IsCancelled(scheduler_.Run(watch->Next(), &given_up).status()));
  EXPECT_TRUE(NextOf(*watch).ok());
}

TEST_F(EtcdLoginTest, AWrongPasswordIsToldAndNotRepeated) {
  WritePassword("wrong");
  const absl::Status refused = Get();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_EQ(OutcomeOf(refused), Outcome::kNotExecuted);
  EXPECT_EQ(etcd_.Count("/v3/auth/authenticate"), 1);
  EXPECT_EQ(etcd_.Count("/v3/kv/range"), 0);
}

TEST_F(EtcdLoginTest, ALoginWaitsForNoThreadOfRunBlocking) {
  const TakenThreads taken(scheduler_);
  EXPECT_EQ(Get(), absl::OkStatus());
  EXPECT_EQ(etcd_.logins, 1);
}

TEST_F(EtcdLoginTest, ALargeAnswerWaitsForNoThreadOfRunBlocking) {
  EXPECT_EQ(Get(), absl::OkStatus());
  const TakenThreads taken(scheduler_);
  etcd_.Put("a", std::string(70'000, 'x'));
  EXPECT_EQ(Get(), absl::OkStatus());
}

// A way to etcd that depends on files.
class WireWithFiles final : public EtcdWire {
 public:
  WireWithFiles(FakeEtcd& etcd, std::atomic<int>& times_read)
      : wire_(etcd.Wire()), times_read_(times_read) {}

 private:
  std::unique_ptr<EtcdExchange> Post(EtcdRequest request) override {
    return wire_->Post(std::move(request));
  }
  bool has_files() const override { return true; }
  absl::Status ReadFiles() override {
    ++times_read_;
    return absl::OkStatus();
  }

  const std::unique_ptr<EtcdWire> wire_;
  std::atomic<int>& times_read_;
};

TEST(EtcdFilesTest, CertificatesWaitForNoThreadOfRunBlocking) {
  WaitingScheduler scheduler(WaitingScheduler::Time::kStanding);
  FakeEtcd etcd;
  etcd.gone = true;
  std::atomic<int> times_read = 0;
  const auto client = EtcdCore::MakeClient(std::make_unique<WireWithFiles>(etcd, times_read));
  const TakenThreads taken(scheduler);
  EXPECT_TRUE(absl::IsUnavailable(scheduler.Run(client->Get("a")).status()));
  EXPECT_EQ(times_read, 1);
  const auto watch = client->Watch("a", 1);
  EXPECT_TRUE(absl::IsUnavailable(scheduler.Run(watch->Next()).status()));
  EXPECT_EQ(times_read, 2) << "also for a program that only watches";
}

// A client of these fails as soon as it reads its password, and asks no etcd.
EtcdOptions WithoutPassword() {
  return {.endpoints = {"127.0.0.1:1"}, .user = "me", .password_file = "/there/is/none"};
}

TEST(EtcdFilesTest, TheClientOfAResolverWaitsForNoThreadOfRunBlocking) {
  WaitingScheduler scheduler(WaitingScheduler::Time::kStanding);
  EtcdResolver resolver(WithoutPassword(), "s/");
  const TakenThreads taken(scheduler);
  const absl::Status refused = scheduler.Run(resolver.Next()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
}

TEST(EtcdFilesTest, TheClientOfARegistrarWaitsForNoThreadOfRunBlocking) {
  WaitingScheduler scheduler(WaitingScheduler::Time::kStanding);
  EtcdRegistrar registrar(WithoutPassword(), "s/a", R"({"x":1})", std::chrono::seconds(9));
  const TakenThreads taken(scheduler);
  CancelScope scope;
  Started running(scheduler, registrar.Run(), &scope);
  // It pauses after its failure.
  scheduler.RunUntil([&] { return scheduler.timer_count() > 0; });
  scope.Request();
  scheduler.RunPending();
  EXPECT_TRUE(running.done());
}

TEST_F(EtcdLoginTest, AChildOfForkLogsIn) {
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
  GTEST_SKIP() << "ThreadSanitizer starts no threads in a child of a process with threads";
#endif
#endif
  // The parent has a thread that reads passwords, and the child none.
  EXPECT_EQ(Get(), absl::OkStatus());
  EXPECT_TRUE(SucceedsInAChild([this] {
    WaitingScheduler scheduler(WaitingScheduler::Time::kStanding);
    FakeEtcd etcd;
    etcd.password = "secret";
    const auto client = EtcdCore::MakeClient(etcd.Wire(), {.user = "me", .password_file = path_});
    return scheduler.Run(client->Get("a")).ok();
  }));
}

TEST_F(EtcdLoginTest, AnEtcdThatDemandsNoLoginIsAsked) {
  etcd_.password.clear();
  EXPECT_EQ(Get(), absl::OkStatus());
}

}  // namespace etcd_client_test
}  // namespace verbena::internal
