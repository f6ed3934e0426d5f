#include "verbena/rpc/server/asked_landing.h"

#include "fmt/format.h"
#include "verbena/rpc/call/call_step.h"
#include "verbena/rpc/call/frames.h"

namespace verbena::internal {

void AskedLanding::Ask(Link& link, const LandingRequest& wanted) {
  wanted_ = wanted;
  awaited_ = true;
  body_bytes = LandingRequest::kEncodedBytes;
  if (char* body = link.Append(LandingNeededFrame(call_.id), body_bytes)) {
    wanted_.Encode(body);
    AtStep(CallStep::kLandingAsked, &link);
  } else {
    link.AwaitWritable(*this);
  }
}

Task<absl::Status> AskedLanding::Arrival() { co_return co_await arrived_.Wait(); }

absl::Status AskedLanding::OnLanding(const RemoteRange& landing) {
  // A landing for a call that was cancelled meanwhile is late.
  if (!awaited_) return absl::OkStatus();
  if (landing.bytes != wanted_.payload_bytes + wanted_.message_bytes) {
    return absl::InvalidArgumentError(fmt::format("a landing of {} bytes, where {} were asked for",
                                                  landing.bytes,
                                                  wanted_.payload_bytes + wanted_.message_bytes));
  }
  awaited_ = false;
  range_ = landing;
  arrived_.Set();
  return absl::OkStatus();
}

void AskedLanding::Clear() {
  SendWaiter::Unlink();
  awaited_ = false;
  range_ = {};
  arrived_.Reset();
}

void AskedLanding::OnWritable(Link& link) {
  wanted_.Encode(link.Append(LandingNeededFrame(call_.id), body_bytes));
}

}  // namespace verbena::internal
