// The two sides of a TcpFloor's slice of payloads, over any wire for the payloads and any pipe for
// the requests and acknowledgements. SocketWire has the functions that a wire needs.

#ifndef VERBENA_BENCHMARKS_FLOOR_TCP_BLOCKS_H_
#define VERBENA_BENCHMARKS_FLOOR_TCP_BLOCKS_H_

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/floor/patience.h"
#include "benchmarks/floor/tcp_area.h"
#include "benchmarks/floor/tcp_pipe.h"
#include "verbena/benchmarks/floor/copy_floor.h"
#include "verbena/benchmarks/harness/latency_histogram.h"
#include "verbena/benchmarks/harness/stamps.h"

namespace verbena::benchmarks::internal {

inline constexpr std::size_t kWord = sizeof(std::uint64_t);  // a request, or an acknowledgement

// Payloads by send() and recv().
class SocketWire {
 public:
  explicit SocketWire(int fd) : fd_(fd) {}

  // How many bytes went, or came, at once; perhaps 0. The caller then asks again with what is left,
  // and does not use that memory meanwhile.
  absl::StatusOr<std::size_t> Send(const char* data, std::size_t bytes) {
    return SendSome(fd_, data, bytes);
  }
  absl::StatusOr<std::size_t> Receive(char* data, std::size_t bytes) {
    return ReceiveSome(fd_, data, bytes);
  }
  // Sends that have returned their bytes, but whose memory the kernel still reads.
  std::size_t held() const { return 0; }

 private:
  int fd_;
};

// The blocks of one slice, at either end. Block n lies in slot n % outstanding of `memory`.
template <typename Wire>
class Blocks {
 public:
  // Wire and memory outlive it. `memory` has slice.size * slice.outstanding bytes.
  Blocks(Wire& wire, std::span<char> memory, const CopySlice& slice)
      : wire_(wire),
        memory_(memory),
        size_(static_cast<std::size_t>(slice.size)),
        count_(static_cast<std::uint64_t>(slice.outstanding)) {}

  // Sends of block `number` what the connection takes. True once all of it is sent.
  absl::StatusOr<bool> Send(std::uint64_t number) {
    if (moved_ == 0) {
      // The kernel may still read the slot's last block.
      if (wire_.held() >= count_) return false;
      WriteStamps(Slot(number), size_, number, Stamps::kPages);
    }
    absl::StatusOr<std::size_t> sent = wire_.Send(Slot(number) + moved_, size_ - moved_);
    if (!sent.ok()) return sent.status();
    return Moved(*sent);
  }
  // The same for receiving. DATA_LOSS if the block is wrong.
  absl::StatusOr<bool> Receive(std::uint64_t number) {
    absl::StatusOr<std::size_t> got = wire_.Receive(Slot(number) + moved_, size_ - moved_);
    if (!got.ok()) return got.status();
    if (!Moved(*got)) return false;
    if (HasStamps(Slot(number), size_, number, Stamps::kPages)) return true;
    return absl::DataLossError(fmt::format("block {} is wrong", number));
  }
  bool progressed() { return std::exchange(progressed_, false); }

 private:
  char* Slot(std::uint64_t number) { return memory_.data() + number % count_ * size_; }
  bool Moved(std::size_t bytes) {
    progressed_ |= bytes > 0;
    moved_ += bytes;
    if (moved_ < size_) return false;
    moved_ = 0;
    return true;
  }

  Wire& wire_;
  const std::span<char> memory_;
  const std::size_t size_;
  const std::uint64_t count_;
  std::size_t moved_ = 0;  // of the block under way
  bool progressed_ = false;
};

// The client's side of a slice of payloads.
template <typename Wire, typename Pipe>
class BlockClient {
 public:
  // `pipe` carries requests on their way out, or acknowledgements that come.
  BlockClient(Blocks<Wire>& blocks, Pipe& pipe, const CopySlice& slice)
      : slice_(slice),
        outstanding_(static_cast<std::uint64_t>(slice.outstanding)),
        blocks_(blocks),
        pipe_(pipe),
        began_at_(outstanding_) {}

  absl::StatusOr<CopySample> Run() {
    const std::uint64_t duration_ns = static_cast<std::uint64_t>(slice_.duration_ms) * 1'000'000;
    const std::uint64_t start = NowNs();
    now_ = start;
    Patience patience;
    do {
      if (now_ - start < duration_ns) Begin();
      absl::Status status = slice_.direction == CopyDirection::kToClient ? Read() : Write();
      if (!status.ok()) return status;
      now_ = NowNs();
      if (blocks_.progressed()) patience.Reset();
      if (!patience.Spin()) return absl::DeadlineExceededError("the floor's server went silent");
    } while (ended_ < begun_ || now_ - start < duration_ns);
    return CopySample{.p50_ns = latencies_.PercentileNs(50),
                      .p99_ns = latencies_.PercentileNs(99),
                      .copies_per_s = double(latencies_.count()) * 1e9 / double(now_ - start)};
  }

 private:
  void Begin() {
    for (; begun_ - ended_ < outstanding_; ++begun_) {
      began_at_[begun_ % outstanding_] = now_;
      if (slice_.direction == CopyDirection::kToClient) pipe_.Append(&begun_, kWord);
    }
  }
  void End() {
    latencies_.Record(NowNs() - began_at_[ended_ % outstanding_]);
    ++ended_;
  }
  absl::Status Read() {
    if (absl::Status status = pipe_.Flush(); !status.ok()) return status;
    absl::StatusOr<bool> whole = ended_ < begun_ ? blocks_.Receive(ended_) : false;
    if (!whole.ok()) return whole.status();
    if (*whole) End();
    return absl::OkStatus();
  }
  absl::Status Write() {
    absl::StatusOr<bool> whole = sent_ < begun_ ? blocks_.Send(sent_) : false;
    if (!whole.ok()) return whole.status();
    if (*whole) ++sent_;
    if (absl::Status status = pipe_.Receive(); !status.ok()) return status;
    for (; pipe_.received() >= kWord; pipe_.Drop(kWord)) End();
    return absl::OkStatus();
  }

  const CopySlice slice_;
  const std::uint64_t outstanding_;
  Blocks<Wire>& blocks_;
  Pipe& pipe_;
  std::vector<std::uint64_t> began_at_;
  std::uint64_t now_ = 0;
  std::uint64_t begun_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t ended_ = 0;
  LatencyHistogram latencies_;
};

template <typename Wire, typename Pipe>
absl::StatusOr<CopySample> RunBlocks(Blocks<Wire>& blocks, Pipe& pipe, const CopySlice& slice,
                                     const SliceWords& words) {
  BlockClient<Wire, Pipe> client(blocks, pipe, slice);
  if (absl::Status status = words.AwaitSetUp(); !status.ok()) return status;
  return client.Run();
}

template <typename Wire, typename Pipe>
absl::Status ServeBlocks(Blocks<Wire>& blocks, Pipe& pipe, const CopySlice& slice,
                         const SliceWords& words) {
  const bool sends = slice.direction == CopyDirection::kToClient;
  words.SetUp();
  Patience patience;
  std::uint64_t asked = 0;
  for (std::uint64_t done = 0;;) {
    absl::StatusOr<bool> whole = false;
    if (sends) {
      if (absl::Status status = pipe.Receive(); !status.ok()) return status;
      for (; pipe.received() >= kWord; pipe.Drop(kWord)) ++asked;
      if (done < asked) whole = blocks.Send(done);
    } else {
      whole = blocks.Receive(done);
    }
    if (!whole.ok()) return whole.status();
    if (*whole && !sends) pipe.Append(&done, kWord);
    if (*whole) ++done;
    if (absl::Status status = pipe.Flush(); !status.ok()) return status;
    if (blocks.progressed()) {
      patience.Reset();
    } else if (words.ended()) {
      return absl::OkStatus();
    } else if (!patience.Spin()) {
      return absl::DeadlineExceededError("the floor's client went silent");
    }
  }
}

}  // namespace verbena::benchmarks::internal

#endif  // VERBENA_BENCHMARKS_FLOOR_TCP_BLOCKS_H_
