// kill -9 of kv_server on RocksDB at random moments, under load, loses no acknowledged Put and
// leaves no half of a value; and calls that are repeated through kills run once. The kernel
// outlives the server and keeps what was written, synced or not: power_loss_test shows what syncs
// are for. VERBENA_SEED replays the moments that a failure names, as far as the machine's timing
// goes.

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/common/server_process.h"
#include "examples/common/signals.h"
#include "examples/kv/kv.pb.h"
#include "examples/kv/kv.verbena.pb.h"
#include "gtest/gtest.h"
#include "tests/examples/kv/crash_load.h"
#include "tests/support/held_port.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/dedupe.h"
#include "verbena/rpc/memory.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/task.h"

namespace kv {
namespace {

using verbena::Buffer;
using verbena::Channel;
using verbena::CurrentContext;
using verbena::Runtime;
using verbena::Task;
using verbena::TaskScope;

constexpr int kKills = 6;
// A slow machine stops after kEnough, but not before this many kills.
constexpr int kMinKills = 2;
constexpr std::chrono::seconds kEnough(40);
constexpr std::chrono::seconds kCallTimeout(60);
constexpr uint64_t kMostBetweenKills = 200;  // acknowledged writes

// Stands in a counter once the load that counts has ended.
constexpr uint64_t kNoMore = UINT64_MAX;

void AwaitAtLeast(uint64_t count, const std::atomic<uint64_t>& counter) {
  for (uint64_t seen = counter; seen < count; seen = counter) counter.wait(seen);
}

// The store, through the server.
class Target {
 public:
  explicit Target(Channel& channel) : channel_(channel), stub_(channel) {}

  Task<absl::Status> Put(size_t index, uint64_t number) {
    const std::string value = CrashValue(index, number);
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer payload, co_await channel_.AllocateBuffer(value.size()));
    std::memcpy(payload.data(), value.data(), value.size());
    v1::PutRequest request;
    request.set_key(CrashKey(index));
    v1::PutReply reply;
    co_return co_await stub_.Put(request, reply,
                                 {.deadline = kCallTimeout, .request_payload = std::move(payload)});
  }
  Task<absl::StatusOr<std::optional<std::string>>> Get(size_t index) {
    v1::GetRequest request;
    request.set_key(CrashKey(index));
    auto reply = co_await stub_.Get(request, {.deadline = kCallTimeout});
    if (absl::IsNotFound(reply.status())) co_return std::nullopt;
    if (!reply.ok()) co_return reply.status();
    co_return std::string(reply->payload.data(), reply->payload.size());
  }
  void OnAcknowledged() {
    ++acknowledged_;
    acknowledged_.notify_all();
  }
  // Waits for so many acknowledgements, or for End().
  void Await(uint64_t count) const { AwaitAtLeast(count, acknowledged_); }
  void End() {
    acknowledged_ = kNoMore;
    acknowledged_.notify_all();
  }

 private:
  Channel& channel_;
  v1::KeyValue::Stub stub_;
  std::atomic<uint64_t> acknowledged_{0};
};

class CrashTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() + "/kv_crash_XXXXXX";
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    signals_ = examples::StopSignals::Block().value();
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(directory_);
  }

  void StartServer(const std::string& address = "127.0.0.1:0") {
    auto server = examples::ServerProcess::Start(
        "examples/kv/kv_server", {"--store=rocksdb", "--directory=" + directory_ + "/store",
                                  "--address=" + address, "--mode=event"});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    const absl::Status ready = server_->WaitUntilReady(*signals_);
    ASSERT_TRUE(ready.ok()) << ready;
  }

  static std::unique_ptr<Runtime> StartRuntime() {
    return Runtime::Start({.mode = verbena::ExecutorMode::kEvent}).value();
  }

  // Writes until the server has been killed, after so many acknowledgements, so that the kill meets
  // a server at work.
  void WriteUntilKilled(std::mt19937& random, uint64_t acknowledgements) {
    const std::unique_ptr<Runtime> runtime = StartRuntime();
    Channel channel(*runtime, server_->address());
    Target target(channel);
    std::vector<CrashWriter<Target>> writers;
    for (size_t i = 0; i < kCrashWriters; ++i) {
      writers.emplace_back(target, i, random(), absl::MakeSpan(keys_));
    }
    auto run = [&]() -> Task<void> {
      TaskScope scope(co_await CurrentContext());
      for (CrashWriter<Target>& writer : writers) scope.Spawn(writer.Run());
      co_await scope.Join();
    };
    std::thread load([&] {
      runtime->BlockOn(run());
      target.End();
    });
    target.Await(acknowledgements);
    server_.reset();  // by SIGKILL
    load.join();
  }

  // Checks all keys of a server that was started again. Returns how many have a value.
  size_t CheckKeys() {
    const std::unique_ptr<Runtime> runtime = StartRuntime();
    Channel channel(*runtime, server_->address());
    Target target(channel);
    size_t found = 0;
    for (size_t i = 0; i < kCrashKeys; ++i) {
      const auto value = runtime->BlockOn(target.Get(i));
      EXPECT_TRUE(value.ok()) << value.status();
      if (!value.ok()) break;
      const uint64_t number = CheckKeyAfterCrash(i, *value, keys_[i].acknowledged, keys_[i].sent);
      if (number != 0) ++found;
    }
    return found;
  }

  std::string directory_;
  std::unique_ptr<examples::StopSignals> signals_;
  std::unique_ptr<examples::ServerProcess> server_;
  std::vector<KeyState> keys_ = std::vector<KeyState>(kCrashKeys);
};

TEST_F(CrashTest, AKillLosesNoPutThatWasAcknowledged) {
  const uint32_t seed = CrashSeed();
  std::cout << "VERBENA_SEED=" << seed << std::endl;
  std::mt19937 random(seed);
  const auto end = std::chrono::steady_clock::now() + kEnough;
  StartServer();
  ASSERT_FALSE(HasFatalFailure());
  for (int kills = 0;
       kills < kMinKills || (kills < kKills && std::chrono::steady_clock::now() < end); ++kills) {
    WriteUntilKilled(random, 1 + random() % kMostBetweenKills);
    StartServer();
    ASSERT_FALSE(HasFatalFailure());
    EXPECT_GT(CheckKeys(), 0u);
    ASSERT_FALSE(HasFailure()) << "VERBENA_SEED=" << seed << ", after kill " << kills + 1;
  }
}

// Puts and deletes keys that nobody else uses, each call again and again until it is answered. Its
// answer must be that of the attempt that ran.
class Repeater {
 public:
  Repeater(Channel& channel, size_t writer) : stub_(channel), writer_(writer) {}

  // Counts answered Puts in `answered`, which all Repeaters share.
  Task<void> Run(const std::atomic<bool>& ends, std::atomic<uint64_t>& answered) {
    while (!ends && !testing::Test::HasFailure()) {
      co_await PutOnce(rounds_++);
      ++answered;
      answered.notify_all();
      if (rounds_ % 2 == 0) co_await DeleteOnce(rounds_ - 1);
    }
  }
  uint64_t rounds() const { return rounds_; }
  uint64_t repetitions() const { return repetitions_; }

 private:
  std::string KeyOf(uint64_t round) const {
    return std::to_string(writer_) + " " + std::to_string(round);
  }
  static verbena::CallOptions Options(verbena::DedupeToken& token) {
    return {.deadline = kCallTimeout, .wait_for_ready = true, .dedupe = &token};
  }
  // True if the call is to be repeated, since a server died with it.
  bool Repeats(const absl::Status& status) {
    if (status.ok()) return false;
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    ++repetitions_;
    return absl::IsUnavailable(status);
  }
  Task<void> PutOnce(uint64_t round) {
    verbena::DedupeToken token;
    v1::PutRequest request;
    request.set_key(KeyOf(round));
    absl::StatusOr<v1::PutReply> reply;
    do {
      verbena::CallOptions options = Options(token);
      options.request_payload = verbena::Payload::Empty();
      reply = co_await stub_.Put(request, std::move(options));
    } while (Repeats(reply.status()));
    EXPECT_TRUE(reply.ok() && reply->created()) << "Put of '" << request.key() << "' ran twice";
  }
  Task<void> DeleteOnce(uint64_t round) {
    verbena::DedupeToken token;
    v1::DeleteRequest request;
    request.set_key(KeyOf(round));
    absl::StatusOr<v1::DeleteReply> reply;
    do {
      reply = co_await stub_.Delete(request, Options(token));
    } while (Repeats(reply.status()));
    EXPECT_TRUE(reply.ok() && reply->existed()) << "Delete of '" << request.key() << "' ran twice";
  }

  v1::KeyValue::Stub stub_;
  const size_t writer_;
  uint64_t rounds_ = 0;
  uint64_t repetitions_ = 0;
};

Task<uint64_t> CountKeys(Channel& channel) {
  const v1::KeyValue::Stub stub(channel);
  v1::ScanRequest request;
  uint64_t keys = 0;
  do {
    const auto page = co_await stub.Scan(request, {.deadline = kCallTimeout});
    EXPECT_TRUE(page.ok()) << page.status();
    if (!page.ok()) break;
    keys += page->entries_size();
    request.set_start_key(page->next_key());
  } while (!request.start_key().empty());
  co_return keys;
}

TEST_F(CrashTest, ARepeatedCallRunsOnceThroughKills) {
  const uint32_t seed = CrashSeed();
  std::cout << "VERBENA_SEED=" << seed << std::endl;
  std::mt19937 random(seed);
  const verbena::HeldPort port;
  StartServer(port.address());
  ASSERT_FALSE(HasFatalFailure());
  const std::unique_ptr<Runtime> runtime = StartRuntime();
  Channel channel(*runtime, port.address());
  std::vector<Repeater> repeaters;
  for (size_t i = 0; i < kCrashWriters; ++i) repeaters.emplace_back(channel, i);
  std::atomic<bool> ends = false;
  std::atomic<uint64_t> answered = 0;
  auto run = [&]() -> Task<void> {
    TaskScope scope(co_await CurrentContext());
    for (Repeater& repeater : repeaters) scope.Spawn(repeater.Run(ends, answered));
    co_await scope.Join();
  };
  std::thread load([&] {
    runtime->BlockOn(run());
    answered = kNoMore;
    answered.notify_all();
  });
  for (int kills = 0; kills < kKills && !HasFailure(); ++kills) {
    // No kill before the server has calls: the client may take long to connect. Then at any moment.
    if (const uint64_t before = answered; before != kNoMore) {
      AwaitAtLeast(before + 1 + random() % kMostBetweenKills, answered);
    }
    server_.reset();  // by SIGKILL
    StartServer(port.address());
  }
  ends = true;
  load.join();
  uint64_t keys = 0;
  uint64_t repetitions = 0;
  for (const Repeater& repeater : repeaters) {
    keys += repeater.rounds() - repeater.rounds() / 2;
    repetitions += repeater.repetitions();
  }
  EXPECT_GT(repetitions, 0u) << "no kill met a call";
  EXPECT_EQ(runtime->BlockOn(CountKeys(channel)), keys) << "of acknowledged calls";
  std::cout << keys << " keys, " << repetitions << " repetitions" << std::endl;
}

}  // namespace
}  // namespace kv
