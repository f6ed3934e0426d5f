// Findings: the faults of a machine and possible improvements, each with the command that mends it.
//
// A pure function of facts, so that every finding can be tested on any machine.

#ifndef VERBENA_TOOLS_VERBENA_FINDINGS_H_
#define VERBENA_TOOLS_VERBENA_FINDINGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/verbena/device_facts.h"
#include "tools/verbena/host_facts.h"

namespace verbena::doctor {

enum class Severity {
  kAdvice,   // works; this would make it better
  kWarning,  // works, but some load or option will fail
  kError,    // this device, or all of RDMA, does not work
};

struct Finding {
  Severity severity;
  std::string what;
  std::string mend;  // a command, or what to ask for; may be empty
};

struct Diagnosis {
  std::vector<Finding> findings;
  // At least one device opens and has an active port with a GID or LID; and the memory
  // that may be locked suffices for one executor.
  bool rdma_works = false;
  bool rdma_present = false;
  bool soft_works = false;

  // 0 if RDMA works, or if there is no RDMA and the soft device works; otherwise 1.
  int ExitStatus() const { return rdma_works || (!rdma_present && soft_works) ? 0 : 1; }
};

// Memory that one executor pins at its start on a device, in bytes: with default limits, and with
// LinkLimits::Small(). Payload memory comes on top, as it is needed.
uint64_t MemoryPerExecutor();
uint64_t SmallMemoryPerExecutor();

// `soft`: the result of opening a soft device and registering memory with it.
Diagnosis Examine(const HostFacts& host, const std::vector<DeviceFacts>& devices,
                  const absl::Status& soft);

}  // namespace verbena::doctor

#endif  // VERBENA_TOOLS_VERBENA_FINDINGS_H_
