#include "verbena/rpc/server/landings.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/memory/carved_arena.h"

namespace verbena::internal {
namespace {

// A grant needs this many free leases, so that some are left for the link's next use of memory.
constexpr uint32_t kSpareLeases = 4;

absl::Status NotGranted(const char* what, uint32_t slot) {
  return absl::InvalidArgumentError(fmt::format("{} slot {}, which is not granted", what, slot));
}

// A landing whose memory is not free yet, for what it counts in.
class KeptLanding final {
 public:
  KeptLanding(size_t bytes, std::shared_ptr<ServerClient> client,
              std::shared_ptr<MemoryHolders> holders)
      : bytes_(bytes), client_(std::move(client)), holders_(std::move(holders)) {}
  KeptLanding(const KeptLanding&) = delete;
  KeptLanding& operator=(const KeptLanding&) = delete;
  ~KeptLanding() {
    VERBENA_CHECK(holders_->grants >= bytes_) << holders_->grants << ", " << bytes_;
    holders_->grants -= bytes_;
  }

 private:
  const size_t bytes_;
  const std::shared_ptr<ServerClient> client_;  // whose quota it has
  const std::shared_ptr<MemoryHolders> holders_;
};

}  // namespace

void ReturnWithMemory(Buffer landing, QuotaHold hold, ServerClient& client,
                      std::shared_ptr<MemoryHolders> holders) {
  std::shared_ptr<const void> owner = client.shared_from_this();
  if (holders != nullptr) {
    owner =
        std::make_shared<KeptLanding>(hold.wanted(), client.shared_from_this(), std::move(holders));
  }
  landing.HoldUntilFree(std::move(hold), std::move(owner));
}

void ReturnUnused(UsedGrant landing, Link& link, ServerClient& client) {
  if (landing.lease == nullptr) return;
  link.EndLease(*landing.lease, nullptr);
  ReturnWithMemory(std::move(landing.buffer), std::move(landing.hold), client, nullptr);
}

GrantsGiven::~GrantsGiven() { OnLinkDown(); }

size_t GrantsGiven::count() const {
  return std::count_if(slots_.begin(), slots_.end(),
                       [](const Slot& slot) { return slot.lease != nullptr; });
}

uint32_t GrantsGiven::FreeSlot() const {
  const auto found = std::find_if(slots_.begin(), slots_.end(),
                                  [](const Slot& slot) { return slot.lease == nullptr; });
  return static_cast<uint32_t>(found - slots_.begin());
}

void GrantsGiven::Offer(Link& link, size_t bytes) {
  VERBENA_CHECK(bytes > 0) << "an empty payload needs no landing";
  const LinkLimits& limits = link.endpoint().limits();
  if (!link.has_grants() || !link.open() || bytes > limits.leases.largest_grant_bytes) return;
  // Payloads of nearly one size share landings.
  const size_t size = std::min(std::bit_ceil(std::max(bytes, kMinBufferBytes)), kMaxBufferBytes);
  if (holders_->grants + size > limits.memory.receive_bytes / 2) return;
  QuotaHold hold = client_.TryGrant(size);
  if (hold && Grant(link, size, std::move(hold))) Tell(link);
}

bool GrantsGiven::Grant(Link& link, size_t size, QuotaHold hold) {
  const uint32_t free = FreeSlot();
  if (free == slots_.size()) {
    // All slots have landings of another size: otherwise one of them would have been used.
    Revoke(link);
    return false;
  }
  if (link.free_leases() < kSpareLeases) return false;
  absl::StatusOr<Buffer> buffer = link.endpoint().memory().receive().TryAllocate(size);
  if (!buffer.ok()) return false;
  absl::StatusOr<Lease*> lease = link.OpenLease(buffer->view(), LeaseAccess::kWrite);
  if (!lease.ok() || *lease == nullptr) return false;
  slots_[free] = {.buffer = *std::move(buffer), .lease = *lease, .hold = std::move(hold)};
  holders_->grants += size;
  return true;
}

bool GrantsGiven::AppendGrant(Link& link, uint32_t slot) {
  char* body = link.Append(GrantFrame(slot), kLandingBytes);
  if (body == nullptr) return false;
  EncodeLanding(slots_[slot].lease->terms(), body);
  slots_[slot].told = true;
  return true;
}

bool GrantsGiven::AppendRevoke(Link& link, uint32_t slot) {
  if (link.Append(RevokeFrame(slot), 0) == nullptr) return false;
  slots_[slot].revoke_due = false;
  return true;
}

// Tells the client of what it does not know yet.
void GrantsGiven::Tell(Link& link) {
  if (SendWaiter::linked()) return;
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot].lease == nullptr) continue;
    const bool done = (slots_[slot].told || AppendGrant(link, slot)) &&
                      (!slots_[slot].revoke_due || AppendRevoke(link, slot));
    if (done) continue;
    body_bytes = kLandingBytes;
    link.AwaitWritable(*this);
    return;
  }
}

void GrantsGiven::OnWritable(Link& link) { Tell(link); }

void GrantsGiven::Forget(Slot& slot) {
  ReturnWithMemory(std::move(slot.buffer), std::move(slot.hold), client_, holders_);
  slot = {};
}

absl::StatusOr<UsedGrant> GrantsGiven::Use(uint32_t slot, uint64_t bytes) {
  if (slot >= slots_.size() || !slots_[slot].told) return NotGranted("a request used", slot);
  if (bytes > slots_[slot].buffer.size()) {
    return absl::InvalidArgumentError(
        fmt::format("a payload of {} bytes in slot {}, whose landing has {}", bytes, slot,
                    slots_[slot].buffer.size()));
  }
  const size_t size = slots_[slot].buffer.size();
  UsedGrant used{.buffer = std::move(slots_[slot].buffer),
                 .lease = slots_[slot].lease,
                 .hold = std::move(slots_[slot].hold)};
  VERBENA_CHECK(holders_->grants >= size) << holders_->grants << " bytes granted, " << size;
  holders_->grants -= size;
  slots_[slot] = {};
  return used;
}

absl::Status GrantsGiven::OnReturn(Link& link, uint32_t slot) {
  if (slot >= slots_.size() || !slots_[slot].told) return NotGranted("the client returns", slot);
  link.EndLease(*slots_[slot].lease, nullptr);
  Forget(slots_[slot]);
  return absl::OkStatus();
}

void GrantsGiven::Revoke(Link& link) {
  for (Slot& slot : slots_) {
    if (slot.lease == nullptr || slot.revoked) continue;
    slot.revoked = slot.revoke_due = true;
    // From now on the client has LeaseLimits::grace to return the grant.
    link.AbandonLease(*slot.lease);
  }
  Tell(link);
}

void GrantsGiven::OnLinkDown() {
  SendWaiter::Unlink();
  for (Slot& slot : slots_) {
    if (slot.lease != nullptr) Forget(slot);
  }
}

}  // namespace verbena::internal
