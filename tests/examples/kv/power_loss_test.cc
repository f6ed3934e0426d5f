// Power loss at every flush point: the disk's writes are noted while a store on RocksDB is under
// load, and replayed up to each moment at which the disk promised that something is durable. All
// writes that the store had acknowledged by then are there, no value is torn, and each write's
// record is there with its data.
//
// In the guest alone, on disks that VERBENA_DISKS names: the store's, the log's, and one to mount
// replays on. VERBENA_POWER_LOSS=all checks every flush point, otherwise about 20 of them.
// VERBENA_SEED replays a load, as far as the machine's timing goes.

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/kv/rocks_store.h"
#include "examples/kv/store.h"
#include "gtest/gtest.h"
#include "tests/examples/block_store/flush_points.h"
#include "tests/examples/block_store/logged_disk.h"
#include "tests/examples/kv/crash_load.h"
#include "tests/examples/kv/store_fixture.h"
#include "verbena/rpc/task.h"

namespace kv {
namespace power_loss_test {

using block_store::DiskPaths;
using block_store::LoggedDisk;
using verbena::CurrentContext;
using verbena::Task;
using verbena::TaskScope;

constexpr size_t kMarks = 40;
constexpr uint64_t kWritesPerMark = 20;
constexpr size_t kChecksInShort = 20;

// The numbers of the writes that were acknowledged at one moment, by key.
using Promised = std::vector<uint64_t>;

// The store, and notes of its promises.
class Target {
 public:
  Target(Store& store, const std::vector<KeyState>& keys) : store_(store), keys_(keys) {}

  Task<absl::Status> Put(size_t index, uint64_t number) {
    if (full()) co_return absl::CancelledError("enough");
    const std::string key = CrashKey(index);
    const std::string value = CrashValue(index, number);
    // The record says the same as the value.
    const StoreRecord record{.id = key, .bytes = value};
    const absl::StatusOr<bool> existed = co_await store_.Write(
        {.key = key, .value = value, .records = absl::MakeConstSpan(&record, 1)});
    EXPECT_TRUE(existed.ok()) << existed.status();
    co_return existed.status();
  }
  void OnAcknowledged() {
    if (++acknowledged_ % kWritesPerMark != 0 || full()) return;
    Promised now;
    for (const KeyState& key : keys_) now.push_back(key.acknowledged);
    promised_.push_back(std::move(now));
    const absl::Status marked = LoggedDisk::Mark(std::to_string(promised_.size() - 1));
    EXPECT_TRUE(marked.ok()) << marked;
  }

  bool full() const { return promised_.size() >= kMarks; }
  std::vector<Promised> TakePromised() { return std::move(promised_); }

 private:
  Store& store_;
  const std::vector<KeyState>& keys_;
  uint64_t acknowledged_ = 0;
  std::vector<Promised> promised_;
};

class PowerLossTest : public StoreFixture {
 protected:
  void SetUp() override {
    const char* disks = std::getenv("VERBENA_DISKS");
    if (disks == nullptr) {
      GTEST_SKIP() << "needs disks that it may overwrite, in VERBENA_DISKS: ./dev vm --raw-disk";
    }
    DiskPaths paths;
    std::istringstream(disks) >> paths.disk >> paths.log >> paths.replay;
    disk_ = std::make_unique<LoggedDisk>(paths);
    const absl::Status opened = disk_->Open();
    ASSERT_TRUE(opened.ok()) << opened;
    log_path_ = paths.log;
  }
  void TearDown() override {
    store_.reset();
    disk_.reset();
  }

  // Small buffers: the disks are small, and files are to be sorted and merged during the load.
  void OpenAt(const std::string& directory) {
    absl::StatusOr<std::unique_ptr<RocksStore>> store =
        RocksStore::Open({.directory = directory + "/store",
                          .write_buffer_bytes = size_t{128} << 10,
                          .cache_bytes = size_t{1} << 20});
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }

  // Writes until there are kMarks promises.
  std::vector<Promised> RunLoad(uint32_t seed) {
    std::mt19937 random(seed);
    OpenAt(LoggedDisk::kDirectory);
    if (store_ == nullptr) return {};
    Target target(*store_, keys_);
    std::vector<CrashWriter<Target>> writers;
    for (size_t i = 0; i < kCrashWriters; ++i) {
      writers.emplace_back(target, i, random(), absl::MakeSpan(keys_));
    }
    auto run = [&]() -> Task<void> {
      TaskScope scope(co_await CurrentContext());
      for (CrashWriter<Target>& writer : writers) scope.Spawn(writer.Run());
      co_await scope.Join();
    };
    Run(run());
    store_.reset();
    return target.TakePromised();
  }

  // Opens a store on `image`, and compares.
  void Check(const std::vector<char>& image, const Promised& promised) {
    const absl::Status mounted = disk_->MountReplay(image);
    ASSERT_TRUE(mounted.ok()) << mounted;
    OpenAt(LoggedDisk::kReplayDirectory);
    if (store_ != nullptr) CheckStore(promised);
    store_.reset();
    const absl::Status unmounted = LoggedDisk::UnmountReplay();
    ASSERT_TRUE(unmounted.ok()) << unmounted;
  }
  void CheckStore(const Promised& promised) {
    for (size_t i = 0; i < kCrashKeys; ++i) {
      const std::optional<std::string> value = Found(Get(CrashKey(i)));
      CheckKeyAfterCrash(i, value, promised[i], keys_[i].sent);
      EXPECT_EQ(Found(GetRecord(CrashKey(i))), value) << CrashKey(i) << " and its record differ";
    }
  }
  static std::optional<std::string> Found(const absl::StatusOr<std::string>& got) {
    EXPECT_TRUE(got.ok() || absl::IsNotFound(got.status())) << got.status();
    if (!got.ok()) return std::nullopt;
    return *got;
  }

  std::unique_ptr<LoggedDisk> disk_;
  std::string log_path_;
  std::vector<KeyState> keys_ = std::vector<KeyState>(kCrashKeys);
};

TEST_F(PowerLossTest, NothingThatWasAcknowledgedIsLostOrTorn) {
  const uint32_t seed = CrashSeed();
  std::cout << "VERBENA_SEED=" << seed << std::endl;
  const std::vector<Promised> promised = RunLoad(seed);
  ASSERT_GE(promised.size(), kMarks);
  ASSERT_FALSE(HasFailure());
  const absl::Status closed = disk_->Close();
  ASSERT_TRUE(closed.ok()) << closed;

  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  block_store::CheckFlushPoints(log_path_, disk_->formatted(), kChecksInShort,
                                [&](const std::vector<char>& image, size_t mark) {
                                  ASSERT_LT(mark, promised.size());
                                  Check(image, promised[mark]);
                                });
}

}  // namespace power_loss_test
}  // namespace kv
