#include "verbena/transport/link/proof.h"

#include <chrono>
#include <string>

#include "fmt/format.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/context.h"

namespace verbena::internal {

LinkProof::LinkProof(LinkHost& host, LinkTable& links, LinkKey key)
    : host_(host),
      links_(links),
      key_(key),
      begun_(host.executor().FreshNow()),
      loss_(absl::UnavailableError("it closed as soon as it was open")),
      failure_(absl::CancelledError("connecting was given up")) {
  Link* const link = Find();
  if (link == nullptr) return;
  peer_ = link->peer();
  packet_bytes_ = link->packet_bytes();
  link->AwaitPongs(*this);
}

LinkProof::~LinkProof() {
  if (proven_) return;
  if (Link* link = Find()) link->Close(failure_);
}

Task<absl::StatusOr<Link*>> LinkProof::Await(TimePoint limit) {
  absl::Status tried = co_await RoundTrip(/*padding=*/0, limit);
  Link* link = Find();
  if (tried.ok() && link != nullptr && link->packet_padding() != 0) {
    tried = co_await RoundTrip(link->packet_padding(), limit);
    link = Find();
  }
  if (tried.ok() && link == nullptr) tried = Lost();
  if (!tried.ok()) {
    failure_ = tried;
    co_return tried;
  }
  proven_ = true;
  co_return link;
}

Task<absl::Status> LinkProof::RoundTrip(uint32_t padding, TimePoint limit) {
  if (Find() == nullptr) co_return Lost();
  wanted_ = padding;
  ended_.Reset();
  Find()->Ping(padding);
  const absl::Status waited = co_await WithDeadline(WaitFor(ended_), limit);
  if (broken_) co_return Unanswered(padding);
  if (Find() == nullptr) co_return Lost();
  if (absl::IsDeadlineExceeded(waited)) co_return Unanswered(padding);
  co_return waited;
}

absl::Status LinkProof::Unanswered(uint32_t padding) const {
  const auto waited =
      std::chrono::duration_cast<std::chrono::milliseconds>(host_.executor().FreshNow() - begun_);
  const std::string how = broken_
                              ? std::string(loss_.message())
                              : fmt::format("no PING was answered within {} ms", waited.count());
  const std::string& device = host_.device().name();
  if (padding == 0) {
    return absl::UnavailableError(
        fmt::format("a link to {} over {} opened, and then carried nothing: {}; the path of the "
                    "device's packets is broken (neighbour entry, route, firewall), or the server "
                    "stands still",
                    peer_, device, how));
  }
  return absl::UnavailableError(
      fmt::format("a link to {} over {} carries short packets, but none of {} bytes: {}; an "
                  "interface or switch on the path has a smaller MTU (give all the same MTU, or "
                  "set RdmaOptions::path_mtu to a smaller one), or a side had no send buffer for "
                  "the packet (raise LinkLimits::send_buffers there)",
                  peer_, device, packet_bytes_, how));
}

Link* LinkProof::Find() const {
  Link* link = links_.Find(key_);
  return link != nullptr && link->open() ? link : nullptr;
}

absl::Status LinkProof::Lost() const {
  return absl::UnavailableError(
      fmt::format("the link was lost before it was of use: {}", std::string(loss_.message())));
}

void LinkProof::OnPong(uint32_t padding) {
  if (padding >= wanted_) ended_.Set();
}

void LinkProof::OnLinkLost(const absl::Status& reason) {
  loss_ = reason;
  const Link* const link = links_.Find(key_);
  broken_ = link != nullptr && link->broken();
  ended_.Set();
}

}  // namespace verbena::internal
