#include "verbena/benchmarks/floor/copy_floor.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "benchmarks/floor/patience.h"
#include "verbena/benchmarks/harness/latency_histogram.h"
#include "verbena/benchmarks/harness/stamps.h"

namespace verbena::benchmarks {

namespace internal {

// Slices are numbered from 1. The server announces the one it is ready for; the client fills in its
// parameters and begins it; the client ends it. Words that different sides write are 128 bytes
// apart: the adjacent-line prefetcher moves lines in pairs.
struct CopyArea {
  alignas(128) std::atomic<std::uint32_t> ready;
  alignas(128) std::atomic<std::uint32_t> begun;
  CopySlice slice;  // written before `begun`
  alignas(128) std::atomic<std::uint32_t> ended;
  alignas(128) std::atomic<std::uint64_t> begun_payloads;  // client: asked for, or copied
  alignas(128) std::atomic<std::uint64_t> ended_payloads;  // server: copied, or looked at
  alignas(4096) char payloads[];
};

}  // namespace internal

namespace {

using internal::CopyArea;
using internal::NowNs;
using internal::Patience;

constexpr std::size_t kPage = 4096;

std::size_t StrideOf(const CopySlice& slice) {
  return (static_cast<std::size_t>(slice.size) + kPage - 1) / kPage * kPage;
}

absl::Status Check(const CopyFloor& floor, const CopySlice& slice) {
  if (slice.size >= 8 && slice.size % 8 == 0 && slice.outstanding >= 1 && slice.duration_ms >= 1 &&
      StrideOf(slice) * static_cast<std::size_t>(slice.outstanding) <= floor.capacity()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(fmt::format("a copy slice of {} bytes, {} outstanding, {} ms",
                                                slice.size, slice.outstanding, slice.duration_ms));
}

// The payloads of one slice. Payload n lies in slot n % outstanding.
class Slots {
 public:
  Slots(CopyFloor& floor, const CopySlice& slice)
      : size_(static_cast<std::size_t>(slice.size)),
        stride_(StrideOf(slice)),
        count_(static_cast<std::uint64_t>(slice.outstanding)),
        payloads_(floor.payloads()),
        sources_(floor.Sources(stride_ * count_)) {}

  // One payload of the copying side: a new stamp in each page, then one memcpy.
  void Copy(std::uint64_t number) const {
    char* source = sources_ + number % count_ * stride_;
    WriteStamps(source, size_, number, Stamps::kPages);
    std::memcpy(payloads_ + number % count_ * stride_, source, size_);
  }
  bool Good(std::uint64_t number) const {
    return HasStamps(payloads_ + number % count_ * stride_, size_, number, Stamps::kPages);
  }

 private:
  const std::size_t size_;
  const std::size_t stride_;
  const std::uint64_t count_;
  char* const payloads_;
  char* const sources_;
};

// The client's side of one slice.
class CopyClient {
 public:
  CopyClient(CopyFloor& floor, const CopySlice& slice)
      : area_(floor.area()),
        slice_(slice),
        slots_(floor, slice),
        began_at_(static_cast<std::size_t>(slice.outstanding)) {}

  absl::StatusOr<CopySample> Run() {
    const std::uint64_t duration_ns = static_cast<std::uint64_t>(slice_.duration_ms) * 1'000'000;
    const std::uint64_t start = NowNs();
    std::uint64_t now = start;
    Patience patience;
    do {
      if (now - start < duration_ns && begun_ - ended_ < began_at_.size()) {
        Begin(now);
      } else if (area_.ended_payloads.load(std::memory_order_acquire) == ended_) {
        if (!patience.Spin()) return absl::DeadlineExceededError("the floor's server went silent");
        continue;
      }
      patience.Reset();
      now = NowNs();
      while (area_.ended_payloads.load(std::memory_order_acquire) != ended_) {
        if (!End()) return absl::DataLossError(fmt::format("copy {} is wrong", ended_));
        now = NowNs();
        latencies_.Record(now - began_at_[ended_++ % began_at_.size()]);
      }
    } while (begun_ != ended_ || now - start < duration_ns);
    return CopySample{.p50_ns = latencies_.PercentileNs(50),
                      .p99_ns = latencies_.PercentileNs(99),
                      .copies_per_s = double(latencies_.count()) * 1e9 / double(now - start)};
  }

 private:
  void Begin(std::uint64_t now) {
    began_at_[begun_ % began_at_.size()] = now;
    if (slice_.direction == CopyDirection::kToServer) slots_.Copy(begun_);
    area_.begun_payloads.store(++begun_, std::memory_order_release);
  }

  bool End() const { return slice_.direction == CopyDirection::kToServer || slots_.Good(ended_); }

  CopyArea& area_;
  const CopySlice slice_;
  const Slots slots_;
  std::vector<std::uint64_t> began_at_;
  std::uint64_t begun_ = 0;
  std::uint64_t ended_ = 0;
  LatencyHistogram latencies_;
};

absl::Status ServePayloads(CopyFloor& floor, const CopySlice& slice, std::uint32_t number) {
  CopyArea& area = floor.area();
  const Slots slots(floor, slice);
  Patience patience;
  for (std::uint64_t ended = 0;;) {
    if (area.begun_payloads.load(std::memory_order_acquire) != ended) {
      if (slice.direction == CopyDirection::kToClient) {
        slots.Copy(ended);
      } else if (!slots.Good(ended)) {
        return absl::DataLossError(fmt::format("copy {} is wrong", ended));
      }
      area.ended_payloads.store(++ended, std::memory_order_release);
      patience.Reset();
    } else if (area.ended.load(std::memory_order_acquire) == number) {
      return absl::OkStatus();
    } else if (!patience.Spin()) {
      return absl::DeadlineExceededError("the floor's client went silent");
    }
  }
}

}  // namespace

absl::StatusOr<CopyFloor> CopyFloor::Create(std::size_t bytes) {
  const std::size_t mapped = sizeof(CopyArea) + (bytes + kPage - 1) / kPage * kPage;
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        fmt::format("mmap of {} bytes for the floor: {}", mapped, std::strerror(errno)));
  }
  return CopyFloor(static_cast<CopyArea*>(memory), mapped);
}

std::size_t CopyFloor::BytesFor(const std::vector<int>& sizes,
                                const std::vector<int>& outstanding) {
  const CopySlice largest{.size = *std::max_element(sizes.begin(), sizes.end())};
  return StrideOf(largest) *
         static_cast<std::size_t>(*std::max_element(outstanding.begin(), outstanding.end()));
}

CopyFloor::~CopyFloor() {
  if (area_ != nullptr) munmap(area_, mapped_);
}

char* CopyFloor::payloads() const { return area_->payloads; }
std::size_t CopyFloor::capacity() const { return mapped_ - sizeof(CopyArea); }

char* CopyFloor::Sources(std::size_t bytes) {
  if (sources_.size() < bytes) sources_.assign(bytes, 1);
  return sources_.data();
}

absl::Status ServeCopySlice(CopyFloor& floor) {
  CopyArea& area = floor.area();
  const std::uint32_t number = area.ended.load(std::memory_order_acquire) + 1;
  area.ready.store(number, std::memory_order_release);
  Patience patience;
  while (area.begun.load(std::memory_order_acquire) != number) {
    if (!patience.Spin()) return absl::DeadlineExceededError("no floor slice was begun");
  }
  const CopySlice slice = area.slice;
  if (absl::Status status = Check(floor, slice); !status.ok()) return status;
  return ServePayloads(floor, slice, number);
}

absl::StatusOr<CopySample> RunCopySlice(CopyFloor& floor, const CopySlice& slice) {
  if (absl::Status status = Check(floor, slice); !status.ok()) return status;
  CopyArea& area = floor.area();
  const std::uint32_t number = area.ended.load(std::memory_order_relaxed) + 1;
  Patience patience;
  while (area.ready.load(std::memory_order_acquire) != number) {
    if (!patience.Spin()) return absl::DeadlineExceededError("no server for the floor");
  }
  area.slice = slice;
  area.begun_payloads.store(0, std::memory_order_relaxed);
  area.ended_payloads.store(0, std::memory_order_relaxed);
  area.begun.store(number, std::memory_order_release);
  absl::StatusOr<CopySample> sample = CopyClient(floor, slice).Run();
  area.ended.store(number, std::memory_order_release);
  return sample;
}

}  // namespace verbena::benchmarks
