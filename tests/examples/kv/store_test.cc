// A store returns any bytes as they were put. A scan gives each entry once and in order, whatever
// the page size. Records take effect with the write that carries them. Built once for each engine.

#include "examples/kv/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/kv/limits.h"
#include "tests/examples/kv/store_fixture.h"
#include "verbena/rpc/task.h"

namespace kv {
namespace store_test {

using ::testing::ElementsAre;

class StoreTest : public StoreFixture {
 protected:
  void SetUp() override { store_ = MakeStore(); }

  absl::Status Write(StoreWrite write, std::vector<StoreRecord> records) {
    write.records = records;
    return Run(store_->Write(write)).status();
  }
};
using ScanTest = StoreTest;

TEST_F(StoreTest, AnyBytesComeBackAsTheyWerePut) {
  const std::string key("\0\xff\n#", 4);
  const std::string value("\0\r\n\x80\xff\0", 6);
  ASSERT_TRUE(Put(key, value).ok());
  EXPECT_EQ(*Get(key), value);
  std::string got = "left over";
  EXPECT_TRUE(absl::IsNotFound(Run(store_->Get(std::string("\0", 1), got))));
  EXPECT_EQ(got, "left over") << "a miss must leave the value alone";
}

TEST_F(StoreTest, PuttingAgainReplacesAndSaysSo) {
  EXPECT_TRUE(*Put("k", "a longer value"));
  EXPECT_FALSE(*Put("k", ""));
  EXPECT_EQ(*Get("k"), "");
  EXPECT_THAT(ScanAll(0), ElementsAre("k"));
}

TEST_F(StoreTest, DeletingTellsWhetherThereWasSomething) {
  PutAll({"a", "b"});
  EXPECT_TRUE(*Run(store_->Delete("a")));
  EXPECT_FALSE(*Run(store_->Delete("a")));
  EXPECT_THAT(ScanAll(0), ElementsAre("b"));
}

TEST_F(StoreTest, LengthsBeyondTheLimitsAreRefusedAndThoseAtThemTaken) {
  const std::string longest_key(kMaxKeyBytes, 'k');
  const std::string longest_value(kMaxValueBytes, 'v');
  EXPECT_TRUE(Put(longest_key, longest_value).ok());
  EXPECT_EQ(*Get(longest_key), longest_value);
  EXPECT_TRUE(absl::IsInvalidArgument(Put("", "v").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Put(longest_key + "k", "v").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Put("k", longest_value + "v").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Run(store_->Delete("")).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      Write({.key = "k", .value = "v"}, {{.id = longest_key + "k", .bytes = "r"}})));
  EXPECT_TRUE(absl::IsInvalidArgument(
      Write({.key = "k", .value = "v"}, std::vector<StoreRecord>(kMaxRecords + 1, {.id = "i"}))));
  EXPECT_THAT(ScanAll(0), ElementsAre(longest_key));
}

TEST_F(StoreTest, KeysAreOrderedAsUnsignedBytes) {
  PutAll({"\xff", "b", "\x80", "a", "aa", std::string("a\0", 2)});
  EXPECT_THAT(ScanAll(0), ElementsAre("a", std::string("a\0", 2), "aa", "b", "\x80", "\xff"));
}

TEST_F(StoreTest, RecordsComeAndGoWithTheWritesThatCarryThem) {
  EXPECT_TRUE(absl::IsNotFound(GetRecord("id 1").status()));
  ASSERT_TRUE(Write({.key = "k", .value = "v"},
                    {{.id = "id 1", .bytes = "one"}, {.id = "id 2", .bytes = ""}})
                  .ok());
  EXPECT_EQ(*GetRecord("id 1"), "one");
  EXPECT_EQ(*GetRecord("id 2"), "");
  ASSERT_TRUE(
      Write({.key = "absent"}, {{.id = "id 1", .bytes = {}}, {.id = "id 2", .bytes = "two"}}).ok());
  EXPECT_TRUE(absl::IsNotFound(GetRecord("id 1").status()));
  const ScanPage all = Run(store_->ScanRecords("", kPlenty)).value();
  ASSERT_THAT(KeysOf(all), ElementsAre("id 2"));
  EXPECT_EQ(all.entries[0].value, "two");
  EXPECT_THAT(ScanAll(0), ElementsAre("k")) << "records are no entries";
}

TEST_F(StoreTest, ARefusedWriteChangesNeitherDataNorRecords) {
  ASSERT_FALSE(Write({.key = "", .value = "v"}, {{.id = "id", .bytes = "r"}}).ok());
  EXPECT_TRUE(absl::IsNotFound(GetRecord("id").status()));
  EXPECT_TRUE(absl::IsNotFound(Get("").status()));
}

TEST_F(StoreTest, WatchersHearOfEachChangeInTheOrderOfItsKey) {
  ASSERT_TRUE(Put("a", "1").ok());
  ASSERT_TRUE(Put("a", "2").ok());
  ASSERT_TRUE(Run(store_->Delete("a")).ok());
  ASSERT_TRUE(Run(store_->Delete("a")).ok());
  uint64_t seen = 0;
  const std::vector<StoreChange> changes = store_->changes().After(seen, "").value();
  ASSERT_EQ(changes.size(), 3u) << "deleting nothing is no change";
  EXPECT_EQ(changes[0].value, "1");
  EXPECT_EQ(changes[1].value, "2");
  EXPECT_EQ(changes[2].value, std::nullopt);
}

TEST_F(StoreTest, StatsCountCalls) {
  PutAll({"a", "b", "a"});
  ASSERT_TRUE(Get("a").ok());
  ASSERT_FALSE(Get("c").ok());
  ASSERT_FALSE(Put("", "v").ok());
  ASSERT_TRUE(Run(store_->Delete("b")).ok());
  Scan("", 10);
  const StoreStats stats = Run(store_->Stats()).value();
  EXPECT_EQ(stats.puts, 3u);
  EXPECT_EQ(stats.gets, 2u);
  EXPECT_EQ(stats.misses, 1u);
  EXPECT_EQ(stats.deletes, 1u);
  EXPECT_EQ(stats.scans, 1u);
}

TEST_F(ScanTest, APageEndsWhereTheNextEntryWouldNotFit) {
  PutAll({"a", "b", "c"});
  constexpr size_t kEach = 1 + 5 + kPageEntryBytes;
  const ScanPage exact = Scan("", 2 * kEach);
  EXPECT_THAT(KeysOf(exact), ElementsAre("a", "b"));
  EXPECT_EQ(exact.next_key, "c");
  const ScanPage short_by_one = Scan("", 2 * kEach - 1);
  EXPECT_THAT(KeysOf(short_by_one), ElementsAre("a"));
  EXPECT_EQ(short_by_one.next_key, "b");
}

TEST_F(ScanTest, ThePageThatTakesTheLastEntrySaysThatItIsTheLast) {
  PutAll({"a", "b"});
  EXPECT_EQ(Scan("", 2 * (1 + 5 + kPageEntryBytes)).next_key, "");
  EXPECT_EQ(Scan("b", 1000).next_key, "");
  EXPECT_TRUE(Scan("c", 1000).entries.empty());
  store_ = MakeStore();
  EXPECT_TRUE(Scan("", 1000).entries.empty());
}

TEST_F(ScanTest, AnEntryLargerThanThePageIsReturnedAloneAndNoneIsPassedOver) {
  // Enough that some shard holds two neighbours.
  std::vector<std::string> keys;
  for (int i = 100; i < 200; ++i) keys.push_back("key" + std::to_string(i));
  PutAll(keys);
  for (const std::string& key : keys) {
    const ScanPage page = Scan(key, 1);
    EXPECT_THAT(KeysOf(page), ElementsAre(key));
  }
  EXPECT_EQ(ScanAll(1), keys);
}

TEST_F(ScanTest, AnyPageSizeGivesEveryEntryOnceAndInOrder) {
  std::mt19937 random(7);
  std::map<std::string, std::string> reference;
  for (int i = 0; i < 500; ++i) {
    std::string key(1 + random() % 6, 'x');
    for (char& c : key) c = static_cast<char>('a' + random() % 3);
    std::string value(random() % 200, 'v');
    ASSERT_TRUE(Put(key, value).ok());
    reference[key] = value;
  }
  for (const size_t max_bytes : {1, 20, 37, 150, 1000, 4096, 1 << 20}) {
    auto expected = reference.begin();
    std::string next;
    do {
      const ScanPage page = Scan(next, max_bytes);
      size_t bytes = 0;
      for (const StoreEntry& entry : page.entries) {
        ASSERT_NE(expected, reference.end());
        ASSERT_EQ(entry.key, expected->first);
        ASSERT_EQ(entry.value, expected->second);
        bytes += entry.key.size() + entry.value.size() + kPageEntryBytes;
        ++expected;
      }
      ASSERT_TRUE(page.entries.size() == 1 || bytes <= max_bytes);
      ASSERT_EQ(page.next_key, expected == reference.end() ? "" : expected->first);
      next = page.next_key;
    } while (!next.empty());
    ASSERT_EQ(expected, reference.end());
  }
}

TEST_F(ScanTest, DeletingTheNextKeyDuringAScanLosesNothingElse) {
  PutAll({"a", "b", "c", "d"});
  const ScanPage first = Scan("", 1);
  ASSERT_EQ(first.next_key, "b");
  ASSERT_TRUE(*Run(store_->Delete("b")));
  ASSERT_TRUE(*Run(store_->Delete("a")));
  const ScanPage second = Scan(first.next_key, 1);
  EXPECT_THAT(KeysOf(second), ElementsAre("c"));
  EXPECT_EQ(second.next_key, "d");
}

TEST_F(ScanTest, KeysThatComeBehindAreNotSeenAndThoseAheadAre) {
  PutAll({"b", "d"});
  const ScanPage first = Scan("", 1);
  ASSERT_EQ(first.next_key, "d");
  PutAll({"a", "c", "e"});
  EXPECT_THAT(KeysOf(Scan(first.next_key, 1000)), ElementsAre("d", "e"));
}

}  // namespace store_test
}  // namespace kv
