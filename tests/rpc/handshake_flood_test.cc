// Clients get in while a server is under a flood of connections that never become links.
//
// The flood is a process of its own, which ends by its input's end. HANDSHAKE_FLOOD names its
// program, FLOOD_TOTAL and FLOOD_HELD how much it does.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/rpc/testing_service.h"
#include "tests/transport/base/captured_log.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/coro/context.h"

namespace verbena {
namespace {

// Tenfold what a client may wait: benchmarks and people look at the figures that are printed.
constexpr Duration kOtherSource = std::chrono::seconds(10);
constexpr Duration kSameSource = std::chrono::seconds(100);

std::string Environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

// Counts what is logged by default, while it lives.
struct Warnings {
  Warnings() {
    SetLogSink([this](const LogRecord& record) {
      if (++count <= 20) std::printf("%s\n", std::string(record.text).c_str());
    });
  }
  ~Warnings() { SetLogSink(nullptr); }
  std::atomic<int> count = 0;
};

class FloodProcess {
 public:
  // The flood waits for Begin().
  FloodProcess(const std::string& target, const std::string& source) {
    int in[2], out[2];
    EXPECT_EQ(pipe2(in, O_CLOEXEC) | pipe2(out, O_CLOEXEC), 0);
    const std::string program = Environment("HANDSHAKE_FLOOD", "tests/rpc/handshake_flood");
    const std::string total = Environment("FLOOD_TOTAL", "2000");
    const std::string held = Environment("FLOOD_HELD", "400");
    pid_ = fork();
    if (pid_ == 0) {
      close(in[1]);
      char begin;
      if (read(in[0], &begin, 1) != 1) _exit(0);
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      execl(program.c_str(), program.c_str(), target.c_str(), source.c_str(), total.c_str(),
            held.c_str(), nullptr);
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    input_ = in[1];
    output_ = out[0];
  }
  ~FloodProcess() {
    close(input_);
    close(output_);
    if (pid_ <= 0) return;  // -1 would be every process
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  void Begin() { EXPECT_EQ(write(input_, "b", 1), 1); }
  // Waits until it has opened them all; returns how many.
  int AwaitOpened() {
    std::string line;
    for (char c = 0; read(output_, &c, 1) == 1 && c != '\n';) line.push_back(c);
    return line.starts_with("opened ") ? std::stoi(line.substr(7)) : 0;
  }

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  int output_ = -1;
};

class HandshakeFloodTest : public RpcTest {
 protected:
  // Calls over a runtime of its own until one succeeds; how long that took.
  Duration ConnectHonestly(Duration limit) {
    const std::unique_ptr<Runtime> runtime = StartRuntime();
    Channel channel(*runtime, server_->address());
    const TimePoint begin = Clock::Real().Now();
    absl::Status status;
    do {
      status = runtime->BlockOn(WithDeadline(channel.Connect(), Clock::Real().Now() + limit));
      if (!status.ok()) (void)Run(Pause());
    } while (!status.ok() && Clock::Real().Now() - begin < limit);
    EXPECT_EQ(status, absl::OkStatus());
    return Clock::Real().Now() - begin;
  }

  static long Milliseconds(Duration time) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
  }

  // A flood from `source` while an honest client from 127.0.0.1 connects: during the flood, and
  // once all connections are open.
  void Survives(const std::string& source, Duration limit) {
    StartBoth();
    Warnings warnings;
    FloodProcess flood(server_->address(), source);
    flood.Begin();
    const Duration during = ConnectHonestly(limit);
    const int opened = flood.AwaitOpened();
    EXPECT_GT(opened, std::stoi(Environment("FLOOD_TOTAL", "2000")) / 2);
    const Duration after = ConnectHonestly(limit);
    const int lines = warnings.count;
    std::printf(
        "flood from %s: %d connections, connected in %ld ms during, %ld ms after, %d log "
        "lines\n",
        source.c_str(), opened, Milliseconds(during), Milliseconds(after), lines);
    EXPECT_LE(during, limit);
    EXPECT_LE(after, limit);
    EXPECT_LE(lines, 200);
    EXPECT_GT(server_->stats().handshakes_evicted, 0u);
  }
};

TEST_F(HandshakeFloodTest, AClientOfAnotherAddressGetsIn) { Survives("127.0.0.2", kOtherSource); }

TEST_F(HandshakeFloodTest, AClientOfTheSameAddressGetsIn) { Survives("127.0.0.1", kSameSource); }

TEST_F(HandshakeFloodTest, AServerWithoutDescriptorsServesOnceThereAreSome) {
  StartBoth();
  ASSERT_EQ(Run(EchoOnce(1, "before")), absl::OkStatus());
  CapturedLog log;
  {
    FloodProcess flood(server_->address(), "127.0.0.2");
    rlimit before{};
    getrlimit(RLIMIT_NOFILE, &before);
    rlimit few = before;
    few.rlim_cur = 16;  // fewer than are open
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    // Now, since the server may accept all of it in less time than this thread may stand still.
    flood.Begin();
    bool said = false;
    Eventually(
        [&] {
          for (const std::string& line : log.Take()) said |= line.find("EMFILE") != line.npos;
          return said;
        },
        "the log names EMFILE");
    EXPECT_EQ(Run(EchoOnce(2, "a link that is there still serves")), absl::OkStatus());
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  }
  ConnectHonestly(kOtherSource);
}

}  // namespace
}  // namespace verbena
