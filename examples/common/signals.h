// StopSignals: SIGINT and SIGTERM, as something to wait for beside other things.
//
// Made on the main thread before there are others, which inherit that the two are blocked. From
// then on they end nothing by themselves: WaitReadable() tells of them. ForChild() undoes it after
// a fork. One thread.
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

  // Waits until `fd` (or nothing, if -1) is readable or has ended, a signal came or the time is up.
  Woken WaitReadable(int fd, std::chrono::milliseconds timeout);

  // Waits for a signal. The next one ends the process, as it would by default: for servers, whose
  // orderly end may take too long for somebody.
  void WaitForLast();

  // The first signal that came; 0: none did.
  int received() const { return received_; }

  // In a child process between fork and exec: signals are as they were before Block().
  static void ForChild();

 private:
  explicit StopSignals(int fd) : fd_(fd) {}

  const int fd_;
  int received_ = 0;
};

// Wakes the thread that waits on fd() from another one; stays readable until Clear().
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
