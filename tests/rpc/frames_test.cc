// How many coroutine frames a call takes on its client's executor, by kind. Each costs memory and
// time, so the figures are written down here: a change of one is meant.
//
// The linker has the program's AllocateFrame() called through the one below (--wrap), so frames
// that libraries and generated code allocate count, too.

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/rpc/testing_service.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/policy.h"

namespace {
thread_local int frames = 0;
}  // namespace

// NOLINTBEGIN(bugprone-reserved-identifier): the linker's names of
// verbena::internal::AllocateFrame.
extern "C" void* __real__ZN7verbena8internal13AllocateFrameEm(size_t bytes) noexcept;
extern "C" void* __wrap__ZN7verbena8internal13AllocateFrameEm(size_t bytes) noexcept {
  ++frames;
  return __real__ZN7verbena8internal13AllocateFrameEm(bytes);
}
// NOLINTEND(bugprone-reserved-identifier)

namespace verbena {
namespace {

class PassesOn final : public ClientInterceptor {
 public:
  Task<absl::Status> Intercept(ClientCallView&, ClientNext next) override {
    co_return co_await next();
  }
};

struct Kind {
  std::string name;
  int frames;
  ChannelOptions channel = {};
  bool has_deadline = false;
  bool has_metadata = false;
  int saved = 0;      // at most so many fewer, if what it waits for has come
  size_t bytes = 32;  // of the request and of the reply

  CallOptions options() const {
    CallOptions options;
    if (has_deadline) options.deadline = std::chrono::minutes(1);
    if (has_metadata) options.metadata.Add("key", "value");
    return options;
  }
};

class FramesTest : public RpcTest {
 protected:
  // The frames of the second call: the first one connects.
  int Count(const Kind& kind) {
    StartClient({}, kind.channel);
    const auto run = [this, &kind]() -> Task<int> {
      testing::EchoRequest request;
      request.set_data(std::string(kind.bytes, 'x'));
      testing::EchoReply reply;
      int counted = 0;
      for (int i = 0; i < 2; ++i) {
        const int before = frames;
        const absl::Status status = co_await stub_->Echo(request, reply, kind.options());
        EXPECT_EQ(status, absl::OkStatus()) << kind.name;
        counted = frames - before;
      }
      co_return counted;
    };
    return Run(run());
  }
};

TEST_F(FramesTest, ACallTakesThoseOfItsKind) {
  StartServer();
  const auto passes_on = std::make_shared<PassesOn>();
  const std::vector<Kind> kinds = {
      {.name = "plain", .frames = 0},
      {.name = "with a deadline", .frames = 0, .has_deadline = true},
      {.name = "with metadata", .frames = 1, .has_metadata = true},
      {.name = "with a large message",
       .frames = 7,
       .saved = 4,  // two for each of two waits
       .bytes = 100'000},
      {.name = "with two interceptors",
       .frames = 5,  // two are the interceptors' own
       .channel = {.interceptors = {passes_on, passes_on}}},
      {.name = "with a retry policy",
       .frames = 2,
       .channel = {.service_config = {.methods = {{.retry = RetryPolicy{}}}}}},
      {.name = "hedged, in two attempts",
       .frames = 10,  // with what its TaskScope keeps of each
       .channel = {.service_config =
                       {.methods = {{.hedging = HedgingPolicy{.delay = std::chrono::seconds(0)}}}}},
       .saved = 4},  // two for each of two waits
  };
  for (const Kind& kind : kinds) {
    const int counted = Count(kind);
    std::printf("%-24s %d frames\n", kind.name.c_str(), counted);
    EXPECT_LE(counted, kind.frames) << "a call " << kind.name;
    EXPECT_GE(counted, kind.frames - kind.saved) << "a call " << kind.name;
  }
}

}  // namespace
}  // namespace verbena
