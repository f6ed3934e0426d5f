// Frames of streams for a RoguePeer to send, right ones and wrong ones. HostileStreamTest: a server
// of the test service of streams, a correct client, and a rogue that is connected to the server.

#ifndef VERBENA_TESTS_RPC_ROGUE_STREAM_H_
#define VERBENA_TESTS_RPC_ROGUE_STREAM_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/rpc/rogue_peer.h"
#include "tests/rpc/stream_service.h"
#include "verbena/rpc/call/context_block.h"
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

inline RogueFrame Opening(const char* method, Streams streams, uint32_t slot = 0,
                          std::string body = "") {
  RogueFrame frame = Request(method, slot, 0, std::move(body));
  frame.header.flags = kFrameOpensStream;
  frame.header.outcome = static_cast<uint8_t>(streams);
  return frame;
}

inline RogueFrame Frame(FrameKind kind, std::string body = "", uint8_t flags = 0,
                        uint32_t argument = 0, uint32_t slot = 0, uint32_t generation = 0) {
  RogueFrame frame;
  frame.header.kind = kind;
  frame.header.flags = flags;
  frame.header.argument = argument;
  frame.header.call_slot = static_cast<uint16_t>(slot);
  frame.header.call_generation = generation;
  frame.body = std::move(body);
  return frame;
}

inline RogueFrame Message(std::string body, uint8_t flags = 0, uint32_t argument = 0) {
  return Frame(FrameKind::kStreamMessage, std::move(body), flags, argument);
}
// Counts in the window of its stream alone.
inline RogueFrame OwnMessage(std::string body, uint8_t window = kCountsInStreamAlone) {
  RogueFrame frame = Message(std::move(body));
  frame.header.outcome = window;
  return frame;
}
// Counts in no window.
inline RogueFrame Beside(std::string body, uint8_t flags = 0) {
  RogueFrame frame = Message(std::move(body), flags);
  frame.header.outcome = kBesideMessages;
  return frame;
}
inline RogueFrame Failure(std::string body, uint8_t flags = 0) {
  RogueFrame frame = Response(0, 0);
  frame.header.status_code = static_cast<uint8_t>(absl::StatusCode::kAborted);
  frame.header.outcome = static_cast<uint8_t>(Outcome::kExecuted);
  frame.header.flags = flags;
  frame.body = std::move(body);
  return frame;
}
inline RogueFrame Window(uint32_t limit, uint8_t flags = 0, std::string body = "") {
  return Frame(FrameKind::kStreamWindow, std::move(body), flags, limit);
}
inline RogueFrame End(std::string body = "", uint8_t flags = 0) {
  return Frame(FrameKind::kStreamEnd, std::move(body), flags);
}

// An item without a number, of `bytes` bytes in all.
inline std::string ItemBytes(size_t bytes) {
  testing::StreamItem item;
  item.set_data(std::string(bytes, 'd'));
  item.mutable_data()->resize(bytes - (item.ByteSizeLong() - bytes));
  return item.SerializeAsString();
}

// A stream whose handler writes until the window is full.
inline std::string ManyItems() {
  testing::CountRequest request;
  request.set_count(1000000);
  request.set_bytes(1000);
  return request.SerializeAsString();
}

// An opening that begins with a context block, or with what a rogue has for one.
inline RogueFrame Carrying(const std::string& block, RogueFrame opening) {
  opening.header.flags |= kFrameHasContext;
  opening.body.insert(0, block);
  return opening;
}

inline std::string Block(size_t value_bytes = 5) {
  const CallContext context{.metadata = {{"key", std::string(value_bytes, 'v')}}};
  std::string block(context.encoded_bytes(), '\0');
  context.Encode(block.data());
  return block;
}

// A block of `bytes` in all.
inline std::string BlockOf(size_t bytes) { return Block(bytes - (Block(1).size() - 1)); }

inline std::string Travelling(size_t bytes) {
  std::string header(kContextHeaderBytes, '\0');
  EncodeTravellingContext(bytes, header.data());
  return header;
}
inline std::vector<RogueFrame> OnEcho(std::vector<RogueFrame> frames) {
  frames.insert(frames.begin(), Opening(kEcho, Streams::kBoth));
  return frames;
}

inline std::vector<RogueFrame> OnIgnore(std::vector<RogueFrame> frames) {
  frames.insert(frames.begin(), Opening(kIgnore, Streams::kBoth));
  return frames;
}

inline std::vector<RogueFrame> Times(size_t count, const RogueFrame& frame) {
  return {count, frame};
}

class HostileStreamTest : public StreamTest {
 protected:
  static constexpr Duration kForever = std::chrono::hours(100);

  // `clock` is the server's; null: the machine's. A silent rogue loses its link after some
  // `ping_interval`, so by default a test sees only what else ends a link.
  void Start(Clock* clock = nullptr, Duration ping_interval = kForever) {
    RuntimeOptions server;
    server.device = RogueDevice();
    server.limits = RoguesLimits();
    server.limits.ping_interval = ping_interval;
    server.limits.max_message_bytes = size_t{64} << 20;  // what hostile claims reach
    if (clock != nullptr) {
      server.clock = clock;
      server.limits.connect_timeout = kForever;
      server.limits.idle_timeout = Duration::zero();
    }
    server.limits.eager_bytes = kEagerBytes;
    server.limits.initial_credits = 32;
    server.limits.srq_depth = 1024;
    server.limits.max_links = 16;
    RuntimeOptions client;
    client.device = RogueDevice();
    StreamTest::Start({}, std::move(server), std::move(client));
    ASSERT_EQ(Run(SayOnce()), absl::OkStatus());
    rogue_ = std::make_unique<RoguePeer>(*client_runtime_, RogueDevice());
    rogue_->ConnectTo(server_->address());
  }
  void TearDown() override {
    rogue_.reset();
    channel_.reset();
    client_runtime_.reset();
    server_.reset();
    server_runtime_.reset();
  }
  // In as few SENDs as take them: if a handler ended between two SENDs, the server would drop the
  // frames of the second.
  void Send(const std::vector<RogueFrame>& frames) {
    std::vector<RogueFrame> together;
    for (const RogueFrame& frame : frames) {
      together.push_back(frame);
      if (together.size() == 1 || EncodeSend(kCorrect, together).size() <= kEagerBytes) continue;
      together.pop_back();
      rogue_->Send(EncodeSend(kCorrect, std::exchange(together, {frame})));
    }
    rogue_->Send(EncodeSend(kCorrect, together));
  }
  // Awaits the response of a call in `slot`, whatever comes before it.
  RogueFrame ResponseOf(uint32_t slot) {
    for (int i = 0; i < 1000; ++i) {
      for (const RogueFrame& frame : rogue_->Receive()) {
        if (frame.header.kind == FrameKind::kResponse && frame.header.call_slot == slot) {
          return frame;
        }
      }
    }
    ADD_FAILURE() << "no response";
    return {};
  }
  // The link of the rogue still answers.
  void ExpectServed() {
    Send({Request(kSay, 9, next_generation_++, ItemBytes(10))});
    EXPECT_EQ(ResponseOf(9).header.status_code, 0);
  }

  std::unique_ptr<RoguePeer> rogue_;
  uint32_t next_generation_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_RPC_ROGUE_STREAM_H_
