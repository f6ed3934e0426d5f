#include "verbena/rpc/client/dedupe.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "verbena/rpc/call/status_codec.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/check.h"

namespace verbena {

DedupeToken::~DedupeToken() {
  if (number_ != 0) client_->Close(number_);
}

std::optional<RequestId> DedupeToken::id() const {
  if (number_ == 0) return std::nullopt;
  return RequestId{.client = client_->bits(), .number = number_};
}

namespace internal {

uint64_t DedupeClient::Open() {
  open_.insert(next_);
  return next_++;
}

absl::Status DedupeAttempt::Bind(DedupeToken& token, const std::shared_ptr<DedupeClient>& client) {
  if (token.client_ == nullptr) token.client_ = client;
  if (token.client_ == client) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "CallOptions::dedupe is the token of a call that was first made through another channel or "
      "on another executor: repeat a call where it began, or take a fresh token");
}

DedupeAttempt::DedupeAttempt(DedupeToken& token, CallContext& context) : token_(token) {
  DedupeClient& client = *token.client_;
  if (token.number_ == 0) token.number_ = client.Open();
  DedupeName name{.id = *token.id(), .acknowledged_below = client.acknowledged_below()};
  if (token.unsent_ > 0 || token.unknown_ || token.sent_.size() > 1) {
    name.earlier = DedupeName::kSeveral;
  } else if (!token.sent_.empty()) {
    name.earlier = token.sent_.front().incarnation;
  }
  context.dedupe = name;
  context.sent_listener = this;
  ++token.unsent_;
}

DedupeAttempt::~DedupeAttempt() { Settle(); }

void DedupeAttempt::Settle() {
  if (!std::exchange(unsent_, false)) return;
  VERBENA_CHECK(token_.unsent_ > 0);
  --token_.unsent_;
}

void DedupeAttempt::OnContextSent(CallContext& context, uint64_t incarnation) {
  // Calls that begin later may reach the server before one that waited here.
  context.dedupe->highest = token_.client_->highest();
  Settle();
  sent_to_ = incarnation;
  const auto place = std::find_if(
      token_.sent_.begin(), token_.sent_.end(),
      [incarnation](const DedupeToken::Place& each) { return each.incarnation == incarnation; });
  if (place != token_.sent_.end()) {
    ++place->attempts;
  } else if (incarnation == 0 || token_.sent_.size() == DedupeToken::kMaxPlaces) {
    token_.unknown_ = true;
  } else {
    token_.sent_.push_back({.incarnation = incarnation, .attempts = 1});
  }
}

void DedupeAttempt::Withdraw() {
  const auto place =
      std::find_if(token_.sent_.begin(), token_.sent_.end(),
                   [this](const DedupeToken::Place& each) { return each.incarnation == sent_to_; });
  if (place != token_.sent_.end() && --place->attempts == 0) token_.sent_.erase(place);
}

void DedupeAttempt::End(const absl::Status& status) {
  Settle();
  if (status.ok()) return;
  const bool refused = OutcomeOf(status) == Outcome::kNotExecuted;
  if (refused || status.GetPayload(kUnprovenPayloadUrl).has_value()) Withdraw();
}

absl::Status StatusOfCall(const DedupeToken& token, absl::Status last) {
  if (last.ok() || OutcomeOf(last) != Outcome::kNotExecuted || !token.may_have_run()) return last;
  return WithOutcome(std::move(last), Outcome::kMaybeExecuted);
}

}  // namespace internal
}  // namespace verbena
