#include "examples/common/signals.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "absl/status/status.h"

namespace examples {
namespace {

sigset_t Signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StopSignals>> StopSignals::Block() {
  const sigset_t set = Signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  const int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, "signalfd");
  return std::unique_ptr<StopSignals>(new StopSignals(fd));
}

StopSignals::~StopSignals() { close(fd_); }

Woken StopSignals::WaitReadable(int fd, std::chrono::milliseconds timeout) {
  pollfd fds[2] = {{fd_, POLLIN, 0}, {fd, POLLIN, 0}};
  const int ready = poll(fds, 2, static_cast<int>(timeout.count()));
  signalfd_siginfo info;
  if (ready > 0 && read(fd_, &info, sizeof(info)) == sizeof(info)) {
    if (received_ == 0) received_ = static_cast<int>(info.ssi_signo);
    return Woken::kBySignal;
  }
  return ready > 0 && fds[1].revents != 0 ? Woken::kReadable : Woken::kTimeout;
}

void StopSignals::WaitForLast() {
  while (WaitReadable(-1, std::chrono::hours(1)) != Woken::kBySignal) {
  }
  const sigset_t set = Signals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

void StopSignals::ForChild() {
  const sigset_t set = Signals();
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

absl::StatusOr<std::unique_ptr<Wakeup>> Wakeup::Create() {
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, "eventfd");
  return std::unique_ptr<Wakeup>(new Wakeup(fd));
}

Wakeup::~Wakeup() { close(fd_); }

void Wakeup::Wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full: it is readable then.
  (void)!write(fd_, &one, sizeof(one));
}

void Wakeup::Clear() {
  uint64_t count;
  (void)!read(fd_, &count, sizeof(count));
}

}  // namespace examples
