#include "verbena/benchmarks/floor/tcp_fan.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "benchmarks/floor/fan_wires.h"
#include "benchmarks/floor/patience.h"
#include "benchmarks/floor/socket_pair.h"
#include "benchmarks/floor/tcp_area.h"
#include "benchmarks/floor/tcp_pipe.h"
#include "verbena/benchmarks/harness/latency_histogram.h"

namespace verbena::benchmarks {
namespace {

using internal::EpollFan;
using internal::NowNs;
using internal::Patience;
using internal::RingFan;
using internal::SliceWords;
using internal::TcpArea;

absl::Status Check(const TcpFan& fan, const CopySlice& slice, TcpWay way) {
  if (slice.size >= 1 && slice.size <= TcpFan::kMaxSize && slice.outstanding >= 1 &&
      static_cast<std::size_t>(slice.outstanding) <= fan.client_fds().size() &&
      slice.duration_ms >= 1 && (way == TcpWay::kSockets || way == TcpWay::kUring)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("a TCP slice of {} bytes on {} connections of {}, {} ms, way {}", slice.size,
                  slice.outstanding, fan.client_fds().size(), slice.duration_ms,
                  static_cast<std::uint32_t>(way)));
}

// The messages of one side's connections, as they come in.
class Arrivals {
 public:
  explicit Arrivals(const CopySlice& slice)
      : size_(static_cast<std::size_t>(slice.size)),
        bytes_(size_ * static_cast<std::size_t>(slice.outstanding)),
        filled_(static_cast<std::size_t>(slice.outstanding)) {}

  // Calls `on_message(message)` if `bytes` complete the message of connection `index`. More than a
  // message is an error of the peer's: then it returns false.
  template <typename OnMessage>
  bool Add(std::size_t index, std::span<const char> bytes, OnMessage on_message) {
    std::size_t& filled = filled_[index];
    if (bytes.size() > size_ - filled) return false;
    const std::span<char> message = std::span<char>(bytes_).subspan(index * size_, size_);
    std::copy(bytes.begin(), bytes.end(), message.begin() + static_cast<std::ptrdiff_t>(filled));
    filled += bytes.size();
    if (filled < size_) return true;
    filled = 0;
    on_message(std::span<const char>(message));
    return true;
  }

 private:
  const std::size_t size_;
  std::vector<char> bytes_;
  std::vector<std::size_t> filled_;
};

// One message on a connection that carries no other finds room, or the connection is lost.
absl::Status SendMessage(int fd, std::span<const char> message) {
  absl::StatusOr<std::size_t> sent = internal::SendSome(fd, message.data(), message.size());
  if (!sent.ok()) return sent.status();
  if (*sent == message.size()) return absl::OkStatus();
  return absl::UnavailableError("a connection of the floor takes no message");
}

class FanClient {
 public:
  FanClient(std::span<const int> fds, const CopySlice& slice)
      : fds_(fds),
        duration_ns_(static_cast<std::uint64_t>(slice.duration_ms) * 1'000'000),
        size_(static_cast<std::size_t>(slice.size)),
        pattern_(size_ + kPatterns),
        arrivals_(slice),
        sent_at_(fds.size()),
        sent_(fds.size()) {
    for (std::size_t i = 0; i < pattern_.size(); ++i)
      pattern_[i] = static_cast<char>(i * 31 + i / 7);
  }

  template <typename Wire>
  absl::StatusOr<FloorSample> Run(Wire& wire) {
    const std::uint64_t start = NowNs();
    now_ = start;
    for (std::size_t i = 0; i < fds_.size(); ++i) Send(i);
    Patience patience;
    // No answer is left behind for the next slice.
    while (open_ > 0 && status_.ok()) {
      const std::uint64_t before = latencies_.count();
      absl::Status status = wire.Poll([&](std::size_t index, std::span<const char> bytes) {
        const bool fits = arrivals_.Add(
            index, bytes, [&](std::span<const char> message) { OnAnswer(index, message, start); });
        if (!fits) status_ = absl::DataLossError("the floor's server answers twice");
      });
      if (!status.ok()) return status;
      if (latencies_.count() != before) {
        patience.Reset();
      } else if (!patience.Spin()) {
        return absl::DeadlineExceededError("the floor's server went silent");
      }
    }
    if (!status_.ok()) return status_;
    return FloorSample{.p50_ns = latencies_.PercentileNs(50),
                       .p99_ns = latencies_.PercentileNs(99),
                       .calls_per_s = double(latencies_.count()) * 1e9 / double(now_ - start)};
  }

 private:
  // Message n of a connection carries the pattern from n % kPatterns on.
  static constexpr std::size_t kPatterns = 64;

  std::span<const char> Message(std::size_t index) const {
    return std::span<const char>(pattern_).subspan(sent_[index] % kPatterns, size_);
  }
  void Send(std::size_t index) {
    sent_at_[index] = now_;
    ++open_;
    if (absl::Status status = SendMessage(fds_[index], Message(index)); !status.ok()) {
      status_ = status;
    }
  }
  void OnAnswer(std::size_t index, std::span<const char> answer, std::uint64_t start) {
    if (!std::ranges::equal(answer, Message(index))) {
      status_ = absl::DataLossError(
          fmt::format("answer {} on connection {} of the floor is wrong", sent_[index], index));
    }
    now_ = NowNs();
    latencies_.Record(now_ - sent_at_[index]);
    ++sent_[index];
    --open_;
    if (now_ - start < duration_ns_) Send(index);
  }

  const std::span<const int> fds_;
  const std::uint64_t duration_ns_;
  const std::size_t size_;
  std::vector<char> pattern_;
  Arrivals arrivals_;
  std::vector<std::uint64_t> sent_at_;
  std::vector<std::uint64_t> sent_;
  std::size_t open_ = 0;  // connections whose answer is to come
  std::uint64_t now_ = 0;
  absl::Status status_;
  LatencyHistogram latencies_;
};

template <typename Wire>
absl::Status Serve(Wire& wire, std::span<const int> fds, const CopySlice& slice,
                   const SliceWords& words) {
  Arrivals arrivals(slice);
  words.SetUp();
  absl::Status answered;
  Patience patience;
  while (true) {
    bool some = false;
    absl::Status status = wire.Poll([&](std::size_t index, std::span<const char> bytes) {
      some = true;
      const bool fits = arrivals.Add(index, bytes, [&](std::span<const char> message) {
        if (absl::Status sent = SendMessage(fds[index], message); !sent.ok()) answered = sent;
      });
      if (!fits) answered = absl::DataLossError("the floor's client asks twice");
    });
    if (!status.ok()) return status;
    if (!answered.ok()) return answered;
    if (some) {
      patience.Reset();
    } else if (words.ended()) {
      return absl::OkStatus();
    } else if (!patience.Spin()) {
      return absl::DeadlineExceededError("the floor's client went silent");
    }
  }
}

template <typename Result, typename Use>
Result WithWire(TcpWay way, std::span<const int> fds, Use use) {
  if (way == TcpWay::kSockets) {
    absl::StatusOr<EpollFan> wire = EpollFan::Create(fds);
    if (!wire.ok()) return wire.status();
    return use(*wire);
  }
  absl::StatusOr<RingFan> wire = RingFan::Create(fds);
  if (!wire.ok()) return wire.status();
  return use(*wire);
}

}  // namespace

absl::StatusOr<TcpFan> TcpFan::Create(int connections) {
  if (connections < 1 || connections > kMaxConnections) {
    return absl::InvalidArgumentError(fmt::format("{} connections for the floor", connections));
  }
  absl::StatusOr<TcpArea*> area = TcpArea::Map();
  if (!area.ok()) return area.status();
  TcpFan fan(*area);
  for (int i = 0; i < connections; ++i) {
    absl::StatusOr<internal::SocketPair> pair = internal::ConnectedPair();
    if (!pair.ok()) return pair.status();
    fan.client_fds_.push_back(pair->client.Release());
    fan.server_fds_.push_back(pair->server.Release());
  }
  return fan;
}

TcpFan::~TcpFan() {
  if (area_ == nullptr) return;
  TcpArea::Unmap(area_);
  for (const int fd : client_fds_) close(fd);
  for (const int fd : server_fds_) close(fd);
}

absl::Status ServeTcpFanSlice(TcpFan& fan) {
  TcpArea& area = fan.area();
  absl::StatusOr<SliceWords> words = SliceWords::AwaitNext(area);
  if (!words.ok()) return words.status();
  const CopySlice slice = area.slice;
  const TcpWay way = area.way;
  if (absl::Status status = Check(fan, slice, way); !status.ok()) return status;
  const std::span<const int> fds =
      std::span(fan.server_fds()).first(static_cast<std::size_t>(slice.outstanding));
  return WithWire<absl::Status>(way, fds,
                                [&](auto& wire) { return Serve(wire, fds, slice, *words); });
}

absl::StatusOr<FloorSample> RunTcpFanSlice(TcpFan& fan, const FloorSlice& slice, TcpWay way) {
  const CopySlice same{
      .size = slice.size, .outstanding = slice.outstanding, .duration_ms = slice.duration_ms};
  if (absl::Status status = Check(fan, same, way); !status.ok()) return status;
  absl::StatusOr<SliceWords> words = SliceWords::Begin(fan.area(), /*echo=*/true, way, same);
  if (!words.ok()) return words.status();
  const std::span<const int> fds =
      std::span(fan.client_fds()).first(static_cast<std::size_t>(slice.outstanding));
  absl::StatusOr<FloorSample> sample = WithWire<absl::StatusOr<FloorSample>>(
      way, fds, [&](auto& wire) -> absl::StatusOr<FloorSample> {
        FanClient client(fds, same);
        if (absl::Status status = words->AwaitSetUp(); !status.ok()) return status;
        return client.Run(wire);
      });
  words->End();
  return sample;
}

}  // namespace verbena::benchmarks
