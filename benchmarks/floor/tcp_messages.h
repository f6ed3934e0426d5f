// The two sides of a TcpFloor's slice of messages, over any pipe: TcpPipe has the functions that a
// pipe needs.

#ifndef VERBENA_BENCHMARKS_FLOOR_TCP_MESSAGES_H_
#define VERBENA_BENCHMARKS_FLOOR_TCP_MESSAGES_H_

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/floor/patience.h"
#include "benchmarks/floor/tcp_area.h"
#include "verbena/benchmarks/floor/copy_floor.h"
#include "verbena/benchmarks/floor/floor.h"
#include "verbena/benchmarks/harness/latency_histogram.h"

namespace verbena::benchmarks::internal {

template <typename Pipe>
class MessageClient {
 public:
  // The pipe outlives the client.
  MessageClient(Pipe& pipe, const CopySlice& slice)
      : pipe_(pipe),
        size_(static_cast<std::size_t>(slice.size)),
        outstanding_(static_cast<std::size_t>(slice.outstanding)),
        duration_ns_(static_cast<std::uint64_t>(slice.duration_ms) * 1'000'000),
        pattern_(size_ + kPatterns),
        sent_at_(outstanding_) {
    for (std::size_t i = 0; i < pattern_.size(); ++i)
      pattern_[i] = static_cast<char>(i * 31 + i / 7);
  }

  absl::StatusOr<FloorSample> Run() {
    const std::uint64_t start = NowNs();
    std::uint64_t now = start;
    Patience patience;
    // No answer is left behind for the next slice.
    for (bool sending = true; sending || taken_ < sent_; sending = now - start < duration_ns_) {
      if (sending) Send(now);
      if (absl::Status status = pipe_.Flush(); !status.ok()) return status;
      if (absl::Status status = pipe_.Receive(); !status.ok()) return status;
      now = NowNs();
      if (pipe_.received() < size_) {
        if (!patience.Spin()) return absl::DeadlineExceededError("the floor's server went silent");
        continue;
      }
      patience.Reset();
      for (; pipe_.received() >= size_; pipe_.Drop(size_)) {
        if (std::memcmp(pipe_.data(), &pattern_[taken_ % kPatterns], size_) != 0) {
          return absl::DataLossError(
              fmt::format("answer {} of the floor's server is wrong", taken_));
        }
        latencies_.Record(now - sent_at_[taken_++ % outstanding_]);
      }
    }
    return FloorSample{.p50_ns = latencies_.PercentileNs(50),
                       .p99_ns = latencies_.PercentileNs(99),
                       .calls_per_s = double(latencies_.count()) * 1e9 / double(now - start)};
  }

 private:
  // Message n carries the pattern from n % kPatterns on.
  static constexpr std::size_t kPatterns = 64;

  void Send(std::uint64_t now) {
    for (; sent_ - taken_ < outstanding_; ++sent_) {
      sent_at_[sent_ % outstanding_] = now;
      pipe_.Append(&pattern_[sent_ % kPatterns], size_);
    }
  }

  Pipe& pipe_;
  const std::size_t size_;
  const std::size_t outstanding_;
  const std::uint64_t duration_ns_;
  std::vector<char> pattern_;
  std::vector<std::uint64_t> sent_at_;
  std::uint64_t sent_ = 0;
  std::uint64_t taken_ = 0;
  LatencyHistogram latencies_;
};

template <typename Pipe>
absl::StatusOr<FloorSample> RunMessages(Pipe& pipe, const CopySlice& slice,
                                        const SliceWords& words) {
  MessageClient<Pipe> client(pipe, slice);
  if (absl::Status status = words.AwaitSetUp(); !status.ok()) return status;
  return client.Run();
}

template <typename Pipe>
absl::Status ServeMessages(Pipe& pipe, const CopySlice& slice, const SliceWords& words) {
  const auto size = static_cast<std::size_t>(slice.size);
  words.SetUp();
  Patience patience;
  while (true) {
    if (absl::Status status = pipe.Receive(); !status.ok()) return status;
    const std::size_t whole = pipe.received() / size * size;
    if (whole > 0) {
      pipe.Append(pipe.data(), whole);
      pipe.Drop(whole);
      patience.Reset();
    }
    if (absl::Status status = pipe.Flush(); !status.ok()) return status;
    if (whole > 0) continue;
    if (words.ended()) return absl::OkStatus();
    if (!patience.Spin()) return absl::DeadlineExceededError("the floor's client went silent");
  }
}

}  // namespace verbena::benchmarks::internal

#endif  // VERBENA_BENCHMARKS_FLOOR_TCP_MESSAGES_H_
