// TcpArea: the words that both processes of a TcpFloor share, and one slice's view of them.

#ifndef VERBENA_BENCHMARKS_FLOOR_TCP_AREA_H_
#define VERBENA_BENCHMARKS_FLOOR_TCP_AREA_H_

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "benchmarks/floor/patience.h"
#include "verbena/benchmarks/floor/copy_floor.h"
#include "verbena/benchmarks/floor/tcp_floor.h"

namespace verbena::benchmarks::internal {

// Slices are numbered from 1, as in a CopyFloor.
struct TcpArea {
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
  SliceWords(TcpArea& area, std::uint32_t number) : area_(area), number_(number) {}

  // The server's: its memory is there, and it looks at the connection from now on.
  void SetUp() const { area_.set_up.store(number_, std::memory_order_release); }
  // Whether the client has ended the slice.
  bool ended() const { return area_.ended.load(std::memory_order_acquire) == number_; }

  // The client's: waits for SetUp(), so that no call pays for it.
  absl::Status AwaitSetUp() const {
    Patience patience;
    while (area_.set_up.load(std::memory_order_acquire) != number_) {
      if (!patience.Spin()) {
        return absl::DeadlineExceededError("the floor's server has not set up its slice");
      }
    }
    return absl::OkStatus();
  }

 private:
  TcpArea& area_;
  const std::uint32_t number_;
};

}  // namespace verbena::benchmarks::internal

#endif  // VERBENA_BENCHMARKS_FLOOR_TCP_AREA_H_
