#include "verbena/rpc/status_codec.h"

#include "absl/strings/cord.h"
#include "fmt/format.h"
#include "verbena/status.pb.h"

namespace verbena {
namespace {

// Field numbers and lengths around the message text.
constexpr size_t kMessageOverhead = 16;

}  // namespace

std::string EncodeStatusBody(const absl::Status& status, size_t max_bytes) {
  wire::StatusBody body;
  body.set_message(std::string(status.message()));
  status.ForEachPayload([&body](absl::string_view url, const absl::Cord& value) {
    if (url == kOutcomePayloadUrl) return;
    google::protobuf::Any* detail = body.add_details();
    detail->set_type_url(std::string(url));
    detail->set_value(std::string(value));
  });
  if (body.ByteSizeLong() > max_bytes) body.clear_details();
  if (body.ByteSizeLong() > max_bytes) {
    const size_t room = max_bytes > kMessageOverhead ? max_bytes - kMessageOverhead : 0;
    body.mutable_message()->resize(room);
  }
  return body.SerializeAsString();
}

absl::Status DecodeStatus(uint8_t code, const char* body_bytes_begin, size_t body_bytes) {
  wire::StatusBody body;
  if (!body.ParseFromArray(body_bytes_begin, static_cast<int>(body_bytes))) {
    return absl::InternalError(fmt::format(
        "the peer failed the call with code {} and a status that does not parse", code));
  }
  const bool canonical =
      code >= 1 && code <= static_cast<uint8_t>(absl::StatusCode::kUnauthenticated);
  absl::Status status(canonical ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                      body.message());
  for (const google::protobuf::Any& detail : body.details()) {
    status.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
  return status;
}

}  // namespace verbena
