// Randomness that a simulator can replace: Random and SeededRandom; and Backoff, pauses that grow
// and vary at random.
//
// For backoff, load spreading and sampling; never for secrets.

#ifndef VERBENA_TRANSPORT_BASE_RANDOM_H_
#define VERBENA_TRANSPORT_BASE_RANDOM_H_

#include <algorithm>
#include <cstdint>

#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/export.h"

namespace verbena::internal {

// Random: gives random numbers. A simulator can replace it.
//
// For backoff, load spreading and sampling; never for secrets. Never fails.
//
//   SeededRandom random(seed);               // the same numbers every time
//   Duration jitter = base * random.Below(100) / 100;
class VERBENA_EXPORT Random {
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
class VERBENA_EXPORT SeededRandom final : public Random {
 public:
  explicit SeededRandom(uint64_t seed) : state_(seed) {}
  uint64_t Next() override;

 private:
  uint64_t state_;
};

// Backoff: growing pauses between attempts at something. Each pause is twice the one before, up to
// a longest. Each varies at random by up to a fifth, so that many clients that lost one server do
// not come back at once.
//
//   Backoff backoff(std::chrono::milliseconds(10), std::chrono::seconds(2));
//   while (!Try()) co_await Sleep(backoff.Next());
//   backoff.Reset();
//
// A value; one thread.
class Backoff {
 public:
  // `random`, the system's by default, outlives it.
  Backoff(Duration first, Duration longest, Random& random = Random::Real())
      : first_(first), longest_(longest), random_(&random), pause_(first) {
    VERBENA_CHECK(first > Duration::zero() && first <= longest)
        << first.count() << " ns, at most " << longest.count();
  }

  // The pause before the next attempt.
  Duration Next() {
    const Duration pause = pause_;
    pause_ = pause_ > longest_ / 2 ? longest_ : pause_ * 2;
    const auto fifth = static_cast<uint64_t>(pause.count() / 5);
    return pause - Duration(fifth) + Duration(random_->Below(2 * fifth + 1));
  }
  // The next pause is the first one again.
  void Reset() { pause_ = first_; }

 private:
  Duration first_;
  Duration longest_;
  Random* random_;
  Duration pause_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_BASE_RANDOM_H_
