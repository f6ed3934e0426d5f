#include "verbena/transport/device/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace verbena::internal {
namespace {

// In the mask that mbind takes: more than any kernel's MAX_NUMNODES.
constexpr unsigned long kMaxNodes = 4096;
constexpr unsigned long kWordBits = 8 * sizeof(unsigned long);

}  // namespace

int NumaNodeOf(const char* sysfs_path) {
  std::ifstream file(std::string(sysfs_path) + "/device/numa_node");
  int node = -1;
  if (!(file >> node) || node < 0 || static_cast<unsigned long>(node) >= kMaxNodes) return -1;
  return node;
}

bool PreferNumaNode(void* memory, size_t bytes, int node) {
  if (node < 0 || static_cast<unsigned long>(node) >= kMaxNodes) return false;
  unsigned long mask[kMaxNodes / kWordBits] = {};
  mask[static_cast<unsigned long>(node) / kWordBits] |=
      1UL << static_cast<unsigned long>(node) % kWordBits;
  // Without libnuma, which has nothing else that is needed here.
  return syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED, mask, kMaxNodes, 0) == 0;
}

}  // namespace verbena::internal
