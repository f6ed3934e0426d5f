// A session learns a server's number of each method once, whatever other sessions have learned. A
// method that client and server have in different shapes has none.

#include "verbena/rpc/client/session.h"

#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "verbena/rpc/call/method_shape.h"
#include "verbena/transport/connect/peer.h"

namespace verbena::internal {
namespace method_numbers_test {

using Offered = std::vector<OfferedMethod>;

constexpr MethodDescriptor kGet("test.Numbers/Get", Idempotency::kUnknown);
constexpr MethodDescriptor kPut("test.Numbers/Put", Idempotency::kUnknown);
constexpr MethodDescriptor kNew("test.Numbers/New", Idempotency::kUnknown);

TEST(MethodNumbersTest, EachSessionHasTheNumbersOfItsServer) {
  const Offered one = {{kGet.id, 0}, {kPut.id, 0}};
  const Offered other = {{7}, {kPut.id}, {kNew.id}, {kGet.id}};
  MethodNumbers at_one;
  MethodNumbers at_other;
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(at_one.Of(kNew, one), 0);
    EXPECT_EQ(at_one.Of(kGet, one), 1);
    EXPECT_EQ(at_one.Of(kPut, one), 2);
    EXPECT_EQ(at_other.Of(kPut, other), 2);
    EXPECT_EQ(at_other.Of(kNew, other), 3);
    EXPECT_EQ(at_other.Of(kGet, other), 4);
  }
}

TEST(MethodNumbersTest, AMethodIsLookedUpOnce) {
  MethodNumbers numbers;
  EXPECT_EQ(numbers.Of(kPut, Offered{{kGet.id}, {kPut.id}}), 2);
  EXPECT_EQ(numbers.Of(kPut, {}), 2);
  EXPECT_EQ(numbers.Of(kNew, {}), 0);
  EXPECT_EQ(numbers.Of(kNew, Offered{{kNew.id}}), 0);
}

TEST(MethodNumbersTest, AMethodInAnotherShapeHasNoNumber) {
  const MethodDescriptor load("test.Numbers/Load", Idempotency::kUnknown, Payloads::kResponse);
  const uint8_t both_payloads = ShapeOf({"", Idempotency::kUnknown, Payloads::kBoth});
  const uint8_t streams =
      ShapeOf({"", Idempotency::kUnknown, Payloads::kResponse, Streams::kServer});
  const Offered wrong = {{kGet.id, ShapeOf(load)}, {kPut.id, 0}, {load.id, streams}};
  MethodNumbers at_wrong;
  EXPECT_EQ(at_wrong.Of(kGet, wrong), 0);
  EXPECT_EQ(at_wrong.Of(kPut, wrong), 2);
  EXPECT_EQ(at_wrong.Of(load, wrong), 0);
  MethodNumbers at_right;
  EXPECT_EQ(at_right.Of(load, Offered{{load.id, both_payloads}}), 1);
  MethodNumbers at_untold;
  EXPECT_EQ(at_untold.Of(load, Offered{{load.id}}), 1);
}

TEST(MethodIndexTest, EachDescriptorHasOneOfItsOwnOnEveryThread) {
  const MethodDescriptor copy = kGet;
  EXPECT_NE(copy.index.value(), kGet.index.value());
  EXPECT_NE(kPut.index.value(), kGet.index.value());
  const MethodDescriptor fresh("test.Numbers/Fresh", Idempotency::kUnknown);
  std::vector<uint32_t> seen(4);
  {
    std::vector<std::jthread> threads;
    for (uint32_t& value : seen) {
      threads.emplace_back([&value, &fresh] { value = fresh.index.value(); });
    }
  }
  EXPECT_EQ(seen, std::vector<uint32_t>(4, fresh.index.value()));
  EXPECT_NE(fresh.index.value(), 0u);
}

}  // namespace method_numbers_test
}  // namespace verbena::internal
