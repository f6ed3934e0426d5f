// CounterService: a test service that counts how often each of its deduplicated calls has run.
// CounterTest: a fixture with a server and a client of it, in one process.

#ifndef VERBENA_TESTS_RPC_COUNTER_SERVICE_H_
#define VERBENA_TESTS_RPC_COUNTER_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "tests/rpc/dedupe_testing.verbena.pb.h"
#include "tests/rpc/link_breaker.h"
#include "tests/rpc/runtime_pair.h"
#include "tests/support/any_handler.h"
#include "tests/support/held_port.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/dedupe.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/status.h"

namespace verbena {

class CounterService final : public testing::Counter::Service {
 public:
  using Handler = AnyHandler<ServerContext&, const testing::AddRequest&, testing::AddReply&>;

  Task<absl::Status> Add(ServerContext& context, const testing::AddRequest& request,
                         testing::AddReply& reply) override;
  Task<absl::Status> Subtract(ServerContext&, const testing::AddRequest&,
                              testing::AddReply& reply) override;
  // Answers with the request's payload, its first byte replaced by the number of runs.
  Task<absl::Status> Swap(ServerContext& context, const testing::AddRequest& request,
                          testing::AddReply& reply) override;
  Task<absl::Status> Count(ServerContext& context, const testing::AddRequest&,
                           testing::AddReply& reply) override;

  // Set while no call runs.
  Handler handler;
  std::atomic<uint64_t> runs = 0;
  // The last Add sets them; read while none runs.
  std::optional<RequestId> last_name;
  uint64_t acknowledged_below = 0;
  uint64_t highest = 0;
};

class CounterTest : public RuntimePair {
 protected:
  ~CounterTest() override;

  void StartServer(DedupeOptions dedupe = {}, LinkLimits limits = {});
  void StartClient();
  void StartBoth(DedupeOptions dedupe = {});
  // The server ends with all that it knows, and another begins at its address.
  void RestartServer(DedupeOptions dedupe = {});

  // The number of runs that one attempt of Add hears of.
  Task<absl::StatusOr<uint64_t>> AddWith(CallOptions options, uint64_t call = 1);
  absl::StatusOr<uint64_t> Add(DedupeToken& token, uint64_t call = 1);
  // Tokens belong to the executor: those that a test keeps end there.
  struct Token {
    explicit Token(CounterTest& test) : test_(test), held(std::make_unique<DedupeToken>()) {}
    ~Token() { (void)test_.Run(End(std::move(held))); }
    static Task<absl::Status> End(std::unique_ptr<DedupeToken> token);
    DedupeToken& operator*() const { return *held; }
    DedupeToken* operator->() const { return held.get(); }

    CounterTest& test_;
    std::unique_ptr<DedupeToken> held;
  };

  ServerDedupe kept() { return server_->stats().dedupe; }

  internal::LinkBreaker breaker_;
  HeldPort port_;
  CounterService service_;
  std::unique_ptr<testing::Counter::Stub> stub_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_RPC_COUNTER_SERVICE_H_
