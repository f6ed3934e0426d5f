#include "verbena/rpc/client/landings.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/memory/carved_arena.h"

namespace verbena::internal {
namespace {

uint32_t KeyToEnd(const Link& link, const HeldGrant& landing) {
  return link.reports_invalidation() ? landing.range.rkey : 0;
}

}  // namespace

uint32_t GrantsHeld::Find(size_t bytes) const {
  uint32_t best = kMaxGrantSlots;
  uint64_t best_bytes = bytes * kMaxWaste + 1;
  for (uint32_t slot = 0; slot < kMaxGrantSlots; ++slot) {
    if (held_[slot].bytes < bytes || held_[slot].bytes >= best_bytes) continue;
    best = slot;
    best_bytes = held_[slot].bytes;
  }
  return best;
}

std::optional<HeldGrant> GrantsHeld::Take(size_t bytes) {
  VERBENA_CHECK(bytes > 0) << "an empty payload needs no landing";
  const uint32_t slot = Find(bytes);
  if (slot == kMaxGrantSlots) return std::nullopt;
  return HeldGrant{.slot = slot, .range = std::exchange(held_[slot], {})};
}

void GrantsHeld::Return(Link& link, const HeldGrant& landing) {
  if (returned_count_ == 0 &&
      link.Append(ReturnFrame(landing.slot), 0, KeyToEnd(link, landing)) != nullptr) {
    Free(landing.slot);
    return;
  }
  VERBENA_CHECK(returned_count_ < kMaxGrantSlots) << "slot " << landing.slot;
  returned_[returned_count_++] = landing;
  if (!SendWaiter::linked()) AwaitReturn(link);
}

void GrantsHeld::AwaitReturn(Link& link) {
  body_bytes = 0;
  invalidated = KeyToEnd(link, returned_[0]);
  link.AwaitWritable(*this);
}

void GrantsHeld::OnWritable(Link& link) {
  link.Append(ReturnFrame(returned_[0].slot), 0, invalidated);
  Free(returned_[0].slot);
  std::copy(returned_.begin() + 1, returned_.begin() + returned_count_, returned_.begin());
  if (--returned_count_ > 0) AwaitReturn(link);
}

absl::Status GrantsHeld::OnGrant(const Link& link, const FrameHeader& frame, const char* body) {
  VERBENA_ASSIGN_OR_RETURN(RemoteRange range, ParseLanding(body, frame.body_bytes));
  const uint32_t slot = frame.argument;
  const bool taken = slot < kMaxGrantSlots && (taken_slots_ >> slot & 1) != 0;
  if (!link.has_grants() || slot >= kMaxGrantSlots || range.bytes == 0 || taken) {
    return absl::InvalidArgumentError(
        fmt::format("a grant of {} bytes in slot {} of {}{}{}", range.bytes, slot, kMaxGrantSlots,
                    taken ? ", which is not free" : "",
                    link.has_grants() ? "" : ", though none were agreed on"));
  }
  held_[slot] = range;
  taken_slots_ |= static_cast<uint16_t>(1u << slot);
  return absl::OkStatus();
}

absl::Status GrantsHeld::OnRevoke(Link& link, const FrameHeader& frame) {
  const uint32_t slot = frame.argument;
  if (slot >= kMaxGrantSlots) {
    return absl::InvalidArgumentError(
        fmt::format("the grant of slot {} of {} is revoked", slot, kMaxGrantSlots));
  }
  // A grant that was taken ends with the request that uses it.
  if (held_[slot].bytes > 0) Return(link, {slot, std::exchange(held_[slot], {})});
  return absl::OkStatus();
}

void GrantsHeld::OnLinkDown() {
  SendWaiter::Unlink();
  held_ = {};
  taken_slots_ = 0;
  returned_count_ = 0;
}

Task<absl::StatusOr<Buffer>> AllocateLanding(std::shared_ptr<Quota> quota, const Endpoint& endpoint,
                                             size_t bytes, MemoryWait wait) {
  QuotaHold hold(*quota, SizeClassBytes(SizeClassOf(bytes)));
  VERBENA_CO_ASSIGN_OR_RETURN(
      Buffer buffer,
      co_await AllocateWithin(hold, endpoint, endpoint.memory().landing(), bytes, wait));
  buffer.HoldUntilFree(std::move(hold), std::move(quota));
  co_return buffer;
}

absl::StatusOr<Buffer> TryAllocateLanding(const std::shared_ptr<Quota>& quota,
                                          const Endpoint& endpoint, size_t bytes) {
  QuotaHold hold(*quota, SizeClassBytes(SizeClassOf(bytes)));
  if (!hold.TryTake()) {
    return absl::ResourceExhaustedError("the server's quota of landings is used up");
  }
  absl::StatusOr<Buffer> buffer = endpoint.memory().landing().TryAllocate(bytes);
  if (buffer.ok()) buffer->HoldUntilFree(std::move(hold), quota);
  return buffer;
}

}  // namespace verbena::internal
