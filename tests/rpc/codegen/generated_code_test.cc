// Generated stubs pass each call's method, request and options to the runtime unchanged and without
// a copy. Generated services run the override of each method. Adapters make the calls of their
// stub, and mocks answer in its place. The runtime here only records.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "google/protobuf/message_lite.h"
#include "gtest/gtest.h"
#include "testdata/no_method.verbena.pb.h"
#include "testdata/options.verbena.pb.h"
#include "testdata/unary.verbena.pb.h"
#include "testdata/unary_mock.verbena.pb.h"
#include "tests/support/manual_scheduler.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/service.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/testing/mocked_call.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/combinators.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

// The runtime's classes are only passed on by generated code; these stand in for them.
namespace internal {

class ClientChannel {
 public:
  const MethodDescriptor* method = nullptr;
  const google::protobuf::MessageLite* request = nullptr;
  const google::protobuf::MessageLite* reply = nullptr;
  std::string serialized_request;
  CallOptions options;
  absl::Status answer;
  bool answers_payload = false;
};

}  // namespace internal

class Channel : public internal::ClientChannel {};

namespace internal {

ClientChannel& CoreOf(const Channel& channel) { return const_cast<Channel&>(channel); }

struct CallParts {};

// Has a context, as a server's call does.
class ContextAccess {
 public:
  ServerContext context{method_, cancel_, peer_, parts_};

 private:
  CallParts parts_;
  MethodDescriptor method_{"test.Test/Test", Idempotency::kUnknown};
  CancelScope cancel_;
  std::string peer_;
};

// A call keeps its options in its storage, and ends as soon as it begins.
struct InPlaceCall::Terms {
  CallOptions options;
};

InPlaceCall::InPlaceCall(ClientChannel& channel, const MethodDescriptor& method,
                         CallOptions&& options)
    : channel_(&channel), method_(&method), stage_(Stage::kNewWithTerms) {
  new (storage_) Terms(std::move(options));
}

InPlaceCall::InPlaceCall(ClientChannel& channel, const MethodDescriptor& method)
    : InPlaceCall(channel, method, CallOptions()) {}

InPlaceCall::InPlaceCall(InPlaceCall&& other) noexcept
    : InPlaceCall(*other.channel_, *other.method_, std::move(other.terms().options)) {}

InPlaceCall::~InPlaceCall() { terms().~Terms(); }

std::coroutine_handle<> InPlaceCall::Begin(PromiseBase& caller,
                                           const google::protobuf::MessageLite& request,
                                           google::protobuf::MessageLite& reply,
                                           PayloadSink payload) {
  channel_->method = method_;
  channel_->request = &request;
  channel_->reply = &reply;
  channel_->serialized_request = request.SerializeAsString();
  channel_->options = std::move(terms().options);
  if (channel_->answer.ok()) reply.ParseFromString(channel_->serialized_request);
  payload.Set(Buffer(), channel_->answers_payload);
  return caller.handle;
}

absl::Status InPlaceCall::TakeStatus() { return channel_->answer; }

}  // namespace internal

absl::Status ServerContext::NotExecuted(absl::Status status) {
  return WithOutcome(std::move(status), Outcome::kNotExecuted);
}

namespace testing::unary::v1 {
namespace {

using std::chrono_literals::operator""ms;
using ::testing::_;
using ::testing::Return;

SayRequest RequestOf(const std::string& text) {
  SayRequest request;
  request.set_text(text);
  return request;
}

class StubTest : public ::testing::Test {
 protected:
  Channel channel_;
  Echo::Stub stub_{channel_};
  internal::ManualScheduler scheduler_;
};

TEST_F(StubTest, EachMethodSendsItsOwnFullName) {
  SayRequest request = RequestOf("a");
  scheduler_.Run(stub_.Say(request)).IgnoreError();
  EXPECT_STREQ("verbena.testing.unary.v1.Echo/Say", channel_.method->full_name);
  EXPECT_EQ(internal::MethodId("verbena.testing.unary.v1.Echo/Say"), channel_.method->id);
  scheduler_.Run(stub_.Shout(request)).IgnoreError();
  EXPECT_STREQ("verbena.testing.unary.v1.Echo/Shout", channel_.method->full_name);
  scheduler_.Run(Echo2::Stub(channel_).Say(request)).IgnoreError();
  EXPECT_STREQ("verbena.testing.unary.v1.Echo2/Say", channel_.method->full_name);
}

TEST_F(StubTest, IdempotencyIsTheMethodsOwn) {
  options::v1::Options::Stub stub(channel_);
  options::v1::Message request;
  scheduler_.Run(stub.Plain(request)).IgnoreError();
  EXPECT_EQ(Idempotency::kUnknown, channel_.method->idempotency);
  scheduler_.Run(stub.Read(request)).IgnoreError();
  EXPECT_EQ(Idempotency::kNoSideEffects, channel_.method->idempotency);
  scheduler_.Run(stub.Write(request)).IgnoreError();
  EXPECT_EQ(Idempotency::kIdempotent, channel_.method->idempotency);
}

TEST_F(StubTest, ABorrowedRequestIsNotCopied) {
  SayRequest request = RequestOf("borrowed");
  absl::StatusOr<SayReply> reply = scheduler_.Run(stub_.Say(request));
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ("borrowed", reply->text());
  EXPECT_EQ(&request, channel_.request);
}

TEST_F(StubTest, AnOwnedRequestOutlivesTheCallersOne) {
  const std::string text(1000, 'x');
  auto request = std::make_unique<SayRequest>(RequestOf(text));
  auto call = stub_.Say(std::move(*request));
  request.reset();
  absl::StatusOr<SayReply> reply = scheduler_.Run(std::move(call));
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(text, reply->text());
}

TEST_F(StubTest, ACallThatMovesKeepsItsRequestAndItsReply) {
  auto call = stub_.Say(RequestOf("moved"));
  std::vector<decltype(call)> calls;
  calls.push_back(std::move(call));
  calls.push_back(stub_.Say(RequestOf("too")));
  std::vector<absl::StatusOr<SayReply>> replies = scheduler_.Run(WhenAll(std::move(calls)));
  EXPECT_EQ("moved", replies[0]->text());
  EXPECT_EQ("too", replies[1]->text());
}

TEST_F(StubTest, ACallBecomesATaskWhereOneIsWanted) {
  Task<absl::StatusOr<SayReply>> call = stub_.Say(RequestOf("later"));
  EXPECT_EQ("later", scheduler_.Run(std::move(call))->text());
}

TEST_F(StubTest, TheCallersReplyIsFilledItself) {
  SayRequest request = RequestOf("filled");
  SayReply reply;
  EXPECT_TRUE(scheduler_.Run(stub_.Say(request, reply)).ok());
  EXPECT_EQ("filled", reply.text());
  EXPECT_EQ(&reply, channel_.reply);
  EXPECT_EQ(&request, channel_.request);
}

TEST_F(StubTest, AFailedCallGivesItsStatusInEveryForm) {
  channel_.answer = absl::UnavailableError("gone");
  SayRequest request = RequestOf("a");
  SayReply reply;
  EXPECT_EQ(channel_.answer, scheduler_.Run(stub_.Say(request)).status());
  EXPECT_EQ(channel_.answer, scheduler_.Run(stub_.Say(RequestOf("a"))).status());
  EXPECT_EQ(channel_.answer, scheduler_.Run(stub_.Say(request, reply)));
}

TEST_F(StubTest, OptionsReachTheCallInEveryForm) {
  const TimePoint when = internal::ManualScheduler::kStart + 5ms;
  CallInfo info;
  SayRequest request;
  SayReply reply;
  auto expect_and_clear = [&] {
    EXPECT_EQ(when, channel_.options.deadline.when());
    EXPECT_EQ(&info, channel_.options.info);
    channel_.options = {};
  };
  scheduler_.Run(stub_.Say(request, {.deadline = when, .info = &info})).IgnoreError();
  expect_and_clear();
  scheduler_.Run(stub_.Say(RequestOf("a"), {.deadline = when, .info = &info})).IgnoreError();
  expect_and_clear();
  scheduler_.Run(stub_.Say(request, reply, {.deadline = when, .info = &info})).IgnoreError();
  expect_and_clear();
}

TEST_F(StubTest, AnAdapterMakesTheCallsOfItsStub) {
  CallInfo info;
  Echo::StubAdapter adapter(stub_);
  const Echo::StubInterface& echo = adapter;
  absl::StatusOr<SayReply> reply =
      scheduler_.Run(echo.Shout(RequestOf("hey"), {.deadline = 5ms, .info = &info}));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ("hey", reply->text());
  EXPECT_STREQ("verbena.testing.unary.v1.Echo/Shout", channel_.method->full_name);
  EXPECT_EQ(&info, channel_.options.info);
  channel_.answer = absl::UnavailableError("gone");
  EXPECT_EQ(channel_.answer, scheduler_.Run(echo.Say(RequestOf("a"))).status());
}

TEST_F(StubTest, ATaskOfAnAdapterOwnsItsRequestAndOutlivesTheAdapter) {
  auto adapter = std::make_unique<Echo::StubAdapter>(stub_);
  auto request = std::make_unique<SayRequest>(RequestOf(std::string(1000, 'x')));
  Task<absl::StatusOr<SayReply>> call = adapter->Say(*request);
  request.reset();
  adapter.reset();
  EXPECT_EQ(std::string(1000, 'x'), scheduler_.Run(std::move(call))->text());
}

MATCHER_P(HasText, text, "") { return arg.text() == text; }

class MockTest : public ::testing::Test {
 protected:
  SayReply ReplyOf(const std::string& text) {
    SayReply reply;
    reply.set_text(text);
    return reply;
  }

  // Declared before the mock, whose Tasks end with it.
  internal::ManualScheduler scheduler_;
  ::testing::StrictMock<MockEchoStub> mock_;
  const Echo::StubInterface& echo_ = mock_;
};

TEST_F(MockTest, RepliesStatusesAndResultsAreAnswers) {
  EXPECT_CALL(mock_, Say(HasText("a"), _))
      .WillOnce(Return(ReplyOf("b")))
      .WillOnce(Return(absl::UnavailableError("gone")))
      .WillRepeatedly([&](const SayRequest& request, CallOptions&) -> absl::StatusOr<SayReply> {
        return ReplyOf(request.text() + "!");
      });
  EXPECT_EQ("b", scheduler_.Run(echo_.Say(RequestOf("a")))->text());
  EXPECT_EQ(absl::UnavailableError("gone"), scheduler_.Run(echo_.Say(RequestOf("a"))).status());
  EXPECT_EQ("a!", scheduler_.Run(echo_.Say(RequestOf("a")))->text());
}

TEST_F(MockTest, ACallIsExpectedWhenItIsAwaited) {
  Task<absl::StatusOr<SayReply>> call = echo_.Say(RequestOf("later"));
  EXPECT_CALL(mock_, Say).WillOnce(Return(ReplyOf("now")));
  EXPECT_EQ("now", scheduler_.Run(std::move(call))->text());
}

TEST_F(MockTest, AnAnswerMayAwaitAndUsesTheArgumentsUntilItsEnd) {
  CallInfo info;
  EXPECT_CALL(mock_, Shout)
      .WillOnce(testing::InvokeTask(
          [&](const SayRequest& request, CallOptions& options) -> Task<absl::StatusOr<SayReply>> {
            absl::Status slept = co_await Sleep(5ms);
            if (!slept.ok()) co_return slept;
            options.info->elapsed = 5ms;
            co_return ReplyOf(request.text());
          }));
  Task<absl::StatusOr<SayReply>> call = echo_.Shout(RequestOf("slow"), {.info = &info});
  const TimePoint start = scheduler_.Now();
  EXPECT_EQ("slow", scheduler_.Run(std::move(call))->text());
  EXPECT_EQ(scheduler_.Now() - start, 5ms);
  EXPECT_EQ(info.elapsed, 5ms);
}

TEST_F(MockTest, ACallWithoutAnActionSaysSo) {
  EXPECT_CALL(mock_, Say);
  EXPECT_EQ(absl::StatusCode::kUnimplemented, scheduler_.Run(echo_.Say({})).status().code());
}

class ShoutingService final : public Echo::Service {
 public:
  Task<absl::Status> Shout(ServerContext& context, const SayRequest& request,
                           SayReply& reply) override {
    context_ = &context;
    request_ = &request;
    reply.set_text(request.text() + "!");
    co_return absl::OkStatus();
  }

  ServerContext* context_ = nullptr;
  const SayRequest* request_ = nullptr;
};

TEST(ServiceTest, TheTableOfAServiceListsMethodsInOrder) {
  ShoutingService service;
  EXPECT_STREQ(Echo::kFullName, service.full_name());
  ASSERT_EQ(2u, service.methods().size());
  EXPECT_STREQ("verbena.testing.unary.v1.Echo/Say", service.methods()[0].descriptor->full_name);
  EXPECT_STREQ("verbena.testing.unary.v1.Echo/Shout", service.methods()[1].descriptor->full_name);
  EXPECT_EQ(&SayRequest::default_instance(), service.methods()[0].request_prototype);
  EXPECT_EQ(&SayReply::default_instance(), service.methods()[0].reply_prototype);
}

TEST(ServiceTest, AnInvokedMethodRunsTheOverrideOnTheVeryArguments) {
  ShoutingService service;
  internal::ContextAccess call;
  SayRequest request = RequestOf("hey");
  SayReply reply;
  internal::ManualScheduler scheduler;
  EXPECT_TRUE(
      scheduler.Run(service.methods()[1].invoke(service, call.context, request, reply)).ok());
  EXPECT_EQ("hey!", reply.text());
  EXPECT_EQ(&call.context, service.context_);
  EXPECT_EQ(&request, service.request_);
}

TEST(ServiceTest, AMethodLeftOutAnswersUnimplementedWithItsNameAndHasNotRun) {
  ShoutingService service;
  internal::ContextAccess call;
  SayRequest request;
  SayReply reply;
  internal::ManualScheduler scheduler;
  const absl::Status status =
      scheduler.Run(service.methods()[0].invoke(service, call.context, request, reply));
  EXPECT_EQ(absl::StatusCode::kUnimplemented, status.code());
  EXPECT_EQ("verbena.testing.unary.v1.Echo/Say is not implemented", status.message());
  EXPECT_EQ(Outcome::kNotExecuted, OutcomeOf(status));
}

TEST(ServiceTest, AServiceWithoutMethodsHasAnEmptyTable) {
  no_method::v1::Reserved::Service service;
  EXPECT_STREQ("verbena.testing.no_method.v1.Reserved", service.full_name());
  EXPECT_TRUE(service.methods().empty());
}

TEST(ServiceTest, ADescriptorSaysWhetherCallsAreDeduplicated) {
  options::v1::Options::Service service;
  for (const ServerMethod& method : service.methods()) {
    const std::string name = method.descriptor->full_name;
    EXPECT_EQ(method.descriptor->dedupe, name.ends_with("/Add") || name.ends_with("/Append"))
        << name;
    if (name.ends_with("/Append")) {
      EXPECT_TRUE(method.descriptor->request_payload());
    }
  }
}

}  // namespace
}  // namespace testing::unary::v1
}  // namespace verbena
