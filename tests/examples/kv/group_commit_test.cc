// Concurrent writes make up bounded batches in their order. Each caller goes on on its own
// executor, after its batch was stored, and hears whether it was. A write whose coroutine is
// destroyed is taken back or waited for.

#include "examples/kv/group_commit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/kv/store.h"
#include "tests/examples/kv/store_fixture.h"
#include "verbena/rpc/task.h"

namespace kv {
namespace group_commit_test {

using ::testing::ElementsAre;
using verbena::CurrentContext;
using verbena::JoinHandle;
using verbena::Scheduler;
using verbena::Task;
using verbena::TaskScope;

// Notes the keys of each batch, and leaves writes of the key "unreadable" out. While it is held,
// batches stay under way.
class FakeEngine final : public BatchEngine {
 public:
  absl::Status StoreBatch(absl::Span<PendingWrite* const> batch) override {
    std::vector<std::string> keys;
    for (PendingWrite* pending : batch) {
      keys.emplace_back(pending->write->key);
      pending->existed = pending->write->key.starts_with("old");
      if (pending->write->key == "unreadable") {
        pending->status = absl::InternalError("its file is damaged");
      }
    }
    std::unique_lock<std::mutex> lock(mutex_);
    batches_.push_back(std::move(keys));
    begun_.notify_all();
    released_.wait(lock, [&] { return !held_; });
    ended_ = true;
    return result_;
  }

  void Hold() {
    std::lock_guard<std::mutex> lock(mutex_);
    held_ = true;
    ended_ = false;
  }
  void Release() {
    std::lock_guard<std::mutex> lock(mutex_);
    held_ = false;
    released_.notify_all();
  }
  void FailFromNowOn() {
    std::lock_guard<std::mutex> lock(mutex_);
    result_ = absl::DataLossError("the disk is gone");
  }
  void AwaitBatches(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    begun_.wait(lock, [&] { return batches_.size() >= count; });
  }
  std::vector<std::vector<std::string>> batches() {
    std::lock_guard<std::mutex> lock(mutex_);
    return batches_;
  }
  bool ended() {
    std::lock_guard<std::mutex> lock(mutex_);
    return ended_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable begun_;
  std::condition_variable released_;
  bool held_ = false;
  bool ended_ = false;  // a batch has, since Hold()
  absl::Status result_;
  std::vector<std::vector<std::string>> batches_;
};

class GroupCommitTest : public StoreFixture {
 protected:
  // The caller's thread looks for the GroupCommit, which another thread may destroy later.
  VERBENA_CORO_WRAPPER Task<absl::StatusOr<bool>> Commit(std::string key, std::string value = "") {
    return CommitTo(*commits_, std::move(key), std::move(value));
  }
  Task<absl::StatusOr<bool>> CommitTo(GroupCommit& commits, std::string key, std::string value) {
    const StoreWrite write{.key = key, .value = value};
    ++begun_;
    co_return co_await commits.Commit(write);
  }
  // Returns when `count` writes have begun, and wait.
  void AwaitBegun(int count) {
    while (begun_ < count) Run([]() -> Task<void> { co_return; }());
    // The last one waits before its executor runs anything else.
    Run([]() -> Task<void> { co_return; }());
  }
  // Begins a batch of one write, which stays under way.
  JoinHandle<absl::StatusOr<bool>> HoldABatch() {
    engine_.Hold();
    JoinHandle<absl::StatusOr<bool>> first = runtime_->Spawn(Commit("first"));
    engine_.AwaitBatches(1);
    return first;
  }
  std::vector<JoinHandle<absl::StatusOr<bool>>> SpawnMany(int count, const std::string& value) {
    std::vector<JoinHandle<absl::StatusOr<bool>>> spawned;
    const int begun = begun_;
    for (int i = 0; i < count; ++i) {
      spawned.push_back(runtime_->Spawn(Commit(std::to_string(i % 10), value)));
    }
    AwaitBegun(begun + count);
    return spawned;
  }
  std::vector<size_t> BatchSizes() {
    std::vector<size_t> sizes;
    for (const std::vector<std::string>& batch : engine_.batches()) sizes.push_back(batch.size());
    return sizes;
  }

  std::atomic<int> begun_ = 0;
  FakeEngine engine_;
  std::unique_ptr<GroupCommit> commits_ = std::make_unique<GroupCommit>(engine_);
};

TEST_F(GroupCommitTest, ALoneWriteWaitsForNoCompany) {
  EXPECT_EQ(*Run(Commit("new")), false);
  EXPECT_EQ(*Run(Commit("old")), true);
  EXPECT_THAT(BatchSizes(), ElementsAre(1, 1));
  EXPECT_EQ(commits_->batches(), 2u);
}

TEST_F(GroupCommitTest, WritesThatComeWhileABatchIsStoredMakeUpTheNextInTheirOrder) {
  JoinHandle<absl::StatusOr<bool>> first = HoldABatch();
  std::vector<JoinHandle<absl::StatusOr<bool>>> others = SpawnMany(10, "v");
  for (const auto& other : others) EXPECT_FALSE(other.done()) << "its batch has not begun";
  engine_.Release();
  EXPECT_TRUE(first.Join().ok());
  for (auto& other : others) EXPECT_TRUE(other.Join().ok());
  EXPECT_THAT(engine_.batches(),
              ElementsAre(ElementsAre("first"),
                          ElementsAre("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")));
}

TEST_F(GroupCommitTest, ABatchHasAtMostSoManyWrites) {
  JoinHandle<absl::StatusOr<bool>> first = HoldABatch();
  auto others = SpawnMany(static_cast<int>(GroupCommit::kMaxBatchWrites) + 3, "");
  engine_.Release();
  for (auto& other : others) EXPECT_TRUE(other.Join().ok());
  EXPECT_TRUE(first.Join().ok());
  EXPECT_THAT(BatchSizes(), ElementsAre(1, GroupCommit::kMaxBatchWrites, 3));
}

TEST_F(GroupCommitTest, ABatchHasAtMostSoManyBytesOrOneWrite) {
  JoinHandle<absl::StatusOr<bool>> first = HoldABatch();
  // With their keys of one byte, four fill a batch.
  auto others = SpawnMany(6, std::string(GroupCommit::kMaxBatchBytes / 4 - 1, 'v'));
  const int begun = begun_;
  others.push_back(runtime_->Spawn(Commit("large", std::string(GroupCommit::kMaxBatchBytes, 'v'))));
  AwaitBegun(begun + 1);
  engine_.Release();
  for (auto& other : others) EXPECT_TRUE(other.Join().ok());
  EXPECT_TRUE(first.Join().ok());
  EXPECT_THAT(BatchSizes(), ElementsAre(1, 4, 2, 1));
}

TEST_F(GroupCommitTest, EachWriterOfABatchHearsOfItsFailure) {
  JoinHandle<absl::StatusOr<bool>> first = HoldABatch();
  auto others = SpawnMany(3, "v");
  engine_.FailFromNowOn();
  engine_.Release();
  EXPECT_TRUE(absl::IsDataLoss(first.Join().status()));
  for (auto& other : others) EXPECT_TRUE(absl::IsDataLoss(other.Join().status()));
}

TEST_F(GroupCommitTest, AWriteThatWasLeftOutHearsWhyAlsoIfItsBatchFails) {
  EXPECT_TRUE(absl::IsInternal(Run(Commit("unreadable")).status()));
  engine_.FailFromNowOn();
  EXPECT_TRUE(absl::IsInternal(Run(Commit("unreadable")).status()));
  EXPECT_TRUE(absl::IsDataLoss(Run(Commit("new")).status()));
}

TEST_F(GroupCommitTest, EachCallerGoesOnOnItsOwnExecutor) {
  auto commit = [&]() -> Task<bool> {
    const Scheduler* before = Scheduler::Current();
    const StoreWrite write{.key = "k"};
    (co_await commits_->Commit(write)).IgnoreError();
    co_return before != nullptr&& Scheduler::Current() == before;
  };
  for (int executor = 0; executor < kExecutors; ++executor) EXPECT_TRUE(Run(commit(), executor));
}

TEST_F(GroupCommitTest, AWriteWhoseCoroutineIsDestroyedBeforeItsTurnIsNotStored) {
  JoinHandle<absl::StatusOr<bool>> first = HoldABatch();
  static const StoreWrite kLeft{.key = "left"};
  auto leave = [&]() -> Task<void> {
    TaskScope scope(co_await CurrentContext());
    scope.Spawn([&]() -> Task<void> { (co_await commits_->Commit(kLeft)).IgnoreError(); });
    (co_await verbena::Yield()).IgnoreError();  // by then it waits; the scope destroys it
  };
  Run(leave());
  auto last = SpawnMany(1, "v");
  engine_.Release();
  EXPECT_TRUE(first.Join().ok());
  EXPECT_TRUE(last[0].Join().ok());
  EXPECT_THAT(engine_.batches(), ElementsAre(ElementsAre("first"), ElementsAre("0")));
}

TEST_F(GroupCommitTest, DestroyingACoroutineWaitsForTheBatchThatItsWriteIsIn) {
  engine_.Hold();
  std::atomic<bool> leaving{false};
  auto leave = [&]() -> Task<bool> {
    {
      TaskScope scope(co_await CurrentContext());
      scope.Spawn([&]() -> Task<void> {
        const StoreWrite write{.key = "left"};
        (co_await commits_->Commit(write)).IgnoreError();
      });
      (co_await verbena::Yield()).IgnoreError();
      engine_.AwaitBatches(1);
      leaving = true;
      leaving.notify_one();
    }
    co_return engine_.ended();
  };
  JoinHandle<bool> left = runtime_->Spawn(leave());
  leaving.wait(false);
  engine_.Release();
  EXPECT_TRUE(left.Join()) << "the write's memory was gone while the engine had it";
}

TEST_F(GroupCommitTest, WritesThatWaitAreStoredBeforeTheEnd) {
  JoinHandle<absl::StatusOr<bool>> first = HoldABatch();
  auto others = SpawnMany(3, "v");
  std::thread end([&] { commits_.reset(); });
  engine_.Release();
  end.join();
  EXPECT_TRUE(first.Join().ok());
  for (auto& other : others) EXPECT_TRUE(other.Join().ok());
  EXPECT_THAT(BatchSizes(), ElementsAre(1, 3));
}

}  // namespace group_commit_test
}  // namespace kv
