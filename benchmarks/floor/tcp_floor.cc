#include "verbena/benchmarks/floor/tcp_floor.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "benchmarks/floor/patience.h"
#include "benchmarks/floor/tcp_pipe.h"
#include "verbena/benchmarks/harness/latency_histogram.h"
#include "verbena/benchmarks/harness/stamps.h"

namespace verbena::benchmarks {

namespace internal {

// Slices are numbered from 1, as in a CopyFloor.
struct TcpArea {
  alignas(128) std::atomic<std::uint32_t> ready;
  alignas(128) std::atomic<std::uint32_t> begun;
  bool echo;        // the slice's kind; written before `begun`, as is the next
  CopySlice slice;  // an echo slice uses its size and outstanding alone
  alignas(128) std::atomic<std::uint32_t> ended;
};

}  // namespace internal

namespace {

using internal::NowNs;
using internal::Patience;
using internal::TcpArea;
using internal::TcpPipe;

constexpr int kMaxEchoSize = 65536;
constexpr int kMaxOutstanding = 1024;
constexpr int kMaxBlock = 1 << 26;
constexpr std::size_t kWord = sizeof(std::uint64_t);  // a request, or an acknowledgement

absl::Status Check(bool echo, const CopySlice& slice) {
  const bool good_size = echo ? slice.size >= 1 && slice.size <= kMaxEchoSize
                              : slice.size >= 8 && slice.size <= kMaxBlock && slice.size % 8 == 0;
  if (good_size && slice.outstanding >= 1 && slice.outstanding <= kMaxOutstanding &&
      slice.duration_ms >= 1) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(fmt::format("a TCP slice of {} bytes, {} outstanding, {} ms",
                                                slice.size, slice.outstanding, slice.duration_ms));
}

absl::Status Silent(const char* who) {
  return absl::DeadlineExceededError(fmt::format("the floor's {} went silent", who));
}

// The client's side of a slice of messages.
class MessageClient {
 public:
  MessageClient(int fd, const CopySlice& slice)
      : pipe_(fd),
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
        if (!patience.Spin()) return Silent("server");
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

  TcpPipe pipe_;
  const std::size_t size_;
  const std::size_t outstanding_;
  const std::uint64_t duration_ns_;
  std::vector<char> pattern_;
  std::vector<std::uint64_t> sent_at_;
  std::uint64_t sent_ = 0;
  std::uint64_t taken_ = 0;
  LatencyHistogram latencies_;
};

// Whether the client has ended the slice.
class SliceEnd {
 public:
  SliceEnd(const TcpArea& area, std::uint32_t number) : area_(area), number_(number) {}
  bool ended() const { return area_.ended.load(std::memory_order_acquire) == number_; }

 private:
  const TcpArea& area_;
  const std::uint32_t number_;
};

absl::Status ServeEcho(int fd, const CopySlice& slice, const SliceEnd& end) {
  TcpPipe pipe(fd);
  const auto size = static_cast<std::size_t>(slice.size);
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
    if (end.ended()) return absl::OkStatus();
    if (!patience.Spin()) return Silent("client");
  }
}

// The blocks of one slice, at either end. Block n lies in slot n % outstanding.
class Blocks {
 public:
  Blocks(int fd, const CopySlice& slice)
      : fd_(fd),
        size_(static_cast<std::size_t>(slice.size)),
        count_(static_cast<std::uint64_t>(slice.outstanding)),
        memory_(size_ * count_, 1) {}

  // Sends of block `number` what the connection takes. True once all of it is sent.
  absl::StatusOr<bool> Send(std::uint64_t number) {
    if (moved_ == 0) WriteStamps(Slot(number), size_, number, Stamps::kPages);
    absl::StatusOr<std::size_t> sent =
        internal::SendSome(fd_, Slot(number) + moved_, size_ - moved_);
    if (!sent.ok()) return sent.status();
    return Moved(*sent);
  }
  // The same for receiving. DATA_LOSS if the block is wrong.
  absl::StatusOr<bool> Receive(std::uint64_t number) {
    absl::StatusOr<std::size_t> got =
        internal::ReceiveSome(fd_, Slot(number) + moved_, size_ - moved_);
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

  const int fd_;
  const std::size_t size_;
  const std::uint64_t count_;
  std::vector<char> memory_;
  std::size_t moved_ = 0;  // of the block under way
  bool progressed_ = false;
};

// The client's side of a slice of payloads.
class BlockClient {
 public:
  BlockClient(int fd, const CopySlice& slice)
      : slice_(slice),
        outstanding_(static_cast<std::uint64_t>(slice.outstanding)),
        blocks_(fd, slice),
        words_(fd),
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
      if (!patience.Spin()) return Silent("server");
    } while (ended_ < begun_ || now_ - start < duration_ns);
    return CopySample{.p50_ns = latencies_.PercentileNs(50),
                      .p99_ns = latencies_.PercentileNs(99),
                      .copies_per_s = double(latencies_.count()) * 1e9 / double(now_ - start)};
  }

 private:
  void Begin() {
    for (; begun_ - ended_ < outstanding_; ++begun_) {
      began_at_[begun_ % outstanding_] = now_;
      if (slice_.direction == CopyDirection::kToClient) words_.Append(&begun_, kWord);
    }
  }
  void End() {
    latencies_.Record(NowNs() - began_at_[ended_ % outstanding_]);
    ++ended_;
  }
  absl::Status Read() {
    if (absl::Status status = words_.Flush(); !status.ok()) return status;
    absl::StatusOr<bool> whole = ended_ < begun_ ? blocks_.Receive(ended_) : false;
    if (!whole.ok()) return whole.status();
    if (*whole) End();
    return absl::OkStatus();
  }
  absl::Status Write() {
    absl::StatusOr<bool> whole = sent_ < begun_ ? blocks_.Send(sent_) : false;
    if (!whole.ok()) return whole.status();
    if (*whole) ++sent_;
    if (absl::Status status = words_.Receive(); !status.ok()) return status;
    for (; words_.received() >= kWord; words_.Drop(kWord)) End();
    return absl::OkStatus();
  }

  const CopySlice slice_;
  const std::uint64_t outstanding_;
  Blocks blocks_;
  TcpPipe words_;  // requests on their way out, or acknowledgements that came
  std::vector<std::uint64_t> began_at_;
  std::uint64_t now_ = 0;
  std::uint64_t begun_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t ended_ = 0;
  LatencyHistogram latencies_;
};

absl::Status ServeBlocks(int fd, const CopySlice& slice, const SliceEnd& end) {
  const bool sends = slice.direction == CopyDirection::kToClient;
  Blocks blocks(fd, slice);
  TcpPipe words(fd);
  Patience patience;
  std::uint64_t asked = 0;
  for (std::uint64_t done = 0;;) {
    absl::StatusOr<bool> whole = false;
    if (sends) {
      if (absl::Status status = words.Receive(); !status.ok()) return status;
      for (; words.received() >= kWord; words.Drop(kWord)) ++asked;
      if (done < asked) whole = blocks.Send(done);
    } else {
      whole = blocks.Receive(done);
    }
    if (!whole.ok()) return whole.status();
    if (*whole && !sends) words.Append(&done, kWord);
    if (*whole) ++done;
    if (absl::Status status = words.Flush(); !status.ok()) return status;
    if (blocks.progressed()) {
      patience.Reset();
    } else if (end.ended()) {
      return absl::OkStatus();
    } else if (!patience.Spin()) {
      return Silent("client");
    }
  }
}

absl::Status SocketError(const char* what) {
  return absl::UnavailableError(fmt::format("{} for the floor: {}", what, std::strerror(errno)));
}

// A socket that closes itself.
class Socket {
 public:
  Socket() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  explicit Socket(int fd) : fd_(fd) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// The two ends of a connection over loopback.
absl::StatusOr<std::pair<int, int>> ConnectedPair() {
  Socket listener;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (listener.fd() < 0 || bind(listener.fd(), any, length) != 0 || listen(listener.fd(), 1) != 0 ||
      getsockname(listener.fd(), any, &length) != 0) {
    return SocketError("a listening socket");
  }
  Socket client;
  if (client.fd() < 0 || connect(client.fd(), any, length) != 0) return SocketError("connect");
  Socket server(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  if (server.fd() < 0) return SocketError("accept");
  for (const int fd : {client.fd(), server.fd()}) {
    if (absl::Status status = internal::MakePollable(fd); !status.ok()) return status;
  }
  return std::pair(client.Release(), server.Release());
}

// Waits for the server, and begins the slice that `run` runs.
template <typename Sample, typename RunSlice>
absl::StatusOr<Sample> RunWith(TcpFloor& floor, bool echo, const CopySlice& slice, RunSlice run) {
  if (absl::Status status = Check(echo, slice); !status.ok()) return status;
  TcpArea& area = floor.area();
  const std::uint32_t number = area.ended.load(std::memory_order_relaxed) + 1;
  Patience patience;
  while (area.ready.load(std::memory_order_acquire) != number) {
    if (!patience.Spin()) return absl::DeadlineExceededError("no server for the floor");
  }
  area.echo = echo;
  area.slice = slice;
  area.begun.store(number, std::memory_order_release);
  absl::StatusOr<Sample> sample = run();
  area.ended.store(number, std::memory_order_release);
  return sample;
}

}  // namespace

absl::StatusOr<TcpFloor> TcpFloor::Create() {
  absl::StatusOr<std::pair<int, int>> pair = ConnectedPair();
  if (!pair.ok()) return pair.status();
  Socket client(pair->first);
  Socket server(pair->second);
  void* memory =
      mmap(nullptr, sizeof(TcpArea), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return SocketError("mmap");
  return TcpFloor(static_cast<TcpArea*>(memory), client.Release(), server.Release());
}

TcpFloor::~TcpFloor() {
  if (area_ == nullptr) return;
  munmap(area_, sizeof(TcpArea));
  close(client_fd_);
  close(server_fd_);
}

absl::Status ServeTcpSlice(TcpFloor& floor) {
  TcpArea& area = floor.area();
  const std::uint32_t number = area.ended.load(std::memory_order_acquire) + 1;
  area.ready.store(number, std::memory_order_release);
  Patience patience;
  while (area.begun.load(std::memory_order_acquire) != number) {
    if (!patience.Spin()) return absl::DeadlineExceededError("no floor slice was begun");
  }
  const bool echo = area.echo;
  const CopySlice slice = area.slice;
  if (absl::Status status = Check(echo, slice); !status.ok()) return status;
  const SliceEnd end(area, number);
  return echo ? ServeEcho(floor.server_fd(), slice, end)
              : ServeBlocks(floor.server_fd(), slice, end);
}

absl::StatusOr<FloorSample> RunTcpSlice(TcpFloor& floor, const FloorSlice& slice) {
  const CopySlice same{
      .size = slice.size, .outstanding = slice.outstanding, .duration_ms = slice.duration_ms};
  return RunWith<FloorSample>(floor, /*echo=*/true, same,
                              [&] { return MessageClient(floor.client_fd(), same).Run(); });
}

absl::StatusOr<CopySample> RunTcpCopySlice(TcpFloor& floor, const CopySlice& slice) {
  return RunWith<CopySample>(floor, /*echo=*/false, slice,
                             [&] { return BlockClient(floor.client_fd(), slice).Run(); });
}

}  // namespace verbena::benchmarks
