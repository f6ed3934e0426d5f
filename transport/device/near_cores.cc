#include "verbena/transport/device/near_cores.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "fmt/format.h"
#include "verbena/transport/device/device.h"

namespace verbena::internal {
namespace {

// More than any kernel's NR_CPUS.
constexpr int kMostCores = 1 << 16;

std::string FirstLine(const std::string& path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

bool ParseCore(absl::string_view text, int& core) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), core);
  return error == std::errc() && end == text.data() + text.size() && core >= 0 && core < kMostCores;
}

// The hardware threads of the physical core that has `core`, itself included.
std::vector<int> ThreadsOf(const std::string& top, int core) {
  std::vector<int> threads = ParseCpuList(FirstLine(
      fmt::format("{}sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", top, core)));
  if (std::ranges::find(threads, core) == threads.end()) threads = {core};
  return threads;
}

std::vector<int> LocalCores(const std::string& top, const std::string& device) {
  const std::string directory = fmt::format("{}sys/class/infiniband/{}", top, device);
  std::vector<int> cores = ParseCpuList(FirstLine(directory + "/device/local_cpulist"));
  if (!cores.empty()) return cores;
  const int node = NumaNodeOf(directory.c_str());
  if (node < 0) return {};
  return ParseCpuList(
      FirstLine(fmt::format("{}sys/devices/system/node/node{}/cpulist", top, node)));
}

}  // namespace

std::vector<int> CoresNear(const std::string& root, const std::string& device,
                           const std::vector<int>& allowed, size_t count) {
  const std::string top = !root.empty() && root.back() == '/' ? root : root + "/";
  std::vector<int> near = LocalCores(top, device);
  std::erase_if(near, [&](int core) { return std::ranges::find(allowed, core) == allowed.end(); });
  std::vector<int> first, second;
  std::set<int> taken;  // hardware threads of physical cores in `first`
  for (const int core : near) {
    if (taken.contains(core)) {
      second.push_back(core);
      continue;
    }
    first.push_back(core);
    for (const int thread : ThreadsOf(top, core)) taken.insert(thread);
  }
  first.insert(first.end(), second.begin(), second.end());
  first.resize(std::min(first.size(), count));
  return first;
}

std::vector<int> AllowedCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

std::vector<int> ParseCpuList(const std::string& text) {
  std::set<int> cores;
  const absl::string_view list = absl::StripAsciiWhitespace(text);
  if (list.empty()) return {};
  for (const absl::string_view part : absl::StrSplit(list, ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, '-');
    int from = 0, to = 0;
    if (ends.size() > 2 || !ParseCore(ends.front(), from) || !ParseCore(ends.back(), to)) return {};
    for (int core = from; core <= to; ++core) cores.insert(core);
  }
  return {cores.begin(), cores.end()};
}

}  // namespace verbena::internal
