// CpuNanoseconds: the processor time that all threads of a process have used so far.

#ifndef VERBENA_BENCHMARKS_HARNESS_CPU_TIME_H_
#define VERBENA_BENCHMARKS_HARNESS_CPU_TIME_H_

#include <sys/types.h>

#include <cstdint>
#include <ctime>

namespace verbena::benchmarks {

// `process` 0: this one. 0 if there is no such process.
inline uint64_t CpuNanoseconds(pid_t process = 0) {
  clockid_t clock = CLOCK_PROCESS_CPUTIME_ID;
  timespec used{};
  if (process != 0 && clock_getcpuclockid(process, &clock) != 0) return 0;
  if (clock_gettime(clock, &used) != 0) return 0;
  return static_cast<uint64_t>(used.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(used.tv_nsec);
}

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_HARNESS_CPU_TIME_H_
