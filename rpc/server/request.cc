#include "verbena/rpc/server/request.h"

#include <utility>

#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "verbena/transport/base/status.h"

namespace verbena::internal {

namespace {

// Takes the context block, or the header of one that travels, off the message.
absl::Status TakeContext(const RequestRules& rules, IncomingRequest& into) {
  VERBENA_ASSIGN_OR_RETURN(into.context_header,
                           ParseContextHeader(into.message.data(), into.message.size()));
  const ContextHeader& header = into.context_header;
  if (!header.travels) {
    if (header.block_bytes > kMaxContextInFrame) {
      return absl::InvalidArgumentError(
          fmt::format("a context block of {} bytes in a request's frame, which takes at most {}",
                      header.block_bytes, kMaxContextInFrame));
    }
    const std::string_view block = into.message.substr(0, header.block_bytes);
    VERBENA_RETURN_IF_ERROR(ParseContext(block.data(), block.size(), into.context));
    VERBENA_RETURN_IF_ERROR(CheckAnnounced(into.context, rules.context_features));
  }
  into.has_context = true;
  into.message.remove_prefix(header.in_frame());
  return absl::OkStatus();
}

// Refuses a stream that nobody sends: a method without streams would run on the request of the call
// before.
absl::Status TakeStream(const FrameHeader& frame, IncomingRequest& into) {
  into.streams = static_cast<Streams>(frame.outcome);
  const bool is_none = into.streams == Streams::kNone;
  into.apart = (frame.flags & kFrameMessageApart) != 0;
  if ((frame.flags & kFrameOpensStream) == 0 || is_none ||
      (into.apart && into.streams != Streams::kServer) || (frame.flags & kFrameHasBulk) != 0 ||
      (into.apart && !into.message.empty())) {
    return absl::InvalidArgumentError(
        fmt::format("a request with flags {}, streams {} and {} bytes", frame.flags, frame.outcome,
                    into.message.size()));
  }
  into.message_in_frame = into.streams == Streams::kServer && !into.apart;
  return into.context.is_of_unary_call() ? NameOfStream() : absl::OkStatus();
}

absl::Status TakeBulk(const RequestRules& rules, IncomingRequest& into) {
  // Not unwrapped: that would copy all sources once more.
  const absl::StatusOr<RequestBulk> parsed =
      ParseRequestBulk(into.message.data(), into.message.size());
  VERBENA_RETURN_IF_ERROR(parsed.status());
  const RequestBulk& bulk = into.bulk.emplace(*parsed);
  const size_t room = bulk.landing.bytes;
  if (bulk.room_in_frame && room > rules.max_body_bytes - ResponseBulk::kEncodedBytes) {
    return absl::InvalidArgumentError(fmt::format(
        "room for {} bytes in a frame, whose body takes at most {}", room, rules.max_body_bytes));
  }
  if (into.traveling_context_bytes() > bulk.message_bytes) {
    return absl::InvalidArgumentError(fmt::format("a context block of {} bytes that travels in {}",
                                                  into.traveling_context_bytes(),
                                                  bulk.message_bytes));
  }
  into.payload_in_frame = into.message.data() + bulk.encoded_bytes();
  into.message.remove_prefix(bulk.frame_bytes());
  into.message_in_frame = bulk.message_bytes == 0;
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseRequest(const FrameHeader& frame, const char* body, const RequestRules& rules,
                          IncomingRequest& into) {
  into.id = {frame.call_slot, frame.call_generation};
  into.time_left_us = frame.deadline();
  into.method = frame.method;
  into.message = {body, frame.body_bytes};
  if ((frame.flags & kFrameHasContext) != 0) {
    VERBENA_RETURN_IF_ERROR(TakeContext(rules, into));
    if (into.context_header.travels && (frame.flags & (kFrameHasBulk | kFrameOpensStream)) == 0) {
      return absl::InvalidArgumentError("a context block that travels with nothing that travels");
    }
  }
  if (frame.flags >= kFrameOpensStream) return TakeStream(frame, into);
  if ((frame.flags & kFrameHasBulk) != 0) return TakeBulk(rules, into);
  return absl::OkStatus();
}

}  // namespace verbena::internal
