// Many clients of one host that connect at once lose no call: neither their first calls, nor those
// that wait while their server, which was killed, starts again. VERBENA_STORM_CLIENTS in the
// environment says how many processes call, each on four executors.
//
// The servers' clock stands still, so no server gives up a handshake because its client is slow, as
// clients are on a loaded machine. A client that is refused comes again.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "tests/rpc/restartable_server.h"
#include "tests/rpc/testing_service.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/testing/fake_clock.h"

namespace verbena {
namespace client_storm_test {

constexpr int kExecutors = 4;
// Far more time than a storm takes.
constexpr std::chrono::seconds kPatience{240};

int ClientsWanted() {
  const char* asked = std::getenv("VERBENA_STORM_CLIENTS");
  return asked == nullptr ? 12 : std::atoi(asked);
}

// The bound of offers is so low that the server refuses most clients of the storm at first.
ServerOptions Narrow() {
  return {
      .handshakes = {.offers_per_source = static_cast<uint32_t>(ClientsWanted() * kExecutors / 4)}};
}

// These limits suffice for one call: defaults would pin far more memory than hundreds of executors
// need. No client gives up a slow server.
LinkLimits SmallLimits() {
  LinkLimits limits;
  limits.connect_timeout = kPatience;
  limits.ping_interval = kPatience;
  limits.max_links = 16;
  limits.srq_depth = 256;
  limits.send_buffers = 64;
  return limits;
}

// Processes that call a server, all at once. The test forks them while it has no threads, and they
// end with it.
class StormClients {
 public:
  static constexpr int kStorms = 2;

  // Returns when each process has its runtime, and no link yet.
  StormClients(int clients, const std::string& address) : clients_(clients) {
    for (auto& each : begin_) EXPECT_EQ(pipe(each.data()), 0);
    EXPECT_EQ(pipe(results_.data()), 0);
    const pid_t parent = getpid();
    for (int i = 0; i < clients; ++i) {
      const pid_t pid = fork();
      if (pid == 0) Be(parent, address);
      pids_.push_back(pid);
    }
    close(results_[1]);
    for (int i = 0; i < clients; ++i) EXPECT_EQ(ReadLine(), "started");
  }
  StormClients(const StormClients&) = delete;
  ~StormClients() {
    for (const pid_t pid : pids_) {
      if (pid <= 0) continue;  // -1 would be every process
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    for (const auto& each : begin_) {
      close(each[0]);
      close(each[1]);
    }
    close(results_[0]);
  }

  // Lets each process make one call on each of its executors. Each process reads one byte.
  void Begin(int storm) {
    const std::string go(clients_, 'b');
    EXPECT_EQ(write(begin_[storm][1], go.data(), go.size()), static_cast<ssize_t>(go.size()));
  }
  // The failures of the calls that Begin() began. Returns when all calls have ended.
  std::vector<std::string> Failures() {
    std::vector<std::string> failures;
    for (int i = 0; i < clients_ * kExecutors; ++i) {
      std::string line = ReadLine();
      if (line != "OK") failures.push_back(std::move(line));
    }
    return failures;
  }

 private:
  // An exception ends the process: GoogleTest would run it as a second test.
  [[noreturn]] void Be(pid_t parent, const std::string& address) noexcept {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // The test ended before the kernel knew that this process ends with it.
    if (getppid() != parent) _exit(1);
    absl::StatusOr<std::unique_ptr<Runtime>> runtime =
        Runtime::Start({.executors = kExecutors, .limits = SmallLimits()});
    if (!runtime.ok()) {
      Say(runtime.status().ToString());
      _exit(1);
    }
    Channel channel(**runtime, address);
    testing::Testing::Stub stub(channel);
    Say("started");
    for (int storm = 0; storm < kStorms; ++storm) {
      char go;
      if (read(begin_[storm][0], &go, 1) != 1) _exit(0);
      std::vector<JoinHandle<absl::Status>> calls;
      for (int i = 0; i < kExecutors; ++i) {
        calls.push_back((*runtime)->Spawn(storm == 0 ? Echo(stub, false) : EchoAgain(stub), i));
      }
      for (JoinHandle<absl::Status>& call : calls) Say(call.Join().ToString());
    }
    while (true) pause();
  }
  static Task<absl::Status> Echo(testing::Testing::Stub& stub, bool wait_for_ready) {
    testing::EchoRequest request;
    request.set_number(1);
    co_return (
        co_await stub.Echo(request, {.deadline = kPatience, .wait_for_ready = wait_for_ready}))
        .status();
  }
  // A client that has not noticed yet that its link is lost makes a call over it. The call then
  // fails as one that may have run, and this function repeats it.
  static Task<absl::Status> EchoAgain(testing::Testing::Stub& stub) {
    for (;;) {
      absl::Status status = co_await Echo(stub, true);
      if (!absl::IsUnavailable(status) || OutcomeOf(status) != Outcome::kMaybeExecuted) {
        co_return status;
      }
    }
  }

  // Writes a line of at most PIPE_BUF bytes, so no line of another process cuts it.
  void Say(const std::string& text) const {
    std::string line = text.substr(0, 500) + "\n";
    if (write(results_[1], line.data(), line.size()) < 0) _exit(1);
  }
  std::string ReadLine() const {
    std::string line;
    for (char c; read(results_[0], &c, 1) == 1 && c != '\n';) line.push_back(c);
    return line;
  }

  const int clients_;
  std::array<std::array<int, 2>, kStorms> begin_{};
  std::array<int, 2> results_{};
  std::vector<pid_t> pids_;
};

TEST(ClientStormTest, NoCallOfClientsThatComeAtOnceIsLost) {
  testing::FakeClock standing;
  RestartableServer<TestingService> server(/*starts=*/2, Narrow(), {.clock = &standing});
  server.Start();
  StormClients clients(ClientsWanted(), server.address());
  ASSERT_FALSE(HasFailure());  // one that has not started would end no call
  clients.Begin(0);
  EXPECT_EQ(clients.Failures(), std::vector<std::string>());
  // All clients come again.
  server.Kill();
  clients.Begin(1);
  server.Start();
  EXPECT_EQ(clients.Failures(), std::vector<std::string>());
}

}  // namespace client_storm_test
}  // namespace verbena
