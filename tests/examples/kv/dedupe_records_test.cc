// A repeated Put or Delete of kv has the answer of the first, also after a restart; records go as
// soon as nobody can ask for them; and a client that is gone, or never acknowledges, fills no
// store. Built once for each engine.

#include "examples/kv/dedupe_records.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
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
#include "examples/kv/kv.pb.h"
#include "examples/kv/kv.verbena.pb.h"
#include "examples/kv/kv_service.h"
#include "examples/kv/store.h"
#include "tests/examples/kv/store_fixture.h"
#include "tests/support/held_port.h"
#include "tests/support/moved_clock.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/dedupe.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/task.h"

namespace kv {
namespace dedupe_records_test {

using verbena::RequestId;
using verbena::Task;

constexpr size_t kMaxNames = 40;

RequestId NameOf(uint8_t client, uint64_t number) { return {.client = {client}, .number = number}; }

// A store whose next write fails, or hangs, as the test says.
class FlakyStore final : public Store {
 public:
  enum class Next { kWorks, kFailsButStores, kRefuses, kNeverEnds };

  explicit FlakyStore(std::unique_ptr<Store> store) : store_(std::move(store)) {}
  std::string description() const override { return store_->description(); }
  Task<absl::StatusOr<bool>> Write(StoreWrite write) override {
    const Next now = next.exchange(Next::kWorks);
    if (now == Next::kRefuses) {
      co_return verbena::WithOutcome(absl::FailedPreconditionError("refused"),
                                     verbena::Outcome::kNotExecuted);
    }
    if (now == Next::kNeverEnds) {
      VERBENA_CO_RETURN_IF_ERROR(co_await verbena::SleepUntil(verbena::kNever));
    }
    absl::StatusOr<bool> written = co_await store_->Write(write);
    if (now == Next::kFailsButStores) co_return absl::InternalError("the disk does not answer");
    co_return written;
  }
  Task<absl::Status> Get(std::string_view key, std::string& value) override {
    co_return co_await store_->Get(key, value);
  }
  Task<absl::StatusOr<ScanPage>> Scan(std::string_view start_key, size_t max_bytes) override {
    co_return co_await store_->Scan(start_key, max_bytes);
  }
  Task<absl::Status> GetRecord(std::string_view id, std::string& bytes) override {
    co_return co_await store_->GetRecord(id, bytes);
  }
  Task<absl::StatusOr<ScanPage>> ScanRecords(std::string_view start_id, size_t max_bytes) override {
    co_return co_await store_->ScanRecords(start_id, max_bytes);
  }
  Task<absl::StatusOr<StoreStats>> Stats() override { co_return co_await store_->Stats(); }

  std::atomic<Next> next{Next::kWorks};

 private:
  const std::unique_ptr<Store> store_;
};

class DedupeRecordsTest : public StoreFixture {
 protected:
  void SetUp() override {
    store_ = MakeStore();
    Restart();
  }

  // The store stays.
  void Restart() {
    records_ = std::make_unique<DedupeRecords>(*store_, kMaxNames, clock_);
    ASSERT_TRUE(Run(records_->Load()).ok());
  }
  // A call that puts "key", whose record says "new" or "old".
  absl::Status Call(uint8_t client, uint64_t number, uint64_t acknowledged_below = 1,
                    uint64_t highest = 0) {
    return Run(records_->Write({.key = "key", .value = "value"},
                               {.name = NameOf(client, number),
                                .acknowledged_below = acknowledged_below,
                                .highest = highest,
                                .reply_if_new = "new",
                                .reply_if_existed = "old"}))
        .status();
  }
  // Returns the state of a call in the store: its reply, "none" if it has not run, or a status.
  std::string Known(uint8_t client, uint64_t number) {
    const auto found = Run(records_->Lookup(NameOf(client, number)));
    if (!found.ok()) return absl::StatusCodeToString(found.status().code());
    return found->has_value() ? (*found)->reply : "none";
  }
  size_t RecordsInStore() { return Run(store_->ScanRecords("", kPlenty)).value().entries.size(); }

  // Client 1 has written call 6, and then so many others that it was dropped.
  void DropFirst() {
    ASSERT_TRUE(Call(1, 6).ok());
    for (uint8_t client = 2; client <= kMaxNames + 2; ++client) ASSERT_TRUE(Call(client, 1).ok());
    ASSERT_EQ(Known(1, 6), "ABORTED");
  }
  // The record of a name.
  std::string RecordOf(uint8_t client, char number) {
    std::string id(24, '\0');  // the client, and the number in eight bytes
    id[0] = static_cast<char>(client);
    id[23] = number;
    std::string record;
    EXPECT_TRUE(Run(store_->GetRecord(id, record)).ok());
    return record;
  }

  verbena::MovedClock clock_;
  std::unique_ptr<DedupeRecords> records_;
};

TEST_F(DedupeRecordsTest, ARecordSaysWhetherTheKeyExisted) {
  ASSERT_TRUE(Call(1, 1).ok());
  ASSERT_TRUE(Call(1, 2).ok());
  for (int lives = 0; lives < 2; ++lives) {
    EXPECT_EQ(Known(1, 1), "new");
    EXPECT_EQ(Known(1, 2), "old");
    EXPECT_EQ(Known(1, 3), "none");
    EXPECT_EQ(Known(2, 1), "none");
    Restart();
  }
}

TEST_F(DedupeRecordsTest, AcknowledgedCallsAreForgottenAndNoOthers) {
  for (uint64_t number = 1; number <= 18; ++number) ASSERT_TRUE(Call(1, number).ok());
  ASSERT_TRUE(Call(2, 1).ok());
  Restart();
  ASSERT_TRUE(Call(1, 19, 18).ok());
  EXPECT_EQ(RecordsInStore(), 4u) << "one write removes 16";
  EXPECT_EQ(Known(1, 16), "none");
  ASSERT_TRUE(Call(1, 20, 18).ok());
  EXPECT_EQ(RecordsInStore(), 4u);
  EXPECT_EQ(Known(1, 17), "none");
  EXPECT_EQ(Known(1, 18), "old") << "it may be repeated";
  EXPECT_EQ(Known(2, 1), "old") << "it is another client's";
}

TEST_F(DedupeRecordsTest, AClientThatNeverAcknowledgesIsRefused) {
  uint64_t number = 1;
  while (number <= kMaxNames / 2) ASSERT_TRUE(Call(1, number++).ok());
  const absl::Status refused = Call(1, number);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(verbena::OutcomeOf(refused), verbena::Outcome::kNotExecuted);
  EXPECT_EQ(Known(1, number), "none");
  EXPECT_TRUE(Call(2, 1).ok());
  EXPECT_TRUE(Call(1, number, 2).ok());
  EXPECT_EQ(RecordsInStore(), kMaxNames / 2 + 1);
}

TEST_F(DedupeRecordsTest, ClientsThatAreGoneAreDroppedAndTheirNamesProveNothing) {
  ASSERT_TRUE(Call(200, 1).ok());
  for (uint8_t client = 1; client <= 2 * kMaxNames; ++client) {
    ASSERT_TRUE(Call(client, 1).ok());
    ASSERT_TRUE(Call(200, 1 + client, 1 + client).ok());
  }
  EXPECT_LE(RecordsInStore(), kMaxNames + 1) << "and the one that says that some were dropped";
  for (int lives = 0; lives < 2; ++lives) {
    EXPECT_EQ(Known(200, 1000), "none") << "the client has been known all the time";
    EXPECT_EQ(Known(1, 1), "ABORTED");
    EXPECT_EQ(Known(2 * kMaxNames, 1), "old");
    EXPECT_EQ(Known(200, 1 + 2 * kMaxNames), "old");
    Restart();
  }
}

// A client may have given many numbers before one of them reaches the store: the first that comes
// after a drop need not be above those that ran before.
TEST_F(DedupeRecordsTest, OfAClientThatComesAfterADropNoMissingNameProvesAnything) {
  ASSERT_TRUE(Call(1, 6).ok());
  for (uint8_t client = 2; client <= kMaxNames + 2; ++client) ASSERT_TRUE(Call(client, 1).ok());
  ASSERT_EQ(Known(1, 6), "ABORTED");
  ASSERT_TRUE(Call(1, 5).ok());
  for (int lives = 0; lives < 2; ++lives) {
    EXPECT_EQ(Known(1, 5), "old");
    EXPECT_EQ(Known(1, 4), "ABORTED");
    EXPECT_EQ(Known(1, 6), "ABORTED") << "it ran before the client was dropped";
    Restart();
    ASSERT_TRUE(Call(1, 5).ok()) << "the same in the next life";
  }
}

// Call 5, which the client had given before, comes late.
TEST_F(DedupeRecordsTest, OfAClientThatTellsItsHighestNumberLaterNamesAreProven) {
  DropFirst();
  clock_.Advance(DedupeRecords::kMostUnderWay + std::chrono::seconds(1));
  ASSERT_TRUE(Call(1, 5, 1, /*highest=*/7).ok());
  for (int lives = 0; lives < 2; ++lives) {
    EXPECT_EQ(Known(1, 5), "old");
    for (const uint64_t number : {4, 6, 7}) EXPECT_EQ(Known(1, number), "ABORTED") << number;
    EXPECT_EQ(Known(1, 8), "none") << "it was given after the client had come again";
    Restart();
  }
  ASSERT_TRUE(Call(1, 6, 6, /*highest=*/9).ok()) << "whose name goes on to say so";
  Restart();
  EXPECT_EQ(Known(1, 7), "ABORTED");
  EXPECT_EQ(Known(1, 8), "none");
}

// Call 7 may have been faster than call 5, and its name be dropped with the client's others.
TEST_F(DedupeRecordsTest, AHighestNumberProvesNothingIfAClientWasDroppedThatWroteLately) {
  DropFirst();
  ASSERT_TRUE(Call(1, 5, 1, /*highest=*/6).ok());
  for (int lives = 0; lives < 2; ++lives) {
    EXPECT_EQ(Known(1, 7), "ABORTED");
    Restart();
  }
}

// Drops that come later are of other clients.
TEST_F(DedupeRecordsTest, ALaterHighestNumberProvesNamesThoughAClientWasDroppedThatWroteLately) {
  DropFirst();
  ASSERT_TRUE(Call(1, 5, 1, /*highest=*/5).ok());
  ASSERT_TRUE(Call(1, 7, 1, /*highest=*/7).ok());
  EXPECT_EQ(Known(1, 8), "ABORTED");
  clock_.Advance(DedupeRecords::kMostUnderWay + std::chrono::seconds(1));
  for (uint8_t client = 100; client < 100 + kMaxNames - 2; ++client) {
    ASSERT_TRUE(Call(client, 1).ok());
  }
  ASSERT_TRUE(Call(1, 9).ok());
  EXPECT_EQ(Known(100, 1), "ABORTED");
  EXPECT_EQ(Known(1, 11), "ABORTED") << "no request has told a number since";
  ASSERT_TRUE(Call(1, 10, 1, /*highest=*/10).ok());
  for (const uint64_t number : {4, 6, 8}) EXPECT_EQ(Known(1, number), "ABORTED") << number;
  EXPECT_EQ(Known(1, 11), "none");
}

// All names that were dropped are older than the request's link.
TEST_F(DedupeRecordsTest, AfterARestartTheNextHighestNumberProvesNames) {
  DropFirst();
  ASSERT_TRUE(Call(1, 5, 1, /*highest=*/5).ok());
  Restart();
  EXPECT_EQ(Known(1, 8), "ABORTED");
  ASSERT_TRUE(Call(1, 7, 1, /*highest=*/7).ok());
  EXPECT_EQ(Known(1, 6), "ABORTED");
  EXPECT_EQ(Known(1, 8), "none");
  Restart();
  EXPECT_EQ(Known(1, 8), "ABORTED") << "a name from before is left";
  ASSERT_TRUE(Call(1, 8, 8, /*highest=*/8).ok());
  Restart();
  EXPECT_EQ(Known(1, 6), "ABORTED");
  EXPECT_EQ(Known(1, 9), "none");
}

TEST_F(DedupeRecordsTest, EarlierVersionsReadTheNamesOfAClientThatToldItsHighestNumber) {
  DropFirst();
  clock_.Advance(DedupeRecords::kMostUnderWay + std::chrono::seconds(1));
  v1::PutReply sent;
  sent.set_created(true);
  const std::string bytes = sent.SerializeAsString();
  ASSERT_TRUE(Run(records_->Write({.key = "key", .value = "value"}, {.name = NameOf(1, 5),
                                                                     .acknowledged_below = 1,
                                                                     .highest = 7,
                                                                     .reply_if_new = bytes,
                                                                     .reply_if_existed = bytes}))
                  .ok());
  EXPECT_EQ(Known(1, 5), bytes);
  v1::PutReply read;
  ASSERT_TRUE(read.ParseFromString(RecordOf(1, 5))) << "they take the whole record for a reply";
  EXPECT_TRUE(read.created());
}

// An earlier version, which took over for a while, has entered the client anew.
TEST_F(DedupeRecordsTest, ANameOfAnEarlierVersionUnprovesTheOthersOfItsClient) {
  DropFirst();
  clock_.Advance(DedupeRecords::kMostUnderWay + std::chrono::seconds(1));
  ASSERT_TRUE(Call(1, 5, 1, /*highest=*/7).ok());
  std::string id(24, '\0');
  id[0] = 1;
  id[23] = 9;
  const StoreRecord record{.id = id, .bytes = "areply"};
  ASSERT_TRUE(Run(store_->Write({.key = "key", .value = "value", .records = {&record, 1}})).ok());
  Restart();
  EXPECT_EQ(Known(1, 9), "reply");
  EXPECT_EQ(Known(1, 10), "ABORTED");
}

// Its client may have lost the answers to those that are gone.
TEST_F(DedupeRecordsTest, WhatIsLeftOfADroppedClientTellsWhatHasRun) {
  constexpr uint64_t kMany = kMaxNames / 2;
  static_assert(kMany > DedupeRecords::kMaxRemoved);
  for (uint64_t number = 1; number <= kMany; ++number) ASSERT_TRUE(Call(1, number).ok());
  for (uint64_t number = 1; number <= kMany; ++number) ASSERT_TRUE(Call(2, number).ok());
  ASSERT_TRUE(Call(3, 1).ok());  // the first client is dropped, and a part of its names removed
  Restart();
  EXPECT_EQ(Known(1, 1), "ABORTED");
  EXPECT_EQ(Known(1, kMany), "old");
  EXPECT_EQ(Known(1, kMany + 1), "none");
}

TEST_F(DedupeRecordsTest, AnInterruptedDropLeavesTheHighestNames) {
  auto flaky = std::make_unique<FlakyStore>(std::move(store_));
  FlakyStore& store = *flaky;
  store_ = std::move(flaky);
  Restart();
  constexpr uint64_t kMany = kMaxNames / 2;
  for (uint64_t number = 1; number <= kMany; ++number) ASSERT_TRUE(Call(1, number).ok());
  for (uint64_t number = 1; number <= kMany; ++number) ASSERT_TRUE(Call(2, number).ok());
  store.next = FlakyStore::Next::kRefuses;
  EXPECT_FALSE(Call(3, 1).ok());
  ASSERT_TRUE(Call(3, 2).ok());
  Restart();
  EXPECT_EQ(Known(1, DedupeRecords::kMaxRemoved), "ABORTED");
  EXPECT_EQ(Known(1, kMany), "old");
}

TEST_F(DedupeRecordsTest, WritesThatFailRemoveTheirRecordsLater) {
  for (uint64_t number = 1; number <= 4; ++number) ASSERT_TRUE(Call(1, number).ok());
  EXPECT_FALSE(Run(records_->Write({.key = "", .value = "v"},
                                   {.name = NameOf(1, 5), .acknowledged_below = 5}))
                   .ok());
  EXPECT_EQ(RecordsInStore(), 4u);
  ASSERT_TRUE(Call(1, 6, 6).ok());
  EXPECT_EQ(RecordsInStore(), 1u);
}

// They do not say whether their client was known.
// As by an interceptor of the site, while the store writes.
TEST_F(DedupeRecordsTest, AWriteThatIsDestroyedLeavesItsRemovalsToTheNext) {
  auto flaky = std::make_unique<FlakyStore>(std::move(store_));
  std::atomic<FlakyStore::Next>& next = flaky->next;
  store_ = std::move(flaky);
  Restart();
  ASSERT_TRUE(Call(1, 1).ok());
  next = FlakyStore::Next::kNeverEnds;
  Run([this]() -> Task<void> {
    verbena::TaskScope scope(co_await verbena::CurrentContext());
    scope.Spawn([this]() -> Task<void> {
      (void)co_await records_->Write({.key = "key", .value = "value"},
                                     {.name = NameOf(1, 2), .acknowledged_below = 2});
    });
    (void)co_await verbena::Yield();
  }());
  ASSERT_TRUE(Call(1, 3, 2).ok());
  EXPECT_EQ(RecordsInStore(), 1u) << "the first call was acknowledged";
}

TEST_F(DedupeRecordsTest, RecordsOfEarlierVersionsAreRepliesAlone) {
  const auto write = [this](char last, std::string_view reply) {
    std::string id(24, '\0');  // the client, and the number in eight bytes
    id[0] = 1;
    id[23] = last;
    const StoreRecord record{.id = id, .bytes = reply};
    ASSERT_TRUE(Run(store_->Write({.key = "key", .value = "value", .records = {&record, 1}})).ok());
  };
  write(1, "");
  write(2, "\x08\x01");
  Restart();
  EXPECT_EQ(Known(1, 1), "");
  EXPECT_EQ(Known(1, 2), "\x08\x01");
  EXPECT_EQ(Known(1, 3), "none");
}

// The service on that, as its clients see it.
class DedupedServiceTest : public DedupeRecordsTest {
 protected:
  void SetUp() override {
    DedupeRecordsTest::SetUp();
    StartServer();
    channel_.emplace(*runtime_, port_.address());
  }
  void TearDown() override {
    channel_.reset();
    server_.reset();
  }
  void StartServer() {
    server_.reset();
    Restart();
    service_ = std::make_unique<KvService>(*store_, *records_);
    auto server =
        verbena::Server::Start(*runtime_, {service_.get()},
                               {.address = port_.address(), .dedupe = {.store = records_.get()}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  verbena::CallOptions Options(verbena::DedupeToken& token) {
    return {.deadline = std::chrono::seconds(30), .wait_for_ready = true, .dedupe = &token};
  }
  // Puts "key", then deletes it, each twice, with `between` before the repetition.
  template <typename Between>
  Task<void> PutAndDeleteTwice(Between between) {
    v1::KeyValue::Stub stub(*channel_);
    v1::PutRequest put;
    put.set_key("key");
    v1::DeleteRequest remove;
    remove.set_key("key");
    verbena::DedupeToken put_token;
    verbena::DedupeToken delete_token;
    for (int attempt = 0; attempt < 2; ++attempt) {
      verbena::CallOptions options = Options(put_token);
      options.request_payload = verbena::Payload::Empty();
      const auto reply = co_await stub.Put(put, std::move(options));
      EXPECT_TRUE(reply.ok() && reply->created()) << "attempt " << attempt << reply.status();
      if (attempt == 0) co_await between();
    }
    for (int attempt = 0; attempt < 2; ++attempt) {
      const auto reply = co_await stub.Delete(remove, Options(delete_token));
      EXPECT_TRUE(reply.ok() && reply->existed()) << "attempt " << attempt << reply.status();
      if (attempt == 0) co_await between();
    }
  }

  const verbena::HeldPort port_;
  std::unique_ptr<KvService> service_;
  std::unique_ptr<verbena::Server> server_;
  std::optional<verbena::Channel> channel_;
};

TEST_F(DedupedServiceTest, ARepeatedPutHasTheAnswerOfTheFirstAlsoAfterARestart) {
  Run(PutAndDeleteTwice([]() -> Task<void> { co_return; }));
  Run(PutAndDeleteTwice([this]() -> Task<void> {
    const absl::Status restarted = co_await verbena::RunBlocking([this] {
      StartServer();
      return absl::OkStatus();
    });
    EXPECT_TRUE(restarted.ok());
  }));
  EXPECT_EQ(RecordsInStore(), 1u + 1u) << "the last Delete's, and what it could not acknowledge";
}

TEST_F(DedupedServiceTest, AServiceTellsItsRecordsTheHighestNumber) {
  for (uint8_t client = 1; client <= kMaxNames + 1; ++client) ASSERT_TRUE(Call(client, 1).ok());
  clock_.Advance(DedupeRecords::kMostUnderWay + std::chrono::seconds(1));
  Run([this]() -> Task<void> {
    const v1::KeyValue::Stub stub(*channel_);
    v1::PutRequest put;
    put.set_key("key");
    verbena::DedupeToken token;
    verbena::CallOptions options = Options(token);
    options.request_payload = verbena::Payload::Empty();
    EXPECT_TRUE((co_await stub.Put(put, std::move(options))).ok());
  }());
  const ScanPage page = Run(store_->ScanRecords("", kPlenty)).value();
  EXPECT_EQ(std::ranges::count_if(page.entries,
                                  [](const StoreEntry& each) {
                                    return each.value.starts_with(
                                        std::string("\x79\x02\0\0\0\0\0\0\0", 9));
                                  }),
            1)
      << "its number, the first one, is the highest";
}

// The service on an engine that may fail.
class FlakyServiceTest : public DedupedServiceTest {
 protected:
  void SetUp() override {
    auto flaky = std::make_unique<FlakyStore>(MakeStore());
    flaky_ = flaky.get();
    store_ = std::move(flaky);
    StartServer();
    channel_.emplace(*runtime_, port_.address());
  }
  // Puts "key" with `token`.
  absl::StatusOr<v1::PutReply> PutOnce(verbena::DedupeToken& token) {
    return Run([](DedupedServiceTest& test, v1::KeyValue::Stub stub,
                  verbena::CallOptions options) -> Task<absl::StatusOr<v1::PutReply>> {
      v1::PutRequest put;
      put.set_key("key");
      options.request_payload = verbena::Payload::Empty();
      co_return co_await stub.Put(put, std::move(options));
    }(*this, v1::KeyValue::Stub(*channel_), Options(token)));
  }

  FlakyStore* flaky_ = nullptr;
};

TEST_F(FlakyServiceTest, AWriteWhoseFateIsOpenIsLookedUpWhenItIsRepeated) {
  verbena::DedupeToken token;
  flaky_->next = FlakyStore::Next::kFailsButStores;
  const absl::Status failed = PutOnce(token).status();
  EXPECT_TRUE(absl::IsInternal(failed)) << failed;
  EXPECT_EQ(verbena::OutcomeOf(failed), verbena::Outcome::kMaybeExecuted);
  const absl::StatusOr<v1::PutReply> repeated = PutOnce(token);
  ASSERT_TRUE(repeated.ok()) << repeated.status();
  EXPECT_TRUE(repeated->created()) << "it has run once";
}

TEST_F(FlakyServiceTest, AWriteThatTheStoreRefusedRunsWhenItIsRepeated) {
  verbena::DedupeToken token;
  flaky_->next = FlakyStore::Next::kRefuses;
  const absl::Status refused = PutOnce(token).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_EQ(verbena::OutcomeOf(refused), verbena::Outcome::kNotExecuted);
  const absl::StatusOr<v1::PutReply> repeated = PutOnce(token);
  ASSERT_TRUE(repeated.ok()) << repeated.status();
  EXPECT_TRUE(repeated->created());
}

}  // namespace dedupe_records_test
}  // namespace kv
