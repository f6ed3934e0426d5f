#include "verbena/rpc/server/payload.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "fmt/format.h"
#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/call/method_shape.h"
#include "verbena/rpc/call/sizes.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/server/clients.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/one_sided_awaits.h"
#include "verbena/transport/link/transfers.h"

namespace verbena::internal {
namespace {

RemoteRange Within(const RemoteRange& range, uint64_t offset, uint64_t bytes) {
  return {.address = range.address + offset, .bytes = bytes, .rkey = range.rkey};
}

}  // namespace

absl::StatusOr<Link*> ServedCall::OpenLink() const {
  Link* link = call_link->link();
  if (link == nullptr || !link->open()) return absl::UnavailableError("the link was lost");
  return link;
}

absl::Status CheckRequestSize(const RequestBulk& request, size_t context_bytes,
                              const LinkLimits& limits) {
  VERBENA_RETURN_IF_ERROR(
      CheckPayloadSize("a request's payload", request.payload_bytes, "server", limits));
  // A block that is longer than what it lies in is refused before.
  const uint64_t message = request.message_bytes - context_bytes;
  VERBENA_RETURN_IF_ERROR(CheckMessageSize("a request", message, "server", limits));
  return CheckTogether("a request", request.message_bytes, request.payload_bytes);
}

void FetchedRequest::Begin(UsedGrant landing, const char* in_frame) {
  hold_ = std::move(landing.hold);
  const RequestBulk& header = call_.header;
  // A call that has neither payload nor message here may begin after the link is lost.
  if (header.payload_bytes + header.message_bytes == 0) return;
  checked_ = call_.call_link->link()->checks_payloads();
  if (header.payload_in_frame) TakeFromFrame(in_frame);
  if (!landing.buffer) return;
  memory_ = std::move(landing.buffer);
  memory_.set_size(header.payload_bytes);
  lease_ = landing.lease;
  call_.call_link->link()->EndLease(*lease_, this);
}

void FetchedRequest::Clear() {
  ReturnHold();
  if (lease_ != nullptr) LeaseTable::Forget(*std::exchange(lease_, nullptr));
  lease_over_.Reset();
  checked_ = earns_landing_ = false;
  context_bytes_ = 0;
  memory_.Reset();
  if (!unplaced_.empty()) unplaced_ = std::string();
}

void FetchedRequest::TakeFromFrame(const char* bytes) {
  const size_t size = call_.header.payload_bytes;
  const Endpoint& endpoint = call_.call_link->link()->endpoint();
  hold_ = QuotaHold(call_.call_link->client().requests(), size);
  if (size <= endpoint.limits().max_payload_bytes && hold_.TryTake()) {
    absl::StatusOr<Buffer> memory = endpoint.memory().receive().TryAllocate(size);
    if (memory.ok()) {
      memory_ = *std::move(memory);
      std::memcpy(memory_.data(), bytes, size);
      return;
    }
    hold_.Give();
  }
  unplaced_.assign(bytes, size);
}

// The handler sees no memory that the client may still write to.
void FetchedRequest::OnLeaseEnded(const Lease&) {
  earns_landing_ = true;
  lease_ = nullptr;
  lease_over_.Set();
}

// The landing's memory returns to its pool by itself once the device is done with it.
void FetchedRequest::OnLeaseLost(const Lease& lease) {
  ReturnHold();
  OnLeaseEnded(lease);
  earns_landing_ = false;
}

absl::Status FetchedRequest::Check(const MethodDescriptor& method) const {
  const RequestBulk& header = call_.header;
  if (header.has_payload && !method.request_payload()) {
    return absl::UnimplementedError(
        fmt::format("the requests of {} have payloads at the client and none at the server; {}",
                    method.full_name, kFitProtos));
  }
  if (header.payload_bytes + header.message_bytes == 0) return absl::OkStatus();
  const Link& link = *call_.call_link->link();
  return CheckRequestSize(header, context_bytes_, link.endpoint().limits());
}

Task<absl::Status> FetchedRequest::Fetch() {
  if (lease_ != nullptr) VERBENA_CO_RETURN_IF_ERROR(co_await lease_over_.Wait());
  if (call_.header.source_count > 0) VERBENA_CO_RETURN_IF_ERROR(co_await Read());
  if (!unplaced_.empty()) VERBENA_CO_RETURN_IF_ERROR(co_await Place());
  VERBENA_CO_RETURN_IF_ERROR(call_.OpenLink().status());
  earns_landing_ = !call_.header.payload_in_frame;
  if (!checked_) co_return absl::OkStatus();
  uint32_t arrived = 0;
  for (size_t done = 0; done < memory_.size(); done += kChecksumSliceBytes) {
    if (done > 0) VERBENA_CO_RETURN_IF_ERROR(co_await Yield());
    const size_t bytes = std::min(kChecksumSliceBytes, memory_.size() - done);
    arrived = ExtendChecksum(arrived, memory_.Slice(done, bytes));
  }
  if (arrived == call_.header.checksum) co_return absl::OkStatus();
  co_return absl::DataLossError(
      fmt::format("the request's payload arrived with the checksum {:#010x} instead of {:#010x}",
                  arrived, call_.header.checksum));
}

Task<absl::Status> FetchedRequest::Read() {
  VERBENA_CO_ASSIGN_OR_RETURN(Link * link, call_.OpenLink());
  const uint64_t bytes = call_.header.payload_bytes + call_.header.message_bytes;
  if (link->max_reads() == 0) {
    earns_landing_ = true;
    co_return absl::UnimplementedError(fmt::format(
        "{} does not READ, which payloads of requests need", link->endpoint().device_name()));
  }
  VERBENA_CO_RETURN_IF_ERROR(co_await AllocateMemory(*link, bytes));
  // Not cut short: the client takes the response as the proof that nothing is read any more.
  CancelScope shield;
  call_.state->receive_holders().transfers += bytes;
  absl::Status status = co_await ReadSources().In(&shield);
  VERBENA_CHECK(call_.state->receive_holders().transfers >= bytes) << bytes;
  call_.state->receive_holders().transfers -= bytes;
  co_return status;
}

Task<absl::Status> FetchedRequest::Place() {
  VERBENA_CO_ASSIGN_OR_RETURN(Link * link, call_.OpenLink());
  VERBENA_CO_RETURN_IF_ERROR(co_await AllocateMemory(*link, call_.header.payload_bytes));
  std::memcpy(memory_.data(), unplaced_.data(), unplaced_.size());
  unplaced_ = std::string();
  co_return absl::OkStatus();
}

Task<absl::Status> FetchedRequest::AllocateMemory(Link& link, uint64_t bytes) {
  const Endpoint& endpoint = link.endpoint();
  CallLink& call_link = *call_.call_link;
  hold_ = QuotaHold(call_link.client().requests(), bytes);
  VERBENA_CO_ASSIGN_OR_RETURN(
      memory_, co_await AllocateWithin(hold_, endpoint, endpoint.memory().receive(), bytes,
                                       call_.state->ReceiveWait(call_.deadline, call_link)));
  co_return absl::OkStatus();
}

Task<absl::Status> FetchedRequest::ReadSources() {
  size_t offset = 0;
  for (uint32_t i = 0; i < call_.header.source_count; ++i) {
    const RemoteRange& source = call_.header.sources[i];
    // After every wait the link may be gone.
    VERBENA_CO_ASSIGN_OR_RETURN(Link * link, call_.OpenLink());
    VERBENA_CO_RETURN_IF_ERROR(co_await TransferAwaiter(
        *link, Transfer::Direction::kRead, memory_.Slice(offset, source.bytes), source));
    offset += source.bytes;
  }
  co_return absl::OkStatus();
}

Buffer FetchedRequest::TakePayload() {
  if (!memory_) return {};
  memory_.set_size(call_.header.payload_bytes);
  // The handler may keep it beyond the call.
  if (hold_) {
    memory_.HoldUntilFree(std::move(hold_), call_.call_link->client().shared_from_this());
  }
  return std::move(memory_);
}

void FetchedRequest::Drop() {
  ReturnHold();
  memory_.Reset();
}

void FetchedRequest::ReturnHold() {
  if (lease_ == nullptr) {
    hold_.Give();
  } else if (hold_) {
    ReturnWithMemory(std::move(memory_), std::move(hold_), call_.call_link->client(), nullptr);
  }
}

void AskedLanding::Ask(Link& link, const LandingRequest& wanted) {
  wanted_ = wanted;
  awaited_ = true;
  body_bytes = LandingRequest::kEncodedBytes;
  if (char* body = link.Append(LandingNeededFrame(call_.id), body_bytes)) {
    wanted_.Encode(body);
  } else {
    link.AwaitWritable(*this);
  }
}

Task<absl::Status> AskedLanding::Arrival() { co_return co_await arrived_.Wait(); }

absl::Status AskedLanding::OnLanding(const RemoteRange& landing) {
  // A landing for a call that was cancelled meanwhile is late.
  if (!awaited_) return absl::OkStatus();
  if (landing.bytes != wanted_.payload_bytes + wanted_.message_bytes) {
    return absl::InvalidArgumentError(fmt::format("a landing of {} bytes, where {} were asked for",
                                                  landing.bytes,
                                                  wanted_.payload_bytes + wanted_.message_bytes));
  }
  awaited_ = false;
  range_ = landing;
  arrived_.Set();
  return absl::OkStatus();
}

void AskedLanding::Clear() {
  SendWaiter::Unlink();
  awaited_ = false;
  range_ = {};
  arrived_.Reset();
}

void AskedLanding::OnWritable(Link& link) {
  wanted_.Encode(link.Append(LandingNeededFrame(call_.id), body_bytes));
}

void WrittenResponse::Clear() {
  asked_.Clear();
  ForgetWrites();
  VERBENA_CHECK(call_.state->send_holders().transfers >= writing_) << writing_;
  call_.state->send_holders().transfers -= std::exchange(writing_, 0);
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
  VERBENA_RETURN_IF_ERROR(
      CheckPayloadSize("a response payload", payload_bytes_, "server", link->endpoint().limits()));
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
    VERBENA_RETURN_IF_ERROR(
        CheckMessageSize("a reply", reply_bytes, "server", link->endpoint().limits()));
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
  VERBENA_RETURN_IF_ERROR(
      CheckMessageSize("a failure's Status", body_bytes, "server", link->endpoint().limits()));
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

Task<absl::Status> WrittenResponse::AskForLanding(const MessageLite& reply) {
  VERBENA_CO_ASSIGN_OR_RETURN(Link * link, call_.OpenLink());
  if (message_bytes_ > 0) {
    VERBENA_CO_ASSIGN_OR_RETURN(
        message_, co_await AllocateResponse(call_.call_link->client(), link->endpoint(),
                                            message_bytes_, call_.state->SendWait(call_.deadline),
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
  call_.call_link->BeginWait();
  absl::Status arrived = co_await WithDeadline(asked_.Arrival(), kMaxLandingWait);
  call_.call_link->EndWait();
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
  call_.state->send_holders().transfers += writing_;
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

void ServerBulk::Begin(ServerState& state, CallLink& call_link, CallId id, TimePoint deadline,
                       const RequestBulk& header, UsedGrant landing, const char* in_frame) {
  call_.state = &state;
  call_.call_link = &call_link;
  call_.id = id;
  call_.deadline = deadline;
  call_.header = header;
  request_.Begin(std::move(landing), in_frame);
}

void ServerBulk::Clear() {
  response_.Clear();
  request_.Clear();
  RequestBulk& header = call_.header;
  header.source_count = 0;
  header.has_payload = header.payload_in_frame = header.room_in_frame = false;
  header.payload_bytes = header.message_bytes = 0;
  header.landing = {};
}

}  // namespace verbena::internal
