// A deduplicated call outlives its link, its caller and its request's payload: its handler makes
// the payload of its result all the same, and then nothing waits for a caller that is gone.

#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "google/protobuf/descriptor.pb.h"
#include "tests/rpc/counter_service.h"
#include "tests/rpc/watched_device.h"
#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/task.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/sync.h"

namespace verbena::internal {
namespace dedupe_lifetime_test {

class DedupeLifetimeTest : public CounterTest {
 protected:
  // The payload of one attempt of Swap.
  Task<absl::StatusOr<std::string>> Swap(DedupeToken& token) {
    auto reply = co_await stub_->Swap(testing::AddRequest(), {.dedupe = &token});
    if (!reply.ok()) co_return reply.status();
    co_return std::string(reply->payload.data(), reply->payload.size());
  }
  Task<absl::Status> Count() { co_return (co_await stub_->Count(testing::AddRequest())).status(); }
  static Task<void> Set(Event& event) {
    event.Set();
    co_return;
  }
};

TEST_F(DedupeLifetimeTest, ACallWhoseCallerGaveUpAsksForNoMemory) {
  StartBoth();
  Event released;  // of the server's executor
  service_.handler = [&released](ServerContext& context, const testing::AddRequest&,
                                 testing::AddReply&) -> Task<absl::Status> {
    VERBENA_CO_RETURN_IF_ERROR(co_await released.Wait());
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer data, co_await context.AllocateBuffer(100'000));
    std::memset(data.data(), 'a', data.size());
    context.SetResponsePayload(std::move(data));
    co_return absl::OkStatus();
  };
  const Token token(*this);
  JoinHandle<absl::StatusOr<std::string>> first = client_runtime_->Spawn(Swap(*token));
  Eventually([this] { return service_.runs == 1; }, "the handler begins");
  first.RequestCancel();
  EXPECT_TRUE(absl::IsCancelled(first.Join().status()));
  EXPECT_TRUE(Run(Count()).ok()) << "the CANCEL came ahead of it";
  server_runtime_->BlockOn(Set(released));
  Eventually([this] { return server_->stats().failures == 1; }, "the call has ended as cancelled",
             kMaxLandingWait / 2);
  const absl::StatusOr<std::string> second = Run(Swap(*token));
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(*second, std::string(100'000, 'a')) << "its result is there";
}

TEST_F(DedupeLifetimeTest, AHandlerMakesItsPayloadAlsoAfterItsLinkIsLost) {
  StartBoth();
  service_.handler = [](ServerContext& context, const testing::AddRequest&,
                        testing::AddReply&) -> Task<absl::Status> {
    // Until the server has noticed.
    while (!context.device_name().empty()) VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer data, co_await context.AllocateBuffer(3000));
    std::memset(data.data(), 'a', data.size());
    context.SetResponsePayload(std::move(data));
    co_return absl::OkStatus();
  };
  const Token token(*this);
  breaker_.Arm(CallEvent::kRequestArrived);
  EXPECT_TRUE(absl::IsUnavailable(Run(Swap(*token)).status()));
  EXPECT_TRUE(Run(AwaitLink()).ok());
  const absl::StatusOr<std::string> second = Run(Swap(*token));
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(*second, std::string(3000, 'a'));
  EXPECT_EQ(service_.runs, 1u);
}

class TakesPayloads final : public ServerInterceptor {
 public:
  std::atomic<size_t> taken = 0;  // bytes

 private:
  Task<absl::Status> Intercept(ServerCallView& call, ServerNext next) override {
    taken += call.context().TakeRequestPayload().size();
    co_return co_await next();
  }
};

TEST_F(DedupeLifetimeTest, AnInterceptorMayTakeThePayload) {
  const auto interceptor = std::make_shared<TakesPayloads>();
  server_runtime_ = StartRuntime();
  ServeWith(service_, {.interceptors = {interceptor}});
  StartClient();
  service_.handler = [](ServerContext& context, const testing::AddRequest&,
                        testing::AddReply&) -> Task<absl::Status> {
    EXPECT_EQ(context.TakeRequestPayload().size(), 0u);
    co_return absl::OkStatus();
  };
  const auto swap = [this](DedupeToken& token) -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer payload, co_await channel_->AllocateBuffer(50'000));
    co_return (co_await stub_->Swap(testing::AddRequest(),
                                    {.request_payload = std::move(payload), .dedupe = &token}))
        .status();
  };
  const Token token(*this);
  for (size_t attempt = 1; attempt <= 2; ++attempt) {
    EXPECT_EQ(Run(swap(*token)), absl::OkStatus());
    EXPECT_EQ(interceptor->taken, attempt * 50'000);
  }
  EXPECT_EQ(service_.runs, 1u);
}

// Answers Add with a message that lacks required fields, as code of proto2 may.
class LackingService final : public Service {
 public:
  using Reply = google::protobuf::UninterpretedOption::NamePart;

  LackingService() : method_(*Add()) {
    method_.reply_prototype = &Reply::default_instance();
    method_.invoke = [](Service&, ServerContext&, const google::protobuf::MessageLite&,
                        google::protobuf::MessageLite&) -> Task<absl::Status> {
      co_return absl::OkStatus();
    };
  }
  const char* full_name() const override { return CounterService().full_name(); }
  absl::Span<const ServerMethod> methods() const override { return {&method_, 1}; }

 private:
  static const ServerMethod* Add() {
    static const CounterService& whole = *new CounterService;
    return &whole.methods()[0];
  }

  ServerMethod method_;
};

TEST_F(DedupeLifetimeTest, AReplyThatLacksARequiredFieldIsKept) {
  LackingService service;
  server_runtime_ = StartRuntime();
  ServeWith(service);
  StartClient();
  const Token token(*this);
  for (int attempt = 0; attempt < 2; ++attempt) EXPECT_EQ(Add(*token).status(), absl::OkStatus());
  EXPECT_EQ(kept().results, 1u);
  server_.reset();
}

// Ends the call while its handler waits, as a time limit does.
class DropsHandlers final : public ServerInterceptor {
 public:
  std::atomic<bool> drops = true;

 private:
  static Task<void> Ignored(Task<absl::Status> rest) { (void)co_await std::move(rest); }
  Task<absl::Status> Intercept(ServerCallView&, ServerNext next) override {
    if (!drops) co_return co_await next();
    TaskScope scope(co_await CurrentContext());
    scope.Spawn(Ignored(next()));
    // The handler runs up to its first wait.
    (void)co_await Yield();
    co_return absl::DeadlineExceededError("the site's limit");
  }
};

class DroppedHandlerTest : public DedupeLifetimeTest {
 protected:
  void StartDropping(DedupeStore* store) {
    server_runtime_ = StartRuntime();
    ServeWith(service_, {.interceptors = {interceptor_}, .dedupe = {.store = store}});
    StartClient();
    service_.handler = [](ServerContext&, const testing::AddRequest&,
                          testing::AddReply&) -> Task<absl::Status> {
      co_return co_await SleepUntil(kNever);
    };
  }
  // The first attempt, whose handler the interceptor destroys.
  void Drop(DedupeToken& token) {
    const absl::Status dropped = Add(token).status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(dropped)) << dropped;
    EXPECT_EQ(OutcomeOf(dropped), Outcome::kMaybeExecuted);
    EXPECT_EQ(service_.runs, 1u);
    interceptor_->drops = false;
    service_.handler = {};
  }

  const std::shared_ptr<DropsHandlers> interceptor_ = std::make_shared<DropsHandlers>();
};

TEST_F(DroppedHandlerTest, ACallWhoseHandlerWasDestroyedIsAnsweredAndRunsOnce) {
  StartDropping(nullptr);
  const Token token(*this);
  Drop(*token);
  const absl::Status repeated = Add(*token).status();
  EXPECT_TRUE(absl::IsAborted(repeated)) << repeated;
  EXPECT_EQ(OutcomeOf(repeated), Outcome::kMaybeExecuted);
  EXPECT_EQ(service_.runs, 1u);
}

TEST_F(DroppedHandlerTest, AStoreIsAskedForACallWhoseHandlerWasDestroyed) {
  class CommittedStore final : public DedupeStore {
   public:
    Task<absl::StatusOr<std::optional<DedupeResult>>> Lookup(RequestId) override {
      testing::AddReply reply;
      reply.set_count(7);
      co_return DedupeResult{.reply = reply.SerializeAsString()};
    }
  } store;
  StartDropping(&store);
  const Token token(*this);
  Drop(*token);
  EXPECT_EQ(Add(*token).value(), 7u);
  EXPECT_EQ(service_.runs, 1u);
  server_.reset();
}

}  // namespace dedupe_lifetime_test
}  // namespace verbena::internal
