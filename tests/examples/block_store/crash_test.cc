// kill -9 of the server at random moments, under load, loses nothing that was flushed: no block is
// torn, and every volume is whole or not there. The kernel outlives the server and keeps what was
// written, flushed or not: power_loss_test shows what flushes are for. VERBENA_SEED replays the
// moments that a failure names, as far as the machine's timing goes.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/block_store/limits.h"
#include "examples/block_store/volume_client.h"
#include "gtest/gtest.h"
#include "tests/examples/block_store/crash_load.h"
#include "tests/examples/block_store/server_fixture.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"

namespace block_store {
namespace crash_test {

using verbena::Buffer;
using verbena::CurrentContext;
using verbena::Task;
using verbena::TaskScope;

constexpr int kKills = 8;
// A slow machine stops after kEnough, but not before this many kills, nor before they met a flush
// and a new volume.
constexpr int kMinKills = 2;
constexpr std::chrono::seconds kEnough(60);
constexpr uint64_t kBlocksOfMadeVolume = 3;
constexpr uint64_t kMostWrites = 300;  // before a kill

// The volume, through the server.
class Target {
 public:
  explicit Target(const VolumeClient& volume) : volume_(volume) {}

  Task<absl::StatusOr<Buffer>> Allocate(size_t bytes) const {
    co_return co_await volume_.channel().AllocateBuffer(bytes);
  }
  Task<absl::Status> Write(uint64_t offset, Buffer& data, bool flush) const {
    co_return co_await volume_.Write(offset, data, flush);
  }
  Task<absl::Status> Flush() const { co_return co_await volume_.Flush(); }

 private:
  const VolumeClient& volume_;
};

class CrashTest : public ServerProcessTest {
 public:
  // Makes up to 8 volumes, one after the other, until a call fails.
  Task<void> MakeVolumes(verbena::Channel& channel, int round) {
    for (int i = 0; i < 8; ++i) {
      const std::string name = "made" + std::to_string(round) + "." + std::to_string(i);
      const VolumeClient volume(channel, name);
      tried_.insert(name);
      if (!(co_await volume.Create(kBlocksOfMadeVolume)).ok()) co_return;
      made_.insert(name);
    }
  }

  Task<void> RunLoad(std::vector<CrashWriter<Target>>& writers, verbena::Channel& channel,
                     int round, std::atomic<uint64_t>& acknowledged) {
    TaskScope scope(co_await CurrentContext());
    for (CrashWriter<Target>& writer : writers) scope.Spawn(writer.Run(acknowledged));
    scope.Spawn(MakeVolumes(channel, round));
    co_await scope.Join();
  }

  // Writes until the server has been killed, after so many acknowledged writes, so that the kill
  // meets a server at work.
  void WriteUntilKilled(std::mt19937& random, int round, uint64_t count) {
    auto runtime = verbena::Runtime::Start({.mode = verbena::ExecutorMode::kEvent});
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    verbena::Channel channel(**runtime, server_->address());
    const VolumeClient volume(channel, "v");
    const Target target(volume);
    std::vector<CrashWriter<Target>> writers;
    for (uint64_t i = 0; i < kCrashWriters; ++i) {
      writers.emplace_back(target, i, random(), absl::MakeSpan(blocks_));
    }
    std::atomic<uint64_t> acknowledged{0};
    constexpr uint64_t kNoMore = UINT64_MAX;
    std::thread load([&] {
      (*runtime)->BlockOn(RunLoad(writers, channel, round, acknowledged));
      acknowledged = kNoMore;
      acknowledged.notify_all();
    });
    uint64_t seen = acknowledged;
    for (; seen < count; seen = acknowledged) acknowledged.wait(seen);
    KillServer();
    load.join();
    ASSERT_NE(seen, kNoMore) << "the writes failed before the kill";
  }

  // Checks the blocks of a server that was started again.
  Task<absl::Status> Check(verbena::Channel& channel) {
    const VolumeClient volume(channel, "v");
    VERBENA_CO_ASSIGN_OR_RETURN(const std::string all,
                                co_await volume.ReadBytes(0, kCrashBlocks * kBlockBytes));
    blocks_found_ = CheckBlocksAfterCrash(all.data(), absl::MakeSpan(blocks_));
    VERBENA_CO_ASSIGN_OR_RETURN(const std::vector<v1::VolumeEntry> volumes,
                                co_await ListVolumes(channel));
    std::set<std::string> found;
    for (const v1::VolumeEntry& entry : volumes) {
      if (entry.volume() == "v") continue;
      found.insert(entry.volume());
      EXPECT_EQ(entry.blocks(), kBlocksOfMadeVolume) << entry.volume();
      EXPECT_TRUE(tried_.contains(entry.volume())) << entry.volume();
    }
    for (const std::string& name : made_) EXPECT_TRUE(found.contains(name)) << name;
    co_return absl::OkStatus();
  }

  absl::Status WithServer(Task<absl::Status> (*work)(CrashTest&, verbena::Channel&)) {
    auto runtime = verbena::Runtime::Start({.mode = verbena::ExecutorMode::kEvent});
    if (!runtime.ok()) return runtime.status();
    verbena::Channel channel(**runtime, server_->address());
    return (*runtime)->BlockOn(work(*this, channel));
  }

  // Otherwise the test would prove nothing.
  bool ProvesSomething() const {
    const auto is_flushed = [](const BlockState& block) { return block.flushed > 0; };
    return blocks_found_ > 0 && !made_.empty() &&
           std::any_of(blocks_.begin(), blocks_.end(), is_flushed);
  }

  std::vector<BlockState> blocks_ = std::vector<BlockState>(kCrashBlocks);
  std::set<std::string> tried_;
  std::set<std::string> made_;
  uint64_t blocks_found_ = 0;
};

TEST_F(CrashTest, AKillLosesNothingThatWasFlushedAndTearsNoBlock) {
  const uint32_t seed = CrashSeed();
  std::cout << "VERBENA_SEED=" << seed << std::endl;
  std::mt19937 random(seed);
  const auto end = std::chrono::steady_clock::now() + kEnough;
  int kills = 0;
  StartServer();
  ASSERT_FALSE(HasFatalFailure());
  const absl::Status made =
      WithServer([](CrashTest&, verbena::Channel& channel) -> Task<absl::Status> {
        const VolumeClient volume(channel, "v");
        co_return co_await volume.Create(kCrashBlocks);
      });
  ASSERT_TRUE(made.ok()) << made;
  const auto is_enough = [&] {
    return kills >= kMinKills && std::chrono::steady_clock::now() >= end && ProvesSomething();
  };
  for (; kills < kKills && !is_enough(); ++kills) {
    WriteUntilKilled(random, kills, 1 + random() % kMostWrites);
    ASSERT_FALSE(HasFatalFailure());
    StartServer();
    ASSERT_FALSE(HasFatalFailure());
    const absl::Status checked =
        WithServer([](CrashTest& test, verbena::Channel& channel) -> Task<absl::Status> {
          co_return co_await test.Check(channel);
        });
    ASSERT_TRUE(checked.ok()) << checked;
    ASSERT_FALSE(HasFailure()) << "VERBENA_SEED=" << seed << ", after kill " << kills + 1;
  }
  EXPECT_TRUE(ProvesSomething()) << blocks_found_ << " blocks, " << made_.size() << " volumes";
}

}  // namespace crash_test
}  // namespace block_store
