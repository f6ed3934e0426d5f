// IsAsleep and OthersAreAsleep: what the kernel says of threads of this process. A test that must
// see a thread wait, or must not go on before others have done what they can, yields until then.
//
//   while (!gone && !IsAsleep(abandoner)) std::this_thread::yield();

#ifndef VERBENA_TESTS_SUPPORT_ASLEEP_H_
#define VERBENA_TESTS_SUPPORT_ASLEEP_H_

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace verbena {

// Whether a thread of this process waits for something. False if it has ended.
inline bool IsAsleep(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string line;
  std::getline(file, line);
  // Behind the name, which may hold anything: the state.
  const size_t name_end = line.rfind(") ");
  return name_end != line.npos && line[name_end + 2] == 'S';
}

// Whether each thread of this process but the calling one waits for something. A thread that
// another has woken counts as awake at once.
inline bool OthersAreAsleep() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", error)) {
    const pid_t thread = std::stoi(entry.path().filename().string());
    if (thread != gettid() && !IsAsleep(thread)) return false;
  }
  return !error;
}

}  // namespace verbena

#endif  // VERBENA_TESTS_SUPPORT_ASLEEP_H_
