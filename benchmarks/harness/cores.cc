#include "verbena/benchmarks/harness/cores.h"

#include <fmt/format.h>
#include <sched.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace verbena::benchmarks {
namespace {

// Equal for the hardware threads of one physical core.
std::string PhysicalCore(int core) {
  std::ifstream file(
      fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", core));
  std::string siblings;
  std::getline(file, siblings);
  return siblings.empty() ? std::to_string(core) : siblings;
}

}  // namespace

absl::StatusOr<TwoCores> ChooseTwoCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) {
    return absl::InternalError(fmt::format("sched_getaffinity: {}", std::strerror(errno)));
  }
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  if (cores.size() < 2) {
    return absl::FailedPreconditionError(
        "a benchmark needs two cores, one for each process; this one may run on one only");
  }
  for (std::size_t i = 1; i < cores.size(); ++i) {
    if (PhysicalCore(cores[i]) != PhysicalCore(cores[0])) return TwoCores{cores[0], cores[i]};
  }
  return TwoCores{cores[0], cores[1]};
}

absl::Status PinToCore(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0) {
    return absl::InternalError(
        fmt::format("sched_setaffinity to core {}: {}", core, std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace verbena::benchmarks
