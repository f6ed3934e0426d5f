// A further attempt at a call has the memory that its caller gave, and a failed call shows nothing
// of an attempt before.

#include <cstddef>
#include <memory>
#include <utility>

#include "gtest/gtest.h"
#include "tests/transport/memory/buffer_pool_fixture.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/client/spec.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {
namespace call_buffers_test {

class CallBuffersTest : public BufferPoolTest {
 protected:
  CallBuffersTest() { Make({.name = "test"}); }

  // An attempt ends well with so many bytes in `memory`, and an interceptor makes a failure of
  // that.
  void FailAfterwards(CallBuffers& buffers, Buffer memory, size_t bytes) {
    memory.set_size(bytes);
    buffers.SetResponse(std::move(memory), true);
    EXPECT_TRUE(has_payload_);
    EXPECT_TRUE(buffers.is_back());
    buffers.TakeBack();
  }

  CallOptions options_;
  Buffer payload_;
  bool has_payload_ = false;
};

TEST_F(CallBuffersTest, TheNextAttemptHasTheWholeRoomThatOneFilledWhoseCallFailedAfterwards) {
  options_.response_payload_into = Take(8 * kKiB);
  const char* const room = options_.response_payload_into.data();
  CallBuffers buffers(options_, {&payload_, &has_payload_});
  FailAfterwards(buffers, buffers.TakeRoom(), 10);
  Buffer next = buffers.TakeRoom();
  EXPECT_EQ(next.data(), room);
  EXPECT_EQ(next.size(), 8 * kKiB);
  Free(next);
}

TEST_F(CallBuffersTest, ACallThatFailsAfterAnAttemptThatDidNotHasNoPayload) {
  options_.max_response_payload = 8 * kKiB;
  CallBuffers buffers(options_, {&payload_, &has_payload_});
  OnHome([&] { FailAfterwards(buffers, Take(8 * kKiB), 10); });
  buffers.Return();
  EXPECT_FALSE(has_payload_);
  EXPECT_FALSE(payload_);
  OnHome([&] { EXPECT_EQ(pool_->stats().bytes_in_use, 0u); });
}

}  // namespace call_buffers_test
}  // namespace verbena::internal
