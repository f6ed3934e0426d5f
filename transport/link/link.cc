#include "verbena/transport/link/link.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena::internal {

Link::Link(Endpoint& endpoint, LinkKey key, QpHandle qp, LinkListener& listener, PeerSource& source)
    : endpoint_(endpoint),
      listener_(&listener),
      qp_(std::move(qp)),
      sender_(*this, endpoint, qp_.get(), key, source) {}

void Link::SetIdentity(uint32_t psn) { terms_.identity = LinkTerms::IdentityOf(qpn(), psn); }

void Link::MarkOpen(const LinkParameters& parameters, uint32_t max_reads, const std::string& peer,
                    FirstSend first_send) {
  sender_.Open(parameters.initial_credits,
               std::min(parameters.eager_bytes, endpoint_.limits().eager_bytes), first_send);
  sender_.transfers().set_max_reads(max_reads);
  sender_.transfers().set_fences_reads(qp_.is_iwarp());
  terms_.features = parameters.features;
  terms_.peer_identity =
      LinkTerms::IdentityOf(parameters.qp_number, parameters.packet_sequence_number);
  terms_.peer = peer;
  terms_.methods = parameters.methods;
  terms_.incarnation = parameters.incarnation;
  liveness_.Begin(endpoint_.executor().now());
  state_ = LinkState::kOpen;
  // A channel may be quiet for long, and its peer could not even say that it goes away.
  if (first_send == FirstSend::kOurs) Ping();
}

void Link::OnSend(const char* bytes, size_t size, uint32_t invalidated) {
  LinkStats& stats = sender_.stats();
  ++stats.receives;
  stats.bytes_received += size;
  liveness_.Hear();
  sender_.OnHeard();
  if (invalidated != 0) sender_.leases().table().OnInvalidated(invalidated);
  FrameParser parser(bytes, size);
  if (parser.fault() == WireFault::kNone) {
    if (absl::Status status = sender_.OnHeader(parser.header()); !status.ok()) {
      Close(status);
      return;
    }
  }
  while (open() && parser.Next()) {
    ++stats.frames_received;
    const FrameHeader& frame = parser.frame();
    const bool is_control = frame.kind == FrameKind::kPing || frame.kind == FrameKind::kPong ||
                            frame.kind == FrameKind::kRecall;
    alone_ = parser.at_last() && endpoint_.handles_one_completion();
    absl::Status status = is_control ? sender_.OnControlFrame(frame)
                                     : listener_->OnFrame(*this, frame, parser.body());
    alone_ = false;
    if (!status.ok()) {
      Close(status);
      return;
    }
  }
  if (!open()) return;
  if (parser.fault() != WireFault::kNone) {
    Misread(parser.fault(), size);
    return;
  }
  sender_.OnHandled();
}

void Link::Misread(WireFault fault, size_t bytes) {
  Close(absl::InvalidArgumentError(
      fmt::format("the peer sent {} ({} bytes)", WireFaultName(fault), bytes)));
}

void Link::Close(const absl::Status& reason) {
  if (state_ != LinkState::kOpen && state_ != LinkState::kConnecting) return;
  const bool was_open = open();
  state_ = LinkState::kDraining;
  sender_.Close();
  if (was_open) listener_->OnLinkDown(*this, reason);
  WatchedLink::Unlink();
  RecallableLink::Unlink();
  endpoint_.StartTeardown(*this, reason);
  endpoint_.NoteSendRoom(source());
}

}  // namespace verbena::internal
