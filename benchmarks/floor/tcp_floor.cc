#include "verbena/benchmarks/floor/tcp_floor.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "benchmarks/floor/socket_pair.h"
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
using internal::SliceWords;
using internal::SocketPair;
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

// Begins the slice that `run` runs.
template <typename Sample, typename RunSlice>
absl::StatusOr<Sample> RunWith(TcpFloor& floor, bool echo, TcpWay way, const CopySlice& slice,
                               RunSlice run) {
  if (absl::Status status = Check(echo, slice); !status.ok()) return status;
  absl::StatusOr<SliceWords> words = SliceWords::Begin(floor.area(), echo, way, slice);
  if (!words.ok()) return words.status();
  absl::StatusOr<Sample> sample = run(*words);
  words->End();
  return sample;
}

}  // namespace

absl::StatusOr<TcpFloor> TcpFloor::Create() {
  absl::StatusOr<SocketPair> pair = internal::ConnectedPair();
  if (!pair.ok()) return pair.status();
  absl::StatusOr<TcpArea*> area = TcpArea::Map();
  if (!area.ok()) return area.status();
  return TcpFloor(*area, pair->client.Release(), pair->server.Release());
}

TcpFloor::~TcpFloor() {
  if (area_ == nullptr) return;
  TcpArea::Unmap(area_);
  close(client_fd_);
  close(server_fd_);
}

absl::Status CheckTcpWay(TcpWay way, const CopySlice& slice) {
  if (way == TcpWay::kSockets) return absl::OkStatus();
  absl::StatusOr<SocketPair> pair = internal::ConnectedPair();
  if (!pair.ok()) return pair.status();
  std::vector<char> memory(way == TcpWay::kUringZeroCopy ? MemoryBytes(slice) : 0);
  return UringSocket::Create(pair->client.fd(), memory).status();
}

absl::Status ServeTcpSlice(TcpFloor& floor) {
  TcpArea& area = floor.area();
  absl::StatusOr<SliceWords> begun = SliceWords::AwaitNext(area);
  if (!begun.ok()) return begun.status();
  const bool echo = area.echo;
  const TcpWay way = area.way;
  const CopySlice slice = area.slice;
  if (absl::Status status = Check(echo, slice); !status.ok()) return status;
  const SliceWords& words = *begun;
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
