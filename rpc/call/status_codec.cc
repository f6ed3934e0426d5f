#include "verbena/rpc/call/status_codec.h"

#include "absl/strings/cord.h"
#include "fmt/format.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/status.pb.h"

namespace verbena::internal {
namespace {

// Field numbers and lengths around the message text.
constexpr size_t kMessageOverhead = 16;

// Details that concern one call to one process alone.
bool IsLocal(absl::string_view url) {
  return url == kOutcomePayloadUrl || url == kRefusalPayloadUrl || url == kLostLinkPayloadUrl;
}

// At most `bytes` of `text`, without the beginning of a UTF-8 character whose end is cut off.
size_t LengthOfWholeCharacters(const std::string& text, size_t bytes) {
  if (bytes >= text.size()) return text.size();
  size_t length = bytes;
  while (length > 0 && bytes - length < 4 && (text[length] & 0xc0) == 0x80) --length;
  return (text[length] & 0xc0) == 0x80 ? bytes : length;
}

wire::StatusBody BodyOf(const absl::Status& status) {
  wire::StatusBody body;
  body.set_message(std::string(status.message()));
  status.ForEachPayload([&body](absl::string_view url, const absl::Cord& value) {
    if (IsLocal(url)) return;
    wire::StatusBody::Detail* detail = body.add_details();
    detail->set_type_url(std::string(url));
    detail->set_value(std::string(value));
  });
  return body;
}

}  // namespace

std::unique_ptr<MessageLite> StatusBodyOf(const absl::Status& status) {
  return std::make_unique<wire::StatusBody>(BodyOf(status));
}

bool StatusFits(const absl::Status& status, size_t max_bytes) {
  size_t least = kMessageOverhead + status.message().size();
  bool has_details = false;
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& value) {
    if (IsLocal(url)) return;
    has_details = true;
    least += url.size() + value.size();
  });
  if (!has_details || least > max_bytes) return least <= max_bytes;
  return BodyOf(status).ByteSizeLong() <= max_bytes;
}

std::string EncodeStatusBody(const absl::Status& status, size_t max_bytes) {
  wire::StatusBody body = BodyOf(status);
  if (body.ByteSizeLong() > max_bytes) body.clear_details();
  if (body.ByteSizeLong() > max_bytes) {
    const size_t room = max_bytes > kMessageOverhead ? max_bytes - kMessageOverhead : 0;
    body.mutable_message()->resize(LengthOfWholeCharacters(body.message(), room));
  }
  return body.SerializeAsString();
}

absl::Status DecodeStatus(uint8_t code, const char* body_bytes_begin, size_t body_bytes) {
  const bool canonical =
      code >= 1 && code <= static_cast<uint8_t>(absl::StatusCode::kUnauthenticated);
  const absl::StatusCode known =
      canonical ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown;
  wire::StatusBody body;
  if (!body.ParseFromArray(body_bytes_begin, static_cast<int>(body_bytes))) {
    return absl::Status(
        known,
        fmt::format("the peer failed the call with code {} and a message that does not parse",
                    code));
  }
  absl::Status status(known, body.message());
  int details = 0;
  for (const wire::StatusBody::Detail& detail : body.details()) {
    if (++details > kMaxDetails) break;
    if (!IsLocal(detail.type_url()))
      status.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
  return status;
}

}  // namespace verbena::internal
