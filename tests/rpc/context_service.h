// ContextService: a test service whose Echo does what a test tells it to. ContextTest: a fixture
// with a server and a client of it, in one process.

#ifndef VERBENA_TESTS_RPC_CONTEXT_SERVICE_H_
#define VERBENA_TESTS_RPC_CONTEXT_SERVICE_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "tests/rpc/any_handler.h"
#include "tests/rpc/runtime_pair.h"
#include "tests/rpc/testing.verbena.pb.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/status.h"

namespace verbena {

// A call's context as its handler saw it.
struct SeenContext {
  Metadata metadata;
  std::optional<TraceContext> trace;
  Priority priority = Priority::kNormal;
  std::optional<RequestId> request_id;
  Deadline deadline;

  static SeenContext Of(const ServerContext& context) {
    SeenContext seen;
    seen.metadata = context.metadata();
    if (context.trace() != nullptr) seen.trace = *context.trace();
    seen.priority = context.priority();
    seen.request_id = context.request_id();
    seen.deadline = context.deadline();
    return seen;
  }
};

class ContextService final : public testing::Testing::Service {
 public:
  using Handler = AnyHandler<ServerContext&, const testing::EchoRequest&, testing::EchoReply&>;

  Task<absl::Status> Echo(ServerContext& context, const testing::EchoRequest& request,
                          testing::EchoReply& reply) override {
    seen = SeenContext::Of(context);
    reply.set_number(request.number());
    reply.set_data(request.data());
    if (handler) co_return co_await handler(context, request, reply);
    co_return absl::OkStatus();
  }

  // Both are set and read while no call runs.
  Handler handler;
  SeenContext seen;  // by the last Echo that began
};

class ContextTest : public RuntimePair {
 protected:
  void StartServer(ServerOptions options = {}, RuntimeOptions runtime = {}) {
    server_runtime_ = StartRuntime(std::move(runtime));
    ServeWith(service_, std::move(options));
  }
  void StartClient(ChannelOptions channel = {}, RuntimeOptions runtime = {}) {
    client_runtime_ = StartRuntime(std::move(runtime));
    channel_ = std::make_unique<Channel>(*client_runtime_, server_->address(), std::move(channel));
    stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
  }
  void StartBoth() {
    StartServer();
    StartClient();
  }

  // One Echo of `bytes`, which come back.
  Task<absl::Status> EchoWith(CallOptions options, size_t bytes = 5) {
    testing::EchoRequest request;
    request.set_data(std::string(bytes, 'e'));
    absl::StatusOr<testing::EchoReply> reply = co_await stub_->Echo(request, std::move(options));
    if (!reply.ok()) co_return reply.status();
    co_return reply->data() == request.data() ? absl::OkStatus()
                                              : absl::DataLossError("another reply");
  }

  ContextService service_;
  std::unique_ptr<testing::Testing::Stub> stub_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_RPC_CONTEXT_SERVICE_H_
