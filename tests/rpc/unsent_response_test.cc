// A response that waits because its client takes none keeps nothing that its call no longer needs:
// its share of memory, a large request, or the large reply of a call that failed.

#include <malloc.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "tests/rpc/payload_service.h"
#include "tests/support/watched.h"
#include "verbena/transport/executor/executor.h"

// Only with a sanitizer, whose allocator mallinfo2() does not know.
// NOLINTNEXTLINE(bugprone-reserved-identifier): the sanitizer named it.
extern "C" size_t __sanitizer_get_current_allocated_bytes() __attribute__((weak));

namespace verbena::internal {
namespace unsent_response_test {

constexpr size_t kPayload = 256 << 10;
constexpr size_t kMessage = 3 << 20;
constexpr int kGets = 16;  // more than the server has credits for
constexpr int kOthers = 4;

// By the whole process.
size_t AllocatedBytes() {
  if (__sanitizer_get_current_allocated_bytes != nullptr) {
    return __sanitizer_get_current_allocated_bytes();
  }
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

// Handlers wait until the test lets them end.
class GatedService final : public testing::Payloads::Service {
 public:
  Task<absl::Status> Get(ServerContext&, const testing::GetRequest& request,
                         testing::GetReply& reply) override {
    reply.mutable_filler()->assign(request.filler_bytes(), 'f');
    co_return co_await Pass(gets_, end_gets);
  }
  Task<absl::Status> Put(ServerContext&, const testing::PutRequest&, testing::PutReply&) override {
    co_return co_await Pass(puts_, end_puts);
  }
  Task<absl::Status> Swap(ServerContext&, const testing::PutRequest&, testing::PutReply&) override {
    co_return absl::OkStatus();
  }
  Task<absl::Status> Hold(ServerContext&, const testing::HoldRequest&,
                          testing::PutReply&) override {
    co_return absl::OkStatus();
  }
  // Fails, once it has made its reply.
  Task<absl::Status> Surprise(ServerContext&, const testing::GetRequest& request,
                              testing::GetReply& reply) override {
    reply.mutable_filler()->assign(request.filler_bytes(), 'f');
    VERBENA_CO_RETURN_IF_ERROR(co_await Pass(puts_, end_puts));
    co_return absl::InternalError("as asked");
  }

  struct Passed {
    std::atomic<int> begun{0};
    std::atomic<int> ended{0};
  };
  const Passed& gets() const { return gets_; }
  const Passed& puts() const { return puts_; }
  Watched<bool> end_gets;
  Watched<bool> end_puts;

 private:
  static Task<absl::Status> Pass(Passed& passed, Watched<bool>& end) {
    ++passed.begun;
    VERBENA_CO_RETURN_IF_ERROR(co_await end.Until(true));
    ++passed.ended;
    co_return absl::OkStatus();
  }

  Passed gets_, puts_;
};

class UnsentResponseTest : public PayloadFixture {
 protected:
  // A client that stands still while nobody polls it.
  std::unique_ptr<Runtime> StartFrozen(const LinkLimits& limits) {
    return StartRuntime({.limits = limits, .threads = false});
  }
  static void PollUntil(Runtime& runtime, const std::function<bool()>& done) {
    const TimePoint limit = Clock::Real().Now() + std::chrono::seconds(20);
    while (!done()) {
      ASSERT_LT(Clock::Real().Now(), limit);
      runtime.executor(0).Poll();
    }
  }
  static void Await(const std::function<bool()>& done) {
    const TimePoint limit = Clock::Real().Now() + std::chrono::seconds(20);
    while (!done()) ASSERT_LT(Clock::Real().Now(), limit);
  }

  static Task<void> Get(Channel& channel) {
    testing::Payloads::Stub stub(channel);
    testing::GetRequest request;
    request.set_filler_bytes(3000);  // a reply that takes a SEND of its own
    WithPayload<testing::GetReply> reply;
    (void)co_await stub.Get(request, reply);
  }
  // Fills what the server's client may be sent, so that what ends later waits for room.
  void LetRepliesWait() {
    LinkLimits patient;
    patient.ping_interval = std::chrono::hours(1);
    server_runtime_ = StartRuntime({.limits = patient});
    ServeWith(gated_, {.response_grace = std::chrono::hours(1)});
    LinkLimits few = patient;
    few.initial_credits = few.max_credits = 4;
    client_runtime_ = StartFrozen(few);
    channel_ = std::make_unique<Channel>(*client_runtime_, server_->address());
    for (int i = 0; i < kGets; ++i) client_runtime_->Spawn(Get(*channel_));
  }
  // Lets those end that are sent first, then `count` others. The client takes no more responses.
  void EndHandlers(int count) {
    ASSERT_NO_FATAL_FAILURE(PollUntil(*client_runtime_, [&] {
      return gated_.gets().begun == kGets && gated_.puts().begun == count;
    }));
    gated_.end_gets = true;
    ASSERT_NO_FATAL_FAILURE(Await([&] { return gated_.gets().ended == kGets; }));
    begun_bytes_ = AllocatedBytes();
    gated_.end_puts = true;
    ASSERT_NO_FATAL_FAILURE(Await([&] { return gated_.puts().ended == count; }));
  }
  // Until what the process has allocated is so much less than before the last handlers ended.
  void AwaitFreed(size_t bytes) {
    ASSERT_NO_FATAL_FAILURE(Await([&] { return AllocatedBytes() + bytes < begun_bytes_; }));
  }
  static Task<void> PutFilled(Channel& channel, int& ended) {
    testing::Payloads::Stub stub(channel);
    testing::PutRequest request;
    request.set_filler(std::string(kMessage, 'f'));
    testing::PutReply reply;
    EXPECT_EQ(co_await stub.Put(request, reply), absl::OkStatus());
    ++ended;
  }
  static Task<void> FailFilled(Channel& channel, int& ended) {
    testing::Payloads::Stub stub(channel);
    testing::GetRequest request;
    request.set_filler_bytes(kMessage);
    testing::GetReply reply;
    const absl::Status status = co_await stub.Surprise(request, reply);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    ++ended;
  }

  static Task<void> PutAndTell(Channel& channel, bool& ended) {
    (void)co_await Put(channel);
    ended = true;
  }
  static Task<absl::Status> Put(Channel& channel) {
    testing::Payloads::Stub stub(channel);
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await channel.AllocateBuffer(kPayload));
    testing::PutReply reply;
    co_return co_await stub.Put(testing::PutRequest(), reply,
                                {.request_payload = std::move(buffer)});
  }

  GatedService gated_;
  size_t begun_bytes_ = 0;
};

// The memory itself is free by then, too.
TEST_F(UnsentResponseTest, AHandlerThatHasEndedGivesBackTheSharesOfItsRequest) {
  LinkLimits patient;
  patient.ping_interval = std::chrono::hours(1);
  patient.leases.granted_bytes_per_client = 0;
  server_runtime_ = StartRuntime({.limits = patient});
  ServeWith(gated_, {.max_bytes_per_client = kPayload,
                     .max_bytes_per_source = kPayload,
                     .memory_wait = std::chrono::seconds(20),
                     .response_grace = std::chrono::hours(1)});
  LinkLimits few = patient;
  few.initial_credits = few.max_credits = 4;
  client_runtime_ = StartFrozen(few);
  channel_ = std::make_unique<Channel>(*client_runtime_, server_->address());
  for (int i = 0; i < kGets; ++i) client_runtime_->Spawn(Get(*channel_));
  bool first_ended = false;
  client_runtime_->Spawn(PutAndTell(*channel_, first_ended));
  ASSERT_NO_FATAL_FAILURE(PollUntil(
      *client_runtime_, [&] { return gated_.gets().begun == kGets && gated_.puts().begun == 1; }));
  gated_.end_gets = true;
  ASSERT_NO_FATAL_FAILURE(Await([&] { return gated_.gets().ended == kGets; }));
  gated_.end_puts = true;
  ASSERT_NO_FATAL_FAILURE(Await([&] { return gated_.puts().ended == 1; }));

  // A second client at the same address, and so of the same source.
  const std::unique_ptr<Runtime> other = StartRuntime();
  Channel channel(*other, server_->address());
  EXPECT_EQ(other->BlockOn(Put(channel)), absl::OkStatus());
  PollUntil(*client_runtime_, [&] { return first_ended; });
}

// No share counts the request's memory by then.
TEST_F(UnsentResponseTest, ALargeRequestIsGoneWhileItsResponseWaits) {
  LetRepliesWait();
  int ended = 0;
  for (int i = 0; i < kOthers; ++i) client_runtime_->Spawn(PutFilled(*channel_, ended));
  ASSERT_NO_FATAL_FAILURE(EndHandlers(kOthers));
  ASSERT_NO_FATAL_FAILURE(AwaitFreed(kOthers * kMessage - kMessage / 2));
  PollUntil(*client_runtime_, [&] { return ended == kOthers; });
}

TEST_F(UnsentResponseTest, ALargeReplyIsGoneWhileTheFailureOfItsCallWaits) {
  LetRepliesWait();
  int ended = 0;
  for (int i = 0; i < kOthers; ++i) client_runtime_->Spawn(FailFilled(*channel_, ended));
  ASSERT_NO_FATAL_FAILURE(EndHandlers(kOthers));
  ASSERT_NO_FATAL_FAILURE(AwaitFreed(kOthers * kMessage - kMessage / 2));
  PollUntil(*client_runtime_, [&] { return ended == kOthers; });
}

}  // namespace unsent_response_test
}  // namespace verbena::internal
