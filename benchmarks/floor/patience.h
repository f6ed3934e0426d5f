// Patience: spinning for another process that may be gone.
//
// Reads the clock only now and then. The 10 s begin at the first such reading after Reset(). One
// thread.

#ifndef VERBENA_BENCHMARKS_FLOOR_PATIENCE_H_
#define VERBENA_BENCHMARKS_FLOOR_PATIENCE_H_

#include <sched.h>

#include <chrono>
#include <cstdint>

namespace verbena::benchmarks::internal {

inline std::uint64_t NowNs() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

class Patience {
 public:
  // To be called when there was nothing to do. False once nothing has come for 10 s.
  bool Spin() {
    if (++spins_ % kSpinsPerLook != 0) return true;
    // Two processes on one core would otherwise each wait for the other's time slice to end.
    sched_yield();
    const std::uint64_t now = NowNs();
    if (since_ == 0) since_ = now;
    return now - since_ < kPatienceNs;
  }

  void Reset() {
    spins_ = 0;
    since_ = 0;
  }

 private:
  static constexpr std::uint64_t kPatienceNs = 10'000'000'000;
  static constexpr std::uint32_t kSpinsPerLook = 1 << 14;

  std::uint32_t spins_ = 0;
  std::uint64_t since_ = 0;
};

}  // namespace verbena::benchmarks::internal

#endif  // VERBENA_BENCHMARKS_FLOOR_PATIENCE_H_
