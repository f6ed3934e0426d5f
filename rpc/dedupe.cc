#include "verbena/rpc/dedupe.h"

#include <cstdint>
#include <optional>

namespace verbena {

uint64_t internal::DedupeClient::Open() {
  open_.insert(next_);
  return next_++;
}

DedupeToken::~DedupeToken() {
  if (number_ != 0) client_->Close(number_);
}

std::optional<RequestId> DedupeToken::id() const {
  if (number_ == 0) return std::nullopt;
  return RequestId{.client = client_->bits(), .number = number_};
}

}  // namespace verbena
