#include "verbena/rpc/server/written_response.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "fmt/format.h"
#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/call/bulk_checksum.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/rpc/server/server_session.h"
#include "verbena/rpc/server/server_shard.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/coro/deadline.h"
#include "verbena/transport/link/check_registered.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/transfer_awaiter.h"

namespace verbena::internal {
namespace {

RemoteRange Within(const RemoteRange& range, uint64_t offset, uint64_t bytes) {
  return {.address = range.address + offset, .bytes = bytes, .rkey = range.rkey};
}

}  // namespace

void WrittenResponse::Clear() {
  asked_.Clear();
  ForgetWrites();
  call_.shard->send_holders().transfers -= std::exchange(writing_, 0);
  payload_ = {};
  has_payload_ = in_frame_ = false;
  written_ = 0;
  staged_.clear();
  checksum_ = 0;
  payload_bytes_ = message_bytes_ = 0;
  asks_payload_ = false;
  message_.Reset();
}

absl::Status WrittenResponse::CheckMemory(const BufferView& view, const Link& link) const {
  return CheckRegistered(view, link.endpoint().pd(), link.endpoint().device());
}

Task<absl::Status> WrittenResponse::Write(BufferView part) {
  has_payload_ = true;
  if (part.empty()) co_return absl::OkStatus();
  if (part.size() > room()) {
    co_return absl::ResourceExhaustedError(
        fmt::format("a part of {} bytes behind {} of a payload; the caller made room for {} (see "
                    "response_payload_room())",
                    part.size(), written_, call_.header.landing.bytes));
  }
  VERBENA_CHECK(!writing_part_) << "WriteResponsePayload() is awaited before it is called again";
  writing_part_ = true;
  absl::Cleanup written = [this] { writing_part_ = false; };
  VERBENA_CO_ASSIGN_OR_RETURN(Link * link, call_.OpenLink());
  VERBENA_CO_RETURN_IF_ERROR(CheckMemory(part, *link));
  if (link->checks_payloads()) checksum_ = ExtendChecksum(checksum_, part);
  if (call_.header.room_in_frame) {
    staged_.append(part.data(), part.size());
  } else {
    VERBENA_CO_RETURN_IF_ERROR(
        co_await TransferAwaiter(*link, Transfer::Direction::kWrite, part,
                                 Within(call_.header.landing, written_, part.size())));
  }
  written_ += part.size();
  co_return absl::OkStatus();
}

absl::Status WrittenResponse::Plan(const MethodDescriptor& method, size_t reply_bytes,
                                   size_t context_bytes) {
  VERBENA_ASSIGN_OR_RETURN(Link * link, call_.OpenLink());
  payload_bytes_ = written_ + payload_.size();
  if (has_payload_ && (!method.response_payload() || method.streams != Streams::kNone)) {
    payload_bytes_ = 0;
    has_payload_ = false;
    if (method.streams != Streams::kNone) {
      return absl::InternalError(
          fmt::format("{} ended its stream with a payload: Write() takes the payloads of its "
                      "messages",
                      method.full_name));
    }
    return absl::InternalError(
        fmt::format("{} answered with a payload: declare option (verbena.method) = {{ "
                    "response_payload: true }} in its .proto",
                    method.full_name));
  }
  VERBENA_RETURN_IF_ERROR(CheckBulkLimit("a response payload", payload_bytes_, *link));
  for (size_t i = 0; i < payload_.part_count(); ++i) {
    if (payload_.part(i).empty()) continue;
    VERBENA_RETURN_IF_ERROR(CheckMemory(payload_.part(i), *link));
  }
  if (payload_bytes_ > call_.header.landing.bytes && call_.header.landing.bytes > 0) {
    return absl::ResourceExhaustedError(
        fmt::format("the response's payload takes {} bytes, but the caller made room for {}: raise "
                    "CallOptions::max_response_payload, or pass a larger response_payload_into",
                    payload_bytes_, call_.header.landing.bytes));
  }
  in_frame_ = FitsFrame(*link, context_bytes);
  asks_payload_ = !in_frame_ && payload_bytes_ > call_.header.landing.bytes;
  const size_t prefix = context_bytes + (has_payload_ ? prefix_bytes() : 0);
  if (prefix + reply_bytes > link->max_body_bytes()) {
    VERBENA_RETURN_IF_ERROR(CheckBulkLimit("a reply", reply_bytes, *link));
    message_bytes_ = reply_bytes;
  }
  return absl::OkStatus();
}

// The caller's room for a payload in a frame was checked when the request came, and the context
// leaves it (ServerContext::AddTrailingMetadata()).
bool WrittenResponse::FitsFrame(const Link& link, size_t context_bytes) const {
  if (payload_bytes_ == 0) return false;
  if (call_.header.room_in_frame) return true;
  return written_ == 0 && payload_bytes_ <= link.endpoint().limits().largest_payload_in_frame &&
         context_bytes + ResponseBulk::kEncodedBytes + payload_bytes_ <= link.max_body_bytes();
}

absl::Status WrittenResponse::PlanFailure(size_t body_bytes) {
  VERBENA_ASSIGN_OR_RETURN(Link * link, call_.OpenLink());
  VERBENA_RETURN_IF_ERROR(CheckBulkLimit("a failure's Status", body_bytes, *link));
  if (body_bytes > kMaxFailureBytes) {
    return absl::ResourceExhaustedError(fmt::format(
        "a failure's Status of {} bytes; at most {} travel", body_bytes, kMaxFailureBytes));
  }
  payload_ = {};
  has_payload_ = in_frame_ = asks_payload_ = false;
  staged_.clear();
  payload_bytes_ = written_ = 0;
  checksum_ = 0;
  message_bytes_ = body_bytes;
  return absl::OkStatus();
}

Task<absl::Status> WrittenResponse::AskForLanding(const google::protobuf::MessageLite& reply) {
  VERBENA_CO_ASSIGN_OR_RETURN(Link * link, call_.OpenLink());
  if (message_bytes_ > 0) {
    VERBENA_CO_ASSIGN_OR_RETURN(message_, co_await call_.session->client().responses().Allocate(
                                              link->endpoint(), message_bytes_,
                                              {.deadline = call_.deadline,
                                               .longest = call_.shard->limits().memory_wait,
                                               .holders = &call_.shard->send_holders()},
                                              call_.session->peer(), call_.shard->memory_refused(),
                                              payload_.empty() ? 0 : payload_.part_count()));
    // Others may have changed it while this waited.
    if (const size_t now = reply.ByteSizeLong(); now != message_bytes_) {
      co_return absl::InternalError(fmt::format(
          "the reply had {} bytes when its handler ended, and has {} now", message_bytes_, now));
    }
    reply.SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(message_.data()));
    VERBENA_CO_ASSIGN_OR_RETURN(link, call_.OpenLink());
  }
  asked_.Ask(*link, {.payload_bytes = asks_payload_ ? payload_bytes_ : 0,
                     .message_bytes = message_bytes_});
  call_.session->BeginWait();
  absl::Status arrived = co_await WithDeadline(asked_.Arrival(), kMaxLandingWait);
  call_.session->EndWait();
  asked_.StopWaiting();
  co_return arrived;
}

bool WrittenResponse::StartWrites(Link& link, TransferListener& listener) {
  if (link.checks_payloads()) {
    for (size_t i = 0; i < payload_.part_count(); ++i) {
      checksum_ = ExtendChecksum(checksum_, payload_.part(i));
    }
  }
  const uint64_t rest = in_frame_ ? 0 : payload_bytes_ - written_;
  if (rest + message_bytes_ == 0) return false;
  writing_ = rest + message_bytes_;
  call_.shard->send_holders().transfers += writing_;
  if (rest > 0) {
    absl::InlinedVector<BufferView, 8> views;
    for (size_t i = 0; i < payload_.part_count(); ++i) views.push_back(payload_.part(i));
    const RemoteRange to =
        Within(asks_payload_ ? asked_.range() : call_.header.landing, written_, rest);
    TransferListener* last = message_bytes_ == 0 ? &listener : nullptr;
    Transfer& write = link.StartTransfer(Transfer::Direction::kWrite, views, to, last);
    if (last != nullptr) last_write_ = &write;
  }
  if (message_bytes_ > 0) {
    if (link.checks_payloads()) checksum_ = ExtendChecksum(checksum_, message_.view());
    const BufferView view = message_.view();
    last_write_ = &link.StartTransfer(
        Transfer::Direction::kWrite, absl::MakeConstSpan(&view, 1),
        Within(asked_.range(), asked_.payload_bytes(), message_bytes_), &listener);
  }
  return true;
}

void WrittenResponse::ForgetWrites() {
  if (Transfer* transfer = std::exchange(last_write_, nullptr)) transfer->Abandon();
}

char* WrittenResponse::WriteTo(char* body) const {
  const ResponseBulk header{.has_payload = has_payload_,
                            .payload_bytes = payload_bytes_,
                            .message_bytes = message_bytes_,
                            .checksum = checksum_,
                            .payload_in_asked = asks_payload_,
                            .payload_in_frame = in_frame_};
  header.Encode(body);
  body += ResponseBulk::kEncodedBytes;
  if (!in_frame_) return body;
  body = std::copy(staged_.begin(), staged_.end(), body);
  for (size_t i = 0; i < payload_.part_count(); ++i) {
    const BufferView part = payload_.part(i);
    if (part.empty()) continue;
    std::memcpy(body, part.data(), part.size());
    body += part.size();
  }
  return body;
}

uint32_t WrittenResponse::FinalKey(const Link& link) const {
  if (!link.reports_invalidation()) return 0;
  const RequestBulk& header = call_.header;
  if (header.landing.bytes > 0 && !header.room_in_frame) return header.landing.rkey;
  if (asked_.range().bytes > 0) return asked_.range().rkey;
  return header.source_count > 0 ? header.sources[0].rkey : 0;
}

}  // namespace verbena::internal
