#include "verbena/benchmarks/floor/tcp_floor.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "benchmarks/floor/patience.h"
#include "benchmarks/floor/tcp_area.h"
#include "benchmarks/floor/tcp_blocks.h"
#include "benchmarks/floor/tcp_messages.h"
#include "benchmarks/floor/tcp_pipe.h"
#include "benchmarks/floor/uring_pipe.h"
#include "benchmarks/floor/uring_socket.h"
#include "benchmarks/floor/uring_wire.h"

namespace verbena::benchmarks {
namespace {

using internal::Blocks;
using internal::Patience;
using internal::SliceWords;
using internal::SocketWire;
using internal::TcpArea;
using internal::TcpPipe;
using internal::UringPipe;
using internal::UringSocket;
using internal::UringWire;

constexpr int kMaxEchoSize = 65536;
constexpr int kMaxOutstanding = 1024;
constexpr int kMaxBlock = 1 << 26;

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

// Calls `use` with a pipe for messages.
template <typename Result, typename Use>
Result WithPipe(int fd, TcpWay way, Use use) {
  if (way == TcpWay::kSockets) {
    TcpPipe pipe(fd);
    return use(pipe);
  }
  absl::StatusOr<std::unique_ptr<UringSocket>> socket = UringSocket::Create(fd);
  if (!socket.ok()) return socket.status();
  UringPipe pipe(**socket);
  return use(pipe);
}

std::size_t MemoryBytes(const CopySlice& slice) {
  return static_cast<std::size_t>(slice.size) * static_cast<std::size_t>(slice.outstanding);
}

// Calls `use` with the slice's blocks, and with the pipe of their requests or acknowledgements.
template <typename Result, typename Use>
Result WithBlocks(int fd, TcpWay way, const CopySlice& slice, bool sends, Use use) {
  std::vector<char> memory(MemoryBytes(slice), 1);
  if (way == TcpWay::kSockets) {
    SocketWire wire(fd);
    Blocks<SocketWire> blocks(wire, memory, slice);
    TcpPipe pipe(fd);
    return use(blocks, pipe);
  }
  const bool zero_copy = sends && way == TcpWay::kUringZeroCopy;
  absl::StatusOr<std::unique_ptr<UringSocket>> socket =
      UringSocket::Create(fd, zero_copy ? std::span<char>(memory) : std::span<char>());
  if (!socket.ok()) return socket.status();
  UringWire wire(**socket, way == TcpWay::kUringMultishot);
  Blocks<UringWire> blocks(wire, memory, slice);
  UringPipe pipe(**socket);
  return use(blocks, pipe);
}

// Waits for the server, and begins the slice that `run` runs.
template <typename Sample, typename RunSlice>
absl::StatusOr<Sample> RunWith(TcpFloor& floor, bool echo, TcpWay way, const CopySlice& slice,
                               RunSlice run) {
  if (absl::Status status = Check(echo, slice); !status.ok()) return status;
  TcpArea& area = floor.area();
  const std::uint32_t number = area.ended.load(std::memory_order_relaxed) + 1;
  Patience patience;
  while (area.ready.load(std::memory_order_acquire) != number) {
    if (!patience.Spin()) return absl::DeadlineExceededError("no server for the floor");
  }
  area.echo = echo;
  area.way = way;
  area.slice = slice;
  area.begun.store(number, std::memory_order_release);
  absl::StatusOr<Sample> sample = run(SliceWords(area, number));
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

absl::Status CheckTcpWay(TcpWay way, const CopySlice& slice) {
  if (way == TcpWay::kSockets) return absl::OkStatus();
  absl::StatusOr<std::pair<int, int>> pair = ConnectedPair();
  if (!pair.ok()) return pair.status();
  const Socket client(pair->first);
  const Socket server(pair->second);
  std::vector<char> memory(way == TcpWay::kUringZeroCopy ? MemoryBytes(slice) : 0);
  return UringSocket::Create(client.fd(), memory).status();
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
  const TcpWay way = area.way;
  const CopySlice slice = area.slice;
  if (absl::Status status = Check(echo, slice); !status.ok()) return status;
  const SliceWords words(area, number);
  if (echo) {
    return WithPipe<absl::Status>(floor.server_fd(), way, [&](auto& pipe) {
      return internal::ServeMessages(pipe, slice, words);
    });
  }
  const bool sends = slice.direction == CopyDirection::kToClient;
  return WithBlocks<absl::Status>(
      floor.server_fd(), way, slice, sends,
      [&](auto& blocks, auto& pipe) { return internal::ServeBlocks(blocks, pipe, slice, words); });
}

absl::StatusOr<FloorSample> RunTcpSlice(TcpFloor& floor, const FloorSlice& slice, TcpWay way) {
  const CopySlice same{
      .size = slice.size, .outstanding = slice.outstanding, .duration_ms = slice.duration_ms};
  return RunWith<FloorSample>(floor, /*echo=*/true, way, same, [&](const SliceWords& words) {
    return WithPipe<absl::StatusOr<FloorSample>>(floor.client_fd(), way, [&](auto& pipe) {
      return internal::RunMessages(pipe, same, words);
    });
  });
}

absl::StatusOr<CopySample> RunTcpCopySlice(TcpFloor& floor, const CopySlice& slice, TcpWay way) {
  const bool sends = slice.direction == CopyDirection::kToServer;
  return RunWith<CopySample>(floor, /*echo=*/false, way, slice, [&](const SliceWords& words) {
    return WithBlocks<absl::StatusOr<CopySample>>(
        floor.client_fd(), way, slice, sends,
        [&](auto& blocks, auto& pipe) { return internal::RunBlocks(blocks, pipe, slice, words); });
  });
}

}  // namespace verbena::benchmarks
