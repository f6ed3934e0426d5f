// WithPayload: a message and the payload that came with it: a reply, or a message of a stream.
//
// For methods whose responses have payloads, and for streams whose messages have some. A stub's
// unary method returns one, or fills the caller's; so does a Read of a stream, and a Write sends
// one. Both parts belong to its owner. Move-only, since a Buffer has one owner. One thread.
//
//   absl::StatusOr<WithPayload<ReadReply>> got = co_await stub.Read(request);
//   Use(got->message, got->payload.view());
//
//   WithPayload<Part> part;
//   while (co_await reader.Read(part)) co_await writer.Write(part);

#ifndef VERBENA_RPC_WITH_PAYLOAD_H_
#define VERBENA_RPC_WITH_PAYLOAD_H_

#include <type_traits>
#include <utility>

#include "google/protobuf/message_lite.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena {

template <typename Message>
struct WithPayload {
  // The message's members: `(*got)->version()`.
  Message* operator->() { return &message; }
  const Message* operator->() const { return &message; }

  Message message = {};
  // The payload. If that is empty, or there is none, this has no bytes and may have no memory. A
  // Read of a stream uses the memory that is here again if that is large enough.
  //
  // A unary call that fills its caller's WithPayload drops what was here when it begins. If it
  // fails, this is CallOptions::response_payload_into, with undefined content, if the server
  // provably cannot write to it any more. Otherwise this has no memory, and the call's memory
  // returns to its pool later.
  Buffer payload = {};
  // Whether the message has a payload, perhaps an empty one. A Write sends none if this is false.
  bool has_payload = false;
};

namespace internal {

// The members of a WithPayload of any message; null for methods without response payloads.
struct PayloadSink {
  void Set(Buffer received, bool present) const {
    if (payload == nullptr) return;
    *payload = std::move(received);
    *has_payload = present;
  }

  Buffer* payload = nullptr;
  bool* has_payload = nullptr;
};

// The message of a WithPayload, or the message itself.
template <typename Type>
struct MessageTypeOf {
  using Message = Type;
};
template <typename Type>
struct MessageTypeOf<WithPayload<Type>> {
  using Message = Type;
};
template <typename Type>
using MessageOnly = typename MessageTypeOf<Type>::Message;
// A WithPayload.
template <typename Type>
concept HasPayload = !std::is_same_v<Type, MessageOnly<Type>>;

// The parts of a stub's reply.
inline google::protobuf::MessageLite& MessageOf(google::protobuf::MessageLite& reply) {
  return reply;
}
template <typename Message>
google::protobuf::MessageLite& MessageOf(WithPayload<Message>& reply) {
  return reply.message;
}
inline PayloadSink SinkOf(google::protobuf::MessageLite&) { return {}; }
template <typename Message>
PayloadSink SinkOf(WithPayload<Message>& reply) {
  return {&reply.payload, &reply.has_payload};
}

}  // namespace internal
}  // namespace verbena

#endif  // VERBENA_RPC_WITH_PAYLOAD_H_
