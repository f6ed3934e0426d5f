// Interceptors run around each call in the order of their list, on both sides. They read and change
// metadata, see messages, end calls, and answer them; the outcome says whether the handler ran.

#include "verbena/rpc/interceptor.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/rpc/context_service.h"
#include "tests/rpc/payload_service.h"
#include "tests/support/any_handler.h"
#include "tests/support/moved_clock.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/task.h"

namespace verbena::internal {
namespace interceptor_test {

using namespace std::chrono_literals;

// Does what a test says.
class Client final : public ClientInterceptor {
 public:
  using Function = AnyHandler<ClientCallView&, ClientNext>;
  explicit Client(Function function) : function_(std::move(function)) {}

 private:
  VERBENA_CORO_WRAPPER Task<absl::Status> Intercept(ClientCallView& call,
                                                    ClientNext next) override {
    return function_(call, next);
  }
  const Function function_;
};

class OfServer final : public ServerInterceptor {
 public:
  using Function = AnyHandler<ServerCallView&, ServerNext>;
  explicit OfServer(Function function) : function_(std::move(function)) {}

 private:
  VERBENA_CORO_WRAPPER Task<absl::Status> Intercept(ServerCallView& call,
                                                    ServerNext next) override {
    return function_(call, next);
  }
  const Function function_;
};

const testing::EchoRequest& EchoOf(const google::protobuf::MessageLite& request) {
  return static_cast<const testing::EchoRequest&>(request);
}

class InterceptorTest : public ContextTest {
 protected:
  ~InterceptorTest() override {
    stub_.reset();
    channel_.reset();
    client_runtime_.reset();  // before its clock
  }

  void Start(std::vector<Client::Function> clients, std::vector<OfServer::Function> servers) {
    ServerOptions server;
    for (auto& each : servers) server.interceptors.push_back(std::make_shared<OfServer>(each));
    StartServer(std::move(server));
    ChannelOptions channel;
    for (auto& each : clients) channel.interceptors.push_back(std::make_shared<Client>(each));
    StartClient(std::move(channel), {.clock = &clock_});
    service_.handler = [this](ServerContext&, const testing::EchoRequest&,
                              testing::EchoReply&) -> Task<absl::Status> {
      ++handled_;
      co_return absl::OkStatus();
    };
  }

  MovedClock clock_;  // the client's
  std::atomic<int> handled_{0};
};

TEST_F(InterceptorTest, RunInTheOrderOfTheList) {
  std::string order;  // no two steps run at once
  const auto client = [&order](std::string name) -> Client::Function {
    return [&order, name](ClientCallView&, ClientNext next) -> Task<absl::Status> {
      order += name + "> ";
      absl::Status status = co_await next();
      order += "<" + name + " ";
      co_return status;
    };
  };
  const auto server = [&order](std::string name) -> OfServer::Function {
    return [&order, name](ServerCallView&, ServerNext next) -> Task<absl::Status> {
      order += name + "> ";
      absl::Status status = co_await next();
      order += "<" + name + " ";
      co_return status;
    };
  };
  Start({client("a"), client("b")}, {server("c"), server("d")});
  EXPECT_EQ(Run(EchoWith({})), absl::OkStatus());
  EXPECT_EQ(order, "a> b> c> d> <d <c <b <a ");
  EXPECT_EQ(handled_, 1);
}

TEST_F(InterceptorTest, ReadAndChangeMetadata) {
  Start({[](ClientCallView& call, ClientNext next) -> Task<absl::Status> {
          EXPECT_EQ(call.metadata.Get("tenant"), "blue");
          call.metadata.Add("token", "secret");
          call.priority = Priority::kControl;
          call.trace = TraceContext::Root(true);
          absl::Status status = co_await next();
          EXPECT_EQ(call.trailing_metadata().Get("rows"), "7") << "though nobody has a CallInfo";
          co_return status;
        }},
        {[](ServerCallView& call, ServerNext next) -> Task<absl::Status> {
          EXPECT_EQ(call.metadata().Get("token"), "secret");
          EXPECT_NE(call.context().trace(), nullptr);
          call.metadata().Remove("token");
          call.metadata().Add("user", "ada");
          absl::Status status = co_await next();
          EXPECT_EQ(call.context().AddTrailingMetadata("rows", "7"), absl::OkStatus());
          co_return status;
        }});
  EXPECT_EQ(Run(EchoWith({.metadata = {{"tenant", "blue"}}})), absl::OkStatus());
  EXPECT_EQ(service_.seen.metadata.Get("tenant"), "blue");
  EXPECT_EQ(service_.seen.metadata.Get("user"), "ada");
  EXPECT_EQ(service_.seen.metadata.Get("token"), std::nullopt);
  EXPECT_EQ(service_.seen.priority, Priority::kControl);
  EXPECT_TRUE(service_.seen.trace.has_value());
}

// The server uses the object of the call before again.
TEST_F(InterceptorTest, ACallSeesNoMetadataOfTheCallBefore) {
  std::atomic<size_t> seen{0};
  Start({}, {[&seen](ServerCallView& call, ServerNext next) -> Task<absl::Status> {
          seen = call.metadata().size();
          co_return co_await next();
        }});
  EXPECT_EQ(Run(EchoWith({.metadata = {{"tenant", "blue"}}})), absl::OkStatus());
  EXPECT_EQ(seen, 1u);
  EXPECT_EQ(Run(EchoWith({})), absl::OkStatus());
  EXPECT_EQ(seen, 0u);
}

TEST_F(InterceptorTest, MetadataThatOneAddsIsCheckedLikeTheCallers) {
  Start({[](ClientCallView& call, ClientNext next) -> Task<absl::Status> {
          call.metadata.Add("Token", "x");
          co_return co_await next();
        }},
        {});
  const absl::Status status = Run(EchoWith({}));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(handled_, 0);
}

// A server's see a request that travelled one-sided in full, too.
TEST_F(InterceptorTest, SeeMessagesOfEverySize) {
  std::atomic<size_t> requested{0};
  std::atomic<size_t> replied{0};
  Start({[&](ClientCallView& call, ClientNext next) -> Task<absl::Status> {
          EXPECT_STREQ(call.method().full_name, "verbena.testing.Testing/Echo");
          EXPECT_EQ(call.target(), server_->address());
          absl::Status status = co_await next();
          replied = static_cast<testing::EchoReply&>(call.reply()).data().size();
          co_return status;
        }},
        {[&](ServerCallView& call, ServerNext next) -> Task<absl::Status> {
          requested = EchoOf(call.request()).data().size();
          co_return co_await next();
        }});
  for (const size_t bytes : {0u, 100u, 4050u, 100'000u}) {
    EXPECT_EQ(Run(EchoWith({}, bytes)), absl::OkStatus());
    EXPECT_EQ(requested, bytes);
    EXPECT_EQ(replied, bytes);
  }
}

TEST_F(InterceptorTest, ARefusalBeforeTheHandlerSaysThatItDidNotRun) {
  bool late = false;
  Start({}, {[&](ServerCallView&, ServerNext next) -> Task<absl::Status> {
          if (late) {
            EXPECT_EQ(co_await next(), absl::OkStatus());
          }
          co_return absl::PermissionDeniedError("not you");
        }});
  for (const size_t bytes : {5u, 100'000u}) {
    const absl::Status status = Run(EchoWith({}, bytes));
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
    EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  }
  EXPECT_EQ(handled_, 0);
  late = true;
  EXPECT_EQ(OutcomeOf(Run(EchoWith({}))), Outcome::kExecuted);
  EXPECT_EQ(handled_, 1);
}

TEST_F(InterceptorTest, ARefusalOfTheChannelSendsNothing) {
  Start({[](ClientCallView&, ClientNext) -> Task<absl::Status> {
          co_return absl::UnavailableError("injected");
        }},
        {});
  const absl::Status status = Run(EchoWith({}));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  EXPECT_EQ(server_->stats().calls, 0u);
}

TEST_F(InterceptorTest, ACallThatOneEndsFillsItsCallInfo) {
  bool goes_on = false;
  Start({[&](ClientCallView&, ClientNext next) -> Task<absl::Status> {
          const TimePoint then = client_runtime_->executor(0).now() + 2ms;
          clock_.Advance(2ms);
          VERBENA_CO_RETURN_IF_ERROR(co_await SleepUntil(then));
          if (goes_on) co_return co_await next();
          co_return absl::UnavailableError("injected");
        }},
        {});
  CallInfo info;
  for (const bool on : {true, false}) {
    goes_on = on;
    EXPECT_EQ(Run(EchoWith({.info = &info}, 50)).ok(), goes_on);
    EXPECT_GE(info.elapsed, 2ms);
    EXPECT_EQ(info.request_bytes, 52u);
    EXPECT_EQ(info.reply_bytes, goes_on ? 52u : 0u);
  }
}

TEST_F(InterceptorTest, TheOutcomeOfARefusalIsKnownToThoseBeforeIt) {
  std::vector<Outcome> seen;
  const auto sees = [&seen](ClientCallView&, ClientNext next) -> Task<absl::Status> {
    absl::Status status = co_await next();
    seen.push_back(OutcomeOf(status));
    co_return status;
  };
  bool refuses = true;
  Start({sees, sees,
         [&](ClientCallView&, ClientNext next) -> Task<absl::Status> {
           if (refuses) co_return absl::UnavailableError("injected");
           // Nobody knows how far a call got that was made.
           (void)co_await next();
           co_return absl::UnavailableError("made up");
         }},
        {});
  EXPECT_EQ(OutcomeOf(Run(EchoWith({}))), Outcome::kNotExecuted);
  EXPECT_EQ(seen, (std::vector<Outcome>(2, Outcome::kNotExecuted)));
  refuses = false;
  seen.clear();
  EXPECT_EQ(OutcomeOf(Run(EchoWith({}))), Outcome::kMaybeExecuted);
  EXPECT_EQ(seen, (std::vector<Outcome>(2, Outcome::kMaybeExecuted)));
}

// A Task of next() begins the rest of the call when it is awaited, and not before.
TEST_F(InterceptorTest, ANextThatIsDroppedRunsNothing) {
  bool at_client = true;
  Start({[&](ClientCallView&, ClientNext next) -> Task<absl::Status> {
          Task<absl::Status> rest = next();
          if (!at_client) co_return co_await std::move(rest);
          co_return absl::UnavailableError("injected");
        }},
        {[](ServerCallView&, ServerNext next) -> Task<absl::Status> {
          {
            const Task<absl::Status> dropped = next();
          }
          co_return absl::UnavailableError("injected");
        }});
  for (const size_t bytes : {5u, 100'000u}) {
    const absl::Status status = Run(EchoWith({}, bytes));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  }
  EXPECT_EQ(server_->stats().calls, 0u);
  at_client = false;
  EXPECT_EQ(OutcomeOf(Run(EchoWith({}))), Outcome::kNotExecuted);
  EXPECT_EQ(handled_, 0);
}

TEST_F(InterceptorTest, AStatusOfAnotherCallKeepsItsOutcome) {
  Start({[](ClientCallView&, ClientNext) -> Task<absl::Status> {
          co_return WithOutcome(absl::AbortedError("elsewhere"), Outcome::kExecuted);
        }},
        {});
  EXPECT_EQ(OutcomeOf(Run(EchoWith({}))), Outcome::kExecuted);
}

TEST_F(InterceptorTest, MayAnswerInsteadOfTheHandler) {
  Start({}, {[](ServerCallView& call, ServerNext) -> Task<absl::Status> {
          static_cast<testing::EchoReply&>(call.reply()).set_data(EchoOf(call.request()).data());
          co_return absl::OkStatus();
        }});
  EXPECT_EQ(Run(EchoWith({})), absl::OkStatus());
  EXPECT_EQ(handled_, 0);
}

TEST_F(InterceptorTest, MayAnswerInsteadOfTheServer) {
  Start({[](ClientCallView& call, ClientNext) -> Task<absl::Status> {
          static_cast<testing::EchoReply&>(call.reply()).set_data(EchoOf(call.request()).data());
          co_return absl::OkStatus();
        }},
        {});
  EXPECT_EQ(Run(EchoWith({})), absl::OkStatus());
  EXPECT_EQ(server_->stats().calls, 0u);
}

TEST_F(InterceptorTest, MayTurnAFailureIntoAnother) {
  Start({[](ClientCallView&, ClientNext next) -> Task<absl::Status> {
          const absl::Status status = co_await next();
          EXPECT_EQ(RetryAfterOf(status), 5ms);
          co_return absl::AbortedError("seen");
        }},
        {[](ServerCallView&, ServerNext next) -> Task<absl::Status> {
          co_return WithRetryAfter(co_await next(), 5ms);
        }});
  service_.handler = [](ServerContext& context, const testing::EchoRequest&,
                        testing::EchoReply&) -> Task<absl::Status> {
    co_return context.NotExecuted(absl::UnavailableError("not the leader"));
  };
  EXPECT_EQ(Run(EchoWith({})).code(), absl::StatusCode::kAborted);
}

TEST_F(InterceptorTest, OneThatThrowsEndsItsCallAlone) {
  Start({}, {[](ServerCallView& call, ServerNext next) -> Task<absl::Status> {
          if (EchoOf(call.request()).data().empty()) throw std::runtime_error("out of cheese");
          co_return co_await next();
        }});
  const absl::Status status = Run(EchoWith({}, 0));
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_EQ(Run(EchoWith({})), absl::OkStatus());
  EXPECT_EQ(server_runtime_->endpoint_stats(0).links_lost, 0u);
}

TEST_F(InterceptorTest, ACallsDeadlineEndsTheirWaits) {
  std::atomic<int> waited{0};
  const auto wait = [&](Deadline deadline) -> Task<absl::Status> {
    EXPECT_TRUE(deadline.is_set());
    const absl::Status slept = co_await SleepUntil(kNever);
    EXPECT_FALSE(slept.ok()) << "the server may hear of the end from its client first";
    ++waited;
    co_return slept;
  };
  bool at_client = false;
  Start({[&](ClientCallView& call, ClientNext next) -> Task<absl::Status> {
          if (at_client) co_return co_await wait(call.deadline());
          co_return co_await next();
        }},
        {[&](ServerCallView& call, ServerNext) -> Task<absl::Status> {
          co_return co_await wait(call.context().deadline());
        }});
  EXPECT_EQ(Run(channel_->Connect()), absl::OkStatus());
  EXPECT_EQ(Run(EchoWith({.deadline = 50ms})).code(), absl::StatusCode::kDeadlineExceeded);
  Eventually([&] { return waited == 1; }, "the server's wait has ended");
  at_client = true;
  EXPECT_EQ(Run(EchoWith({.deadline = 50ms})).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(waited, 2);
  EXPECT_EQ(handled_, 0);
}

TEST_F(InterceptorTest, NextIsCalledOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Start({[](ClientCallView&, ClientNext next) -> Task<absl::Status> {
          (void)co_await next();
          co_return co_await next();
        }},
        {});
  EXPECT_DEATH((void)Run(EchoWith({})), "calls next\\(\\) at most once");
}

// --- payloads

class PayloadInterceptorTest : public PayloadFixture {};

TEST_F(PayloadInterceptorTest, ACallThatOneEndsGivesItsBuffersBack) {
  StartBoth();
  bool ends = true;
  bool drops = false;
  ChannelOptions options;
  options.interceptors.push_back(
      std::make_shared<Client>([&](ClientCallView&, ClientNext next) -> Task<absl::Status> {
        if (drops) const Task<absl::Status> dropped = next();
        if (ends) co_return absl::UnavailableError("injected");
        co_return co_await next();
      }));
  Channel channel(*client_runtime_, server_->address(), std::move(options));
  const testing::Payloads::Stub stub(channel);
  const auto swap = [&]() -> Task<absl::Status> {
    Payload returned;
    testing::PutRequest request;
    WithPayload<testing::PutReply> reply;
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Filled(5000));
    absl::Status status = co_await stub.Swap(
        request, reply, {.request_payload = std::move(buffer), .returned_payload = &returned});
    EXPECT_EQ(returned.size(), 5000u);
    EXPECT_EQ(reply.payload.size(), ends ? 0u : 5000u);
    co_return status;
  };
  for (const bool each : {false, true}) {
    drops = each;
    const absl::Status status = Run(swap());
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  }
  ends = drops = false;
  EXPECT_EQ(Run(swap()), absl::OkStatus());
}

}  // namespace interceptor_test
}  // namespace verbena::internal
