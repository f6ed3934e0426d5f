#include "verbena/rpc/server/server_bulk.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/container/inlined_vector.h"
#include "fmt/format.h"
#include "verbena/rpc/internal/allocate.h"
#include "verbena/rpc/internal/bulk_checksum.h"
#include "verbena/rpc/internal/call_step.h"
#include "verbena/rpc/internal/frames.h"
#include "verbena/rpc/internal/status_codec.h"
#include "verbena/rpc/server/granted_share.h"
#include "verbena/rpc/server/server_session.h"
#include "verbena/rpc/server/server_shard.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/deadline.h"
#include "verbena/transport/coro/status_macros.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/transfer_awaiter.h"
#include "verbena/transport/log/check.h"
#include "verbena/transport/log/mutant.h"
#include "verbena/transport/memory/memory_region.h"
#include "verbena/transport/memory/size_class.h"
#include "verbena/transport/onesided/check_registered.h"

namespace verbena::internal {
namespace {

using google::protobuf::MessageLite;

RemoteRange Within(const RemoteRange& range, uint64_t offset, uint64_t bytes) {
  return {.address = range.address + offset, .bytes = bytes, .rkey = range.rkey};
}

absl::Status CheckLimit(const char* what, uint64_t bytes, const Link& link) {
  const uint64_t limit = link.endpoint().limits().max_payload_bytes;
  if (bytes <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      fmt::format("{} of {} bytes is over this server's LinkLimits::max_payload_bytes of {}: send "
                  "it in pieces, or raise that (at most {} MiB)",
                  what, bytes, limit, kMaxBufferBytes >> 20));
}

Task<absl::Status> Arrival(Event& event) { co_return co_await event.Wait(); }

}  // namespace

void ServerBulk::Begin(ServerShard& shard, ServerSession& session, CallId id, TimePoint deadline,
                       const RequestBulk& request, UsedGrant landing, const char* in_frame) {
  shard_ = &shard;
  session_ = &session;
  id_ = id;
  deadline_ = deadline;
  request_ = request;
  landed_ = landing.bytes;
  // A call that has neither payload nor message here may begin after the link is lost.
  if (request.payload_bytes + request.message_bytes == 0) return;
  checked_ = session.link()->checks_payloads();
  if (request.payload_in_frame) TakeFromFrame(in_frame);
  if (!landing.buffer) return;
  fetched_ = std::move(landing.buffer);
  fetched_.set_size(request.payload_bytes);
  lease_ = landing.lease;
  session.link()->EndLease(*lease_, this);
}

void ServerBulk::TakeFromFrame(const char* bytes) {
  const size_t size = request_.payload_bytes;
  const Endpoint& endpoint = session_->link()->endpoint();
  if (size <= endpoint.limits().max_payload_bytes &&
      (VERBENA_MUTANT(kFramePayloadUncounted) || TryShares(size))) {
    absl::StatusOr<Buffer> memory = endpoint.memory().receive().TryAllocate(size);
    if (memory.ok()) {
      fetched_ = *std::move(memory);
      std::memcpy(fetched_.data(), bytes, size);
      return;
    }
    ReturnShares();
  }
  unplaced_.assign(bytes, size);
}

// The handler sees no memory that the client may still write to.
void ServerBulk::OnLeaseEnded(const Lease&) {
  earns_landing_ = true;
  lease_ = nullptr;
  lease_over_.Set();
}

// The landing's memory returns to its pool by itself once the device is done with it.
void ServerBulk::OnLeaseLost(const Lease& lease) {
  ReturnLanded();
  OnLeaseEnded(lease);
  earns_landing_ = false;
}

void ServerBulk::DropRequest() {
  ReturnLanded();
  fetched_.Reset();
  if (!VERBENA_MUTANT(kSharesOutliveHandlers)) ReturnShares();
}

void ServerBulk::ReturnLanded() {
  const size_t landed = std::exchange(landed_, 0);
  if (landed == 0) return;
  if (lease_ == nullptr) {
    session_->client().EndGrant(landed);
  } else {
    ReturnWithMemory(std::move(fetched_), landed, session_->client(), nullptr);
  }
}

void ServerBulk::ReturnShares() {
  ServerClient& client = session_->client();
  if (share_ > 0) client.bytes().Release(std::exchange(share_, 0));
  if (source_share_ > 0) client.source_bytes().Release(std::exchange(source_share_, 0));
}

void ServerBulk::Clear() {
  SendWaiter::Unlink();
  ForgetWrites();
  ReturnLanded();
  ReturnShares();
  shard_->send_holders().transfers -= std::exchange(writing_, 0);
  if (lease_ != nullptr) LeaseTable::Forget(*std::exchange(lease_, nullptr));
  lease_over_.Reset();
  checked_ = earns_landing_ = false;
  request_.source_count = 0;
  request_.has_payload = request_.payload_in_frame = request_.room_in_frame = false;
  request_.payload_bytes = request_.message_bytes = context_bytes_ = 0;
  request_.landing = {};
  fetched_.Reset();
  if (!unplaced_.empty()) unplaced_ = std::string();
  response_ = {};
  has_response_ = response_in_frame_ = false;
  written_ = 0;
  staged_.clear();
  checksum_ = 0;
  payload_bytes_ = message_bytes_ = 0;
  asks_payload_ = landing_awaited_ = false;
  asked_ = {};
  landing_arrived_.Reset();
  message_.Reset();
}

absl::StatusOr<Link*> ServerBulk::OpenLink() const {
  Link* link = session_->link();
  if (link == nullptr || !link->open()) return absl::UnavailableError("the link was lost");
  return link;
}

// --- the request

Task<absl::Status> ServerBulk::Fetch() {
  if (lease_ != nullptr) VERBENA_CO_RETURN_IF_ERROR(co_await Arrival(lease_over_));
  if (request_.source_count > 0) VERBENA_CO_RETURN_IF_ERROR(co_await ReadRequest());
  if (!unplaced_.empty()) VERBENA_CO_RETURN_IF_ERROR(co_await PlaceRequest());
  VERBENA_CO_RETURN_IF_ERROR(OpenLink().status());
  earns_landing_ = !request_.payload_in_frame;
  if (!checked_ || VERBENA_MUTANT(kRequestChecksumUnchecked)) co_return absl::OkStatus();
  const uint32_t arrived = ExtendChecksum(0, fetched_.view());
  if (arrived == request_.checksum) co_return absl::OkStatus();
  co_return absl::DataLossError(
      fmt::format("the request's payload arrived with the checksum {:#010x} instead of {:#010x}",
                  arrived, request_.checksum));
}

Task<absl::Status> ServerBulk::ReadRequest() {
  VERBENA_CO_ASSIGN_OR_RETURN(Link * link, OpenLink());
  const uint64_t bytes = request_.payload_bytes + request_.message_bytes;
  VERBENA_CO_RETURN_IF_ERROR(CheckLimit("a request with its payload", bytes, *link));
  if (link->max_reads() == 0) {
    earns_landing_ = true;
    co_return absl::UnimplementedError(fmt::format(
        "{} does not READ, which payloads of requests need", link->endpoint().device_name()));
  }
  VERBENA_CO_RETURN_IF_ERROR(co_await AllocateFetched(*link, bytes));
  // Not cut short: the client takes the response as the proof that nothing is read any more.
  CancelScope shield;
  shard_->receive_holders().transfers += bytes;
  absl::Status status = co_await ReadSources().In(&shield);
  shard_->receive_holders().transfers -= bytes;
  co_return status;
}

Task<absl::Status> ServerBulk::PlaceRequest() {
  VERBENA_CO_ASSIGN_OR_RETURN(Link * link, OpenLink());
  VERBENA_CO_RETURN_IF_ERROR(CheckLimit("a request's payload", request_.payload_bytes, *link));
  VERBENA_CO_RETURN_IF_ERROR(co_await AllocateFetched(*link, request_.payload_bytes));
  std::memcpy(fetched_.data(), unplaced_.data(), unplaced_.size());
  unplaced_ = std::string();
  co_return absl::OkStatus();
}

Task<absl::Status> ServerBulk::AllocateFetched(Link& link, uint64_t bytes) {
  MemoryWait wait{.deadline = deadline_,
                  .longest = shard_->limits().memory_wait,
                  .holders = &shard_->receive_holders()};
  const Endpoint& endpoint = link.endpoint();
  [[maybe_unused]] const auto use = endpoint.Use();
  if (!TryShares(bytes)) {
    const TimePoint began = endpoint.executor().now();
    const TimePoint limit = WaitLimit(began, wait);
    absl::Status waited = co_await WithDeadline(AwaitShares(bytes), limit);
    const TimePoint now = endpoint.executor().now();
    // An earlier deadline is the caller's own.
    if (absl::IsDeadlineExceeded(waited) && now >= limit) co_return NoShare(bytes, now - began);
    VERBENA_CO_RETURN_IF_ERROR(waited);
    // One limit for both waits.
    wait.deadline = kNever;
    if (!VERBENA_MUTANT(kMemoryWaitsAddUp)) wait.longest = std::max(limit - now, Duration::zero());
  }
  BufferPool& pool = endpoint.memory().receive();
  absl::StatusOr<Buffer> now = pool.TryAllocate(bytes);
  if (!now.ok()) {
    session_->ReclaimGrants();
    now = co_await AllocateUntil(endpoint, pool, bytes, wait);
    VERBENA_CO_RETURN_IF_ERROR(now.status());
  }
  fetched_ = *std::move(now);
  co_return absl::OkStatus();
}

bool ServerBulk::TryShares(size_t bytes) {
  ServerClient& client = session_->client();
  const size_t share = std::min(bytes, client.max_bytes());
  if (!client.bytes().TryAcquire(share)) return false;
  const size_t of_source = std::min(bytes, client.source().max_bytes());
  if (!client.source_bytes().TryAcquire(of_source)) {
    client.bytes().Release(share);
    return false;
  }
  share_ = share;
  source_share_ = of_source;
  return true;
}

// Always in this order, so that no two calls wait for each other. A share that it has when it is
// cancelled goes back when the call ends.
Task<absl::Status> ServerBulk::AwaitShares(size_t bytes) {
  ServerClient& client = session_->client();
  const size_t share = std::min(bytes, client.max_bytes());
  VERBENA_CO_RETURN_IF_ERROR(co_await client.bytes().Acquire(share));
  share_ = share;
  const size_t of_source = std::min(bytes, client.source().max_bytes());
  if (of_source > client.source_bytes().available()) session_->ReclaimGrantsOfSource();
  VERBENA_CO_RETURN_IF_ERROR(co_await client.source_bytes().Acquire(of_source));
  source_share_ = of_source;
  co_return absl::OkStatus();
}

absl::Status ServerBulk::NoShare(size_t bytes, Duration waited) const {
  ++shard_->memory_refused();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(waited).count();
  ServerClient& client = session_->client();
  if (share_ < std::min(bytes, client.max_bytes())) {
    return absl::ResourceExhaustedError(fmt::format(
        "{} bytes for a payload did not come free within {} ms: requests of this "
        "client take {} of the {} bytes that it may have. Send fewer at once, or raise "
        "ServerOptions::max_bytes_per_client",
        bytes, ms, client.max_bytes() - client.bytes().available(), client.max_bytes()));
  }
  ServerSource& source = client.source();
  return absl::ResourceExhaustedError(
      fmt::format("{} bytes for a payload did not come free within {} ms: requests from this "
                  "client's address take {} of the {} bytes that all its clients may have, {} of "
                  "them in landings granted ahead. Send fewer at once, or raise "
                  "ServerOptions::max_bytes_per_source",
                  bytes, ms, source.max_bytes() - source.bytes().available(), source.max_bytes(),
                  source.granted_bytes()));
}

Task<absl::Status> ServerBulk::ReadSources() {
  size_t offset = 0;
  for (uint32_t i = 0; i < request_.source_count; ++i) {
    const RemoteRange& source = request_.sources[i];
    // After every wait the link may be gone.
    VERBENA_CO_ASSIGN_OR_RETURN(Link * link, OpenLink());
    VERBENA_CO_RETURN_IF_ERROR(co_await TransferAwaiter(
        *link, Transfer::Direction::kRead, fetched_.Slice(offset, source.bytes), source));
    offset += source.bytes;
  }
  co_return absl::OkStatus();
}

bool ServerBulk::ParseMessage(MessageLite& message) const {
  return message.ParseFromArray(fetched_.data() + request_.payload_bytes + context_bytes_,
                                static_cast<int>(message_bytes()));
}

Buffer ServerBulk::TakeRequestPayload() {
  if (fetched_) fetched_.set_size(request_.payload_bytes);
  return std::move(fetched_);
}

// --- the response

absl::Status ServerBulk::CheckMemory(const BufferView& view, const Link& link) const {
  return CheckRegistered(view, link.endpoint().pd(), link.endpoint().device());
}

Task<absl::Status> ServerBulk::Write(BufferView part) {
  has_response_ = true;
  if (part.empty()) co_return absl::OkStatus();
  if (part.size() > room()) {
    co_return absl::ResourceExhaustedError(
        fmt::format("a part of {} bytes behind {} of a payload; the caller made room for {} (see "
                    "response_payload_room())",
                    part.size(), written_, request_.landing.bytes));
  }
  VERBENA_CHECK(!writing_part_) << "WriteResponsePayload() is awaited before it is called again";
  writing_part_ = true;
  absl::Cleanup written = [this] { writing_part_ = false; };
  VERBENA_CO_ASSIGN_OR_RETURN(Link * link, OpenLink());
  VERBENA_CO_RETURN_IF_ERROR(CheckMemory(part, *link));
  if (link->checks_payloads()) checksum_ = ExtendChecksum(checksum_, part);
  if (request_.room_in_frame) {
    staged_.append(part.data(), part.size());
  } else {
    VERBENA_CO_RETURN_IF_ERROR(co_await TransferAwaiter(
        *link, Transfer::Direction::kWrite, part, Within(request_.landing, written_, part.size())));
  }
  written_ += part.size();
  co_return absl::OkStatus();
}

absl::Status ServerBulk::Plan(const MethodDescriptor& method, size_t reply_bytes,
                              size_t context_bytes) {
  VERBENA_ASSIGN_OR_RETURN(Link * link, OpenLink());
  payload_bytes_ = written_ + response_.size();
  if (has_response_ && (!method.response_payload() || method.streams != Streams::kNone)) {
    payload_bytes_ = 0;
    has_response_ = false;
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
  VERBENA_RETURN_IF_ERROR(CheckLimit("a response payload", payload_bytes_, *link));
  for (size_t i = 0; i < response_.part_count(); ++i) {
    if (response_.part(i).empty()) continue;
    VERBENA_RETURN_IF_ERROR(CheckMemory(response_.part(i), *link));
  }
  if (payload_bytes_ > request_.landing.bytes && request_.landing.bytes > 0) {
    return absl::ResourceExhaustedError(
        fmt::format("the response's payload takes {} bytes, but the caller made room for {}: raise "
                    "CallOptions::max_response_payload, or pass a larger response_payload_into",
                    payload_bytes_, request_.landing.bytes));
  }
  response_in_frame_ = ResponseFitsFrame(*link, context_bytes);
  asks_payload_ = !response_in_frame_ && payload_bytes_ > request_.landing.bytes;
  const size_t prefix = context_bytes + (has_response_ ? prefix_bytes() : 0);
  if (prefix + reply_bytes > link->max_body_bytes()) {
    VERBENA_RETURN_IF_ERROR(CheckLimit("a reply", reply_bytes, *link));
    message_bytes_ = reply_bytes;
  }
  return absl::OkStatus();
}

// The caller's room for a payload in a frame was checked when the request came, and the context
// leaves it (ServerContext::AddTrailingMetadata()).
bool ServerBulk::ResponseFitsFrame(const Link& link, size_t context_bytes) const {
  if (payload_bytes_ == 0) return false;
  if (request_.room_in_frame) return true;
  return written_ == 0 && payload_bytes_ <= link.endpoint().limits().largest_payload_in_frame &&
         context_bytes + ResponseBulk::kEncodedBytes + payload_bytes_ <= link.max_body_bytes();
}

char* ServerBulk::WriteTo(char* body) const {
  const ResponseBulk header{.has_payload = has_response_,
                            .payload_bytes = payload_bytes_,
                            .message_bytes = message_bytes_,
                            .checksum = checksum_,
                            .payload_in_asked = asks_payload_,
                            .payload_in_frame = response_in_frame_};
  header.Encode(body);
  body += ResponseBulk::kEncodedBytes;
  if (!response_in_frame_) return body;
  body = std::copy(staged_.begin(), staged_.end(), body);
  for (size_t i = 0; i < response_.part_count(); ++i) {
    const BufferView part = response_.part(i);
    if (part.empty()) continue;
    std::memcpy(body, part.data(), part.size());
    body += part.size();
  }
  return body;
}

absl::Status ServerBulk::PlanFailure(size_t body_bytes) {
  VERBENA_ASSIGN_OR_RETURN(Link * link, OpenLink());
  VERBENA_RETURN_IF_ERROR(CheckLimit("a failure's Status", body_bytes, *link));
  if (body_bytes > kMaxFailureBytes) {
    return absl::ResourceExhaustedError(fmt::format(
        "a failure's Status of {} bytes; at most {} travel", body_bytes, kMaxFailureBytes));
  }
  response_ = {};
  has_response_ = response_in_frame_ = asks_payload_ = false;
  staged_.clear();
  payload_bytes_ = written_ = 0;
  checksum_ = 0;
  message_bytes_ = body_bytes;
  return absl::OkStatus();
}

void ServerBulk::OnWritable(Link& link) {
  wanted_.Encode(link.Append(LandingNeededFrame(id_), body_bytes));
}

Task<absl::Status> ServerBulk::AskForLanding(const MessageLite& reply) {
  VERBENA_CO_ASSIGN_OR_RETURN(Link * link, OpenLink());
  if (message_bytes_ > 0) {
    VERBENA_CO_ASSIGN_OR_RETURN(message_, co_await session_->client().responses().Allocate(
                                              link->endpoint(), message_bytes_,
                                              {.deadline = deadline_,
                                               .longest = shard_->limits().memory_wait,
                                               .holders = &shard_->send_holders()},
                                              session_->peer(), shard_->memory_refused(),
                                              response_.empty() ? 0 : response_.part_count()));
    // Others may have changed it while this waited.
    if (const size_t now = reply.ByteSizeLong(); now != message_bytes_) {
      co_return absl::InternalError(fmt::format(
          "the reply had {} bytes when its handler ended, and has {} now", message_bytes_, now));
    }
    reply.SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(message_.data()));
    VERBENA_CO_ASSIGN_OR_RETURN(link, OpenLink());
  }
  wanted_ = {.payload_bytes = asks_payload_ ? payload_bytes_ : 0, .message_bytes = message_bytes_};
  landing_awaited_ = true;
  body_bytes = LandingRequest::kEncodedBytes;
  if (char* body = link->Append(LandingNeededFrame(id_), body_bytes)) {
    wanted_.Encode(body);
    AtStep(CallStep::kLandingAsked, link);
  } else {
    link->AwaitWritable(*this);
  }
  session_->BeginWait();
  absl::Status arrived = co_await WithDeadline(Arrival(landing_arrived_), kMaxLandingWait);
  session_->EndWait();
  landing_awaited_ = false;
  co_return arrived;
}

absl::Status ServerBulk::OnLanding(const RemoteRange& landing) {
  // A landing for a call that was cancelled meanwhile is late.
  if (!landing_awaited_) return absl::OkStatus();
  if (landing.bytes != wanted_.payload_bytes + wanted_.message_bytes) {
    return absl::InvalidArgumentError(fmt::format("a landing of {} bytes, where {} were asked for",
                                                  landing.bytes,
                                                  wanted_.payload_bytes + wanted_.message_bytes));
  }
  landing_awaited_ = false;
  asked_ = landing;
  landing_arrived_.Set();
  return absl::OkStatus();
}

bool ServerBulk::StartWrites(Link& link, TransferListener& listener) {
  if (link.checks_payloads()) {
    for (size_t i = 0; i < response_.part_count(); ++i) {
      checksum_ = ExtendChecksum(checksum_, response_.part(i));
    }
  }
  const uint64_t rest = response_in_frame_ ? 0 : payload_bytes_ - written_;
  if (rest + message_bytes_ == 0) return false;
  writing_ = rest + message_bytes_;
  shard_->send_holders().transfers += writing_;
  if (rest > 0) {
    absl::InlinedVector<BufferView, 8> views;
    for (size_t i = 0; i < response_.part_count(); ++i) views.push_back(response_.part(i));
    const RemoteRange to = Within(asks_payload_ ? asked_ : request_.landing, written_, rest);
    TransferListener* last = message_bytes_ == 0 ? &listener : nullptr;
    Transfer& write = link.StartTransfer(Transfer::Direction::kWrite, views, to, last);
    if (last != nullptr) last_write_ = &write;
  }
  if (message_bytes_ > 0) {
    if (link.checks_payloads()) checksum_ = ExtendChecksum(checksum_, message_.view());
    const BufferView view = message_.view();
    last_write_ =
        &link.StartTransfer(Transfer::Direction::kWrite, absl::MakeConstSpan(&view, 1),
                            Within(asked_, wanted_.payload_bytes, message_bytes_), &listener);
  }
  return true;
}

void ServerBulk::ForgetWrites() {
  if (Transfer* transfer = std::exchange(last_write_, nullptr)) transfer->Abandon();
}

uint32_t ServerBulk::FinalKey(const Link& link) const {
  if (!link.reports_invalidation()) return 0;
  if (request_.landing.bytes > 0 && !request_.room_in_frame) return request_.landing.rkey;
  if (asked_.bytes > 0) return asked_.rkey;
  return request_.source_count > 0 ? request_.sources[0].rkey : 0;
}

}  // namespace verbena::internal
