// A replica's disk holds data, names of calls and position together: after a restart it knows each
// call that it has run, and knows whether its data are whole. Its log in memory tells which
// positions it has.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/kv/memory_store.h"
#include "examples/kv/store.h"
#include "examples/replicated_kv/limits.h"
#include "examples/replicated_kv/names.h"
#include "examples/replicated_kv/replica_log.h"
#include "examples/replicated_kv/replica_store.h"
#include "examples/replicated_kv/replicated_kv.pb.h"
#include "gtest/gtest.h"
#include "tests/examples/replicated_kv/scripted_disk.h"
#include "tests/support/manual_scheduler.h"
#include "verbena/rpc/task.h"

namespace replicated_kv {
namespace log_test {

using verbena::Task;

const std::string kClient(16, 'c');

// A store that outlives the replica which uses it, as a disk does.
class Disk final : public kv::Store {
 public:
  explicit Disk(kv::Store& store) : store_(store) {}
  std::string description() const override { return store_.description(); }
  Task<absl::StatusOr<bool>> Write(kv::StoreWrite write) override {
    EXPECT_FALSE(write.asks_existed) << "a damaged file under " << write.key << " ends the log";
    co_return co_await store_.Write(write);
  }
  Task<absl::Status> Get(std::string_view key, std::string& value) override {
    co_return co_await store_.Get(key, value);
  }
  Task<absl::StatusOr<kv::ScanPage>> Scan(std::string_view start_key, size_t max_bytes) override {
    co_return co_await store_.Scan(start_key, max_bytes);
  }
  Task<absl::Status> GetRecord(std::string_view id, std::string& bytes) override {
    co_return co_await store_.GetRecord(id, bytes);
  }
  Task<absl::StatusOr<kv::ScanPage>> ScanRecords(std::string_view start_id,
                                                 size_t max_bytes) override {
    co_return co_await store_.ScanRecords(start_id, max_bytes);
  }
  Task<absl::StatusOr<kv::StoreStats>> Stats() override { co_return co_await store_.Stats(); }

 private:
  kv::Store& store_;
};

v1::Entry EntryOf(uint64_t sequence, uint64_t epoch, const std::string& key,
                  const std::string& value) {
  v1::Entry entry;
  entry.set_sequence(sequence);
  entry.set_epoch(epoch);
  entry.set_key(key);
  entry.set_value(value);
  entry.set_client(kClient);
  entry.set_number(100 + sequence);
  return entry;
}

std::shared_ptr<const v1::Entry> Shared(v1::Entry entry) {
  return std::make_shared<const v1::Entry>(std::move(entry));
}

class LogTest : public testing::Test {
 protected:
  LogTest() { Restart(); }

  // A new process on the same disk.
  void Restart() {
    log_.reset();
    store_ = std::make_unique<ReplicaStore>(std::make_unique<Disk>(memory_));
    EXPECT_TRUE(scheduler_.Run(store_->Load()).ok());
    log_ = std::make_unique<ReplicaLog>(*store_, scope_);
  }
  void MakeComplete() {
    EXPECT_TRUE(scheduler_.Run(store_->WritePosition({})).ok());
    Restart();
  }
  void Append(uint64_t sequence, uint64_t epoch, const std::string& key, const std::string& value) {
    log_->Append(Shared(EntryOf(sequence, epoch, key, value)));
  }
  std::string ValueOf(const std::string& key) {
    const absl::StatusOr<std::optional<std::string>> value = scheduler_.Run(store_->Get(key));
    EXPECT_TRUE(value.ok()) << value.status();
    return value.ok() ? value->value_or("none") : "failed";
  }
  // 0: the call is not known.
  uint64_t PlaceOf(uint64_t number) const {
    const absl::StatusOr<std::optional<uint64_t>> found = store_->names().Find(kClient, number);
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() ? found->value_or(0) : 0;
  }

  verbena::internal::ManualScheduler scheduler_;
  kv::MemoryStore memory_{size_t{64} << 20};
  verbena::TaskScope scope_{scheduler_};
  std::unique_ptr<ReplicaStore> store_;
  std::unique_ptr<ReplicaLog> log_;
};

TEST_F(LogTest, ACallIsKnownAfterARestart) {
  MakeComplete();
  Append(1, 2, "k", "v");
  // At once, so that a repetition finds it on its way.
  EXPECT_EQ(PlaceOf(101), 1u);
  ASSERT_TRUE(scheduler_.Run(log_->Drain()).ok());
  Restart();
  EXPECT_EQ(ValueOf("k"), "v");
  EXPECT_EQ(PlaceOf(101), 1u);
  EXPECT_EQ(PlaceOf(102), 0u);
  EXPECT_EQ(log_->last(), (LogPosition{.epoch = 2, .sequence = 1}));
  EXPECT_TRUE(log_->complete());
}

TEST_F(LogTest, AnEmptyDiskIsNotComplete) {
  EXPECT_FALSE(log_->complete());
  MakeComplete();
  EXPECT_TRUE(log_->complete());
}

TEST_F(LogTest, ACopyCountsOnceItIsWhole) {
  MakeComplete();
  Append(1, 2, "old", "v");
  ASSERT_TRUE(scheduler_.Run(log_->Drain()).ok());
  ASSERT_TRUE(scheduler_.Run(log_->BeginCopy({.epoch = 5, .sequence = 40})).ok());
  v1::Page page;
  v1::Page::Pair& pair = *page.add_entries();
  pair.set_key("new");
  pair.set_value("copied");
  ASSERT_TRUE(scheduler_.Run(store_->AddPage(page)).ok());
  Append(41, 5, "next", "w");
  ASSERT_TRUE(scheduler_.Run(log_->Drain()).ok());
  EXPECT_FALSE(log_->complete());
  std::unique_ptr<ReplicaStore> crashed =
      std::make_unique<ReplicaStore>(std::make_unique<Disk>(memory_));
  ASSERT_TRUE(scheduler_.Run(crashed->Load()).ok());
  EXPECT_FALSE(crashed->position().has_value()) << "a crash now leaves nothing that counts";
  ASSERT_TRUE(scheduler_.Run(log_->Complete()).ok());
  Restart();
  EXPECT_TRUE(log_->complete());
  EXPECT_EQ(log_->last(), (LogPosition{.epoch = 5, .sequence = 41}));
  EXPECT_EQ(ValueOf("old"), "none");
  EXPECT_EQ(ValueOf("new"), "copied");
  EXPECT_EQ(ValueOf("next"), "w");
  EXPECT_EQ(PlaceOf(101), 0u);
  EXPECT_EQ(PlaceOf(141), 41u);
}

TEST_F(LogTest, PagesHoldAllDataAndNames) {
  MakeComplete();
  const std::string value(kMaxValueBytes / 4, 'v');
  for (uint64_t i = 1; i <= 20; ++i) Append(i, 2, "key" + std::to_string(i), value);
  ASSERT_TRUE(scheduler_.Run(log_->Drain()).ok());
  ReplicaStore::Cursor cursor;
  int entries = 0;
  int names = 0;
  int pages = 0;
  while (!cursor.at_end) {
    const absl::StatusOr<v1::Page> page = scheduler_.Run(store_->ReadPage(cursor));
    ASSERT_TRUE(page.ok()) << page.status();
    entries += page->entries_size();
    names += page->names_size();
    ++pages;
  }
  EXPECT_EQ(entries, 20);
  EXPECT_EQ(names, 1);
  EXPECT_GT(pages, 2);
}

// The pages of a copy are no snapshot: "a" comes back when its page was read, and "z" is forgotten
// before its page is.
TEST_F(LogTest, ACopyKnowsThatClientsWereForgottenMeanwhile) {
  MakeComplete();
  uint64_t last = 0;
  const auto write = [&](const std::string& client, uint64_t number) {
    v1::Entry entry = EntryOf(++last, 2, "k", "v");
    entry.set_client(client);
    entry.set_number(number);
    log_->Append(Shared(entry));
    EXPECT_TRUE(scheduler_.Run(log_->Drain()).ok());
    return entry;
  };
  write("a", 1);
  write("z", 1);
  for (size_t i = 1; i < Names::kMaxClients; ++i) write("client " + std::to_string(i), 1);
  ASSERT_EQ(store_->names().RecordOf("a"), "") << "it was forgotten";

  kv::MemoryStore copied{size_t{64} << 20};
  auto copy = std::make_unique<ReplicaStore>(std::make_unique<Disk>(copied));
  ASSERT_TRUE(scheduler_.Run(copy->Clear()).ok());
  ReplicaStore::Cursor cursor;
  std::optional<v1::Entry> meanwhile;
  while (!cursor.at_end) {
    const absl::StatusOr<v1::Page> page = scheduler_.Run(store_->ReadPage(cursor));
    ASSERT_TRUE(page.ok()) << page.status();
    ASSERT_TRUE(scheduler_.Run(copy->AddPage(*page)).ok());
    if (page->names_size() > 0 && !cursor.at_end && !meanwhile) meanwhile = write("a", 3);
  }
  ASSERT_TRUE(meanwhile.has_value());
  ASSERT_EQ(copy->names().RecordOf("z"), "");
  ASSERT_TRUE(scheduler_.Run(copy->Write(copy->Prepare(Shared(*meanwhile), false))).ok());
  ASSERT_TRUE(scheduler_.Run(copy->WritePosition(PositionOf(*meanwhile))).ok());
  for (int lives = 0; lives < 2; ++lives) {
    EXPECT_TRUE(absl::IsOutOfRange(copy->names().FindRepeated("a", 1).status()));
    EXPECT_TRUE(absl::IsOutOfRange(copy->names().FindRepeated("z", 1).status()));
    EXPECT_EQ(**copy->names().FindRepeated("a", 3), last);
    copy = std::make_unique<ReplicaStore>(std::make_unique<Disk>(copied));
    ASSERT_TRUE(scheduler_.Run(copy->Load()).ok());
  }
}

// It may be the only entry of its client that the copy has, if the client is forgotten before its
// page is read.
TEST_F(LogTest, AClientWhoseEntryCameBeforeItsPageIsUnprovenUntilThen) {
  const std::string early(16, 'a'), late(16, 'z');
  ASSERT_TRUE(scheduler_.Run(store_->Clear()).ok());
  const auto take = [&](uint64_t sequence, const std::string& client) {
    v1::Entry entry = EntryOf(sequence, 2, "k", "v");
    entry.set_client(client);
    entry.set_highest(entry.number());
    ASSERT_TRUE(scheduler_.Run(store_->Write(store_->Prepare(Shared(entry), false))).ok());
  };
  const auto names_of = [](const std::string& client, uint64_t number) {
    v1::Page page;
    v1::Page::Pair& pair = *page.add_names();
    pair.set_key(client);
    v1::ClientNames names;
    (*names.mutable_names())[number] = 1;
    pair.set_value(names.SerializeAsString());
    return page;
  };
  ASSERT_TRUE(scheduler_.Run(store_->AddPage(names_of(std::string(16, 'm'), 1))).ok());
  take(7, early);
  take(8, late);
  EXPECT_FALSE(store_->names().FindRepeated(early, 1)->has_value())
      << "the pages have shown that it is new";
  for (const uint64_t number : {1, 1000}) {
    EXPECT_TRUE(absl::IsOutOfRange(store_->names().FindRepeated(late, number).status())) << number;
  }
  ASSERT_TRUE(scheduler_.Run(store_->AddPage(names_of(late, 5))).ok());
  EXPECT_TRUE(store_->names().FindRepeated(late, 5)->has_value());
  EXPECT_FALSE(store_->names().FindRepeated(late, 1)->has_value()) << "its page has come";
  v1::Page data;
  ASSERT_TRUE(scheduler_.Run(store_->AddPage(data)).ok());
  take(9, std::string(16, 'y'));
  EXPECT_FALSE(store_->names().FindRepeated(std::string(16, 'y'), 1)->has_value())
      << "all names have come";
}

TEST_F(LogTest, APageThatNoReplicaSendsIsRefused) {
  ASSERT_TRUE(scheduler_.Run(store_->Clear()).ok());
  for (const size_t key_bytes : {size_t{0}, kMaxKeyBytes + 1}) {
    for (const bool names : {false, true}) {
      v1::Page page;
      (names ? page.add_names() : page.add_entries())->set_key(std::string(key_bytes, 'k'));
      EXPECT_TRUE(absl::IsInvalidArgument(scheduler_.Run(store_->AddPage(page))));
    }
  }
  EXPECT_TRUE(store_->failure().ok()) << "the disk has nothing to do with it";
}

// A copy that goes on without end to a disk that takes nothing would leave the shard without a
// replica.
TEST(DiskFailureTest, ADiskThatFailsInACopyEndsTheLog) {
  enum class At { kErasing, kReading, kPage, kEnd, kEntry };
  for (const At at : {At::kErasing, At::kReading, At::kPage, At::kEnd, At::kEntry}) {
    verbena::internal::ManualScheduler scheduler;
    verbena::TaskScope scope(scheduler);
    DiskScript disk;
    ReplicaStore store(std::make_unique<ScriptedDisk>(disk));
    ASSERT_TRUE(scheduler.Run(store.Load()).ok());
    ReplicaLog log(store, scope);
    const auto fail_next = [&] { disk.fails_at = disk.writes + 1; };
    v1::Page page;
    page.add_entries()->set_key("k");
    if (at == At::kErasing) fail_next();
    disk.reads_fail = at == At::kReading;
    absl::Status status = scheduler.Run(log.BeginCopy({.epoch = 2, .sequence = 40}));
    if (at == At::kPage) fail_next();
    if (status.ok()) status = scheduler.Run(store.AddPage(page));
    if (at == At::kEntry) fail_next();
    if (status.ok()) log.Append(Shared(EntryOf(41, 2, "k", "v")));
    if (status.ok()) status = scheduler.Run(log.Drain());
    if (at == At::kEnd) fail_next();
    if (status.ok()) status = scheduler.Run(log.Complete());
    EXPECT_FALSE(status.ok()) << static_cast<int>(at);
    EXPECT_EQ(log.failure(), status) << static_cast<int>(at);
    EXPECT_EQ(scheduler.Run(log.Drain()), status) << "the next stream would begin a copy";
    EXPECT_FALSE(log.complete());
  }
}

// As when the stream of a copy ends, since another primary has taken over.
TEST(DiskFailureTest, ACopyThatIsCutOffSaysNothingOfTheDisk) {
  verbena::internal::ManualScheduler scheduler;
  DiskScript disk;
  ReplicaStore store(std::make_unique<ScriptedDisk>(disk));
  disk.takes.Reset();
  for (const absl::StatusCode reason :
       {absl::StatusCode::kCancelled, absl::StatusCode::kDeadlineExceeded}) {
    std::optional<absl::Status> ended;
    verbena::TaskScope scope(scheduler);
    scope.Spawn([&]() -> Task<void> { ended = co_await store.Clear(); });
    scheduler.RunUntilIdle();
    scope.RequestCancel(reason);
    scheduler.RunUntilIdle();
    ASSERT_TRUE(ended.has_value());
    EXPECT_EQ(ended->code(), reason);
    EXPECT_TRUE(store.failure().ok()) << store.failure();
  }
}

TEST_F(LogTest, KnowsThePositionsThatItHas) {
  MakeComplete();
  Append(1, 2, "k", "a");
  Append(2, 2, "k", "b");
  Append(3, 4, "k", "c");
  EXPECT_TRUE(log_->Has({}));
  EXPECT_TRUE(log_->Has({.epoch = 2, .sequence = 2}));
  EXPECT_TRUE(log_->Has({.epoch = 4, .sequence = 3}));
  // Another primary's entry at the same place.
  EXPECT_FALSE(log_->Has({.epoch = 3, .sequence = 3}));
  EXPECT_FALSE(log_->Has({.epoch = 2, .sequence = 3}));
  EXPECT_FALSE(log_->Has({.epoch = 4, .sequence = 4}));
  ASSERT_TRUE(scheduler_.Run(log_->Drain()).ok());
  Restart();
  EXPECT_TRUE(log_->Has({.epoch = 4, .sequence = 3}));
  EXPECT_FALSE(log_->Has({.epoch = 2, .sequence = 2})) << "its entries are not in memory any more";
}

TEST_F(LogTest, EntriesOutOfOrderAreRefused) {
  MakeComplete();
  Append(1, 5, "k", "a");
  EXPECT_TRUE(log_->CheckNext({.epoch = 5, .sequence = 2}, 6).ok());
  EXPECT_TRUE(log_->CheckNext({.epoch = 6, .sequence = 2}, 6).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(log_->CheckNext({.epoch = 5, .sequence = 3}, 6)));
  // One of an older epoch would end the process: the log would wait for the disk, and the disk's
  // position never be the log's.
  EXPECT_TRUE(absl::IsInvalidArgument(log_->CheckNext({.epoch = 4, .sequence = 2}, 6)));
  EXPECT_TRUE(absl::IsInvalidArgument(log_->CheckNext({.epoch = 7, .sequence = 2}, 6)));
  EXPECT_TRUE(log_->CheckNext({.epoch = 6, .sequence = 9}, 6, /*copy_begins=*/true).ok());
  EXPECT_FALSE(log_->CheckNext({.epoch = 7, .sequence = 9}, 6, /*copy_begins=*/true).ok());
  EXPECT_FALSE(log_->CheckNext({.epoch = 6, .sequence = UINT64_MAX}, 6, /*copy_begins=*/true).ok());
}

TEST_F(LogTest, MemoryForTheLogIsBounded) {
  MakeComplete();
  for (uint64_t i = 1; i <= kMaxTailEntries + 10; ++i) {
    v1::Entry entry = EntryOf(i, 2, "k", "v");
    entry.set_acknowledged_below(entry.number());
    log_->Append(Shared(std::move(entry)));
    if (i % 100 == 0) {
      ASSERT_TRUE(scheduler_.Run(log_->Drain()).ok());
    }
  }
  EXPECT_EQ(log_->Find(10), nullptr);
  ASSERT_NE(log_->Find(11), nullptr);
  EXPECT_EQ(log_->Find(11)->sequence(), 11u);
}

TEST(NamesTest, AnEntryThatIsTakenTwiceChangesNothing) {
  Names names;
  names.Add(EntryOf(1, 2, "k", "v"));
  v1::Entry second = EntryOf(2, 2, "k", "v");
  second.set_acknowledged_below(102);
  names.Add(second);
  const std::string before = names.RecordOf(kClient);
  names.Add(EntryOf(1, 2, "k", "v"));
  names.Add(second);
  EXPECT_EQ(names.RecordOf(kClient), before);
}

TEST(NamesTest, ANumberThatIsOverIsNotTakenForNew) {
  Names names;
  names.Add(EntryOf(1, 2, "k", "v"));
  v1::Entry second = EntryOf(2, 2, "k", "v");
  second.set_acknowledged_below(102);
  names.Add(second);
  EXPECT_EQ(names.Find(kClient, 101).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(**names.Find(kClient, 102), 2u);
  EXPECT_FALSE(names.Find(kClient, 103)->has_value());
}

TEST(NamesTest, AClientThatAcknowledgesNothingIsBounded) {
  Names names;
  for (uint64_t i = 1; i <= Names::kMaxNames + 1; ++i) names.Add(EntryOf(i, 2, "k", "v"));
  EXPECT_EQ(names.Find(kClient, 101).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(names.Find(kClient, 102)->has_value());
}

TEST(NamesTest, ARecordGivesThemBack) {
  Names names;
  for (uint64_t i = 1; i <= 3; ++i) {
    v1::Entry entry = EntryOf(i, 2, "k", "v");
    entry.set_acknowledged_below(102);
    names.Add(entry);
  }
  Names loaded;
  ASSERT_TRUE(loaded.Load(kClient, names.RecordOf(kClient)).ok());
  EXPECT_TRUE(absl::IsOutOfRange(loaded.Find(kClient, 101).status()));
  EXPECT_EQ(**loaded.Find(kClient, 102), 2u);
  EXPECT_EQ(**loaded.Find(kClient, 103), 3u);
  EXPECT_FALSE(loaded.Load(kClient, "\xff\xff").ok());
}

TEST(NamesTest, ANewClientHasRoomOnlyIfAnOldOneMayBeForgotten) {
  Names names;
  v1::Entry entry = EntryOf(1, 2, "k", "v");
  for (size_t i = 0; i < Names::kMaxClients; ++i) {
    entry.set_client("client " + std::to_string(i));
    EXPECT_FALSE(names.Add(entry).has_value());
  }
  EXPECT_TRUE(names.HasRoomFor("client 7", 2, 0));
  EXPECT_FALSE(names.HasRoomFor("another", 2, 0));
  EXPECT_TRUE(names.HasRoomFor("another", Names::kKeepEntries + 2, 0));
  entry.set_client("another");
  EXPECT_TRUE(names.Add(entry).has_value());
}

TEST(LogAgeTest, KnowsWhichEntriesAreOld) {
  verbena::TimePoint now(std::chrono::hours(1));
  LogAge age;
  EXPECT_EQ(age.Old(7, now), 0u) << "nothing is known of the time before";
  now += kKeepNames - std::chrono::milliseconds(1);
  EXPECT_EQ(age.Old(9, now), 0u);
  now += std::chrono::milliseconds(1);
  EXPECT_EQ(age.Old(9, now), 7u);
  now += kKeepNames;
  EXPECT_EQ(age.Old(20, now), 9u);
  // With a write each second.
  for (uint64_t last = 21; last < 21 + 3600; ++last) {
    EXPECT_LT(age.Old(last, now), last);
    now += std::chrono::seconds(1);
  }
  EXPECT_GT(age.Old(21 + 3600, now), 2400u);
}

// As with thousands of programs that write once each: no log would ever get longer again.
TEST(NamesTest, ClientsThatAreGoneKeepNoOthersOut) {
  Names names;
  v1::Entry entry = EntryOf(1, 2, "k", "v");
  for (size_t i = 0; i < Names::kMaxClients; ++i) {
    entry.set_client("client " + std::to_string(i));
    entry.set_sequence(1 + i);
    EXPECT_FALSE(names.Add(entry).has_value());
  }
  const uint64_t next = 1 + Names::kMaxClients;
  EXPECT_FALSE(names.HasRoomFor("another", next, 0));
  EXPECT_TRUE(names.HasRoomFor("another", next, 1)) << "the first entry is old";
}

TEST(NamesTest, ARepeatedCallOfAClientThatMayHaveBeenForgottenIsNotTakenForNew) {
  Names names;
  v1::Entry entry = EntryOf(1, 2, "k", "v");  // number 101
  for (size_t i = 0; i < Names::kMaxClients - 1; ++i) {
    entry.set_client("client " + std::to_string(i));
    names.Add(entry);
  }
  EXPECT_FALSE(names.FindRepeated("unknown", 1)->has_value()) << "none was forgotten";
  entry.set_client("known all the time");
  entry.set_sequence(2);
  names.Add(entry);
  entry.set_client("another");
  entry.set_sequence(3);
  const std::optional<std::string> forgotten = names.Add(entry);
  ASSERT_TRUE(forgotten.has_value());
  EXPECT_TRUE(absl::IsOutOfRange(names.FindRepeated(*forgotten, 101).status()));
  EXPECT_FALSE(names.Find(*forgotten, 102)->has_value()) << "a call that is not repeated may run";
  EXPECT_FALSE(names.FindRepeated("known all the time", 102)->has_value());
  // The client comes back, with a number that it had given before or later.
  for (const uint64_t number : {uint64_t{100}, uint64_t{103}}) {
    Names again = names;
    entry.set_client(*forgotten);
    entry.set_sequence(4);
    entry.set_number(number);
    again.Add(entry);
    Names loaded;
    ASSERT_TRUE(loaded.Load(*forgotten, again.RecordOf(*forgotten)).ok());
    for (const Names& each : {again, loaded}) {
      EXPECT_TRUE(absl::IsOutOfRange(each.FindRepeated(*forgotten, 101).status())) << number;
      EXPECT_EQ(**each.FindRepeated(*forgotten, number), 4u);
      EXPECT_FALSE(each.Find(*forgotten, 102)->has_value()) << "it is not repeated";
    }
  }
}

TEST(NamesTest, AForgottenClientThatTellsItsHighestNumberHasItsLaterCallsProven) {
  Names names;
  v1::Entry entry = EntryOf(1, 2, "k", "v");  // number 101
  for (size_t i = 0; i <= Names::kMaxClients; ++i) {
    entry.set_client("client " + std::to_string(i));
    entry.set_sequence(1 + i);
    names.Add(entry);
  }
  EXPECT_EQ(names.forgotten_up_to("client 0"), 1u);
  entry.set_client("client 0");
  entry.set_sequence(Names::kMaxClients + 2);
  entry.set_number(100);
  entry.set_highest(105);
  names.Add(entry);
  EXPECT_EQ(names.forgotten_up_to("unknown"), 2u);
  Names loaded;
  ASSERT_TRUE(loaded.Load("client 0", names.RecordOf("client 0")).ok());
  for (const Names& each : {names, loaded}) {
    for (const uint64_t number : {99, 101, 105}) {
      EXPECT_TRUE(absl::IsOutOfRange(each.FindRepeated("client 0", number).status())) << number;
    }
    EXPECT_EQ(**each.FindRepeated("client 0", 100), Names::kMaxClients + 2);
    EXPECT_FALSE(each.FindRepeated("client 0", 106)->has_value()) << "it came here, and got lost";
  }
  v1::ClientNames record;
  ASSERT_TRUE(record.ParseFromString(names.RecordOf("client 0")));
  EXPECT_NE(record.unproven_below(), 0u) << "for earlier versions no number is proven";
}

TEST(NamesTest, ALaterEntryProvesCallsOfAClientThatCameTooSoonAfterAForgottenOne) {
  Names names;
  v1::Entry entry = EntryOf(1, 2, "k", "v");
  const auto add = [&](const std::string& client, uint64_t number, uint64_t highest) {
    entry.set_client(client);
    entry.set_number(number);
    entry.set_highest(highest);
    names.Add(entry);
    entry.set_sequence(entry.sequence() + 1);
  };
  for (size_t i = 0; i <= Names::kMaxClients; ++i) add("client " + std::to_string(i), 101, 0);
  const uint64_t came = entry.sequence();
  add("client 0", 100, 0);
  add("another", 1, 0);
  EXPECT_EQ(names.forgotten_up_to("client 0"), came) << "later ones are of others";
  EXPECT_EQ(names.forgotten_up_to("client 9"), 0u);
  EXPECT_EQ(names.forgotten_up_to("unknown"), 3u);
  EXPECT_TRUE(absl::IsOutOfRange(names.FindRepeated("client 0", 104).status()));
  add("client 0", 103, 103);
  add("client 0", 106, 106);
  Names loaded;
  ASSERT_TRUE(loaded.Load("client 0", names.RecordOf("client 0")).ok());
  for (const Names& each : {names, loaded}) {
    for (const uint64_t number : {99, 101, 102}) {
      EXPECT_TRUE(absl::IsOutOfRange(each.FindRepeated("client 0", number).status())) << number;
    }
    EXPECT_EQ(**each.FindRepeated("client 0", 100), came);
    EXPECT_EQ(**each.FindRepeated("client 0", 103), came + 2);
    EXPECT_FALSE(each.FindRepeated("client 0", 104)->has_value()) << "it came here, and got lost";
    EXPECT_EQ(each.forgotten_up_to("client 0"), came);
  }
}

// Such an entry may be from before the client was forgotten.
TEST(NamesTest, AnEntryThatACopiedRecordHasAlreadyProvesNothing) {
  v1::ClientNames record;
  record.set_unproven_below(UINT64_MAX);
  record.set_entered_at(9);
  record.set_last_sequence(9);
  Names names;
  ASSERT_TRUE(names.Load(kClient, record.SerializeAsString()).ok());
  v1::Entry entry = EntryOf(7, 2, "k", "v");  // number 107
  entry.set_highest(107);
  names.Add(entry);
  EXPECT_TRUE(absl::IsOutOfRange(names.FindRepeated(kClient, 108).status()));
  entry.set_sequence(10);
  names.Add(entry);
  EXPECT_FALSE(names.FindRepeated(kClient, 108)->has_value());
}

// They took the first number that came for the lowest that was left.
TEST(NamesTest, ARecordOfAnEarlierVersionProvesNothingOfAClientThatCameAgain) {
  v1::ClientNames record;
  record.set_unproven_below(5);
  Names names;
  ASSERT_TRUE(names.Load("client", record.SerializeAsString()).ok());
  EXPECT_TRUE(absl::IsOutOfRange(names.FindRepeated("client", 6).status()));
  record.clear_unproven_below();
  ASSERT_TRUE(names.Load("client", record.SerializeAsString()).ok());
  EXPECT_FALSE(names.FindRepeated("client", 6)->has_value());
}

}  // namespace log_test
}  // namespace replicated_kv
