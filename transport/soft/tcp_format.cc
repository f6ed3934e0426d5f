#include "verbena/transport/soft/tcp_format.h"

#include <bit>
#include <cstring>

#include "fmt/format.h"

namespace verbena::internal::soft {
namespace {

// Lines travel as they lie in memory. A big-endian machine would have to swap them.
static_assert(std::endian::native == std::endian::little);

template <typename Integer>
void Put(std::byte* at, Integer value) {
  std::memcpy(at, &value, sizeof(value));
}

template <typename Integer>
Integer Get(const std::byte* at) {
  Integer value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

absl::Status Invalid(const char* what, uint64_t value) {
  return absl::InvalidArgumentError(fmt::format("{} of {:#x}", what, value));
}

}  // namespace

std::array<std::byte, TcpGreeting::kBytes> Encode(const TcpGreeting& greeting) {
  std::array<std::byte, TcpGreeting::kBytes> bytes{};
  Put(&bytes[0], TcpGreeting::kMagic);
  Put(&bytes[4], TcpGreeting::kVersion);
  Put(&bytes[6], static_cast<uint16_t>(greeting.kind));
  Put(&bytes[8], static_cast<uint16_t>(greeting.verdict));
  Put(&bytes[10], greeting.sender.lid);
  std::memcpy(&bytes[16], greeting.sender.gid.raw, sizeof(greeting.sender.gid.raw));
  Put(&bytes[32], greeting.session);
  Put(&bytes[40], greeting.sender_cq);
  Put(&bytes[48], greeting.receiver_cq);
  Put(&bytes[56], greeting.geometry.request_lines);
  Put(&bytes[60], greeting.geometry.answer_lines);
  return bytes;
}

absl::StatusOr<TcpGreeting> ParseGreeting(std::span<const std::byte, TcpGreeting::kBytes> bytes) {
  const auto magic = Get<uint32_t>(&bytes[0]);
  if (magic != TcpGreeting::kMagic) return Invalid("not a soft device: a magic number", magic);
  const auto version = Get<uint16_t>(&bytes[4]);
  if (version != TcpGreeting::kVersion) {
    return absl::UnimplementedError(
        fmt::format("version {} of the soft device's TCP wire; this side speaks {}", version,
                    TcpGreeting::kVersion));
  }
  TcpGreeting greeting;
  const auto kind = Get<uint16_t>(&bytes[6]);
  if (kind != static_cast<uint16_t>(TcpGreeting::Kind::kControl) &&
      kind != static_cast<uint16_t>(TcpGreeting::Kind::kLanes)) {
    return Invalid("a greeting of kind", kind);
  }
  greeting.kind = static_cast<TcpGreeting::Kind>(kind);
  const auto verdict = Get<uint16_t>(&bytes[8]);
  if (verdict > static_cast<uint16_t>(TcpGreeting::Verdict::kAddress)) {
    return Invalid("a greeting's verdict", verdict);
  }
  greeting.verdict = static_cast<TcpGreeting::Verdict>(verdict);
  greeting.sender.lid = Get<uint16_t>(&bytes[10]);
  std::memcpy(greeting.sender.gid.raw, &bytes[16], sizeof(greeting.sender.gid.raw));
  greeting.session = Get<uint64_t>(&bytes[32]);
  greeting.sender_cq = Get<uint64_t>(&bytes[40]);
  greeting.receiver_cq = Get<uint64_t>(&bytes[48]);
  greeting.geometry = {.request_lines = Get<uint32_t>(&bytes[56]),
                       .answer_lines = Get<uint32_t>(&bytes[60])};
  // A verdict against the receiver says no more than why.
  if (greeting.verdict != TcpGreeting::Verdict::kAccepted) return greeting;
  if (greeting.sender.lid == 0) return Invalid("a greeting from TCP port", 0);
  const LaneGeometry& geometry = greeting.geometry;
  if (greeting.kind == TcpGreeting::Kind::kLanes &&
      (!geometry.valid() || geometry.request_lines > TcpGreeting::kMaxRingLines ||
       geometry.answer_lines > TcpGreeting::kMaxRingLines)) {
    return absl::InvalidArgumentError(fmt::format("a lane with rings of {} and {} lines",
                                                  geometry.request_lines, geometry.answer_lines));
  }
  return greeting;
}

const char* TextOf(TcpGreeting::Verdict verdict) {
  switch (verdict) {
    case TcpGreeting::Verdict::kAccepted:
      return "accepted";
    case TcpGreeting::Verdict::kDuplicate:
      return "there is such a connection already";
    case TcpGreeting::Verdict::kStranger:
      return "no control connection has this session";
    case TcpGreeting::Verdict::kNoCq:
      return "there is no such CQ, or it has too many lanes";
    case TcpGreeting::Verdict::kBusy:
      return "too many peers";
    case TcpGreeting::Verdict::kVersion:
      return "it speaks another version of the TCP wire; run the same version of Verbena on both "
             "hosts";
    case TcpGreeting::Verdict::kShare:
      return "a host holds as much of its peer's connections and memory as it may";
    case TcpGreeting::Verdict::kAddress:
      return "a device's GID must be the address that it connects from; name that address "
             "(soft:tcp:ADDRESS:PORT), or set VERBENA_SOFT_ANY_SOURCE=1 at the peer";
  }
  return "";
}

std::array<std::byte, TcpControl::kBytes> Encode(const TcpControl& message) {
  std::array<std::byte, TcpControl::kBytes> bytes{};
  Put(&bytes[0], static_cast<uint16_t>(message.kind));
  Put(&bytes[2], static_cast<uint16_t>(message.found ? 1 : 0));
  Put(&bytes[4], message.qpn);
  Put(&bytes[8], message.request);
  Put(&bytes[16], message.sender_cq);
  Put(&bytes[24], message.receiver_cq);
  return bytes;
}

absl::StatusOr<TcpControl> ParseControl(std::span<const std::byte, TcpControl::kBytes> bytes) {
  const auto kind = Get<uint16_t>(&bytes[0]);
  if (kind < static_cast<uint16_t>(TcpControl::Kind::kResolve) ||
      kind > static_cast<uint16_t>(TcpControl::Kind::kDialFailed)) {
    return Invalid("a control message of kind", kind);
  }
  const auto found = Get<uint16_t>(&bytes[2]);
  if (found > 1) return Invalid("a control message that found", found);
  TcpControl message{.kind = static_cast<TcpControl::Kind>(kind),
                     .found = found != 0,
                     .qpn = Get<uint32_t>(&bytes[4]),
                     .request = Get<uint64_t>(&bytes[8]),
                     .sender_cq = Get<uint64_t>(&bytes[16]),
                     .receiver_cq = Get<uint64_t>(&bytes[24])};
  if (message.qpn > 0xffffff) return Invalid("a QP number", message.qpn);
  return message;
}

std::array<std::byte, TcpChunk::kBytes> Encode(const TcpChunk& chunk) {
  std::array<std::byte, TcpChunk::kBytes> bytes;
  Put(&bytes[0], TcpChunk::kMagic);
  Put(&bytes[2], chunk.flags);
  Put(&bytes[4], uint32_t{0});
  Put(&bytes[8], chunk.request_lines);
  Put(&bytes[12], chunk.answer_lines);
  Put(&bytes[16], chunk.consumed);
  Put(&bytes[24], chunk.answers_consumed);
  return bytes;
}

bool ParseChunk(std::span<const std::byte, TcpChunk::kBytes> bytes, TcpChunk& chunk) {
  chunk = {.flags = Get<uint16_t>(&bytes[2]),
           .request_lines = Get<uint32_t>(&bytes[8]),
           .answer_lines = Get<uint32_t>(&bytes[12]),
           .consumed = Get<uint64_t>(&bytes[16]),
           .answers_consumed = Get<uint64_t>(&bytes[24])};
  return Get<uint16_t>(&bytes[0]) == TcpChunk::kMagic &&
         (chunk.flags & ~unsigned{TcpChunk::kKnownFlags}) == 0 && Get<uint32_t>(&bytes[4]) == 0 &&
         chunk.request_lines <= TcpChunk::kMaxLines && chunk.answer_lines <= TcpChunk::kMaxLines;
}

}  // namespace verbena::internal::soft
