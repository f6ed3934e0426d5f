#include "verbena/rpc/client/spec.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/client/channel.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/trace.h"

namespace verbena::internal {

namespace {

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

}  // namespace

CallBuffers::CallBuffers(CallOptions& options, PayloadSink received)
    : options_(options),
      received_(received),
      gave_payload_(options.request_payload.present()),
      gave_room_(static_cast<bool>(options.response_payload_into)),
      room_bytes_(static_cast<uint32_t>(std::min<size_t>(options.response_payload_into.size(),
                                                         std::numeric_limits<uint32_t>::max()))) {
  if (options.returned_payload != nullptr) *options.returned_payload = Payload();
  received.Set(Buffer(), false);
}

void CallBuffers::TakeBack() {
  if (Buffer* room = filled(); room != nullptr && gave_room()) {
    // The payload may have been shorter.
    room->set_size(room_bytes_);
    options_.response_payload_into = std::move(*room);
  }
  received_.Set(Buffer(), false);
  if (!lent_.present()) return;
  options_.request_payload = std::exchange(lent_, Payload());
  was_lent_ = true;
}

void CallBuffers::Return() {
  if (options_.returned_payload != nullptr) {
    *options_.returned_payload = was_lent_ ? Payload() : std::move(options_.request_payload);
  }
  if (options_.response_payload_into) received_.Set(TakeRoom(), false);
}

CallContext ContextOf(const CallSpec& spec, const CancelScope* scope) {
  CallOptions& options = spec.options;
  CallContext context{
      .priority = options.priority,
      .request_id = options.request_id,
      .metadata = spec.keeps_metadata ? Metadata(options.metadata) : std::move(options.metadata)};
  if (scope != nullptr && scope->trace() != nullptr) context.trace = scope->trace()->Child();
  return context;
}

Task<absl::StatusOr<ConnectionUse>> RouteOf(const CallSpec& spec) {
  return spec.channel->Route(spec.options.route_key, spec.deadline, spec.options.wait_for_ready);
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

absl::Status CheckSpec(const CallSpec& spec, const CallContext& context) {
  VERBENA_RETURN_IF_ERROR(CheckContext(context, spec.channel->options().max_metadata_bytes));
  return CheckOptions(spec.method, spec.options);
}

}  // namespace verbena::internal
