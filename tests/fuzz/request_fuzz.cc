// The bytes of a REQUEST: no input makes its parser leave them, and its values agree with each
// other and with the bytes.
//
// An input is the flags and the outcome of a frame's header, a byte that says how large frames to
// the client may be, and the frame's body.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/server/request.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {
namespace {

constexpr size_t kHeaderBytes = 3;

void CheckRest(std::string_view rest, std::string_view body) {
  VERBENA_CHECK(rest.data() >= body.data() && rest.size() <= body.size()) << rest.size();
  VERBENA_CHECK(rest.data() + rest.size() == body.data() + body.size()) << body.size();
}

void CheckBulk(const IncomingRequest& request, std::string_view body, size_t max_body_bytes) {
  const RequestBulk& bulk = *request.bulk;
  VERBENA_CHECK(request.message_in_frame == (bulk.message_bytes == 0)) << bulk.message_bytes;
  VERBENA_CHECK(request.traveling_context_bytes() <= bulk.message_bytes) << bulk.message_bytes;
  VERBENA_CHECK(!bulk.room_in_frame || bulk.landing.bytes <= max_body_bytes) << max_body_bytes;
  if (!bulk.payload_in_frame) return;
  VERBENA_CHECK(request.payload_in_frame >= body.data()) << body.size();
  VERBENA_CHECK(request.payload_in_frame + bulk.payload_bytes == request.message.data())
      << bulk.payload_bytes;
}

void Parse(const uint8_t* data, size_t size) {
  if (size < kHeaderBytes) return;
  FrameHeader frame;
  frame.flags = data[0] & kFrameKnownFlags[static_cast<size_t>(FrameKind::kRequest)];
  frame.outcome = data[1];
  const size_t max_body_bytes = 128 + size_t{data[2]} * 32;
  const std::string_view body(reinterpret_cast<const char*>(data) + kHeaderBytes,
                              size - kHeaderBytes);
  frame.body_bytes = static_cast<uint32_t>(body.size());
  IncomingRequest request;
  const ContextFeatures features{.names_attempts = data[2] % 2 != 0,
                                 .tells_highest = data[2] / 2 % 2 != 0};
  const RequestRules rules{.max_body_bytes = max_body_bytes, .context_features = features};
  if (!ParseRequest(frame, body.data(), rules, request).ok()) return;
  VERBENA_CHECK(features.names_attempts || request.context.earlier.empty()) << body.size();
  VERBENA_CHECK(features.tells_highest || !request.context.tells_highest) << body.size();
  CheckRest(request.message, body);
  const bool is_plain =
      !request.has_context && !request.bulk.has_value() && request.streams == Streams::kNone;
  VERBENA_CHECK(is_plain == (frame.flags == 0)) << int{frame.flags};
  VERBENA_CHECK(!request.apart || request.streams == Streams::kServer) << int{frame.outcome};
  VERBENA_CHECK(!request.context_header.travels || request.context.empty()) << body.size();
  VERBENA_CHECK(request.context.empty() || request.has_context) << body.size();
  if (request.bulk.has_value()) CheckBulk(request, body, max_body_bytes);
}

}  // namespace
}  // namespace verbena::internal

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  verbena::internal::Parse(data, size);
  return 0;
}
