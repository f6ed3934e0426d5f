// The outcome that a caller is told is true when the server's process is killed at any event of
// its call.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "tests/rpc/ledger_service.h"
#include "tests/rpc/runtime_pair.h"
#include "tests/rpc/server_process.h"
#include "tests/rpc/watched_device.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/transport/coro/combinators.h"

namespace verbena::internal {
namespace {

constexpr int kCallsPerRound = 2 * LedgerClient::kKinds;

// Set before the server's process is forked, which inherits them.
CallEvent event_to_die_at = CallEvent::kRequestArrived;
std::atomic<int> visits_left = 0;
uint64_t armed_by = 0;  // the server may die once the ledger has begun this call

// The events of a server alone: what its client sees as well, killed_links_test goes through.
constexpr std::array kEventsOfServers = {
    CallEvent::kRequestArrived,      CallEvent::kHandlerBegins,  CallEvent::kHandlerEnds,
    CallEvent::kLandingNeededPosted, CallEvent::kLandingArrived, CallEvent::kOneSidedPosted,
    CallEvent::kOneSidedDone,        CallEvent::kResponsePosted,
};

void DieAt(CallEvent event) {
  if (!TheLedger().Has(armed_by, Ledger::kBegun)) return;
  if (event == event_to_die_at && visits_left.fetch_sub(1) == 1) kill(getpid(), SIGKILL);
}

void Prepare(LedgerService& service, RuntimeOptions& options, TestDevice& device) {
  service.watcher = &DieAt;
  device.open = OpenerOfWatched([](CallEvent event, WatchedDevice&, uint32_t) { DieAt(event); },
                                options.device);
}

int KillsWanted() {
  const char* asked = std::getenv("VERBENA_PROCESS_KILLS");
  return asked == nullptr ? 16 : std::atoi(asked);
}

class KilledProcessesTest : public RuntimePair {
 protected:
  // Maps the ledger before the first server is forked.
  KilledProcessesTest() { (void)TheLedger(); }

  // One server's life. Returns false if it was not killed. The client's runtime must be gone when a
  // server is forked.
  bool Round() {
    ServerProcess<LedgerService> server("127.0.0.1:0", &Prepare);
    client_runtime_ = StartRuntime();
    channel_ = std::make_unique<Channel>(*client_runtime_, server.address());
    EXPECT_TRUE(Run(CallAll()).ok());
    TheLedger().Set(armed_by, Ledger::kBegun);
    EXPECT_TRUE(Run(CallAll()).ok());
    channel_.reset();
    client_runtime_.reset();
    return server.HasEnded();
  }

  Task<absl::Status> CallAll() {
    LedgerClient client(*channel_);
    std::vector<uint64_t> ids(kCallsPerRound);
    for (uint64_t& id : ids) id = TheLedger().NewId();
    co_return co_await ForEach(std::move(ids), kCallsPerRound,
                               [&](uint64_t id) -> Task<absl::Status> {
                                 check_.Add(co_await client.Call(id, id % LedgerClient::kKinds));
                                 co_return absl::OkStatus();
                               });
  }

  OutcomeCheck check_;
};

TEST_F(KilledProcessesTest, OutcomesAreTrueAtEveryEvent) {
  std::mt19937 random(21);
  const int wanted = KillsWanted();
  int killed = 0;
  std::array<int, kEventsOfServers.size()> killed_at = {};
  for (int round = 0; killed < wanted; ++round) {
    ASSERT_LT(round, 3 * wanted + static_cast<int>(kEventsOfServers.size()))
        << "only " << killed << " processes were killed";
    const size_t index = round % kEventsOfServers.size();
    event_to_die_at = kEventsOfServers[index];
    armed_by = Ledger::kMaxCalls - 1 - round;
    visits_left = 1 + static_cast<int>(random() % 4);
    if (!Round()) continue;
    ++killed;
    ++killed_at[index];
  }
  check_.Finish();
  EXPECT_EQ(check_.false_outcomes(), 0);
  EXPECT_GT(check_.count(Outcome::kExecuted), 0);
  EXPECT_GT(check_.count(Outcome::kMaybeExecuted), 0);
  for (size_t i = 0; i < killed_at.size(); ++i) {
    EXPECT_GT(killed_at[i], 0) << "no process died at " << CallEventName(kEventsOfServers[i]);
  }
}

}  // namespace
}  // namespace verbena::internal
