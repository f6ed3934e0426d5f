// SharedRegion: zeroed pages that this process alone, or two processes, map.
//
// Move-only; unmaps and closes when destroyed. A region made by Create is a memfd sealed against
// shrinking and growing, so that no peer can make our loads fault. A region that a peer sent is
// mapped only after its seals and size are verified.

#ifndef VERBENA_TRANSPORT_SOFT_SHARED_MEMORY_H_
#define VERBENA_TRANSPORT_SOFT_SHARED_MEMORY_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace verbena::internal::soft {

class SharedRegion {
 public:
  enum class Access { kReadOnly, kReadWrite };

  SharedRegion() = default;
  SharedRegion(SharedRegion&& other) noexcept;
  SharedRegion& operator=(SharedRegion&& other) noexcept;
  ~SharedRegion();

  // Private to this process (and its threads).
  static absl::StatusOr<SharedRegion> Anonymous(size_t bytes);
  // Can be sent to a peer by its fd(). `name` shows in /proc/*/maps.
  static absl::StatusOr<SharedRegion> Create(const std::string& name, size_t bytes);
  // The same for payloads. From 2 MiB on, `bytes` is rounded up to whole huge pages of 2 MiB. They
  // come from the administrator's pool (hugetlb), if it has enough. Otherwise the kernel is asked
  // for transparent ones (transparent_hugepage/shmem_enabled), here and in every peer that maps the
  // region.
  static absl::StatusOr<SharedRegion> CreateLarge(const std::string& name, size_t bytes);
  // Maps a region of exactly `bytes` that a peer sent. Takes `fd` over, also when it fails.
  static absl::StatusOr<SharedRegion> Map(int fd, size_t bytes, Access access);

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  // -1 for an anonymous region.
  int fd() const { return fd_; }

 private:
  SharedRegion(std::byte* data, size_t size, int fd) : data_(data), size_(size), fd_(fd) {}

  static absl::StatusOr<SharedRegion> CreateWith(const std::string& name, size_t bytes,
                                                 unsigned memfd_flags);

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  int fd_ = -1;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_SHARED_MEMORY_H_
