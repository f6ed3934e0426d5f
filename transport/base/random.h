// Random: the source of randomness, which a simulator can replace.
//
// For backoff, load spreading and sampling; never for secrets. Never fails.
//
//   SeededRandom random(seed);               // the same numbers every time
//   Duration jitter = base * random.Below(100) / 100;

#ifndef VERBENA_TRANSPORT_BASE_RANDOM_H_
#define VERBENA_TRANSPORT_BASE_RANDOM_H_

#include <cstdint>

namespace verbena::internal {

class Random {
 public:
  virtual ~Random() = default;

  // Uniform over all 64-bit numbers.
  virtual uint64_t Next() = 0;

  // Uniform over [0, bound), without bias; 0 when `bound` is 0.
  uint64_t Below(uint64_t bound);

  // Seeded by the system, differently in each thread. From any thread; never destroyed.
  static Random& Real();
};

// SplitMix64: equal seeds give equal sequences, on every machine. One thread.
class SeededRandom final : public Random {
 public:
  explicit SeededRandom(uint64_t seed) : state_(seed) {}
  uint64_t Next() override;

 private:
  uint64_t state_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_BASE_RANDOM_H_
