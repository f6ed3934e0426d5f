// StopSignals: lets a program wait for SIGINT and SIGTERM together with a descriptor.
//
// Block() is called on the main thread before there are other threads, because they inherit the
// blocked signals. From then on the signals do not end the process: WaitReadable() reports them.
// ForChild() unblocks them after a fork. One thread.
//
//   absl::StatusOr<std::unique_ptr<StopSignals>> signals = StopSignals::Block();
//   if (signals->WaitReadable(fd, std::chrono::seconds(1)) == Woken::kBySignal) …

#ifndef VERBENA_EXAMPLES_COMMON_SIGNALS_H_
#define VERBENA_EXAMPLES_COMMON_SIGNALS_H_

#include <chrono>
#include <memory>

#include "absl/status/statusor.h"

namespace examples {

enum class Woken { kReadable, kBySignal, kTimeout };

class StopSignals {
 public:
  static absl::StatusOr<std::unique_ptr<StopSignals>> Block();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals();

  // Waits until `fd` is readable or closed by its other end, a signal comes, or the time is up. An
  // `fd` of -1 is ignored. May return kTimeout early.
  Woken WaitReadable(int fd, std::chrono::milliseconds timeout);

  // Waits for a signal. A second signal then ends the process, as it would by default. This is for
  // servers, in case an orderly end takes too long.
  void WaitForLast();

  // The first signal that came; 0 if none did.
  int received() const { return received_; }

  // Unblocks both signals in a child process, between fork and exec.
  static void ForChild();

 private:
  explicit StopSignals(int fd) : fd_(fd) {}

  const int fd_;
  int received_ = 0;
};

// A descriptor by which one thread wakes another: readable from Wake() until Clear().
class Wakeup {
 public:
  static absl::StatusOr<std::unique_ptr<Wakeup>> Create();
  Wakeup(const Wakeup&) = delete;
  Wakeup& operator=(const Wakeup&) = delete;
  ~Wakeup();

  void Wake();
  void Clear();
  int fd() const { return fd_; }

 private:
  explicit Wakeup(int fd) : fd_(fd) {}

  const int fd_;
};

}  // namespace examples

#endif  // VERBENA_EXAMPLES_COMMON_SIGNALS_H_
