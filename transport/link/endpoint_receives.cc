// How an Endpoint finds receives that its device took and will never tell of (receive_ring.h).

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/log/log.h"
#include "verbena/transport/log/mutant.h"

namespace verbena {
namespace {

// Liveness checks, two each ping_interval, for which a peer may leave a PING unanswered that is to
// prove that its queue pair has no missing receive.
constexpr uint32_t kMaxProofChecks = 6;
// Between two replacements of queues that may lack receives. Peers whose handshakes fail can make
// it look so as often as they like. (start)
constexpr Duration kReplacementPause = std::chrono::seconds(10);

}  // namespace

uint32_t Endpoint::SpareReceives(const LinkLimits& limits, const Device& device) {
  const ibv_device_attr& attributes = device.attributes();
  const int64_t receives = int64_t{attributes.max_srq_wr} - limits.srq_depth;
  const int64_t completions = int64_t{attributes.max_cqe} - CompletionQueueEntries(limits);
  return static_cast<uint32_t>(
      std::clamp<int64_t>(std::min(receives, completions), 0, kSpareReceives));
}

// The link's queue pair is destroyed, if the device could, and its completion queue empty. A queue
// pair that has told of its last receive before that queue was emptied has left none behind.
void Endpoint::AccountForReceives(LinkSlot& slot, bool told_of_last, QpIdentity qp) {
  if (std::exchange(slot.owes_proof, false)) --proofs_owed_;
  if (!std::exchange(slot.may_receive, false) || told_of_last) return;
  ForgetQuiesced();
  if (!context_.device().Quiesced(qp)) unquiesced_.push_back(qp);
  if (VERBENA_MUTANT(kSwallowedReceivesLeak)) return;
  receives_->Doubt(slot.link->grants_.outstanding() + kReserveCredits);
}

// By number: handling what was received may have freed the link.
void Endpoint::OnReceiveInDoubt(uint32_t qpn) {
  if (receives_->older_are_taken() && asked_for_doubt_ != receives_->doubt()) AskForProof();
  const Link* link = links_.FindQpn(qpn);
  if (link != nullptr && receives_->last_was_newer()) {
    if (std::exchange(links_.slot(link->key()).owes_proof, false)) --proofs_owed_;
  }
  SettleDoubt();
}

// Each queue pair that exists when all older receives are taken may have one of them. Quiet ones
// are made to receive something.
void Endpoint::AskForProof() {
  asked_for_doubt_ = receives_->doubt();
  proofs_owed_ = 0;
  for (LinkSlot& slot : links_.slots()) {
    slot.owes_proof = slot.link != nullptr && slot.may_receive;
    slot.proof_checks = 0;
    if (!slot.owes_proof) continue;
    ++proofs_owed_;
    if (slot.link->open()) AskForProof(*slot.link);
  }
}

void Endpoint::AskForProof(Link& link) { link.Ping(); }

// All proofs come, or their links end, within the liveness checks that they are given. Till then
// nothing is known to be lost: a SEND of several packets takes its receive with the first.
void Endpoint::SettleDoubt() {
  const bool asked = receives_->older_are_taken() && asked_for_doubt_ == receives_->doubt();
  if (asked && proofs_owed_ == 0) EndDoubt();
  if (MayReplaceQueues()) {
    replaced_ = executor_.now();
    receives_log_.Write(
        LogLevel::kWarning, executor_.now(),
        fmt::format("{} may have dropped more receives than there are spare ones: the queues of "
                    "this executor are replaced",
                    device_name()));
    LoseQueues("the device may have dropped too many receives");
  }
  if (receives_->needs_post()) ScheduleFlush();
}

void Endpoint::ForgetQuiesced() {
  std::erase_if(unquiesced_, [this](QpIdentity qp) { return context_.device().Quiesced(qp); });
}

void Endpoint::EndDoubt() {
  ForgetQuiesced();
  if (!unquiesced_.empty()) {
    const uint32_t lost = receives_->WriteOff();
    receives_log_.Write(
        LogLevel::kError, executor_.now(),
        fmt::format("{} receives of {} are lost: {} queue pairs that could not be destroyed may "
                    "have them",
                    lost, device_name(), unquiesced_.size()));
    return;
  }
  const uint32_t found = receives_->Reclaim();
  stats_.receives_lost += found;
  receives_log_.Write(
      LogLevel::kWarning, executor_.now(),
      fmt::format("{} dropped {} receives of queue pairs that it destroyed; they are free again",
                  device_name(), found));
}

// New queues have all of theirs. While no link uses them, nor is being made, that costs nobody
// anything.
bool Endpoint::MayReplaceQueues() const {
  const bool unused = links_.unused();
  const bool lacks = receives_->lacks_spares() || (unused && receives_->may_be_starved());
  if (!lacks || shutting_down_ || !broken_.ok()) return false;
  return !replaced_.has_value() || executor_.now() - *replaced_ >= kReplacementPause;
}

// A link that is not open yet is bounded by connect_timeout, and so is one whose peer has not said
// that it may be sent to.
void Endpoint::CheckProof(LinkSlot& slot) {
  const bool wanted = receives_->older_are_taken() && asked_for_doubt_ == receives_->doubt();
  if (!wanted || !slot.owes_proof) return;
  const bool may_send = slot.link->open() && slot.link->held_back_ != Link::HeldBack::kUntilReady;
  if (!may_send && !VERBENA_MUTANT(kConnectingOwesProof)) return;
  if (++slot.proof_checks <= kMaxProofChecks) {
    AskForProof(*slot.link);
    return;
  }
  slot.link->Close(absl::UnavailableError(fmt::format(
      "{} has not answered a PING by which receives are accounted for", slot.link->peer())));
}

}  // namespace verbena
