#include "verbena/benchmarks/floor/floor.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <vector>

#include "benchmarks/floor/floor_area.h"
#include "benchmarks/floor/patience.h"
#include "verbena/benchmarks/harness/latency_histogram.h"

namespace verbena::benchmarks {
namespace {

using internal::FloorArea;
using internal::FloorRing;
using internal::NowNs;
using internal::Patience;

bool GoodParameters(std::uint32_t size, std::uint32_t outstanding) {
  return size >= 1 && size <= kMaxFloorSize && outstanding >= 1 &&
         outstanding <= kMaxFloorOutstanding;
}

// The client's side of one slice.
class FloorClient {
 public:
  FloorClient(FloorArea& area, const FloorSlice& slice)
      : size_(static_cast<std::uint32_t>(slice.size)),
        outstanding_(static_cast<std::uint32_t>(slice.outstanding)),
        requests_(area.requests, size_, outstanding_),
        answers_(area.answers, size_, outstanding_),
        pattern_(size_ + kPatterns),
        sent_at_(outstanding_) {
    for (std::size_t i = 0; i < pattern_.size(); ++i) pattern_[i] = std::byte(i * 31 + i / 7);
  }

  absl::StatusOr<FloorSample> Run(std::uint64_t duration_ns) {
    const std::uint64_t start = NowNs();
    std::uint64_t now = start;
    Patience patience;
    SendAll(now);
    while (now - start < duration_ns) {
      if (!answers_.HasNext()) {
        if (!patience.Spin()) return absl::DeadlineExceededError("the floor's server went silent");
        continue;
      }
      patience.Reset();
      now = NowNs();
      // One reading of the clock for all that have come, as a completion queue is polled in
      // batches.
      do {
        if (absl::Status status = Take(now); !status.ok()) return status;
      } while (in_flight_ > 0 && answers_.HasNext());
      SendAll(now);
    }
    return FloorSample{.p50_ns = latencies_.PercentileNs(50),
                       .p99_ns = latencies_.PercentileNs(99),
                       .calls_per_s = double(latencies_.count()) * 1e9 / double(now - start)};
  }

 private:
  // Message n carries the pattern from n % kPatterns on, so that neighbours differ in every byte.
  static constexpr std::size_t kPatterns = 64;

  void SendAll(std::uint64_t now) {
    for (; in_flight_ < outstanding_; ++in_flight_) {
      std::memcpy(requests_.payload(), &pattern_[sent_ % kPatterns], size_);
      sent_at_[sent_ % outstanding_] = now;
      requests_.Publish();
      requests_.Advance();
      ++sent_;
    }
  }

  absl::Status Take(std::uint64_t now) {
    if (std::memcmp(answers_.payload(), &pattern_[taken_ % kPatterns], size_) != 0) {
      return absl::DataLossError(fmt::format("answer {} of the floor's server is wrong", taken_));
    }
    latencies_.Record(now - sent_at_[taken_ % outstanding_]);
    answers_.Advance();
    ++taken_;
    --in_flight_;
    return absl::OkStatus();
  }

  const std::uint32_t size_;
  const std::uint32_t outstanding_;
  FloorRing requests_;
  FloorRing answers_;
  std::vector<std::byte> pattern_;
  std::vector<std::uint64_t> sent_at_;
  std::uint64_t sent_ = 0;
  std::uint64_t taken_ = 0;
  std::uint32_t in_flight_ = 0;
  LatencyHistogram latencies_;
};

}  // namespace

absl::Status ServeFloorSlice(FloorMapping& mapping) {
  FloorArea& area = mapping.area();
  const std::uint32_t slice = area.ended.load(std::memory_order_acquire) + 1;
  area.ready.store(slice, std::memory_order_release);
  Patience patience;
  while (area.begun.load(std::memory_order_acquire) != slice) {
    if (!patience.Spin()) return absl::DeadlineExceededError("no floor slice was begun");
  }
  // Read once: the other process could change them.
  const std::uint32_t size = area.size;
  const std::uint32_t outstanding = area.outstanding;
  if (!GoodParameters(size, outstanding)) {
    return absl::InvalidArgumentError(
        fmt::format("a floor slice of {} bytes, {} outstanding", size, outstanding));
  }
  FloorRing requests(area.requests, size, outstanding);
  FloorRing answers(area.answers, size, outstanding);
  patience.Reset();
  std::array<std::byte, kMaxFloorSize> message;
  while (true) {
    if (requests.HasNext()) {
      // Copied out of shared memory, then in again: a server owns the bytes that it has received.
      std::memcpy(message.data(), requests.payload(), size);
      requests.Advance();
      std::memcpy(answers.payload(), message.data(), size);
      answers.Publish();
      answers.Advance();
      patience.Reset();
    } else if (area.ended.load(std::memory_order_acquire) == slice) {
      return absl::OkStatus();
    } else if (!patience.Spin()) {
      return absl::DeadlineExceededError("the floor's client went silent");
    }
  }
}

bool FloorServerReady(const FloorMapping& mapping) {
  const FloorArea& area = mapping.area();
  return area.ready.load(std::memory_order_acquire) ==
         area.ended.load(std::memory_order_relaxed) + 1;
}

absl::StatusOr<FloorSample> RunFloorSlice(FloorMapping& mapping, const FloorSlice& slice) {
  if (slice.size < 1 || slice.outstanding < 1 || slice.duration_ms < 1 ||
      !GoodParameters(static_cast<std::uint32_t>(slice.size),
                      static_cast<std::uint32_t>(slice.outstanding))) {
    return absl::InvalidArgumentError(
        fmt::format("a floor slice of {} bytes, {} outstanding, {} ms", slice.size,
                    slice.outstanding, slice.duration_ms));
  }
  Patience patience;
  while (!FloorServerReady(mapping)) {
    if (!patience.Spin()) return absl::DeadlineExceededError("no server for the floor");
  }
  FloorArea& area = mapping.area();
  // Message numbers of the last slice must not be taken for those of this one.
  std::memset(area.requests, 0, sizeof(area.requests));
  std::memset(area.answers, 0, sizeof(area.answers));
  area.size = static_cast<std::uint32_t>(slice.size);
  area.outstanding = static_cast<std::uint32_t>(slice.outstanding);
  const std::uint32_t number = area.ready.load(std::memory_order_relaxed);
  area.begun.store(number, std::memory_order_release);
  absl::StatusOr<FloorSample> sample =
      FloorClient(area, slice).Run(static_cast<std::uint64_t>(slice.duration_ms) * 1'000'000);
  area.ended.store(number, std::memory_order_release);
  return sample;
}

}  // namespace verbena::benchmarks
