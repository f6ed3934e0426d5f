// kill -9 of a process that writes to a store, at random moments, loses nothing that was flushed,
// and tears no block. The kernel keeps what was written, flushed or not: power_loss_test shows what
// flushes are for. Built once per backend of files.

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/block_store/limits.h"
#include "examples/block_store/volume_store.h"
#include "tests/examples/block_store/crash_load.h"
#include "tests/examples/block_store/store_fixture.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"

namespace block_store {
namespace store_crash_test {

using verbena::Buffer;
using verbena::Task;

constexpr int kKills = 20;
// A slow machine stops after kEnough, but not before this many kills, nor before one met a flush.
constexpr int kMinKills = 2;
constexpr std::chrono::seconds kEnough(20);
constexpr uint64_t kMostWrites = 1000;  // of a child

// Memory that parent and child share.
struct Notes {
  BlockState blocks[kCrashBlocks];
  std::atomic<uint64_t> acknowledged;
};

class Target {
 public:
  Target(VolumeStore& store, verbena::internal::BufferPool& pool) : store_(store), pool_(pool) {}

  Task<absl::StatusOr<Buffer>> Allocate(size_t bytes) const {
    co_return co_await pool_.Allocate(bytes);
  }
  Task<absl::Status> Write(uint64_t offset, const Buffer& data, bool flush) const {
    co_return co_await store_.Write(name_, offset, data.view(), flush);
  }
  Task<absl::Status> Flush() const { co_return co_await store_.Flush(name_); }

 private:
  VolumeStore& store_;
  verbena::internal::BufferPool& pool_;
  const std::string name_ = "v";
};

class StoreCrashTest : public StoreTest {
 protected:
  // The parent has no executor, and so no thread, while it forks.
  void SetUp() override {
    StoreTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_TRUE(Create("v", kCrashBlocks).ok());
    CloseAll();
    void* shared =
        mmap(nullptr, sizeof(Notes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(shared, MAP_FAILED);
    notes_ = new (shared) Notes{};
  }
  void TearDown() override {
    if (notes_ != nullptr) munmap(notes_, sizeof(Notes));
    StoreTest::TearDown();
  }

  void CloseAll() {
    store_.reset();
    executor_.reset();
    pool_.reset();
  }
  void OpenAll() {
    executor_ =
        verbena::Executor::Create({.mode = mode(), .waiter = verbena::internal::kTestedWaiter})
            .value();
    pool_ = verbena::internal::BufferPool::Create(*executor_, device_, nullptr, {.name = "test"})
                .value();
    Reopen();
  }

  // An exception ends the child: GoogleTest would run it as a second test.
  [[noreturn]] void RunChild(uint32_t seed, pid_t parent) noexcept {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    OpenAll();
    if (store_ == nullptr) _exit(1);
    const Target target(*store_, *pool_);
    std::mt19937 random(seed);
    std::vector<CrashWriter<Target>> writers;
    for (uint64_t i = 0; i < kCrashWriters; ++i) {
      writers.emplace_back(target, i, random(), absl::MakeSpan(notes_->blocks));
    }
    Run([&]() -> Task<void> {
      verbena::TaskScope scope(co_await verbena::CurrentContext());
      for (CrashWriter<Target>& writer : writers) scope.Spawn(writer.Run(notes_->acknowledged));
      co_await scope.Join();
    });
    // Only if calls failed.
    _exit(1);
  }

  // Kills the child after so many acknowledged writes.
  void WriteUntilKilled(uint32_t seed, uint64_t count) {
    notes_->acknowledged = 0;
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child == 0) RunChild(seed, parent);
    ASSERT_GT(child, 0);
    int status = 0;
    // Another process counts, so this one polls.
    while (notes_->acknowledged < count) {
      ASSERT_EQ(waitpid(child, &status, WNOHANG), 0) << "the child ended by itself";
      std::this_thread::yield();
    }
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself";
  }

  bool HasFlushed() const {
    return std::any_of(std::begin(notes_->blocks), std::end(notes_->blocks),
                       [](const BlockState& block) { return block.flushed > 0; });
  }

  Notes* notes_ = nullptr;
};

TEST_F(StoreCrashTest, AKillLosesNothingThatWasFlushedAndTearsNoBlock) {
  const uint32_t seed = CrashSeed();
  std::cout << "VERBENA_SEED=" << seed << std::endl;
  std::mt19937 random(seed);
  const auto end = std::chrono::steady_clock::now() + kEnough;
  uint64_t found = 0;
  int kills = 0;
  const auto is_enough = [&] {
    return kills >= kMinKills && std::chrono::steady_clock::now() >= end && HasFlushed();
  };
  for (; kills < kKills && !is_enough(); ++kills) {
    const uint32_t child_seed = random();
    WriteUntilKilled(child_seed, 1 + random() % kMostWrites);
    ASSERT_FALSE(HasFatalFailure());
    OpenAll();
    ASSERT_FALSE(HasFatalFailure());
    const absl::StatusOr<std::string> all = Read("v", 0, kCrashBlocks * kBlockBytes);
    ASSERT_TRUE(all.ok()) << all.status();
    found = CheckBlocksAfterCrash(all->data(), absl::MakeSpan(notes_->blocks));
    ASSERT_FALSE(HasFailure()) << "VERBENA_SEED=" << seed << ", after kill " << kills + 1;
    CloseAll();
  }
  // Otherwise the test would prove nothing.
  EXPECT_GT(found, 0u);
  EXPECT_TRUE(HasFlushed());
}

}  // namespace store_crash_test
}  // namespace block_store
