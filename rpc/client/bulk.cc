#include "verbena/rpc/client/bulk.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/container/inlined_vector.h"
#include "fmt/format.h"
#include "verbena/rpc/annotate.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/call/memory.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/rpc/client/call.h"
#include "verbena/rpc/client/landings.h"
#include "verbena/rpc/outcome.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/one_sided_awaits.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

using google::protobuf::MessageLite;

namespace {

char* CopyTo(char* to, const BufferView& view) {
  if (view.empty()) return to;
  std::memcpy(to, view.data(), view.size());
  return to + view.size();
}

absl::Status NotExecuted(absl::Status status) {
  return WithOutcome(std::move(status), Outcome::kNotExecuted);
}

absl::Status Executed(absl::Status status) {
  return WithOutcome(std::move(status), Outcome::kExecuted);
}

// The most parts of a request's payload that a frame can describe.
constexpr size_t kMaxParts = kMaxBulkSources - 1;

absl::Status CheckOptions(const MethodDescriptor& method, const CallOptions& options) {
  const auto invalid = [&method](const char* what) {
    return absl::InvalidArgumentError(fmt::format("{} {}", method.full_name, what));
  };
  if (!method.request_payload() && options.request_payload.present()) {
    return invalid(
        "takes no payload with its request: leave CallOptions::request_payload empty, or declare "
        "request_payload in its .proto");
  }
  if (options.request_payload.part_count() > kMaxParts) {
    return absl::InvalidArgumentError(
        fmt::format("a request payload has {} parts, but at most {} travel: copy parts together",
                    options.request_payload.part_count(), kMaxParts));
  }
  const bool room = options.response_payload_into || options.max_response_payload != 0;
  if (!method.response_payload() && room) {
    return invalid(
        "answers without a payload: leave response_payload_into and max_response_payload unset, or "
        "declare response_payload in its .proto");
  }
  return absl::OkStatus();
}

absl::Status CheckSize(const char* what, uint64_t bytes, uint64_t limit) {
  if (bytes <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      fmt::format("{} of {} bytes; at most {} (LinkLimits::max_payload_bytes) travel: send it in "
                  "pieces",
                  what, bytes, limit));
}

Task<absl::Status> FreeLeases(Link& link, uint32_t count) {
  co_return co_await LeaseAwaiter(link, count);
}

// A session whose link can open `leases` leases this very moment. The link that the call was to
// take may have been lost while the call waited, so the caller's wait_for_ready holds here, too.
Task<absl::StatusOr<ClientSession*>> SessionWithLeases(Connection& connection, uint32_t leases,
                                                       TimePoint deadline, bool wait_for_ready) {
  for (;;) {
    ClientSession* session = connection.usable_session();
    absl::Status status;
    if (session == nullptr) {
      status = (co_await connection.Session(deadline, wait_for_ready)).status();
    } else if (session->free_leases() >= leases) {
      co_return session;
    } else {
      status = co_await WithDeadline(FreeLeases(*session->link(), leases), deadline);
      // A lost link is replaced.
      if (absl::IsUnavailable(status)) status = absl::OkStatus();
    }
    VERBENA_CO_RETURN_IF_ERROR(status);
  }
}

absl::Status CheckSizes(const ClientBulk& bulk, size_t message_bytes, const CallOptions& options,
                        size_t limit) {
  VERBENA_RETURN_IF_ERROR(CheckSize("a request payload", bulk.payload.size(), limit));
  VERBENA_RETURN_IF_ERROR(CheckSize("a request", message_bytes, limit));
  return CheckSize("a response payload (max_response_payload)", options.max_response_payload,
                   limit);
}

// The bytes that a call's context block has; 0 if there is none.
size_t BytesOf(const CallContext* context) {
  return context == nullptr || context->empty() ? 0 : context->encoded_bytes();
}

bool ContextTravels(const CallContext* context, const Link& link) {
  const size_t bytes = BytesOf(context);
  return bytes > kMaxContextInFrame || bytes + kMaxRequestBulkBytes > link.max_body_bytes();
}

bool TravelsBeside(size_t message_bytes, const CallContext* context, const Link& link) {
  return ContextTravels(context, link) ||
         BytesOf(context) + message_bytes + kMaxRequestBulkBytes > link.max_body_bytes();
}

// Whether the call leases memory of the client's for the response's payload.
bool WantsLanding(const ClientBulk& bulk, const Link& link) {
  return bulk.response_room > 0 && !bulk.RoomInFrame(link);
}

// Memory for what a request brings besides the caller's own buffers.
Task<absl::Status> AllocateMemory(Connection& connection, const MethodDescriptor& method,
                                  const MessageLite& request, size_t message_bytes,
                                  const CallOptions& options, const CallContext* context,
                                  ClientBulk& bulk) {
  VERBENA_CO_ASSIGN_OR_RETURN(
      ClientSession * session,
      co_await SessionWithLeases(connection, 0, options.deadline.when(), options.wait_for_ready));
  // The link may be lost, and the session freed, while this waits.
  const Endpoint& endpoint = session->endpoint();
  [[maybe_unused]] const auto use = endpoint.Use();
  const bool wants_landing = WantsLanding(bulk, *session->link());
  VERBENA_CO_RETURN_IF_ERROR(
      CheckSizes(bulk, message_bytes, options, endpoint.limits().max_payload_bytes));
  if (TravelsBeside(message_bytes, context, *session->link())) {
    bulk.context_bytes = ContextTravels(context, *session->link()) ? BytesOf(context) : 0;
    VERBENA_CO_ASSIGN_OR_RETURN(bulk.message,
                                co_await AllocateUntil(endpoint, endpoint.memory().send(),
                                                       bulk.context_bytes + message_bytes,
                                                       {.deadline = options.deadline.when()}));
    // The request may have changed while this waited, and its memory has the former size.
    if (const size_t now = request.ByteSizeLong(); now != message_bytes) {
      co_return ChangedRequest(method, message_bytes, now);
    }
    char* const message = bulk.message.data();
    if (bulk.context_bytes > 0) context->Encode(message);
    request.SerializeWithCachedSizesToArray(
        reinterpret_cast<uint8_t*>(message + bulk.context_bytes));
  }
  if (wants_landing) {
    VERBENA_CO_ASSIGN_OR_RETURN(
        bulk.landing,
        co_await AllocateUntil(endpoint, endpoint.memory().landing(), options.max_response_payload,
                               {.deadline = options.deadline.when()}));
  }
  co_return absl::OkStatus();
}

// Whether the link takes the memory that was allocated for the call, before it waited for the link.
// Only memory that the call itself allocated: the next attempt allocates it anew. The caller must
// replace its own buffers itself.
absl::Status CheckTaken(const ClientBulk& bulk, bool own_landing, const MethodDescriptor& method,
                        const Link& link) {
  for (const Buffer* taken : {&bulk.message, own_landing ? &bulk.landing : nullptr}) {
    if (taken == nullptr || taken->size() == 0) continue;
    const MemoryRegion& region = taken->view().region();
    if (region.pd() == link.endpoint().pd()) continue;
    return absl::UnavailableError(
        fmt::format("{} failed, or was removed, while {} waited with memory of it; try again",
                    region.device_name(), method.full_name));
  }
  return absl::OkStatus();
}

// Fills in what a call's caller wants to know at its end, however that comes about.
class CallInfoOf {
 public:
  CallInfoOf(CallInfo* info, const Executor& executor) : info_(info), executor_(executor) {
    if (info_ != nullptr) began_ = executor.now();
  }
  CallInfoOf(const CallInfoOf&) = delete;
  CallInfoOf& operator=(const CallInfoOf&) = delete;
  ~CallInfoOf() {
    if (info_ == nullptr) return;
    info_->elapsed = executor_.now() - began_;
    info_->request_bytes = static_cast<uint32_t>(request_bytes_);
  }

  void set_request_bytes(size_t bytes) { request_bytes_ = bytes; }

 private:
  CallInfo* const info_;
  const Executor& executor_;
  TimePoint began_{};
  size_t request_bytes_ = 0;
};

// The places for a call's results; each may be null.
struct CallerMemory {
  // Before the call begins: what a former call left does not outlive the beginning of this one.
  void Clear() const {
    if (request_payload != nullptr) *request_payload = Payload();
    response.Set(Buffer(), false);
  }

  CallInfo* info = nullptr;
  Payload* request_payload = nullptr;
  PayloadSink response = {};
  // The landing is the caller's own, which comes back also after a failure.
  bool gave_landing = false;
};

// The call has ended, and so has each lease that can end. Gives the caller its buffers back, and
// returns the call's final status.
absl::Status Settle(ClientBulk& bulk, absl::Status status, MessageLite& reply, CallerMemory to) {
  if (bulk.lost() || bulk.settling()) {
    VERBENA_RETURN_IF_ERROR(status);
    return Executed(
        absl::UnavailableError("the link was lost before the response's payload was safe"));
  }
  if (status.ok()) {
    status = bulk.CheckResponse();
    if (status.ok() && bulk.has_message() && !bulk.ParseMessage(reply)) {
      status =
          absl::InternalError(fmt::format("the reply does not parse as {}", reply.GetTypeName()));
    }
    if (!status.ok()) status = Executed(std::move(status));
  } else if (bulk.has_failure()) {
    status = bulk.ReadFailure(status);
  }
  if (to.request_payload != nullptr) *to.request_payload = std::move(bulk.payload);
  if (status.ok()) {
    to.response.Set(bulk.TakeResponsePayload(), bulk.has_response_payload());
  } else if (to.gave_landing) {
    to.response.Set(std::move(bulk.landing), false);
  }
  if (to.info != nullptr && bulk.has_message()) {
    to.info->reply_bytes = bulk.response_message_bytes();
  }
  return status;
}

// The status of a call that was given up while its leases were ending.
absl::Status Unsettled(const absl::Status& status, absl::Status waited) {
  return status.ok() ? Executed(std::move(waited)) : status;
}

// Answers the server, which asks for memory, and waits for the call's end.
Task<absl::Status> GiveLanding(ClientCall& call, ClientBulk& bulk, Deadline deadline) {
  const LandingRequest wanted = call.landing_wanted();
  const uint64_t bytes = wanted.payload_bytes + wanted.message_bytes;
  const Endpoint& endpoint = call.link().endpoint();
  absl::Status status = CheckSize("a response", bytes, endpoint.limits().max_payload_bytes);
  Buffer buffer;
  if (status.ok()) {
    const std::shared_ptr<LandingShare> share = call.landing_share();
    absl::StatusOr<Buffer> allocated =
        co_await share->Allocate(endpoint, bytes, {.deadline = deadline.when()});
    status = allocated.status();
    if (allocated.ok()) buffer = *std::move(allocated);
  }
  while (status.ok() && call.landing_needed() && call.link().free_leases() == 0) {
    status = co_await WithDeadline(FreeLeases(call.link(), 1), deadline.when());
  }
  // Otherwise the call has ended meanwhile, and the await returns its status.
  if (call.landing_needed()) {
    if (status.ok()) {
      absl::StatusOr<RemoteRange> terms = bulk.OpenAsked(call.link(), std::move(buffer), wanted);
      status = terms.status();
      if (terms.ok()) {
        call.set_bulk(&bulk);
        call.SendLanding(*terms);
      }
    }
    if (!status.ok()) call.Fail(std::move(status));
  }
  co_return co_await call;
}

// Memory for a payload that has come already. It may be that of another link.
Task<absl::Status> PlaceResponse(Connection& connection, ClientBulk& bulk, Deadline deadline) {
  absl::StatusOr<ClientSession*> session =
      co_await SessionWithLeases(connection, 0, deadline.when(), /*wait_for_ready=*/false);
  if (!session.ok()) co_return Executed(session.status());
  const std::shared_ptr<LandingShare> share = (*session)->landing_share();
  absl::StatusOr<Buffer> memory = co_await share->Allocate(
      (*session)->endpoint(), bulk.response_payload_bytes(), {.deadline = deadline.when()});
  if (!memory.ok()) co_return Executed(memory.status());
  bulk.PlaceResponse(*std::move(memory));
  co_return absl::OkStatus();
}

}  // namespace

ClientBulk::~ClientBulk() {
  for (Lease* lease : leases_) LeaseTable::Forget(*lease);
  EndSettling();
  if (write_ != nullptr) write_->Abandon();
}

// A large message is read, and the payload with it: one buffer of the server's holds both.
bool ClientBulk::WantsLanding() const { return !payload.empty() && !message; }

bool ClientBulk::PayloadInFrame(const Link& link) const {
  const size_t bytes = payload.size();
  return WantsLanding() && bytes <= link.endpoint().limits().largest_payload_in_frame &&
         kRequestBulkBytes + bytes + frame_message_bytes <= link.max_body_bytes();
}

bool ClientBulk::RoomInFrame(const Link& link) const {
  const size_t bytes = std::max(landing.size(), response_room);
  return bytes > 0 && bytes <= link.endpoint().limits().largest_payload_in_frame &&
         ResponseBulk::kEncodedBytes + bytes <= link.max_body_bytes();
}

uint32_t ClientBulk::leases_needed(const ClientSession* session) const {
  uint32_t count = message.size() > 0 ? 1 : 0;
  if (landing.size() > 0 && (session == nullptr || !RoomInFrame(*session->link()))) ++count;
  const bool leased = session == nullptr || !WantsLanding() ||
                      !(PayloadInFrame(*session->link()) || session->grants().Fits(payload.size()));
  if (!leased) return count;
  for (size_t i = 0; i < payload.part_count(); ++i) count += payload.part(i).empty() ? 0 : 1;
  return count;
}

absl::StatusOr<RemoteRange> ClientBulk::OpenLease(Link& link, const BufferView& view,
                                                  LeaseAccess access) {
  VERBENA_ASSIGN_OR_RETURN(Lease * lease, link.OpenLease(view, access));
  if (lease == nullptr) {
    return absl::ResourceExhaustedError(
        "no memory window is free: make fewer calls with payloads at once, or raise "
        "LeaseLimits::windows_per_link");
  }
  leases_.push_back(lease);
  return lease->terms();
}

absl::Status ClientBulk::OpenSource(Link& link, const BufferView& view) {
  if (view.empty()) return absl::OkStatus();
  VERBENA_ASSIGN_OR_RETURN(RemoteRange terms, OpenLease(link, view, LeaseAccess::kRead));
  request_.sources[request_.source_count++] = terms;
  return absl::OkStatus();
}

absl::Status ClientBulk::OpenLeases(ClientSession& session) {
  Link& link = *session.link();
  checked_ = link.checks_payloads();
  request_.has_payload = payload.present();
  request_.payload_bytes = payload.size();
  request_.message_bytes = message.size();
  absl::Status status;
  if (WantsLanding()) {
    // Checked as if the server were to READ it: the result must not depend on what is granted now.
    for (size_t i = 0; i < payload.part_count() && status.ok(); ++i) {
      if (payload.part(i).empty()) continue;
      status = link.leases().Check(payload.part(i), LeaseAccess::kRead);
    }
    request_.payload_in_frame = PayloadInFrame(link);
    if (status.ok() && !request_.payload_in_frame) landing_ = session.grants().Take(payload.size());
  }
  if (request_.payload_in_frame) {
    // Copied when the request's frame is written.
  } else if (landing_.has_value()) {
    request_.grant = landing_->slot;
  } else {
    for (size_t i = 0; i < payload.part_count() && status.ok(); ++i) {
      status = OpenSource(link, payload.part(i));
    }
  }
  if (status.ok()) status = OpenSource(link, message.view());
  if (status.ok()) status = OpenLanding(link);
  if (!status.ok()) {
    (void)Abandon(session, /*sent=*/false);
    return status;
  }
  if (checked_) {
    uint32_t checksum = ChecksumOf(payload);
    request_.checksum = ExtendChecksum(checksum, message.view());
  }
  return absl::OkStatus();
}

absl::Status ClientBulk::OpenLanding(Link& link) {
  if (RoomInFrame(link)) {
    request_.room_in_frame = true;
    request_.landing.bytes = std::max(landing.size(), response_room);
    // As if it were leased: the result must not depend on how the payload travels.
    return landing ? link.leases().Check(landing.view(), LeaseAccess::kWrite) : absl::OkStatus();
  }
  if (!landing && response_room > 0) {
    return absl::UnavailableError(
        "the link, and with it the size of a frame, changed while the call began; try again");
  }
  if (landing.size() == 0) return absl::OkStatus();
  VERBENA_ASSIGN_OR_RETURN(request_.landing, OpenLease(link, landing.view(), LeaseAccess::kWrite));
  return absl::OkStatus();
}

char* ClientBulk::WriteTo(char* body) const {
  request_.Encode(body);
  body += request_.encoded_bytes();
  if (!request_.payload_in_frame) return body;
  for (size_t i = 0; i < payload.part_count(); ++i) body = CopyTo(body, payload.part(i));
  return body;
}

absl::StatusOr<RemoteRange> ClientBulk::OpenAsked(Link& link, Buffer asked,
                                                  const LandingRequest& wanted) {
  asked_ = std::move(asked);
  wanted_ = wanted;
  checked_ = link.checks_payloads();
  return OpenLease(link, asked_.view(), LeaseAccess::kWrite);
}

// The most bytes that the response's payload may have.
uint64_t ClientBulk::PayloadRoom(const ResponseBulk& response) const {
  const uint64_t room = request_.landing.bytes;  // what the caller has room for, if it says so
  if (response.payload_in_frame) return room > 0 ? room : response.payload_bytes;
  if (!response.payload_in_asked) return request_.room_in_frame ? 0 : room;
  return room > 0 ? std::min(room, wanted_.payload_bytes) : wanted_.payload_bytes;
}

absl::Status ClientBulk::OnResponse(ClientSession& session, const ResponseBulk& response,
                                    const char* in_frame) {
  const uint64_t payload_room = PayloadRoom(response);
  const bool too_large = response.payload_bytes > payload_room;
  if (too_large || response.message_bytes > wanted_.message_bytes) {
    return absl::InvalidArgumentError(fmt::format(
        "a response with a payload of {} bytes and a message of {}, for which {} and {} were "
        "leased",
        response.payload_bytes, response.message_bytes, payload_room, wanted_.message_bytes));
  }
  response_ = response;
  if (response.payload_in_frame) TakeFromFrame(session, in_frame);
  return absl::OkStatus();
}

void ClientBulk::TakeFromFrame(ClientSession& session, const char* bytes) {
  const size_t size = response_payload_bytes();
  if (landing.size() == 0) {
    Endpoint& endpoint = session.endpoint();
    absl::StatusOr<Buffer> memory = response_room > 0
                                        ? endpoint.memory().landing().TryAllocate(size)
                                        : session.landing_share()->TryAllocate(endpoint, size);
    if (!memory.ok()) {
      unplaced_.assign(bytes, size);
      return;
    }
    landing = *std::move(memory);
  }
  std::memcpy(landing.data(), bytes, size);
}

void ClientBulk::PlaceResponse(Buffer memory) {
  landing = std::move(memory);
  std::memcpy(landing.data(), unplaced_.data(), unplaced_.size());
  unplaced_ = std::string();
}

void ClientBulk::OnFinal(ClientSession& session) {
  landing_.reset();
  // Iterates over a copy: leases that end at once leave leases_.
  const LeaseList leases = leases_;
  for (Lease* lease : leases) session.link()->EndLease(*lease, this);
  if (leases_.empty()) return;
  settling_on_ = &session;
  session.BeginSettling();
}

void ClientBulk::EndSettling() {
  if (ClientSession* session = std::exchange(settling_on_, nullptr)) session->EndSettling();
}

bool ClientBulk::StartWrite(ClientSession& session, ClientCall& call) {
  if (!landing_.has_value()) return false;
  absl::InlinedVector<BufferView, 8> views;
  for (size_t i = 0; i < payload.part_count(); ++i) views.push_back(payload.part(i));
  call_ = &call;
  const RemoteRange to{
      .address = landing_->range.address, .bytes = payload.size(), .rkey = landing_->range.rkey};
  write_ = &session.link()->StartTransfer(Transfer::Direction::kWrite, views, to, this);
  return true;
}

void ClientBulk::OnTransferPosted() {
  std::exchange(write_, nullptr)->Abandon();
  call_->SendRequestBehindPayload();
}

// Comes before OnTransferPosted() only if the link is lost, which OnLinkDown() handles.
void ClientBulk::OnTransferDone(const absl::Status&) { write_ = nullptr; }

void ClientBulk::OnRequestAppended(ClientSession& session) {
  if (landing_.has_value()) session.grants().OnUsed(*landing_);
}

uint32_t ClientBulk::RequestKey(const Link& link) const {
  return landing_.has_value() && link.reports_invalidation() ? landing_->range.rkey : 0;
}

LeaseList ClientBulk::Abandon(ClientSession& session, bool sent) {
  Link& link = *session.link();
  if (write_ != nullptr) link.AbandonTransfer(*std::exchange(write_, nullptr));
  if (landing_.has_value() && !sent) session.grants().Return(link, *landing_);
  LeaseList leases = std::exchange(leases_, {});
  // The device may still be sending the payload, which must not change: the request behind it
  // describes it as it was.
  lost_ = (landing_.has_value() && call_ != nullptr) || (sent && !leases.empty());
  landing_.reset();
  for (Lease* lease : leases) {
    if (sent) {
      link.AbandonLease(*lease);
    } else {
      link.EndLease(*lease, nullptr);
    }
  }
  return sent ? std::move(leases) : LeaseList();
}

void ClientBulk::OnLinkDown() {
  if (write_ != nullptr) std::exchange(write_, nullptr)->Abandon();
  lost_ = !leases_.empty() || landing_.has_value();
  leases_.clear();
}

void ClientBulk::OnLeaseEnded(const Lease& lease) {
  leases_.erase(std::find(leases_.begin(), leases_.end(), &lease));
  if (!leases_.empty()) return;
  settled_.Set();
  EndSettling();
}

void ClientBulk::OnLeaseLost(const Lease& lease) {
  lost_ = true;
  OnLeaseEnded(lease);
}

absl::Status ClientBulk::CheckResponse() const {
  if (!checked_) return absl::OkStatus();
  const Buffer& holder = response_.payload_in_asked ? asked_ : landing;
  // The peer chose these numbers, and a payload that came in a frame may have found no memory.
  if (response_.payload_bytes > holder.size() ||
      (response_.message_bytes > 0 && message_offset() + response_.message_bytes > asked_.size())) {
    return absl::DataLossError(
        fmt::format("a response's payload of {} bytes has no place here", response_.payload_bytes));
  }
  uint32_t checksum = 0;
  if (response_.payload_bytes > 0) {
    checksum = ExtendChecksum(checksum, holder.Slice(0, response_.payload_bytes));
  }
  if (response_.message_bytes > 0) {
    checksum = ExtendChecksum(checksum, asked_.Slice(message_offset(), response_.message_bytes));
  }
  if (checksum == response_.checksum) return absl::OkStatus();
  return absl::DataLossError(
      fmt::format("the response's payload arrived with the checksum {:#010x} instead of {:#010x}",
                  checksum, response_.checksum));
}

bool ClientBulk::ParseMessage(google::protobuf::MessageLite& reply) const {
  return reply.ParseFromArray(asked_.data() + message_offset(),
                              static_cast<int>(response_.message_bytes));
}

absl::Status ClientBulk::ReadFailure(const absl::Status& known) const {
  if (response_.message_bytes > kMaxFailureBytes) {
    return Annotate(
        known, fmt::format("{} bytes are more than a failure may have", response_.message_bytes));
  }
  if (absl::Status intact = CheckResponse(); !intact.ok()) {
    return Annotate(known, std::string(intact.message()));
  }
  return WithOutcome(DecodeStatus(static_cast<uint8_t>(known.code()),
                                  asked_.data() + message_offset(), response_.message_bytes),
                     OutcomeOf(known));
}

Buffer ClientBulk::TakeResponsePayload() {
  if (response_.payload_in_asked && landing.size() > 0) {
    // The caller has memory of its own for it, which was not leased.
    std::memcpy(landing.data(), asked_.data(), response_payload_bytes());
    response_.payload_in_asked = false;
  }
  Buffer& holder = response_.payload_in_asked ? asked_ : landing;
  if (holder) holder.set_size(response_.payload_bytes);
  return std::move(holder);
}

Task<absl::Status> BulkCall(Connection& connection, const MethodDescriptor& method,
                            const MessageLite& request, MessageLite& reply, PayloadSink received,
                            CallOptions options, const CallContext* context) {
  [[maybe_unused]] const ConnectionUse use(connection);
  CallInfoOf filled(options.info, connection.shard().executor());
  const size_t message_bytes = request.ByteSizeLong();
  filled.set_request_bytes(message_bytes);
  if (absl::Status status = CheckOptions(method, options); !status.ok()) {
    co_return FailUnsent(std::move(status), options, received);
  }
  const CallerMemory to{options.info, options.returned_payload, received,
                        static_cast<bool>(options.response_payload_into)};
  to.Clear();
  ClientBulk bulk;
  bulk.payload = std::move(options.request_payload);
  bulk.landing = std::move(options.response_payload_into);
  if (!bulk.landing) bulk.response_room = options.max_response_payload;
  // Only steps that wait are coroutines: every block takes this path.
  absl::Status status;
  ClientSession* session = connection.usable_session();
  bool waited = true;
  if (session == nullptr || TravelsBeside(message_bytes, context, *session->link()) ||
      WantsLanding(bulk, *session->link())) {
    status =
        co_await AllocateMemory(connection, method, request, message_bytes, options, context, bulk);
    session = connection.usable_session();
  } else {
    status =
        CheckSizes(bulk, message_bytes, options, session->endpoint().limits().max_payload_bytes);
    waited = false;
  }
  const bool own_landing = !to.gave_landing && bulk.landing;
  bulk.frame_message_bytes = bulk.message ? 0 : message_bytes;
  // The context takes room in the frame, too.
  bulk.frame_message_bytes += bulk.context_bytes > 0 ? kContextHeaderBytes : BytesOf(context);
  if (status.ok() && (session == nullptr || session->free_leases() < bulk.leases_needed(session))) {
    absl::StatusOr<ClientSession*> found = co_await SessionWithLeases(
        connection, bulk.leases_needed(nullptr), options.deadline.when(), options.wait_for_ready);
    status = found.status();
    if (found.ok()) session = *found;
    waited = true;
  }
  // Nothing waits from here to the request's frame, or to where it waits for room.
  if (status.ok() && waited && request.ByteSizeLong() != message_bytes) {
    status = ChangedRequest(method, message_bytes, request.ByteSizeLong());
  }
  if (status.ok() && waited) {
    status = CheckTaken(bulk, own_landing, method, *session->link());
  }
  if (status.ok()) status = bulk.OpenLeases(*session);
  if (!status.ok()) co_return Settle(bulk, NotExecuted(std::move(status)), reply, to);
  ClientCall call(*session, connection.shard().executor(), method, request, reply, options.deadline,
                  options.info, bulk.message ? 0 : message_bytes);
  call.set_bulk(&bulk);
  if (BytesOf(context) > 0) call.set_context(*context, /*travels=*/bulk.context_bytes > 0);
  status = co_await call;
  if (call.landing_needed()) status = co_await GiveLanding(call, bulk, options.deadline);
  if (bulk.settling()) {
    absl::Status waited = co_await bulk.Settled();
    if (!waited.ok()) co_return Unsettled(status, std::move(waited));
  }
  if (bulk.lacks_memory() && status.ok()) {
    status = co_await PlaceResponse(connection, bulk, options.deadline);
  }
  co_return Settle(bulk, std::move(status), reply, to);
}

bool ContextFitsFrame(const CallContext& context, size_t request_bytes, size_t max_body_bytes) {
  const size_t context_bytes = BytesOf(&context);
  return context_bytes <= kMaxContextInFrame && context_bytes + request_bytes <= max_body_bytes;
}

absl::Status FailUnsent(absl::Status status, CallOptions& options, PayloadSink received) {
  if (options.returned_payload != nullptr) {
    *options.returned_payload = std::move(options.request_payload);
  }
  received.Set(std::move(options.response_payload_into), false);
  return NotExecuted(std::move(status));
}

Task<absl::Status> FinishInLanding(ClientCall& call, MessageLite& reply, Deadline deadline,
                                   CallInfo* info) {
  // The call may have ended, and lost its link, since the server asked.
  if (!call.landing_needed()) co_return co_await call;
  ClientBulk bulk;
  absl::Cleanup leave = [&call] { call.LeaveBulk(); };
  absl::Status status = co_await GiveLanding(call, bulk, deadline);
  if (bulk.settling()) {
    absl::Status waited = co_await bulk.Settled();
    if (!waited.ok()) co_return Unsettled(status, std::move(waited));
  }
  co_return Settle(bulk, std::move(status), reply, {.info = info});
}

}  // namespace verbena::internal
