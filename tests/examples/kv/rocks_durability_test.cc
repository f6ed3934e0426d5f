// A power cut takes what was not synced: all that a durable store had acknowledged is there
// afterwards, in the order in which it was written, and each write's record with its data.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "absl/types/span.h"
#include "examples/kv/store.h"
#include "tests/examples/kv/rocks_fixture.h"

namespace kv {
namespace rocks_durability_test {

class RocksDurabilityTest : public RocksFixture {
 protected:
  static std::string KeyOf(int i) { return "key" + std::to_string(i); }
  static std::string ValueOf(int i) { return std::string(1000, static_cast<char>('a' + i % 26)); }

  void PutWithRecord(int i) {
    const std::string id = "id" + std::to_string(i);
    const std::string value = ValueOf(i);
    const StoreRecord record{.id = id, .bytes = value};
    const absl::StatusOr<bool> existed = Run(store_->Write(
        {.key = KeyOf(i), .value = value, .records = absl::MakeConstSpan(&record, 1)}));
    ASSERT_TRUE(existed.ok()) << existed.status();
  }
  void CutAndReopen() {
    files_->CutAfter(0);
    store_.reset();
    files_->LoseUnsynced();
    ASSERT_EQ(files_->failures(), 0);
    Reopen();
  }
  bool HasKey(int i) {
    const absl::StatusOr<std::string> got = Get(KeyOf(i));
    EXPECT_TRUE(!got.ok() || *got == ValueOf(i)) << i;
    return got.ok();
  }
  bool HasRecord(int i) { return GetRecord("id" + std::to_string(i)).ok(); }
};

TEST_F(RocksDurabilityTest, AcknowledgedWritesSurviveAPowerCut) {
  Reopen();
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Put(KeyOf(i), ValueOf(i)).ok());
  CutAndReopen();
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(HasKey(i)) << i;
}

TEST_F(RocksDurabilityTest, DeletionsAreDurableToo) {
  Reopen();
  ASSERT_TRUE(Put(KeyOf(0), ValueOf(0)).ok());
  ASSERT_TRUE(*Run(store_->Delete(KeyOf(0))));
  CutAndReopen();
  EXPECT_FALSE(HasKey(0));
}

// RocksDB syncs the names in its directory, but not that of the directory.
TEST_F(RocksDurabilityTest, TheDirectoryItselfSurvivesAPowerCut) {
  Reopen();
  ASSERT_TRUE(Put(KeyOf(0), ValueOf(0)).ok());
  files_->CutAfter(0);
  store_.reset();
  files_->LoseUnsynced();
  EXPECT_TRUE(std::filesystem::exists(path_ + "/CURRENT"));
}

// Otherwise the tests above would prove nothing.
TEST_F(RocksDurabilityTest, WritesThatWereNotSyncedAreLostInTheseTests) {
  Reopen(/*durable=*/false);
  ASSERT_TRUE(Put(KeyOf(0), ValueOf(0)).ok());
  CutAndReopen();
  EXPECT_FALSE(HasKey(0));
}

TEST_F(RocksDurabilityTest, ARecordIsThereIfAndOnlyIfItsDataAre) {
  constexpr int kWrites = 4;
  for (int syncs = 0; syncs <= 2 * kWrites; ++syncs) {
    Reopen();
    for (int i = 0; i < kWrites; ++i) {
      ASSERT_TRUE(Run(store_->Delete(KeyOf(i))).ok());
      const std::string id = "id" + std::to_string(i);
      const StoreRecord removed{.id = id};
      ASSERT_TRUE(
          Run(store_->Write({.key = "k", .records = absl::MakeConstSpan(&removed, 1)})).ok());
    }
    files_->CutAfter(syncs);
    for (int i = 0; i < kWrites; ++i) PutWithRecord(i);
    CutAndReopen();
    for (int i = 0; i < kWrites; ++i) {
      EXPECT_EQ(HasKey(i), HasRecord(i)) << "write " << i << ", cut after " << syncs << " syncs";
    }
  }
}

TEST_F(RocksDurabilityTest, ACutAmongManyFilesLeavesAllWritesUpToOne) {
  constexpr int kWrites = 300;  // several times the write buffers
  for (const int syncs : {1, 100, 250}) {
    path_ = directory_ + "/cut_after_" + std::to_string(syncs);
    Reopen();
    files_->CutAfter(syncs);
    for (int i = 0; i < kWrites; ++i) PutWithRecord(i);
    CutAndReopen();
    int present = 0;
    while (present < kWrites && HasKey(present)) ++present;
    EXPECT_GE(present, syncs);
    for (int i = 0; i < kWrites; ++i) {
      EXPECT_EQ(HasKey(i), i < present) << i;
      EXPECT_EQ(HasRecord(i), i < present) << i;
    }
  }
}

}  // namespace rocks_durability_test
}  // namespace kv
