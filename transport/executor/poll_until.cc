#include "verbena/transport/executor/poll_until.h"

#include <poll.h>

#include <algorithm>

#include "transport/executor/idle_spin.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/executor/executor_options.h"

namespace verbena {
namespace {

bool MaySleep(const std::vector<Executor*>& executors) {
  return std::ranges::all_of(executors, [](const Executor* executor) {
    const ExecutorOptions& options = executor->options();
    return options.mode != ExecutorMode::kBusy && options.clock == nullptr;
  });
}

bool PollAll(const std::vector<Executor*>& executors) {
  bool worked = false;
  for (Executor* executor : executors) {
    worked |= executor->Poll();
  }
  return worked;
}

// Sleeps until one of them has work.
void SleepOn(const std::vector<Executor*>& executors) {
  std::vector<pollfd> descriptors;
  for (Executor* executor : executors) {
    if (!executor->Arm()) return;
    descriptors.push_back({.fd = executor->fd(), .events = POLLIN, .revents = 0});
  }
  // A signal, too, ends it: the next round finds nothing to do.
  poll(descriptors.data(), descriptors.size(), -1);
}

}  // namespace

void PollUntil(const std::vector<Executor*>& executors, absl::FunctionRef<bool()> done) {
  VERBENA_CHECK(!executors.empty()) << "nobody would ever be done";
  const bool may_sleep = MaySleep(executors);
  internal::IdleSpin spin(executors.front()->options().mode == ExecutorMode::kEvent
                              ? Duration::zero()
                              : executors.front()->options().spin);
  while (!done()) {
    if (PollAll(executors)) {
      spin.Reset();
    } else if (may_sleep && spin.Over()) {
      SleepOn(executors);
      spin.Reset();
    }
  }
}

}  // namespace verbena
