// A Runtime whose start fails at any step leaves nothing behind. Its Tasks run and end on its
// executors, an exception ends its own Task only, and statistics can be read on every thread.

#include "verbena/rpc/runtime.h"

#include <dirent.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <latch>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/forbidden_call.h"
#include "tests/transport/base/captured_log.h"
#include "tests/transport/device/delegating_device.h"
#include "tests/transport/executor/slow_to_die.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/client/connections.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/version.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/executor/blocking.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/run_on.h"
#include "verbena/transport/executor/spawn.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace runtime_test {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// The parameter: whether the runtime has threads.
class RuntimeTest : public ::testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<Runtime> Start(RuntimeOptions options = {}) {
    options.threads = GetParam();
    absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Start(std::move(options));
    EXPECT_TRUE(runtime.ok()) << runtime.status();
    return runtime.ok() ? *std::move(runtime) : nullptr;
  }
};

INSTANTIATE_TEST_SUITE_P(, RuntimeTest, ::testing::Bool(), [](const auto& info) {
  return info.param ? "WithThreads" : "HostDriven";
});

Task<int> ThrowLater() {
  (void)co_await Yield();
  throw std::runtime_error("out of cheese");
}

TEST_P(RuntimeTest, NamesItsVersionInTheLog) {
  CapturedLog log;
  auto runtime = Start({.executors = 2, .device = "soft"});
  EXPECT_THAT(log.Take(),
              Contains(absl::StrCat("Verbena ", VERBENA_VERSION_MAJOR, ".", VERBENA_VERSION_MINOR,
                                    ".", VERBENA_VERSION_PATCH, " runs 2 executors over ",
                                    runtime->device_names().at(0))));
}

TEST_P(RuntimeTest, AnExceptionLeavesBlockOn) {
  auto runtime = Start();
  EXPECT_THROW((void)runtime->BlockOn(ThrowLater()), std::runtime_error);
}

Task<void> ThrowNow() {
  throw std::runtime_error("out of cheese");
  co_return;
}

TEST_P(RuntimeTest, ASpawnedTaskThatThrowsIsLoggedAndCountedAndTheRuntimeEnds) {
  auto runtime = Start();
  CapturedLog log;
  runtime->Spawn(ThrowNow());
  const auto nothing = []() -> Task<void> { co_return; };
  while (runtime->failed_tasks() == 0) runtime->BlockOn(nothing());
  EXPECT_EQ(runtime->failed_tasks(), 1u);
  runtime.reset();
  EXPECT_THAT(log.Take(), Contains(HasSubstr("Runtime::Spawn threw: out of cheese")));
}

TEST_P(RuntimeTest, ASpawnedTaskIsCancelledAndAwaitedByTheDestructor) {
  auto runtime = Start();
  std::atomic<bool> cancelled = false;
  const auto wait = [&]() -> Task<void> {
    cancelled = absl::IsCancelled(co_await SleepUntil(kNever));
  };
  const auto nothing = []() -> Task<void> { co_return; };
  runtime->Spawn(wait());
  runtime->BlockOn(nothing());
  runtime.reset();
  EXPECT_TRUE(cancelled);
}

TEST_P(RuntimeTest, ATaskThatIsGivenWhileTheRuntimeEndsNeverBegins) {
  auto runtime = Start();
  std::atomic<bool> began = false;
  const auto begin = [&]() -> Task<void> {
    began = true;
    co_return;
  };
  const auto pass_on = [&](Runtime& ending) -> Task<void> {
    (void)co_await SleepUntil(kNever);
    ending.Spawn(begin());
  };
  const auto nothing = []() -> Task<void> { co_return; };
  runtime->Spawn(pass_on(*runtime));
  runtime->BlockOn(nothing());
  runtime.reset();
  EXPECT_FALSE(began);
}

// --- Handles -------------------------------------------------------------------------------------

Task<int> Seven() { co_return 7; }
Task<absl::Status> SleepForEver() { co_return co_await SleepUntil(kNever); }

TEST_P(RuntimeTest, AThreadJoinsASpawnedTaskOfAnyExecutor) {
  auto runtime = Start({.executors = 2});
  EXPECT_EQ(runtime->Spawn(Seven()).Join(), 7);
  EXPECT_EQ(runtime->Spawn(Seven(), 1).Join(), 7);
}

TEST_P(RuntimeTest, ACoroutineJoinsATaskOfAnotherExecutor) {
  auto runtime = Start({.executors = 2});
  const auto ask = [&]() -> Task<int> { co_return co_await runtime->Spawn(Seven(), 1); };
  EXPECT_EQ(runtime->BlockOn(ask(), 0), 7);
}

TEST_P(RuntimeTest, ASpawnedCallableLivesUntilItsTaskHasEnded) {
  auto runtime = Start();
  auto held = std::make_shared<int>(7);
  std::weak_ptr<int> alive = held;
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-capturing-lambda-coroutines): Spawn keeps the capture
  JoinHandle<int> handle = runtime->Spawn([held = std::move(held)]() -> Task<int> {
    (void)co_await Yield();
    co_return *held;
  });
  EXPECT_EQ(handle.Join(), 7);
  EXPECT_TRUE(alive.expired());
}

TEST_P(RuntimeTest, AnExceptionThatTheHandleGivesIsCountedAndNotLogged) {
  auto runtime = Start();
  CapturedLog log;
  EXPECT_THROW(runtime->Spawn(ThrowNow()).Join(), std::runtime_error);
  EXPECT_EQ(runtime->failed_tasks(), 1u);
  EXPECT_THAT(log.Take(), ::testing::Not(Contains(HasSubstr("threw"))));
}

TEST_P(RuntimeTest, AHandleEndsItsTaskAlone) {
  auto runtime = Start();
  JoinHandle<absl::Status> stopped = runtime->Spawn(SleepForEver());
  JoinHandle<absl::Status> other = runtime->Spawn(SleepForEver());
  stopped.RequestCancel();
  EXPECT_TRUE(absl::IsCancelled(stopped.Join()));
  EXPECT_FALSE(other.done());
}

TEST_P(RuntimeTest, AHandleOutlivesTheRuntimeWhichCancelsAndAwaitsItsTask) {
  auto runtime = Start();
  JoinHandle<int> ended = runtime->Spawn(Seven());
  JoinHandle<absl::Status> cancelled = runtime->Spawn(SleepForEver());
  JoinHandle<absl::Status> requested = runtime->Spawn(SleepForEver());
  runtime->BlockOn(Seven());
  runtime.reset();
  ASSERT_TRUE(ended.done() && cancelled.done() && requested.done());
  EXPECT_EQ(ended.Join(), 7);
  EXPECT_TRUE(absl::IsCancelled(cancelled.Join()));
  requested.RequestCancel();
  EXPECT_TRUE(absl::IsCancelled(requested.Join()));
}

TEST_P(RuntimeTest, AJoinerHearsOfATaskThatIsGivenWhileTheRuntimeEnds) {
  auto runtime = Start({.executors = 2});
  absl::Status joined;
  const auto pass_on = [&](Runtime& ending) -> Task<void> {
    (void)co_await SleepUntil(kNever);
    joined = co_await ending.Spawn(SleepForEver(), 1);
  };
  runtime->Spawn(pass_on(*runtime));
  runtime->BlockOn(Seven());
  runtime.reset();
  EXPECT_TRUE(absl::IsCancelled(joined)) << joined;
}

Task<bool> HasConnections(const Runtime& runtime) {
  co_return Connections::Of(CoreOf(runtime).shard(0)).gate()->open();
}

TEST_P(RuntimeTest, ATaskMayUseConnectionsOfOtherExecutorsUntilItHasEnded) {
  auto runtime = Start({.executors = 2});
  std::atomic<bool> has_connections = false;
  const auto ask = [&](Runtime& ending) -> Task<void> {
    (void)co_await SleepUntil(kNever);
    has_connections = co_await RunOn(ending.executor(0), HasConnections(ending));
  };
  const auto nothing = []() -> Task<void> { co_return; };
  runtime->Spawn(ask(*runtime), 1);
  runtime->BlockOn(nothing(), 1);
  runtime.reset();
  EXPECT_TRUE(has_connections);
}

TEST_P(RuntimeTest, TheTasksFrameIsGoneBeforeTheCallerWakes) {
  auto runtime = Start();
  std::atomic<bool> dead = false;
  EXPECT_EQ(runtime->BlockOn(Keep(SlowToDie(dead))), 7);
  EXPECT_TRUE(dead);
}

Task<int> AskOther(Executor& other) { co_return co_await RunOn(other, Seven()); }

TEST_P(RuntimeTest, ATaskThatNeedsAnotherExecutorOfTheRuntimeEnds) {
  auto runtime = Start({.executors = 3});
  EXPECT_EQ(runtime->BlockOn(AskOther(runtime->executor(2)), 1), 7);
}

TEST_P(RuntimeTest, ExecutorsShareABoundedPoolForBlockingWork) {
  auto runtime = Start({.executors = 2, .blocking_threads = 1});
  const auto where = []() -> Task<std::thread::id> {
    co_return co_await RunBlocking([] { return std::this_thread::get_id(); });
  };
  EXPECT_EQ(runtime->BlockOn(where(), 0), runtime->BlockOn(where(), 1));
}

TEST_P(RuntimeTest, TheCurrentShardIsTheOneOfThisRuntimesExecutor) {
  auto runtime = Start({.executors = 2});
  auto other = Start({.executors = 3});
  const auto current = [](Runtime& of) -> Task<Shard*> { co_return CoreOf(of).ShardHere(); };
  EXPECT_EQ(runtime->BlockOn(current(*runtime), 1), &CoreOf(*runtime).shard(1));
  EXPECT_EQ(other->BlockOn(current(*runtime), 1), nullptr);
  EXPECT_EQ(other->BlockOn(current(*runtime), 2), nullptr);
  EXPECT_EQ(CoreOf(*runtime).ShardHere(), nullptr);
}

// --- Statistics ----------------------------------------------------------------------------------

TEST_P(RuntimeTest, StatisticsAreReadOnTheirOwnExecutor) {
  auto runtime = Start();
  const auto read = [&]() -> Task<size_t> { co_return runtime->device_stats(0).size(); };
  EXPECT_EQ(runtime->BlockOn(read()), runtime->device_stats(0).size());
}

TEST(RuntimeStatisticsTest, AnExecutorReadsThoseOfAnotherThatIsBlocked) {
  // They outlive the executors, one of which waits in them.
  std::latch blocked(1);
  std::latch let_go(1);
  auto runtime = *Runtime::Start({.executors = 2});
  const auto block = [&]() -> Task<void> {
    blocked.count_down();
    let_go.wait();
    co_return;
  };
  runtime->Spawn(block(), 1);
  blocked.wait();
  const auto read = [&]() -> Task<size_t> { co_return runtime->device_stats(1).size(); };
  EXPECT_EQ(runtime->BlockOn(read(), 0), 1u);
  let_go.count_down();
}

// --- Start ---------------------------------------------------------------------------------------

int OpenDescriptors() {
  DIR* directory = opendir("/proc/self/fd");
  int count = 0;
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

// Every step of Start() that takes a descriptor fails once.
TEST_P(RuntimeTest, AStartThatRunsOutOfDescriptorsAtAnyStepUnwinds) {
  CapturedLog log;
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int open = OpenDescriptors();
  int failures = 0;
  bool started = false;
  for (int more = 0; more < 200 && !started; ++more) {
    rlimit few = before;
    few.rlim_cur = open + more;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    absl::StatusOr<std::unique_ptr<Runtime>> runtime =
        Runtime::Start({.executors = 3, .device = "soft", .threads = GetParam()});
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    started = runtime.ok();
    failures += started ? 0 : 1;
  }
  EXPECT_TRUE(started);
  EXPECT_GT(failures, 5);
  EXPECT_EQ(OpenDescriptors(), open) << "descriptors are left behind";
}

TEST(RuntimeStartTest, WithoutThreadsToBeHadIsResourceExhausted) {
  CapturedLog log;
  const int open = OpenDescriptors();
  for (const char* device : {"soft", "soft:tcp"}) {
    WithForbidden(SYS_clone3, EAGAIN, [device] {
      const absl::Status started = Runtime::Start({.device = device}).status();
      EXPECT_EQ(started.code(), absl::StatusCode::kResourceExhausted) << started;
      EXPECT_THAT(started.message(), HasSubstr("thread"));
    });
  }
  EXPECT_EQ(OpenDescriptors(), open) << "descriptors are left behind";
}

// A device that fails the `fails_at`-th call that makes something.
class FailingDevice final : public DelegatingDevice {
 public:
  using DelegatingDevice::DelegatingDevice;

  absl::StatusOr<ibv_pd*> AllocPd() override {
    if (Fails()) return Failure();
    return DelegatingDevice::AllocPd();
  }
  absl::StatusOr<std::byte*> AllocateMemory(size_t bytes) override {
    if (Fails()) return Failure();
    return DelegatingDevice::AllocateMemory(bytes);
  }
  absl::StatusOr<ibv_mr*> RegMr(ibv_pd* pd, void* address, size_t bytes, int access) override {
    if (Fails()) return Failure();
    return DelegatingDevice::RegMr(pd, address, bytes, access);
  }
  absl::StatusOr<ibv_comp_channel*> CreateCompChannel() override {
    if (Fails()) return Failure();
    return DelegatingDevice::CreateCompChannel();
  }
  absl::StatusOr<ibv_cq*> CreateCq(int entries, void* context, ibv_comp_channel* channel) override {
    if (Fails()) return Failure();
    return DelegatingDevice::CreateCq(entries, context, channel);
  }
  absl::StatusOr<ibv_srq*> CreateSrq(ibv_pd* pd, const ibv_srq_init_attr& attributes) override {
    if (Fails()) return Failure();
    return DelegatingDevice::CreateSrq(pd, attributes);
  }

  std::atomic<int> steps{0};
  int fails_at = 0;

 private:
  bool Fails() { return ++steps == fails_at; }
  static absl::Status Failure() { return absl::ResourceExhaustedError("the injected failure"); }
};

TEST_P(RuntimeTest, AStartThatFailsAtAnyStepOfTheDeviceUnwinds) {
  CapturedLog log;
  auto soft = SoftDevice::Create({});
  ASSERT_TRUE(soft.ok()) << soft.status();
  FailingDevice device(**soft);
  int failures = 0;
  bool started = false;
  for (int step = 1; step < 500 && !started; ++step) {
    device.steps = 0;
    device.fails_at = step;
    absl::StatusOr<std::unique_ptr<Runtime>> runtime =
        RuntimeCore::Start({.executors = 3, .threads = GetParam()}, {.use = &device});
    started = runtime.ok();
    failures += started ? 0 : 1;
    if (!started) {
      EXPECT_THAT(runtime.status().message(), HasSubstr("the injected failure"));
    }
  }
  EXPECT_TRUE(started);
  EXPECT_GT(failures, 9) << "each of three executors has a CQ, an SRQ and memory";
}

// Nothing more is said of what cannot be destroyed because of it.
TEST(RuntimeEndTest, ABufferThatOutlivesItsRuntimeIsLoggedInOneLineWithTheRemedy) {
  CapturedLog log;
  Buffer kept;
  {
    auto runtime = *Runtime::Start({.device = "soft"});
    std::unique_ptr<Server> server = *Server::Start(*runtime, {});
    Channel channel(*runtime, server->address());
    absl::StatusOr<Buffer> buffer = runtime->BlockOn(channel.AllocateBuffer(1));
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    kept = *std::move(buffer);
  }
  const std::vector<std::string> lines = log.Take();
  EXPECT_THAT(lines,
              Contains(HasSubstr("Destroy Buffers and payloads before their Runtime")).Times(1));
  EXPECT_THAT(lines, Not(Contains(HasSubstr("was not destroyed"))));
  EXPECT_THAT(lines, Not(Contains(HasSubstr("objects alive"))));
}

TEST(RuntimeOptionsTest, OptionsThatCannotBeHonouredAreRefused) {
  const auto refused = [](RuntimeOptions options) {
    return std::string(Runtime::Start(std::move(options)).status().message());
  };
  EXPECT_THAT(refused({.executors = 0}), HasSubstr("executors is 0"));
  EXPECT_THAT(refused({.blocking_threads = 0}), HasSubstr("blocking_threads is 0"));
  EXPECT_THAT(refused({.spin = -std::chrono::seconds(1)}), HasSubstr("spin is -1000000000 ns"));
  EXPECT_THAT(refused({.cpus = {-2}}), HasSubstr("cpus names core -2"));
  EXPECT_THAT(refused({.cpus = {100000}}), HasSubstr("cpus names core 100000, which this machine"));
  EXPECT_THAT(refused({.executors = 1, .cpus = {0, 0}}), HasSubstr("cpus has 2 cores for 1"));
  EXPECT_THAT(refused({.cpus = {0}, .numa = true}), HasSubstr("numa is true, but"));
}

TEST(RuntimeOptionsTest, ACoreHoldsForTheHostsThreadWhileItIsInRun) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  int core = 0;
  while (!CPU_ISSET(core, &before)) ++core;
  auto runtime = *Runtime::Start({.cpus = {core}, .threads = false});
  cpu_set_t inside;
  CPU_ZERO(&inside);
  const auto look = [&]() -> Task<void> {
    sched_getaffinity(0, sizeof(inside), &inside);
    runtime->executor(0).Stop();
    co_return;
  };
  runtime->Spawn(look());
  runtime->executor(0).Run();
  EXPECT_EQ(CPU_COUNT(&inside), 1);
  EXPECT_TRUE(CPU_ISSET(core, &inside));
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

// --- Misuse --------------------------------------------------------------------------------------

TEST(RuntimeServersTest, AServerThatIsGoneLetsItsRuntimeEnd) {
  auto runtime = *Runtime::Start({.device = "soft"});
  EXPECT_FALSE(Server::Start(*runtime, {nullptr}).ok());
  std::unique_ptr<Server> server = *Server::Start(*runtime, {});
  server.reset();
}

class RuntimeDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(RuntimeDeathTest, BlockingOnAnExecutorAborts) {
  EXPECT_DEATH(
      {
        auto runtime = *Runtime::Start();
        const auto block = [&]() -> Task<int> { co_return runtime->BlockOn(Seven()); };
        (void)runtime->BlockOn(block());
      },
      "BlockOn was called on an executor's thread");
}

TEST_F(RuntimeDeathTest, BlockingInsidePollAborts) {
  EXPECT_DEATH(
      {
        auto runtime = *Runtime::Start({.threads = false});
        const auto block = [&]() -> Task<int> { co_return runtime->BlockOn(Seven()); };
        (void)runtime->BlockOn(block());
      },
      "BlockOn was called on an executor's thread");
}

TEST_F(RuntimeDeathTest, EndingARuntimeBeforeItsServerAborts) {
  EXPECT_DEATH(
      {
        std::unique_ptr<Server> server;
        auto runtime = *Runtime::Start({.device = "soft"});
        server = *Server::Start(*runtime, {});
        server->Shutdown(Duration::zero());
        runtime.reset();
      },
      "a Runtime is destroyed before 1 of its servers");
}

TEST_F(RuntimeDeathTest, EndingAServerOrARuntimeOnAnExecutorNamesWhatBlocks) {
  const auto on_executor = [](void (*end)(std::unique_ptr<Server>&, std::unique_ptr<Runtime>&)) {
    auto runtime = *Runtime::Start({.device = "soft"});
    std::unique_ptr<Server> server = *Server::Start(*runtime, {});
    const auto run = [&]() -> Task<void> {
      end(server, runtime);
      co_return;
    };
    runtime->BlockOn(run());
  };
  EXPECT_DEATH(on_executor([](auto& server, auto&) { server->Shutdown(Duration::zero()); }),
               "Server::Shutdown was called on an executor's thread");
  EXPECT_DEATH(on_executor([](auto& server, auto&) { server.reset(); }),
               "~Server was called on an executor's thread");
  EXPECT_DEATH(on_executor([](auto&, auto& runtime) { (void)Server::Start(*runtime, {}); }),
               "Server::Start was called on an executor's thread");
  EXPECT_DEATH(on_executor([](auto&, auto& runtime) { runtime.reset(); }),
               "~Runtime was called on an executor's thread");
}

TEST_F(RuntimeDeathTest, AnExecutorThatThereIsNotAborts) {
  const auto use = [](void (*with)(Runtime&)) {
    auto runtime = *Runtime::Start();
    with(*runtime);
  };
  EXPECT_DEATH(use([](Runtime& runtime) { (void)runtime.BlockOn(Seven(), 1); }), "executor 1 of 1");
  EXPECT_DEATH(use([](Runtime& runtime) { runtime.Spawn(Seven(), -1); }), "executor -1 of 1");
  EXPECT_DEATH(use([](Runtime& runtime) { runtime.executor(1); }), "executor 1 of 1");
  EXPECT_DEATH(use([](Runtime& runtime) { (void)runtime.device_stats(1); }), "executor 1 of 1");
}

}  // namespace runtime_test
}  // namespace verbena::internal
