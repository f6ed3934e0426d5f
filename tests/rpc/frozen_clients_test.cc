// A server's shutdown ends when Server::Shutdown() promises, a second after its grace at the
// latest, though its clients are frozen: their processes are stopped, and do not end. More clients
// make it take no longer and log no more.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/rpc/payload_service.h"
#include "tests/rpc/stream_service.h"
#include "tests/support/watched.h"
#include "verbena/rpc/testing/fake_clock.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena::internal {
namespace frozen_clients_test {

using std::chrono::hours;
using std::chrono::seconds;

constexpr int kClients = 6;
// More bytes than the sockets of a TCP wire hold.
constexpr size_t kReadBytes = 16 << 20;
constexpr int kReadsAtOnce = 2;
// The time that Server::Shutdown() promises to take at most beyond its grace.
constexpr seconds kBeyondGrace{1};

enum class Load {
  kNone,             // a link
  kStreamsAndReads,  // a stream that nobody reads, and payloads that are read again and again
};

// A client in a process of its own. The test forks it while it has no threads.
class ClientProcess {
 public:
  explicit ClientProcess(Load load) {
    int commands[2];
    int answers[2];
    EXPECT_EQ(pipe(commands), 0);
    EXPECT_EQ(pipe(answers), 0);
    pid_ = fork();
    if (pid_ == 0) Be(load, commands[0], answers[1]);
    close(commands[0]);
    close(answers[1]);
    commands_ = commands[1];
    answers_ = answers[0];
  }
  ClientProcess(const ClientProcess&) = delete;
  ~ClientProcess() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(commands_);
    close(answers_);
  }

  // Returns when the client has a link, the first item of its stream, and a payload of each of its
  // reads.
  void ConnectTo(const std::string& address) const {
    const std::string line = address + "\n";
    EXPECT_EQ(write(commands_, line.data(), line.size()), static_cast<ssize_t>(line.size()));
    char answer = 0;
    EXPECT_EQ(read(answers_, &answer, 1), 1) << "the client did not connect";
  }
  // Stops the client. Returns when all of its threads stand still.
  void Freeze() {
    ASSERT_GT(pid_, 0) << "there is no client";  // -1 would be every process
    EXPECT_EQ(kill(pid_, SIGSTOP), 0);
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
    if (WIFSTOPPED(status)) return;
    pid_ = -1;
    ADD_FAILURE() << "the client has ended";
  }

 private:
  // An exception ends the process: GoogleTest would run it as a second test.
  [[noreturn]] static void Be(Load load, int commands, int answers) noexcept {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::string address;
    for (char c; read(commands, &c, 1) == 1 && c != '\n';) address.push_back(c);
    if (address.empty()) _exit(0);
    // The client never gives up the server, which may be silent for long on a loaded machine.
    LinkLimits limits;
    limits.connect_timeout = hours(1);
    limits.ping_interval = hours(1);
    absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Start({.limits = limits});
    if (!runtime.ok()) _exit(1);
    Channel channel(**runtime, address);
    (void)(*runtime)->BlockOn(Work(channel, load, answers));
    _exit(1);
  }
  static Task<absl::Status> Work(Channel& channel, Load load, int answers) {
    const absl::Status connected = co_await channel.Connect({.wait_for_ready = true});
    if (!connected.ok()) _exit(1);
    testing::Streaming::Stub streams(channel);
    testing::CountRequest many;
    many.set_count(1'000'000);
    many.set_bytes(4000);
    Watched<int> answered;
    TaskScope scope(co_await CurrentContext());
    std::optional<ClientReader<testing::StreamItem>> unread;
    if (load == Load::kStreamsAndReads) {
      unread.emplace(streams.Count(many));
      if (!(co_await unread->Read()).has_value()) _exit(1);
      for (int i = 0; i < kReadsAtOnce; ++i) scope.Spawn(ReadAgainAndAgain(channel, answered));
      (void)co_await answered.Until(kReadsAtOnce);
    }
    if (write(answers, "c", 1) != 1) _exit(1);
    co_return co_await SleepUntil(kNever);
  }
  // Counts the first payload. If a read fails, the process ends.
  static Task<void> ReadAgainAndAgain(Channel& channel, Watched<int>& answered) {
    testing::Payloads::Stub stub(channel);
    testing::GetRequest request;
    request.set_bytes(kReadBytes);
    request.set_how(testing::RAW);
    for (bool first = true;; first = false) {
      absl::StatusOr<Buffer> buffer = co_await channel.AllocateBuffer(kReadBytes);
      if (!buffer.ok()) _exit(1);
      WithPayload<testing::GetReply> reply;
      const absl::Status status =
          co_await stub.Get(request, reply, {.response_payload_into = *std::move(buffer)});
      if (!status.ok()) _exit(1);
      if (first) ++answered;
    }
  }

  pid_t pid_ = -1;
  int commands_ = -1;
  int answers_ = -1;
};

// Counts what is logged by default, while it lives.
struct Warnings {
  Warnings() {
    SetLogSink([this](const LogRecord&) { ++count; });
  }
  ~Warnings() { SetLogSink(nullptr); }
  std::atomic<int> count = 0;
};

class FrozenClientsTest : public RuntimePair {
 protected:
  void TearDown() override {
    clients_.clear();
    standing_.Run();
    if (thread_.joinable()) thread_.join();
    StopAll();
  }

  // Freezes kClients clients with that load. One more client has no calls, and is not frozen.
  void Freeze(Load load) {
    for (int i = 0; i < kClients; ++i) clients_.push_back(std::make_unique<ClientProcess>(load));
    // Only the test's clock ends anything at the server, and only the shutdown ends the link of the
    // client that is not frozen.
    LinkLimits limits;
    limits.ping_interval = hours(1);
    server_runtime_ = StartRuntime({.limits = limits, .clock = &standing_});
    absl::StatusOr<std::unique_ptr<Server>> server =
        Server::Start(*server_runtime_, {&streams_, &payloads_}, {.response_grace = hours(1)});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    for (const auto& client : clients_) client->ConnectTo(server_->address());
    client_runtime_ = StartRuntime({.limits = limits});
    channel_ = std::make_unique<Channel>(*client_runtime_, server_->address());
    ASSERT_EQ(Run(channel_->Connect({.wait_for_ready = true})), absl::OkStatus());
    for (const auto& client : clients_) client->Freeze();
  }

  // The server's clock stands still but for the time that the shutdown may take.
  void EndsInTime(Duration grace) {
    if (HasFailure()) return;
    Warnings warnings;
    thread_ = std::thread([this, grace] {
      left_ = server_->Shutdown(grace);
      ended_ = true;
    });
    // The client that is not frozen has heard of it, so the server's time runs.
    Eventually([this] { return client_runtime_->endpoint_stats(0).links == 0; },
               "the shutdown begins");
    standing_.Advance(*server_runtime_, grace + kBeyondGrace);
    Eventually([this] { return ended_.load(); }, "the shutdown ends");
    EXPECT_TRUE(left_.empty());
    EXPECT_LT(warnings.count.load(), kClients) << "a line for each client";
  }

  testing::FakeClock standing_;
  StreamingService streams_;
  PayloadService payloads_;
  std::vector<std::unique_ptr<ClientProcess>> clients_;
  std::thread thread_;
  std::vector<RunningHandler> left_;
  std::atomic<bool> ended_{false};
};

TEST_F(FrozenClientsTest, AmongStreamsAndReadsTheyHoldUpNoShutdown) {
  Freeze(Load::kStreamsAndReads);
  EXPECT_EQ(streams_.running, kClients);
  EndsInTime(seconds(2));
}

TEST_F(FrozenClientsTest, WithoutCallsTheyHoldUpNoShutdown) {
  Freeze(Load::kNone);
  EndsInTime(seconds(2));
}

TEST_F(FrozenClientsTest, AShutdownWithoutGraceTakesASecondAtMost) {
  Freeze(Load::kStreamsAndReads);
  EndsInTime(seconds(0));
}

}  // namespace frozen_clients_test
}  // namespace verbena::internal
