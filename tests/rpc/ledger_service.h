// LedgerService: notes which of its calls began and ended, in memory that outlives its process.
// NotedCall: one call of it.
// LedgerClient: calls of every kind, whose outcomes are compared with those notes.

#ifndef VERBENA_TESTS_RPC_LEDGER_SERVICE_H_
#define VERBENA_TESTS_RPC_LEDGER_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "tests/rpc/call_event.h"
#include "tests/rpc/ledger.verbena.pb.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/service.h"
#include "verbena/rpc/status.h"

namespace verbena {

// Notes of each call, by its id. Shared with processes that are forked later.
class Ledger {
 public:
  static constexpr uint64_t kMaxCalls = 1 << 19;
  enum Mark : uint8_t { kBegun = 1, kEnded = 2, kRefused = 4 };

  Ledger();
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // An id that no call of this process had.
  uint64_t NewId();
  void Set(uint64_t id, Mark mark) { marks_[id].fetch_or(mark); }
  bool Has(uint64_t id, Mark mark) const { return (marks_[id].load() & mark) != 0; }

 private:
  std::atomic<uint8_t>* const marks_;
  uint64_t next_id_ = 0;
};

Ledger& TheLedger();

// Told of kHandlerBegins and kHandlerEnds, after the ledger has noted it.
using HandlerWatcher = std::function<void(internal::CallEvent)>;

// A call in its handler: notes in the ledger that it begins, and that it has ended.
class NotedCall {
 public:
  NotedCall(uint64_t id, const HandlerWatcher& watcher);
  ~NotedCall();
  NotedCall(const NotedCall&) = delete;
  NotedCall& operator=(const NotedCall&) = delete;

 private:
  const uint64_t id_;
  const HandlerWatcher& watcher_;
};

class LedgerService final : public testing::Ledger::Service {
 public:
  Task<absl::Status> Note(ServerContext& context, const testing::EntryRequest& request,
                          testing::EntryReply& reply) override;
  Task<absl::Status> Enter(ServerContext& context, const testing::EntryRequest& request,
                           testing::EntryReply& reply) override;

  HandlerWatcher watcher;  // set before the service serves
};

// How one call ended, as its caller was told.
struct Told {
  uint64_t id = 0;
  absl::Status status;
};

class LedgerClient {
 public:
  static constexpr int kKinds = 10;

  explicit LedgerClient(Channel& channel) : channel_(channel), stub_(channel) {}

  // One call with that id, of a kind below kKinds: small and large messages, payloads with and
  // without memory that the client leases ahead, failures, refusals.
  Task<Told> Call(uint64_t id, int kind);

 private:
  Task<absl::Status> Note(const testing::EntryRequest& request);
  Task<absl::Status> Enter(const testing::EntryRequest& request, size_t payload_bytes,
                           size_t room_bytes);

  Channel& channel_;
  testing::Ledger::Stub stub_;
};

// Compares what callers were told with what the server did, and counts the outcomes.
class OutcomeCheck {
 public:
  // Call when a call has ended. A handler whose end the caller was told of has ended by now.
  void Add(const Told& told);
  // Call when the server has ended: no handler that callers called not executed has run.
  void Finish();

  int count(Outcome outcome) const { return counts_[static_cast<size_t>(outcome)]; }
  int false_outcomes() const { return false_; }

 private:
  int counts_[4] = {};
  int false_ = 0;
  std::vector<Told> not_executed_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_RPC_LEDGER_SERVICE_H_
