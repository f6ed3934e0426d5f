#include "verbena/rpc/server/named_run.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "fmt/format.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/rpc/dedupe.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/server/context.h"
#include "verbena/rpc/server/dedupe.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/memory/crc32c.h"

namespace verbena::internal {

namespace {

// Equal messages have equal bytes, also if they have maps.
uint32_t FingerprintOf(const MessageLite& message) {
  const std::string bytes = DeterministicBytesOf(message);
  return ExtendCrc32c(0, bytes.data(), bytes.size());
}

std::shared_ptr<const KeptResult> TooLarge(const absl::Status& status, Outcome outcome,
                                           size_t bytes, size_t most) {
  KeptResult kept;
  kept.status = absl::ResourceExhaustedError(
      fmt::format("the call has run and ended with {}, but its result of {} bytes is over this "
                  "server's DedupeOptions::max_result_bytes of {}, so it was not kept",
                  absl::StatusCodeToString(status.code()), bytes, most));
  kept.outcome = outcome;
  return std::make_shared<const KeptResult>(std::move(kept));
}

std::shared_ptr<const KeptResult> NoRoom(const absl::Status& status, Outcome outcome) {
  KeptResult kept;
  kept.status = absl::ResourceExhaustedError(
      fmt::format("the call has run and ended with {}, but its result was not kept: the payloads "
                  "of calls that ran beside it took all of DedupeOptions::max_bytes",
                  absl::StatusCodeToString(status.code())));
  kept.outcome = outcome;
  return std::make_shared<const KeptResult>(std::move(kept));
}

Task<absl::StatusOr<std::optional<DedupeResult>>> AskStore(DedupeStore& store, RequestId id) {
  try {
    co_return co_await store.Lookup(id);
  } catch (...) {
    co_return absl::InternalError("it threw an exception");
  }
}

// The store cannot tell, so the handler does not run.
absl::Status Unknown(const absl::Status& why) {
  absl::Status status =
      Annotate(why, "the service's DedupeStore cannot tell whether the call has run before");
  status.SetPayload(kUnprovenPayloadUrl, absl::Cord());
  return status;
}

// A named call's fingerprint is the CRC32C of its request and its payload, unless an interceptor
// takes that. Continues it with the next slice of the payload, of which `done` bytes are in it;
// false if that was the last one.
bool ExtendFingerprint(const ServerBulk* bulk, uint32_t& fingerprint, size_t& done) {
  if (bulk == nullptr) return false;
  const BufferView payload = bulk->request().payload();
  if (payload.size() <= done) return false;
  const size_t bytes = std::min(kChecksumSliceBytes, payload.size() - done);
  fingerprint = ExtendCrc32c(fingerprint, payload.data() + done, bytes);
  done += bytes;
  return done < payload.size();
}

// The outcome of a call whose `result` is kept, if the call fails: a good result has not arrived
// then, and comes with the next attempt.
Outcome OutcomeOfFailure(const absl::Status& result, Outcome outcome) {
  return result.ok() ? Outcome::kMaybeExecuted : outcome;
}

// Whether a failure may pass, as clients retry it.
bool MayPass(absl::StatusCode code) {
  return code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kResourceExhausted ||
         code == absl::StatusCode::kAborted;
}

// The answer to a call whose result is there, into its messages and its response.
Task<absl::Status> AnswerWith(NamedCall call, const KeptResult& result) {
  call.parts.carried.once().outcome = OutcomeOfFailure(result.status, result.outcome);
  // Metadata that this link's frames do not take is left out.
  for (const auto& [key, value] : result.trailing) {
    (void)call.context.AddTrailingMetadata(key, value);
  }
  VERBENA_CO_RETURN_IF_ERROR(result.status);
  if (!call.messages.reply().ParsePartialFromString(result.reply)) {
    co_return absl::InternalError(
        fmt::format("the stored result of {} bytes does not parse as {}, the reply of {}",
                    result.reply.size(), TypeNameOf(call.messages.reply()), call.method_name()));
  }
  if (!result.payload.has_value()) co_return absl::OkStatus();
  if (result.payload->empty()) {
    call.context.SetResponsePayload(Payload::Empty());
    co_return absl::OkStatus();
  }
  VERBENA_CO_ASSIGN_OR_RETURN(Buffer payload,
                              co_await call.context.AllocateBuffer(result.payload->size()));
  std::memcpy(payload.data(), result.payload->data(), result.payload->size());
  call.context.SetResponsePayload(std::move(payload));
  co_return absl::OkStatus();
}

// The table's entry of a call while its handler, or a question to the store, runs.
//
// Lives in RunOnce()'s frame. An interceptor owns the Task of next(), and may destroy it: then
// nobody would ever end the entry, and all requests that repeat the call would wait for it.
class NamedRun {
 public:
  explicit NamedRun(const NamedCall& call) : call_(call) {
    call_.parts.carried.once().outlives_link = true;
  }
  NamedRun(const NamedRun&) = delete;
  NamedRun& operator=(const NamedRun&) = delete;
  ~NamedRun() {
    if (runs_) Abandon();
  }

  Task<absl::Status> RunHandler();
  Task<absl::Status> AnswerFromStore(absl::StatusOr<std::optional<DedupeResult>> stored);

 private:
  void End(const std::shared_ptr<const KeptResult>& result);
  // The same for a handler that was destroyed before it ended.
  void Abandon();
  std::shared_ptr<const KeptResult> ResultOf(const absl::Status& status, Outcome outcome);
  // The handler's failure may pass, but is the result of all attempts: says so once for a method.
  void WarnOfKept(const absl::Status& failure) const;

  const NamedCall call_;
  bool runs_ = true;
};

// A result goes to the table also after the link is lost, since the client may come back for it.
Task<absl::Status> NamedRun::RunHandler() {
  CarriedContext::Once& once = call_.parts.carried.once();
  once.trailing_before = call_.parts.carried.trailing().size();
  absl::Status status;
  Outcome outcome = Outcome::kExecuted;
  try {
    Task<absl::Status> handler = call_.entry.method->invoke(
        *call_.entry.service, call_.context, call_.messages.request(), call_.messages.reply());
    if (handler) {
      status = co_await std::move(handler);
    } else {
      status = NoTask(call_.method_name());
    }
  } catch (...) {
    status = call_.parts.state.Thrown(call_.method_name());
    outcome = Outcome::kMaybeExecuted;
  }
  outcome = ContextAccess::OutcomeGiven(call_.context, status).value_or(outcome);
  if (outcome == Outcome::kExecuted && MayPass(status.code())) WarnOfKept(status);
  End(ResultOf(status, outcome));
  once.outcome = OutcomeOfFailure(status, outcome);
  co_return status;
}

void NamedRun::WarnOfKept(const absl::Status& failure) const {
  const MethodDescriptor& method = *call_.entry.method->descriptor;
  if (!call_.parts.state.limits().dedupe->FirstKeptOf(method.id)) return;
  VERBENA_LOG_LINE(
      kServer, kWarning,
      fmt::format("the handler of {} ended with {}, which may pass, but is the kept result of its "
                  "deduplicated call: no further attempt will run it. If it has changed nothing, "
                  "it should return ServerContext::NotExecuted(status). Said once for this method",
                  method.full_name, absl::StatusCodeToString(failure.code())),
      {{"method", method.full_name}});
}

// Requests that wait for the result get it now, or when the last change of a file has ended that
// the run has left. The rest of the call concerns its own caller only.
void NamedRun::End(const std::shared_ptr<const KeptResult>& result) {
  runs_ = false;
  call_.parts.EndNamedRun(result);
  CarriedContext::Once& once = call_.parts.carried.once();
  once.outlives_link = false;
  // Nobody would answer if the response asked for a landing.
  if (once.given_up) {
    call_.cancel.Request(absl::StatusCode::kCancelled);
  }
}

void NamedRun::Abandon() {
  CarriedContext::Once& once = call_.parts.carried.once();
  DedupeTable& table = *call_.parts.state.limits().dedupe;
  table.ReturnUnfinished(std::exchange(once.written, {}).size());
  KeptResult kept;
  kept.status = absl::AbortedError(fmt::format(
      "an interceptor destroyed the handler of {} before it had ended", call_.method_name()));
  kept.outcome = Outcome::kMaybeExecuted;
  // As of a handler that cannot tell.
  kept.is_final = table.store() == nullptr;
  once.outcome = kept.outcome;
  End(std::make_shared<const KeptResult>(std::move(kept)));
}

Task<absl::Status> NamedRun::AnswerFromStore(absl::StatusOr<std::optional<DedupeResult>> stored) {
  auto result = std::make_shared<KeptResult>();
  if (stored.ok()) {
    result->reply = std::move((*stored)->reply);
    result->payload = std::move((*stored)->payload);
  } else {
    result->status = Unknown(stored.status());
    result->outcome = Outcome::kMaybeExecuted;
    result->is_final = false;
  }
  End(result);
  co_return co_await AnswerWith(call_, *result);
}

std::shared_ptr<const KeptResult> NamedRun::ResultOf(const absl::Status& status, Outcome outcome) {
  CarriedContext::Once& once = call_.parts.carried.once();
  const ServerBulk* bulk = call_.parts.bulk.get();
  const bool has_payload = bulk != nullptr && bulk->response().has_payload() && status.ok();
  KeptResult kept;
  kept.status = status;
  kept.outcome = outcome;
  DedupeTable& table = *call_.parts.state.limits().dedupe;
  // A store may know, when the call is repeated, what the handler left open: it says that it cannot
  // tell, or it threw.
  const bool is_open = outcome == Outcome::kMaybeExecuted && table.store() != nullptr;
  kept.is_final = outcome != Outcome::kNotExecuted && !is_open;
  size_t index = 0;
  for (const auto& [key, value] : call_.parts.carried.trailing()) {
    if (index++ >= once.trailing_before) kept.trailing.Add(key, value);
  }
  table.ReturnUnfinished(once.written.size());
  const size_t most = table.max_result_bytes();
  size_t bytes = kept.bytes();
  if (status.ok()) bytes += call_.messages.reply().ByteSizeLong();
  if (has_payload) bytes += once.written_bytes + bulk->response().payload().size();
  if (bytes > most) return TooLarge(status, outcome, bytes, most);
  if (has_payload && once.lacks_room) return NoRoom(status, outcome);
  if (status.ok()) kept.reply = PartialBytesOf(call_.messages.reply());
  if (has_payload) {
    std::string& payload = kept.payload.emplace(std::move(once.written));
    for (size_t i = 0; i < bulk->response().payload().part_count(); ++i) {
      const BufferView part = bulk->response().payload().part(i);
      if (!part.empty()) payload.append(part.data(), part.size());
    }
  }
  return std::make_shared<const KeptResult>(std::move(kept));
}

}  // namespace

Task<absl::Status> RunOnce(NamedCall call) {
  CarriedContext& carried = call.parts.carried;
  ServerState& state = call.parts.state;
  uint32_t fingerprint = FingerprintOf(call.messages.request());
  size_t done = 0;
  while (ExtendFingerprint(call.parts.bulk.get(), fingerprint, done)) {
    if (const absl::Status status = co_await Yield(); !status.ok()) {
      carried.once().outcome = Outcome::kNotExecuted;
      co_return state.UnlessLeft(status, call.cancel);
    }
  }
  const ServerClient& client = call.parts.link->client();
  DedupeTable& table = *state.limits().dedupe;
  // A call with a higher number may have come after this request, and be forgotten by now.
  if (SaturatingAdd(carried.came(), table.keep_for()) < state.executor().now()) {
    carried.ForgetHighest();
  }
  const DedupeName name = *carried.name();
  const DedupeClaim claim = table.Begin({.name = name,
                                         .runtime = client.identity().runtime,
                                         .source = client.identity().source,
                                         .method = call.entry.method->descriptor->id,
                                         .fingerprint = fingerprint},
                                        state.executor());
  using enum DedupeClaim::Verdict;
  switch (claim.verdict) {
    case kRefused:
      carried.once().outcome = claim.outcome;
      co_return claim.refusal;
    case kKept:
      co_return co_await AnswerWith(call, *claim.result);
    case kWait:
      carried.once().outcome = Outcome::kMaybeExecuted;
      VERBENA_CO_RETURN_IF_ERROR(co_await claim.waiter->told().Wait());
      co_return co_await AnswerWith(call, claim.waiter->result());
    case kRun:
    case kLookUp:
      break;
  }
  NamedRun run(call);
  if (claim.verdict == kLookUp) {
    absl::StatusOr<std::optional<DedupeResult>> stored = co_await AskStore(*table.store(), name.id);
    if (!stored.ok() || stored->has_value()) {
      co_return co_await run.AnswerFromStore(std::move(stored));
    }
  }
  co_return co_await run.RunHandler();
}

}  // namespace verbena::internal
