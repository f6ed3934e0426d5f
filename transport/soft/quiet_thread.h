// StartQuietThread: a thread of the device, which takes none of the program's signals.
//
// Libraries for RDMA NICs have no threads. So a program that blocks a signal in its own threads, to
// take it by sigwait, must find it there, and a handler must run where the program expects it.
//
//   thread_ = StartQuietThread([this] { Run(); });

#ifndef VERBENA_TRANSPORT_SOFT_QUIET_THREAD_H_
#define VERBENA_TRANSPORT_SOFT_QUIET_THREAD_H_

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace verbena::internal::soft {

// A thread has the mask of the one that starts it. Restores that one's, also if there is no thread
// to be had.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

template <typename Body>
std::thread StartQuietThread(Body body) {
  const BlockedSignals blocked;
  return std::thread(std::move(body));
}

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_QUIET_THREAD_H_
