// Handshake messages: each value that a parser accepts is within its bounds.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/retry_after.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/connect/peer.h"

namespace verbena::internal {
namespace {

void CheckBounds(const LinkParameters& peer) {
  VERBENA_CHECK(peer.name.size() <= 4 * kMaxPeerNameBytes);  // escaped
  VERBENA_CHECK(peer.qp_number != 0 && peer.qp_number < 1u << 24);
  VERBENA_CHECK(peer.packet_sequence_number < 1u << 24);
  VERBENA_CHECK(peer.initial_credits != 0 && peer.initial_credits <= kMaxIssuedCredits);
  VERBENA_CHECK(peer.eager_bytes >= kMinEagerBytes && peer.eager_bytes <= kMaxEagerBytes);
  VERBENA_CHECK(peer.executor_index < kMaxExecutors);
  VERBENA_CHECK(peer.methods.size() <= kMaxMethods);
  for (const OfferedMethod& method : peer.methods) {
    VERBENA_CHECK(method.shape <= OfferedMethod::kShapeBits ||
                  method.shape == OfferedMethod::kShapeUntold);
    VERBENA_CHECK((method.shape == OfferedMethod::kShapeUntold) ==
                  (peer.methods[0].shape == OfferedMethod::kShapeUntold));
  }
  VERBENA_CHECK(peer.version >= kMinProtocolVersion && peer.version <= kMaxProtocolVersion);
  VERBENA_CHECK((peer.features & ~kSupportedFeatures) == 0);
}

// A server that refuses has a client wait no longer than a handshake may take.
void CheckRefusal(const absl::Status& refused) {
  const std::optional<Duration> wait = ReadRetryAfter(refused);
  VERBENA_CHECK(!wait.has_value() || (*wait > Duration::zero() && *wait <= kLongestComeAgain));
}

void Parse(const std::string& bytes) {
  if (const auto offer = ParseHello(bytes, {.executor_count = kMaxExecutors}); offer.ok()) {
    CheckBounds(*offer);
    (void)EncodeAcceptance(*offer, *offer);
  }
  if (const auto answer = ParseReply(bytes, {}); answer.ok()) {
    CheckBounds(*answer);
  } else {
    CheckRefusal(answer.status());
  }
  ParseReady(bytes).IgnoreError();
}

}  // namespace
}  // namespace verbena::internal

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  verbena::internal::Parse(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
