// verbena doctor: reports this machine's RDMA devices, their problems, and the commands that mend
// them.

#ifndef VERBENA_TOOLS_VERBENA_DOCTOR_H_
#define VERBENA_TOOLS_VERBENA_DOCTOR_H_

#include <string>
#include <vector>

#include "tools/verbena/device_facts.h"
#include "tools/verbena/findings.h"
#include "tools/verbena/host_facts.h"

namespace verbena::doctor {

// The report, as it is printed.
std::string Describe(const HostFacts& host, const std::vector<DeviceFacts>& devices);
std::string Describe(const Diagnosis& diagnosis);

// Examines this machine and prints the report; if `container`, also what the surroundings of this
// process take from it. Returns Diagnosis::ExitStatus().
int RunDoctor(bool container = false);

}  // namespace verbena::doctor

#endif  // VERBENA_TOOLS_VERBENA_DOCTOR_H_
