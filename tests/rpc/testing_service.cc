#include "tests/rpc/testing_service.h"

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>

#include "gtest/gtest.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena {

Task<absl::Status> TestingService::Echo(ServerContext&, const testing::EchoRequest& request,
                                        testing::EchoReply& reply) {
  reply.set_number(request.number());
  reply.set_data(request.data());
  ++echoes_;
  co_return absl::OkStatus();
}

Task<absl::Status> TestingService::Fail(ServerContext& context, const testing::FailRequest& request,
                                        testing::Empty&) {
  absl::Status status(static_cast<absl::StatusCode>(request.code()), request.message());
  if (!request.detail_url().empty()) {
    std::string detail = request.detail();
    if (detail.size() < request.detail_bytes()) detail.resize(request.detail_bytes(), 'd');
    status.SetPayload(request.detail_url(), absl::Cord(detail));
  }
  if (request.retry_after_us() != 0) {
    status = WithRetryAfter(status, std::chrono::microseconds(request.retry_after_us()));
  }
  if (!request.not_executed()) co_return status;
  const absl::Status refused = context.NotExecuted(status);
  co_return request.goes_on() ? status : refused;
}

Task<absl::Status> TestingService::Throw(ServerContext&, const testing::Empty&, testing::Empty&) {
  throw std::runtime_error("out of cheese");
  co_return absl::OkStatus();
}

Task<absl::Status> TestingService::Wait(ServerContext& context, const testing::WaitRequest& request,
                                        testing::Empty&) {
  ++waiting;
  const TimePoint until = request.wait_us() == 0
                              ? kNever
                              : Clock::Real().Now() + std::chrono::microseconds(request.wait_us());
  absl::Status slept = co_await SleepUntil(until);
  if (!slept.ok()) {
    EXPECT_TRUE(context.cancelled());
    last_cancel = static_cast<int>(slept.code());
    ++cancelled;
  }
  --waiting;
  co_return slept;
}

Task<absl::Status> TestingService::Linger(ServerContext&, const testing::Empty&, testing::Empty&) {
  ++lingering;
  CancelScope shield;
  absl::Status ended = co_await let_go.Until(true).In(&shield);
  --lingering;
  co_return ended;
}

Task<absl::Status> TestingService::Inflate(ServerContext&, const testing::InflateRequest& request,
                                           testing::EchoReply& reply) {
  reply.mutable_data()->assign(request.reply_bytes(), 'x');
  last_inflated = &reply;
  co_return absl::OkStatus();
}

Task<absl::Status> TestingService::Deadline(ServerContext& context, const testing::Empty&,
                                            testing::DeadlineReply& reply) {
  reply.set_is_set(context.deadline().is_set());
  if (context.deadline().is_set()) {
    reply.set_left_us(std::chrono::duration_cast<std::chrono::microseconds>(
                          context.deadline().when() - Clock::Real().Now())
                          .count());
  }
  co_return absl::OkStatus();
}

Task<absl::Status> TestingService::Count(ServerContext&, const testing::Empty&,
                                         testing::CountReply& reply) {
  reply.set_echoes(echoes_);
  co_return absl::OkStatus();
}

RpcTest::~RpcTest() {
  stub_.reset();
  StopAll();
}

void RpcTest::StartServer(ServerOptions options, RuntimeOptions runtime) {
  server_runtime_ = StartRuntime(std::move(runtime));
  Serve(std::move(options));
}

void RpcTest::StartClient(RuntimeOptions runtime, ChannelOptions channel) {
  client_runtime_ = StartRuntime(std::move(runtime));
  channel_ = std::make_unique<Channel>(*client_runtime_, server_->address(), channel);
  stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
}

void RpcTest::StartBoth() {
  StartServer();
  StartClient();
}

Task<absl::Status> RpcTest::EchoOnce(uint64_t number, std::string data) {
  testing::EchoRequest request;
  request.set_number(number);
  request.set_data(std::move(data));
  absl::StatusOr<testing::EchoReply> reply = co_await stub_->Echo(request);
  if (!reply.ok()) co_return reply.status();
  if (reply->number() != number || reply->data() != request.data()) {
    co_return absl::DataLossError("the reply is not the request's");
  }
  co_return absl::OkStatus();
}

}  // namespace verbena
