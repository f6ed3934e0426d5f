// Calls that a handler makes have the handler's deadline, cancellation and trace, through every
// Task between them, unless CallOptions say otherwise. So do waits for memory and loans.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tests/rpc/first_device.h"
#include "tests/rpc/payload_service.h"
#include "tests/rpc/testing_service.h"
#include "tests/support/any_handler.h"
#include "verbena/rpc/task.h"

namespace verbena::internal {
namespace ambient_test {

using namespace std::chrono_literals;

// A handler that makes a call to `backend` in the way that a test tells.
class Frontend final : public testing::Testing::Service {
 public:
  using Nested = AnyHandler<testing::Testing::Stub&>;

  Task<absl::Status> Echo(ServerContext& context, const testing::EchoRequest&,
                          testing::EchoReply&) override {
    if (context.trace() != nullptr) trace = *context.trace();
    ++running;
    absl::Status status = co_await nested(*backend);
    --running;
    co_return status;
  }

  testing::Testing::Stub* backend = nullptr;
  Nested nested;
  std::optional<TraceContext> trace;  // of the last call
  std::atomic<int> running{0};
};

// The server of the fixture is the backend; the frontend runs on the server's runtime, too.
class AmbientCallTest : public RpcTest {
 protected:
  void SetUp() override {
    StartServer({}, {.executors = 2});
    StartClient();
    backend_channel_ = std::make_unique<Channel>(*server_runtime_, server_->address());
    backend_ = std::make_unique<testing::Testing::Stub>(*backend_channel_);
    frontend_.backend = backend_.get();
    frontend_server_ = *Server::Start(*server_runtime_, {&frontend_});
    channel_ = std::make_unique<Channel>(*client_runtime_, frontend_server_->address());
    stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
  }
  void TearDown() override {
    stub_.reset();
    channel_.reset();
    client_runtime_.reset();
    frontend_server_.reset();
    backend_channel_.reset();
  }

  Task<absl::Status> CallFrontend(CallOptions options) {
    testing::EchoRequest request;
    testing::EchoReply reply;
    co_return co_await stub_->Echo(request, reply, std::move(options));
  }

  // The deadline that the backend sees, as the time that was left.
  std::optional<Duration> BackendsDeadline(CallOptions options, Frontend::Nested nested = {}) {
    seen_ = {};
    const auto asks = [this](testing::Testing::Stub& backend) -> Task<absl::Status> {
      co_return co_await AskDeadline(backend, {});
    };
    frontend_.nested = nested ? std::move(nested) : Frontend::Nested(asks);
    EXPECT_EQ(Run(CallFrontend(std::move(options))), absl::OkStatus());
    if (!seen_.is_set()) return std::nullopt;
    return std::chrono::microseconds(seen_.left_us());
  }

  Task<absl::Status> AskDeadline(testing::Testing::Stub& backend, CallOptions options) {
    testing::Empty request;
    co_return co_await backend.Deadline(request, seen_, std::move(options));
  }

  Task<absl::Status> BackendWaits(testing::Testing::Stub& backend, CallOptions options) {
    testing::WaitRequest request;
    testing::Empty reply;
    co_return co_await backend.Wait(request, reply, std::move(options));
  }

  Frontend frontend_;
  std::unique_ptr<Channel> backend_channel_;
  std::unique_ptr<testing::Testing::Stub> backend_;
  std::unique_ptr<Server> frontend_server_;
  testing::DeadlineReply seen_;
};

TEST_F(AmbientCallTest, ACallHasTheDeadlineOfTheHandlerThatMakesIt) {
  EXPECT_EQ(BackendsDeadline({}), std::nullopt);
  const std::optional<Duration> left = BackendsDeadline({.deadline = 1h});
  ASSERT_TRUE(left.has_value());
  EXPECT_LE(*left, 1h);
  EXPECT_GT(*left, 50min);
}

TEST_F(AmbientCallTest, TheWorkOfAHandlerIsThatOfItsClient) {
  std::vector<uint64_t> clients;
  const auto note = [&clients]() -> Task<absl::Status> {
    TaskScope below(co_await CurrentContext());
    clients.push_back(below.cancel_scope().client());
    co_return absl::OkStatus();
  };
  frontend_.nested = [this, &note](testing::Testing::Stub&) -> Task<absl::Status> {
    co_return co_await RunOn(server_runtime_->executor(1), note());
  };
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Run(CallFrontend({})), absl::OkStatus());
  const std::unique_ptr<Runtime> other = StartRuntime();
  Channel channel(*other, frontend_server_->address());
  const auto call = [&channel]() -> Task<absl::Status> {
    testing::Testing::Stub stub(channel);
    co_return (co_await stub.Echo(testing::EchoRequest())).status();
  };
  EXPECT_EQ(other->BlockOn(call()), absl::OkStatus());
  ASSERT_EQ(clients.size(), 3u);
  EXPECT_NE(clients[0], 0u);
  EXPECT_EQ(clients[1], clients[0]);
  EXPECT_NE(clients[2], clients[0]);
  EXPECT_NE(clients[2], 0u);
}

TEST_F(AmbientCallTest, TheEarlierOfTheTwoDeadlinesHolds) {
  const auto with = [this](Deadline deadline) -> Frontend::Nested {
    return [this, deadline](testing::Testing::Stub& backend) -> Task<absl::Status> {
      co_return co_await AskDeadline(backend, {.deadline = deadline});
    };
  };
  EXPECT_LE(*BackendsDeadline({.deadline = 1h}, with(2h)), 1h);
  EXPECT_LE(*BackendsDeadline({.deadline = 1h}, with(Deadline::None())), 1h);
  EXPECT_LE(*BackendsDeadline({.deadline = 2h}, with(1h)), 1h);
}

TEST_F(AmbientCallTest, ADeadlineReachesTheBackendThroughOtherTasksAndExecutors) {
  Executor& other = server_runtime_->executor(1);
  const auto through = [this, &other](testing::Testing::Stub& backend) -> Task<absl::Status> {
    co_return co_await RunOn(other, WithTrace(AskDeadline(backend, {}), TraceContext::Root(true)));
  };
  EXPECT_LE(BackendsDeadline({.deadline = 1h}, through).value_or(9h), 1h);
  const auto narrower = [this](testing::Testing::Stub& backend) -> Task<absl::Status> {
    co_return co_await WithDeadline(AskDeadline(backend, {}), 1h);
  };
  EXPECT_LE(BackendsDeadline({}, narrower).value_or(9h), 1h) << "WithDeadline() alone";
}

TEST_F(AmbientCallTest, ACallMayInheritNothing) {
  const auto alone = [this](testing::Testing::Stub& backend) -> Task<absl::Status> {
    co_return co_await AskDeadline(backend, {.inherit = Inherit::kNothing});
  };
  EXPECT_EQ(BackendsDeadline({.deadline = 1h}, alone), std::nullopt);
}

TEST_F(AmbientCallTest, ACancelledHandlerCancelsItsCallsUnlessTheyInheritNothing) {
  for (const Inherit inherit : {Inherit::kAll, Inherit::kNothing}) {
    frontend_.nested = [&](testing::Testing::Stub& backend) -> Task<absl::Status> {
      co_return co_await BackendWaits(backend, {.inherit = inherit});
    };
    const int cancelled = service_.cancelled;
    JoinHandle<absl::Status> call = client_runtime_->Spawn(CallFrontend({}));
    Eventually([&] { return service_.waiting == 1; }, "the backend's handler runs");
    call.RequestCancel();
    EXPECT_EQ(call.Join().code(), absl::StatusCode::kCancelled);
    if (inherit == Inherit::kAll) {
      Eventually([&] { return service_.cancelled == cancelled + 1; }, "the backend hears of it");
      Eventually([&] { return frontend_.running == 0; }, "the frontend's handler has ended");
      // Otherwise the next call would seem to run before it does.
      Eventually([&] { return service_.waiting == 0; }, "the backend's handler has ended");
    } else {
      // A call after it, over the same links, finds the handler still there.
      frontend_.nested = [](testing::Testing::Stub&) -> Task<absl::Status> {
        co_return absl::OkStatus();
      };
      EXPECT_EQ(Run(CallFrontend({})), absl::OkStatus());
      EXPECT_EQ(service_.waiting, 1);
      EXPECT_EQ(frontend_.running, 1);
      // The end of the backend ends it.
      server_.reset();
      Eventually([&] { return frontend_.running == 0; }, "the frontend's handler has ended");
    }
  }
}

TEST_F(AmbientCallTest, ACallBelongsToTheTraceOfTheHandlerThatMakesIt) {
  // The frontend calls itself once more.
  Channel again(*server_runtime_, frontend_server_->address());
  testing::Testing::Stub self(again);
  std::optional<TraceContext> outer;
  int depth = 0;
  frontend_.nested = [&](testing::Testing::Stub&) -> Task<absl::Status> {
    if (++depth == 2) co_return absl::OkStatus();
    outer = frontend_.trace;
    testing::EchoRequest request;
    testing::EchoReply reply;
    co_return co_await RunOn(server_runtime_->executor(0), self.Echo(request, reply).AsTask());
  };
  const TraceContext root = TraceContext::Root(/*sampled=*/true);
  EXPECT_EQ(Run(WithTrace(CallFrontend({}), root)), absl::OkStatus());
  ASSERT_TRUE(outer.has_value() && frontend_.trace.has_value());
  EXPECT_EQ(outer->trace_id, root.trace_id);
  EXPECT_EQ(frontend_.trace->trace_id, root.trace_id);
  EXPECT_NE(frontend_.trace->span_id, outer->span_id);
  EXPECT_TRUE(frontend_.trace->sampled());
}

// --- memory

class AmbientMemoryTest : public PayloadFixture {};

// A wait for memory that ends early enough to say which memory was short; the Task's deadline alone
// would only say that it has passed.
TEST_F(AmbientMemoryTest, AWaitForMemoryEndsBeforeTheDeadlineOfItsTask) {
  LinkLimits limits;
  limits.memory.send_bytes = 4 << 20;
  StartBoth(limits);
  const auto all = [this]() -> Task<absl::Status> {
    BufferPool& pool = PayloadMemoryOf(*client_runtime_)->send();
    const std::vector<Buffer> taken = co_await TakeAll(pool, 1 << 20);
    co_return (co_await WithDeadline(channel_->AllocateBuffer(1 << 20), 400ms)).status();
  };
  const absl::Status status = Run(all());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

TEST_F(AmbientMemoryTest, AWaitForALoanEndsBeforeTheDeadlineOfItsTask) {
  LinkLimits limits;
  limits.leases.windows_per_link = 16;
  limits.leases.level = LeaseLevel::kStrict;
  StartBoth(limits);
  const auto lend = [this]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Filled(4096));
    std::vector<Loan> loans;
    for (;;) {
      absl::StatusOr<Loan> loan =
          co_await WithDeadline(channel_->Lend(buffer.view(), LeaseAccess::kRead), 400ms);
      if (!loan.ok()) co_return loan.status();
      loans.push_back(*std::move(loan));
    }
  };
  const absl::Status status = Run(lend());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

}  // namespace ambient_test
}  // namespace verbena::internal
