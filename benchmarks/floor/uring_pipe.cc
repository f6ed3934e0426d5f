#include "benchmarks/floor/uring_pipe.h"

#include <utility>

#include "absl/status/statusor.h"

namespace verbena::benchmarks::internal {

void UringPipe::Append(const void* data, std::size_t bytes) {
  const auto* const begin = static_cast<const char*>(data);
  waiting_.insert(waiting_.end(), begin, begin + bytes);
}

absl::Status UringPipe::Flush() {
  if (going_.empty()) {
    if (waiting_.empty()) return absl::OkStatus();
    std::swap(going_, waiting_);
  }
  absl::StatusOr<std::size_t> sent = socket_.Send(going_.data() + gone_, going_.size() - gone_);
  if (!sent.ok()) return sent.status();
  gone_ += *sent;
  if (gone_ < going_.size()) return absl::OkStatus();
  going_.clear();
  gone_ = 0;
  return absl::OkStatus();
}

absl::Status UringPipe::Receive() {
  if (!in_.empty() && !in_is_rest_) {
    // Its buffer is about to be provided again.
    rest_.assign(in_.begin(), in_.end());
    in_ = rest_;
    in_is_rest_ = true;
  }
  absl::StatusOr<std::span<const char>> got = socket_.Next();
  if (!got.ok()) return got.status();
  if (got->empty()) return absl::OkStatus();
  in_is_rest_ = !in_.empty();
  if (!in_is_rest_) {
    in_ = *got;
    return absl::OkStatus();
  }
  rest_.erase(rest_.begin(), rest_.end() - static_cast<std::ptrdiff_t>(in_.size()));
  rest_.insert(rest_.end(), got->begin(), got->end());
  in_ = rest_;
  return absl::OkStatus();
}

}  // namespace verbena::benchmarks::internal
