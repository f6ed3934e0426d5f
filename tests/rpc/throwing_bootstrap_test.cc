// A server whose bootstrap throws goes on accepting, and shuts down like any other.

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/rpc/testing_service.h"
#include "tests/transport/base/captured_log.h"
#include "tests/transport/connect/passing_stream.h"
#include "verbena/transport/connect/local_bootstrap.h"

namespace verbena {
namespace throwing_bootstrap_test {

// Faults to come: each counts down to 0 as it strikes.
struct Faults {
  std::atomic<int> accepts{0};
  // The message whose receipt throws, from 1; 0: none.
  std::atomic<int> receive{0};
};

bool Strikes(std::atomic<int>& left) {
  if (left == 0) return false;
  --left;
  return true;
}

class ThrowingStream final : public PassingStream {
 public:
  ThrowingStream(std::unique_ptr<MessageStream> stream, Faults& faults)
      : PassingStream(std::move(stream)), faults_(faults) {}

  VERBENA_CORO_WRAPPER Task<absl::StatusOr<std::string>> Receive() override {
    if (++receives_ == faults_.receive) throw std::runtime_error("out of cheese");
    return PassingStream::Receive();
  }

 private:
  Faults& faults_;
  int receives_ = 0;
};

class ThrowingListener final : public MessageListener {
 public:
  ThrowingListener(std::unique_ptr<MessageListener> listener, Faults& faults)
      : listener_(std::move(listener)), faults_(faults) {}

  Task<absl::StatusOr<std::unique_ptr<MessageStream>>> Accept() override {
    if (Strikes(faults_.accepts)) throw std::runtime_error("out of cheese");
    auto stream = co_await listener_->Accept();
    if (!stream.ok()) co_return stream.status();
    co_return std::make_unique<ThrowingStream>(*std::move(stream), faults_);
  }
  void Close() override { listener_->Close(); }
  const std::string& address() const override { return listener_->address(); }

 private:
  const std::unique_ptr<MessageListener> listener_;
  Faults& faults_;
};

class ThrowingBootstrap final : public Bootstrap {
 public:
  ThrowingBootstrap(LocalNetwork& network, Faults& faults) : bootstrap_(network), faults_(faults) {}

  VERBENA_CORO_WRAPPER Task<absl::StatusOr<std::unique_ptr<MessageStream>>> Connect(
      std::string target) override {
    return bootstrap_.Connect(std::move(target));
  }
  absl::StatusOr<std::unique_ptr<MessageListener>> Listen(const std::string& address) override {
    absl::StatusOr<std::unique_ptr<MessageListener>> listener = bootstrap_.Listen(address);
    if (!listener.ok()) return listener.status();
    return std::make_unique<ThrowingListener>(*std::move(listener), faults_);
  }

 private:
  LocalBootstrap bootstrap_;
  Faults& faults_;
};

class ThrowingBootstrapTest : public RpcTest {
 protected:
  void Start() {
    StartServer({.address = "server"}, {.use_bootstrap = &bootstrap_});
    StartClient({.use_bootstrap = &bootstrap_});
  }
  void TearDown() override {
    stub_.reset();
    channel_.reset();
    server_.reset();
    client_runtime_.reset();
    server_runtime_.reset();
  }
  void AwaitLine(CapturedLog& log, const std::string& text) {
    Eventually(
        [&] {
          for (const std::string& line : log.Take()) {
            if (line.find(text) != line.npos) return true;
          }
          return false;
        },
        text.c_str());
  }
  void ExpectService() {
    Eventually([this] { return Run(EchoOnce(1, "hello")).ok(); }, "the server serves");
  }

  LocalNetwork network_;
  Faults faults_;
  ThrowingBootstrap bootstrap_{network_, faults_};
};

TEST_F(ThrowingBootstrapTest, AServerGoesOnAcceptingWhenItsBootstrapThrew) {
  CapturedLog log;
  faults_.accepts = 2;
  Start();
  AwaitLine(log, "accepting at server: INTERNAL: the bootstrap threw: out of cheese");
  ExpectService();
}

TEST_F(ThrowingBootstrapTest, AServerWhoseBootstrapAlwaysThrowsShutsDown) {
  CapturedLog log;
  faults_.accepts = 1'000'000;
  Start();
  AwaitLine(log, "the bootstrap threw");
  EXPECT_TRUE(server_->Shutdown(Duration::zero()).empty());
}

// The offer is read before the server chooses an executor, the client's Ready after.
TEST_F(ThrowingBootstrapTest, AHandshakeThatThrowsFailsAloneAndLeavesNoSession) {
  CapturedLog log;
  for (const int message : {1, 2}) {
    faults_.receive = message;
    Start();
    EXPECT_FALSE(Run(EchoOnce(1, "hello")).ok());
    AwaitLine(log, message == 1 ? "a handshake at server threw: out of cheese"
                                : "its handshake threw: out of cheese");
    EXPECT_GE(server_->stats().handshakes_failed, message == 1 ? 1u : 0u);
    faults_.receive = 0;
    ExpectService();
    TearDown();
  }
}

}  // namespace throwing_bootstrap_test
}  // namespace verbena
