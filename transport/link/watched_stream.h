// WatchedStream: the bootstrap connection of a link, which stays open as long as the link does.
//
// Nothing is sent on it after the handshake. Anything that comes out of it means that the peer is
// going. A coroutine reads it until then; the link's teardown closes it, and waits for that
// coroutine before it frees the link. Part of a LinkQp, on its executor's thread.

#ifndef VERBENA_TRANSPORT_LINK_WATCHED_STREAM_H_
#define VERBENA_TRANSPORT_LINK_WATCHED_STREAM_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/coro/event.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

class WatchedStream {
 public:
  // Keeps `stream` until the link is freed; nobody reads it.
  void Keep(std::unique_ptr<MessageStream> stream) {
    stream_ = std::move(stream);
    unread_.Set();
  }
  // Keeps `stream`, which one coroutine reads from now on: Receive(), and then EndReading().
  void KeepAndRead(std::unique_ptr<MessageStream> stream) {
    stream_ = std::move(stream);
    unread_.Reset();
  }
  // Only after KeepAndRead().
  [[nodiscard]] VERBENA_CORO_WRAPPER Task<absl::StatusOr<std::string>> Receive() {
    return stream_->Receive();
  }
  void EndReading() { unread_.Set(); }

  // Does nothing while there is no stream.
  void Close() {
    if (stream_ != nullptr) stream_->Close();
  }
  // Until nobody reads the stream. Only after Close().
  [[nodiscard]] Task<void> AwaitUnread() {
    if (stream_ != nullptr) (void)co_await unread_.Wait();
  }

 private:
  std::unique_ptr<MessageStream> stream_;  // null until the handshake has ended
  Event unread_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_WATCHED_STREAM_H_
