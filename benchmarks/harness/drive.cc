#include "verbena/benchmarks/harness/drive.h"

#include <utility>

#include "verbena/transport/base/clock.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::benchmarks {
namespace {

Task<void> ThenStop(Task<void> task, Executor& executor) {
  co_await std::move(task);
  executor.Stop();
}

}  // namespace

void Drive(Runtime& runtime, Task<void> task) {
  Executor& executor = runtime.executor(0);
  runtime.Spawn(ThenStop(std::move(task), executor));
  executor.Run();
}

std::string WireName(const Runtime& runtime) {
  const std::string& name = runtime.device_names().at(0);
  if (name.starts_with("tcp")) return "tcp";
  return name.starts_with("soft") ? "shm" : name;
}

bool RunsOverTcp(const std::string& device) { return device.starts_with("soft:tcp"); }

uint64_t NowNs() { return static_cast<uint64_t>(Clock::Real().Now().time_since_epoch().count()); }

}  // namespace verbena::benchmarks
