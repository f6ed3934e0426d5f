// Requests, replies and refusals that wait for the peer's credits survive what happens meanwhile: a
// message that changes fails its own call, only a peer's violation ends the link, and then a
// request that still waits is sent over another link.

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/rpc/dedupe_testing.verbena.pb.h"
#include "tests/rpc/first_device.h"
#include "tests/rpc/payload_testing.verbena.pb.h"
#include "tests/rpc/rogue_peer.h"
#include "tests/rpc/testing_service.h"
#include "tests/rpc/waiting_replies.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/scope.h"

namespace verbena::internal {
namespace waiting_frames_test {

// A request that takes a SEND of its own.
constexpr size_t kLarge = kLargeReply;
// Larger, and still within what a SEND holds.
constexpr size_t kLarger = 3900;
// A request that its server reads from leased memory, and one that leaves no room in its SEND.
constexpr size_t kLeased = 100'000;
constexpr size_t kWhole = 4000;
// One more call than there are credits.
constexpr uint32_t kCalls = RoguePeer::kCredits + 1;
constexpr uint32_t kLast = kCalls - 1;
constexpr const char* kAdd = "verbena.testing.Counter/Add";
constexpr const char* kGet = "verbena.testing.Payloads/Get";

// Calls of a correct client to a rogue server that issues no credits by itself.
class WaitingRequestsTest : public RpcTest {
 protected:
  // Makes kCalls calls, of which the last waits; `meanwhile` runs on the client's executor then.
  // Returns when all have ended.
  void MakeCalls(const std::function<void(RoguePeer&)>& script,
                 const std::function<void()>& meanwhile) {
    LinkLimits limits;
    limits.ping_interval = std::chrono::hours(1);  // the rogue expects no PING
    client_runtime_ = StartRuntime({.limits = limits});
    rogue_runtime_ = StartRuntime();
    listener_ = *CoreOf(*rogue_runtime_).shard(0).bootstrap().Listen("127.0.0.1:0");
    channel_ = std::make_unique<Channel>(*client_runtime_, listener_->address(),
                                         ChannelOptions{.service_config = config_});
    stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
    waiting_ = false;
    std::thread rogue_thread([&] {
      RoguePeer rogue(*rogue_runtime_);
      for (const char* method : {kAdd, kGet}) rogue.methods.push_back(MethodId(method));
      rogue.AcceptFrom(*listener_);
      for (uint32_t i = 0; i < RoguePeer::kCredits; ++i) (void)rogue.Receive();
      while (!waiting_) std::this_thread::yield();
      script(rogue);
    });
    EXPECT_EQ(Run(Calls(meanwhile)), absl::OkStatus());
    channel_.reset();
    client_runtime_.reset();
    rogue_thread.join();
    listener_.reset();
  }

  // Breaks the protocol by a response to the request that waits. The client makes this call again,
  // over another link. Returns whether the first link has ended.
  bool AnswerTooEarly(RoguePeer& rogue) {
    rogue.Send(EncodeSend(kCorrect, {Response(kLast, 0)}));
    const bool dropped = rogue.IsDropped();
    while_unlinked_();
    RoguePeer next(*rogue_runtime_);
    next.methods.push_back(MethodId(kAdd));
    next.AcceptFrom(*listener_);
    const RogueFrame request = next.Receive()[0];
    EXPECT_EQ(request.header.kind, FrameKind::kRequest);
    next.Send(
        EncodeSend(kCorrect, {Response(request.header.call_slot, request.header.call_generation)}));
    while (!next.IsDropped()) std::this_thread::yield();
    return dropped;
  }

  // The send memory in use on a runtime's first executor and device.
  static Task<size_t> SendBytes(Runtime& runtime) {
    const PayloadMemory* const memory = PayloadMemoryOf(runtime);
    co_return memory != nullptr ? memory->send().stats().bytes_in_use : 0;
  }

  Task<absl::Status> Calls(const std::function<void()>& meanwhile) {
    TaskScope scope(client_runtime_->executor(0));
    TaskScope last(client_runtime_->executor(0));
    last_ = &last;
    // So that all are sent in their order, whatever they wait for otherwise.
    if (last_is_deduplicated_ || connects_first_) {
      VERBENA_CO_RETURN_IF_ERROR(co_await channel_->Connect());
    }
    if (last_has_room_) {
      VERBENA_CO_RETURN_IF_ERROR(co_await channel_->Connect());
      VERBENA_CO_ASSIGN_OR_RETURN(room_, co_await channel_->AllocateBuffer(kLeased));
    }
    for (uint32_t i = 0; i < kCalls; ++i) {
      const size_t bytes = !has_lease_ ? kLarge : i == kLast ? kLeased : kWhole;
      requests_[i].set_data(std::string(bytes, 'r'));
      (i == kLast ? last : scope).Spawn([this, i]() -> Task<void> {
        if (i == kLast && last_is_deduplicated_) {
          testing::AddRequest request;
          request.set_filler(std::string(kLarge, 'r'));
          testing::AddReply reply;
          ended_[i] = co_await testing::Counter::Stub(*channel_).Add(request, reply);
          co_return;
        }
        if (i == kLast && last_has_room_) {
          WithPayload<testing::GetReply> got;
          ended_[i] = co_await testing::Payloads::Stub(*channel_).Get(
              testing::GetRequest(), got, {.response_payload_into = std::move(room_)});
          room_came_back_ = static_cast<bool>(got.payload);
          co_return;
        }
        testing::EchoReply reply;
        CallOptions options;
        if (has_metadata_) options.metadata = {{"tenant", "a"}};
        ended_[i] = co_await stub_->Echo(requests_[i], reply, std::move(options));
      });
    }
    while (client_runtime_->endpoint_stats(0).traffic.credit_waits == 0) (void)co_await Pause();
    meanwhile();
    waiting_ = true;
    co_await last.Join();
    co_await scope.Join();
    retries_ = channel_->retry_stats().retries;
    if (another_) co_return co_await EchoOnce(0, "");
    co_return absl::OkStatus();
  }

  std::unique_ptr<Runtime> rogue_runtime_;
  std::unique_ptr<MessageListener> listener_;
  ServiceConfig config_;
  bool connects_first_ = false;                   // so that the calls are plain ones
  bool has_metadata_ = false;                     // the calls
  std::function<void()> while_unlinked_ = [] {};  // between the first link and the second
  bool has_lease_ = false;                        // the call that waits, behind others of kWhole
  bool last_is_deduplicated_ = false;             // an Add()
  bool last_has_room_ = false;                    // a Get() into leased memory of its caller's
  TaskScope* last_ = nullptr;  // the scope of the last call, while there are calls
  Buffer room_;
  bool room_came_back_ = false;
  uint64_t retries_ = 0;  // by policies
  testing::EchoRequest requests_[kCalls];
  absl::Status ended_[kCalls];
  std::atomic<bool> waiting_{false};
  bool another_ = false;  // a call is made when the others have ended
};

TEST_F(WaitingRequestsTest, AResponseToARequestThatStillWaitsEndsTheLink) {
  bool dropped = false;
  MakeCalls([&](RoguePeer& rogue) { dropped = AnswerTooEarly(rogue); }, [] {});
  EXPECT_TRUE(dropped);
  EXPECT_EQ(ended_[0].code(), absl::StatusCode::kUnavailable) << ended_[0];
  EXPECT_EQ(OutcomeOf(ended_[0]), Outcome::kMaybeExecuted);
}

TEST_F(WaitingRequestsTest, ARequestThatHasNotLeftIsSentOnceMoreIfItsLinkIsLost) {
  for (const bool connects_first : {false, true}) {
    for (const bool has_metadata : {false, true}) {
      SCOPED_TRACE(::testing::Message() << connects_first << ' ' << has_metadata);
      connects_first_ = connects_first;
      has_metadata_ = has_metadata;
      MakeCalls([&](RoguePeer& rogue) { (void)AnswerTooEarly(rogue); }, [] {});
      EXPECT_EQ(ended_[kLast], absl::OkStatus());
      EXPECT_EQ(OutcomeOf(ended_[0]), Outcome::kMaybeExecuted) << "it has left";
    }
  }
}

// Its policy keeps it at the server that may have run it, so the policy chooses each server.
TEST_F(WaitingRequestsTest, ADeduplicatedRequestThatHasNotLeftIsSentAgainByItsPolicy) {
  last_is_deduplicated_ = true;
  config_.methods = {{.name = "verbena.testing.Counter",
                      .retry = RetryPolicy{.max_attempts = 2,
                                           .initial_backoff = std::chrono::milliseconds(1),
                                           .max_backoff = std::chrono::milliseconds(1)},
                      .wait_for_ready = true}};
  MakeCalls([&](RoguePeer& rogue) { (void)AnswerTooEarly(rogue); }, [] {});
  EXPECT_EQ(ended_[kLast], absl::OkStatus());
  EXPECT_EQ(retries_, 1u);
}

TEST_F(WaitingRequestsTest, SoIsOneWithLeasedMemory) {
  has_lease_ = true;
  MakeCalls([&](RoguePeer& rogue) { (void)AnswerTooEarly(rogue); }, [] {});
  EXPECT_EQ(ended_[kLast], absl::OkStatus());
}

TEST_F(WaitingRequestsTest, ARequestThatWaitsForAnotherLinkHoldsNoMemory) {
  has_lease_ = true;
  while_unlinked_ = [this] {
    Eventually([this] { return client_runtime_->BlockOn(SendBytes(*client_runtime_)) == 0; },
               "the message of the lost link is freed");
  };
  MakeCalls([&](RoguePeer& rogue) { (void)AnswerTooEarly(rogue); }, [] {});
  EXPECT_EQ(ended_[kLast], absl::OkStatus());
}

// The key opens the memory until the link's queue pair is drained. Nobody listens any more, so that
// a call that was made again would fail, too, and have its memory back.
TEST_F(WaitingRequestsTest, AResponsesMemoryThatItsLinkMayStillOpenDoesNotComeBack) {
  has_lease_ = last_has_room_ = true;
  MakeCalls(
      [&](RoguePeer& rogue) {
        listener_.reset();
        rogue.Send(EncodeSend(kCorrect, {Response(kLast, 0)}));
        EXPECT_TRUE(rogue.IsDropped());
      },
      [] {});
  EXPECT_EQ(ended_[kLast].code(), absl::StatusCode::kUnavailable) << ended_[kLast];
  EXPECT_EQ(OutcomeOf(ended_[kLast]), Outcome::kNotExecuted);
  EXPECT_FALSE(room_came_back_);
}

// The window is bound, though no SEND has told the peer of its key.
TEST_F(WaitingRequestsTest, NorDoesThatOfACallGivenUpWhileItsLinkStaysOpen) {
  has_lease_ = last_has_room_ = true;
  bool is_strict = false;
  MakeCalls([](RoguePeer&) {},
            [&] {
              is_strict = FirstDeviceOf(*client_runtime_).capabilities().windows_checked;
              last_->RequestCancel();
            });
  EXPECT_EQ(ended_[kLast].code(), absl::StatusCode::kCancelled) << ended_[kLast];
  EXPECT_EQ(OutcomeOf(ended_[kLast]), Outcome::kNotExecuted);
  EXPECT_EQ(room_came_back_, !is_strict) << "without windows a lease is a promise";
}

TEST_F(WaitingRequestsTest, ARequestThatChangesWhileItWaitsFailsItsCallAlone) {
  another_ = true;
  MakeCalls(
      [&](RoguePeer& rogue) {
        std::vector<RogueFrame> responses;
        for (uint32_t slot = 0; slot < kLast; ++slot) responses.push_back(Response(slot, 0));
        rogue.Send(EncodeSend(Issuing(2 * RoguePeer::kCredits), responses));
        const RogueFrame next = rogue.Receive()[0];
        EXPECT_TRUE(testing::EchoRequest().ParseFromString(next.body));
        rogue.Send(EncodeSend(Issuing(2 * RoguePeer::kCredits),
                              {Response(next.header.call_slot, next.header.call_generation)}));
        while (!rogue.IsDropped()) std::this_thread::yield();
      },
      [&] { requests_[kLast].set_data(std::string(kLarger, 'r')); });
  for (uint32_t i = 0; i < kLast; ++i) EXPECT_EQ(ended_[i], absl::OkStatus()) << i;
  EXPECT_EQ(ended_[kLast].code(), absl::StatusCode::kFailedPrecondition) << ended_[kLast];
  EXPECT_EQ(OutcomeOf(ended_[kLast]), Outcome::kNotExecuted);
}

// As when a client with thousands of calls in flight gives all of them up.
TEST_F(WaitingRequestsTest, EachCancelThatWaitsForRoomIsSent) {
  constexpr uint32_t kMany = 6000;
  client_runtime_ = StartRuntime();
  rogue_runtime_ = StartRuntime();
  std::unique_ptr<MessageListener> listener =
      *CoreOf(*rogue_runtime_).shard(0).bootstrap().Listen("127.0.0.1:0");
  channel_ = std::make_unique<Channel>(*client_runtime_, listener->address());
  stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
  std::atomic<bool> all_came{false};
  std::atomic<bool> all_ended{false};
  size_t told = 0;
  std::thread rogue_thread([&] {
    RoguePeer rogue(*rogue_runtime_);
    rogue.AcceptFrom(*listener);
    // Each SEND of the rogue's own takes a credit, too: it issues many at once.
    uint32_t next_issue = 0;
    const auto issue = [&] {
      if (rogue.sends_received() < next_issue) return;
      next_issue = rogue.sends_received() + 16;
      rogue.Send(EncodeSend(Issuing(rogue.sends_received() + 32), {}));
    };
    uint32_t requests = 0;
    while (requests < kMany && !HasFailure()) {
      for (const RogueFrame& frame : rogue.Receive()) {
        requests += frame.header.kind == FrameKind::kRequest ? 1 : 0;
      }
      if (requests < kMany) issue();
    }
    EXPECT_GE(requests, kMany);
    all_came = true;
    while (!all_ended) std::this_thread::yield();
    std::set<uint32_t> slots;
    while (slots.size() < kMany && !HasFailure()) {
      issue();
      for (const RogueFrame& frame : rogue.Receive()) {
        if (frame.header.kind == FrameKind::kCancel) slots.insert(frame.header.call_slot);
      }
    }
    told = slots.size();
  });
  auto client = [&]() -> Task<absl::Status> {
    TaskScope scope(client_runtime_->executor(0));
    for (uint32_t i = 0; i < kMany; ++i) {
      scope.Spawn([this]() -> Task<void> { (void)co_await stub_->Echo(testing::EchoRequest()); });
    }
    while (!all_came) (void)co_await Pause();
    scope.RequestCancel();
    co_await scope.Join();
    all_ended = true;
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(client()), absl::OkStatus());
  rogue_thread.join();
  EXPECT_EQ(told, kMany);
  channel_.reset();
  client_runtime_.reset();
}

// Calls to a correct server of a rogue client that issues no credits by itself.
class WaitingRepliesTest : public RpcTest {
 protected:
  void Serve(RuntimeOptions options = {}, ServerOptions server = {}) {
    StartServer(std::move(server), std::move(options));
    client_runtime_ = StartRuntime();
    rogue_ = std::make_unique<RoguePeer>(*client_runtime_);
    rogue_->ConnectTo(server_->address());
  }
  void TearDown() override { rogue_.reset(); }

  std::unique_ptr<RoguePeer> rogue_;
};

TEST_F(WaitingRepliesTest, AReplyThatChangesWhileItWaitsFailsItsCallAlone) {
  Serve();
  rogue_->Send(EncodeSend(kCorrect, MoreCallsThanCredits()));
  Eventually([&] { return server_runtime_->endpoint_stats(0).traffic.credit_waits > 0; },
             "the last reply waits");
  server_runtime_->BlockOn([](TestingService& service) -> Task<void> {
    service.last_inflated->set_data(std::string(kLarger, 'y'));
    co_return;
  }(service_));
  rogue_->Send(EncodeSend(Issuing(2 * RoguePeer::kCredits),
                          {Request("verbena.testing.Testing/Echo", kCalls, 0)}));
  uint32_t answers = 0;
  while (answers < kCalls + 1 && !HasFailure()) {
    for (const RogueFrame& frame : rogue_->Receive()) {
      ++answers;
      const bool changed = frame.header.call_slot == kLast;
      EXPECT_EQ(frame.header.status_code,
                changed ? static_cast<int>(absl::StatusCode::kInternal) : 0);
      if (changed) {
        EXPECT_EQ(frame.header.outcome, static_cast<int>(Outcome::kExecuted));
      }
    }
  }
}

// As when a server is overloaded by a client with many calls in flight.
TEST_F(WaitingRepliesTest, RefusalsThatWaitForRoomDoNotEndTheLink) {
  Serve({.limits = {.max_links = 8,
                    .srq_depth = 256,
                    .eager_bytes = 64 * 1024,
                    .initial_credits = 8,
                    .max_credits = 64,
                    .send_buffers = 64,
                    .ping_interval = std::chrono::hours(1)}});
  constexpr uint32_t kRequests = 5000;
  constexpr uint32_t kPerSend = 1000;
  for (uint32_t slot = 0; slot < kRequests;) {
    std::vector<RogueFrame> requests;
    for (uint32_t i = 0; i < kPerSend; ++i)
      requests.push_back(Request("no.such/Method", slot++, 0));
    rogue_->Send(EncodeSend(kCorrect, requests));
  }
  Eventually([&] { return server_->stats().refused == kRequests; }, "all are refused");
  rogue_->Send(EncodeSend(Issuing(1000), {}));
  std::vector<int> answers(kRequests);
  for (uint32_t count = 0; count < kRequests && !HasFailure();) {
    for (const RogueFrame& frame : rogue_->Receive()) {
      ASSERT_LT(frame.header.call_slot, kRequests);
      EXPECT_EQ(++answers[frame.header.call_slot], 1);
      EXPECT_EQ(frame.header.status_code, static_cast<int>(absl::StatusCode::kUnimplemented));
      EXPECT_EQ(frame.header.outcome, static_cast<int>(Outcome::kNotExecuted));
      ++count;
    }
  }
}

// A client chooses how many links it has, and not the address that it connects from. Neither a
// rogue's silence nor the grace may end a link here: only the bound.
TEST_F(WaitingRepliesTest, RefusalsThatWaitOnManyLinksOfOneAddressAreBounded) {
  LinkLimits limits = {.max_links = 8,
                       .srq_depth = 256,
                       .eager_bytes = 64 * 1024,
                       .initial_credits = 64,
                       .max_credits = 64,
                       .send_buffers = 64};
  limits.ping_interval = std::chrono::hours(1);
  Serve({.limits = limits}, {.response_grace = std::chrono::hours(1)});
  uint64_t asked = 0;
  // Sends are awaited, since a rogue's bytes are soon overwritten.
  const auto ask = [&](RoguePeer& rogue, uint32_t sends, bool awaits) {
    constexpr uint32_t kPerSend = 1000;
    for (uint32_t slot = 0; slot < sends * kPerSend;) {
      std::vector<RogueFrame> requests;
      for (uint32_t i = 0; i < kPerSend; ++i) {
        requests.push_back(Request("no.such/Method", slot++, 0));
      }
      rogue.Send(EncodeSend(kCorrect, requests));
      asked += kPerSend;
      if (awaits) Eventually([&] { return server_->stats().refused >= asked; }, "all are refused");
    }
  };
  ask(*rogue_, 40, true);
  RoguePeer second(*client_runtime_);
  second.ConnectTo(server_->address());
  ask(second, 33, true);
  // The first has 40,000 less what its credits took, so this goes beyond the share.
  ask(second, 3, false);
  EXPECT_TRUE(second.IsDropped());
  // Others of the address may still be refused.
  asked = server_->stats().refused;
  RoguePeer third(*client_runtime_);
  third.ConnectTo(server_->address());
  ask(third, 4, true);
  third.Send(EncodeSend(Issuing(1000), {}));
  EXPECT_EQ(third.Receive()[0].header.status_code,
            static_cast<int>(absl::StatusCode::kUnimplemented));
}

}  // namespace waiting_frames_test
}  // namespace verbena::internal
