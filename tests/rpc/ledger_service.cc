#include "tests/rpc/ledger_service.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "gtest/gtest.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena {

Ledger::Ledger()
    : marks_(static_cast<std::atomic<uint8_t>*>(
          mmap(nullptr, kMaxCalls, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}

Ledger::~Ledger() { munmap(marks_, kMaxCalls); }

uint64_t Ledger::NewId() {
  EXPECT_LT(next_id_, kMaxCalls);
  return next_id_++;
}

Ledger& TheLedger() {
  static Ledger& ledger = *new Ledger;
  return ledger;
}

NotedCall::NotedCall(uint64_t id, const HandlerWatcher& watcher) : id_(id), watcher_(watcher) {
  TheLedger().Set(id_, Ledger::kBegun);
  if (watcher_) watcher_(internal::CallEvent::kHandlerBegins);
}

NotedCall::~NotedCall() {
  TheLedger().Set(id_, Ledger::kEnded);
  if (watcher_) watcher_(internal::CallEvent::kHandlerEnds);
}

Task<absl::Status> LedgerService::Note(ServerContext& context, const testing::EntryRequest& request,
                                       testing::EntryReply& reply) {
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

Task<absl::Status> LedgerService::Enter(ServerContext& context,
                                        const testing::EntryRequest& request,
                                        testing::EntryReply& reply) {
  const NotedCall noted(request.id(), watcher);
  reply.set_filler(std::string(request.reply_bytes(), 'r'));
  if (request.payload_bytes() == 0) co_return absl::OkStatus();
  VERBENA_CO_ASSIGN_OR_RETURN(Buffer data,
                              co_await context.AllocateBuffer(request.payload_bytes()));
  context.SetResponsePayload(std::move(data));
  co_return absl::OkStatus();
}

Task<Told> LedgerClient::Call(uint64_t id, int kind) {
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

Task<absl::Status> LedgerClient::Note(const testing::EntryRequest& request) {
  testing::EntryReply reply;
  co_return co_await stub_.Note(request, reply);
}

Task<absl::Status> LedgerClient::Enter(const testing::EntryRequest& request, size_t payload_bytes,
                                       size_t room_bytes) {
  CallInfo info;
  CallOptions options{.info = &info, .max_response_payload = room_bytes};
  if (payload_bytes > 0) {
    VERBENA_CO_ASSIGN_OR_RETURN(options.request_payload,
                                co_await channel_.AllocateBuffer(payload_bytes));
  }
  co_return (co_await stub_.Enter(request, std::move(options))).status();
}

void OutcomeCheck::Add(const Told& told) {
  const Outcome outcome = told.status.ok() ? Outcome::kExecuted : OutcomeOf(told.status);
  ++counts_[static_cast<size_t>(outcome)];
  if (outcome == Outcome::kExecuted) {
    EXPECT_TRUE(TheLedger().Has(told.id, Ledger::kEnded)) << told.id << ": " << told.status;
    if (!TheLedger().Has(told.id, Ledger::kEnded)) ++false_;
  }
  if (outcome == Outcome::kNotExecuted) not_executed_.push_back(told);
}

void OutcomeCheck::Finish() {
  for (const Told& told : not_executed_) {
    const bool ran =
        TheLedger().Has(told.id, Ledger::kBegun) && !TheLedger().Has(told.id, Ledger::kRefused);
    EXPECT_FALSE(ran) << told.id << ": " << told.status;
    if (ran) ++false_;
  }
}

}  // namespace verbena
