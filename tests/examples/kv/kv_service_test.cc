// The key-value service through a stub: one executor sees what another put, values of any length
// travel as payloads, pages fit their replies, and refusals reach the caller with their reason.

#include "examples/kv/kv_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/kv/change_log.h"
#include "examples/kv/dedupe_records.h"
#include "examples/kv/kv.pb.h"
#include "examples/kv/kv.verbena.pb.h"
#include "examples/kv/limits.h"
#include "examples/kv/memory_store.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/memory.h"
#include "verbena/rpc/task.h"
#include "verbena/testing.h"

namespace kv {
namespace kv_service_test {

using ::testing::HasSubstr;
using verbena::testing::InProcess;
using verbena::testing::IsOkAndHolds;
using verbena::testing::StatusIs;

// A server and a client in this process; calls go through links all the same.
class KvServiceTest : public testing::Test {
 protected:
  verbena::Task<absl::StatusOr<bool>> PutTask(std::string key, std::string value) {
    v1::PutRequest request;
    request.set_key(std::move(key));
    verbena::Payload payload = verbena::Payload::Empty();
    if (!value.empty()) {
      VERBENA_CO_ASSIGN_OR_RETURN(verbena::Buffer buffer,
                                  co_await kv_.channel().AllocateBuffer(value.size()));
      std::memcpy(buffer.data(), value.data(), value.size());
      payload = std::move(buffer);
    }
    VERBENA_CO_ASSIGN_OR_RETURN(
        const v1::PutReply reply,
        co_await stub().Put(request, {.deadline = kLong, .request_payload = std::move(payload)}));
    co_return reply.created();
  }
  absl::StatusOr<bool> Put(const std::string& key, const std::string& value) {
    return kv_.Run(PutTask(key, value));
  }

  absl::StatusOr<std::string> Get(const std::string& key) {
    v1::GetRequest request;
    request.set_key(key);
    // On the other executor than Put.
    auto reply = kv_.Run(stub().Get(request, {.deadline = kLong}), 1);
    if (!reply.ok()) return reply.status();
    EXPECT_TRUE(reply->has_payload);
    return std::string(reply->payload.data(), reply->payload.size());
  }

  absl::StatusOr<v1::ScanReply> Scan(const std::string& start_key, uint32_t max_bytes) {
    v1::ScanRequest request;
    request.set_start_key(start_key);
    request.set_max_bytes(max_bytes);
    return kv_.Run(stub().Scan(request, {.deadline = kLong}));
  }

  v1::KeyValue::Stub stub() { return v1::KeyValue::Stub(kv_.channel()); }

  static constexpr std::chrono::seconds kLong{30};

  MemoryStore store_{4 * (kMaxKeyBytes + kMaxValueBytes + kEntryBytes)};
  DedupeRecords records_{store_};
  InProcess<KvService> kv_{{.runtime = {.executors = 2}}, store_, records_};
};

TEST_F(KvServiceTest, OneExecutorGetsWhatAnotherPut) {
  const std::string value("\0\xff\n\x80", 4);
  EXPECT_THAT(Put("key", value), IsOkAndHolds(true));
  EXPECT_THAT(Put("key", value), IsOkAndHolds(false));
  EXPECT_THAT(Get("key"), IsOkAndHolds(value));
  EXPECT_THAT(Get("other"), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(KvServiceTest, ValuesOfEachLengthComeBack) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4096}, size_t{4097}, kMaxValueBytes}) {
    const std::string value(bytes, 'v');
    ASSERT_TRUE(Put("key", value).ok()) << bytes;
    EXPECT_EQ(Get("key").value_or("none"), value) << bytes;
  }
}

// Its Gets may hold nothing while they wait for memory.
TEST_F(KvServiceTest, AValueIsReadAgainIfOthersThatWaitHoldTooMuch) {
  const std::string value(100000, 'v');
  ASSERT_TRUE(Put("key", value).ok());
  InProcess<KvService> other{{.runtime = {.executors = 1}}, store_, records_, size_t{0}};
  v1::GetRequest request;
  request.set_key("key");
  v1::KeyValue::Stub stub(other.channel());
  const auto reply = other.Run(stub.Get(request, {.deadline = kLong}));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(std::string(reply->payload.data(), reply->payload.size()), value);
  const auto stats = other.Run(stub.Stats(v1::StatsRequest()));
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->gets(), 2u);
}

// Ends the first call while its handler waits, as a time limit does.
class DropsTheFirst final : public verbena::ServerInterceptor {
 private:
  static verbena::Task<void> Ignored(verbena::Task<absl::Status> rest) {
    (void)co_await std::move(rest);
  }
  verbena::Task<absl::Status> Intercept(verbena::ServerCallView&,
                                        verbena::ServerNext next) override {
    if (!std::exchange(drops_, false)) co_return co_await next();
    verbena::TaskScope scope(co_await verbena::CurrentContext());
    scope.Spawn(Ignored(next()));
    // The handler runs up to its first wait.
    (void)co_await verbena::Yield();
    co_return absl::DeadlineExceededError("the site's limit");
  }

  bool drops_ = true;
};

TEST_F(KvServiceTest, AGetThatWasDestroyedHoldsNothingAnyMore) {
  const std::string value(100000, 'v');
  ASSERT_TRUE(Put("key", value).ok());
  verbena::testing::InProcessOptions options{
      .runtime = {.executors = 1}, .server = {.interceptors = {std::make_shared<DropsTheFirst>()}}};
  constexpr size_t kBudget = 1 << 20;
  options.runtime.limits.memory.send_bytes = kBudget;
  InProcess<KvService> other{options, store_, records_, value.size()};
  v1::GetRequest request;
  request.set_key("key");
  v1::KeyValue::Stub stub(other.channel());
  const absl::Status dropped = other.Run([&]() -> verbena::Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(const verbena::Buffer all,
                                co_await other.channel().AllocateBuffer(kBudget));
    co_return (co_await stub.Get(request, {.deadline = kLong})).status();
  }());
  ASSERT_TRUE(absl::IsDeadlineExceeded(dropped)) << dropped;
  ASSERT_TRUE(other.Run(stub.Get(request, {.deadline = kLong})).ok());
  const auto stats = other.Run(stub.Stats(v1::StatsRequest()));
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->gets(), 2u) << "the second Get had to read its value again";
}

TEST_F(KvServiceTest, APutWithoutAPayloadIsRefused) {
  v1::PutRequest request;
  request.set_key("key");
  EXPECT_THAT(kv_.Run(stub().Put(request, {.deadline = kLong})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("payload")));
  EXPECT_THAT(Get("key"), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(KvServiceTest, DeletingTwiceIsNoError) {
  ASSERT_TRUE(Put("key", "value").ok());
  v1::DeleteRequest request;
  request.set_key("key");
  EXPECT_TRUE(kv_.Run(stub().Delete(request))->existed());
  EXPECT_FALSE(kv_.Run(stub().Delete(request))->existed());
}

TEST_F(KvServiceTest, RefusalsReachTheCallerWithTheirReason) {
  EXPECT_THAT(Put("", "value"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("128")));
  absl::Status full;
  for (int i = 0; i < 5 && full.ok(); ++i) {
    full = Put("key" + std::to_string(i), std::string(kMaxValueBytes, 'v')).status();
  }
  EXPECT_THAT(full, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("--max_bytes")));
}

TEST_F(KvServiceTest, TheLargestEntryCanBePutReadAndScanned) {
  const std::string value(kMaxValueBytes, 'v');
  std::vector<std::string> keys;
  for (const char last : {'1', '2'}) keys.push_back(std::string(kMaxKeyBytes - 1, 'k') + last);
  for (const std::string& key : keys) ASSERT_TRUE(Put(key, value).ok());
  EXPECT_EQ(*Get(keys[0]), value);
  // A page with the largest entry and the largest next_key.
  const absl::StatusOr<v1::ScanReply> page = Scan("", 0);
  ASSERT_TRUE(page.ok()) << page.status();
  ASSERT_EQ(page->entries_size(), 1);
  EXPECT_EQ(page->entries(0).value(), value);
  EXPECT_EQ(page->next_key(), keys[1]);
}

TEST_F(KvServiceTest, APageOfTheSmallestEntriesFitsItsReplyAlso) {
  std::string next;
  int keys = 0;
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(Put(std::string(1, static_cast<char>(i % 250)) + (i < 250 ? "" : "x"), "").ok());
  }
  do {
    // More than a page may have is as much as it may have.
    const absl::StatusOr<v1::ScanReply> page = Scan(next, UINT32_MAX);
    ASSERT_TRUE(page.ok()) << page.status();
    keys += page->entries_size();
    next = page->next_key();
  } while (!next.empty());
  EXPECT_EQ(keys, 300);
}

TEST_F(KvServiceTest, StatsTellWhatHappened) {
  ASSERT_TRUE(Put("key", "value").ok());
  ASSERT_FALSE(Get("other").ok());
  const auto stats = kv_.Run(stub().Stats(v1::StatsRequest()));
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->keys(), 1u);
  // The Put's name, and a byte and its reply.
  const size_t record_bytes = 24 + 1 + 2 + kEntryBytes;
  EXPECT_EQ(stats->bytes(), 3 + 5 + kEntryBytes + record_bytes);
  EXPECT_EQ(stats->max_bytes(), 4 * (kMaxKeyBytes + kMaxValueBytes + kEntryBytes));
  EXPECT_THAT(stats->store(), HasSubstr("memory"));
  EXPECT_EQ(stats->puts(), 1u);
  EXPECT_EQ(stats->gets(), 1u);
  EXPECT_EQ(stats->misses(), 1u);
}

TEST_F(KvServiceTest, AScanOfAllSendsEachEntryInTheOrderOfTheKeys) {
  constexpr int kEntries = 40;
  for (int i = kEntries; i-- > 0;) {
    ASSERT_TRUE(Put(std::string(1, static_cast<char>('A' + i)), std::string(3000, 'v')).ok());
  }
  auto scan = [&]() -> verbena::Task<absl::Status> {
    verbena::ClientReader<v1::Entry> entries = stub().ScanAll({}, {.deadline = kLong});
    v1::Entry entry;
    char next = 'A';
    while (co_await entries.Read(entry)) {
      EXPECT_EQ(entry.key(), std::string(1, next++));
      EXPECT_EQ(entry.value().size(), 3000u);
    }
    EXPECT_EQ(next, 'A' + kEntries);
    co_return co_await entries.Finish();
  };
  EXPECT_EQ(kv_.Run(scan(), 1), absl::OkStatus());
}

TEST_F(KvServiceTest, AWatcherHearsOfEachChangeInItsOrder) {
  auto watch = [&]() -> verbena::Task<absl::Status> {
    v1::WatchRequest request;
    request.set_prefix("w");
    verbena::ClientReader<v1::Change> changes = stub().Watch(request, {.deadline = kLong});
    v1::Change change;
    EXPECT_TRUE(co_await changes.Read(change));
    EXPECT_EQ(change.number(), store_.changes().last());
    EXPECT_TRUE((co_await store_.Put("w1", "a")).ok());
    EXPECT_TRUE((co_await store_.Put("other", "b")).ok());
    EXPECT_TRUE((co_await store_.Delete("w1")).ok());
    EXPECT_TRUE(co_await changes.Read(change));
    EXPECT_EQ(change.key(), "w1");
    EXPECT_EQ(change.value(), "a");
    const uint64_t first = change.number();
    EXPECT_TRUE(co_await changes.Read(change));
    EXPECT_EQ(change.key(), "w1");
    EXPECT_FALSE(change.has_value());
    EXPECT_EQ(change.number(), first + 2);
    co_return absl::OkStatus();
  };
  EXPECT_EQ(kv_.Run(watch()), absl::OkStatus());
}

TEST_F(KvServiceTest, AWatchEndsWhenItsServerShutsDown) {
  const v1::WatchRequest request;
  v1::Change change;
  std::optional<verbena::ClientReader<v1::Change>> changes;
  auto begin = [&]() -> verbena::Task<bool> {
    changes.emplace(stub().Watch(request, {.deadline = kLong}));
    co_return co_await changes->Read(change);
  };
  EXPECT_TRUE(kv_.Run(begin()));
  kv_.server().Shutdown(std::chrono::seconds(20));
  auto end = [&]() -> verbena::Task<absl::Status> {
    EXPECT_FALSE(co_await changes->Read(change));
    absl::Status status = co_await changes->Finish();
    changes.reset();
    co_return status;
  };
  EXPECT_THAT(kv_.Run(end()), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("shuts down")));
}

TEST(ChangeLogTest, AWatcherThatMissedChangesHearsSo) {
  ChangeLog log;
  for (size_t i = 0; i <= ChangeLog::kMaxChanges; ++i) log.Add("key", "value");
  uint64_t seen = 0;
  EXPECT_TRUE(absl::IsDataLoss(log.After(seen, "").status()));
  seen = 1;
  absl::StatusOr<std::vector<StoreChange>> changes = log.After(seen, "");
  ASSERT_TRUE(changes.ok()) << changes.status();
  EXPECT_EQ(changes->size(), ChangeLog::kMaxBatch);
  EXPECT_EQ(changes->front().number, 2u);
  EXPECT_EQ(seen, 1 + ChangeLog::kMaxBatch);
}

TEST(ChangeLogTest, AWatcherHoldsFewBytesAtOnce) {
  ChangeLog log;
  const std::string value(ChangeLog::kMaxBatchBytes - 100, 'v');
  for (int i = 0; i < 3; ++i) log.Add("key", value);
  log.Add("key", value + value);
  uint64_t seen = 0;
  for (uint64_t number = 1; number <= 4; ++number) {
    const absl::StatusOr<std::vector<StoreChange>> changes = log.After(seen, "");
    ASSERT_TRUE(changes.ok()) << changes.status();
    ASSERT_EQ(changes->size(), 1u);
    EXPECT_EQ(changes->front().number, number);
    EXPECT_EQ(seen, number);
  }
  EXPECT_TRUE(log.After(seen, "")->empty());
}

}  // namespace kv_service_test
}  // namespace kv
