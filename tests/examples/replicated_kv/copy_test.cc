// A primary, and a backup that gets a copy of all data. The copy ends, and is the primary's store,
// however much is written meanwhile. If it fails, the primary's log says why.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/kv/store.h"
#include "examples/replicated_kv/epoch_gate.h"
#include "examples/replicated_kv/lease_term.h"
#include "examples/replicated_kv/limits.h"
#include "examples/replicated_kv/log_receiver.h"
#include "examples/replicated_kv/primary.h"
#include "examples/replicated_kv/replica_log.h"
#include "examples/replicated_kv/replica_store.h"
#include "examples/replicated_kv/replicated_kv.pb.h"
#include "examples/replicated_kv/replicated_kv.verbena.pb.h"
#include "examples/replicated_kv/shard_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/examples/replicated_kv/scripted_disk.h"
#include "tests/transport/base/captured_log.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/service.h"
#include "verbena/rpc/task.h"
#include "verbena/testing.h"

namespace replicated_kv {
namespace copy_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using verbena::Task;

constexpr int64_t kLease = 77;
constexpr size_t kPages = 40;
// A page has one entry of this size.
constexpr size_t kPageBytes = kMaxPageBytes - 1024;

// The replica s2.
class Backup final : public v1::Replication::Service {
 public:
  Backup() { idle.Set(); }

  // Its log ends with `position`; none: it has no data.
  Task<absl::Status> Open(verbena::TaskScope& writes, std::optional<LogPosition> position) {
    store_.emplace(std::make_unique<ScriptedDisk>(disk));
    VERBENA_CO_RETURN_IF_ERROR(co_await store_->Load());
    if (position.has_value()) {
      VERBENA_CO_RETURN_IF_ERROR(co_await store_->WritePosition(*position));
    }
    gate_.Learn(2);
    log.emplace(*store_, writes);
    co_return absl::OkStatus();
  }
  Task<absl::Status> Replicate(verbena::ServerContext&, LogStream& stream) override {
    v1::LogMessage hello;
    VERBENA_CO_ASSIGN_OR_RETURN(const bool read, co_await stream.Read(hello));
    if (!read) co_return absl::OkStatus();
    ++streams;
    ++serving_;
    idle.Reset();
    const absl::Status ended = co_await ReceiveLog({gate_, turn_, *store_, *log}, stream, hello);
    had_stream.Set();
    if (--serving_ == 0) idle.Set();
    co_return ended;
  }
  Task<absl::Status> Where(verbena::ServerContext&, const v1::PositionRequest&,
                           v1::Acknowledgement&) override {
    co_return absl::UnimplementedError("nobody asks");
  }

  DiskScript disk;
  std::optional<ReplicaLog> log;
  int streams = 0;
  verbena::Event had_stream;  // one has ended
  verbena::Event idle;        // no stream is served

 private:
  std::optional<ReplicaStore> store_;
  EpochGate gate_;
  verbena::Mutex turn_;
  int serving_ = 0;
};

class GrantingDirectory final : public ShardDirectory {
 public:
  Task<absl::StatusOr<SeenState>> Replace(SeenState seen, ShardState next, int64_t) override {
    if (IsInSync(next, "s2")) joined.Set();
    seen.state = std::move(next);
    ++seen.revision;
    co_return seen;
  }

  verbena::Event joined;  // s2 has
};

// All that a disk holds, records included.
Task<absl::StatusOr<std::map<std::string, std::string>>> ContentOf(kv::Store& store) {
  std::map<std::string, std::string> content;
  for (const bool records : {false, true}) {
    std::string next;
    do {
      VERBENA_CO_ASSIGN_OR_RETURN(kv::ScanPage page,
                                  records ? co_await store.ScanRecords(next, kMaxPageBytes)
                                          : co_await store.Scan(next, kMaxPageBytes));
      for (kv::StoreEntry& entry : page.entries) {
        content[(records ? "record " : "data ") + entry.key] = std::move(entry.value);
      }
      next = std::move(page.next_key);
    } while (!next.empty());
  }
  co_return content;
}

// The primary s1 of epoch 2, alone, with kPages of data.
class CopyTest : public testing::Test {
 protected:
  // Runs `prepare` before the primary follows the backup, and then `body`.
  template <typename Prepare, typename Body>
  absl::Status Lead(std::optional<LogPosition> backup_has, Prepare prepare, Body body) {
    return backup_.Run(LeadTask(backup_has, std::move(prepare), std::move(body)));
  }
  void Append(const std::string& key, const std::string& value) {
    const uint64_t sequence = log_->last().sequence + 1;
    auto entry = std::make_shared<v1::Entry>();
    entry->set_sequence(sequence);
    entry->set_epoch(2);
    entry->set_key(key);
    entry->set_value(value);
    entry->set_client(std::string(16, static_cast<char>('a' + sequence % 7)));
    entry->set_number(sequence);
    entry->set_acknowledged_below(sequence);
    log_->Append(std::move(entry));
  }
  // By the first stream: ABORTED if that has ended.
  Task<absl::Status> AwaitJoined() {
    std::vector<Task<absl::Status>> either;
    either.push_back(verbena::WaitFor(directory_.joined));
    either.push_back(verbena::WaitFor(backup_.service().had_stream));
    (void)co_await verbena::WhenAny(std::move(either));
    if (!directory_.joined.is_set()) co_return absl::AbortedError("the stream has ended");
    co_return absl::OkStatus();
  }
  // The backup is in sync, and its store is the primary's.
  Task<absl::Status> ExpectSame() {
    VERBENA_CO_RETURN_IF_ERROR(co_await AwaitJoined());
    VERBENA_CO_RETURN_IF_ERROR(co_await primary_->AwaitCommitted(log_->last().sequence));
    VERBENA_CO_ASSIGN_OR_RETURN(const auto mine, co_await ContentOf(*disk_.data));
    VERBENA_CO_ASSIGN_OR_RETURN(const auto theirs,
                                co_await ContentOf(*backup_.service().disk.data));
    EXPECT_GT(mine.size(), kPages);
    EXPECT_TRUE(mine == theirs);
    co_return absl::OkStatus();
  }
  static Task<absl::Status> Nothing() { co_return absl::OkStatus(); }

  // Time stands still: nobody loses patience with a machine that has much else to do.
  verbena::testing::InProcess<Backup> backup_{{.runtime = {.executors = 1}, .fake_clock = true}};
  DiskScript disk_;
  GrantingDirectory directory_;
  std::vector<OtherReplica> peers_;
  std::optional<ReplicaLog> log_;   // the primary's, while Lead() runs
  std::optional<Primary> primary_;  // likewise

 private:
  template <typename Prepare, typename Body>
  Task<absl::Status> LeadTask(std::optional<LogPosition> backup_has, Prepare prepare, Body body) {
    verbena::TaskScope scope(co_await verbena::CurrentContext());
    VERBENA_CO_RETURN_IF_ERROR(co_await backup_.service().Open(scope, backup_has));
    ReplicaStore store(std::make_unique<ScriptedDisk>(disk_));
    VERBENA_CO_RETURN_IF_ERROR(co_await store.Load());
    VERBENA_CO_RETURN_IF_ERROR(co_await store.WritePosition({}));
    log_.emplace(store, scope);
    for (size_t i = 0; i < kPages; ++i) {
      Append("data" + std::to_string(i), std::string(kPageBytes, 'd'));
    }
    VERBENA_CO_RETURN_IF_ERROR(co_await log_->Drain());
    VERBENA_CO_RETURN_IF_ERROR(co_await prepare());
    peers_.push_back({.name = "s2",
                      .channel = std::make_unique<verbena::Channel>(backup_.runtime(),
                                                                    backup_.server().address())});
    verbena::Clock& clock = verbena::Clock::Real();
    LeaseTerm term;
    term.Renew(clock.Now(), std::chrono::hours(1));
    primary_.emplace(PrimaryParts{.shard = 0,
                                  .name = "s1",
                                  .store = store,
                                  .log = *log_,
                                  .directory = directory_,
                                  .peers = peers_,
                                  .term = term,
                                  .lease = kLease,
                                  .clock = clock},
                     SeenState{.state = {.epoch = 2, .primary = "s1", .in_sync = {"s1"}},
                               .revision = 10,
                               .holder_lease = kLease});
    scope.Spawn(primary_->Run());
    const absl::Status ended = co_await body();
    primary_->End("the test ends");
    VERBENA_CO_RETURN_IF_ERROR(co_await backup_.service().idle.Wait());
    co_await scope.Join();
    primary_.reset();
    log_.reset();
    co_return ended;
  }
};

TEST_F(CopyTest, ACopyEndsThoughMoreIsWrittenMeanwhileThanMemoryHolds) {
  size_t written = 0;
  disk_.on_scan = [&] {
    for (int i = 0; i < 8; ++i) Append("load" + std::to_string(i), std::string(kPageBytes, 'l'));
    written += 8 * kPageBytes;
  };
  const absl::Status led = Lead(
      std::nullopt, Nothing, [this]() -> Task<absl::Status> { co_return co_await ExpectSame(); });
  EXPECT_TRUE(led.ok()) << led;
  EXPECT_GT(written, kMaxTailBytes);
  EXPECT_EQ(backup_.service().streams, 1);
}

// The entry is in the log, and not yet in the store that the pages come from.
TEST_F(CopyTest, APageIsNoOlderThanTheEntriesBeforeIt) {
  const absl::Status led = Lead(
      std::nullopt,
      [this]() -> Task<absl::Status> {
        disk_.takes.Reset();
        Append("data0", "newer");
        co_return absl::OkStatus();
      },
      [this]() -> Task<absl::Status> {
        VERBENA_CO_RETURN_IF_ERROR(co_await AwaitJoined());
        disk_.takes.Set();
        co_return co_await ExpectSame();
      });
  EXPECT_TRUE(led.ok()) << led;
}

TEST_F(CopyTest, ErasingMayTakeLongerThanTheLogInMemoryReachesBack) {
  DiskScript& disk = backup_.service().disk;
  const absl::Status led = Lead(
      // The position belongs to an epoch that is over.
      LogPosition{.epoch = 1, .sequence = 100},
      [&]() -> Task<absl::Status> {
        disk.takes.Reset();
        co_return absl::OkStatus();
      },
      [&]() -> Task<absl::Status> {
        VERBENA_CO_RETURN_IF_ERROR(co_await disk.asked.Wait());
        // More than memory holds beside what the stream takes.
        for (size_t written = 0; written < 2 * kMaxTailBytes; written += kPageBytes) {
          Append("load", std::string(kPageBytes, 'l'));
          VERBENA_CO_RETURN_IF_ERROR(co_await log_->Drain());
        }
        disk.takes.Set();
        co_return co_await ExpectSame();
      });
  EXPECT_TRUE(led.ok()) << led;
  EXPECT_EQ(backup_.service().streams, 1);
}

// Both have names of the same clients. Those of the entries are less: they must not be the last.
TEST_F(CopyTest, NamesOfAPageCountMoreThanThoseOfEntriesBeforeIt) {
  DiskScript& disk = backup_.service().disk;
  const absl::Status led = Lead(
      std::nullopt,
      [&]() -> Task<absl::Status> {
        disk.takes.Reset();
        co_return absl::OkStatus();
      },
      [&]() -> Task<absl::Status> {
        VERBENA_CO_RETURN_IF_ERROR(co_await disk.asked.Wait());
        for (int i = 0; i < 3; ++i) Append("meanwhile", "v");
        VERBENA_CO_RETURN_IF_ERROR(co_await log_->Drain());
        disk.takes.Set();
        co_return co_await ExpectSame();
      });
  EXPECT_TRUE(led.ok()) << led;
}

TEST_F(CopyTest, ThePrimarysLogSaysWhyACopyFailed) {
  verbena::CapturedLog captured;
  Backup& backup = backup_.service();
  backup.disk.fails_at = kPages / 2;
  std::vector<std::string> said;
  const absl::Status led = Lead(std::nullopt, Nothing, [&]() -> Task<absl::Status> {
    while (said.empty()) {
      VERBENA_CO_RETURN_IF_ERROR(co_await verbena::Yield());
      for (const std::string& line : captured.Take()) {
        if (line.find("s2 stays out of the in-sync set") != line.npos) said.push_back(line);
      }
    }
    co_return absl::OkStatus();
  });
  EXPECT_TRUE(led.ok()) << led;
  EXPECT_EQ(backup.log->failure(), absl::ResourceExhaustedError("the disk is full"));
  EXPECT_FALSE(directory_.joined.is_set());
  EXPECT_THAT(said, ElementsAre(AllOf(HasSubstr("copy"), HasSubstr("the disk is full"))));
}

}  // namespace copy_test
}  // namespace replicated_kv
