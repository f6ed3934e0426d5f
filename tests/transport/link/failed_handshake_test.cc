// A server's handshake that fails half-way gives its slot back, once, and its stream lasts as long
// as that slot.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/transport/connect/passing_stream.h"
#include "tests/transport/connect/scripted_stream.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {
namespace failed_handshake_test {

// A stream that calls `on_end` before it ends the stream below.
class ToldStream final : public PassingStream {
 public:
  ToldStream(std::unique_ptr<MessageStream> stream, std::function<void()> on_end)
      : PassingStream(std::move(stream)), on_end_(std::move(on_end)) {}
  ~ToldStream() override { on_end_(); }

 private:
  const std::function<void()> on_end_;
};

// The client's stream closes instead of sending its second message, the Ready.
Task<absl::Status> EndBeforeReady(MessageStream& stream, int message) {
  if (message < 2) co_return absl::OkStatus();
  stream.Close();
  co_return absl::UnavailableError("the client gives up");
}

// For the server's answer there is no memory.
Task<absl::Status> LackMemory(MessageStream&, int) {
  throw std::bad_alloc();
  co_return absl::OkStatus();
}

class FailedHandshakeTest : public LinksFixture {
 protected:
  std::unique_ptr<MessageStream> WrapClientStream(std::unique_ptr<MessageStream> stream) override {
    if (!fails_) return stream;
    return std::make_unique<ScriptedStream>(std::move(stream),
                                            ScriptedStream::Script{.before_send = EndBeforeReady});
  }
  std::unique_ptr<MessageStream> WrapServerStream(std::unique_ptr<MessageStream> stream) override {
    const auto on_end = [this] {
      ++streams_ended_;
      if (fails_ || throws_) links_at_end_ = server().stats().links;
    };
    if (throws_) {
      stream = std::make_unique<ScriptedStream>(std::move(stream),
                                                ScriptedStream::Script{.before_send = LackMemory});
    }
    return std::make_unique<ToldStream>(std::move(stream), on_end);
  }

  Receiver listeners_[6];
  bool fails_ = true;
  bool throws_ = false;
  int streams_ended_ = 0;
  uint32_t links_at_end_ = 0;  // of the server, when the last stream ended
};

// A server bounds the links of one source by their streams, so streams have to bound slots as well.
TEST_F(FailedHandshakeTest, TheStreamLastsAsLongAsTheSlotWhichComesBackOnce) {
  LinkLimits limits;
  limits.max_links = 2;
  Start({}, limits);
  for (int i = 1; i <= 5; ++i) {
    EXPECT_FALSE(TryConnect(listeners_[0], listeners_[1]).ok());
    PollUntil([&] { return accepted().has_value() && streams_ended_ == i; });
    EXPECT_FALSE(accepted()->ok());
    EXPECT_EQ(links_at_end_, 0u);
    PollUntil([&] { return client().stats().links + server().stats().links == 0; });
  }
  EXPECT_EQ(streams_ended_, 5);
  fails_ = false;
  ASSERT_NE(Connect(listeners_[0], listeners_[1]), nullptr);
  ASSERT_NE(Connect(listeners_[2], listeners_[3]), nullptr);
  const absl::Status third = TryConnect(listeners_[4], listeners_[5]).status();
  EXPECT_TRUE(absl::IsResourceExhausted(third)) << third;
}

TEST_F(FailedHandshakeTest, AHandshakeThatThrowsGivesItsSlotBackBeforeItsStream) {
  fails_ = false;
  throws_ = true;
  Start({}, {});
  EXPECT_FALSE(TryConnect(listeners_[0], listeners_[1]).ok());
  EXPECT_TRUE(DoneInTime([&] { return streams_ended_ == 1; }));
  EXPECT_EQ(links_at_end_, 0u);
  ASSERT_TRUE(accepted().has_value());
  EXPECT_TRUE(absl::IsInternal(accepted()->status())) << accepted()->status();
}

}  // namespace failed_handshake_test
}  // namespace verbena::internal
