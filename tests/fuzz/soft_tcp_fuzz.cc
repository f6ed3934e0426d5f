// Feeds arbitrary bytes to everything of the soft device's TCP wire that reads a peer's bytes: the
// parsers, and the copy of a ring, which must never show a message that is not all there or reach
// beyond its memory.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "verbena/transport/base/check.h"
#include "verbena/transport/soft/ring.h"
#include "verbena/transport/soft/tcp_format.h"

namespace verbena::internal::soft {
namespace {

constexpr uint32_t kLines = 2048;

template <size_t kBytes>
std::span<const std::byte, kBytes> Take(std::span<const std::byte>& input,
                                        std::array<std::byte, kBytes>& padded) {
  const size_t taken = std::min(input.size(), kBytes);
  padded.fill(std::byte{0});
  std::copy_n(input.begin(), taken, padded.begin());
  input = input.subspan(taken);
  return padded;
}

// A greeting or message that parses must survive being written and parsed again.
void Parse(std::span<const std::byte> input) {
  std::array<std::byte, TcpGreeting::kBytes> greeting;
  if (auto parsed = ParseGreeting(Take(input, greeting)); parsed.ok()) {
    const auto again = ParseGreeting(Encode(*parsed));
    VERBENA_CHECK(again.ok() && again->sender == parsed->sender &&
                  again->session == parsed->session);
  }
  std::array<std::byte, TcpControl::kBytes> control;
  if (auto parsed = ParseControl(Take(input, control)); parsed.ok()) {
    VERBENA_CHECK(ParseControl(Encode(*parsed)).ok());
  }
}

// The bytes arrive as chunks, in pieces whose sizes the input says. A reader consumes some
// messages.
void Arrive(std::span<const std::byte> input) {
  const std::unique_ptr<RingLine[]> lines(new RingLine[kLines]());
  RingIntake ring(lines.get(), kLines);
  RingReader reader(lines.get(), kLines);
  uint64_t shown = 0;
  while (!input.empty()) {
    std::array<std::byte, TcpChunk::kBytes> header;
    TcpChunk chunk;
    if (!ParseChunk(Take(input, header), chunk)) return;
    if (!ring.Begin(chunk.request_lines, reader.position())) return;
    while (!ring.Rest().empty() && !input.empty()) {
      const size_t piece = std::min<size_t>(
          {ring.Rest().size(), input.size(), 1 + (static_cast<size_t>(input.front()) * 7)});
      std::copy_n(input.begin(), piece, ring.Rest().begin());
      ring.Add(piece);
      input = input.subspan(piece);
      if (!ring.Show()) return;
    }
    if ((chunk.flags & TcpChunk::kRequestPad) != 0 && !ring.Pad(reader.position())) return;
    MessageHeader message;
    const uint64_t turn = chunk.consumed % 4;
    for (uint64_t i = 0; i < turn; ++i) {
      const RingReader::State state = reader.Peek(message);
      VERBENA_CHECK(state != RingReader::State::kBroken) << "a message that was shown";
      if (state != RingReader::State::kMessage) break;
      reader.Consume(message);
      VERBENA_CHECK(++shown <= ring.messages());
    }
  }
}

}  // namespace
}  // namespace verbena::internal::soft

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::span<const std::byte> input(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    verbena::internal::soft::Parse(input);
  } else {
    verbena::internal::soft::Arrive(input);
  }
  return 0;
}
