// RetryAccount: one executor's part of a channel's retry budget, and its counts.
//
// The tokens are gRPC's: a failure that may pass takes one, success gives a part of one back, and
// there are further attempts only while more than half of them are left. Used on its executor's
// thread; AddTo() reads the counts from any thread.

#ifndef VERBENA_RPC_CLIENT_RETRY_ACCOUNT_H_
#define VERBENA_RPC_CLIENT_RETRY_ACCOUNT_H_

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>

#include "verbena/rpc/retry.h"

namespace verbena::internal {

class RetryAccount {
 public:
  enum class Count : uint8_t { kCalls, kRetries, kHedges, kRefusedByBudget, kRefusedAsUnsafe };

  explicit RetryAccount(const RetryBudget& budget)
      : max_(Thousandths(budget.max_tokens)),
        ratio_(Thousandths(budget.token_ratio)),
        tokens_(max_) {}

  void OnSuccess() { tokens_ = std::min(tokens_ + ratio_, max_); }
  void OnFailure() { tokens_ = std::max<int64_t>(tokens_ - kToken, 0); }
  // Whether a further attempt may begin. If not, that is counted.
  bool MayTakeMore() {
    if (max_ == 0 || tokens_ > max_ / 2) return true;
    Add(Count::kRefusedByBudget);
    return false;
  }

  // Only the executor's thread writes.
  void Add(Count count) {
    std::atomic<uint64_t>& counter = counts_[static_cast<int>(count)];
    counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  void AddTo(RetryStats& stats) const {
    const auto value = [this](Count count) {
      return counts_[static_cast<int>(count)].load(std::memory_order_relaxed);
    };
    stats.calls += value(Count::kCalls);
    stats.retries += value(Count::kRetries);
    stats.hedges += value(Count::kHedges);
    stats.refused_by_budget += value(Count::kRefusedByBudget);
    stats.refused_as_unsafe += value(Count::kRefusedAsUnsafe);
    stats.attempts = stats.calls + stats.retries + stats.hedges;
  }

 private:
  static constexpr int64_t kToken = 1000;
  static int64_t Thousandths(double value) { return std::llround(value * kToken); }

  const int64_t max_;
  const int64_t ratio_;
  int64_t tokens_;
  std::atomic<uint64_t> counts_[5] = {};
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_RETRY_ACCOUNT_H_
