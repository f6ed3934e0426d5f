// IoThread: the thread of a bootstrap.
//
// The bootstrap and the objects that it made share it. Its ways back to executors are mailboxes
// (transport/coro/mailbox.h).

#ifndef VERBENA_TRANSPORT_CONNECT_IO_THREAD_H_
#define VERBENA_TRANSPORT_CONNECT_IO_THREAD_H_

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <utility>

#include "absl/status/statusor.h"

#include "verbena/transport/base/export.h"

namespace verbena::internal {

// An object that must be closed before the thread can end. The thread shares the ownership while
// the object is registered.
class IoObject {
 public:
  virtual ~IoObject() = default;
  // On the thread: closes sockets, so that every handler of the object soon runs.
  virtual void CloseOnThread() = 0;
};

// IoThread: the thread of a bootstrap, and the io_context that runs on it.
//
// Everything Asio lives here; executors only post to it. It is shared by the bootstrap and the
// objects that it made, so that sockets never outlive their io_context. Stop() closes what is
// registered, lets every handler run to its end, and joins; from then on Post() refuses, so that no
// operation can be begun that nobody would end. Park() is for a thread that lives as long as the
// process.
//
// Post() is for any thread; Register() and Unregister() for handlers; Stop() and Park() for
// the owner, on another thread.
class VERBENA_EXPORT IoThread {
 public:
  static absl::StatusOr<std::shared_ptr<IoThread>> Start();
  ~IoThread();

  // Runs `function` on the thread. False, and it is dropped, once Stop() has been called.
  template <typename Function>
  bool Post(Function function) {
    std::lock_guard lock(mutex_);
    if (stopping_) return false;
    boost::asio::post(context_, std::move(function));
    return true;
  }

  void Register(std::shared_ptr<IoObject> object) { objects_.insert(std::move(object)); }
  void Unregister(const std::shared_ptr<IoObject>& object) { objects_.erase(object); }
  boost::asio::io_context& context() { return context_; }

  void Stop();

  // Instead of Stop(), when the process exits: refuses all that comes, lets the handlers run that
  // are due, and leaves the thread standing still for ever. Waits for that, at most `patience`. The
  // object must never be destroyed after it.
  void Park(std::chrono::seconds patience);

 private:
  IoThread();

  boost::asio::io_context context_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::unordered_set<std::shared_ptr<IoObject>> objects_;  // the thread only
  std::mutex mutex_;
  bool stopping_ = false;  // under mutex_
  std::thread thread_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CONNECT_IO_THREAD_H_
