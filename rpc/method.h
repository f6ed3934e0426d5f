// MethodDescriptor: what both sides know about a method, generated from its .proto.
//
// Generated code defines descriptors as constants, which live for ever. Any thread.
//
//   Log(context.method().full_name);  // in a handler: "storage.Store/Get"

#ifndef VERBENA_RPC_METHOD_H_
#define VERBENA_RPC_METHOD_H_

#include <atomic>
#include <cstdint>
#include <string_view>

namespace verbena {

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
class MethodIndex {
 public:
  constexpr MethodIndex() = default;
  constexpr MethodIndex(const MethodIndex&) {}
  MethodIndex& operator=(const MethodIndex&) = delete;

  // From any thread.
  uint32_t value() const {
    const uint32_t value = value_.load(std::memory_order_relaxed);
    return value != 0 ? value : Assign();
  }

 private:
  [[gnu::cold, gnu::noinline]] uint32_t Assign() const;

  mutable std::atomic<uint32_t> value_{0};
};

}  // namespace internal

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

}  // namespace verbena

#endif  // VERBENA_RPC_METHOD_H_
