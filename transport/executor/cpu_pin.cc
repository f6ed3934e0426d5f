#include "transport/executor/cpu_pin.h"

#include <pthread.h>

#include <cerrno>

#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/device/verbs_status.h"

namespace verbena::internal {
namespace {

// Returns an errno.
int Pin(int cpu, cpu_set_t& before) {
  if (cpu >= CPU_SETSIZE) return EINVAL;
  const int error = pthread_getaffinity_np(pthread_self(), sizeof(before), &before);
  if (error != 0) return error;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  return pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
}

}  // namespace

CpuPin::CpuPin(int cpu) {
  if (cpu < 0) return;
  const int error = Pin(cpu, before_);
  pinned_ = error == 0;
  if (pinned_) return;
  Log(LogLevel::kError,
      ErrnoStatus(error,
                  fmt::format("an executor cannot be pinned to core {}; it runs unpinned", cpu))
          .ToString());
}

CpuPin::~CpuPin() {
  if (pinned_) pthread_setaffinity_np(pthread_self(), sizeof(before_), &before_);
}

}  // namespace verbena::internal
