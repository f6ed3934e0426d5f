#include "verbena/transport/base/random.h"

#include <random>

namespace verbena::internal {
namespace {

class RealRandom final : public Random {
 public:
  uint64_t Next() override {
    thread_local SeededRandom generator(SystemSeed());
    return generator.Next();
  }

 private:
  static uint64_t SystemSeed() {
    std::random_device device;
    return uint64_t{device()} << 32 | device();
  }
};

}  // namespace

uint64_t Random::Below(uint64_t bound) {
  if (bound == 0) return 0;
  // The largest multiple of `bound` ends at the limit; numbers past it would favour small results.
  const uint64_t excess = (UINT64_MAX % bound + 1) % bound;
  uint64_t number = Next();
  while (number > UINT64_MAX - excess) number = Next();
  return number % bound;
}

Random& Random::Real() {
  static RealRandom random;
  return random;
}

uint64_t SeededRandom::Next() {
  state_ += 0x9e3779b97f4a7c15;
  uint64_t mixed = state_;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  return mixed ^ (mixed >> 31);
}

}  // namespace verbena::internal
