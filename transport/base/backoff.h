// Backoff: growing pauses between attempts at something. Each pause is twice the one before, up to
// a longest. Each varies at random by up to a fifth, so that many who lost the same thing do not
// come back at once.
//
//   Backoff backoff(std::chrono::milliseconds(10), std::chrono::seconds(2));
//   while (!Try()) co_await Sleep(backoff.Next());
//   backoff.Reset();
//
// A value; one thread.

#ifndef VERBENA_TRANSPORT_BASE_BACKOFF_H_
#define VERBENA_TRANSPORT_BASE_BACKOFF_H_

#include <algorithm>
#include <cstdint>

#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/random.h"

namespace verbena::internal {

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

#endif  // VERBENA_TRANSPORT_BASE_BACKOFF_H_
