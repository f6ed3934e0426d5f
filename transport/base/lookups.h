// Lookups: answers that may take long, looked up on threads that nobody waits for.

#ifndef VERBENA_TRANSPORT_BASE_LOOKUPS_H_
#define VERBENA_TRANSPORT_BASE_LOOKUPS_H_

#include <pthread.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "verbena/transport/base/process.h"

namespace verbena::internal {

// Lookups: looks keys up, one thread for each key that is slow.
//
// A name server that does not answer holds a thread for half a minute, a file server perhaps for
// ever, and nothing can end that. So each key that hangs takes one thread and no more: those who
// ask for it meanwhile share the answer. Up to kMostThreads - 1 such keys delay no other one.
// Threads start when they are needed, and stay. Keys wait in the order in which they were asked
// for. At most kMostWaiting callbacks wait, those of callers that have gone among them.
//
// An Answer is a plain value, since it crosses threads. Its members `code` and `why` tell of a
// failure.
//
// Any thread. A program that ends, or an owner, leaves behind what hangs.
template <typename Answer>
class Lookups {
 public:
  static constexpr int kMostThreads = 8;                   // (start)
  static constexpr size_t kMostWaiting = size_t{1} << 16;  // (start)

  // Blocks.
  using LookUp = std::function<Answer(const std::string& key)>;
  using Done = std::function<void(const Answer& answer)>;

  // Threads have this name, of at most 15 characters. They keep `look_up` until it has returned.
  Lookups(const char* thread_name, LookUp look_up)
      : shared_(std::make_shared<Shared>(thread_name, std::move(look_up))) {}
  // Forgets what was asked for and is not answered.
  ~Lookups() {
    std::lock_guard lock(shared_->mutex);
    shared_->stopping = true;
    shared_->work.notify_all();
  }
  Lookups(const Lookups&) = delete;
  Lookups& operator=(const Lookups&) = delete;

  // Calls `done` once: on a thread of lookups, or, with RESOURCE_EXHAUSTED, on this one if there is
  // no thread to be had, or if kMostWaiting callbacks wait.
  void Start(const std::string& key, const Done& done);

 private:
  // Owned by the object and by its threads.
  struct Shared {
    Shared(const char* name, LookUp function) : thread_name(name), look_up(std::move(function)) {}

    const char* const thread_name;
    const LookUp look_up;
    std::mutex mutex;
    std::condition_variable work;
    // The rest is under the mutex.
    std::map<std::string, std::vector<Done>> asked;  // by key, until it is answered
    std::deque<std::string> queue;                   // of keys that no thread has taken yet
    size_t waiting = 0;                              // callbacks in `asked`
    int threads = 0;
    size_t idle = 0;  // threads
    bool stopping = false;
  };

  // nullptr: a thread will call `done`. Otherwise why none will.
  const char* Ask(const std::string& key, const Done& done);
  static void Run(const std::shared_ptr<Shared>& shared);

  const std::shared_ptr<Shared> shared_;
};

template <typename Answer>
void Lookups<Answer>::Start(const std::string& key, const Done& done) {
  const char* const refusal = Ask(key, done);
  if (refusal == nullptr) return;
  Answer none;
  none.code = absl::StatusCode::kResourceExhausted;
  none.why = "looking up " + key + ": " + refusal;
  done(none);
}

template <typename Answer>
const char* Lookups<Answer>::Ask(const std::string& key, const Done& done) {
  std::lock_guard lock(shared_->mutex);
  if (shared_->waiting == kMostWaiting) return "too many lookups wait for an answer";
  const auto [asked, is_new] = shared_->asked.try_emplace(key);
  asked->second.push_back(done);
  ++shared_->waiting;
  if (!is_new) return nullptr;
  shared_->queue.push_back(key);
  shared_->work.notify_one();
  if (shared_->idle >= shared_->queue.size() || shared_->threads == kMostThreads) return nullptr;
  try {
    StartQuietThread([shared = shared_] { Run(shared); }).detach();
    ++shared_->threads;
  } catch (const std::system_error&) {
    if (shared_->threads > 0) return nullptr;
    shared_->queue.pop_back();
    shared_->asked.erase(asked);
    --shared_->waiting;
    return "the system starts no thread for it";
  }
  return nullptr;
}

template <typename Answer>
void Lookups<Answer>::Run(const std::shared_ptr<Shared>& shared) {
  pthread_setname_np(pthread_self(), shared->thread_name);
  std::unique_lock lock(shared->mutex);
  for (;;) {
    ++shared->idle;
    shared->work.wait(lock, [&] { return shared->stopping || !shared->queue.empty(); });
    --shared->idle;
    if (shared->stopping) return;
    const std::string key = std::move(shared->queue.front());
    shared->queue.pop_front();
    lock.unlock();
    const Answer answer = shared->look_up(key);
    lock.lock();
    auto asked = shared->asked.extract(key);
    shared->waiting -= asked.mapped().size();
    const bool is_wanted = !shared->stopping;
    lock.unlock();
    if (is_wanted) {
      for (const Done& done : asked.mapped()) done(answer);
    }
    // The callbacks go without the lock, too: they may own whoever takes it.
    asked = decltype(asked)();
    lock.lock();
  }
}

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_BASE_LOOKUPS_H_
