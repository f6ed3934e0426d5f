// The awaits of a stream's messages, for both halves: what stands behind the Read and Write of
// client_stream.h and server_stream.h.
//
// Each lives in the frame of the coroutine that awaits it, which may be destroyed at any time. A
// message that had come for a Read which is destroyed is the next Read's. One thread.

#ifndef VERBENA_RPC_STREAM_AWAITS_H_
#define VERBENA_RPC_STREAM_AWAITS_H_

#include <concepts>
#include <coroutine>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message_lite.h"
#include "verbena/transport/coro/suspension.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

class StreamReceiver;
class StreamSender;

// co_await gives absl::StatusOr<bool>: true when a message was read, false at the end of the
// stream.
class [[nodiscard]] StreamRead final : public Suspension {
 public:
  using value_type = absl::StatusOr<bool>;

  StreamRead(StreamReceiver& receiver, google::protobuf::MessageLite& into)
      : receiver_(&receiver), into_(into) {}
  ~StreamRead() override;

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    return Await(coroutine.promise());
  }
  // False: it has ended, and the caller goes on.
  bool Await(PromiseBase& caller);
  absl::StatusOr<bool> await_resume();
  VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<value_type> AsTask() && {
    return ReadLater(*receiver_, into_);
  }

 private:
  friend StreamReceiver;
  enum class State : uint8_t { kNew, kWaiting, kMessage, kEnd, kFailed, kTaken };

  static Task<value_type> ReadLater(StreamReceiver& receiver, google::protobuf::MessageLite& into) {
    co_return co_await StreamRead(receiver, into);
  }
  void End(State state);
  void Detach() override;

  StreamReceiver* receiver_;  // nullptr once that is gone
  google::protobuf::MessageLite& into_;
  State state_ = State::kNew;
  absl::Status status_;
};

// co_await gives absl::Status: OK when the message is on its way.
class [[nodiscard]] StreamWrite final : public Suspension {
 public:
  using value_type = absl::Status;

  StreamWrite(StreamSender& sender, const google::protobuf::MessageLite& message)
      : sender_(&sender), message_(message) {}
  ~StreamWrite() override;

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    return Await(coroutine.promise());
  }
  // False: it has ended, and the caller goes on.
  bool Await(PromiseBase& caller);
  absl::Status await_resume() { return std::move(status_); }
  VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<value_type> AsTask() && {
    return WriteLater(*sender_, message_);
  }

 private:
  friend StreamSender;

  static Task<value_type> WriteLater(StreamSender& sender,
                                     const google::protobuf::MessageLite& message) {
    co_return co_await StreamWrite(sender, message);
  }
  void End(absl::Status status);
  void Detach() override;

  StreamSender* sender_;  // nullptr unless it waits
  const google::protobuf::MessageLite& message_;
  bool suspended_ = false;
  absl::Status status_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_STREAM_AWAITS_H_
