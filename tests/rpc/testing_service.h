// TestingService: the test service for calls without payloads. RpcTest: a fixture with a server and
// a client of this service, in one process.

#ifndef VERBENA_TESTS_RPC_TESTING_SERVICE_H_
#define VERBENA_TESTS_RPC_TESTING_SERVICE_H_

#include <atomic>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "tests/rpc/runtime_pair.h"
#include "tests/rpc/testing.verbena.pb.h"
#include "tests/support/watched.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/status.h"

namespace verbena {

class TestingService final : public testing::Testing::Service {
 public:
  Task<absl::Status> Echo(ServerContext&, const testing::EchoRequest& request,
                          testing::EchoReply& reply) override;
  Task<absl::Status> Fail(ServerContext& context, const testing::FailRequest& request,
                          testing::Empty&) override;
  Task<absl::Status> Throw(ServerContext&, const testing::Empty&, testing::Empty&) override;
  Task<absl::Status> Wait(ServerContext& context, const testing::WaitRequest& request,
                          testing::Empty&) override;
  Task<absl::Status> Linger(ServerContext&, const testing::Empty&, testing::Empty&) override;
  Task<absl::Status> Inflate(ServerContext&, const testing::InflateRequest& request,
                             testing::EchoReply& reply) override;
  Task<absl::Status> Deadline(ServerContext& context, const testing::Empty&,
                              testing::DeadlineReply& reply) override;
  Task<absl::Status> Count(ServerContext&, const testing::Empty&,
                           testing::CountReply& reply) override;

  uint64_t echoes() const { return echoes_; }

  Watched<int> waiting;
  std::atomic<int> cancelled{0};
  Watched<int> lingering;
  Watched<bool> let_go;  // Linger returns
  // The reply of the last Inflate, for tests of handlers that keep their reply too long. For the
  // server's executor only.
  testing::EchoReply* last_inflated = nullptr;
  std::atomic<int> last_cancel{0};

 private:
  std::atomic<uint64_t> echoes_{0};
};

class RpcTest : public RuntimePair {
 protected:
  // Handlers may run to the end of their server, which must come before that of service_.
  ~RpcTest() override;

  void StartServer(ServerOptions options = {}, RuntimeOptions runtime = {});

  void Serve(ServerOptions options = {}) { ServeWith(service_, std::move(options)); }

  void StartClient(RuntimeOptions runtime = {}, ChannelOptions channel = {});
  void StartBoth();
  Task<absl::Status> EchoOnce(uint64_t number, std::string data);

  TestingService service_;
  std::unique_ptr<testing::Testing::Stub> stub_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_RPC_TESTING_SERVICE_H_
