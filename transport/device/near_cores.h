// CoresNear: the cores on which executors run that serve a device, near the bus that it hangs on.
//
// A core of another NUMA node reaches the device, and memory that lies near it, through the link
// between the processors. Pure functions of /sys below a root directory, so that a test can make up
// a machine. Any thread. Nothing fails: a machine that does not say enough gives no cores.
//
//   for (int core : CoresNear("/", "mlx5_0", AllowedCores(), executors)) ...

#ifndef VERBENA_TRANSPORT_DEVICE_NEAR_CORES_H_
#define VERBENA_TRANSPORT_DEVICE_NEAR_CORES_H_

#include <cstddef>
#include <string>
#include <vector>

namespace verbena::internal {

// At most `count` different cores of `allowed`, in the order in which executors take them. These
// are cores that the kernel calls local to the RDMA device (local_cpulist), otherwise those of its
// NUMA node. Each is a physical core of its own while there are some; then come their other
// hardware threads, which share a core with an executor that polls. Fewer than `count` if fewer are
// near; none if nothing is known, as of a device without a bus or node.
std::vector<int> CoresNear(const std::string& root, const std::string& device,
                           const std::vector<int>& allowed, size_t count);

// The cores on which this thread may run, sorted.
std::vector<int> AllowedCores();

// The numbers of a list as the kernel writes it: "0-3,8" are 0, 1, 2, 3 and 8. Empty if the text is
// no such list, or names a number beyond 65,535.
std::vector<int> ParseCpuList(const std::string& text);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_DEVICE_NEAR_CORES_H_
