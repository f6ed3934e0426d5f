// LedgerService: notes which of its calls began and ended, in memory that outlives its process.
// NotedCall: one call of it.
// LedgerClient: calls of every kind, whose outcomes are compared with those notes.

#ifndef VERBENA_TESTS_RPC_LEDGER_SERVICE_H_
#define VERBENA_TESTS_RPC_LEDGER_SERVICE_H_

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "gtest/gtest.h"
#include "tests/rpc/ledger.verbena.pb.h"
#include "tests/rpc/watched_device.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/service.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena {

// Notes of each call, by its id. Shared with processes that are forked later.
class Ledger {
 public:
  static constexpr uint64_t kMaxCalls = 1 << 19;
  enum Mark : uint8_t { kBegun = 1, kEnded = 2, kRefused = 4 };

  Ledger()
      : marks_(static_cast<std::atomic<uint8_t>*>(
            mmap(nullptr, kMaxCalls, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~Ledger() { munmap(marks_, kMaxCalls); }
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // An id that no call of this process had.
  uint64_t NewId() {
    EXPECT_LT(next_id_, kMaxCalls);
    return next_id_++;
  }
  void Set(uint64_t id, Mark mark) { marks_[id].fetch_or(mark); }
  bool Has(uint64_t id, Mark mark) const { return (marks_[id].load() & mark) != 0; }

 private:
  std::atomic<uint8_t>* const marks_;
  uint64_t next_id_ = 0;
};

inline Ledger& TheLedger() {
  static Ledger& ledger = *new Ledger;
  return ledger;
}

// Told of kHandlerBegins and kHandlerEnds, after the ledger has noted it.
using HandlerWatcher = std::function<void(internal::CallEvent)>;

// A call in its handler: notes in the ledger that it begins, and that it has ended.
class NotedCall {
 public:
  NotedCall(uint64_t id, const HandlerWatcher& watcher) : id_(id), watcher_(watcher) {
    TheLedger().Set(id_, Ledger::kBegun);
    if (watcher_) watcher_(internal::CallEvent::kHandlerBegins);
  }
  ~NotedCall() {
    TheLedger().Set(id_, Ledger::kEnded);
    if (watcher_) watcher_(internal::CallEvent::kHandlerEnds);
  }
  NotedCall(const NotedCall&) = delete;
  NotedCall& operator=(const NotedCall&) = delete;

 private:
  const uint64_t id_;
  const HandlerWatcher& watcher_;
};

class LedgerService final : public testing::Ledger::Service {
 public:
  Task<absl::Status> Note(ServerContext& context, const testing::EntryRequest& request,
                          testing::EntryReply& reply) override {
    const NotedCall noted(request.id(), watcher);
    if (request.yields()) VERBENA_CO_RETURN_IF_ERROR(co_await Yield());
    if (request.refuses()) {
      TheLedger().Set(request.id(), Ledger::kRefused);
      co_return context.NotExecuted(absl::UnavailableError("not the leader"));
    }
    if (request.detail_bytes() > 0) {
      absl::Status failed = absl::DataLossError("as asked");
      const std::string detail(request.detail_bytes(), 'd');
      failed.SetPayload("type.example/detail", absl::Cord(detail));
      co_return failed;
    }
    reply.set_filler(std::string(request.reply_bytes(), 'r'));
    co_return absl::OkStatus();
  }

  Task<absl::Status> Enter(ServerContext& context, const testing::EntryRequest& request,
                           testing::EntryReply& reply) override {
    const NotedCall noted(request.id(), watcher);
    reply.set_filler(std::string(request.reply_bytes(), 'r'));
    if (request.payload_bytes() == 0) co_return absl::OkStatus();
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer data,
                                co_await context.AllocateBuffer(request.payload_bytes()));
    context.SetResponsePayload(std::move(data));
    co_return absl::OkStatus();
  }

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
  Task<Told> Call(uint64_t id, int kind) {
    testing::EntryRequest request;
    request.set_id(id);
    switch (kind) {
      case 0:
        co_return Told{id, co_await Note(request)};
      case 1:
        request.set_yields(true);
        co_return Told{id, co_await Note(request)};
      case 2:
        request.set_filler(std::string(20000, 'q'));
        co_return Told{id, co_await Note(request)};
      case 3:
        request.set_reply_bytes(20000);
        co_return Told{id, co_await Note(request)};
      case 4:
        request.set_detail_bytes(20000);
        co_return Told{id, co_await Note(request)};
      case 5:
        request.set_refuses(true);
        co_return Told{id, co_await Note(request)};
      case 6:  // with a request's payload
        co_return Told{id, co_await Enter(request, 64 << 10, 0)};
      case 7:  // with a response's payload, for which the client leases memory
        request.set_payload_bytes(64 << 10);
        co_return Told{id, co_await Enter(request, 0, 64 << 10)};
      case 8:  // with one for which the server asks for memory
        request.set_payload_bytes(64 << 10);
        co_return Told{id, co_await Enter(request, 0, 0)};
      default:
        request.set_payload_bytes(5000);
        co_return Told{id, co_await Enter(request, 5000, 0)};
    }
  }

 private:
  Task<absl::Status> Note(const testing::EntryRequest& request) {
    testing::EntryReply reply;
    co_return co_await stub_.Note(request, reply);
  }

  Task<absl::Status> Enter(const testing::EntryRequest& request, size_t payload_bytes,
                           size_t room_bytes) {
    CallInfo info;
    CallOptions options{.info = &info, .max_response_payload = room_bytes};
    if (payload_bytes > 0) {
      VERBENA_CO_ASSIGN_OR_RETURN(options.request_payload,
                                  co_await channel_.AllocateBuffer(payload_bytes));
    }
    co_return (co_await stub_.Enter(request, std::move(options))).status();
  }

  Channel& channel_;
  testing::Ledger::Stub stub_;
};

// Compares what callers were told with what the server did, and counts the outcomes.
class OutcomeCheck {
 public:
  // Call when a call has ended. A handler whose end the caller was told of has ended by now.
  void Add(const Told& told) {
    const Outcome outcome = told.status.ok() ? Outcome::kExecuted : OutcomeOf(told.status);
    ++counts_[static_cast<size_t>(outcome)];
    if (outcome == Outcome::kExecuted) {
      EXPECT_TRUE(TheLedger().Has(told.id, Ledger::kEnded)) << told.id << ": " << told.status;
      if (!TheLedger().Has(told.id, Ledger::kEnded)) ++false_;
    }
    if (outcome == Outcome::kNotExecuted) not_executed_.push_back(told);
  }
  // Call when the server has ended: no handler that callers called not executed has run.
  void Finish() {
    for (const Told& told : not_executed_) {
      const bool ran =
          TheLedger().Has(told.id, Ledger::kBegun) && !TheLedger().Has(told.id, Ledger::kRefused);
      EXPECT_FALSE(ran) << told.id << ": " << told.status;
      if (ran) ++false_;
    }
  }

  int count(Outcome outcome) const { return counts_[static_cast<size_t>(outcome)]; }
  int false_outcomes() const { return false_; }

 private:
  int counts_[4] = {};
  int false_ = 0;
  std::vector<Told> not_executed_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_RPC_LEDGER_SERVICE_H_
