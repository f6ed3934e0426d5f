// CmLoop: the thread that watches the connection manager's sockets, and the lock of all its state.
//
// Programs expect progress while they sleep in poll() or compute, so sockets are watched by a
// thread of the library. It starts with the first Watch and lasts as long as the process. It calls
// no verbs: queue pairs change their state in the program's own threads.

#ifndef VERBENA_TRANSPORT_PRELOAD_RDMA_CM_LOOP_H_
#define VERBENA_TRANSPORT_PRELOAD_RDMA_CM_LOOP_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace verbena::internal::preload {

// Hears of one descriptor. Called on the loop's thread, under CmLoop::mutex(). It may Forget and
// destroy itself as its last step.
class CmReadyListener {
 public:
  // `events` are those of epoll.
  virtual void OnReady(uint32_t events) = 0;
  virtual void OnDeadline() = 0;

 protected:
  ~CmReadyListener() = default;
};

class CmLoop {
 public:
  using Clock = std::chrono::steady_clock;

  // Never destroyed: a program may leave main() while the thread runs.
  static CmLoop& Instance();

  // Guards everything of the connection manager: ids, channels, sockets. Held for moments only:
  // nobody waits for a peer or calls verbs while holding it.
  std::mutex& mutex() { return mutex_; }

  // The other methods require the lock.

  // Watches `fd` for `events` until Forget; -1 stands for none, for deadlines alone. Returns the
  // watch, which is never 0.
  uint64_t Watch(int fd, uint32_t events, CmReadyListener& listener);
  void Change(uint64_t watch, uint32_t events);
  // Calls OnDeadline once, `after` from now. Replaces an earlier deadline.
  void SetDeadline(uint64_t watch, Clock::duration after);
  void ClearDeadline(uint64_t watch);
  // Call it before the descriptor is closed.
  void Forget(uint64_t watch);

 private:
  struct Watched {
    int fd;
    CmReadyListener* listener;
    Clock::time_point deadline;
  };

  CmLoop();
  void Start();
  void Run();
  // Milliseconds until the next deadline, rounded up; -1 if there is none.
  int TimeLeft();
  void CallLate();
  void Wake();

  std::mutex mutex_;
  const int epoll_;
  const int wake_;
  bool started_ = false;
  uint64_t last_watch_ = 0;
  std::map<uint64_t, Watched> watched_;
  std::set<std::pair<Clock::time_point, uint64_t>> deadlines_;
};

}  // namespace verbena::internal::preload

#endif  // VERBENA_TRANSPORT_PRELOAD_RDMA_CM_LOOP_H_
