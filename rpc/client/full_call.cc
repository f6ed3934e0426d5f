#include "verbena/rpc/client/full_call.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/call/sizes.h"
#include "verbena/rpc/client/channel.h"
#include "verbena/rpc/client/dedupe.h"
#include "verbena/rpc/client/landings.h"
#include "verbena/rpc/client/link_call.h"
#include "verbena/rpc/client/payload.h"
#include "verbena/rpc/client/session.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/one_sided_awaits.h"
#include "verbena/transport/memory/buffer.h"
#include "verbena/transport/memory/carved_arena.h"

namespace verbena::internal {

namespace {

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

// Whether the method and the channel take what the call brings.
absl::Status CheckSpec(const CallSpec& spec) {
  VERBENA_RETURN_IF_ERROR(CheckContext(spec.context, spec.channel->options().max_metadata_bytes));
  return CheckOptions(spec.method, spec.options);
}

// Whether this client takes a response that needs memory of `wanted`.
absl::Status CheckResponse(const LandingRequest& wanted, const LinkLimits& limits) {
  VERBENA_RETURN_IF_ERROR(
      CheckPayloadSize("a response's payload", wanted.payload_bytes, "client", limits));
  VERBENA_RETURN_IF_ERROR(CheckMessageSize("a reply", wanted.message_bytes, "client", limits));
  return CheckTogether("a reply", wanted.message_bytes, wanted.payload_bytes);
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

// The bytes that a call's context block has; 0 if there is none.
size_t BytesOf(const CallContext& context) { return context.empty() ? 0 : context.encoded_bytes(); }

// Whether a call without payloads travels in a frame with a body of at most `max_body_bytes`.
bool FitsFrame(const CallContext& context, size_t message_bytes, size_t max_body_bytes) {
  const size_t context_bytes = BytesOf(context);
  return context_bytes <= kMaxContextInFrame && context_bytes + message_bytes <= max_body_bytes;
}

bool ContextTravels(const CallContext& context, const Link& link) {
  const size_t bytes = BytesOf(context);
  return bytes > kMaxContextInFrame || bytes + kMaxRequestBulkBytes > link.max_body_bytes();
}

bool TravelsBeside(size_t message_bytes, const CallContext& context, const Link& link) {
  return ContextTravels(context, link) ||
         BytesOf(context) + message_bytes + kMaxRequestBulkBytes > link.max_body_bytes();
}

// The bytes of the context and the message in the frame of a call with `bulk`.
size_t BytesInFrame(const ClientBulk& bulk, size_t message_bytes, const CallContext& context) {
  return (bulk.message ? 0 : message_bytes) +
         (bulk.context_bytes > 0 ? kContextHeaderBytes : BytesOf(context));
}

// Whether the call leases memory of the client's for the response's payload.
bool WantsLanding(const ClientBulk& bulk, const Link& link) {
  return bulk.response_room > 0 && !bulk.RoomInFrame(link);
}

// Whether the call can still begin after it has waited: its request must be as it was, and the link
// must take the memory that the call itself allocated before, which the next attempt allocates
// anew. The caller must replace its own buffers itself.
absl::Status CheckAfterWait(const CallSpec& spec, size_t message_bytes, const ClientBulk& bulk,
                            bool own_landing, const Link& link) {
  if (const size_t now = spec.request.ByteSizeLong(); now != message_bytes) {
    return ChangedRequest(spec.method, message_bytes, now);
  }
  for (const Buffer* taken : {&bulk.message, own_landing ? &bulk.landing : nullptr}) {
    if (taken == nullptr || taken->size() == 0) continue;
    const MemoryRegion& region = taken->view().region();
    if (region.pd() == link.endpoint().pd()) continue;
    return absl::UnavailableError(
        fmt::format("{} failed, or was removed, while {} waited with memory of it; try again",
                    region.device_name(), spec.method.full_name));
  }
  return absl::OkStatus();
}

// Has `bulk` bring the caller's payload and memory. RESOURCE_EXHAUSTED if something is too large.
absl::Status TakeFromCaller(CallSpec& spec, ClientBulk& bulk, size_t message_bytes,
                            const ClientSession& session) {
  CallOptions& options = spec.options;
  bulk.payload = std::move(options.request_payload);
  bulk.landing = std::move(options.response_payload_into);
  if (!bulk.landing) bulk.response_room = options.max_response_payload;
  bulk.frame_message_bytes = BytesInFrame(bulk, message_bytes, spec.context);
  const LinkLimits& limits = session.endpoint().limits();
  VERBENA_RETURN_IF_ERROR(
      CheckPayloadSize("a request payload", bulk.payload.size(), "client", limits));
  VERBENA_RETURN_IF_ERROR(CheckMessageSize("a request", message_bytes, "client", limits));
  return CheckPayloadSize("a response payload (max_response_payload)", options.max_response_payload,
                          "client", limits);
}

// Whether the call must wait for memory or leases before it can begin.
bool LacksRoom(const ClientBulk& bulk, size_t message_bytes, const CallContext& context,
               const ClientSession& session) {
  const Link& link = *session.link();
  return TravelsBeside(message_bytes, context, link) || WantsLanding(bulk, link) ||
         session.free_leases() < bulk.leases_needed(&session);
}

// Memory for what a request brings besides the caller's own buffers, on the device of `session`,
// which may be gone when this ends.
Task<absl::Status> AllocateMemory(ClientSession& session, const CallSpec& spec,
                                  size_t message_bytes, ClientBulk& bulk) {
  const Endpoint& endpoint = session.endpoint();
  [[maybe_unused]] const auto use = endpoint.Use();
  const TimePoint deadline = spec.options.deadline.when();
  const bool wants_landing = WantsLanding(bulk, *session.link());
  if (TravelsBeside(message_bytes, spec.context, *session.link())) {
    bulk.context_bytes = ContextTravels(spec.context, *session.link()) ? BytesOf(spec.context) : 0;
    VERBENA_CO_ASSIGN_OR_RETURN(
        bulk.message,
        co_await AllocateUntil(endpoint, endpoint.memory().send(),
                               bulk.context_bytes + message_bytes, {.deadline = deadline}));
    // The request may have changed while this waited, and its memory has the former size.
    if (const size_t now = spec.request.ByteSizeLong(); now != message_bytes) {
      co_return ChangedRequest(spec.method, message_bytes, now);
    }
    char* const message = bulk.message.data();
    if (bulk.context_bytes > 0) spec.context.Encode(message);
    spec.request.SerializeWithCachedSizesToArray(
        reinterpret_cast<uint8_t*>(message + bulk.context_bytes));
  }
  if (wants_landing) {
    VERBENA_CO_ASSIGN_OR_RETURN(
        bulk.landing,
        co_await AllocateUntil(endpoint, endpoint.memory().landing(),
                               spec.options.max_response_payload, {.deadline = deadline}));
  }
  co_return absl::OkStatus();
}

// Waits for what `bulk` lacks: memory, and leases. Returns the session that can begin the call this
// very moment.
Task<absl::StatusOr<ClientSession*>> AwaitRoom(Connection& connection, ClientSession& session,
                                               const CallSpec& spec, size_t message_bytes,
                                               ClientBulk& bulk) {
  const bool own_landing = !bulk.landing;
  VERBENA_CO_RETURN_IF_ERROR(co_await AllocateMemory(session, spec, message_bytes, bulk));
  bulk.frame_message_bytes = BytesInFrame(bulk, message_bytes, spec.context);
  ClientSession* now = connection.usable_session();
  if (now == nullptr || now->free_leases() < bulk.leases_needed(now)) {
    VERBENA_CO_ASSIGN_OR_RETURN(
        now, co_await SessionWithLeases(connection, bulk.leases_needed(nullptr),
                                        spec.options.deadline.when(), spec.options.wait_for_ready));
  }
  VERBENA_CO_RETURN_IF_ERROR(CheckAfterWait(spec, message_bytes, bulk, own_landing, *now->link()));
  co_return now;
}

// The caller's variables for a call's results; each may be null.
struct CallerMemory {
  // Before the call begins: what a former call left does not outlive the beginning of this one.
  void Clear() const {
    if (request_payload != nullptr) *request_payload = Payload();
    response.Set(Buffer(), false);
  }

  // The call has ended. `may_be_read`: a server may still read the payload.
  void ReturnPayload(Payload& payload, bool may_be_read) const {
    Payload* const into = may_be_read || was_lent ? lent_payload : request_payload;
    if (into != nullptr) *into = std::move(payload);
  }

  CallInfo* info = nullptr;
  Payload* request_payload = nullptr;
  Payload* lent_payload = nullptr;  // as CallSpec's
  PayloadSink response = {};
  // The landing is the caller's own, which comes back also after a failure.
  bool gave_landing = false;
  // A server may still read the payload from an earlier beginning of the call.
  bool was_lent = false;
};

// The call has ended, and so has each lease that can end. Gives the caller its buffers back, and
// returns the call's final status.
absl::Status Settle(ClientBulk& bulk, absl::Status status, MessageLite& reply, CallerMemory to) {
  if (bulk.lost() || bulk.settling()) {
    to.ReturnPayload(bulk.payload, /*may_be_read=*/true);
    VERBENA_RETURN_IF_ERROR(status);
    return Executed(
        absl::UnavailableError("the link was lost before the response's payload was safe"));
  }
  if (status.ok()) {
    status = bulk.CheckResponse();
    if (status.ok() && bulk.has_message() && !bulk.ParseMessage(reply)) {
      status =
          absl::InternalError(fmt::format("the reply does not parse as {}", TypeNameOf(reply)));
    }
    if (!status.ok()) status = Executed(std::move(status));
  } else if (bulk.has_failure()) {
    status = bulk.ReadFailure(status);
  }
  to.ReturnPayload(bulk.payload, /*may_be_read=*/false);
  if (status.ok()) {
    to.response.Set(bulk.TakeResponsePayload(), bulk.has_response_payload());
  } else if (to.gave_landing && !bulk.landing_lost()) {
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
Task<absl::Status> GiveLanding(LinkCall& call, ClientBulk& bulk, Deadline deadline) {
  const LandingRequest wanted = call.landing_wanted();
  const uint64_t bytes = wanted.payload_bytes + wanted.message_bytes;
  const Endpoint& endpoint = call.link().endpoint();
  absl::Status status = CheckResponse(wanted, endpoint.limits());
  Buffer buffer;
  if (status.ok()) {
    absl::StatusOr<Buffer> allocated = co_await AllocateLanding(
        call.landing_quota(), endpoint, bytes, {.deadline = deadline.when()});
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
  absl::StatusOr<Buffer> memory =
      co_await AllocateLanding((*session)->landing_quota(), (*session)->endpoint(),
                               bulk.response_payload_bytes(), {.deadline = deadline.when()});
  if (!memory.ok()) co_return Executed(memory.status());
  bulk.PlaceResponse(*std::move(memory));
  co_return absl::OkStatus();
}

// Whether a call that was lost_unsent() is made again. Memory of the caller's for the response must
// be the next beginning's alone; memory of the call's own returns to its pool by itself.
bool MayRepeat(const CallSpec& spec, const std::optional<ClientBulk>& bulk,
               const CallerMemory& to) {
  if (!spec.may_repeat) return false;
  return !to.gave_landing || !bulk.has_value() || !bulk->landing_lost();
}

// The caller's memory, for another beginning of its call.
void GiveBack(ClientBulk& bulk, CallOptions& options, CallerMemory& to) {
  to.was_lent |= bulk.lost();
  options.request_payload = std::move(bulk.payload);
  // Otherwise it is memory of the device that the link was on.
  if (to.gave_landing) options.response_payload_into = std::move(bulk.landing);
}

}  // namespace

Task<absl::StatusOr<ConnectionUse>> RouteOf(const CallSpec& spec) {
  return spec.channel->Route(spec.options.route_key, spec.options.deadline,
                             spec.options.wait_for_ready);
}

absl::Status CheckContext(const CallContext& context, size_t max_metadata_bytes) {
  VERBENA_RETURN_IF_ERROR(context.metadata.status());
  if (context.metadata.bytes() > max_metadata_bytes) {
    return absl::ResourceExhaustedError(
        fmt::format("the metadata has {} bytes (first key \"{}\"), and "
                    "ChannelOptions::max_metadata_bytes allows {}: send less, or raise it",
                    context.metadata.bytes(), context.metadata.begin()->first, max_metadata_bytes));
  }
  return context.trace ? context.trace->Check() : absl::OkStatus();
}

void ReturnUnsent(CallOptions& options, PayloadSink received) {
  if (options.returned_payload != nullptr) {
    *options.returned_payload = std::move(options.request_payload);
  }
  received.Set(std::move(options.response_payload_into), false);
}

absl::Status FailUnsent(absl::Status status, CallOptions& options, PayloadSink received) {
  ReturnUnsent(options, received);
  return NotExecuted(std::move(status));
}

namespace {

// The bytes of the request, which its caller may change while the call waits for a link.
size_t Measure(const CallSpec& spec) {
  const size_t bytes = spec.request.ByteSizeLong();
  if (spec.options.info != nullptr) {
    spec.options.info->request_bytes = static_cast<uint32_t>(bytes);
  }
  return bytes;
}

// Only steps that may wait long are coroutines of their own: every block takes this path.
// `Spec` is CallSpec, or a reference to one that outlives the Task.
template <typename Spec>
Task<absl::Status> RunFullCall(ConnectionUse use, Spec its_spec, TriedServers* tried) {
  CallSpec& spec = its_spec;
  CallOptions& options = spec.options;
  size_t message_bytes = Measure(spec);
  if (!use) {
    absl::StatusOr<ConnectionUse> found = co_await RouteOf(spec);
    if (!found.ok()) co_return FailUnsent(found.status(), options, spec.received);
    use = *std::move(found);
    if (tried != nullptr) tried->Add(*use);
    message_bytes = Measure(spec);
  }
  if (spec.interceptors != nullptr) spec.context = spec.interceptors->Start();
  absl::Status status = CheckSpec(spec);
  if (!status.ok()) co_return FailUnsent(std::move(status), options, spec.received);
  CallerMemory to{.info = options.info,
                  .request_payload = options.returned_payload,
                  .lent_payload = spec.lent_payload,
                  .response = spec.received,
                  .gave_landing = static_cast<bool>(options.response_payload_into)};
  to.Clear();
  std::optional<DedupeAttempt> attempt;
  if (options.dedupe != nullptr) attempt.emplace(*options.dedupe, spec.context);
  const auto ended = [&attempt](absl::Status status) {
    if (attempt.has_value()) attempt->End(status);
    return status;
  };

  const auto unsent = [&](absl::Status status) {
    to.ReturnPayload(options.request_payload, /*may_be_read=*/false);
    to.response.Set(std::move(options.response_payload_into), false);
    return ended(NotExecuted(std::move(status)));
  };

  std::optional<ClientBulk> bulk;
  for (;;) {
    Connection& connection = *use;
    ClientSession* session = connection.usable_session();
    if (session == nullptr) {
      absl::StatusOr<ClientSession*> found =
          co_await connection.Session(options.deadline, options.wait_for_ready);
      if (!found.ok()) co_return unsent(found.status());
      session = *found;
      message_bytes = Measure(spec);
    }

    if (HasPayloads(spec.method, options) ||
        !FitsFrame(spec.context, message_bytes, session->max_body_bytes())) {
      bulk.emplace();
      status = TakeFromCaller(spec, *bulk, message_bytes, *session);
      if (status.ok() && LacksRoom(*bulk, message_bytes, spec.context, *session)) {
        const absl::StatusOr<ClientSession*> found =
            co_await AwaitRoom(connection, *session, spec, message_bytes, *bulk);
        status = found.status();
        if (found.ok()) session = *found;
      }
      // Nothing waits from here to the request's frame, or to where it waits for room.
      if (status.ok()) status = bulk->OpenLeases(*session);
      if (!status.ok()) {
        co_return ended(Settle(*bulk, NotExecuted(std::move(status)), spec.reply, to));
      }
    }

    LinkCall call(*session, connection.shard().executor(), spec.method, spec.request, spec.reply,
                  options.deadline.when(), options.info,
                  bulk.has_value() && bulk->message ? 0 : message_bytes);
    if (bulk.has_value()) call.set_bulk(&*bulk);
    if (!spec.context.empty()) {
      call.set_context(spec.context, /*travels=*/bulk.has_value() && bulk->context_bytes > 0);
    }
    status = co_await call;
    if (call.lost_unsent() && MayRepeat(spec, bulk, to)) [[unlikely]] {
      spec.may_repeat = false;
      if (bulk.has_value()) GiveBack(*bulk, options, to);
      bulk.reset();
      absl::StatusOr<ConnectionUse> another = co_await RouteOf(spec);
      if (!another.ok()) co_return unsent(another.status());
      use = *std::move(another);
      message_bytes = Measure(spec);
      continue;
    }
    if (call.landing_needed()) {
      if (!bulk.has_value()) bulk.emplace();
      status = co_await GiveLanding(call, *bulk, options.deadline);
    }
    if (!bulk.has_value()) co_return ended(std::move(status));
    if (bulk->settling()) {
      absl::Status settled = co_await bulk->Settled();
      if (!settled.ok()) {
        to.ReturnPayload(bulk->payload, /*may_be_read=*/true);
        co_return ended(Unsettled(status, std::move(settled)));
      }
    }
    if (bulk->lacks_memory() && status.ok()) {
      status = co_await PlaceResponse(connection, *bulk, options.deadline);
    }
    co_return ended(Settle(*bulk, std::move(status), spec.reply, to));
  }
}

}  // namespace

Task<absl::Status> FullCall(ConnectionUse connection, CallSpec&& spec) {
  return RunFullCall<CallSpec>(std::move(connection), std::move(spec), nullptr);
}

Task<absl::Status> FullCall(ConnectionUse connection, CallSpec& spec, TriedServers* tried) {
  return RunFullCall<CallSpec&>(std::move(connection), spec, tried);
}

Task<absl::Status> FinishInLanding(PlainCall& plain, LandingRequest wanted) {
  // The call may have ended, and lost its link, since the server asked.
  if (!plain.landing_needed()) co_return plain.TakeStatus();
  ClientBulk bulk;
  LinkCall call(plain, wanted);
  absl::Status status = co_await GiveLanding(call, bulk, plain.deadline());
  if (bulk.settling()) {
    absl::Status waited = co_await bulk.Settled();
    if (!waited.ok()) co_return Unsettled(status, std::move(waited));
  }
  co_return Settle(bulk, std::move(status), call.reply(), {.info = call.info()});
}

}  // namespace verbena::internal
