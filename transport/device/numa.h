// NUMA: memory near the device that reads and writes it.
//
// Any thread. Nothing here fails: without a known node, or without leave to ask for one, memory
// lies where the kernel puts it.

#ifndef VERBENA_TRANSPORT_DEVICE_NUMA_H_
#define VERBENA_TRANSPORT_DEVICE_NUMA_H_

#include <cstddef>

namespace verbena::internal {

// The node of the device whose directory in sysfs is `sysfs_path` (ibv_device::ibdev_path); -1 when
// it has none, or none is known.
int NumaNodeOf(const char* sysfs_path);

// Asks the kernel to take the pages of [memory, memory + bytes) that are not there yet from `node`,
// or from another node when that is full. `memory` is aligned to pages; `node` -1 does nothing.
// True when the kernel agreed.
bool PreferNumaNode(void* memory, size_t bytes, int node);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_DEVICE_NUMA_H_
