// No source of connections takes all handshakes or links of a server from others. Links go to the
// executor with the fewest, or to the one that the client chose.

#include "verbena/rpc/server/handshake_gate.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/support/manual_clock.h"
#include "tests/transport/base/captured_log.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/random.h"
#include "verbena/transport/base/retry_after.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::internal {
namespace handshake_gate_test {

// The client's end of a connection.
struct FakeClient {
  bool mute = false;               // says nothing
  bool closed = false;             // by the server
  std::vector<std::string> heard;  // of the server
};

// A connection whose end only the test decides.
class FakeStream final : public MessageStream {
 public:
  // "localhost" is of this host; "directory" names none.
  FakeStream(std::string source, FakeClient& client)
      : source_(std::move(source)), peer_(source_ + ":4000"), client_(client) {}

  Task<absl::Status> Send(std::string message) override {
    client_.heard.push_back(std::move(message));
    co_return absl::OkStatus();
  }
  Task<absl::StatusOr<std::string>> Receive() override {
    if (client_.mute) VERBENA_CO_RETURN_IF_ERROR(co_await SleepUntil(kNever));
    co_return std::string("Ready");
  }
  void Close() override { client_.closed = true; }
  const std::string& peer() const override { return peer_; }
  const std::string& source() const override { return source_; }
  bool same_host() const override { return source_ == "localhost"; }
  bool names_source() const override { return source_ != "directory"; }
  std::string own_address() const override { return "10.0.0.254"; }

 private:
  const std::string source_;
  const std::string peer_;
  FakeClient& client_;
};

// The address of the `number`-th host, from 0.
std::string HostOf(int number) {
  return "10.1." + std::to_string(number / 250) + "." + std::to_string(number % 250);
}

class HandshakeGateTest : public testing::Test {
 protected:
  struct Connection {
    std::unique_ptr<FakeClient> client = std::make_unique<FakeClient>();
    std::unique_ptr<MessageStream> stream;
  };

  HandshakeGateTest() {
    for (int i = 0; i < 3; ++i) executors_.push_back(*Executor::Create({.clock = &clock_}));
  }

  HandshakeGate& Start(const HandshakeLimits& limits, uint32_t links_per_executor = 1024) {
    std::vector<Executor*> executors;
    for (const auto& executor : executors_) executors.push_back(executor.get());
    return gate_.emplace(limits, executors, links_per_executor);
  }

  Connection Connect(const std::string& source) {
    Connection made;
    made.stream = gate_->Admit(std::make_unique<FakeStream>(source, *made.client));
    return made;
  }

  absl::StatusOr<size_t> Place(Connection& connection, uint8_t client = 1,
                               const ExecutorWish& wish = {}) {
    LinkParameters offer;
    offer.runtime_id.bytes[0] = client;
    offer.executor_choice = wish.choice;
    offer.executor_index = wish.number;
    offer.executor_key = wish.key;
    return gate_->Place(*connection.stream, offer);
  }

  // Executors read their clock once a turn.
  void Advance(Duration time) {
    clock_.Advance(time);
    RunExecutors();
  }

  // Whether the gate has closed it, once every executor has run.
  bool IsClosed(const Connection& connection) {
    RunExecutors();
    return connection.client->closed;
  }

  // Whether it made way before the server's answer, so that its client hears a refusal with a time
  // in the place of that answer.
  bool MadeWay(Connection& connection) { return AnswerOrTurn(connection).has_value(); }

  // The server answers the connection's offer. If the connection has made way before, returns in
  // how long its client should come again.
  std::optional<Duration> AnswerOrTurn(Connection& connection) {
    TaskScope scope(*executors_[0]);
    absl::Status sent;
    const auto send = [&]() -> Task<void> { sent = co_await connection.stream->Send("accepted"); };
    scope.Spawn(send());
    while (scope.size() > 0) executors_[0]->Poll();
    if (sent.ok()) return std::nullopt;
    return ReadRetryAfter(ParseReply(connection.client->heard.back(), {}).status());
  }

  // The server accepts its offer, and its client has to say Ready next.
  void Answer(Connection& connection) {
    TaskScope scope(*executors_[0]);
    scope.Spawn(SendAcceptance(*connection.stream));
    while (scope.size() > 0) executors_[0]->Poll();
  }
  static Task<void> SendAcceptance(MessageStream& stream) {
    (void)co_await stream.Send("accepted");
  }
  // Its client says Ready, and it becomes a link.
  void Open(Connection& connection) {
    TaskScope scope(*executors_[0]);
    scope.Spawn(ReceiveReady(*connection.stream));
    while (scope.size() > 0) executors_[0]->Poll();
  }
  // Runs a Receive() to its end, which the fake's never waits for.
  static Task<void> ReceiveReady(MessageStream& stream) { (void)co_await stream.Receive(); }

  void RunExecutors() {
    for (const auto& executor : executors_) {
      while (executor->Poll()) {
      }
    }
  }

  CapturedLog log_;
  ManualClock clock_;
  std::vector<std::unique_ptr<Executor>> executors_;
  std::optional<HandshakeGate> gate_;
};

TEST_F(HandshakeGateTest, AnAdmittedConnectionTellsTheAddressOfItsEnd) {
  Start({});
  EXPECT_EQ(Connect("10.0.0.1").stream->own_address(), "10.0.0.254");
}

TEST_F(HandshakeGateTest, ASourceOverItsBoundClosesItsOldestSilentConnection) {
  Start({.handshakes_per_source = 3});
  Connection other = Connect("10.0.0.9");
  Connection said_hello = Connect("10.0.0.1");
  ASSERT_TRUE(Place(said_hello).ok());
  Connection oldest = Connect("10.0.0.1");
  Connection younger = Connect("10.0.0.1");
  EXPECT_FALSE(MadeWay(oldest));
  Connection newest = Connect("10.0.0.1");
  EXPECT_TRUE(MadeWay(oldest));
  EXPECT_FALSE(IsClosed(said_hello));
  EXPECT_FALSE(MadeWay(younger));
  EXPECT_FALSE(MadeWay(newest));
  EXPECT_FALSE(MadeWay(other));
  EXPECT_EQ(gate_->stats().evicted_silent, 1u);
}

TEST_F(HandshakeGateTest, WhenAllAreTakenTheSourceWithMostGivesWay) {
  Start({.handshakes = 4, .handshakes_per_source = 4});
  Connection honest = Connect("10.0.0.9");
  std::vector<Connection> flood;
  for (int i = 0; i < 3; ++i) flood.push_back(Connect("10.0.0.1"));
  Connection another = Connect("10.0.0.8");
  EXPECT_TRUE(MadeWay(flood[0]));
  EXPECT_FALSE(MadeWay(honest));
  EXPECT_FALSE(MadeWay(another));
  EXPECT_EQ(gate_->stats().under_way, 4u);
}

TEST_F(HandshakeGateTest, SilentConnectionsGoFirstWhicheverSourceTheyAreOf) {
  Start({.handshakes = 5});
  Connection older = Connect("10.0.0.1");
  Connection younger = Connect("10.0.0.2");
  std::vector<Connection> busy;
  for (int i = 0; i < 3; ++i) {
    busy.push_back(Connect("10.0.0.3"));
    ASSERT_TRUE(Place(busy.back()).ok());
  }
  Connection first = Connect("10.0.0.4");
  EXPECT_TRUE(MadeWay(older));
  EXPECT_FALSE(MadeWay(younger));
  ASSERT_TRUE(Place(first).ok());
  Connection second = Connect("10.0.0.5");
  EXPECT_TRUE(MadeWay(younger));
  for (const Connection& connection : busy) EXPECT_FALSE(IsClosed(connection));
  EXPECT_FALSE(IsClosed(first));
  EXPECT_EQ(gate_->stats().evicted_pending, 0u);
  // All others have said Hello: an offer of the source with most goes, the oldest since it is old.
  Answer(busy[0]);
  Advance(std::chrono::seconds(1));
  ASSERT_TRUE(Place(second).ok());
  Connection third = Connect("10.0.0.6");
  EXPECT_TRUE(IsClosed(busy[0]));
  EXPECT_FALSE(IsClosed(first));
}

TEST_F(HandshakeGateTest, OffersWithoutReadyCountAndTheOldestIsClosed) {
  Start({.offers_per_source = 2});
  std::vector<Connection> pending;
  for (int i = 0; i < 3; ++i) {
    pending.push_back(Connect("10.0.0.1"));
    ASSERT_TRUE(Place(pending.back()).ok());
    Answer(pending.back());
    Advance(std::chrono::seconds(1));
  }
  EXPECT_TRUE(IsClosed(pending[0]));
  EXPECT_FALSE(IsClosed(pending[1]));
  EXPECT_FALSE(IsClosed(pending[2]));
  EXPECT_EQ(gate_->stats().evicted_pending, 1u);
}

TEST_F(HandshakeGateTest, YoungOffersOfASourceAreNotClosedForAnotherOfIt) {
  Start({.offers_per_source = 2});
  Connection first = Connect("10.0.0.1");
  ASSERT_TRUE(Place(first).ok());
  Answer(first);
  Advance(std::chrono::milliseconds(999));
  Connection second = Connect("10.0.0.1");
  ASSERT_TRUE(Place(second).ok());
  Answer(second);
  Connection newcomer = Connect("10.0.0.1");
  const absl::Status refused = Place(newcomer).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_FALSE(IsClosed(first));
  EXPECT_FALSE(IsClosed(second));
  EXPECT_EQ(gate_->stats().refused, 1u);
  EXPECT_EQ(gate_->stats().evicted_pending, 0u);
  Connection other = Connect("10.0.0.2");
  EXPECT_TRUE(Place(other).ok());
  Advance(std::chrono::milliseconds(1));
  Connection later = Connect("10.0.0.1");
  EXPECT_TRUE(Place(later).ok());
  EXPECT_TRUE(IsClosed(first));
  EXPECT_FALSE(IsClosed(second));
}

TEST_F(HandshakeGateTest, AConnectionThatMadeWayIsNotPlaced) {
  Start({.handshakes_per_source = 1});
  Connection evicted = Connect("10.0.0.1");
  Connection next = Connect("10.0.0.1");
  const absl::Status placed = Place(evicted).status();
  EXPECT_TRUE(absl::IsResourceExhausted(placed)) << placed;
  EXPECT_TRUE(ReadRetryAfter(placed).has_value());
}

// Its client may be one of a storm, whose Hello is on its way.
TEST_F(HandshakeGateTest, ASilentConnectionThatMakesWayHearsWhenToComeAgain) {
  Start({.handshakes_per_source = 1});
  for (const bool listens : {false, true}) {
    Connection silent = Connect("10.0.0.1");
    silent.client->mute = true;
    TaskScope scope(*executors_[0]);
    absl::Status heard;
    const auto hear = [&]() -> Task<void> {
      heard = (co_await ReceiveOffer(*silent.stream, {})).status();
    };
    if (listens) {
      scope.Spawn(hear());
      RunExecutors();
    }
    Connection next = Connect("10.0.0.1");
    if (!listens) scope.Spawn(hear());
    RunExecutors();
    EXPECT_EQ(scope.size(), 0u) << listens;
    EXPECT_TRUE(absl::IsResourceExhausted(heard)) << heard;
    EXPECT_EQ(silent.client->heard.size(), 1u);
    for (const std::string& reply : silent.client->heard) {
      const absl::Status told = ParseReply(reply, {}).status();
      EXPECT_TRUE(ReadRetryAfter(told).has_value()) << told;
      EXPECT_NE(told.message().find("handshakes.handshakes_per_source"), std::string::npos) << told;
    }
    scope.RequestCancel();
    RunExecutors();
  }
}

TEST_F(HandshakeGateTest, AFloodOfSilentConnectionsPutsNobodyOffForLong) {
  Start({.handshakes_per_source = 1});
  std::vector<Connection> flood;
  for (int i = 0; i < 2000; ++i) flood.push_back(Connect("10.0.0.1"));
  const std::optional<Duration> wait = ReadRetryAfter(Place(flood[1998]).status());
  ASSERT_TRUE(wait.has_value());
  EXPECT_LT(*wait, kLongestComeAgain);
}

// The others are nearer to their end.
TEST_F(HandshakeGateTest, AnOfferThatMakesWayIsTheNewestOneAndHearsWhenToComeAgain) {
  Start({.offers = 3});
  std::vector<Connection> pending;
  for (int i = 0; i < 3; ++i) {
    pending.push_back(Connect("10.0.0.1"));
    ASSERT_TRUE(Place(pending.back()).ok());
  }
  Answer(pending[0]);
  Connection newcomer = Connect("10.0.0.2");
  EXPECT_EQ(Place(newcomer).status(), absl::OkStatus());
  for (const Connection& each : pending) EXPECT_FALSE(IsClosed(each));
  EXPECT_FALSE(MadeWay(pending[0]));
  EXPECT_FALSE(MadeWay(pending[1]));
  EXPECT_TRUE(MadeWay(pending[2]));
  EXPECT_FALSE(MadeWay(newcomer));
  EXPECT_EQ(gate_->stats().evicted_pending, 1u);
}

// As when all clients of a server come again at once.
TEST_F(HandshakeGateTest, HostsThatHaveAsManyOffersDoNotCloseEachOthers) {
  Start({.offers = 4});
  std::vector<Connection> pending;
  for (const char* host : {"10.0.0.1", "10.0.0.2", "10.0.0.1", "10.0.0.2"}) {
    pending.push_back(Connect(host));
    ASSERT_TRUE(Place(pending.back()).ok());
  }
  for (const char* host : {"10.0.0.1", "10.0.0.2"}) {
    Connection newcomer = Connect(host);
    const absl::Status refused = Place(newcomer).status();
    EXPECT_TRUE(ReadRetryAfter(refused).has_value()) << refused;
    EXPECT_NE(refused.message().find("the server has 4 handshakes without Ready"),
              std::string::npos)
        << refused;
    EXPECT_NE(refused.message().find("raise ServerOptions::handshakes.offers (4)"),
              std::string::npos)
        << refused;
  }
  EXPECT_EQ(gate_->stats().evicted_pending, 0u);
  // One that has none gets in, but has no claim to as many as the others.
  Connection third = Connect("10.0.0.3");
  EXPECT_EQ(Place(third).status(), absl::OkStatus());
  Connection fourth = Connect("10.0.0.3");
  EXPECT_TRUE(ReadRetryAfter(Place(fourth).status()).has_value());
  EXPECT_EQ(gate_->stats().evicted_pending, 1u);
}

TEST_F(HandshakeGateTest, ANewcomerTakesThePlaceOfAnOldOfferWhicheverHostHasIt) {
  for (int i = 0; i < 16; ++i) {
    Start({.offers = 2});
    const std::string net = "10.0." + std::to_string(i);
    Connection old = Connect(net + ".1");
    ASSERT_TRUE(Place(old).ok());
    Answer(old);
    Advance(std::chrono::seconds(1));
    Connection young = Connect(net + ".2");
    ASSERT_TRUE(Place(young).ok());
    Connection newcomer = Connect(net + ".3");
    EXPECT_EQ(Place(newcomer).status(), absl::OkStatus()) << i;
    EXPECT_TRUE(IsClosed(old)) << i;
    EXPECT_FALSE(MadeWay(young)) << i;
  }
}

// Many hosts have one client each, and no connection is silent.
TEST_F(HandshakeGateTest, TheNewestOfferMakesWayForAConnectionIfNoneIsOld) {
  Start({.handshakes = 4});
  std::vector<Connection> pending;
  for (int i = 0; i < 3; ++i) {
    pending.push_back(Connect(HostOf(i)));
    ASSERT_TRUE(Place(pending.back()).ok());
  }
  Connection answered = Connect(HostOf(3));
  ASSERT_TRUE(Place(answered).ok());
  Answer(answered);
  Connection first = Connect(HostOf(4));
  ASSERT_TRUE(Place(first).ok());
  EXPECT_FALSE(IsClosed(answered)) << "its client could not be told when to come again";
  EXPECT_FALSE(MadeWay(pending[0]));
  EXPECT_FALSE(MadeWay(pending[1]));
  EXPECT_TRUE(MadeWay(pending[2]));
  Advance(std::chrono::seconds(1));
  Connection second = Connect(HostOf(5));
  EXPECT_TRUE(IsClosed(pending[0]));
  EXPECT_FALSE(IsClosed(pending[1]));
  EXPECT_FALSE(IsClosed(answered));
  EXPECT_FALSE(MadeWay(first));
}

TEST_F(HandshakeGateTest, ASlowClientDoesNotSpreadTheTurnsOfOthers) {
  Start({.offers_per_source = 1});
  Connection slow = Connect("10.0.0.1");
  ASSERT_TRUE(Place(slow).ok());
  Advance(std::chrono::seconds(10));
  Open(slow);
  Connection pending = Connect("10.0.0.1");
  ASSERT_TRUE(Place(pending).ok());
  Connection refused = Connect("10.0.0.1");
  const std::optional<Duration> turn = ReadRetryAfter(Place(refused).status());
  ASSERT_TRUE(turn.has_value());
  EXPECT_LT(*turn, std::chrono::milliseconds(200));
}

// Many queue pairs may be under way before this one.
TEST_F(HandshakeGateTest, AnOfferThatTheServerHasYetToAnswerIsNotClosed) {
  Start({.offers_per_source = 2});
  Connection slow = Connect("10.0.0.1");
  ASSERT_TRUE(Place(slow).ok());
  Connection answered = Connect("10.0.0.1");
  ASSERT_TRUE(Place(answered).ok());
  Advance(std::chrono::seconds(5));
  Answer(answered);
  Connection newcomer = Connect("10.0.0.1");
  EXPECT_TRUE(absl::IsResourceExhausted(Place(newcomer).status()));
  Advance(std::chrono::seconds(1));
  Connection later = Connect("10.0.0.1");
  EXPECT_TRUE(Place(later).ok());
  EXPECT_TRUE(IsClosed(answered));
  EXPECT_FALSE(IsClosed(slow));
}

TEST_F(HandshakeGateTest, ARefusalForOffersNamesATurnForEachClient) {
  Start({.offers_per_source = 1, .links_per_client = 2});
  Connection pending = Connect("10.0.0.1");
  ASSERT_TRUE(Place(pending).ok());
  Duration last{};
  for (int i = 0; i < 2000; ++i) {
    Connection refused = Connect("10.0.0.1");
    const std::optional<Duration> turn = ReadRetryAfter(Place(refused).status());
    ASSERT_TRUE(turn.has_value()) << i;
    EXPECT_GE(*turn, last) << i;
    if (last < kLongestComeAgain) {
      EXPECT_GT(*turn, last) << i;
    }
    last = *turn;
  }
  EXPECT_EQ(last, kLongestComeAgain);
}

// Many hosts that have one client each connect at once.
TEST_F(HandshakeGateTest, ARefusalForOffersInAllNamesATurnForEachClientWhicheverHostItIsOf) {
  Start({.offers = 1});
  Connection pending = Connect("10.0.0.1");
  ASSERT_TRUE(Place(pending).ok());
  Duration last{};
  for (int i = 0; i < 300; ++i) {
    Connection refused = Connect(HostOf(i));
    const std::optional<Duration> turn = ReadRetryAfter(Place(refused).status());
    ASSERT_TRUE(turn.has_value()) << i;
    EXPECT_GT(*turn, last) << i;
    last = *turn;
  }
}

TEST_F(HandshakeGateTest, SilentOnesThatMakeWayForOtherHostsGetTurnsOneAfterAnother) {
  Start({.handshakes = 1});
  std::vector<Connection> silent;
  silent.push_back(Connect(HostOf(0)));
  Duration last{};
  for (int i = 1; i <= 200; ++i) {
    silent.push_back(Connect(HostOf(i)));
    const std::optional<Duration> turn = ReadRetryAfter(Place(silent[i - 1]).status());
    ASSERT_TRUE(turn.has_value()) << i;
    EXPECT_GT(*turn, last) << i;
    last = *turn;
  }
}

TEST_F(HandshakeGateTest, OffersThatMakeWayForOtherHostsGetTurnsOneAfterAnother) {
  constexpr int kHosts = 20;
  Start({.offers = 3 * kHosts});
  std::vector<Connection> pending;
  for (int i = 0; i < 3 * kHosts; ++i) {
    pending.push_back(Connect(HostOf(i % kHosts)));
    ASSERT_TRUE(Place(pending.back()).ok());
  }
  std::vector<Connection> newcomers;
  for (int i = 0; i < kHosts; ++i) {
    newcomers.push_back(Connect(HostOf(kHosts + i)));
    ASSERT_TRUE(Place(newcomers.back()).ok());
  }
  EXPECT_EQ(gate_->stats().evicted_pending, static_cast<uint64_t>(kHosts));
  std::set<Duration> turns;
  for (Connection& each : pending) {
    if (const std::optional<Duration> turn = AnswerOrTurn(each)) turns.insert(*turn);
  }
  EXPECT_EQ(turns.size(), static_cast<size_t>(kHosts)) << "no two come at once";
}

TEST_F(HandshakeGateTest, ClientsOfOneHostDoNotPutOffThoseOfAnother) {
  Start({.handshakes_per_source = 2, .offers_per_source = 1});
  std::vector<std::vector<Duration>> turns(2);
  for (int host = 0; host < 2; ++host) {
    Connection pending = Connect(HostOf(host));
    ASSERT_TRUE(Place(pending).ok());
    for (int i = 0; i < 10; ++i) {
      Connection silent = Connect(HostOf(host));
      Connection newcomer = Connect(HostOf(host));
      for (Connection* each : {&silent, &newcomer}) {
        const std::optional<Duration> turn = ReadRetryAfter(Place(*each).status());
        ASSERT_TRUE(turn.has_value()) << i;
        turns[host].push_back(*turn);
      }
    }
  }
  EXPECT_EQ(turns[0], turns[1]);
}

// A hundred hosts have a handshake each, and each ends 40 ms after the one before.
TEST_F(HandshakeGateTest, TurnsOfAllHostsFollowThePaceOfAllTheirHandshakes) {
  Start({.offers = 100});
  std::vector<Connection> links;
  const auto connect = [&](int host) {
    links.push_back(Connect(HostOf(host)));
    return Place(links.back()).status();
  };
  for (int i = 0; i < 100; ++i) ASSERT_EQ(connect(i), absl::OkStatus());
  for (int i = 0; i < 50; ++i) {
    Advance(std::chrono::milliseconds(40));
    Open(links[i]);
  }
  for (int i = 100; i < 150; ++i) ASSERT_EQ(connect(i), absl::OkStatus());
  const std::optional<Duration> turn = ReadRetryAfter(connect(150));
  ASSERT_TRUE(turn.has_value());
  EXPECT_GT(*turn, std::chrono::milliseconds(40));
  EXPECT_LT(*turn, std::chrono::milliseconds(80));
}

TEST_F(HandshakeGateTest, SlowClientsThatConnectAloneDoNotSetThePaceOfAll) {
  Start({.offers = 64});
  for (int i = 0; i < 20; ++i) {
    Connection alone = Connect("10.0.0.1");
    ASSERT_EQ(Place(alone).status(), absl::OkStatus());
    Advance(std::chrono::milliseconds(100));
    Open(alone);
  }
  std::vector<Connection> pending;
  for (int i = 0; i < 64; ++i) {
    pending.push_back(Connect(HostOf(i)));
    ASSERT_EQ(Place(pending.back()).status(), absl::OkStatus());
  }
  Connection refused = Connect(HostOf(64));
  const std::optional<Duration> turn = ReadRetryAfter(Place(refused).status());
  ASSERT_TRUE(turn.has_value());
  EXPECT_LT(*turn, std::chrono::milliseconds(30));
}

// Its client would hear that the connection was closed, instead of when to come again.
TEST_F(HandshakeGateTest, AConnectionThatIsBeingRefusedIsNotClosedForAnother) {
  Start({.handshakes_per_source = 2, .offers_per_source = 1});
  Connection pending = Connect("10.0.0.1");
  ASSERT_TRUE(Place(pending).ok());
  Connection refused = Connect("10.0.0.1");
  ASSERT_TRUE(absl::IsResourceExhausted(Place(refused).status()));
  Connection newcomer = Connect("10.0.0.1");
  EXPECT_FALSE(IsClosed(refused));
  EXPECT_FALSE(MadeWay(refused));
  EXPECT_FALSE(IsClosed(pending));
  EXPECT_EQ(gate_->stats().evicted_silent, 0u);
  EXPECT_EQ(gate_->stats().under_way, 2u);
  refused.stream.reset();
  EXPECT_EQ(gate_->stats().under_way, 2u);
}

// A link may stay for as long as its client lives.
TEST_F(HandshakeGateTest, ARefusalForLinksNamesNoTimeWhateverTheirBound) {
  const ExecutorWish first = {.choice = ExecutorChoice::kNumber, .number = 0};
  struct Bound {
    const char* name;
    HandshakeLimits limits;
    uint32_t links_per_executor;
  };
  for (const Bound& bound : {Bound{"of a client", {.links_per_client = 3}, 1024},
                             Bound{"of a source", {.links_per_source = 3}, 1024},
                             Bound{"of a source on an executor", {}, 4}}) {
    Start(bound.limits, bound.links_per_executor);
    std::vector<Connection> open;
    for (int i = 0; i < 3; ++i) {
      open.push_back(Connect("10.0.0.1"));
      ASSERT_TRUE(Place(open.back(), 1, first).ok()) << bound.name;
      Open(open.back());
    }
    Connection refused = Connect("10.0.0.1");
    const absl::Status status = Place(refused, 1, first).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << bound.name << ": " << status;
    EXPECT_EQ(ReadRetryAfter(status), std::nullopt) << bound.name;
  }
}

// Clients that all come within 100 ms, say Hello after a while, and come again when they are told
// to, up to a fifth later. The server answers one offer after another.
class StormTest : public HandshakeGateTest {
 protected:
  struct Load {
    int clients = 0;
    Duration handshake{};  // the server's time for one
    Duration silence{};
    int hosts = 1;  // with the same number of clients each
    HandshakeLimits limits = {};
  };
  struct Result {
    int refusals = 0;
    Duration time{};
  };
  // A client's next step: it connects, says Hello, or hears the server's answer.
  struct Step {
    int client = 0;
    std::optional<Connection> connection = {};
  };

  // A quarter of the descriptors of this process bounds handshakes: here only the limits should.
  StormTest() {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = std::max(limit.rlim_cur, std::min<rlim_t>(limit.rlim_max, 4096));
    setrlimit(RLIMIT_NOFILE, &limit);
  }

  Result Storm(const Load& load) {
    Start(load.limits);
    const TimePoint begin = executors_[0]->now();
    SeededRandom random(1);
    std::multimap<TimePoint, Step> steps;
    for (int i = 0; i < load.clients; ++i) {
      steps.emplace(begin + Duration(random.Below(100'000'000)), Step{.client = i});
    }
    std::deque<Step> pending;
    std::vector<Connection> links;
    TimePoint next = begin;
    TimePoint done = begin;  // when the server has answered the first of `pending`
    Result result;
    const auto come_again = [&](int client, Duration wait) {
      ++result.refusals;
      const auto fifth = static_cast<uint64_t>(wait.count() / 5);
      steps.emplace(next + wait + Duration(random.Below(fifth + 1)), Step{.client = client});
    };
    // Also ends if clients come again and again, nearly all in vain.
    while (links.size() < static_cast<size_t>(load.clients) &&
           result.refusals < 10 * load.clients) {
      const bool next_is_done = !pending.empty() && (steps.empty() || done <= steps.begin()->first);
      next = next_is_done ? done : steps.begin()->first;
      Advance(std::max(next - executors_[0]->now(), Duration::zero()));
      if (next_is_done) {
        Step step = std::move(pending.front());
        pending.pop_front();
        done = next + load.handshake;
        if (const std::optional<Duration> turn = AnswerOrTurn(*step.connection)) {
          come_again(step.client, *turn);
        } else {
          Open(*step.connection);
          links.push_back(*std::move(step.connection));
        }
        continue;
      }
      Step step = std::move(steps.begin()->second);
      steps.erase(steps.begin());
      if (!step.connection.has_value()) {
        step.connection = Connect(HostOf(step.client % load.hosts));
        steps.emplace(next + load.silence, std::move(step));
        continue;
      }
      const absl::Status placed =
          Place(*step.connection, static_cast<uint8_t>(step.client)).status();
      if (placed.ok()) {
        if (pending.empty()) done = next + load.handshake;
        pending.push_back(std::move(step));
        continue;
      }
      const std::optional<Duration> wait = ReadRetryAfter(placed);
      if (!wait.has_value()) break;
      come_again(step.client, *wait);
    }
    EXPECT_EQ(links.size(), static_cast<size_t>(load.clients));
    if (load.hosts == 1) {
      EXPECT_EQ(gate_->stats().evicted_pending, 0u);
    }
    if (load.silence == Duration::zero()) {
      EXPECT_EQ(gate_->stats().evicted_silent, 0u);
    }
    result.time = executors_[0]->now() - begin;
    return result;
  }

  void ExpectFewRefusals(const Load& load) {
    SCOPED_TRACE(testing::Message()
                 << load.clients << " clients of " << load.hosts << " hosts, "
                 << load.handshake.count() << " ns each, " << load.silence.count() << " ns silent");
    const Result storm = Storm(load);
    EXPECT_LT(storm.refusals, load.clients);
    // The server does not stand idle for long.
    EXPECT_LT(storm.time,
              load.clients * std::max<Duration>(load.handshake, std::chrono::milliseconds(10)) * 2);
  }
};

TEST_F(StormTest, EachClientIsRefusedLessThanOnceOnAverageHoweverLongAHandshakeTakes) {
  for (const int clients : {240, 400}) {
    for (const int ms : {2, 5, 10, 20}) {
      ExpectFewRefusals({.clients = clients, .handshake = std::chrono::milliseconds(ms)});
    }
  }
}

// So more are silent at once than one source may have.
TEST_F(StormTest, TheSameHoldsIfTheirHellosTakeAWhile) {
  for (const int clients : {240, 400}) {
    for (const int ms : {2, 5, 10}) {
      ExpectFewRefusals({.clients = clients,
                         .handshake = std::chrono::milliseconds(ms),
                         .silence = std::chrono::milliseconds(50)});
    }
  }
}

// The bound of offers in all refuses these clients, and no bound of a host does.
TEST_F(StormTest, TheSameHoldsIfEachClientIsOfAnotherHost) {
  for (const int clients : {240, 400, 1000}) {
    for (const int ms : {2, 5, 10, 20}) {
      ExpectFewRefusals(
          {.clients = clients, .handshake = std::chrono::milliseconds(ms), .hosts = clients});
    }
  }
}

TEST_F(StormTest, TheSameHoldsForHostsOfSomeClientsEach) {
  for (const auto& [clients, hosts] : {std::pair(400, 20), std::pair(1000, 100)}) {
    for (const int ms : {2, 5, 10}) {
      ExpectFewRefusals(
          {.clients = clients, .handshake = std::chrono::milliseconds(ms), .hosts = hosts});
    }
  }
}

// Each connection then closes a handshake.
TEST_F(StormTest, TheSameHoldsIfTheServerTakesNoMoreHandshakesThanOffers) {
  for (const int ms : {2, 5, 10, 20}) {
    ExpectFewRefusals({.clients = 400,
                       .handshake = std::chrono::milliseconds(ms),
                       .hosts = 400,
                       .limits = {.handshakes = 256}});
  }
}

// Then more connections are silent at once than the server takes in all.
TEST_F(StormTest, TheSameHoldsIfHellosOfManyHostsTakeAWhile) {
  for (const int ms : {2, 5, 10}) {
    ExpectFewRefusals({.clients = 400,
                       .handshake = std::chrono::milliseconds(ms),
                       .silence = std::chrono::milliseconds(50),
                       .hosts = 400,
                       .limits = {.handshakes = 256, .offers = 128}});
  }
}

TEST_F(HandshakeGateTest, OpenLinksAreBoundedPerClientAndPerSource) {
  Start({.links_per_client = 1, .links_per_source = 2});
  std::vector<Connection> open;
  const auto connect_open = [&](uint8_t client) -> absl::Status {
    open.push_back(Connect("10.0.0.1"));
    absl::StatusOr<size_t> placed = Place(open.back(), client);
    if (!placed.ok()) {
      open.pop_back();
      return placed.status();
    }
    TaskScope scope(*executors_[0]);
    scope.Spawn(ReceiveReady(*open.back().stream));
    while (scope.size() > 0) executors_[0]->Poll();
    return absl::OkStatus();
  };
  EXPECT_EQ(connect_open(1), absl::OkStatus());
  const absl::Status second = connect_open(1);
  EXPECT_TRUE(absl::IsResourceExhausted(second)) << second;
  EXPECT_NE(second.message().find("has 1 links"), std::string::npos) << second;
  EXPECT_EQ(connect_open(2), absl::OkStatus());
  EXPECT_TRUE(absl::IsResourceExhausted(connect_open(3)));
  open.clear();
  EXPECT_EQ(connect_open(1), absl::OkStatus());
  EXPECT_EQ(gate_->stats().refused, 2u);
}

TEST_F(HandshakeGateTest, PendingLinksCountInTheBoundOfTheirClientUntilTheyEnd) {
  Start({.offers = 2, .links_per_client = 1});
  std::vector<Connection> links;
  const auto connect = [&](uint8_t client) {
    links.push_back(Connect("10.0.0.1"));
    return Place(links.back(), client).status();
  };
  ASSERT_EQ(connect(1), absl::OkStatus());
  const absl::Status refused = connect(1);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_NE(refused.message().find("handshakes.links_per_client"), std::string::npos) << refused;
  Open(links[0]);
  EXPECT_TRUE(absl::IsResourceExhausted(connect(1)));
  ASSERT_EQ(connect(2), absl::OkStatus());
  ASSERT_EQ(connect(3), absl::OkStatus());
  // The newest one makes way, and counts no more, although its stream is still there.
  Connection other = Connect("10.0.0.2");
  ASSERT_EQ(Place(other).status(), absl::OkStatus());
  EXPECT_EQ(gate_->stats().evicted_pending, 1u);
  const absl::Status full = connect(3);
  EXPECT_TRUE(ReadRetryAfter(full).has_value())
      << "it is refused for offers, not for links: " << full;
  links.clear();
  EXPECT_EQ(connect(1), absl::OkStatus());
}

TEST_F(HandshakeGateTest, OneSourceLeavesLinksOfEachExecutorToOthers) {
  Start({}, /*links_per_executor=*/4);
  std::vector<Connection> links;
  const auto place = [&](const std::string& source, const ExecutorWish& wish = {}) {
    links.push_back(Connect(source));
    return Place(links.back(), static_cast<uint8_t>(links.size()), wish);
  };
  const ExecutorWish first = {.choice = ExecutorChoice::kNumber, .number = 0};
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(place("10.0.0.1", first).ok());
  const absl::Status refused = place("10.0.0.1", first).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_NE(refused.message().find("10.0.0.1 has 3 links of executor 0"), absl::string_view::npos)
      << refused;
  EXPECT_NE(refused.message().find("handshakes.links_per_source"), absl::string_view::npos)
      << refused;
  EXPECT_EQ(*place("10.0.0.2", first), 0u);
  // Without a wish, the source gets its remaining places on the other executors, and then none.
  for (int i = 0; i < 6; ++i) {
    const absl::StatusOr<size_t> placed = place("10.0.0.1");
    ASSERT_TRUE(placed.ok()) << placed.status();
    EXPECT_NE(*placed, 0u);
  }
  EXPECT_TRUE(absl::IsResourceExhausted(place("10.0.0.1").status()));
  EXPECT_TRUE(place("10.0.0.2").ok());
  EXPECT_EQ(gate_->stats().refused, 2u);
}

TEST_F(HandshakeGateTest, AChosenBoundOfASourceHoldsForAllExecutorsTogether) {
  const ExecutorWish first = {.choice = ExecutorChoice::kNumber, .number = 0};
  for (const char* source : {"10.0.0.1", "localhost"}) {
    Start({.links_per_source = 5}, /*links_per_executor=*/4);
    std::vector<Connection> links;
    for (int i = 0; i < 6; ++i) {
      links.push_back(Connect(source));
      EXPECT_EQ(Place(links.back(), 1, first).ok(), i < 5) << i;
    }
  }
}

TEST_F(HandshakeGateTest, ProcessesOfTheServersHostMayHaveAllLinks) {
  Start({}, /*links_per_executor=*/4);
  std::vector<Connection> links;
  for (int i = 0; i < 12; ++i) {
    links.push_back(Connect("localhost"));
    const absl::StatusOr<size_t> placed = Place(links.back());
    ASSERT_TRUE(placed.ok()) << placed.status();
    EXPECT_EQ(*placed, static_cast<size_t>(i % 3));
  }
}

TEST_F(HandshakeGateTest, ClientsWithoutAnAddressHaveNoBoundOfASource) {
  Start({.offers_per_source = 1}, /*links_per_executor=*/4);
  std::vector<Connection> links;
  for (int i = 0; i < 12; ++i) {
    links.push_back(Connect("directory"));
    EXPECT_EQ(Place(links.back()).status(), absl::OkStatus());
  }
  for (const Connection& link : links) EXPECT_FALSE(IsClosed(link));
}

TEST_F(HandshakeGateTest, ARefusalNamesTheFieldToRaiseAndItsValue) {
  Start({.offers_per_source = 1, .links_per_source = 2});
  Connection first = Connect("10.0.0.1");
  ASSERT_TRUE(Place(first).ok());
  Answer(first);
  Connection young = Connect("10.0.0.1");
  const std::string offers(Place(young).status().message());
  EXPECT_NE(offers.find("raise ServerOptions::handshakes.offers_per_source (1)"), std::string::npos)
      << offers;
  Advance(std::chrono::seconds(1));
  Connection second = Connect("10.0.0.1");
  ASSERT_TRUE(Place(second).ok());
  Connection third = Connect("10.0.0.1");
  const std::string links(Place(third).status().message());
  EXPECT_NE(links.find("raise ServerOptions::handshakes.links_per_source (2)"), std::string::npos)
      << links;
}

TEST_F(HandshakeGateTest, AClientThatClaimsAnothersAddressIsTreatedAsThePolicySays) {
  for (const ClaimedAddress policy :
       {ClaimedAddress::kIgnore, ClaimedAddress::kLog, ClaimedAddress::kRefuse}) {
    Start({.claimed_address = policy});
    log_.Take();
    for (uint8_t last : {1, 2, 3}) {
      Connection connection = Connect("10.0.0.1");
      LinkParameters offer;
      offer.kind = LinkKind::kRoce;
      offer.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last};
      const absl::Status placed = gate_->Place(*connection.stream, offer).status();
      const bool refused = policy == ClaimedAddress::kRefuse && last != 1;
      EXPECT_EQ(absl::IsPermissionDenied(placed), refused) << placed;
      EXPECT_EQ(placed.ok(), !refused) << placed;
      EXPECT_EQ(placed.message().find("or set it to kLog") != std::string::npos, refused);
    }
    // Once, however many claim.
    const std::vector<std::string> lines = log_.Take();
    ASSERT_EQ(lines.size(), policy == ClaimedAddress::kLog ? 1u : 0u);
    for (const std::string& line : lines) {
      EXPECT_NE(line.find("10.0.0.1:4000 claims the GID of 10.0.0.2, but connects from another "
                          "address; it is served"),
                std::string::npos)
          << line;
      EXPECT_EQ(line.find("kLog"), std::string::npos) << line;
    }
  }
}

TEST_F(HandshakeGateTest, AServedClaimIsAWarningWhichTheDefaultSinkWrites) {
  Start({.claimed_address = ClaimedAddress::kLog});
  std::vector<LogLevel> levels;
  SetLogSink([&levels](const LogRecord& record) { levels.push_back(record.level); });
  Connection connection = Connect("10.0.0.1");
  LinkParameters offer;
  offer.kind = LinkKind::kRoce;
  offer.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2};
  EXPECT_TRUE(gate_->Place(*connection.stream, offer).ok());
  SetLogSink(nullptr);
  EXPECT_EQ(levels, std::vector<LogLevel>({LogLevel::kWarning}));
}

TEST_F(HandshakeGateTest, WhoeverClaimsTheIdOfAnotherSourcesClientTakesNoneOfItsLinks) {
  Start({.links_per_client = 1});
  Connection claimant = Connect("10.0.0.1");
  ASSERT_TRUE(Place(claimant, 7).ok());
  TaskScope scope(*executors_[0]);
  scope.Spawn(ReceiveReady(*claimant.stream));
  while (scope.size() > 0) executors_[0]->Poll();
  Connection honest = Connect("10.0.0.2");
  EXPECT_EQ(Place(honest, 7).status(), absl::OkStatus());
  Connection second = Connect("10.0.0.1");
  const absl::Status refused = Place(second, 7).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  // The first 4 bytes of its id, of which it has 16.
  EXPECT_NE(refused.message().find("runtime 07000000…"), std::string::npos) << refused;
}

TEST_F(HandshakeGateTest, ALimitOfZeroIsRefusedByName) {
  EXPECT_EQ(CheckLimits({}), absl::OkStatus());
  const absl::Status status = CheckLimits({.offers_per_source = 0});
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_NE(status.message().find("handshakes.offers_per_source is 0"), std::string::npos)
      << status;
}

TEST_F(HandshakeGateTest, LinksGoToTheExecutorWithTheFewest) {
  Start({});
  std::vector<Connection> links;
  std::vector<int> placed(3);
  for (int i = 0; i < 9; ++i) {
    links.push_back(Connect("10.0.0.1"));
    ++placed[*Place(links.back())];
  }
  EXPECT_EQ(placed, std::vector<int>({3, 3, 3}));
  links.erase(links.begin() + 1);  // of executor 1
  links.push_back(Connect("10.0.0.1"));
  EXPECT_EQ(*Place(links.back()), 1u);
}

TEST_F(HandshakeGateTest, AClientMayAskForAnExecutorByNumberOrByKey) {
  Start({});
  std::vector<Connection> links;
  for (int i = 0; i < 4; ++i) links.push_back(Connect("10.0.0.1"));
  EXPECT_EQ(*Place(links[0], 1, {.choice = ExecutorChoice::kNumber, .number = 2}), 2u);
  EXPECT_EQ(*Place(links[1], 1, {.choice = ExecutorChoice::kNumber, .number = 5}), 2u);
  const ExecutorWish by_key = {.choice = ExecutorChoice::kKey, .key = 0x123456789abcdef1};
  EXPECT_EQ(*Place(links[2], 1, by_key), *Place(links[3], 2, by_key));
}

TEST_F(HandshakeGateTest, AFloodCostsAFewLinesWithCounts) {
  Start({.handshakes_per_source = 1});
  log_.Take();
  std::vector<Connection> flood;
  for (int i = 0; i < 1000; ++i) flood.push_back(Connect("10.0.0.1"));
  const std::vector<std::string> lines = log_.Take();
  ASSERT_FALSE(lines.empty());
  EXPECT_LE(lines.size(), 8u);
  EXPECT_NE(lines[0].find("10.0.0.1 is closed to make room"), std::string::npos) << lines[0];
}

TEST_F(HandshakeGateTest, AStreamMayOutliveTheGate) {
  Start({});
  Connection connection = Connect("10.0.0.1");
  ASSERT_TRUE(Place(connection).ok());
  gate_.reset();
  connection.stream.reset();
}

using HandshakeGateDeathTest = HandshakeGateTest;

TEST_F(HandshakeGateDeathTest, PlacingAStreamTwiceAborts) {
  Start({});
  Connection connection = Connect("10.0.0.1");
  ASSERT_TRUE(Place(connection).ok());
  EXPECT_DEATH((void)Place(connection), "a stream is placed once");
}

}  // namespace handshake_gate_test
}  // namespace verbena::internal
