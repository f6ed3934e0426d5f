// MessageHooks: tells the interceptors of one stream of each message that it sends or receives.
//
// A stream that has interceptors which see messages has one, as the StreamListener of its halves.
// Other streams pay one branch a message. Part of the stream, on its executor's thread.

#ifndef VERBENA_RPC_STREAM_MESSAGE_HOOKS_H_
#define VERBENA_RPC_STREAM_MESSAGE_HOOKS_H_

#include <algorithm>
#include <memory>
#include <vector>

#include "google/protobuf/message_lite.h"
#include "verbena/rpc/method.h"
#include "verbena/rpc/stream/stream_listener.h"
#include "verbena/rpc/stream/stream_receiver.h"
#include "verbena/rpc/stream/stream_sender.h"

namespace verbena::internal {

template <typename Interceptor, typename View>
class MessageHooks final : private StreamListener {
 public:
  using List = std::vector<std::shared_ptr<Interceptor>>;

  static bool AreWanted(const List& interceptors) {
    return std::any_of(interceptors.begin(), interceptors.end(),
                       [](const auto& each) { return each->sees_messages(); });
  }

  // All outlive this. `mine` is this side. Nothing is told of the messages of a side that does not
  // stream.
  MessageHooks(const List& interceptors, const View& view, Streams mine, StreamSender& sender,
               StreamReceiver& receiver)
      : interceptors_(interceptors),
        view_(view),
        is_client_(mine == Streams::kClient),
        sender_(sender),
        receiver_(receiver) {
    const Streams streams = view.method().streams;
    const Streams theirs = is_client_ ? Streams::kServer : Streams::kClient;
    if (streams == mine || streams == Streams::kBoth) sender_.set_message_listener(this);
    if (streams == theirs || streams == Streams::kBoth) receiver_.set_message_listener(this);
  }
  MessageHooks(const MessageHooks&) = delete;
  MessageHooks& operator=(const MessageHooks&) = delete;
  ~MessageHooks() {
    sender_.set_message_listener(nullptr);
    receiver_.set_message_listener(nullptr);
  }

 private:
  void OnSent(const google::protobuf::MessageLite& message) noexcept override {
    Tell(is_client_, [&](Interceptor& each) { each.OnMessageSent(view_, message); });
  }
  void OnReceived(const google::protobuf::MessageLite& message) noexcept override {
    Tell(!is_client_, [&](Interceptor& each) { each.OnMessageReceived(view_, message); });
  }

  // The first interceptor is next to the caller at a client, and next to the wire at a server.
  template <typename Function>
  void Tell(bool first_is_first, Function function) const {
    const size_t count = interceptors_.size();
    for (size_t i = 0; i < count; ++i) {
      Interceptor& each = *interceptors_[first_is_first ? i : count - 1 - i];
      if (each.sees_messages()) function(each);
    }
  }

  const List& interceptors_;
  const View& view_;
  const bool is_client_;
  StreamSender& sender_;
  StreamReceiver& receiver_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_STREAM_MESSAGE_HOOKS_H_
