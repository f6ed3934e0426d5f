#include "tests/rpc/counter_service.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "gtest/gtest.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/transport/base/status.h"

namespace verbena {

Task<absl::Status> CounterService::Add(ServerContext& context, const testing::AddRequest& request,
                                       testing::AddReply& reply) {
  reply.set_count(++runs);
  last_name = context.dedupe_id();
  acknowledged_below = context.dedupe_acknowledged_below();
  highest = context.dedupe_highest();
  if (handler) co_return co_await handler(context, request, reply);
  co_return absl::OkStatus();
}

Task<absl::Status> CounterService::Subtract(ServerContext&, const testing::AddRequest&,
                                            testing::AddReply& reply) {
  reply.set_count(++runs);
  co_return absl::OkStatus();
}

Task<absl::Status> CounterService::Swap(ServerContext& context, const testing::AddRequest& request,
                                        testing::AddReply& reply) {
  reply.set_count(++runs);
  if (handler) co_return co_await handler(context, request, reply);
  const Buffer taken = context.TakeRequestPayload();
  VERBENA_CO_ASSIGN_OR_RETURN(Buffer payload, co_await context.AllocateBuffer(taken.size()));
  std::memcpy(payload.data(), taken.data(), taken.size());
  payload.data()[0] = static_cast<char>(runs);
  context.SetResponsePayload(std::move(payload));
  co_return absl::OkStatus();
}

Task<absl::Status> CounterService::Count(ServerContext& context, const testing::AddRequest&,
                                         testing::AddReply& reply) {
  EXPECT_EQ(context.dedupe_id(), std::nullopt);
  reply.set_count(++runs);
  co_return absl::OkStatus();
}

CounterTest::~CounterTest() {
  stub_.reset();
  StopAll();
}

void CounterTest::StartServer(DedupeOptions dedupe, LinkLimits limits) {
  server_runtime_ = StartRuntime({.limits = limits}, breaker_.device());
  ServeWith(service_, {.address = port_.address(), .dedupe = dedupe});
}

void CounterTest::StartClient() {
  client_runtime_ = StartRuntime({}, breaker_.device());
  channel_ = std::make_unique<Channel>(*client_runtime_, server_->address());
  stub_ = std::make_unique<testing::Counter::Stub>(*channel_);
}

void CounterTest::StartBoth(DedupeOptions dedupe) {
  StartServer(dedupe);
  StartClient();
}

void CounterTest::RestartServer(DedupeOptions dedupe) {
  server_.reset();
  ServeWith(service_, {.address = port_.address(), .dedupe = dedupe});
  EXPECT_TRUE(Run(AwaitLink()).ok());
}

Task<absl::StatusOr<uint64_t>> CounterTest::AddWith(CallOptions options, uint64_t call) {
  testing::AddRequest request;
  request.set_call(call);
  absl::StatusOr<testing::AddReply> reply = co_await stub_->Add(request, std::move(options));
  if (!reply.ok()) co_return reply.status();
  co_return reply->count();
}

absl::StatusOr<uint64_t> CounterTest::Add(DedupeToken& token, uint64_t call) {
  return Run(AddWith({.dedupe = &token}, call));
}

Task<absl::Status> CounterTest::Token::End(std::unique_ptr<DedupeToken> token) {
  token.reset();
  co_return absl::OkStatus();
}

}  // namespace verbena
