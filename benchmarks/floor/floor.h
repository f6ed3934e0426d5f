// The floor of a call over shared memory: what two processes that only copy bytes and watch a word
// for each other can do. No completion queue, no credits, no parsing.
//
// A FloorMapping is memory that both processes map. One process creates it and hands its descriptor
// to the other (inherited, or sent). The client then runs slices: each has the server in
// ServeFloorSlice and the client in RunFloorSlice, both spinning. Between slices neither spins, so
// slices may alternate with slices of whatever the floor is compared with, on the same two cores.
//
//   client                                              server
//   auto mapping = FloorMapping::Create();              auto mapping = FloorMapping::Attach(fd);
//   … cause the server to enter ServeFloorSlice …       ServeFloorSlice(*mapping);
//   auto sample = RunFloorSlice(*mapping, {.size = 32, .outstanding = 1, .duration_ms = 100});

#ifndef VERBENA_BENCHMARKS_FLOOR_FLOOR_H_
#define VERBENA_BENCHMARKS_FLOOR_FLOOR_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::benchmarks {

namespace internal {
struct FloorArea;
}

inline constexpr int kMaxFloorSize = 4096;
inline constexpr int kMaxFloorOutstanding = 1024;

// Shared memory for one client and one server at a time. Move-only; unmaps and closes what it
// holds. Each side uses it from one thread.
class FloorMapping {
 public:
  static absl::StatusOr<FloorMapping> Create();

  // Maps the memory behind `fd`, a descriptor of a mapping that another process created. Keeps a
  // duplicate: `fd` stays the caller's. InvalidArgument if `fd` is no floor mapping.
  static absl::StatusOr<FloorMapping> Attach(int fd);

  FloorMapping(FloorMapping&& other) noexcept;
  FloorMapping& operator=(FloorMapping&& other) noexcept;
  ~FloorMapping();

  // After Create(), programs that this process executes inherit it. Attach()'s is close-on-exec.
  int fd() const { return fd_; }

  internal::FloorArea& area() const { return *area_; }

 private:
  FloorMapping(int fd, internal::FloorArea* area) : fd_(fd), area_(area) {}

  int fd_ = -1;
  internal::FloorArea* area_ = nullptr;
};

// One slice's load: `outstanding` messages of `size` bytes at a time, each answered by an equal
// one. One outstanding message is a ping-pong; many are a stream through two rings.
struct FloorSlice {
  int size = 32;        // 1 … kMaxFloorSize
  int outstanding = 1;  // 1 … kMaxFloorOutstanding
  int duration_ms = 100;
};

struct FloorSample {
  double p50_ns = 0;
  double p99_ns = 0;
  double calls_per_s = 0;
};

// Answers one slice; returns when its client ends it. DeadlineExceeded if the client has done
// nothing for 10 s. Spins on the calling thread.
absl::Status ServeFloorSlice(FloorMapping& mapping);

// Whether a server waits in ServeFloorSlice for its slice to begin. For clients with other work to
// do until then; RunFloorSlice waits by itself.
bool FloorServerReady(const FloorMapping& mapping);

// Runs one slice against the server, comparing every byte of every answer. DeadlineExceeded if the
// server does not come or does not answer for 10 s, DataLoss if an answer is wrong. Spins on the
// calling thread.
absl::StatusOr<FloorSample> RunFloorSlice(FloorMapping& mapping, const FloorSlice& slice);

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_FLOOR_FLOOR_H_
