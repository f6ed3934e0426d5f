// StreamRead, StreamWrite: the awaits behind Read and Write of client_stream.h and server_stream.h.
//
// Each lives in the frame of the coroutine that awaits it, which may be destroyed at any time. If a
// Read is destroyed after its message has come, the next Read gets that message. One thread.

#ifndef VERBENA_RPC_STREAM_AWAITS_H_
#define VERBENA_RPC_STREAM_AWAITS_H_

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message_lite.h"
#include "verbena/rpc/with_payload.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

class StreamReceiver;
class StreamSender;

// The payload of a message that is read. Outlives its Read.
struct ReceivedPayload {
  // Memory that the Read may use; afterwards the payload's, with its size.
  Buffer buffer = {};
  bool present = false;
  // Not 0: the Read ended without a message, since the next one wants a buffer of so many bytes.
  size_t wanted = 0;
};

// The payload of a message that is written, borrowed as the message is.
struct BorrowedPayload {
  size_t bytes() const { return view.size(); }

  BufferView view = {};
  bool present = false;
};

// The payload of a message that came with one, or none. `message` outlives the Write.
template <typename Message>
BorrowedPayload PayloadOf(const WithPayload<Message>& message) {
  if (!message.has_payload) return {};
  return {.view = message.payload.view(), .present = true};
}

// co_await gives absl::StatusOr<bool>: true when a message was read, false at the end of the
// stream.
class [[nodiscard]] StreamRead final : public Suspension {
 public:
  using value_type = absl::StatusOr<bool>;

  // `payload` is null for messages that have none.
  StreamRead(StreamReceiver& receiver, google::protobuf::MessageLite& into,
             ReceivedPayload* payload = nullptr)
      : receiver_(&receiver), into_(into), payload_(payload) {}
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
  enum class State : uint8_t { kNew, kWaiting, kMessage, kNeedsMemory, kEnd, kFailed, kTaken };

  static Task<value_type> ReadLater(StreamReceiver& receiver, google::protobuf::MessageLite& into) {
    co_return co_await StreamRead(receiver, into);
  }
  void End(State state);
  void Detach() override;

  // Until the await, where to read. Then the receiver that knows this; nullptr if none does.
  StreamReceiver* receiver_;
  google::protobuf::MessageLite& into_;
  ReceivedPayload* const payload_;
  const CancelScope* scope_ = nullptr;  // of the caller
  State state_ = State::kNew;
  absl::Status status_;
};

// Reads a message that may have a payload: co_await gives what StreamRead does. The sink's memory
// is used again if it is large enough.
Task<absl::StatusOr<bool>> ReadWithPayload(StreamReceiver& receiver,
                                           google::protobuf::MessageLite& into, PayloadSink sink);

// co_await gives absl::Status: OK when the message is on its way.
class [[nodiscard]] StreamWrite final : public Suspension {
 public:
  using value_type = absl::Status;

  StreamWrite(StreamSender& sender, const google::protobuf::MessageLite& message,
              BorrowedPayload payload = {})
      : sender_(&sender), message_(message), payload_(payload) {}
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
    return WriteLater(*sender_, message_, payload_);
  }

 private:
  friend StreamSender;

  static Task<value_type> WriteLater(StreamSender& sender,
                                     const google::protobuf::MessageLite& message,
                                     BorrowedPayload payload) {
    co_return co_await StreamWrite(sender, message, payload);
  }
  void End(absl::Status status);
  void Detach() override;

  // Until the await, where to write. Then the sender that knows this; nullptr if none does.
  StreamSender* sender_;
  const google::protobuf::MessageLite& message_;
  const BorrowedPayload payload_;
  bool suspended_ = false;  // and so the sender knows it
  absl::Status status_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_STREAM_AWAITS_H_
