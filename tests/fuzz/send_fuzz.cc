// The bytes of a SEND and of its frames' bodies: no input makes a parser read outside them.

#include <cstddef>
#include <cstdint>

#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/call/context_block.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {
namespace {

// As clients and servers read the body of a frame of that kind.
void ReadBody(const FrameHeader& frame, const char* body) {
  switch (frame.kind) {
    case FrameKind::kRequest:
      if ((frame.flags & kFrameHasContext) != 0) (void)ParseContextHeader(body, frame.body_bytes);
      if ((frame.flags & kFrameHasBulk) == 0) break;
      if (const auto bulk = ParseRequestBulk(body, frame.body_bytes); bulk.ok()) {
        VERBENA_CHECK(bulk->frame_bytes() <= frame.body_bytes);
      }
      break;
    case FrameKind::kResponse:
      if ((frame.flags & kFrameHasContext) != 0) (void)ParseContextHeader(body, frame.body_bytes);
      if ((frame.flags & kFrameHasBulk) != 0) {
        const auto bulk = ParseResponseBulk(body, frame.body_bytes);
        VERBENA_CHECK(!bulk.ok() || bulk->frame_bytes() <= frame.body_bytes);
      }
      VERBENA_CHECK(!DecodeStatus(frame.status_code, body, frame.body_bytes).ok());
      break;
    case FrameKind::kLandingNeeded:
      (void)ParseLandingRequest(body, frame.body_bytes);
      break;
    case FrameKind::kPing:
    case FrameKind::kPong:
      // Nobody reads it.
      break;
    default:
      (void)ParseLanding(body, frame.body_bytes);
  }
}

void Parse(const char* bytes, size_t size) {
  FrameParser parser(bytes, size);
  while (parser.Next()) {
    const FrameHeader& frame = parser.frame();
    VERBENA_CHECK(parser.body() >= bytes && parser.body() + frame.body_bytes <= bytes + size);
    ReadBody(frame, parser.body());
  }
  VERBENA_CHECK(WireFaultName(parser.fault()) != nullptr);
}

}  // namespace
}  // namespace verbena::internal

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  verbena::internal::Parse(reinterpret_cast<const char*>(data), size);
  return 0;
}
