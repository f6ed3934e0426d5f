// Pages: zeroed memory straight from the kernel, in huge pages if there are any.
//
// For regions that are registered with a device: few and large. From 2 MiB on, the memory begins at
// a huge page, and its size is rounded up to whole huge pages. The administrator's pool (hugetlb)
// serves them while it has some. Otherwise the kernel is asked for transparent huge pages. Without
// those everything works, with more TLB misses. Any thread.
//
//   VERBENA_ASSIGN_OR_RETURN(std::byte* pages, MapPages(bytes));
//   UnmapPages(pages, bytes);

#ifndef VERBENA_TRANSPORT_DEVICE_PAGES_H_
#define VERBENA_TRANSPORT_DEVICE_PAGES_H_

#include <cstddef>

#include "absl/status/statusor.h"

namespace verbena::internal {

// At least `bytes`, which is not 0. RESOURCE_EXHAUSTED when there is no memory.
absl::StatusOr<std::byte*> MapPages(size_t bytes);
// `bytes` is what the pages were mapped with.
void UnmapPages(std::byte* pages, size_t bytes);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_DEVICE_PAGES_H_
