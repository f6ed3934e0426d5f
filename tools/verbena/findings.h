// Findings: what is wrong with a machine, or could be better, and the command that mends it.
//
// A pure function of facts, so that every finding is tested without the machine that has it.

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
  bool rdma_works = false;  // at least one device opened, with an active port that has a GID or LID
  bool rdma_present = false;
  bool soft_works = false;

  // 0 when RDMA works, or when there is none and the soft device does; else 1.
  int ExitStatus() const { return rdma_works || (!rdma_present && soft_works) ? 0 : 1; }
};

// Registered memory that one executor asks for with default limits, in bytes.
uint64_t MemoryPerExecutor();

// `soft`: what opening a soft device and registering memory with it said.
Diagnosis Examine(const HostFacts& host, const std::vector<DeviceFacts>& devices,
                  const absl::Status& soft);

}  // namespace verbena::doctor

#endif  // VERBENA_TOOLS_VERBENA_FINDINGS_H_
