// The part of a ServerCall for deduplicated calls: the handler runs for the first request with a
// name, and further requests get its result.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "fmt/format.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "verbena/rpc/annotate.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/rpc/dedupe.h"
#include "verbena/rpc/server/dedupe_table.h"
#include "verbena/rpc/server/server_call.h"
#include "verbena/rpc/server/server_session.h"
#include "verbena/rpc/server/server_shard.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/memory/crc32c.h"

namespace verbena::internal {
namespace {

using google::protobuf::MessageLite;

// Equal messages have equal bytes, also if they have maps.
std::string DeterministicBytes(const MessageLite& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
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

}  // namespace

uint32_t ServerCall::Fingerprint() const {
  const std::string message = DeterministicBytes(messages_.request());
  uint32_t crc = ExtendCrc32c(0, message.data(), message.size());
  const ServerBulk* bulk = bulk_.get();
  if (bulk == nullptr || bulk->request().payload_bytes() == 0) return crc;
  const BufferView payload = bulk->request().payload();
  return ExtendCrc32c(crc, payload.data(), payload.size());
}

Task<absl::Status> ServerCall::RunOnce() {
  const DedupeName name = *carried_.name();
  const ServerClient& client = session_->client();
  DedupeTable& table = *shard_.limits().dedupe;
  const DedupeClaim claim = table.Begin({.name = name,
                                         .runtime = client.identity().runtime,
                                         .source = client.identity().source,
                                         .method = entry_.method->descriptor->id,
                                         .fingerprint = Fingerprint()},
                                        shard_.executor());
  using enum DedupeClaim::Verdict;
  switch (claim.verdict) {
    case kRefused:
      carried_.once().outcome = claim.outcome;
      co_return claim.refusal;
    case kKept:
      co_return co_await AnswerWith(*claim.result);
    case kWait:
      carried_.once().outcome = Outcome::kMaybeExecuted;
      VERBENA_CO_RETURN_IF_ERROR(co_await claim.waiter->told().Wait());
      co_return co_await AnswerWith(claim.waiter->result());
    case kRun:
      break;
    case kLookUp: {
      carried_.once().outlives_link = true;
      absl::StatusOr<std::optional<DedupeResult>> stored =
          co_await AskStore(*table.store(), name.id);
      if (!stored.ok() || stored->has_value()) {
        co_return co_await AnswerFromStore(name.id, std::move(stored));
      }
    }
  }
  co_return co_await RunNamed(name.id);
}

// A result goes to the table also after the link is lost, since the client may come back for it.
Task<absl::Status> ServerCall::RunNamed(RequestId id) {
  CarriedContext::Once& once = carried_.once();
  once.outlives_link = true;
  once.trailing_before = carried_.trailing().size();
  absl::Status status;
  Outcome outcome = Outcome::kExecuted;
  try {
    Task<absl::Status> handler =
        entry_.method->invoke(*entry_.service, *context_, messages_.request(), messages_.reply());
    status = handler ? co_await std::move(handler) : NoTask();
  } catch (...) {
    status = Thrown();
    outcome = Outcome::kMaybeExecuted;
  }
  outcome = context_->OutcomeGiven(status).value_or(outcome);
  EndNamed(id, ResultOf(status, outcome));
  once.outcome = outcome;
  co_return status;
}

// Whoever waits for the result has it. What is left of the call is for its own caller alone.
void ServerCall::EndNamed(RequestId id, const std::shared_ptr<const KeptResult>& result) {
  shard_.limits().dedupe->End(id, result, shard_.executor());
  CarriedContext::Once& once = carried_.once();
  once.outlives_link = false;
  // Nobody would answer if the response asked for a landing.
  if (once.given_up) {
    cancel_->Request(absl::StatusCode::kCancelled);
  }
}

Task<absl::Status> ServerCall::AnswerFromStore(RequestId id,
                                               absl::StatusOr<std::optional<DedupeResult>> stored) {
  auto result = std::make_shared<KeptResult>();
  if (stored.ok()) {
    result->reply = std::move((*stored)->reply);
    result->payload = std::move((*stored)->payload);
  } else {
    result->status = Unknown(stored.status());
    result->outcome = Outcome::kMaybeExecuted;
    result->is_final = false;
  }
  EndNamed(id, result);
  co_return co_await AnswerWith(*result);
}

std::shared_ptr<const KeptResult> ServerCall::ResultOf(const absl::Status& status,
                                                       Outcome outcome) {
  CarriedContext::Once& once = carried_.once();
  const ServerBulk* bulk = bulk_.get();
  const bool has_payload = bulk != nullptr && bulk->response().has_payload() && status.ok();
  KeptResult kept;
  kept.status = status;
  kept.outcome = outcome;
  DedupeTable& table = *shard_.limits().dedupe;
  // A store may know, when the call is repeated, what the handler left open.
  const bool is_open =
      context_->OutcomeGiven(status) == Outcome::kMaybeExecuted && table.store() != nullptr;
  kept.is_final = outcome != Outcome::kNotExecuted && !is_open;
  size_t index = 0;
  for (const auto& [key, value] : carried_.trailing()) {
    if (index++ >= once.trailing_before) kept.trailing.Add(key, value);
  }
  table.ReturnUnfinished(once.written.size());
  const size_t most = table.max_result_bytes();
  size_t bytes = kept.bytes();
  if (status.ok()) bytes += messages_.reply().ByteSizeLong();
  if (has_payload) bytes += once.written_bytes + bulk->response().payload().size();
  if (bytes > most) return TooLarge(status, outcome, bytes, most);
  if (has_payload && once.lacks_room) return NoRoom(status, outcome);
  if (status.ok()) messages_.reply().SerializeToString(&kept.reply);
  if (has_payload) {
    std::string& payload = kept.payload.emplace(std::move(once.written));
    for (size_t i = 0; i < bulk->response().payload().part_count(); ++i) {
      const BufferView part = bulk->response().payload().part(i);
      if (!part.empty()) payload.append(part.data(), part.size());
    }
  }
  return std::make_shared<const KeptResult>(std::move(kept));
}

Task<absl::Status> ServerCall::AnswerWith(const KeptResult& result) {
  carried_.once().outcome = result.outcome;
  // Metadata that this link's frames do not take is left out.
  for (const auto& [key, value] : result.trailing) {
    (void)context_->AddTrailingMetadata(key, value);
  }
  VERBENA_CO_RETURN_IF_ERROR(result.status);
  if (!messages_.reply().ParseFromString(result.reply)) {
    co_return absl::InternalError(
        fmt::format("the stored result of {} bytes does not parse as {}, the reply of {}",
                    result.reply.size(), messages_.reply().GetTypeName(), method_name()));
  }
  if (!result.payload.has_value()) co_return absl::OkStatus();
  if (result.payload->empty()) {
    context_->SetResponsePayload(Payload::Empty());
    co_return absl::OkStatus();
  }
  VERBENA_CO_ASSIGN_OR_RETURN(Buffer payload,
                              co_await context_->AllocateBuffer(result.payload->size()));
  std::memcpy(payload.data(), result.payload->data(), result.payload->size());
  context_->SetResponsePayload(std::move(payload));
  co_return absl::OkStatus();
}

Task<absl::Status> ServerCall::WriteKept(BufferView part) {
  absl::Status written = co_await Bulk().response().Write(part);
  const Link* link = session_->link();
  // Whoever repeats the call gets the payload over another link.
  const bool lost = link == nullptr || !link->open();
  if (!lost) VERBENA_CO_RETURN_IF_ERROR(written);
  CarriedContext::Once& once = carried_.once();
  once.written_bytes += part.size();
  DedupeTable& table = *shard_.limits().dedupe;
  // Nobody gives back what is taken once the handler has ended.
  const bool may_be_kept =
      once.outlives_link && !once.lacks_room && once.written_bytes <= table.max_result_bytes();
  if (!may_be_kept) co_return absl::OkStatus();
  if (table.TakeUnfinished(part.size())) {
    once.written.append(part.data(), part.size());
  } else {
    once.lacks_room = true;
  }
  co_return absl::OkStatus();
}

}  // namespace verbena::internal
