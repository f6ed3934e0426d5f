// ContextService: a test service whose Echo does what a test tells it to. ContextTest: a fixture
// with a server and a client of it, in one process.

#ifndef VERBENA_TESTS_RPC_CONTEXT_SERVICE_H_
#define VERBENA_TESTS_RPC_CONTEXT_SERVICE_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "tests/rpc/runtime_pair.h"
#include "tests/rpc/testing.verbena.pb.h"
#include "tests/support/any_handler.h"
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

  static SeenContext Of(const ServerContext& context);
};

class ContextService final : public testing::Testing::Service {
 public:
  using Handler = AnyHandler<ServerContext&, const testing::EchoRequest&, testing::EchoReply&>;

  Task<absl::Status> Echo(ServerContext& context, const testing::EchoRequest& request,
                          testing::EchoReply& reply) override;

  // Both are set and read while no call runs.
  Handler handler;
  SeenContext seen;  // by the last Echo that began
};

class ContextTest : public RuntimePair {
 protected:
  void StartServer(ServerOptions options = {}, RuntimeOptions runtime = {});
  void StartClient(ChannelOptions channel = {}, RuntimeOptions runtime = {});
  void StartBoth();

  // One Echo of `bytes`, which come back.
  Task<absl::Status> EchoWith(CallOptions options, size_t bytes = 5);

  ContextService service_;
  std::unique_ptr<testing::Testing::Stub> stub_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_RPC_CONTEXT_SERVICE_H_
