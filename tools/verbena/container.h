// What a container or unit takes from a process of Verbena, and what gives it back: the part of the
// doctor's report that `verbena doctor --container` adds.
//
// Pure functions of facts, so that every line can be tested on any machine.

#ifndef VERBENA_TOOLS_VERBENA_CONTAINER_H_
#define VERBENA_TOOLS_VERBENA_CONTAINER_H_

#include <string>
#include <vector>

#include "tools/verbena/container_facts.h"
#include "tools/verbena/findings.h"
#include "tools/verbena/host_facts.h"

namespace verbena::doctor {

// As it is printed.
std::string DescribeContainer(const ContainerFacts& facts, const HostFacts& host);

// What works less well there, or not at all, each with what to set for Docker, Kubernetes and
// systemd. Beside the findings of Examine().
std::vector<Finding> ExamineContainer(const ContainerFacts& facts, const HostFacts& host);

}  // namespace verbena::doctor

#endif  // VERBENA_TOOLS_VERBENA_CONTAINER_H_
