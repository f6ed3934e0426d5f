// Which shapes of one method a client and a server can have so that the client can call it, for all
// pairs of shapes.

#include "verbena/rpc/call/method_shape.h"

#include <cstdint>
#include <string>

#include "gtest/gtest.h"
#include "verbena/rpc/call.h"

namespace verbena::internal {
namespace method_shape_test {

// In the order of the wire's bytes.
MethodDescriptor MethodOfShape(int shape) {
  return MethodDescriptor("test.Shapes/Method", Idempotency::kUnknown,
                          static_cast<Payloads>(shape / 4), static_cast<Streams>(shape % 4));
}

TEST(MethodShapeTest, EachMethodHasTheByteOfItsStreamsAndPayloads) {
  for (int shape = 0; shape < 16; ++shape) {
    EXPECT_EQ(ShapeOf(MethodOfShape(shape)), shape);
  }
  EXPECT_EQ(ShapeOf(MethodOfShape(0)), 0);
  const Payloads request = Payloads::kRequest;
  const Payloads response = Payloads::kResponse;
  EXPECT_EQ(ShapeOf({"", Idempotency::kUnknown, {}, Streams::kServer}), 1);
  EXPECT_EQ(ShapeOf({"", Idempotency::kUnknown, {}, Streams::kClient}), 2);
  EXPECT_EQ(ShapeOf({"", Idempotency::kUnknown, request}), 4);
  EXPECT_EQ(ShapeOf({"", Idempotency::kUnknown, response}), 8);
}

TEST(MethodShapeTest, AllPairsAreJudgedByTheirSides) {
  int callable = 0;
  for (int c = 0; c < 16; ++c) {
    for (int s = 0; s < 16; ++s) {
      const MethodDescriptor client = MethodOfShape(c);
      const MethodDescriptor server = MethodOfShape(s);
      const std::string conflict = ShapeConflict(ShapeOf(client), ShapeOf(server));
      const auto says = [&conflict](const char* part) {
        return conflict.find(part) != std::string::npos;
      };
      SCOPED_TRACE(std::to_string(c) + " calls " + std::to_string(s) + ": " + conflict);
      const bool streams = client.streams != server.streams;
      const bool request = client.request_payload() && !server.request_payload();
      const bool response = server.response_payload() && !client.response_payload();
      EXPECT_EQ(says("it is "), streams);
      EXPECT_EQ(says("its requests have payloads at the client and none at the server"), request);
      EXPECT_EQ(says("its responses have payloads at the server and none at the client"), response);
      EXPECT_EQ(conflict.empty(), !streams && !request && !response);
      callable += conflict.empty() ? 1 : 0;
    }
  }
  // 4 ways to stream, and for each kind of payload 3 pairs of 4.
  EXPECT_EQ(callable, 4 * 3 * 3);
}

TEST(MethodShapeTest, AConflictSaysWhichSideHasWhat) {
  EXPECT_EQ(ShapeConflict(0, 1), "it is unary at the client and server streaming at the server");
  EXPECT_EQ(ShapeConflict(3, 2),
            "it is bidirectional streaming at the client and client streaming at the server");
  EXPECT_EQ(ShapeConflict(4, 8),
            "its requests have payloads at the client and none at the server, and its responses "
            "have payloads at the server and none at the client");
}

}  // namespace method_shape_test
}  // namespace verbena::internal
