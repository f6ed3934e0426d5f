// FilePoller: looks again and again for files that somebody waits for.
//
// A shared file system has no events that reach another host, so waiting means looking: every
// millisecond while there is news, then less and less often, down to once each kSlowest. It lives
// on an IoThread, and all of it belongs to that thread.

#ifndef VERBENA_TRANSPORT_CONNECT_FILE_POLLER_H_
#define VERBENA_TRANSPORT_CONNECT_FILE_POLLER_H_

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <unordered_set>

#include "verbena/transport/connect/io_thread.h"

namespace verbena::internal {

class FilePoller final : public IoObject, public std::enable_shared_from_this<FilePoller> {
 public:
  static constexpr auto kFastest = std::chrono::milliseconds(1);
  static constexpr auto kSlowest = std::chrono::milliseconds(100);

  class Watched {
   public:
    virtual ~Watched() = default;
    // True when there was news.
    virtual bool Look() = 0;
  };

  explicit FilePoller(IoThread& io) : timer_(io.context()) {}

  // Looks at `watched` soon, and again and again until Unwatch(). If it is watched already, looks
  // at it soon.
  void Watch(std::shared_ptr<Watched> watched);
  void Unwatch(const std::shared_ptr<Watched>& watched) { watched_.erase(watched); }

  void CloseOnThread() override;

 private:
  void Wait();
  void LookAtAll();

  boost::asio::steady_timer timer_;
  std::unordered_set<std::shared_ptr<Watched>> watched_;
  std::chrono::milliseconds delay_ = kFastest;
  bool waiting_ = false;
  bool closed_ = false;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CONNECT_FILE_POLLER_H_
