// A store on RocksDB keeps its entries from one opening to the next, stores concurrent writes with
// one sync, and says by its directory's name what is wrong with a directory, a disk or a file.

#include "examples/kv/rocks_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/kv/rocks_status.h"
#include "examples/kv/store.h"
#include "rocksdb/status.h"
#include "tests/examples/kv/rocks_fixture.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/task.h"

namespace kv {
namespace rocks_store_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using verbena::JoinHandle;
using verbena::Outcome;
using verbena::OutcomeOf;
using verbena::Task;
using verbena::Yield;

class RocksStoreTest : public RocksFixture {
 protected:
  static std::string KeyOf(int i) { return "key" + std::to_string(i); }
  static std::string ValueOf(int i) { return std::string(1000, static_cast<char>('a' + i % 26)); }
  // More than the write buffers hold.
  void PutMuch() {
    for (int i = 0; i < kMuch; ++i) ASSERT_TRUE(Put(KeyOf(i), ValueOf(i)).ok());
  }

  // Returns once every task that this thread has spawned waits or has ended. The executor queues
  // them in their order, and whoever yields goes to the end of that queue.
  void AwaitBegun() {
    Run([]() -> Task<void> { EXPECT_TRUE((co_await Yield()).ok()); }());
  }

  // Overwrites the middle of each file whose name ends so.
  void Damage(const std::string& end) {
    int damaged = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      if (!entry.path().string().ends_with(end) || entry.file_size() == 0) continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(entry.file_size() / 2));
      file << "no such bytes were here before";
      ++damaged;
    }
    ASSERT_GT(damaged, 0) << end;
  }

  // One of the keys of PutMuch() that cannot be read; empty if all can.
  std::string DamagedKey() {
    for (int i = 0; i < kMuch; ++i) {
      if (absl::IsDataLoss(Get(KeyOf(i)).status())) return KeyOf(i);
    }
    return "";
  }

  static constexpr int kMuch = 300;
};

TEST_F(RocksStoreTest, EntriesAndRecordsAreThereAfterItWasClosed) {
  Reopen(/*durable=*/false);
  PutMuch();
  const StoreRecord record{.id = "id", .bytes = "result"};
  ASSERT_TRUE(
      Run(store_->Write({.key = KeyOf(0), .records = absl::MakeConstSpan(&record, 1)})).ok());
  Reopen();
  EXPECT_TRUE(absl::IsNotFound(Get(KeyOf(0)).status()));
  for (int i = 1; i < kMuch; ++i) EXPECT_EQ(Get(KeyOf(i)).value_or("none"), ValueOf(i)) << i;
  EXPECT_EQ(*GetRecord("id"), "result");
  EXPECT_FALSE(*Put(KeyOf(1), "v")) << "it is known that the key was there";
  EXPECT_EQ(ScanAll(4096).size(), static_cast<size_t>(kMuch) - 1);
}

TEST_F(RocksStoreTest, ConcurrentWritesTakeOneSyncTogether) {
  Reopen();
  const uint64_t before = files_->log_syncs();
  files_->Hold();
  std::vector<JoinHandle<absl::StatusOr<bool>>> puts;
  puts.push_back(runtime_->Spawn(store_->Put("first", "v")));
  files_->AwaitHeldSync();
  std::vector<std::string> keys;
  for (int i = 0; i < 50; ++i) keys.push_back(KeyOf(i));
  for (const std::string& key : keys) puts.push_back(runtime_->Spawn(store_->Put(key, "v")));
  AwaitBegun();
  for (const auto& put : puts) EXPECT_FALSE(put.done()) << "the disk does not have it yet";
  files_->Release();
  for (auto& put : puts) EXPECT_TRUE(*put.Join());
  EXPECT_EQ(files_->log_syncs() - before, 2u);
  EXPECT_EQ(Run(store_->Stats())->batches, 2u);
}

TEST_F(RocksStoreTest, EachWriteOfABatchIsStored) {
  Reopen();
  files_->Hold();
  std::vector<JoinHandle<absl::StatusOr<bool>>> writes;
  writes.push_back(runtime_->Spawn(store_->Put("first", "v")));
  files_->AwaitHeldSync();
  // These come in this order, and each finds what the one before left.
  writes.push_back(runtime_->Spawn(store_->Put("a", "1")));
  writes.push_back(runtime_->Spawn(store_->Delete("a")));
  writes.push_back(runtime_->Spawn(store_->Delete("a")));
  writes.push_back(runtime_->Spawn(store_->Put("a", "2")));
  writes.push_back(runtime_->Spawn(store_->Put("b", "3")));
  AwaitBegun();
  files_->Release();
  std::vector<bool> answers;
  for (auto& write : writes) answers.push_back(write.Join().value());
  EXPECT_THAT(answers, testing::ElementsAre(true, true, true, false, true, true));
  EXPECT_EQ(Get("a").value_or("none"), "2");
  EXPECT_EQ(Get("b").value_or("none"), "3");
}

TEST_F(RocksStoreTest, AStoreThatNeedNotBeDurableSyncsNothing) {
  Reopen(/*durable=*/false);
  const uint64_t before = files_->log_syncs();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Put(KeyOf(i), "v").ok());
  EXPECT_EQ(files_->log_syncs(), before);
  EXPECT_THAT(store_->description(), AllOf(HasSubstr(path_), HasSubstr("may lose")));
}

TEST_F(RocksStoreTest, AFullDiskIsNamedAndWritesGoOnOnceItHasRoom) {
  Reopen();
  ASSERT_TRUE(Put("before", "v").ok());
  files_->SetFull(true);
  for (int i = 0; i < 3; ++i) {
    const absl::Status full = Put("meanwhile", "v").status();
    EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
    EXPECT_EQ(OutcomeOf(full), i == 0 ? Outcome::kMaybeExecuted : Outcome::kNotExecuted);
    EXPECT_THAT(std::string(full.message()), AllOf(HasSubstr(path_), HasSubstr("room")));
  }
  EXPECT_EQ(Get("before").value_or("none"), "v") << "reads go on";
  files_->SetFull(false);
  const absl::StatusOr<bool> after = Put("after", "v");
  ASSERT_TRUE(after.ok()) << after.status();
  Reopen();
  EXPECT_EQ(Get("before").value_or("none"), "v");
  EXPECT_EQ(Get("after").value_or("none"), "v");
}

// RocksDB cannot go on then: it would end the process.
TEST_F(RocksStoreTest, AFullDiskAtTheFirstWriteNeedsANewOpening) {
  Reopen();
  files_->SetFull(true);
  EXPECT_TRUE(absl::IsResourceExhausted(Put("first", "v").status()));
  files_->SetFull(false);
  for (int i = 0; i < 2; ++i) {
    const absl::Status refused = Put("second", "v").status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_EQ(OutcomeOf(refused), Outcome::kNotExecuted);
    EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr(path_), HasSubstr("open")));
  }
  EXPECT_FALSE(Get("first").ok()) << "reads go on";
  Reopen();
  EXPECT_TRUE(Put("third", "v").ok());
}

// A replica's position would tell that it has an entry that it has not.
TEST_F(RocksStoreTest, AStoreThatEndsAtAFailureStoresNoWriteBehindIt) {
  Reopen(/*durable=*/true, /*ends_at_failure=*/true);
  ASSERT_TRUE(Put("before", "v").ok());
  files_->SetFull(true);
  EXPECT_FALSE(Put("lost", "v").ok());
  files_->SetFull(false);
  const absl::Status refused = Put("after", "v").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_EQ(OutcomeOf(refused), Outcome::kNotExecuted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(path_));
  EXPECT_EQ(Get("before").value_or("none"), "v") << "reads go on";
  Reopen(/*durable=*/true, /*ends_at_failure=*/true);
  EXPECT_EQ(Get("before").value_or("none"), "v");
  EXPECT_FALSE(Get("after").ok());
  EXPECT_TRUE(Put("after", "v").ok());
}

TEST_F(RocksStoreTest, AWriteWhoseSyncFailedMayComeBackAtTheNextOpening) {
  Reopen();
  ASSERT_TRUE(Put("before", "v").ok());
  files_->SetSyncsFail(true);
  const absl::Status failed = Put("key", "v").status();
  EXPECT_FALSE(failed.ok());
  EXPECT_EQ(OutcomeOf(failed), Outcome::kMaybeExecuted) << failed;
  EXPECT_FALSE(Get("key").ok());
  files_->SetSyncsFail(false);
  Reopen();
  EXPECT_EQ(Get("key").value_or("none"), "v");
}

TEST_F(RocksStoreTest, AWriteOfAKeyThatCannotBeReadFailsAlone) {
  write_buffer_bytes_ = size_t{1} << 20;  // one file of entries, which is merged with no other
  Reopen();
  PutMuch();
  Reopen();
  store_.reset();
  Damage(".sst");
  Reopen();
  const std::string damaged = DamagedKey();
  ASSERT_FALSE(damaged.empty());
  files_->Hold();
  std::vector<JoinHandle<absl::StatusOr<bool>>> puts;
  puts.push_back(runtime_->Spawn(store_->Put("first", "v")));
  files_->AwaitHeldSync();
  puts.push_back(runtime_->Spawn(store_->Put("a", "v")));
  puts.push_back(runtime_->Spawn(store_->Put(damaged, "v")));
  puts.push_back(runtime_->Spawn(store_->Put("b", "v")));
  AwaitBegun();
  const uint64_t changes = store_->changes().last();
  files_->Release();
  std::vector<absl::Status> ends;
  for (auto& put : puts) ends.push_back(put.Join().status());
  EXPECT_EQ(Run(store_->Stats())->batches, 2u);
  EXPECT_TRUE(ends[1].ok() && ends[3].ok()) << ends[1] << ends[3];
  EXPECT_TRUE(absl::IsDataLoss(ends[2])) << ends[2];
  EXPECT_EQ(OutcomeOf(ends[2]), Outcome::kNotExecuted);
  EXPECT_EQ(Get("b").value_or("none"), "v");
  EXPECT_EQ(store_->changes().last(), changes + 3) << "first, a and b";
}

// As a replica's log writes: an error would be the end of the log.
TEST_F(RocksStoreTest, AWriteThatDoesNotAskReadsNoDamagedFile) {
  write_buffer_bytes_ = size_t{1} << 20;
  Reopen();
  PutMuch();
  Reopen();
  store_.reset();
  Damage(".sst");
  Reopen(/*durable=*/true, /*ends_at_failure=*/true);
  const std::string damaged = DamagedKey();
  ASSERT_FALSE(damaged.empty());
  const auto write = [this](std::string_view key, std::optional<std::string_view> value) {
    return Run(store_->Write({.key = key, .value = value, .asks_existed = false})).status();
  };
  EXPECT_EQ(write(damaged, "v"), absl::OkStatus());
  EXPECT_EQ(Get(damaged).value_or("none"), "v");
  EXPECT_EQ(write(damaged, std::nullopt), absl::OkStatus());
  EXPECT_TRUE(absl::IsNotFound(Get(damaged).status()));
  EXPECT_EQ(write("another", "v"), absl::OkStatus()) << "the store goes on";
}

TEST_F(RocksStoreTest, ADirectoryThatIsInUseIsRefused) {
  Reopen();
  const absl::Status second = OpenAt(path_).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(second)) << second;
  EXPECT_THAT(std::string(second.message()), AllOf(HasSubstr(path_), HasSubstr("another")));
}

TEST_F(RocksStoreTest, AWrongDirectoryIsNamed) {
  EXPECT_TRUE(absl::IsInvalidArgument(OpenAt("").status()));
  std::filesystem::create_directory(directory_ + "/photos");
  std::ofstream(directory_ + "/photos/cat.jpg") << "meow";
  const absl::Status foreign = OpenAt(directory_ + "/photos").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(foreign)) << foreign;
  EXPECT_THAT(std::string(foreign.message()), HasSubstr("photos"));
  for (const char* wrong : {"/photos/cat.jpg", "/photos/cat.jpg/store", "/missing/store"}) {
    const absl::Status refused = OpenAt(directory_ + wrong).status();
    EXPECT_FALSE(refused.ok()) << wrong;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(directory_ + wrong));
  }
  EXPECT_TRUE(absl::IsNotFound(OpenAt(directory_ + "/missing/store").status()));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_ + "/photos"), {}), 1)
      << "nothing was made there";
}

TEST_F(RocksStoreTest, AMissingListOfFilesIsToldWithItsDirectory) {
  Reopen();
  PutMuch();
  store_.reset();
  std::ofstream(path_ + "/CURRENT") << "MANIFEST-is-not-here\n";
  const absl::Status damaged = OpenAt(path_).status();
  EXPECT_TRUE(absl::IsDataLoss(damaged)) << damaged;
  EXPECT_THAT(std::string(damaged.message()), HasSubstr(path_));
}

// NOT_FOUND says of a key that it has no value.
TEST(RocksStatusTest, AFileThatIsMissingIsLostDataAndNoMissingKey) {
  const absl::Status status =
      StatusOfRocks(rocksdb::Status::PathNotFound("000007.sst"), "read a key", "/data");
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("000007.sst"), HasSubstr("/data")));
}

// RocksDB would make a new database there, and remove what its list of files does not name.
TEST_F(RocksStoreTest, FilesOfEntriesWithoutTheirListAreDataLossAndStay) {
  Reopen();
  ASSERT_TRUE(Put("key", "v").ok());
  const auto files_that_end = [&](const std::string& end) {
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      files += entry.path().string().ends_with(end) ? 1 : 0;
    }
    return files;
  };
  for (const char* end : {".log", ".sst"}) {  // the second opening makes a file of entries
    store_.reset();
    const std::string aside = directory_ + "/CURRENT";
    std::filesystem::rename(path_ + "/CURRENT", aside);
    std::filesystem::remove(path_ + "/SYNCED");
    const absl::Status refused = OpenAt(path_).status();
    EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr(path_), HasSubstr("CURRENT")));
    EXPECT_GT(files_that_end(end), 0) << end;
    std::filesystem::rename(aside, path_ + "/CURRENT");
    Reopen();
    EXPECT_EQ(Get("key").value_or("none"), "v");
  }
}

TEST_F(RocksStoreTest, ADirectoryThatTheDiskDoesNotListIsNotEmpty) {
  Reopen();
  ASSERT_TRUE(Put("key", "v").ok());
  store_.reset();
  const std::string aside = directory_ + "/CURRENT";
  std::filesystem::rename(path_ + "/CURRENT", aside);
  std::filesystem::remove(path_ + "/SYNCED");
  files_->FailNextListing();
  EXPECT_FALSE(OpenAt(path_).ok());
  EXPECT_FALSE(std::filesystem::exists(path_ + "/CURRENT")) << "a new store is begun";
  std::filesystem::rename(aside, path_ + "/CURRENT");
  Reopen();
  EXPECT_EQ(Get("key").value_or("none"), "v");
}

TEST_F(RocksStoreTest, AStoreWhoseFirstOpeningEndedEarlyIsMadeAgain) {
  std::filesystem::create_directory(path_);
  for (const char* name : {"LOCK", "LOG", "MANIFEST-000001"}) std::ofstream(path_ + "/" + name);
  Reopen();
  EXPECT_TRUE(Put("key", "v").ok());
}

TEST_F(RocksStoreTest, DamagedEntriesAreDataLossAndNeverReturned) {
  Reopen(/*durable=*/false);
  PutMuch();
  Reopen();  // its log becomes a file of entries
  store_.reset();
  Damage(".sst");
  absl::StatusOr<std::unique_ptr<RocksStore>> opened = OpenAt(path_);
  absl::Status first = opened.status();
  if (opened.ok()) {
    store_ = *std::move(opened);
    for (int i = 0; i < kMuch; ++i) {
      const absl::StatusOr<std::string> got = Get(KeyOf(i));
      if (got.ok()) {
        EXPECT_EQ(*got, ValueOf(i));
      } else if (first.ok()) {
        first = got.status();
      }
    }
  }
  EXPECT_TRUE(absl::IsDataLoss(first)) << first;
  EXPECT_THAT(std::string(first.message()), AllOf(HasSubstr(path_), HasSubstr("damaged")));
}

}  // namespace rocks_store_test
}  // namespace kv
