#include "tests/rpc/context_service.h"

#include <memory>
#include <string>
#include <utility>

namespace verbena {

SeenContext SeenContext::Of(const ServerContext& context) {
  SeenContext seen;
  seen.metadata = context.metadata();
  if (context.trace() != nullptr) seen.trace = *context.trace();
  seen.priority = context.priority();
  seen.request_id = context.request_id();
  seen.deadline = context.deadline();
  return seen;
}

Task<absl::Status> ContextService::Echo(ServerContext& context, const testing::EchoRequest& request,
                                        testing::EchoReply& reply) {
  seen = SeenContext::Of(context);
  reply.set_number(request.number());
  reply.set_data(request.data());
  if (handler) co_return co_await handler(context, request, reply);
  co_return absl::OkStatus();
}

void ContextTest::StartServer(ServerOptions options, RuntimeOptions runtime) {
  server_runtime_ = StartRuntime(std::move(runtime));
  ServeWith(service_, std::move(options));
}

void ContextTest::StartClient(ChannelOptions channel, RuntimeOptions runtime) {
  client_runtime_ = StartRuntime(std::move(runtime));
  channel_ = std::make_unique<Channel>(*client_runtime_, server_->address(), std::move(channel));
  stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
}

void ContextTest::StartBoth() {
  StartServer();
  StartClient();
}

Task<absl::Status> ContextTest::EchoWith(CallOptions options, size_t bytes) {
  testing::EchoRequest request;
  request.set_data(std::string(bytes, 'e'));
  absl::StatusOr<testing::EchoReply> reply = co_await stub_->Echo(request, std::move(options));
  if (!reply.ok()) co_return reply.status();
  co_return reply->data() == request.data() ? absl::OkStatus()
                                            : absl::DataLossError("another reply");
}

}  // namespace verbena
