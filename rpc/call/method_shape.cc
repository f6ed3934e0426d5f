#include "verbena/rpc/call/method_shape.h"

#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"

namespace verbena::internal {
namespace {

constexpr uint8_t kStreams = 3;
constexpr uint8_t kRequestPayload = 4;
constexpr uint8_t kResponsePayload = 8;

static_assert(static_cast<int>(Streams::kServer) == 1 && static_cast<int>(Streams::kClient) == 2 &&
              static_cast<int>(Streams::kBoth) == 3);

const char* StreamsName(uint8_t shape) {
  switch (static_cast<Streams>(shape & kStreams)) {
    case Streams::kNone:
      return "unary";
    case Streams::kServer:
      return "server streaming";
    case Streams::kClient:
      return "client streaming";
    case Streams::kBoth:
      break;
  }
  return "bidirectional streaming";
}

}  // namespace

uint8_t ShapeOf(const MethodDescriptor& method) {
  return static_cast<uint8_t>(static_cast<uint8_t>(method.streams) |
                              (method.request_payload() ? kRequestPayload : 0) |
                              (method.response_payload() ? kResponsePayload : 0));
}

std::string ShapeConflict(uint8_t client, uint8_t server) {
  std::vector<std::string> conflicts;
  if ((client & kStreams) != (server & kStreams)) {
    conflicts.push_back(fmt::format("it is {} at the client and {} at the server",
                                    StreamsName(client), StreamsName(server)));
  }
  if ((client & ~server & kRequestPayload) != 0) {
    conflicts.emplace_back("its requests have payloads at the client and none at the server");
  }
  if ((server & ~client & kResponsePayload) != 0) {
    conflicts.emplace_back("its responses have payloads at the server and none at the client");
  }
  return fmt::format("{}", fmt::join(conflicts, ", and "));
}

}  // namespace verbena::internal
