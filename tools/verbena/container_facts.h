// ContainerFacts: what the surroundings of a process take away, as containers and units do: users,
// system calls, a root that may be written, cores.
//
// What files tell is read below a root directory, so that a test can make up a machine. What only
// trying tells is tried by this process. Facts that cannot be read keep their defaults.

#ifndef VERBENA_TOOLS_VERBENA_CONTAINER_FACTS_H_
#define VERBENA_TOOLS_VERBENA_CONTAINER_FACTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace verbena::doctor {

struct ContainerFacts {
  // From files:
  int seccomp = 0;                            // 0: no filter, 1: strict, 2: a filter
  bool no_new_privileges = false;             // a set-user-ID program gives no rights
  bool user_namespace = false;                // the host knows the process's users by other ids
  std::optional<uint64_t> io_uring_disabled;  // kernel.io_uring_disabled: 0, 1 or 2
  // Processor time that the cgroups grant, in cores (cpu.max): 1.5. None: no quota.
  std::optional<double> core_quota;

  // Tried:
  uint32_t user = 0;
  bool read_only_root = false;
  size_t cores = 0;  // on which the process may run
  absl::Status io_uring;
};

ContainerFacts ReadContainerFiles(const std::string& root);

// Of this machine and process.
ContainerFacts ReadContainerFacts();

}  // namespace verbena::doctor

#endif  // VERBENA_TOOLS_VERBENA_CONTAINER_FACTS_H_
