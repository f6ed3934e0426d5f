// A store whose log lost what was synced is refused, by its directory's name and with what to do,
// and the refusal changes no file. A log whose last write a power cut has torn opens with all
// synced writes. No damage makes a store have a write without those before it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/kv/store.h"
#include "rocksdb/db.h"
#include "rocksdb/options.h"
#include "tests/examples/kv/rocks_fixture.h"
#include "tests/examples/kv/store_files.h"
#include "verbena/rpc/task.h"

namespace kv {
namespace rocks_log_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using verbena::JoinHandle;

constexpr uint64_t kBlockBytes = 32768;  // of RocksDB's log
constexpr int kWrites = 300;

void Overwrite(const std::string& file, uint64_t offset, const std::string& bytes) {
  std::string all = BytesOf(file);
  all.resize(std::max<size_t>(all.size(), offset + bytes.size()));
  SetBytes(file, all.replace(offset, bytes.size(), bytes));
}

// The files of the log that have entries, in their order.
std::vector<std::string> LogsOf(const std::string& directory) {
  std::vector<std::string> logs;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    // RocksDB removes files that it needs no more, at any time.
    std::error_code gone;
    const uintmax_t bytes = entry.file_size(gone);
    if (entry.path().extension() == ".log" && !gone && bytes > 0) logs.push_back(entry.path());
  }
  std::sort(logs.begin(), logs.end());
  return logs;
}

class RocksLogTest : public RocksFixture {
 protected:
  RocksLogTest() { write_buffer_bytes_ = size_t{1} << 20; }

  static std::string KeyOf(int i) { return "key" + std::to_string(i); }
  static std::string ValueOf(int i) { return std::string(1000, static_cast<char>('a' + i % 26)); }
  void PutFrom(int begin, int end) {
    for (int i = begin; i < end; ++i) ASSERT_TRUE(Put(KeyOf(i), ValueOf(i)).ok());
  }
  void PutRecord(const std::string& id) {
    const StoreRecord record{.id = id, .bytes = "result"};
    ASSERT_TRUE(Run(store_->Write({.key = "k", .records = absl::MakeConstSpan(&record, 1)})).ok());
  }
  std::string Log() const { return LogsOf(path_).back(); }
  uint64_t LogBytes() const { return std::filesystem::file_size(Log()); }
  std::string Mark() const { return path_ + "/SYNCED"; }

  // Goes on with a copy of the files as they are, as after a kill.
  void Kill() {
    const std::string copy = path_ + "+";
    CopyStore(path_, copy);
    store_.reset();
    path_ = copy;
  }
  // The same with the mark that the disk had, `mark`, as after a power cut.
  void CutPower(const std::string& mark) {
    Kill();
    SetBytes(Mark(), mark);
  }

  // Opens the store, which must be refused.
  void ExpectDataLoss(const std::string& what) {
    SCOPED_TRACE(what);
    const absl::Status refused = OpenAt(path_).status();
    EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr(path_), HasSubstr("restore")));
  }
  // Opens the store, which must have the first writes alone. Returns their number.
  int CountWrites(const std::string& what, bool durable = true) {
    Reopen(durable);
    if (HasFatalFailure()) return -1;
    int present = 0;
    while (present < kWrites + 2 && Get(KeyOf(present)).ok()) ++present;
    for (int i = 0; i < kWrites + 2; ++i) {
      EXPECT_EQ(Get(KeyOf(i)).ok(), i < present) << what << ": " << i << ", of " << present;
    }
    return present;
  }
};

TEST_F(RocksLogTest, ADamagedLogIsDataLossWhereverTheDamageIs) {
  Reopen();
  PutFrom(0, kWrites - 1);
  const uint64_t last = LogBytes();
  PutFrom(kWrites - 1, kWrites);
  const uint64_t end = LogBytes();
  const uint64_t record = end - last;
  store_.reset();
  const std::string log = Log();
  const std::string whole = BytesOf(log);
  const auto refuses = [&](uint64_t offset, const std::string& bytes, const std::string& what) {
    Overwrite(log, offset, bytes);
    ExpectDataLoss(what);
    SetBytes(log, whole);
  };
  refuses(0, "?", "the first byte");
  refuses(100, "?", "the first record");
  refuses(end / 2, "?", "the middle");
  refuses(last + 100, "?", "the last record");
  refuses(end - 1, "?", "the last byte");
  refuses(last + 5, "\x7f", "the length of the last record");
  refuses(last - 10 * record + 5, "\x7f", "the length of a record in the last block");
  refuses(last - 10 * record, std::string(4096, '\0'), "zeros from a record's begin");
  refuses(end / kBlockBytes * kBlockBytes - kBlockBytes, std::string(kBlockBytes, '\0'),
          "a block of zeros");
  refuses(last - 2 * record, std::string(3 * record, '\0'), "zeros to the end");
  // Nothing was changed by the refusals.
  EXPECT_EQ(CountWrites("whole"), kWrites);
}

TEST_F(RocksLogTest, ALogThatWasCutShortIsDataLoss) {
  Reopen();
  PutFrom(0, kWrites - 1);
  const uint64_t last = LogBytes();
  PutFrom(kWrites - 1, kWrites);
  store_.reset();
  const std::string log = Log();
  const std::string whole = BytesOf(log);
  for (const uint64_t bytes : {whole.size() - 1, last + 3, last, whole.size() / 2, size_t{0}}) {
    std::filesystem::resize_file(log, bytes);
    ExpectDataLoss("cut at " + std::to_string(bytes));
    SetBytes(log, whole);
  }
  std::filesystem::remove(log);
  ExpectDataLoss("removed");
}

TEST_F(RocksLogTest, DamageThatComesWithAKillIsDataLoss) {
  Reopen();
  PutFrom(0, kWrites);
  Kill();
  EXPECT_EQ(CountWrites("whole"), kWrites);
  PutFrom(0, kWrites);
  Kill();
  Overwrite(Log(), LogBytes() - 100, "?");
  ExpectDataLoss("the last record");
}

// The mark may be older than the log then.
TEST_F(RocksLogTest, DamageThatComesWithAPowerCutIsDataLossAheadOfTheLastBlock) {
  Reopen();
  const std::string mark = BytesOf(Mark());
  PutFrom(0, kWrites);
  CutPower(mark);
  const std::string log = Log();
  const std::string whole = BytesOf(log);
  const uint64_t last_block = whole.size() / kBlockBytes * kBlockBytes;
  for (const uint64_t offset : {uint64_t{0}, whole.size() / 2, last_block - 1}) {
    Overwrite(log, offset, "?");
    ExpectDataLoss("damage at " + std::to_string(offset));
    SetBytes(log, whole);
  }
  EXPECT_EQ(CountWrites("whole"), kWrites);
}

TEST_F(RocksLogTest, ATornTailOpensWithAllSyncedWrites) {
  Reopen();
  PutFrom(0, kWrites);
  const uint64_t synced = LogBytes();
  const std::string mark = BytesOf(Mark());
  PutFrom(kWrites, kWrites + 1);
  CutPower(mark);
  const std::string store = path_;
  const std::string whole = BytesOf(Log());
  const uint64_t half = (whole.size() - synced) / 2;
  const std::string behind(8192, '\0');
  int copies = 0;
  const auto opens = [&](const std::string& tail, const std::string& what) {
    path_ = store + std::to_string(++copies);
    CopyStore(store, path_);
    SetBytes(Log(), whole.substr(0, synced) + tail);
    EXPECT_EQ(CountWrites(what), kWrites) << what;
  };
  opens("", "lost as a whole");
  opens(whole.substr(synced, 3), "cut in its header");
  opens(whole.substr(synced, half), "cut in the middle");
  opens(whole.substr(synced, half) + behind, "cut in the middle, zeros behind");
  opens(behind, "zeros");
  opens(std::string(half, '\0') + whole.substr(synced + half), "zeros ahead of its second half");
  opens(whole.substr(synced, half) + std::string(8192, 'x'), "garbage");
}

TEST_F(RocksLogTest, TheMarkIsNeverAheadOfTheLog) {
  Reopen();
  PutFrom(0, kWrites);
  const uint64_t synced = LogBytes();
  files_->Hold();
  JoinHandle<absl::StatusOr<bool>> put = runtime_->Spawn(store_->Put("key", "v"));
  files_->AwaitHeldSync();
  CopyStore(path_, path_ + "+");
  files_->Release();
  EXPECT_TRUE(put.Join().ok());
  store_.reset();
  path_ += "+";
  std::filesystem::resize_file(Log(), synced);
  EXPECT_EQ(CountWrites("without the write that was not synced"), kWrites);
}

// A batch of many blocks, whose pages reach the disk in any order.
TEST_F(RocksLogTest, ATornBatchOfManyBlocksOpensWithAllSyncedWrites) {
  Reopen();
  PutFrom(0, kWrites);
  const uint64_t synced = LogBytes();
  const std::string mark = BytesOf(Mark());
  ASSERT_TRUE(Put(KeyOf(kWrites), std::string(10 * kBlockBytes, 'x')).ok());
  CutPower(mark);
  const std::string store = path_;
  for (const uint64_t offset : {synced, synced + 4096, synced + 5 * kBlockBytes}) {
    path_ = store + std::to_string(offset);
    CopyStore(store, path_);
    Overwrite(Log(), offset, std::string(4096, '\0'));
    EXPECT_EQ(CountWrites("a page of zeros"), kWrites) << offset - synced;
  }
}

// RocksDB may not have removed the torn log yet.
TEST_F(RocksLogTest, ATornTailThatWasFoundBeforeIsNoDamage) {
  Reopen();
  PutFrom(0, kWrites);
  const uint64_t synced = LogBytes();
  const std::string mark = BytesOf(Mark());
  PutFrom(kWrites, kWrites + 1);
  CutPower(mark);
  std::filesystem::resize_file(Log(), synced + 100);
  const std::string torn = Log();
  const std::string bytes = BytesOf(torn);
  ASSERT_EQ(CountWrites("torn"), kWrites);
  PutFrom(kWrites, kWrites + 2);
  SetBytes(torn, bytes);
  Kill();
  EXPECT_EQ(CountWrites("opened a second time"), kWrites + 2);
}

class RocksLogsTest : public RocksLogTest {
 protected:
  RocksLogsTest() { write_buffer_bytes_ = size_t{64} << 10; }

  // Leaves several files of the log: a record in the first keeps all, though the entries are in
  // files of their own by then.
  void FillLogs() {
    Reopen();
    PutRecord("id");
    PutFrom(0, kWrites);
    store_.reset();
    ASSERT_GE(LogsOf(path_).size(), 3u);
  }
};

TEST_F(RocksLogsTest, AnOlderFileOfTheLogIsCheckedToo) {
  FillLogs();
  const std::vector<std::string> logs = LogsOf(path_);
  for (const std::string& log : {logs[0], logs[1]}) {
    const std::string whole = BytesOf(log);
    for (const uint64_t offset : {uint64_t{10}, whole.size() / 2, whole.size() - 1}) {
      Overwrite(log, offset, "?");
      ExpectDataLoss("damage at " + std::to_string(offset) + " of " + log);
    }
    std::filesystem::remove(log);
    ExpectDataLoss("without " + log);
    SetBytes(log, whole);
  }
  EXPECT_EQ(CountWrites("whole"), kWrites);
  EXPECT_TRUE(GetRecord("id").ok());
}

TEST_F(RocksLogsTest, FilesThatAreNoLongerNeededAreNotChecked) {
  FillLogs();
  const std::vector<std::string> logs = LogsOf(path_);
  const std::string first = BytesOf(logs[0]);
  EXPECT_EQ(CountWrites("whole"), kWrites);
  PutFrom(0, 10);
  // RocksDB has not removed this one yet, but the ones behind it.
  SetBytes(logs[0], first.substr(0, first.size() / 2));
  Kill();
  EXPECT_EQ(CountWrites("with an old file"), kWrites);
}

// Such a store promises less: a power cut takes the latest writes, and damage may look like that.
TEST_F(RocksLogTest, AStoreThatIsNotDurableOpensWithTheWritesUpToTheDamage) {
  Reopen(/*durable=*/false);
  PutFrom(0, 100);
  Reopen(/*durable=*/false);  // these are in a file of entries by now
  PutFrom(100, kWrites - 1);
  const uint64_t last = LogBytes();
  PutFrom(kWrites - 1, kWrites);
  const uint64_t record = LogBytes() - last;
  Kill();
  const std::string store = path_;
  int copies = 0;
  const auto opens = [&](uint64_t offset, const std::string& bytes) {
    path_ = store + std::to_string(++copies);
    CopyStore(store, path_);
    Overwrite(Log(), offset, bytes);
    return CountWrites("damage at " + std::to_string(offset), /*durable=*/false);
  };
  EXPECT_EQ(opens(100, "?"), 100);
  const int half = opens(record * 100 + 200, "?");
  EXPECT_GT(half, 190);
  EXPECT_LT(half, 202);
  EXPECT_EQ(opens(last + 100, "?"), kWrites - 1);
}

// The disk has some pages of the log, and not those before them.
TEST_F(RocksLogTest, NoStoreHasAWriteWithoutThoseBeforeIt) {
  Reopen(/*durable=*/false);
  // Each record fills a block: 28 bytes belong to RocksDB and the key.
  const std::string value(kBlockBytes - 28, 'x');
  uint64_t first = 0;
  for (int i = 0; i < 10; ++i) {
    if (i == 1) first = LogBytes();
    ASSERT_TRUE(Put(KeyOf(i), value).ok());
  }
  ASSERT_EQ(first, kBlockBytes);
  Kill();
  Overwrite(Log(), 3 * kBlockBytes, std::string(kBlockBytes, '\0'));
  EXPECT_EQ(CountWrites("a block of zeros", /*durable=*/false), 3);
}

TEST_F(RocksLogTest, AStoreNeverOpensWithLessThanItHadWhenItWasOpenedBefore) {
  Reopen();
  PutFrom(0, 10);
  CopyStore(path_, path_ + " earlier");
  Reopen(/*durable=*/false);
  PutFrom(10, 20);
  store_.reset();
  const std::string mark = BytesOf(Mark());
  path_ += " earlier";
  SetBytes(Mark(), mark);
  std::filesystem::resize_file(Log(), LogBytes() / 2);
  ExpectDataLoss("files of an earlier time");
}

TEST_F(RocksLogTest, ADiskThatWasFullLeavesALogThatOpens) {
  Reopen();
  for (int i = 0; i < 6; i += 2) {
    ASSERT_TRUE(Put(KeyOf(i), ValueOf(i)).ok());
    files_->SetFull(true);
    EXPECT_FALSE(Put("lost", ValueOf(i)).ok());
    files_->SetFull(false);
    const absl::StatusOr<bool> put = Put(KeyOf(i + 1), ValueOf(i));
    ASSERT_TRUE(put.ok()) << put.status();
    Kill();
    EXPECT_EQ(CountWrites("after a full disk"), i + 2);
  }
}

TEST_F(RocksLogTest, AStoreWithoutAMarkOpensWithTheWritesUpToTheDamage) {
  Reopen();
  PutFrom(0, kWrites);
  store_.reset();
  Overwrite(Log(), LogBytes() - 100, "?");
  std::filesystem::remove(Mark());
  EXPECT_EQ(CountWrites("no mark"), kWrites - 1);
  PutFrom(kWrites - 1, kWrites);
  store_.reset();
  Overwrite(Log(), LogBytes() - 100, "?");
  ExpectDataLoss("with the mark that was made");
}

TEST_F(RocksLogTest, AMarkThatIsDamagedIsDataLoss) {
  Reopen();
  PutFrom(0, 1);
  store_.reset();
  const std::string whole = BytesOf(Mark());
  for (const std::string& damaged : {std::string(), whole.substr(1), "7" + whole.substr(1)}) {
    SetBytes(Mark(), damaged);
    ExpectDataLoss("mark: '" + damaged + "'");
  }
}

TEST_F(RocksLogTest, ADiskThatFailsSaysNothingOfWhatIsLost) {
  Reopen();
  PutFrom(0, 10);
  store_.reset();
  for (const std::string& file : {Mark(), path_ + "/CURRENT", path_, Log()}) {
    files_->SetUnreadable(file);
    const absl::Status refused = OpenAt(path_).status();
    EXPECT_FALSE(refused.ok() || absl::IsDataLoss(refused)) << file << ": " << refused;
    files_->SetUnreadable("");
  }
  EXPECT_EQ(CountWrites("the disk works again"), 10);
}

// RocksDB would make an empty family, and calls that have run would run again.
TEST_F(RocksLogTest, AStoreThatLostItsRecordsIsDataLoss) {
  Reopen();
  PutRecord("id");
  store_.reset();
  rocksdb::DB* opened = nullptr;
  std::vector<rocksdb::ColumnFamilyHandle*> families;
  ASSERT_TRUE(rocksdb::DB::Open(rocksdb::DBOptions(), path_,
                                {{rocksdb::kDefaultColumnFamilyName, {}}, {"dedupe", {}}},
                                &families, &opened)
                  .ok());
  const std::unique_ptr<rocksdb::DB> database(opened);
  EXPECT_TRUE(database->DropColumnFamily(families[1]).ok());
  for (rocksdb::ColumnFamilyHandle* family : families) {
    EXPECT_TRUE(database->DestroyColumnFamilyHandle(family).ok());
  }
  EXPECT_TRUE(database->Close().ok());
  ExpectDataLoss("no family of records");
}

TEST_F(RocksLogTest, AnOpeningThatFailsLosesNothing) {
  Reopen();
  PutFrom(0, 10);
  store_.reset();
  files_->SetFull(true);
  const absl::Status full = OpenAt(path_).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  files_->SetFull(false);
  EXPECT_EQ(CountWrites("the disk has room again"), 10);
}

TEST_F(RocksLogTest, AStoreThatLostTheNameOfItsListOfFilesIsDataLoss) {
  Reopen();
  PutFrom(0, 10);
  store_.reset();
  std::filesystem::remove(path_ + "/CURRENT");
  ExpectDataLoss("no CURRENT");
}

}  // namespace rocks_log_test
}  // namespace kv
