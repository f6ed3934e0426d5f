// Three processes, each of which serves and calls the two others without a pause, with payloads of
// 1 MiB both ways. One of them is killed and starts again at its address, many times. No byte is
// wrong. After each restart, calls to and from the killed process go through again, and the link
// between the other two has stayed. The process that is never killed keeps nothing of killed ones.
// VERBENA_RESTARTS in the environment says how often one is killed.

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/rpc/payload_service.h"
#include "tests/support/held_port.h"
#include "tests/support/watched.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/scope.h"

namespace verbena::internal {
namespace neighbours_test {

constexpr int kNeighbours = 3;
constexpr int kNeverKilled = 0;
constexpr size_t kBytes = 1 << 20;
// The calls to each neighbour at a time: two, so that one is always under way.
constexpr int kCallers = 2;

int RestartsWanted() {
  const char* asked = std::getenv("VERBENA_RESTARTS");
  return asked == nullptr ? 6 : std::atoi(asked);
}

// A neighbour's counts since it started. It writes them to a pipe in one piece.
struct Report {
  // Failed calls to each neighbour.
  std::array<uint64_t, kNeighbours> lost{};  // with their link, or not begun without one
  std::array<uint64_t, kNeighbours> otherwise{};
  uint64_t wrong = 0;  // payloads, at either end
  uint64_t descriptors = 0;
  uint64_t mappings = 0;
  std::array<char, 200> last_failure{};
};

// The work of one process.
class Neighbour {
 public:
  Neighbour(Runtime& runtime, int self, const std::vector<std::string>& addresses)
      : runtime_(runtime) {
    for (int i = 0; i < kNeighbours; ++i) {
      others_.push_back(i == self ? nullptr : std::make_unique<Other>(runtime, addresses[i]));
    }
  }

  // Calls the others for ever.
  Task<void> Work() {
    TaskScope scope(runtime_.executor(0));
    for (int i = 0; i < kNeighbours; ++i) {
      for (int j = 0; others_[i] != nullptr && j < kCallers; ++j) {
        scope.Spawn(CallAgainAndAgain(i, j));
      }
    }
    co_await scope.Join();
  }

  // Waits until each caller has made `more` + 1 calls that began after this function and ended
  // well. So no call goes on that began before an earlier kill.
  Task<Report> AwaitCalls(int more) {
    for (const auto& other : others_) {
      if (other == nullptr) continue;
      for (Watched<uint64_t>& good : other->good) {
        const uint64_t enough = good + 2 + more;
        (void)co_await good.Until([enough](uint64_t now) { return now >= enough; });
      }
    }
    Report report = report_;
    const std::filesystem::directory_iterator descriptors("/proc/self/fd");
    report.descriptors = std::distance(begin(descriptors), end(descriptors));
    std::ifstream maps("/proc/self/maps");
    report.mappings =
        std::count(std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>(), '\n');
    co_return report;
  }

 private:
  struct Other {
    Other(Runtime& runtime, const std::string& address)
        : channel(runtime, address), stub(channel) {}

    Channel channel;
    testing::Payloads::Stub stub;
    std::array<Watched<uint64_t>, kCallers> good;  // calls of each caller that ended well
  };

  Task<void> CallAgainAndAgain(int index, int caller) {
    for (;;) {
      const absl::Status status = co_await Swap(*others_[index]);
      if (status.ok()) {
        ++others_[index]->good[caller];
        continue;
      }
      const std::string text = status.ToString();
      report_.last_failure = {};
      text.copy(report_.last_failure.data(), report_.last_failure.size() - 1);
      if (absl::IsDataLoss(status)) {
        ++report_.wrong;
      } else {
        ++(absl::IsUnavailable(status) ? report_.lost : report_.otherwise)[index];
      }
    }
  }
  // Waits for a neighbour that is down.
  static Task<absl::Status> Swap(Other& other) {
    CallOptions options{.wait_for_ready = true};
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer payload,
                                co_await other.channel.AllocateBuffer(kBytes, options));
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer answer,
                                co_await other.channel.AllocateBuffer(kBytes, options));
    FillPattern(payload.view());
    std::memset(answer.data(), 0, answer.size());
    options.request_payload = std::move(payload);
    options.response_payload_into = std::move(answer);
    WithPayload<testing::PutReply> reply;
    VERBENA_CO_RETURN_IF_ERROR(
        co_await other.stub.Swap(testing::PutRequest(), reply, std::move(options)));
    if (!reply->right() || reply.payload.size() != kBytes ||
        !IsPattern(reply.payload.view(), /*inverted=*/true)) {
      co_return absl::DataLossError("a payload is not what was sent");
    }
    co_return absl::OkStatus();
  }

  Runtime& runtime_;
  std::vector<std::unique_ptr<Other>> others_;  // null at this neighbour's own index
  Report report_;                               // on the executor
};

// The processes. The test itself has no threads, so that it may fork whenever it likes.
class NeighboursTest : public ::testing::Test {
 protected:
  NeighboursTest() {
    // If a neighbour has ended by itself, its missing answer shows that, not a signal.
    signal(SIGPIPE, SIG_IGN);
    for (const HeldPort& port : ports_) addresses_.push_back(port.address());
  }
  ~NeighboursTest() override {
    for (int i = 0; i < kNeighbours; ++i) Kill(i);
  }

  void Start(int index) {
    int commands[2];
    int answers[2];
    EXPECT_EQ(pipe(commands), 0);
    EXPECT_EQ(pipe(answers), 0);
    Process& process = processes_[index];
    process.pid = fork();
    if (process.pid == 0) Be(index, addresses_, commands[0], answers[1]);
    close(commands[0]);
    close(answers[1]);
    process.commands = commands[1];
    process.answers = answers[0];
  }

  void Kill(int index) {
    Process& process = processes_[index];
    if (process.pid <= 0) return;
    kill(process.pid, SIGKILL);
    waitpid(std::exchange(process.pid, -1), nullptr, 0);
    close(process.commands);
    close(process.answers);
  }

  // Waits until each neighbour has called both others well again, and then `more` times. Fails the
  // test and returns as soon as a neighbour has ended, since the others would wait for it.
  std::array<Report, kNeighbours> AwaitCalls(int more) {
    std::array<Report, kNeighbours> reports{};
    std::array<pollfd, kNeighbours> answers{};
    const auto command = static_cast<char>(more);
    for (int i = 0; i < kNeighbours; ++i) {
      (void)!write(processes_[i].commands, &command, 1);
      answers[i] = {.fd = processes_[i].answers, .events = POLLIN, .revents = 0};
    }
    for (int left = kNeighbours; left > 0;) {
      EXPECT_GT(poll(answers.data(), answers.size(), -1), 0);
      for (int i = 0; i < kNeighbours; ++i) {
        if (answers[i].fd < 0 || answers[i].revents == 0) continue;
        const ssize_t bytes = read(answers[i].fd, &reports[i], sizeof(Report));
        EXPECT_EQ(bytes, static_cast<ssize_t>(sizeof(Report))) << "neighbour " << i << " has ended";
        if (HasFailure()) return reports;
        answers[i].fd = -1;
        --left;
      }
    }
    return reports;
  }

 private:
  struct Process {
    pid_t pid = -1;
    int commands = -1;
    int answers = -1;
  };

  // An exception ends the process: GoogleTest would run it as a second test.
  [[noreturn]] static void Be(int index, const std::vector<std::string>& addresses, int commands,
                              int answers) noexcept {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // Only the end of a process ends a link: on a loaded machine a neighbour may be silent for
    // long.
    LinkLimits limits;
    limits.ping_interval = std::chrono::hours(1);
    absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Start({.limits = limits});
    if (!runtime.ok()) _exit(1);
    PayloadService service;
    absl::StatusOr<std::unique_ptr<Server>> server =
        Server::Start(**runtime, {&service}, {.address = addresses[index]});
    if (!server.ok()) _exit(1);
    Neighbour neighbour(**runtime, index, addresses);
    (*runtime)->Spawn(neighbour.Work());
    for (char more; read(commands, &more, 1) == 1;) {
      Report report = (*runtime)->BlockOn(neighbour.AwaitCalls(more));
      if (write(answers, &report, sizeof(report)) < 0) break;
    }
    _exit(0);
  }

  const std::array<HeldPort, kNeighbours> ports_;
  std::vector<std::string> addresses_;
  std::array<Process, kNeighbours> processes_;
};

TEST_F(NeighboursTest, ARestartOfOneLeavesTheOthersAloneAndTakesNothingOfThem) {
  constexpr int kWarmUp = 3;
  const int restarts = RestartsWanted();
  std::mt19937 random(12);
  for (int i = 0; i < kNeighbours; ++i) Start(i);
  std::array<Report, kNeighbours> before = AwaitCalls(0);
  ASSERT_FALSE(HasFailure());
  Report warm;
  for (int round = 0; round < restarts; ++round) {
    const int victim = 1 + static_cast<int>(random() % (kNeighbours - 1));
    const int other = kNeighbours - victim;  // the one that is neither killed nor kNeverKilled
    SCOPED_TRACE(::testing::Message() << "round " << round << ", neighbour " << victim);
    Kill(victim);
    Start(victim);
    const std::array<Report, kNeighbours> after = AwaitCalls(static_cast<int>(random() % 3));
    if (HasFailure()) break;
    for (const Report& report : after) {
      EXPECT_EQ(report.wrong, 0u);
      EXPECT_EQ(report.lost[kNeverKilled], 0u) << report.last_failure.data();
      for (const uint64_t failures : report.otherwise) {
        EXPECT_EQ(failures, 0u) << report.last_failure.data();
      }
    }
    EXPECT_EQ(after[kNeverKilled].lost[other], before[kNeverKilled].lost[other])
        << after[kNeverKilled].last_failure.data();
    if (HasFailure()) break;
    if (round == kWarmUp - 1) warm = after[kNeverKilled];
    before = after;
  }
  if (HasFailure() || restarts <= kWarmUp) return;
  // A link that has just ended may still be there. If each restart left one thing, the difference
  // would exceed `noise`.
  const Report& last = before[kNeverKilled];
  const uint64_t noise = std::max(16, (restarts - kWarmUp) / 2);
  EXPECT_LT(last.descriptors, warm.descriptors + noise);
  EXPECT_LT(last.mappings, warm.mappings + 2 * noise);
}

}  // namespace neighbours_test
}  // namespace verbena::internal
