// TcpArea: the words that both processes of a floor over TCP share, and one slice's view of them.

#ifndef VERBENA_BENCHMARKS_FLOOR_TCP_AREA_H_
#define VERBENA_BENCHMARKS_FLOOR_TCP_AREA_H_

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/benchmarks/floor/copy_floor.h"
#include "verbena/benchmarks/floor/tcp_floor.h"

namespace verbena::benchmarks::internal {

// Slices are numbered from 1, as in a CopyFloor.
struct TcpArea {
  // Memory that processes forked from this one share; unmapped by Unmap(). UNAVAILABLE.
  static absl::StatusOr<TcpArea*> Map();
  static void Unmap(TcpArea* area);

  alignas(128) std::atomic<std::uint32_t> ready;
  alignas(128) std::atomic<std::uint32_t> begun;
  bool echo;  // the slice's kind; written before `begun`, as are the next two
  TcpWay way;
  CopySlice slice;  // an echo slice uses its size and outstanding alone
  alignas(128) std::atomic<std::uint32_t> set_up;
  alignas(128) std::atomic<std::uint32_t> ended;
};

// How the two sides of one slice wait for each other.
class SliceWords {
 public:
  // The server's: waits for the next slice; `area` then holds its parameters. DEADLINE_EXCEEDED.
  static absl::StatusOr<SliceWords> AwaitNext(TcpArea& area);
  // The client's: waits for the server, and begins a slice with these parameters.
  static absl::StatusOr<SliceWords> Begin(TcpArea& area, bool echo, TcpWay way,
                                          const CopySlice& slice);

  // The server's: its memory is there, and it looks at the connection from now on.
  void SetUp() const { area_.set_up.store(number_, std::memory_order_release); }
  // Whether the client has ended the slice.
  bool ended() const { return area_.ended.load(std::memory_order_acquire) == number_; }

  // The client's: waits for SetUp(), so that no call pays for it.
  absl::Status AwaitSetUp() const;
  void End() const { area_.ended.store(number_, std::memory_order_release); }

 private:
  SliceWords(TcpArea& area, std::uint32_t number) : area_(area), number_(number) {}

  TcpArea& area_;
  std::uint32_t number_;
};

}  // namespace verbena::benchmarks::internal

#endif  // VERBENA_BENCHMARKS_FLOOR_TCP_AREA_H_
