// The floor of a payload over shared memory: one process copies it by one memcpy into memory that
// another has mapped too, and one word each way announces the copy. A one-sided write costs at
// least this.
//
// The memory is inherited: make the CopyFloor, then fork. The client runs slices. During a slice
// the server is in ServeCopySlice and the client in RunCopySlice, and both spin. Between slices
// neither spins, so slices may alternate with slices of whatever the floor is compared with.
//
//   absl::StatusOr<CopyFloor> floor = CopyFloor::Create(16 << 20);
//   server: ServeCopySlice(*floor);
//   client: RunCopySlice(*floor, {.direction = CopyDirection::kToClient, .size = 1 << 20});

#ifndef VERBENA_BENCHMARKS_FLOOR_COPY_FLOOR_H_
#define VERBENA_BENCHMARKS_FLOOR_COPY_FLOOR_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::benchmarks {

namespace internal {
struct CopyArea;
}

enum class CopyDirection : std::uint32_t {
  kToClient,  // a payload that is read: the client asks, the server copies
  kToServer,  // a payload that is written: the client copies, the server acknowledges
};

struct CopySlice {
  CopyDirection direction = CopyDirection::kToClient;
  int size = 4096;  // a multiple of 8
  int outstanding = 1;
  int duration_ms = 100;
};

struct CopySample {
  double p50_ns = 0;
  double p99_ns = 0;
  double copies_per_s = 0;
};

// Memory for one client and one server. Move-only; each process uses it from one thread.
class CopyFloor {
 public:
  // `bytes`: the most that any slice needs; see BytesFor(). RESOURCE_EXHAUSTED if mmap fails.
  static absl::StatusOr<CopyFloor> Create(std::size_t bytes);
  // Enough bytes for a slice of any of these sizes with any of these numbers outstanding. Each
  // payload takes whole pages.
  static std::size_t BytesFor(const std::vector<int>& sizes, const std::vector<int>& outstanding);

  CopyFloor(CopyFloor&& other) noexcept
      : area_(std::exchange(other.area_, nullptr)),
        mapped_(other.mapped_),
        sources_(std::move(other.sources_)) {}
  CopyFloor& operator=(CopyFloor&& other) = delete;
  ~CopyFloor();

  internal::CopyArea& area() const { return *area_; }
  // The shared memory of the payloads, and its size in bytes.
  char* payloads() const;
  std::size_t capacity() const;
  // `bytes` of this process's own memory, to copy from.
  char* Sources(std::size_t bytes);

 private:
  CopyFloor(internal::CopyArea* area, std::size_t mapped) : area_(area), mapped_(mapped) {}

  internal::CopyArea* area_;
  std::size_t mapped_;
  std::vector<char> sources_;
};

// Answers one slice; returns when its client ends it. DeadlineExceeded if the client has done
// nothing for 10 s, DataLoss if a payload is wrong, InvalidArgument if the slice does not fit the
// memory. Spins on the calling thread.
absl::Status ServeCopySlice(CopyFloor& floor);

// Runs one slice against the server. The side that receives a payload compares a stamp in each of
// its pages. Fails as ServeCopySlice() does. Spins on the calling thread.
absl::StatusOr<CopySample> RunCopySlice(CopyFloor& floor, const CopySlice& slice);

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_FLOOR_COPY_FLOOR_H_
