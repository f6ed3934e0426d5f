// Calls: what a caller may say about a call, and the call itself.
//
//   Priority, RequestId            how urgent a call is; a name for it
//   Inherit                        what a call takes over from the Task that makes it
//   Deadline                       the time by which it must have ended
//   Metadata                       keys and values beside the messages
//   Payload, WithPayload           bulk bytes beside a message
//   CallInfo                       a call's time, sizes and trailing metadata
//   CallOptions                    all that a caller may say, in one aggregate
//   MethodDescriptor               what both sides know about a method; Idempotency, Payloads,
//                                  Streams
//   UnaryCall                      one call, as a stub's method returns it
//
//   VERBENA_CO_ASSIGN_OR_RETURN(GetReply reply, co_await stub.Get(request, {.deadline = 5ms}));

#ifndef VERBENA_RPC_CALL_H_
#define VERBENA_RPC_CALL_H_

#include "verbena/transport/base/compiler.h"  // IWYU pragma: keep

#include <array>
#include <atomic>
#include <chrono>
#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/base/config.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "absl/utility/utility.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena {

class Channel;
class DedupeToken;
struct MethodConfig;

namespace internal {
class ClientChannel;
class Connection;
class MetadataCodec;
class MethodCounts;
class Shard;

// The core of `channel`, for generated code and Verbena itself.
VERBENA_EXPORT ClientChannel& CoreOf(const Channel& channel);
}  // namespace internal

// How urgent a call is. A server reads it as ServerContext::priority().
//
//   co_await stub.Heartbeat(request, {.priority = Priority::kControl});
enum class Priority : uint8_t {
  kNormal = 0,
  kControl = 1,     // small and urgent, such as heartbeats
  kBackground = 2,  // may wait: scrubs, rebuilds
};

// A name of a call, the same in each attempt: the client, and a number that this client gives to no
// other call.
struct RequestId {
  std::array<uint8_t, 16> client{};
  uint64_t number = 0;

  bool operator==(const RequestId&) const = default;
};

// The context that a call takes over from the Task that makes it.
enum class Inherit : uint8_t {
  // The Task's deadline if that is earlier than the call's own, its cancellation and its trace.
  kAll = 0,
  // Nothing: for work that must be done even if the Task is cancelled, such as giving up a lock.
  // Neither a cancellation of the Task nor WithDeadline() ends such a call; its own deadline does.
  // Destroying the Task still abandons it: Spawn() what must outlive the Task. For a stream this
  // declines the deadline and the trace; a cancelled Task still ends its own awaits of it.
  kNothing = 1,
};

// Deadline: the time by which a call must have ended.
//
// Made from a duration or a time point, implicitly, so that `{.deadline = 5ms}` reads well. A
// duration counts from the start of the call, on the clock of the executor that makes it; a time
// point is a time of that clock. The default leaves it to the channel (ChannelOptions), which has
// none unless it is given one. A value; any thread.
//
//   co_await stub.Read(request, {.deadline = std::chrono::milliseconds(5)});
//
//   precondition                                   how it is checked   test
//   when() of one that is made from a time point   a check aborts      deadline_clock_test
class Deadline {
 public:
  constexpr Deadline() = default;
  template <typename Rep, typename Period>
  constexpr Deadline(  // NOLINT(google-explicit-constructor)
      std::chrono::duration<Rep, Period> from_start)
      : when_(internal::SaturatingCast(from_start)), kind_(Kind::kFromStart) {}
  constexpr Deadline(TimePoint when) : when_(when) {}  // NOLINT(google-explicit-constructor)

  // No deadline, whatever the channel's default is.
  static constexpr Deadline None() {
    Deadline none;
    none.kind_ = Kind::kNone;
    return none;
  }

  constexpr bool is_set() const { return kind_ == Kind::kFromStart || when_ != kNever; }
  // Whether the caller chose: a deadline, or None(). False for the default.
  constexpr bool is_given() const { return is_set() || kind_ == Kind::kNone; }
  // The deadline of a call that starts at `start`: kNever if there is none. The second form asks
  // `scheduler` for the time if it must.
  constexpr TimePoint At(TimePoint start) const {
    return kind_ == Kind::kFromStart ? SaturatingAdd(start, when_.time_since_epoch()) : when_;
  }
  TimePoint At(const Scheduler& scheduler) const {
    return kind_ == Kind::kFromStart ? At(scheduler.now()) : when_;
  }

  // kNever if there is none. Precondition: made from a time point, as ServerContext::deadline() is.
  constexpr TimePoint when() const {
    VERBENA_CHECK(kind_ != Kind::kFromStart)
        << "a deadline made from a duration is no time before its call starts: use At()";
    return when_;
  }

 private:
  enum class Kind : uint8_t { kTime, kFromStart, kNone };

  // A duration from the call's start is kept as the time that far after the clock's epoch.
  TimePoint when_ = kNever;
  Kind kind_ = Kind::kTime;
};

// Metadata: keys and values that travel beside a call's messages, from the caller to the handler,
// and as trailing metadata back.
//
// A multi-map in the order of Add(). A key has 1 to 255 of the characters a-z, 0-9, '_', '-' and
// '.'. A value is printable ASCII, or any bytes if the key ends in "-bin". Add() refuses keys that
// begin with "verbena-", and the keys "traceparent" and "tracestate", which Verbena uses. An entry
// counts as its key, its value and 4 bytes; all entries are bounded by kMaxBytes (32 KiB), and a
// call's by ChannelOptions::max_metadata_bytes and ServerOptions::max_metadata_bytes.
//
// Add() returns no error, so that a Metadata can be written in place. It leaves out an entry that
// it refuses, keeps the first such error as status(), and the call that is given this Metadata
// fails with it. A server's interceptor checks status() itself. A value; copies are deep. One
// thread at a time.
//
//   co_await stub.Get(request, {.metadata = {{"tenant", "blue"}, {"token-bin", token}}});
//
//   if (std::optional<std::string_view> tenant = context.metadata().Get("tenant")) …
class VERBENA_EXPORT Metadata {
 public:
  // A key and its value.
  using Entry = std::pair<std::string_view, std::string_view>;

  static constexpr size_t kMaxBytes = 32 * 1024;
  static constexpr size_t kMaxKeyBytes = 255;
  static constexpr size_t kEntryBytes = 4;  // beside key and value

  class Iterator;

  Metadata() = default;
  Metadata(std::initializer_list<Entry> entries);
  Metadata(const Metadata& other);
  Metadata(Metadata&&) noexcept = default;
  Metadata& operator=(Metadata other) noexcept {
    rep_ = std::move(other.rep_);
    return *this;
  }
  ~Metadata() = default;

  Metadata& Add(std::string_view key, std::string_view value);
  // Removes all entries of `key`, and returns how many there were.
  size_t Remove(std::string_view key);
  // Forgets all entries, and status().
  void Clear() { rep_.reset(); }

  // The first value of `key`. Views are valid until the Metadata changes.
  std::optional<std::string_view> Get(std::string_view key) const;
  // All values of `key`, in order.
  std::vector<std::string_view> All(std::string_view key) const;
  Iterator begin() const;
  Iterator end() const;

  bool empty() const { return rep_ == nullptr || rep_->entries.empty(); }
  // The number of entries.
  size_t size() const;
  // The bytes of all entries, as the bounds count them.
  size_t bytes() const { return rep_ == nullptr ? 0 : rep_->entries.size(); }
  // OK, or why the first entry was refused: INVALID_ARGUMENT for its key or value, and
  // RESOURCE_EXHAUSTED beyond kMaxBytes. The message names the key.
  absl::Status status() const { return rep_ == nullptr ? absl::OkStatus() : rep_->status; }
  // Nothing was added, not even an entry that was refused.
  bool untouched() const { return rep_ == nullptr; }

  // Whether an entry may be sent: INVALID_ARGUMENT, which names the key, if it may not.
  static absl::Status CheckEntry(std::string_view key, std::string_view value);

 private:
  friend class internal::MetadataCodec;
  struct Rep {
    std::string entries;  // as they travel (proto/WIRE.md)
    absl::Status status;
  };
  Rep& rep();

  std::unique_ptr<Rep> rep_;  // null: nothing was added
};

class VERBENA_EXPORT Metadata::Iterator {
 public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = Entry;
  using difference_type = std::ptrdiff_t;
  using pointer = const Entry*;
  using reference = const Entry&;

  Iterator() = default;
  const Entry& operator*() const { return entry_; }
  const Entry* operator->() const { return &entry_; }
  Iterator& operator++() {
    left_.remove_prefix(kEntryBytes + entry_.first.size() + entry_.second.size());
    Read();
    return *this;
  }
  Iterator operator++(int) {
    Iterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const Iterator& other) const { return left_.size() == other.left_.size(); }

 private:
  friend class Metadata;
  explicit Iterator(std::string_view entries) : left_(entries) { Read(); }
  void Read();

  std::string_view left_;  // from this entry on
  Entry entry_;
};

inline Metadata::Iterator Metadata::begin() const {
  return rep_ == nullptr ? Iterator() : Iterator(rep_->entries);
}
inline Metadata::Iterator Metadata::end() const { return {}; }

// A part of a Buffer, within its size.
struct PayloadSlice {
  size_t offset;
  size_t bytes;
};

// Payload: bulk bytes beside a message: Buffers, or parts of them, sent in order and never
// serialized.
//
// Owns its Buffers: nobody else may change memory that a peer may still read or a device still
// send. Move-only; one whole Buffer, the usual payload, costs no allocation. One thread.
//
//   Payload block = std::move(buffer);                    // all of it
//   Payload ends; ends.Add(std::move(buffer), {{0, 4096}, {61440, 4096}});
//
//   precondition                            how it is checked   test
//   slices lie within their Buffer          a check aborts      misuse_test
//   part(index) with index < part_count()   a check aborts      misuse_test
class Payload {
 public:
  Payload() = default;
  Payload(Buffer buffer) : first_(std::move(buffer)) {}  // NOLINT(google-explicit-constructor)

  // Appends all of the Buffer, or its slices in this order.
  void Add(Buffer buffer) {
    if (size() == 0 && parts_ == nullptr) {
      first_ = std::move(buffer);
      return;
    }
    const PayloadSlice all{0, buffer.size()};
    Add(std::move(buffer), {all});
  }
  void Add(Buffer buffer, std::initializer_list<PayloadSlice> slices) {
    Add(std::move(buffer), absl::MakeConstSpan(slices.begin(), slices.size()));
  }
  void Add(Buffer buffer, absl::Span<const PayloadSlice> slices) {
    if (parts_ == nullptr) {
      parts_ = std::make_unique<Parts>();
      const PayloadSlice all{0, first_.size()};
      if (first_) parts_->Add(std::move(first_), absl::MakeConstSpan(&all, 1));
    }
    parts_->Add(std::move(buffer), slices);
  }

  // The bytes of all parts.
  size_t size() const { return parts_ == nullptr ? first_.size() : parts_->bytes; }
  bool empty() const { return size() == 0; }
  // A payload of no bytes, which is not the same as none.
  static Payload Empty() {
    Payload payload;
    payload.parts_ = std::make_unique<Parts>();
    return payload;
  }
  // Whether there is one, even an empty one: Empty(), or a Buffer of any size.
  bool present() const { return first_ || parts_ != nullptr; }

  // Its parts in order, each of one Buffer; some may be empty.
  size_t part_count() const { return parts_ == nullptr ? 1 : parts_->views.size(); }
  BufferView part(size_t index) const {
    VERBENA_CHECK(index < part_count()) << "part " << index << " of " << part_count();
    return parts_ == nullptr ? first_.view() : parts_->views[index];
  }

  // Takes the first Buffer, and destroys any others. For payloads of one Buffer. The payload is
  // absent afterwards.
  Buffer TakeBuffer() {
    Buffer buffer = std::move(first_);
    if (parts_ != nullptr && !parts_->buffers.empty()) buffer = std::move(parts_->buffers.front());
    parts_.reset();
    return buffer;
  }

 private:
  struct Parts {
    void Add(Buffer buffer, absl::Span<const PayloadSlice> slices) {
      for (const PayloadSlice& slice : slices) {
        VERBENA_CHECK(slice.offset <= buffer.size() && slice.bytes <= buffer.size() - slice.offset)
            << slice.bytes << " bytes at " << slice.offset << " of a Buffer of " << buffer.size();
        views.push_back(buffer.Slice(slice.offset, slice.bytes));
        bytes += slice.bytes;
      }
      buffers.push_back(std::move(buffer));
    }

    std::vector<Buffer> buffers;
    std::vector<BufferView> views;
    size_t bytes = 0;
  };

  Buffer first_;  // the only Buffer while parts_ is null
  std::unique_ptr<Parts> parts_;
};

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
//   while (co_await reader.Read(part)) {
//     if (!(co_await writer.Write(part)).ok()) break;  // Finish() says why
//   }
template <typename Message>
struct WithPayload {
  // The message's members: `(*got)->version()`.
  Message* operator->() { return &message; }
  const Message* operator->() const { return &message; }

  Message message = {};
  // The payload. If that is empty, or there is none, this has no bytes and may have no memory. A
  // Read of a stream uses the memory that is here again if that is large enough.
  //
  // A unary call that fills its caller's WithPayload drops what was here when it begins. After a
  // failure, there are two cases. The server cannot write to CallOptions::response_payload_into any
  // more: that memory is here, and its content is undefined. The server may still write to it: no
  // memory is here, and the call's memory returns to its pool later.
  Buffer payload = {};
  // Whether the message has a payload, perhaps an empty one. A Write sends none if this is false.
  bool has_payload = false;
};

// A call's time, sizes and trailing metadata. Emptied when the call begins, and filled when it
// ends, well or badly. Belongs to the caller and must live until then.
struct CallInfo {
  // From the call's start to its end, by the clock of the client's executor. Connecting counts, and
  // so do the interceptors of a unary call. 0 on a thread that runs no executor.
  Duration elapsed{};
  // Bytes of the serialized messages, in a frame or as bulk. The messages of a side that streams do
  // not count.
  uint32_t request_bytes = 0;
  uint32_t reply_bytes = 0;
  // Metadata that the handler added to its answer, also to a failure; empty if no answer came.
  Metadata trailing_metadata = {};
};

// CallOptions are what a caller may say about one call. They are an aggregate for designated
// initialisers: the order of the fields is frozen, new ones go at the end, and each has a default.
// They are move-only, since a payload has one owner. Streams take all options except payloads,
// which end the stream with INVALID_ARGUMENT.
//
//   Payload block = std::move(buffer);
//   co_await stub.Write(request, reply,
//                       {.request_payload = std::move(block), .returned_payload = &block});
struct CallOptions {
  // The caller resumes with DEADLINE_EXCEEDED when it passes; the server is told how long is left.
  // The default is ChannelOptions::default_deadline. If the Task that makes the call has an earlier
  // deadline, as a handler or WithDeadline() gives it one, that holds (see `inherit`).
  Deadline deadline = {};
  // Receives time, sizes and trailing metadata, if not null. Must live until the call ends.
  CallInfo* info = nullptr;
  // The request's payload, for methods that take one, in at most 8 parts. Its memory comes from
  // Channel::AllocateBuffer(), or from Runtime::RegisterMemory() with the channel's device. The
  // default is no payload; Payload::Empty() is a payload of no bytes. The handler can tell them
  // apart.
  Payload request_payload = {};
  // Memory for the response's payload, of the same kind; the server writes at most size() bytes to
  // it. It comes back as WithPayload::payload. If the call fails, its content is undefined. A
  // failed call that fills its caller's WithPayload leaves the memory there if the server provably
  // cannot write to it any more. In all other failed calls the memory returns to its pool, at once
  // or later.
  Buffer response_payload_into = {};
  // Without response_payload_into: the most bytes that the response's payload may have, for which
  // the client allocates memory. A larger payload fails with RESOURCE_EXHAUSTED, after the handler
  // has run. Without either, the server asks for memory once it knows the size, which costs a round
  // trip, unless the payload fits a frame.
  uint64_t max_response_payload = 0;
  // Not null: receives request_payload when the call ends, well or badly, if the server provably no
  // longer uses it. Otherwise its memory returns to its pool later. `*returned_payload` is emptied
  // when the call begins, and must live until the call ends.
  Payload* returned_payload = nullptr;
  // Metadata for the handler; the default is none. An entry that may not be sent fails the call
  // with INVALID_ARGUMENT, and more than ChannelOptions::max_metadata_bytes with
  // RESOURCE_EXHAUSTED, before anything is sent.
  Metadata metadata = {};
  // How urgent the call is; normal by default.
  Priority priority = Priority::kNormal;
  // The context that the call takes over from the Task that makes it: by default all of it.
  Inherit inherit = Inherit::kAll;
  // A name of the caller's choice, the same in each attempt, which the handler sees. Verbena does
  // nothing else with it: `dedupe` is for calls that must not run twice. The default is none.
  std::optional<RequestId> request_id = {};
  // The call goes to the server of a set that this key belongs to (Balancing::kRouteKey). Other
  // channels ignore it. The default is no key; 0 is one.
  std::optional<uint64_t> route_key = {};
  // True: while no server can be reached, the call waits for one until its deadline, instead of
  // failing when the attempts to connect have failed. It still fails for a reason that does not
  // pass, such as INVALID_ARGUMENT for the target.
  bool wait_for_ready = false;
  // The token of the call, the same in each attempt, for methods marked `dedupe` (dedupe.h). Null,
  // the default: the call has a token of its own, for all attempts that a RetryPolicy makes. A
  // token that is given must outlive them.
  DedupeToken* dedupe = nullptr;
};

// google.protobuf.MethodOptions.IdempotencyLevel.
enum class Idempotency : uint8_t { kUnknown, kNoSideEffects, kIdempotent };

// Which sides bring a payload beside their message, or beside each message of their stream.
enum class Payloads : uint8_t { kNone, kRequest, kResponse, kBoth };

// Which sides send a stream of messages instead of one: kServer is server streaming, kBoth
// bidirectional streaming.
enum class Streams : uint8_t { kNone, kServer, kClient, kBoth };

namespace internal {

// FNV-1a, 64 bits (draft-eastlake-fnv): handshakes know a method by the hash of its full name. A
// server refuses to register two methods that collide.
constexpr uint64_t MethodId(std::string_view full_name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (char c : full_name) {
    hash ^= static_cast<uint8_t>(c);
    hash *= 0x100000001b3u;
  }
  return hash;
}

// A descriptor's number in this process, from 1, given when it is first asked for. With it as the
// index of an array, a link finds the method's number on the wire. A copy has a number of its own.
class VERBENA_EXPORT MethodIndex {
 public:
  constexpr MethodIndex() = default;
  constexpr MethodIndex(const MethodIndex&) {}
  MethodIndex& operator=(const MethodIndex&) = delete;

  // From any thread.
  uint32_t value() const {
    const uint32_t value = value_.load(std::memory_order_relaxed);
    return value != 0 ? value : Assign();
  }
  // 0: it was not given yet.
  uint32_t value_if_given() const { return value_.load(std::memory_order_relaxed); }

 private:
  [[gnu::cold, gnu::noinline]] uint32_t Assign() const;

  mutable std::atomic<uint32_t> value_{0};
};

}  // namespace internal

// A MethodDescriptor is what both sides know about a method of a .proto. Generated code defines
// descriptors as constants, which live for ever. Any thread.
//
//   Log(LogLevel::kInfo, context.method().full_name);  // in a handler: "storage.Store/Get"
struct MethodDescriptor {
  constexpr MethodDescriptor(const char* name, Idempotency level, Payloads its_payloads = {},
                             Streams its_streams = {}, bool is_deduplicated = false)
      : full_name(name),
        id(internal::MethodId(name)),
        idempotency(level),
        payloads(its_payloads),
        streams(its_streams),
        dedupe(is_deduplicated) {}

  constexpr bool request_payload() const {
    return payloads == Payloads::kRequest || payloads == Payloads::kBoth;
  }
  constexpr bool response_payload() const {
    return payloads == Payloads::kResponse || payloads == Payloads::kBoth;
  }

  // Whether `side`, kClient or kServer, sends a stream whose messages have payloads.
  constexpr bool messages_have_payloads(Streams side) const {
    const bool has_payloads = side == Streams::kClient ? request_payload() : response_payload();
    return has_payloads && (streams == side || streams == Streams::kBoth);
  }

  const char* full_name;  // "package.Service/Method"
  uint64_t id;
  Idempotency idempotency;
  Payloads payloads;
  Streams streams;
  // A server runs a call once, however often it is repeated (dedupe.h).
  bool dedupe;
  internal::MethodIndex index = {};
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

// The part of a UnaryCall that is the same for all messages: the channel, the method, the options,
// and once the call has begun, the call itself, whose type no user sees.
class VERBENA_EXPORT InPlaceCall {
 public:
  // Takes `options` before it returns. `channel` and `method` are borrowed until the call ends.
  InPlaceCall(ClientChannel& channel, const MethodDescriptor& method, CallOptions&& options);
  // Without options: making and destroying empty ones costs as much as the rest of this
  // constructor.
  InPlaceCall(ClientChannel& channel, const MethodDescriptor& method);
  // A check aborts if `other` has begun.
  InPlaceCall(InPlaceCall&& other) noexcept;
  InPlaceCall& operator=(InPlaceCall&&) = delete;
  ~InPlaceCall();

  // Begins the call for `caller`, which is suspended and goes on when the call has ended. Both
  // messages, and what `payload` names, are borrowed until then. Returns the coroutine to resume
  // now. A check aborts if the call has begun before, or was moved from.
  std::coroutine_handle<> Begin(PromiseBase& caller, const google::protobuf::MessageLite& request,
                                google::protobuf::MessageLite& reply, PayloadSink payload);
  // How the call ended. Call it once.
  absl::Status TakeStatus();

 private:
  // The options and the policy of a call that is not plain, and its memory.
  struct Terms;
  // A plain call in flight.
  class Plain;
  enum class Stage : uint8_t {
    kNew,
    kNewWithTerms,  // storage_ holds Terms
    kPlain,         // storage_ holds a Plain; task_ goes on with it if the call became more
    kPlainTaken,    // the same; the call has ended, and its status has been taken
    kTask,          // task_ makes the call; storage_ holds Terms
    kMovedFrom,
  };
  // Who wants to know how long it takes: the runtime, which counts calls, or a CallInfo.
  enum class Timed : uint8_t { kNot, kCounted, kInfo, kBoth };
  static Timed TimedFor(bool counted, const CallInfo* info) {
    return static_cast<Timed>((counted ? 1 : 0) + (info != nullptr ? 2 : 0));
  }
  bool is_counted() const { return timed_ == Timed::kCounted || timed_ == Timed::kBoth; }
  // Enough for Terms and for a Plain, which the source checks.
  static constexpr size_t kStorageBytes = 240;

  bool is_new() const { return stage_ <= Stage::kNewWithTerms; }
  // Keeps Terms if the call has parts, or if the channel has interceptors, or a policy for its
  // method.
  [[gnu::noinline]] void KeepTerms(CallOptions&& options, bool has_parts);
  // The channel's policy for the method: takes its limits, and returns it if the call may have
  // several attempts. Otherwise nullptr.
  const MethodConfig* TakePolicy();
  // A call that is more than a request and a reply in frames over a link that is there.
  [[gnu::noinline]] std::coroutine_handle<> BeginTask(Connection* connection, PromiseBase& caller,
                                                      const google::protobuf::MessageLite& request,
                                                      google::protobuf::MessageLite& reply,
                                                      PayloadSink payload);
  // The same of one that has Terms, or begins where no executor runs: then `shard` is null.
  [[gnu::noinline]] std::coroutine_handle<> BeginOtherwise(
      Shard* shard, PromiseBase& caller, const google::protobuf::MessageLite& request,
      google::protobuf::MessageLite& reply, PayloadSink payload);
  std::coroutine_handle<> Run(Task<absl::Status> task, PromiseBase& caller);
  // The begin of a call that is timed_, in the shard of its executor.
  void StartClock(Shard& shard, const google::protobuf::MessageLite& request);
  void StartCount(Shard& shard);
  // That of a call on a thread without an executor, which is not counted.
  [[gnu::cold, gnu::noinline]] void StartNowhere(const google::protobuf::MessageLite& request);
  // The end of such a call. One that ended well, and was plain, ended when the last poll found its
  // response.
  void StopPlain(const absl::Status& status);
  [[gnu::noinline]] void StopClock(const absl::Status& status);
  [[gnu::noinline]] absl::Status TakeTaskStatus();
  // All that a call leaves which is not plain, or whose status nobody has taken.
  [[gnu::noinline]] void DestroyRest();
  // It ends now, since its owner does.
  [[gnu::cold, gnu::noinline]] void CountAbandoned();
  // Empties the caller's CallInfo, and fills it when the call has ended.
  [[gnu::noinline]] void StartInfo(Shard& shard, const google::protobuf::MessageLite& request);
  [[gnu::noinline]] void StopInfo();
  std::optional<uint64_t> route_key() const {
    if (!has_route_key_) return std::nullopt;
    return route_key_;
  }
  Plain& plain() { return *reinterpret_cast<Plain*>(storage_); }
  Terms& terms() { return *reinterpret_cast<Terms*>(storage_); }

  ClientChannel* channel_;
  const MethodDescriptor* method_;
  Deadline deadline_;
  CallInfo* info_;
  uint64_t route_key_;  // if has_route_key_
  Task<absl::Status> task_;
  TimePoint info_began_;  // if there is a CallInfo
  MethodCounts* counts_;  // if it is counted; null once it has ended, unless it was plain
  uint64_t began_;        // if it is counted: Ticks
  Stage stage_;
  bool has_route_key_;
  bool wait_for_ready_;
  Timed timed_;
  alignas(std::max_align_t) std::byte storage_[kStorageBytes];
};

// The tag that makes the value of an absl::StatusOr in place. Newer Abseils take std's, and call
// the other name deprecated; Debian 12's and 13's have a type of their own.
#ifdef ABSL_USES_STD_OPTIONAL
using std::in_place;
#else
using absl::in_place;
#endif

}  // namespace internal

// UnaryCall: one call of a unary method, as a stub's method returns it.
//
// Lazy: the call begins when it is awaited, on the executor of whoever awaits it. The call is a
// part of this object, which a co_await keeps in the awaiting coroutine's frame: no coroutine lies
// between, and nothing is allocated once warm. Destroying it while it runs abandons the call: the
// server is told, and nothing is written to the reply any more. One thread; movable until it is
// awaited, which happens at most once.
//
// `Request` is a reference when the call borrows its request, until it ends; otherwise the call
// owns it. `Reply` likewise: a message, or a WithPayload of one if responses have payloads. A call
// that owns its reply gives absl::StatusOr<Reply>, one that borrows it absl::Status. Failures carry
// an Outcome (status.h).
//
//   absl::StatusOr<GetReply> got = co_await stub.Get(request);
//   auto [a, b] = co_await WhenAll(stub.Get(first), stub.Get(second));
//   Task<absl::StatusOr<GetReply>> later = stub.Get(std::move(request));
//
//   precondition                                    how it is checked   test
//   awaited once, and not after it was moved from   a check aborts      call_misuse_test
//   a spawned call owns its messages                does not compile    lifetimes
//   what it borrows lives until it has ended        not checked
template <typename Request, typename Reply>
class [[nodiscard("a call begins when it is awaited: co_await it")]] UnaryCall {
  static constexpr bool kBorrowsReply = std::is_reference_v<Reply>;

 public:
  // The request or the reply is the caller's, who must keep it until the call has ended.
  static constexpr bool kBorrows = std::is_reference_v<Request> || kBorrowsReply;
  using value_type = std::conditional_t<kBorrowsReply, absl::Status, absl::StatusOr<Reply>>;

  // For generated stubs. `channel` and `descriptor` are borrowed until the call ends.
  UnaryCall(internal::ClientChannel& channel, const MethodDescriptor& descriptor, Request&& request)
    requires(!kBorrowsReply)
      : request_(std::forward<Request>(request)),
        reply_(internal::in_place),
        call_(channel, descriptor) {}
  UnaryCall(internal::ClientChannel& channel, const MethodDescriptor& descriptor, Request&& request,
            Reply reply)
    requires kBorrowsReply
      : request_(std::forward<Request>(request)), reply_(reply), call_(channel, descriptor) {}
  // With options.
  UnaryCall(internal::ClientChannel& channel, const MethodDescriptor& descriptor, Request&& request,
            CallOptions&& options)
    requires(!kBorrowsReply)
      : request_(std::forward<Request>(request)),
        reply_(internal::in_place),
        call_(channel, descriptor, std::move(options)) {}
  UnaryCall(internal::ClientChannel& channel, const MethodDescriptor& descriptor, Request&& request,
            Reply reply, CallOptions&& options)
    requires kBorrowsReply
      : request_(std::forward<Request>(request)),
        reply_(reply),
        call_(channel, descriptor, std::move(options)) {}
  UnaryCall(UnaryCall&&) noexcept = default;

  class Awaiter {
   public:
    explicit Awaiter(UnaryCall& call) : call_(call) {}
    bool await_ready() const noexcept { return false; }
    template <typename Caller>
      requires std::derived_from<Caller, internal::PromiseBase>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Caller> caller) {
      return call_.call_.Begin(caller.promise(), call_.request_, internal::MessageOf(call_.reply()),
                               internal::SinkOf(call_.reply()));
    }
    value_type await_resume() { return call_.TakeResult(); }

   private:
    UnaryCall& call_;
  };
  // The object must live until the call has ended, as a temporary in the co_await expression does.
  Awaiter operator co_await() && noexcept { return Awaiter(*this); }

  // The call as a Task, which costs a coroutine's frame: for containers, and for functions that
  // choose between calls. The conversion is implicit.
  VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<value_type> AsTask() && {
    return RunAsTask(std::move(*this));
  }
  VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS
  operator Task<value_type>() && {  // NOLINT(google-explicit-constructor)
    return RunAsTask(std::move(*this));
  }

 private:
  static Task<value_type> RunAsTask(UnaryCall call) { co_return co_await std::move(call); }

  std::remove_reference_t<Reply>& reply() {
    if constexpr (kBorrowsReply) {
      return reply_;
    } else {
      return *reply_;
    }
  }
  value_type TakeResult() {
    absl::Status status = call_.TakeStatus();
    if constexpr (kBorrowsReply) {
      return status;
    } else {
      if (!status.ok()) reply_ = std::move(status);
      return std::move(reply_);
    }
  }

  Request request_;
  std::conditional_t<kBorrowsReply, Reply, absl::StatusOr<Reply>> reply_;
  internal::InPlaceCall call_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_CALL_H_
