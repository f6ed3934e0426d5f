// Power loss at every flush point: the disk's writes are noted while a store is under load, and
// replayed up to each moment at which the disk promised that something is durable. All data that
// the store had acknowledged as flushed by then is there, no block is torn, and each volume is
// whole.
//
// In the guest alone, on disks that VERBENA_DISKS names: the store's, the log's, and one to mount
// replays on. VERBENA_POWER_LOSS=all checks every flush point, otherwise about 20 of them.
// VERBENA_SEED replays a load, as far as the machine's timing goes.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/block_store/limits.h"
#include "examples/block_store/volume_store.h"
#include "gtest/gtest.h"
#include "tests/examples/block_store/crash_load.h"
#include "tests/examples/block_store/flush_points.h"
#include "tests/examples/block_store/logged_disk.h"
#include "tests/examples/block_store/store_fixture.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sleep.h"

namespace block_store {
namespace {

using verbena::Buffer;
using verbena::Task;

constexpr size_t kMarks = 40;
constexpr uint64_t kBlocksOfMadeVolume = 3;
constexpr size_t kChecksInShort = 20;
constexpr std::chrono::milliseconds kPollInterval(1);

// All that was acknowledged as durable at one moment.
struct Promised {
  std::vector<uint64_t> flushed;
  std::set<std::string> volumes;
};

// The volume "v", and notes of its promises.
class Target {
 public:
  Target(VolumeStore& store, verbena::internal::BufferPool& pool, std::vector<BlockState>& blocks)
      : store_(store), pool_(pool), blocks_(blocks) {}

  Task<absl::StatusOr<Buffer>> Allocate(size_t bytes) const {
    co_return co_await pool_.Allocate(bytes);
  }
  Task<absl::Status> Write(uint64_t offset, const Buffer& data, bool flush) const {
    if (full()) co_return absl::CancelledError("enough");
    co_return co_await store_.Write(name_, offset, data.view(), flush);
  }
  Task<absl::Status> Flush() const { co_return co_await store_.Flush(name_); }

  // Called after each acknowledgement that data is durable.
  void OnFlushed() const {
    if (full()) return;
    Promised now{.flushed = {}, .volumes = volumes_};
    for (const BlockState& block : blocks_) now.flushed.push_back(block.flushed);
    promised_.push_back(std::move(now));
    const absl::Status marked = LoggedDisk::Mark(std::to_string(promised_.size() - 1));
    EXPECT_TRUE(marked.ok()) << marked;
  }
  Task<absl::Status> Make(std::string name) const {
    VERBENA_CO_RETURN_IF_ERROR(co_await store_.Create(name, kBlocksOfMadeVolume));
    volumes_.insert(name);
    OnFlushed();
    co_return absl::OkStatus();
  }

  // Not before a volume is among the promises, however slow its making is.
  bool full() const { return promised_.size() >= kMarks && !promised_.back().volumes.empty(); }
  const std::vector<Promised>& promised() const { return promised_; }

 private:
  VolumeStore& store_;
  verbena::internal::BufferPool& pool_;
  std::vector<BlockState>& blocks_;
  const std::string name_ = "v";
  mutable std::vector<Promised> promised_;
  mutable std::set<std::string> volumes_;
};

Task<void> MakeVolumes(const Target& target) {
  for (int i = 0; !target.full() && i < 16; ++i) {
    const absl::Status made = co_await target.Make("made" + std::to_string(i));
    EXPECT_TRUE(made.ok()) << made;
  }
}

class PowerLossTest : public StoreTest {
 protected:
  void SetUp() override {
    const char* disks = std::getenv("VERBENA_DISKS");
    if (disks == nullptr) {
      GTEST_SKIP() << "needs disks that it may overwrite, in VERBENA_DISKS: ./dev vm --raw-disk";
    }
    DiskPaths paths;
    std::istringstream(disks) >> paths.disk >> paths.log >> paths.replay;
    StoreTest::SetUp();
    ASSERT_FALSE(IsSkipped());
    store_.reset();
    disk_ = std::make_unique<LoggedDisk>(paths);
    const absl::Status opened = disk_->Open();
    ASSERT_TRUE(opened.ok()) << opened;
    log_path_ = paths.log;
  }
  void TearDown() override {
    store_.reset();
    disk_.reset();
    if (executor_ != nullptr) StoreTest::TearDown();
  }

  std::unique_ptr<VolumeStore> OpenAt(const std::string& directory) {
    absl::StatusOr<std::unique_ptr<VolumeStore>> store =
        VolumeStore::Open(directory, {executor_.get()});
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }

  // Files are closed in the background; a file system with open files cannot be unmounted.
  void CloseStore(const std::string& directory) {
    store_.reset();
    Run([&]() -> Task<void> {
      while (HasOpenFiles(directory)) (co_await verbena::Sleep(kPollInterval)).IgnoreError();
    });
  }
  static bool HasOpenFiles(const std::string& directory) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const std::filesystem::path target = std::filesystem::read_symlink(entry.path(), gone);
      if (target.string().starts_with(directory)) return true;
    }
    return false;
  }

  // Writes, flushes and makes volumes until there are kMarks promises.
  std::vector<Promised> RunLoad(uint32_t seed) {
    std::mt19937 random(seed);
    store_ = OpenAt(LoggedDisk::kDirectory);
    if (store_ == nullptr || !Create("v", kCrashBlocks).ok()) return {};
    const Target target(*store_, *pool_, blocks_);
    std::vector<CrashWriter<Target>> writers;
    for (uint64_t i = 0; i < kCrashWriters; ++i) {
      writers.emplace_back(target, i, random(), absl::MakeSpan(blocks_));
    }
    std::atomic<uint64_t> acknowledged{0};
    Run([&]() -> Task<void> {
      verbena::TaskScope scope(co_await verbena::CurrentContext());
      for (CrashWriter<Target>& writer : writers) scope.Spawn(writer.Run(acknowledged));
      scope.Spawn(MakeVolumes(target));
      co_await scope.Join();
    });
    CloseStore(LoggedDisk::kDirectory);
    return target.promised();
  }

  // Opens a store on `image`, and compares.
  void Check(const std::vector<char>& image, const Promised& promised) {
    const absl::Status mounted = disk_->MountReplay(image);
    ASSERT_TRUE(mounted.ok()) << mounted;
    store_ = OpenAt(LoggedDisk::kReplayDirectory);
    if (store_ != nullptr) CheckStore(promised);
    CloseStore(LoggedDisk::kReplayDirectory);
    const absl::Status unmounted = LoggedDisk::UnmountReplay();
    ASSERT_TRUE(unmounted.ok()) << unmounted;
  }

  void CheckStore(const Promised& promised) {
    const absl::StatusOr<std::string> all = Read("v", 0, kCrashBlocks * kBlockBytes);
    ASSERT_TRUE(all.ok()) << all.status();
    std::vector<BlockState> expected(kCrashBlocks);
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i].flushed = promised.flushed[i];
      expected[i].sent = blocks_[i].sent.load();
    }
    CheckBlocksAfterCrash(all->data(), absl::MakeSpan(expected));
    std::set<std::string> found;
    for (const Volume* volume : store_->List("", kMaxVolumes)) {
      found.insert(volume->name);
      if (volume->name != "v") {
        EXPECT_EQ(volume->blocks, kBlocksOfMadeVolume) << volume->name;
      }
    }
    for (const std::string& name : promised.volumes) EXPECT_TRUE(found.contains(name)) << name;
  }

  std::unique_ptr<LoggedDisk> disk_;
  std::string log_path_;
  std::vector<BlockState> blocks_ = std::vector<BlockState>(kCrashBlocks);
};

TEST_F(PowerLossTest, NothingThatWasFlushedIsLostOrTorn) {
  const uint32_t seed = CrashSeed();
  std::cout << "VERBENA_SEED=" << seed << std::endl;
  const std::vector<Promised> promised = RunLoad(seed);
  ASSERT_GE(promised.size(), kMarks);
  ASSERT_TRUE(std::ranges::any_of(promised.back().flushed, [](uint64_t f) { return f > 0; }));
  ASSERT_FALSE(promised.back().volumes.empty());
  const absl::Status closed = disk_->Close();
  ASSERT_TRUE(closed.ok()) << closed;

  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  CheckFlushPoints(log_path_, disk_->formatted(), kChecksInShort,
                   [&](const std::vector<char>& image, size_t mark) {
                     ASSERT_LT(mark, promised.size());
                     Check(image, promised[mark]);
                   });
}

}  // namespace
}  // namespace block_store
