// Pipe: a pipe by which the processes of a benchmark send each other commands and results.
//
// Make it before the processes are forked, which then share it. It carries values of one type, each
// in one piece, so several processes may write, or take turns to read.

#ifndef VERBENA_BENCHMARKS_LINKS_PIPE_H_
#define VERBENA_BENCHMARKS_LINKS_PIPE_H_

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"

namespace verbena::benchmarks {

template <typename T>
class Pipe {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= PIPE_BUF);

 public:
  Pipe() { VERBENA_CHECK(pipe(ends_.data()) == 0) << "pipe: " << std::strerror(errno); }
  Pipe(Pipe&& other) noexcept : ends_(std::exchange(other.ends_, {-1, -1})) {}
  Pipe& operator=(Pipe&& other) = delete;
  ~Pipe() {
    for (const int end : ends_) {
      if (end >= 0) close(end);
    }
  }

  // Returns whether `value` was written. Waits while the pipe is full.
  bool Write(const T& value) const { return write(ends_[1], &value, sizeof(value)) == sizeof(T); }
  // Waits for a value. False if nobody is left to write one.
  bool Read(T& value) const { return read(ends_[0], &value, sizeof(value)) == sizeof(T); }
  // The same for at most `patience`; then DEADLINE_EXCEEDED.
  absl::Status ReadWithin(T& value, Duration patience) const {
    pollfd end{.fd = ends_[0], .events = POLLIN, .revents = 0};
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(patience).count();
    if (poll(&end, 1, static_cast<int>(ms)) != 1) {
      return absl::DeadlineExceededError("a process of the benchmark does not answer");
    }
    if (!Read(value)) return absl::InternalError("a process of the benchmark has ended");
    return absl::OkStatus();
  }

 private:
  std::array<int, 2> ends_{-1, -1};
};

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_LINKS_PIPE_H_
