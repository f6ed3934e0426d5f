#include "verbena/transport/link/links.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/link/limits.h"

namespace verbena::internal {
namespace {

// Liveness checks, two each ping_interval, for which a peer may leave a PING unanswered that is to
// prove that its queue pair has no missing receive.
constexpr uint32_t kMaxProofChecks = 6;
// Between two replacements of queues that may lack receives. By failing their handshakes, peers can
// make it look so as often as they like. (start)
constexpr Duration kReplacementPause = std::chrono::seconds(10);

// Slots and links that a round looks at before others have their turn. (start)
constexpr int kChecksPerTurn = 512;

}  // namespace

uint32_t LostReceives::Spares(const LinkLimits& limits, const Device& device) {
  const ibv_device_attr& attributes = device.attributes();
  const int64_t receives = int64_t{attributes.max_srq_wr} - limits.srq_depth;
  const int64_t completions = int64_t{attributes.max_cqe} - CompletionQueueEntries(limits);
  return static_cast<uint32_t>(
      std::clamp<int64_t>(std::min(receives, completions), 0, SpareReceivesOf(limits)));
}

void LostReceives::Follow(ReceiveRing& ring) {
  ring_ = &ring;
  asked_for_doubt_ = 0;
  unquiesced_.clear();
}

void LostReceives::OnLinkFreed(LinkSlot& slot, bool told_of_last, QpIdentity qp) {
  if (std::exchange(slot.owes_proof, false)) --proofs_owed_;
  if (!std::exchange(slot.may_receive, false) || told_of_last) return;
  ForgetQuiesced();
  if (!device_.Quiesced(qp)) unquiesced_.push_back(qp);
  ring_->Doubt(slot.link->receives_held());
}

// By number: handling what was received may have freed the link.
void LostReceives::OnReceive(uint32_t qpn) {
  if (ring_->doubt().older_are_taken() && !asked()) AskForProofs();
  const Link* link = links_.FindQpn(qpn);
  if (link == nullptr || !ring_->doubt().last_was_newer()) return;
  if (std::exchange(links_.slot(link->key()).owes_proof, false)) --proofs_owed_;
}

// Each queue pair that exists when all older receives are taken may have one of them. Quiet ones
// are made to receive something.
void LostReceives::AskForProofs() {
  asked_for_doubt_ = ring_->doubt().number();
  proofs_owed_ = 0;
  for (LinkSlot& slot : links_.slots()) {
    slot.owes_proof = slot.link != nullptr && slot.may_receive;
    slot.proof_checks = 0;
    if (!slot.owes_proof) continue;
    ++proofs_owed_;
    if (slot.link->open()) slot.link->Ping();
  }
}

// connect_timeout bounds a link that is not open yet, or whose peer has not said that it may be
// sent to.
void LostReceives::Check(LinkSlot& slot) {
  if (!asked() || !slot.owes_proof) return;
  if (!slot.link->may_send()) return;
  if (slot.link->ping_is_held_up()) return;
  if (++slot.proof_checks <= kMaxProofChecks) {
    slot.link->Ping();
    return;
  }
  slot.link->Close(absl::UnavailableError(fmt::format(
      "{} has not answered a PING by which receives are accounted for", slot.link->peer())));
}

// All proofs come, or their links end, within the liveness checks that they are given. Till then
// nothing is known to be lost: a SEND of several packets takes its receive with the first.
uint32_t LostReceives::Settle(TimePoint now) {
  return asked() && proofs_owed_ == 0 ? EndDoubt(now) : 0;
}

void LostReceives::ForgetQuiesced() {
  std::erase_if(unquiesced_, [this](QpIdentity qp) { return device_.Quiesced(qp); });
}

uint32_t LostReceives::EndDoubt(TimePoint now) {
  ForgetQuiesced();
  if (!unquiesced_.empty()) {
    const uint32_t lost = ring_->WriteOff();
    VERBENA_LOG_THROTTLED(
        log_, kError, now,
        fmt::format("{} receives of {} are lost: {} queue pairs that could not be destroyed "
                    "may have them",
                    lost, device_.name(), unquiesced_.size()),
        {{"device", device_.name()}});
    return 0;
  }
  const uint32_t found = ring_->Reclaim();
  VERBENA_LOG_THROTTLED(
      log_, kWarning, now,
      fmt::format("{} dropped {} receives of queue pairs that it destroyed; they are free "
                  "again",
                  device_.name(), found),
      {{"device", device_.name()}});
  return found;
}

// New queues have all their receives. Replacing them costs nothing while no link uses them and none
// is being made.
bool LostReceives::WantsNewQueues(TimePoint now, bool in_service) {
  const bool lacks = ring_->lacks_spares() || (links_.unused() && ring_->may_be_starved());
  if (!lacks || !in_service) return false;
  if (replaced_.has_value() && now - *replaced_ < kReplacementPause) return false;
  replaced_ = now;
  VERBENA_LOG_THROTTLED(
      log_, kWarning, now,
      fmt::format("{} may have dropped more receives than there are spare ones: the queues "
                  "of this executor are replaced",
                  device_.name()),
      {{"device", device_.name()}});
  return true;
}
void LivenessRound::Start() {
  if (timer_running_) return;
  timer_running_ = true;
  executor_.StartTimer(*this, SaturatingAdd(executor_.now(), interval_));
}

void LivenessRound::Stop() {
  executor_.StopTimer(*this);
  timer_running_ = false;
}

void LivenessRound::OnTimer() {
  timer_running_ = false;
  if (!checking_) {
    context_.PollEventsIfUnattended();
    unchecked_.Append(watched_);
    unchecked_slot_ = 0;
  }
  checking_ = !CheckSome();
  if (checking_) {
    timer_running_ = true;
    executor_.StartTimer(*this, executor_.now());
  } else if (links_.count() > 0) {
    Start();
  }
}

bool LivenessRound::CheckSome() {
  const TimePoint now = executor_.now();
  int left = kChecksPerTurn;
  // Each link that is closed begins its teardown.
  const size_t most_tasks = teardowns_.size() + kTeardownStepsPerTurn;
  const auto may_go_on = [&] { return left-- > 0 && teardowns_.size() < most_tasks; };
  while (!unchecked_.empty()) {
    if (!may_go_on()) return false;
    WatchedLink* watched = unchecked_.PopFront();
    // A link that this closes may be gone afterwards.
    Link* link = static_cast<Link*>(watched);
    if (link->CheckLiveness(now) && !watched->linked()) watched_.PushBack(*watched);
  }
  for (; unchecked_slot_ < links_.slots().size(); ++unchecked_slot_) {
    if (!may_go_on()) return false;
    LinkSlot& slot = links_.slots()[unchecked_slot_];
    if (slot.link == nullptr) continue;
    slot.link->CheckUnwatched(now);
    slot.link->CheckIdle(now);
    lost_receives_.Check(slot);
  }
  return true;
}
}  // namespace verbena::internal
