// MethodDescriptor: what both sides know about a method, generated from its .proto.
//
// Constant, static storage; generated code defines them.

#ifndef VERBENA_RPC_METHOD_H_
#define VERBENA_RPC_METHOD_H_

#include <cstdint>
#include <string_view>

namespace verbena {

// google.protobuf.MethodOptions.IdempotencyLevel.
enum class Idempotency : uint8_t { kUnknown, kNoSideEffects, kIdempotent };

// Which sides bring a payload beside their message.
enum class Payloads : uint8_t { kNone, kRequest, kResponse, kBoth };

namespace internal {

// FNV-1a, 64 bits (draft-eastlake-fnv): a method's number on the wire is the hash of its full name.
// A server refuses to register two methods that collide.
constexpr uint64_t MethodId(std::string_view full_name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (char c : full_name) {
    hash ^= static_cast<uint8_t>(c);
    hash *= 0x100000001b3u;
  }
  return hash;
}

}  // namespace internal

struct MethodDescriptor {
  constexpr MethodDescriptor(const char* name, Idempotency level, Payloads its_payloads = {})
      : full_name(name), id(internal::MethodId(name)), idempotency(level), payloads(its_payloads) {}

  constexpr bool request_payload() const {
    return payloads == Payloads::kRequest || payloads == Payloads::kBoth;
  }
  constexpr bool response_payload() const {
    return payloads == Payloads::kResponse || payloads == Payloads::kBoth;
  }

  const char* full_name;  // "package.Service/Method"
  uint64_t id;
  Idempotency idempotency;
  Payloads payloads;
};

}  // namespace verbena

#endif  // VERBENA_RPC_METHOD_H_
