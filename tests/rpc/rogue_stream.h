// Frames of streams for a RoguePeer to send, right ones and wrong ones. HostileStreamTest: a server
// of the test service of streams, a correct client, and a rogue that is connected to the server.

#ifndef VERBENA_TESTS_RPC_ROGUE_STREAM_H_
#define VERBENA_TESTS_RPC_ROGUE_STREAM_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/rpc/rogue_peer.h"
#include "tests/rpc/stream_service.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {

inline constexpr char kEcho[] = "verbena.testing.Streaming/Echo";
inline constexpr char kIgnore[] = "verbena.testing.Streaming/Ignore";
inline constexpr char kCountMethod[] = "verbena.testing.Streaming/Count";
inline constexpr char kSay[] = "verbena.testing.Streaming/Say";
inline constexpr char kHold[] = "verbena.testing.Streaming/Hold";

// A server takes SENDs as large, so that few of them fill a window.
inline constexpr uint32_t kEagerBytes = 65536;
inline constexpr size_t kLargeBody = 60000;

RogueFrame Opening(const char* method, Streams streams, uint32_t slot = 0, std::string body = "");
RogueFrame Frame(FrameKind kind, std::string body = "", uint8_t flags = 0, uint32_t argument = 0,
                 uint32_t slot = 0, uint32_t generation = 0);
RogueFrame Message(std::string body, uint8_t flags = 0, uint32_t argument = 0);
// Counts in the window of its stream alone.
RogueFrame OwnMessage(std::string body, uint8_t window = kCountsInStreamAlone);
// Counts in no window.
RogueFrame Beside(std::string body, uint8_t flags = 0);
RogueFrame Failure(std::string body, uint8_t flags = 0);
RogueFrame Window(uint32_t limit, uint8_t flags = 0, std::string body = "");
RogueFrame End(std::string body = "", uint8_t flags = 0);

// An item without a number, of `bytes` bytes in all.
std::string ItemBytes(size_t bytes);

// A stream whose handler writes until the window is full.
std::string ManyItems();

// An opening that begins with a context block, or with what a rogue has for one.
RogueFrame Carrying(const std::string& block, RogueFrame opening);

// The block of a context with one entry of metadata, whose value has so many bytes.
std::string ContextBlock(size_t value_bytes = 5);

// A block of `bytes` in all.
inline std::string ContextBlockOf(size_t bytes) {
  return ContextBlock(bytes - (ContextBlock(1).size() - 1));
}

std::string Travelling(size_t bytes);

std::vector<RogueFrame> OnEcho(std::vector<RogueFrame> frames);
std::vector<RogueFrame> OnIgnore(std::vector<RogueFrame> frames);
std::vector<RogueFrame> Times(size_t count, const RogueFrame& frame);

class HostileStreamTest : public StreamTest {
 protected:
  static constexpr Duration kForever = std::chrono::hours(100);

  // `clock` is the server's; null: the machine's. A silent rogue loses its link after some
  // `ping_interval`, so by default a test sees only what else ends a link.
  void Start(Clock* clock = nullptr, Duration ping_interval = kForever);
  void TearDown() override;

  // In as few SENDs as take them: if a handler ended between two SENDs, the server would drop the
  // frames of the second.
  void Send(const std::vector<RogueFrame>& frames);
  // Awaits the response of a call in `slot`, whatever comes before it.
  RogueFrame ResponseOf(uint32_t slot);
  // The link of the rogue still answers.
  void ExpectServed();

  std::unique_ptr<RoguePeer> rogue_;
  uint32_t next_generation_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_RPC_ROGUE_STREAM_H_
