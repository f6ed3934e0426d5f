// KilledCalls: a fixture whose calls lose their links at every event, and that checks what their
// callers were told.

#ifndef VERBENA_TESTS_RPC_KILLED_CALLS_H_
#define VERBENA_TESTS_RPC_KILLED_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/rpc/call_event.h"
#include "tests/rpc/ledger_service.h"
#include "tests/rpc/link_breaker.h"
#include "tests/rpc/runtime_pair.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/combinators.h"

namespace verbena::internal {

// `Client` makes calls of several kinds to `Service`, both of which note them in the ledger.
template <typename Service, typename Client>
class KilledCalls : public RuntimePair {
 protected:
  KilledCalls() {
    service_.watcher = [this](CallEvent event) { breaker_.OfHandler(event); };
    server_runtime_ = StartRuntime({}, breaker_.device());
    ServeWith(service_);
    client_runtime_ = StartRuntime({}, breaker_.device());
    channel_ = std::make_unique<Channel>(*client_runtime_, server_->address());
  }
  ~KilledCalls() override { StopAll(); }

  // A call alone loses its link at its first event, the next call at its second one, and so on
  // until a call keeps its link; so for each kind of call.
  void KillEachAlone(std::span<const CallEvent> events) {
    for (int kind = 0; kind < Client::kKinds; ++kind) {
      int visits = 1;
      while (Run(LosesLink(kind, visits))) {
        ASSERT_LT(++visits, 1000) << "each call of kind " << kind << " lost its link";
      }
    }
    Finish(events);
    EXPECT_GT(check_.count(Outcome::kExecuted), 0);
    EXPECT_GT(check_.count(Outcome::kMaybeExecuted), 0);
  }

  // Kills `wanted` links, each under many calls, at one of the first `most_visits` visits to an
  // event.
  void KillUnderMany(std::span<const CallEvent> events, int wanted, uint32_t most_visits) {
    std::mt19937 random(20);
    for (size_t round = 0; breaker_.broken() < wanted; ++round) {
      ASSERT_LT(round, size_t{3} * wanted) << "only " << breaker_.broken() << " links were killed";
      ASSERT_TRUE(Run(AwaitLink()).ok());
      breaker_.Arm(events[round % events.size()], 1 + static_cast<int>(random() % most_visits));
      ASSERT_TRUE(Run(CallMany()).ok());
    }
    breaker_.Disarm();
    ASSERT_TRUE(Run(CallMany()).ok());
    Finish(events);
    // A test in which every call ends the same way would prove nothing.
    for (Outcome outcome : {Outcome::kNotExecuted, Outcome::kExecuted, Outcome::kMaybeExecuted}) {
      EXPECT_GT(check_.count(outcome), wanted / 10) << OutcomeName(outcome);
    }
  }

  // How many links to kill: what that variable of the environment says, or else `otherwise`.
  // One for each event is the least.
  static int KillsWanted(const char* variable, int otherwise) {
    const char* asked = std::getenv(variable);
    return asked == nullptr ? otherwise : std::atoi(asked);
  }

 private:
  // Makes a call whose link breaks at its event `visits`. Returns whether it has that many.
  Task<bool> LosesLink(int kind, int visits) {
    Client client(*channel_);
    // Before it another one, so that the link is of use.
    for (bool used = false; !used;) {
      (void)co_await AwaitLink();
      const Told first = co_await client.Call(TheLedger().NewId(), 0);
      used = first.status.ok();
      check_.Add(first);
    }
    const int broken = breaker_.broken();
    breaker_.ArmAny(visits);
    check_.Add(co_await client.Call(TheLedger().NewId(), kind));
    breaker_.Disarm();
    co_return breaker_.broken() > broken;
  }

  // Two of each kind at once.
  Task<absl::Status> CallMany() {
    constexpr int kCalls = 2 * Client::kKinds;
    Client client(*channel_);
    std::vector<uint64_t> ids(kCalls);
    for (uint64_t& id : ids) id = TheLedger().NewId();
    co_return co_await ForEach(std::move(ids), kCalls, [&](uint64_t id) -> Task<absl::Status> {
      check_.Add(co_await client.Call(id, id % Client::kKinds));
      co_return absl::OkStatus();
    });
  }

  void Finish(std::span<const CallEvent> events) {
    server_.reset();
    check_.Finish();
    EXPECT_EQ(check_.false_outcomes(), 0);
    for (CallEvent event : events) {
      EXPECT_GT(breaker_.broken_at(event), 0) << "no link broke at " << CallEventName(event);
      RecordProperty(CallEventName(event), breaker_.broken_at(event));
    }
    RecordProperty("kills", breaker_.broken());
  }

  Service service_;
  LinkBreaker breaker_;
  OutcomeCheck check_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_RPC_KILLED_CALLS_H_
