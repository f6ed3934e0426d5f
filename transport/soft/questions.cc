#include "verbena/transport/soft/questions.h"

#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"

namespace verbena::internal::soft {

void Questions::Ask(uint64_t id, const ConnectRequest& request, TimePoint now) {
  VERBENA_CHECK(asked_.empty() || asked_.rbegin()->first < id) << "question " << id;
  asked_.emplace_hint(asked_.end(), id, Asked{request, SaturatingAdd(now, kPatience)});
}

absl::StatusOr<std::optional<ConnectRequest>> Questions::Answered(uint64_t id) {
  if (over_.erase(id) != 0) return std::nullopt;
  auto node = asked_.extract(id);
  if (node.empty()) {
    return absl::InvalidArgumentError("a soft device answered what it was not asked");
  }
  return std::optional<ConnectRequest>(std::move(node.mapped().request));
}

void Questions::Forget(const ConnectRequest& request) {
  for (auto it = asked_.begin(); it != asked_.end();) {
    const ConnectRequest& asked = it->second.request;
    if (asked.qpn != request.qpn || asked.remote_qpn != request.remote_qpn) {
      ++it;
      continue;
    }
    over_.insert(it->first);
    it = asked_.erase(it);
  }
}

std::vector<ConnectRequest> Questions::TakeOverdue(TimePoint now) {
  std::vector<ConnectRequest> overdue;
  while (next() <= now) {
    auto node = asked_.extract(asked_.begin());
    over_.insert(node.key());
    overdue.push_back(std::move(node.mapped().request));
  }
  return overdue;
}

absl::Status Questions::CheckUnanswered() const {
  if (over_.size() <= kMaxUnanswered) return absl::OkStatus();
  return absl::DeadlineExceededError(fmt::format("it left {} questions unanswered", over_.size()));
}

std::vector<ConnectRequest> Questions::TakeAll() {
  std::vector<ConnectRequest> all;
  all.reserve(asked_.size());
  for (auto& [_, asked] : asked_) all.push_back(std::move(asked.request));
  asked_.clear();
  return all;
}

}  // namespace verbena::internal::soft
