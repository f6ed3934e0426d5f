#include "verbena/rpc/lent_landings.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/bulk_format.h"
#include "verbena/transport/log/check.h"

namespace verbena {
namespace {

FrameHeader ReturnHeader(const LentLanding& landing) {
  FrameHeader frame;
  frame.kind = FrameKind::kReturn;
  frame.argument = landing.slot;
  return frame;
}

uint32_t KeyToEnd(const Link& link, const LentLanding& landing) {
  return link.reports_invalidation() ? landing.range.rkey : 0;
}

}  // namespace

uint32_t LentLandings::Find(size_t bytes) const {
  uint32_t best = kMaxSlots;
  uint64_t best_bytes = bytes * kMaxWaste + 1;
  for (uint32_t slot = 0; slot < kMaxSlots; ++slot) {
    if (held_[slot].bytes < bytes || held_[slot].bytes >= best_bytes) continue;
    best = slot;
    best_bytes = held_[slot].bytes;
  }
  return best;
}

std::optional<LentLanding> LentLandings::Take(size_t bytes) {
  VERBENA_CHECK(bytes > 0) << "an empty payload needs no landing";
  const uint32_t slot = Find(bytes);
  if (slot == kMaxSlots) return std::nullopt;
  return LentLanding{.slot = slot, .range = std::exchange(held_[slot], {})};
}

void LentLandings::Return(Link& link, const LentLanding& landing) {
  if (returned_count_ == 0 &&
      link.Append(ReturnHeader(landing), 0, KeyToEnd(link, landing)) != nullptr) {
    Free(landing.slot);
    return;
  }
  VERBENA_CHECK(returned_count_ < kMaxSlots) << "slot " << landing.slot;
  returned_[returned_count_++] = landing;
  if (!SendWaiter::linked()) AwaitReturn(link);
}

void LentLandings::AwaitReturn(Link& link) {
  body_bytes = 0;
  invalidated = KeyToEnd(link, returned_[0]);
  link.AwaitWritable(*this);
}

void LentLandings::OnWritable(Link& link) {
  link.Append(ReturnHeader(returned_[0]), 0, invalidated);
  Free(returned_[0].slot);
  std::copy(returned_.begin() + 1, returned_.begin() + returned_count_, returned_.begin());
  if (--returned_count_ > 0) AwaitReturn(link);
}

absl::Status LentLandings::OnGrant(const Link& link, const FrameHeader& frame, const char* body) {
  absl::StatusOr<RemoteRange> range = ParseLanding(body, frame.body_bytes);
  if (!range.ok()) return range.status();
  const uint32_t slot = frame.argument;
  const bool lent = slot < kMaxSlots && (lent_ >> slot & 1) != 0;
  if (!link.grants_landings() || slot >= kMaxSlots || range->bytes == 0 || lent) {
    return absl::InvalidArgumentError(
        fmt::format("a grant of {} bytes in slot {} of {}{}{}", range->bytes, slot, kMaxSlots,
                    lent ? ", which is not free" : "",
                    link.grants_landings() ? "" : ", though none were agreed on"));
  }
  held_[slot] = *range;
  lent_ |= static_cast<uint16_t>(1u << slot);
  return absl::OkStatus();
}

absl::Status LentLandings::OnRevoke(Link& link, const FrameHeader& frame) {
  const uint32_t slot = frame.argument;
  if (slot >= kMaxSlots) {
    return absl::InvalidArgumentError(
        fmt::format("the grant of slot {} of {} is revoked", slot, kMaxSlots));
  }
  // One that was taken ends with the request that uses it.
  if (held_[slot].bytes > 0) Return(link, {slot, std::exchange(held_[slot], {})});
  return absl::OkStatus();
}

void LentLandings::OnLinkDown() {
  SendWaiter::Unlink();
  held_ = {};
  lent_ = 0;
  returned_count_ = 0;
}

}  // namespace verbena
