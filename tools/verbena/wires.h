// DescribeWires: which wire two processes of this host take, and why, in words.

#ifndef VERBENA_TOOLS_VERBENA_WIRES_H_
#define VERBENA_TOOLS_VERBENA_WIRES_H_

#include <string>

#include "tools/verbena/sharing_facts.h"

namespace verbena::doctor {

// A part of the doctor's report, as it is printed. A pure function.
std::string DescribeWires(const SharingFacts& facts);

}  // namespace verbena::doctor

#endif  // VERBENA_TOOLS_VERBENA_WIRES_H_
