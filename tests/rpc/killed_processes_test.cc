// The outcome that a caller is told is true when the server's process is killed at any step of its
// call.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "tests/rpc/ledger_service.h"
#include "tests/rpc/runtime_pair.h"
#include "tests/rpc/server_process.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/transport/coro/combinators.h"

namespace verbena::internal {
namespace {

constexpr int kCallsPerRound = 2 * LedgerClient::kKinds;

// Set before the server's process is forked, which inherits them.
int step_to_die_at = 0;
std::atomic<int> visits_left = 0;
uint64_t armed_by = 0;  // the server may die once the ledger has begun this call

void Die(CallStep step, Link&) {
  if (!TheLedger().Has(armed_by, Ledger::kBegun)) return;
  if (static_cast<int>(step) == step_to_die_at && visits_left.fetch_sub(1) == 1) {
    kill(getpid(), SIGKILL);
  }
}

int KillsWanted() {
  const char* asked = std::getenv("VERBENA_PROCESS_KILLS");
  return asked == nullptr ? 12 : std::atoi(asked);
}

class KilledProcessesTest : public RuntimePair {
 protected:
  // Maps the ledger before the first server is forked.
  KilledProcessesTest() { (void)TheLedger(); }

  // One server's life. Returns false if it was not killed. The client's runtime must be gone when a
  // server is forked.
  bool Round() {
    step_hook = &Die;
    ServerProcess<LedgerService> server("127.0.0.1:0");
    step_hook = nullptr;
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
    for (uint64_t& id : ids) id = next_id_++;
    co_return co_await ForEach(std::move(ids), kCallsPerRound,
                               [&](uint64_t id) -> Task<absl::Status> {
                                 check_.Add(co_await client.Call(id, id % LedgerClient::kKinds));
                                 co_return absl::OkStatus();
                               });
  }

  uint64_t next_id_ = 0;
  OutcomeCheck check_;
};

TEST_F(KilledProcessesTest, OutcomesAreTrueAtEveryStep) {
  std::mt19937 random(21);
  const int wanted = KillsWanted();
  constexpr int kFirst = static_cast<int>(CallStep::kRequestArrived);
  int killed = 0;
  for (int round = 0; killed < wanted; ++round) {
    ASSERT_LT(round, 3 * wanted + kCallSteps) << "only " << killed << " processes were killed";
    step_to_die_at = kFirst + round % (kCallSteps - kFirst);
    armed_by = Ledger::kMaxCalls - 1 - round;
    visits_left = 1 + static_cast<int>(random() % 4);
    killed += Round() ? 1 : 0;
  }
  check_.Finish();
  EXPECT_EQ(check_.false_outcomes(), 0);
  EXPECT_GT(check_.count(Outcome::kExecuted), 0);
  EXPECT_GT(check_.count(Outcome::kMaybeExecuted), 0);
}

}  // namespace
}  // namespace verbena::internal
