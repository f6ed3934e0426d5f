// TestingService: the test service for calls without payloads. RpcTest: a fixture with a server and
// a client of this service, in one process.

#ifndef VERBENA_TESTS_RPC_TESTING_SERVICE_H_
#define VERBENA_TESTS_RPC_TESTING_SERVICE_H_

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

#include "gtest/gtest.h"
#include "tests/rpc/runtime_pair.h"
#include "tests/rpc/testing.verbena.pb.h"
#include "tests/support/watched.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena {

class TestingService final : public testing::Testing::Service {
 public:
  Task<absl::Status> Echo(ServerContext&, const testing::EchoRequest& request,
                          testing::EchoReply& reply) override {
    reply.set_number(request.number());
    reply.set_data(request.data());
    ++echoes_;
    co_return absl::OkStatus();
  }

  Task<absl::Status> Fail(ServerContext& context, const testing::FailRequest& request,
                          testing::Empty&) override {
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

  Task<absl::Status> Throw(ServerContext&, const testing::Empty&, testing::Empty&) override {
    throw std::runtime_error("out of cheese");
    co_return absl::OkStatus();
  }

  Task<absl::Status> Wait(ServerContext& context, const testing::WaitRequest& request,
                          testing::Empty&) override {
    ++waiting;
    const TimePoint until =
        request.wait_us() == 0 ? kNever
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

  Task<absl::Status> Linger(ServerContext&, const testing::Empty&, testing::Empty&) override {
    ++lingering;
    CancelScope shield;
    absl::Status ended = co_await let_go.Until(true).In(&shield);
    --lingering;
    co_return ended;
  }

  Task<absl::Status> Inflate(ServerContext&, const testing::InflateRequest& request,
                             testing::EchoReply& reply) override {
    reply.mutable_data()->assign(request.reply_bytes(), 'x');
    last_inflated = &reply;
    co_return absl::OkStatus();
  }

  Task<absl::Status> Deadline(ServerContext& context, const testing::Empty&,
                              testing::DeadlineReply& reply) override {
    reply.set_is_set(context.deadline().is_set());
    if (context.deadline().is_set()) {
      reply.set_left_us(std::chrono::duration_cast<std::chrono::microseconds>(
                            context.deadline().when() - Clock::Real().Now())
                            .count());
    }
    co_return absl::OkStatus();
  }

  Task<absl::Status> Count(ServerContext&, const testing::Empty&,
                           testing::CountReply& reply) override {
    reply.set_echoes(echoes_);
    co_return absl::OkStatus();
  }

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
  ~RpcTest() override {
    stub_.reset();
    StopAll();
  }

  void StartServer(ServerOptions options = {}, RuntimeOptions runtime = {}) {
    server_runtime_ = StartRuntime(std::move(runtime));
    Serve(std::move(options));
  }

  void Serve(ServerOptions options = {}) { ServeWith(service_, std::move(options)); }

  void StartClient(RuntimeOptions runtime = {}, ChannelOptions channel = {}) {
    client_runtime_ = StartRuntime(std::move(runtime));
    channel_ = std::make_unique<Channel>(*client_runtime_, server_->address(), channel);
    stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
  }

  void StartBoth() {
    StartServer();
    StartClient();
  }

  Task<absl::Status> EchoOnce(uint64_t number, std::string data) {
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

  TestingService service_;
  std::unique_ptr<testing::Testing::Stub> stub_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_RPC_TESTING_SERVICE_H_
