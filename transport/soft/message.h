// The messages that travel through a ring: 16 bytes of header, then payload.
//
// A message is one fragment of a verbs operation, or an answer to one. Both ends of a wire are the
// same build of Verbena on the same machine, so integers are in host order. Nothing in a message is
// trusted: Decode never fails, and whoever reads checks each field against its own tables.

#ifndef VERBENA_TRANSPORT_SOFT_MESSAGE_H_
#define VERBENA_TRANSPORT_SOFT_MESSAGE_H_

#include <cstddef>
#include <cstdint>

namespace verbena::internal::soft {

inline constexpr size_t kLineBytes = 64;
inline constexpr size_t kHeaderBytes = 16;
// Payload of one fragment, the prefix of a one-sided request included. Small enough that fragments
// of many QPs interleave, large enough that a copy outweighs its header.
inline constexpr size_t kMaxFragmentBytes = 16384;

enum class Opcode : uint8_t {
  kNone = 0,  // nothing published here yet
  kPad,       // skip to the start of the ring
  // Requests, initiator to target.
  kSend,
  kWrite,
  kRead,
  kCompareSwap,
  kFetchAdd,
  kSendInvalidate,  // a kSend whose `immediate` is the target's rkey to invalidate
  // Answers, target to initiator.
  kRefused,  // payload: RefusedFragment
  kData,     // bytes of a READ, or the old value of an atomic
};
inline constexpr Opcode kLastRequest = Opcode::kSendInvalidate;
inline constexpr uint8_t kLastOpcode = static_cast<uint8_t>(Opcode::kData);

enum MessageFlags : uint8_t {
  kFirst = 1 << 0,      // first fragment of its operation
  kLast = 1 << 1,       // last fragment of its operation
  kImmediate = 1 << 2,  // carries immediate data; a WRITE with it consumes a receive, as SENDs do
  kSolicited = 1 << 3,
  kWatched = 1 << 4,  // the initiator waits to see this message consumed: report it without delay
  kPlaced = 1 << 5,   // a WRITE whose data the initiator has put in place: only its range follows
};

struct MessageHeader {
  Opcode opcode = Opcode::kNone;
  uint8_t flags = 0;
  uint16_t length = 0;  // payload bytes that follow
  uint32_t immediate = 0;
  uint32_t destination = 0;  // 24-bit QPN on the side that reads the message
  uint32_t source = 0;       // 24-bit QPN on the side that wrote it
  uint16_t psn = 0;          // counts the fragments of a QP

  // The word that is stored last, and so publishes the message. Never 0.
  uint64_t Control() const {
    return uint64_t{static_cast<uint8_t>(opcode)} | uint64_t{flags} << 8 | uint64_t{length} << 16 |
           uint64_t{immediate} << 32;
  }
  uint64_t Route() const {
    return uint64_t{destination} | uint64_t{source} << 24 | uint64_t{psn} << 48;
  }
  static MessageHeader Decode(uint64_t control, uint64_t route) {
    MessageHeader header;
    header.opcode = static_cast<Opcode>(control & 0xff);
    header.flags = static_cast<uint8_t>(control >> 8);
    header.length = static_cast<uint16_t>(control >> 16);
    header.immediate = static_cast<uint32_t>(control >> 32);
    header.destination = static_cast<uint32_t>(route & 0xffffff);
    header.source = static_cast<uint32_t>(route >> 24 & 0xffffff);
    header.psn = static_cast<uint16_t>(route >> 48);
    return header;
  }
};

// Precedes the data of the first fragment of a one-sided request.
struct TargetRange {
  uint64_t address = 0;
  uint64_t length = 0;
  uint32_t rkey = 0;
  uint32_t reserved = 0;
};

struct AtomicOperands {
  uint64_t compare_or_add = 0;
  uint64_t swap = 0;
};

// Why a target did not execute a request.
enum class NakReason : uint32_t {
  kNoReceive,       // RNR NAK: retried after the timer
  kNotReady,        // the destination QP is not in RTR yet: retried until the transport's timeout
  kUnreachable,     // no such QP, or it is in error, or it is connected to somebody else
  kSequence,        // not the fragment that was expected
  kInvalidRequest,  // IBV_WC_REM_INV_REQ_ERR
  kAccess,          // IBV_WC_REM_ACCESS_ERR
  kOperation,       // IBV_WC_REM_OP_ERR
};

struct RefusedFragment {
  uint64_t position = 0;  // line of the refused fragment in the request ring
  NakReason reason = NakReason::kNoReceive;
  uint32_t rnr_timer = 0;  // ibv_qp_attr::min_rnr_timer of the target
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_MESSAGE_H_
