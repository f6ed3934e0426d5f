#include "tests/rpc/rogue_stream.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "verbena/rpc/call/context_block.h"

namespace verbena::internal {

RogueFrame Opening(const char* method, Streams streams, uint32_t slot, std::string body) {
  RogueFrame frame = Request(method, slot, 0, std::move(body));
  frame.header.flags = kFrameOpensStream;
  frame.header.outcome = static_cast<uint8_t>(streams);
  return frame;
}

RogueFrame Frame(FrameKind kind, std::string body, uint8_t flags, uint32_t argument, uint32_t slot,
                 uint32_t generation) {
  RogueFrame frame;
  frame.header.kind = kind;
  frame.header.flags = flags;
  frame.header.argument = argument;
  frame.header.call_slot = static_cast<uint16_t>(slot);
  frame.header.call_generation = generation;
  frame.body = std::move(body);
  return frame;
}

RogueFrame Message(std::string body, uint8_t flags, uint32_t argument) {
  return Frame(FrameKind::kStreamMessage, std::move(body), flags, argument);
}

RogueFrame OwnMessage(std::string body, uint8_t window) {
  RogueFrame frame = Message(std::move(body));
  frame.header.outcome = window;
  return frame;
}

RogueFrame Beside(std::string body, uint8_t flags) {
  RogueFrame frame = Message(std::move(body), flags);
  frame.header.outcome = kBesideMessages;
  return frame;
}

RogueFrame Failure(std::string body, uint8_t flags) {
  RogueFrame frame = Response(0, 0);
  frame.header.status_code = static_cast<uint8_t>(absl::StatusCode::kAborted);
  frame.header.outcome = static_cast<uint8_t>(Outcome::kExecuted);
  frame.header.flags = flags;
  frame.body = std::move(body);
  return frame;
}

RogueFrame Window(uint32_t limit, uint8_t flags, std::string body) {
  return Frame(FrameKind::kStreamWindow, std::move(body), flags, limit);
}

RogueFrame End(std::string body, uint8_t flags) {
  return Frame(FrameKind::kStreamEnd, std::move(body), flags);
}

std::string ItemBytes(size_t bytes) {
  testing::StreamItem item;
  item.set_data(std::string(bytes, 'd'));
  item.mutable_data()->resize(bytes - (item.ByteSizeLong() - bytes));
  return item.SerializeAsString();
}

std::string ManyItems() {
  testing::CountRequest request;
  request.set_count(1000000);
  request.set_bytes(1000);
  return request.SerializeAsString();
}

RogueFrame Carrying(const std::string& block, RogueFrame opening) {
  opening.header.flags |= kFrameHasContext;
  opening.body.insert(0, block);
  return opening;
}

std::string ContextBlock(size_t value_bytes) {
  const CallContext context{.metadata = {{"key", std::string(value_bytes, 'v')}}};
  std::string block(context.encoded_bytes(), '\0');
  context.Encode(block.data());
  return block;
}

std::string Travelling(size_t bytes) {
  std::string header(kContextHeaderBytes, '\0');
  EncodeTravellingContext(bytes, header.data());
  return header;
}

std::vector<RogueFrame> OnEcho(std::vector<RogueFrame> frames) {
  frames.insert(frames.begin(), Opening(kEcho, Streams::kBoth));
  return frames;
}

std::vector<RogueFrame> OnIgnore(std::vector<RogueFrame> frames) {
  frames.insert(frames.begin(), Opening(kIgnore, Streams::kBoth));
  return frames;
}

std::vector<RogueFrame> Times(size_t count, const RogueFrame& frame) { return {count, frame}; }

void HostileStreamTest::Start(Clock* clock, Duration ping_interval) {
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

void HostileStreamTest::TearDown() {
  rogue_.reset();
  channel_.reset();
  client_runtime_.reset();
  server_.reset();
  server_runtime_.reset();
}

void HostileStreamTest::Send(const std::vector<RogueFrame>& frames) {
  std::vector<RogueFrame> together;
  for (const RogueFrame& frame : frames) {
    together.push_back(frame);
    if (together.size() == 1 || EncodeSend(kCorrect, together).size() <= kEagerBytes) continue;
    together.pop_back();
    rogue_->Send(EncodeSend(kCorrect, std::exchange(together, {frame})));
  }
  rogue_->Send(EncodeSend(kCorrect, together));
}

RogueFrame HostileStreamTest::ResponseOf(uint32_t slot) {
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

void HostileStreamTest::ExpectServed() {
  Send({Request(kSay, 9, next_generation_++, ItemBytes(10))});
  EXPECT_EQ(ResponseOf(9).header.status_code, 0);
}

}  // namespace verbena::internal
