// CpuPin: keeps the calling thread on one core while it lives.
//
// The thread gets its earlier set of cores back when the pin is destroyed, on the same thread. A
// core that cannot be had is logged, and the thread stays where it was.

#ifndef VERBENA_TRANSPORT_EXECUTOR_CPU_PIN_H_
#define VERBENA_TRANSPORT_EXECUTOR_CPU_PIN_H_

#include <sched.h>

namespace verbena::internal {

class CpuPin {
 public:
  // -1 pins to nothing.
  explicit CpuPin(int cpu);
  CpuPin(const CpuPin&) = delete;
  CpuPin& operator=(const CpuPin&) = delete;
  ~CpuPin();

 private:
  bool pinned_ = false;
  cpu_set_t before_ = {};
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_EXECUTOR_CPU_PIN_H_
