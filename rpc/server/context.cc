#include "verbena/rpc/server/context.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "fmt/format.h"
#include "verbena/rpc/call/lending.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/rpc/server/clients.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena::internal {

StreamReceiver& StreamOf::Receiver(ServerContext& context) {
  return context.parts_.stream.get()->receiver();
}

StreamSender& StreamOf::Sender(ServerContext& context) {
  return context.parts_.stream.get()->sender();
}

}  // namespace verbena::internal

namespace verbena {
namespace {

// Debian's Abseil does not export the constructor from a temporary string.
absl::Cord MarkOf(uint64_t number, Outcome outcome) {
  const std::string mark = fmt::format("{} {}", number, OutcomeName(outcome));
  return absl::Cord(mark);
}

}  // namespace

namespace internal {

std::optional<Outcome> ContextAccess::OutcomeGiven(const ServerContext& context,
                                                   const absl::Status& status) {
  if (status.ok() || context.mark_ == 0) return std::nullopt;
  const auto mark = status.GetPayload(kRefusalPayloadUrl);
  for (const Outcome outcome : {Outcome::kNotExecuted, Outcome::kMaybeExecuted}) {
    if (mark == MarkOf(context.mark_, outcome)) return outcome;
  }
  return std::nullopt;
}

}  // namespace internal

absl::Status ServerContext::NotExecuted(absl::Status status) {
  return Marked(std::move(status), Outcome::kNotExecuted);
}

absl::Status ServerContext::MaybeExecuted(absl::Status status) {
  return Marked(std::move(status), Outcome::kMaybeExecuted);
}

// The mark in the Status is this call's own. So it tells what this handler says from an error that
// the handler meets later, also from one that says of another call that it was not executed.
absl::Status ServerContext::Marked(absl::Status status, Outcome outcome) {
  if (status.ok()) return status;
  static std::atomic<uint64_t> last_mark{0};
  status = WithOutcome(std::move(status), outcome);
  if (mark_ == 0) mark_ = last_mark.fetch_add(1, std::memory_order_relaxed) + 1;
  status.SetPayload(internal::kRefusalPayloadUrl, MarkOf(mark_, outcome));
  return status;
}

bool ServerContext::shutting_down() const { return parts_.state.shutdown_begins().is_set(); }

Task<absl::Status> ServerContext::ShutdownBegins() {
  co_return co_await parts_.state.shutdown_begins().Wait();
}

const Metadata& ServerContext::metadata() const {
  static const Metadata* const none = new Metadata();
  const internal::CallContext* context = parts_.carried.incoming();
  return context != nullptr ? context->metadata : *none;
}

Priority ServerContext::priority() const {
  const internal::CallContext* context = parts_.carried.incoming();
  return context != nullptr ? context->priority : Priority::kNormal;
}

std::optional<RequestId> ServerContext::request_id() const {
  const internal::CallContext* context = parts_.carried.incoming();
  return context != nullptr ? context->request_id : std::nullopt;
}

std::optional<RequestId> ServerContext::dedupe_id() const {
  const internal::DedupeName* name = parts_.carried.name();
  return name != nullptr ? std::optional(name->id) : std::nullopt;
}

uint64_t ServerContext::dedupe_acknowledged_below() const {
  const internal::DedupeName* name = parts_.carried.name();
  return name != nullptr ? name->acknowledged_below : 0;
}

uint64_t ServerContext::dedupe_highest() const {
  const internal::DedupeName* name = parts_.carried.name();
  return name != nullptr ? name->highest : 0;
}

absl::Status ServerContext::AddTrailingMetadata(std::string_view key, std::string_view value) {
  VERBENA_RETURN_IF_ERROR(Metadata::CheckEntry(key, value));
  const internal::Link* link = parts_.link->link();
  size_t most = parts_.state.limits().max_metadata_bytes;
  // The other half is for the reply's headers, or for a failure's text.
  if (link != nullptr) most = std::min(most, link->max_body_bytes() / 2);
  if (const internal::ServerBulk* bulk = parts_.bulk.get();
      bulk != nullptr && bulk->room_in_frame() > 0 && link != nullptr) {
    // The payload comes in the same frame.
    most = std::min(most, link->max_body_bytes() - bulk->room_in_frame() -
                              internal::ResponseBulk::kEncodedBytes);
    most -= std::min(most, internal::kContextHeaderBytes);
  }
  Metadata& trailing = parts_.carried.trailing();
  const size_t bytes = trailing.bytes() + Metadata::kEntryBytes + key.size() + value.size();
  if (bytes > most) {
    return absl::ResourceExhaustedError(
        fmt::format("the metadata key \"{}\" makes {} bytes of trailing metadata, of which a "
                    "response takes {}: at most ServerOptions::max_metadata_bytes, and half of a "
                    "frame (LinkLimits::eager_bytes)",
                    key, bytes, most));
  }
  trailing.Add(key, value);
  return absl::OkStatus();
}

const Metadata& ServerContext::trailing_metadata() const { return parts_.carried.trailing(); }

size_t ServerContext::request_payload_bytes() const {
  const internal::ServerBulk* bulk = parts_.bulk.get();
  return bulk != nullptr ? bulk->request().payload_bytes() : 0;
}

bool ServerContext::has_request_payload() const {
  const internal::ServerBulk* bulk = parts_.bulk.get();
  return bulk != nullptr && bulk->request().has_payload();
}

Buffer ServerContext::TakeRequestPayload() {
  internal::ServerBulk* bulk = parts_.bulk.get();
  return bulk != nullptr ? bulk->request().TakePayload() : Buffer();
}

Task<absl::StatusOr<Buffer>> ServerContext::AllocateBuffer(size_t bytes) {
  const internal::Link* link = parts_.link->link();
  const internal::Endpoint* endpoint = link != nullptr ? &link->endpoint() : nullptr;
  // The result of a deduplicated call is kept, payload included, for whoever repeats it.
  if (endpoint == nullptr && parts_.carried.outlives_link()) {
    endpoint = parts_.state.AnyEndpoint();
  }
  if (endpoint == nullptr) co_return absl::UnavailableError("the caller's link was lost");
  co_return co_await internal::AllocateResponse(parts_.link->client(), *endpoint, bytes,
                                                parts_.state.SendWait(parts_.deadline));
}

std::string ServerContext::device_name() const {
  const internal::Link* link = parts_.link->link();
  return link == nullptr ? "" : link->endpoint().device_name();
}

void ServerContext::SetResponsePayload(Payload payload) {
  parts_.Bulk().response().SetPayload(std::move(payload));
}

size_t ServerContext::response_payload_room() const {
  const internal::ServerBulk* bulk = parts_.bulk.get();
  return bulk != nullptr ? bulk->response().room() : 0;
}

Task<absl::Status> ServerContext::WriteResponsePayload(BufferView part) {
  if (parts_.carried.outlives_link()) [[unlikely]]
    return parts_.WriteKept(part);
  return parts_.Bulk().response().Write(part);
}

absl::StatusOr<RemoteMemory> ServerContext::Remote(const RemoteMemoryHandle& handle) {
  internal::Link* link = parts_.link->link();
  if (link == nullptr) return absl::UnavailableError("the caller's link was lost");
  return internal::Lending::Remote(*link, handle);
}

Task<absl::StatusOr<Loan>> ServerContext::Lend(BufferView view, LeaseAccess access) {
  internal::Link* link = parts_.link->link();
  if (link == nullptr) co_return absl::UnavailableError("the caller's link was lost");
  co_return co_await internal::Lending::Lend(*link, view, access, parts_.deadline);
}

}  // namespace verbena
