// The bytes of the soft device's TCP wire (WIRE.md): greetings, control messages and the headers of
// chunks.
//
// All parsers are pure functions of bytes that a peer may have made up. They return an error, which
// says what is wrong, for each field that no sound peer sends. What a field means for the state of
// a connection is checked by whoever has that state. Integers are little-endian.

#ifndef VERBENA_TRANSPORT_SOFT_TCP_FORMAT_H_
#define VERBENA_TRANSPORT_SOFT_TCP_FORMAT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "verbena/transport/soft/address.h"
#include "verbena/transport/soft/ring.h"

namespace verbena::internal::soft {

// Opens each connection, in both directions.
struct TcpGreeting {
  static constexpr size_t kBytes = 80;
  static constexpr uint32_t kMagic = 0x31744256;  // "VBt1"
  // Of greetings, messages, chunks and the ring's lines in them. A change of any takes the next
  // number, and tests/repository/wire_test.py notices.
  static constexpr uint16_t kVersion = 2;

  enum class Kind : uint16_t {
    kControl = 1,  // between two devices
    kLanes = 2,    // between two CQs
  };
  // The answer of whoever was dialed. Whoever dials says kAccepted.
  enum class Verdict : uint16_t {
    kAccepted = 0,
    kDuplicate = 1,  // there is a connection already, or the other side's dial goes first
    kStranger = 2,   // no control connection has this session
    kNoCq = 3,       // no such CQ, or it has too many lanes
    kBusy = 4,       // too many peers
    kVersion = 5,    // another version of the protocol
    kShare = 6,      // the sender's host holds as much as it may
    kAddress = 7,    // the sender's GID is not the address that it connects from
  };

  Kind kind = Kind::kControl;
  Verdict verdict = Verdict::kAccepted;
  DeviceAddress sender;
  // A control connection's: the sender's secret, which the receiver shows in its other connections.
  // A lane connection's: the receiver's secret.
  uint64_t session = 0;
  // A lane connection's: the two CQs, and the geometry of the lane that the sender writes into.
  uint64_t sender_cq = 0;
  uint64_t receiver_cq = 0;
  LaneGeometry geometry{};

  // Both sides of a connection map rings of this size, so a peer may not ask for any.
  static constexpr uint32_t kMaxRingLines = (16u << 20) / kLineBytes;
};

// A message between two devices on their control connection.
struct TcpControl {
  static constexpr size_t kBytes = 40;

  enum class Kind : uint16_t {
    kResolve = 1,     // request, qpn: which CQ does this QP receive through?
    kResolved = 2,    // request, found, receiver_cq: this one of mine
    kDial = 3,        // sender_cq, receiver_cq: connect your CQ to mine, since you dialed me
    kDialFailed = 4,  // sender_cq, receiver_cq: I could not
  };

  Kind kind = Kind::kResolve;
  bool found = false;
  uint32_t qpn = 0;
  uint64_t request = 0;
  uint64_t sender_cq = 0;
  uint64_t receiver_cq = 0;
};

// Precedes lines of the rings on a lane connection.
struct TcpChunk {
  static constexpr size_t kBytes = 32;
  static constexpr uint16_t kMagic = 0x6356;  // "Vc"
  // A chunk is small enough that the counters of the next one are not late.
  static constexpr uint32_t kMaxLines = 2048;

  enum Flags : uint16_t {
    kRequestPad = 1 << 0,  // after its lines, the request ring goes on at its start
    kAnswerPad = 1 << 1,   // likewise
  };
  static constexpr uint16_t kKnownFlags = kRequestPad | kAnswerPad;

  uint16_t flags = 0;
  uint32_t request_lines = 0;
  uint32_t answer_lines = 0;
  uint64_t consumed = 0;          // of the receiver's requests
  uint64_t answers_consumed = 0;  // of the receiver's answers
};

// The verdict in words, for logs.
const char* TextOf(TcpGreeting::Verdict verdict);

std::array<std::byte, TcpGreeting::kBytes> Encode(const TcpGreeting& greeting);
std::array<std::byte, TcpControl::kBytes> Encode(const TcpControl& message);
std::array<std::byte, TcpChunk::kBytes> Encode(const TcpChunk& chunk);

// UNIMPLEMENTED for another version of the protocol, otherwise INVALID_ARGUMENT.
absl::StatusOr<TcpGreeting> ParseGreeting(std::span<const std::byte, TcpGreeting::kBytes> bytes);
absl::StatusOr<TcpControl> ParseControl(std::span<const std::byte, TcpControl::kBytes> bytes);
// No Status on the data path: false for a chunk that makes no sense.
bool ParseChunk(std::span<const std::byte, TcpChunk::kBytes> bytes, TcpChunk& chunk);

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_TCP_FORMAT_H_
