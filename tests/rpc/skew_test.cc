// A client and a server whose .protos differ in a method: where they cannot understand each other,
// that call fails alone, and says why. The link and its other calls go on, also if the server is of
// a version that tells no shapes.
//
// The server is a program of its own, skew_server_program: one process cannot hold both .protos.

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/rpc/runtime_pair.h"
#include "tests/rpc/skew_client.verbena.pb.h"
#include "tests/transport/connect/passing_stream.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/connect/tcp_bootstrap.h"
#include "verbena/transport/coro/scope.h"

namespace verbena {
namespace {

using testing::skew::Answer;
using testing::skew::Ask;
using testing::skew::Skew;

// skew_server_program, until it is destroyed.
class ServerProgram {
 public:
  ServerProgram() {
    int out[2];
    EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(out[1], STDOUT_FILENO);
      execl("tests/rpc/skew_server_program", "skew_server_program", "127.0.0.1:0", nullptr);
      _exit(127);
    }
    close(out[1]);
    for (char c = 0; read(out[0], &c, 1) == 1 && c != '\n';) address_.push_back(c);
    close(out[0]);
    EXPECT_FALSE(address_.empty()) << "skew_server_program did not start";
  }
  ServerProgram(const ServerProgram&) = delete;
  ServerProgram& operator=(const ServerProgram&) = delete;
  ~ServerProgram() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  const std::string& address() const { return address_; }

 private:
  pid_t pid_ = -1;
  std::string address_;
};

// What an older server would send: an Acceptance without shapes.
class ShapelessStream final : public PassingStream {
 public:
  using PassingStream::PassingStream;

  Task<absl::StatusOr<std::string>> Receive() override {
    VERBENA_CO_ASSIGN_OR_RETURN(const std::string bytes, co_await PassingStream::Receive());
    absl::StatusOr<internal::LinkParameters> answer = internal::ParseReply(bytes, {});
    EXPECT_TRUE(answer.ok()) << answer.status();
    if (!answer.ok()) co_return bytes;
    for (internal::OfferedMethod& method : answer->methods) {
      EXPECT_NE(std::exchange(method.shape, internal::OfferedMethod::kShapeUntold),
                internal::OfferedMethod::kShapeUntold);
    }
    co_return internal::EncodeAcceptance(*answer, *answer);
  }
};

class ShapelessBootstrap final : public Bootstrap {
 public:
  Task<absl::StatusOr<std::unique_ptr<MessageStream>>> Connect(std::string target) override {
    auto stream = co_await tcp_->Connect(std::move(target));
    if (!stream.ok()) co_return stream.status();
    co_return std::make_unique<ShapelessStream>(*std::move(stream));
  }
  absl::StatusOr<std::unique_ptr<MessageListener>> Listen(const std::string& address) override {
    return tcp_->Listen(address);
  }

 private:
  const std::unique_ptr<TcpBootstrap> tcp_ = *TcpBootstrap::Create();
};

// How a call ends.
struct Ending {
  absl::StatusCode code;
  Outcome outcome;
  const char* says;
};

constexpr char kResponsesDiffer[] =
    "have payloads at the server and none at the client; build both sides from one .proto";
constexpr Ending kGoesWell = {absl::StatusCode::kOk, Outcome::kExecuted, ""};

constexpr Ending Refused(Outcome outcome, const char* says) {
  return {absl::StatusCode::kUnimplemented, outcome, says};
}

// More than a frame takes.
constexpr uint32_t kLarge = 100'000;

class SkewTest : public RuntimePair, public ::testing::WithParamInterface<bool> {
 protected:
  SkewTest() {
    RuntimeOptions options;
    if (!told()) options.use_bootstrap = &shapeless_;
    client_runtime_ = StartRuntime(std::move(options));
    channel_ = std::make_unique<Channel>(*client_runtime_, server_program_.address());
    stub_.emplace(*channel_);
  }
  ~SkewTest() override { StopAll(); }

  // Whether the server tells the shapes of its methods.
  bool told() const { return GetParam(); }

  // Runs `call` beside another one over the same link, which must go on.
  void ExpectBesideAnother(const Ending& wanted, Task<absl::Status> call) {
    absl::Status held, status;
    auto run = [&]() -> Task<absl::Status> {
      TaskScope scope(client_runtime_->executor(0));
      scope.Spawn([&]() -> Task<void> { held = (co_await stub_->Hold(Ask())).status(); });
      status = co_await std::move(call);
      VERBENA_CO_RETURN_IF_ERROR((co_await stub_->Release(Ask())).status());
      co_await scope.Join();
      co_return absl::OkStatus();
    };
    EXPECT_EQ(Run(run()), absl::OkStatus());
    EXPECT_EQ(held, absl::OkStatus());
    EXPECT_EQ(status.code(), wanted.code) << status;
    if (wanted.code == absl::StatusCode::kOk) return;
    EXPECT_EQ(OutcomeOf(status), wanted.outcome) << status;
    EXPECT_NE(status.message().find(wanted.says), absl::string_view::npos) << status;
    EXPECT_NE(status.message().find("build both sides from one .proto"), absl::string_view::npos)
        << status;
  }
  // `told` if the server tells shapes, otherwise the second.
  const Ending& Either(const Ending& if_told, const Ending& otherwise) const {
    return told() ? if_told : otherwise;
  }
  Task<absl::StatusOr<CallOptions>> WithRequestPayload() {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer payload, co_await channel_->AllocateBuffer(100));
    co_return CallOptions{.request_payload = std::move(payload)};
  }

  static Ask AskFor(uint32_t payload_bytes) {
    Ask ask;
    ask.set_payload_bytes(payload_bytes);
    return ask;
  }

  ServerProgram server_program_;  // it forks before there are threads
  ShapelessBootstrap shapeless_;
  std::optional<Skew::Stub> stub_;
};

TEST_P(SkewTest, AResponsePayloadThatTheClientDoesNotKnow) {
  auto get = [&]() -> Task<absl::Status> {
    co_return (co_await stub_->GainsResponsePayload(AskFor(100))).status();
  };
  ExpectBesideAnother(Either(Refused(Outcome::kNotExecuted, kResponsesDiffer),
                             Refused(Outcome::kExecuted, kResponsesDiffer)),
                      get());
}

// One for which the server asks for memory.
TEST_P(SkewTest, ALargeResponsePayloadThatTheClientDoesNotKnow) {
  auto get = [&]() -> Task<absl::Status> {
    co_return (co_await stub_->GainsResponsePayload(AskFor(kLarge))).status();
  };
  ExpectBesideAnother(Either(Refused(Outcome::kNotExecuted, kResponsesDiffer),
                             Refused(Outcome::kMaybeExecuted, kResponsesDiffer)),
                      get());
}

TEST_P(SkewTest, ARequestPayloadThatTheClientDoesNotKnowIsNotMissed) {
  auto put = [&]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(const Answer answer, co_await stub_->GainsRequestPayload(Ask()));
    EXPECT_FALSE(answer.has_payload());
    co_return absl::OkStatus();
  };
  ExpectBesideAnother(kGoesWell, put());
}

TEST_P(SkewTest, AResponsePayloadThatTheServerDoesNotKnowIsNotMissed) {
  auto get = [&]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(const WithPayload<Answer> answer,
                                co_await stub_->LosesResponsePayload(Ask()));
    EXPECT_FALSE(answer.has_payload);
    co_return absl::OkStatus();
  };
  ExpectBesideAnother(kGoesWell, get());
}

TEST_P(SkewTest, ARequestPayloadThatTheServerDoesNotKnow) {
  auto put = [&]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(CallOptions options, co_await WithRequestPayload());
    co_return (co_await stub_->LosesRequestPayload(Ask(), std::move(options))).status();
  };
  ExpectBesideAnother(
      Refused(Outcome::kNotExecuted, "have payloads at the client and none at the server; build"),
      put());
}

TEST_P(SkewTest, AResponsePayloadBesideARequestPayloadThatBothKnow) {
  for (const uint32_t bytes : {0u, 100u}) {
    auto swap = [&]() -> Task<absl::Status> {
      VERBENA_CO_ASSIGN_OR_RETURN(CallOptions options, co_await WithRequestPayload());
      co_return (co_await stub_->GainsSecondPayload(AskFor(bytes), std::move(options))).status();
    };
    ExpectBesideAnother(Either(Refused(Outcome::kNotExecuted, kResponsesDiffer),
                               Refused(Outcome::kExecuted, kResponsesDiffer)),
                        swap());
  }
}

TEST_P(SkewTest, PayloadsOfAServersStreamThatTheClientDoesNotKnow) {
  auto read = [&]() -> Task<absl::Status> {
    auto reader = stub_->ReplyStreamGainsPayload(AskFor(100));
    EXPECT_FALSE((co_await reader.Read()).has_value());
    co_return co_await reader.Finish();
  };
  ExpectBesideAnother(
      Either(Refused(Outcome::kNotExecuted, "responses have payloads at the server"),
             Refused(Outcome::kMaybeExecuted, "have payloads where they are sent and none where")),
      read());
}

TEST_P(SkewTest, PayloadsOfAClientsStreamThatTheServerDoesNotKnow) {
  auto write = [&]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(const Buffer payload, co_await channel_->AllocateBuffer(100));
    auto writer = stub_->RequestStreamLosesPayload();
    (void)co_await writer.Write(Ask(), payload.view());
    co_return (co_await writer.Finish()).status();
  };
  ExpectBesideAnother(
      Either(Refused(Outcome::kNotExecuted, "requests have payloads at the client"),
             Refused(Outcome::kExecuted, "have payloads where they are sent and none where")),
      write());
}

TEST_P(SkewTest, AUnaryMethodThatStreamsAtTheServer) {
  auto call = [&]() -> Task<absl::Status> {
    co_return (co_await stub_->BecomesStream(Ask())).status();
  };
  ExpectBesideAnother(
      Either(Refused(Outcome::kNotExecuted, "unary at the client and server streaming at the"),
             Refused(Outcome::kNotExecuted, "stream")),
      call());
}

TEST_P(SkewTest, AStreamThatIsUnaryAtTheServer) {
  auto call = [&]() -> Task<absl::Status> {
    auto stream = stub_->WasStream();
    (void)co_await stream.Write(Ask());
    co_return co_await stream.Finish();
  };
  ExpectBesideAnother(
      Either(Refused(Outcome::kNotExecuted, "bidirectional streaming at the client and unary at"),
             Refused(Outcome::kNotExecuted, "stream")),
      call());
}

TEST_P(SkewTest, AMethodThatTheServiceDoesNotOverrideHasNotRun) {
  auto call = [&]() -> Task<absl::Status> { co_return (co_await stub_->LeftOut(Ask())).status(); };
  auto stream = [&]() -> Task<absl::Status> {
    auto left_out = stub_->LeftOutStream();
    co_return co_await left_out.Finish();
  };
  for (const absl::Status& status : {Run(call()), Run(stream())}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted) << status;
  }
}

INSTANTIATE_TEST_SUITE_P(, SkewTest, ::testing::Values(true, false), [](const auto& info) {
  return info.param ? "ShapesTold" : "ShapesUntold";
});

}  // namespace
}  // namespace verbena
