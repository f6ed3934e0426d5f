// UniqueFd owns a descriptor. StartQuietThread() starts a thread that takes none of the program's
// signals.

#ifndef VERBENA_TRANSPORT_BASE_PROCESS_H_
#define VERBENA_TRANSPORT_BASE_PROCESS_H_

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <thread>
#include <utility>

namespace verbena::internal {

// Owns a descriptor, or none.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() {
    if (fd_ >= 0) close(fd_);
  }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

// A thread has the mask of the one that starts it. Restores that one's, also if there is no thread
// to be had.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    // A fault of a thread that blocks its signal kills the process, whatever handler it has.
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) {
      sigdelset(&all, fault);
    }
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

// A thread that takes no signal but those of its own faults, for devices, connections and files: a
// program that blocks a signal in its own threads, to take it by sigwait, must find it there, and a
// handler must run where the program expects it. Throws std::system_error if there is no thread to
// be had.
//
//   thread_ = StartQuietThread([this] { Run(); });
template <typename Body>
std::thread StartQuietThread(Body body) {
  const BlockedSignals blocked;
  return std::thread(std::move(body));
}

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_BASE_PROCESS_H_
