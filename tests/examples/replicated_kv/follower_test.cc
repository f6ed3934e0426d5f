// A primary and a backup. One that gets a copy of all data joins the in-sync set when its disk has
// the copy, whatever it said of the data that it had before. One that has lost entries that were
// committed leaves the set until it has them again. One whose disk is slower than the primary's
// joins while writes go on.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/kv/memory_store.h"
#include "examples/replicated_kv/lease_term.h"
#include "examples/replicated_kv/log_receiver.h"
#include "examples/replicated_kv/primary.h"
#include "examples/replicated_kv/replica_log.h"
#include "examples/replicated_kv/replica_store.h"
#include "examples/replicated_kv/replicated_kv.pb.h"
#include "examples/replicated_kv/replicated_kv.verbena.pb.h"
#include "examples/replicated_kv/shard_directory.h"
#include "examples/replicated_kv/shard_state.h"
#include "gtest/gtest.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/service.h"
#include "verbena/rpc/task.h"
#include "verbena/testing.h"

namespace replicated_kv {
namespace follower_test {

using verbena::Task;

constexpr int64_t kLease = 77;
constexpr uint64_t kEntries = 6;
constexpr std::chrono::seconds kLong{30};
constexpr std::chrono::milliseconds kWhile{200};

v1::Acknowledgement AcknowledgementAt(LogPosition position) {
  v1::Acknowledgement has;
  *has.mutable_durable() = MessageOf(position);
  has.set_complete(true);
  return has;
}

// A backup that had as many entries as the primary, the last of them of an epoch that is over. What
// it said before the copy began may arrive when the copy was sent. It takes its time to write the
// copy, so that a primary that believes what it said makes it join before.
class FormerPrimary final : public v1::Replication::Service {
 public:
  static constexpr LogPosition kCommitted = {};
  static std::vector<std::string> InSync() { return {"s1"}; }

  Task<absl::Status> Replicate(verbena::ServerContext&, LogStream& stream) override {
    v1::LogMessage message;
    VERBENA_CO_ASSIGN_OR_RETURN(bool read, co_await stream.Read(message));
    const v1::Acknowledgement former = AcknowledgementAt({.epoch = 1, .sequence = kEntries});
    VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(former));
    while (read && !message.copy_ends()) {
      VERBENA_CO_ASSIGN_OR_RETURN(read, co_await stream.Read(message));
      if (!message.has_copy_begins()) continue;
      v1::Acknowledgement erased = AcknowledgementAt(PositionOf(message.copy_begins()));
      erased.set_complete(false);
      VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(erased));
    }
    VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(former));
    (void)co_await verbena::WithDeadline(AwaitJoined(), kWhile);
    is_ready = true;
    VERBENA_CO_RETURN_IF_ERROR(
        co_await stream.Write(AcknowledgementAt({.epoch = 2, .sequence = kEntries})));
    while (read) {
      VERBENA_CO_ASSIGN_OR_RETURN(read, co_await stream.Read(message));
    }
    co_return absl::OkStatus();
  }
  Task<absl::Status> Where(verbena::ServerContext&, const v1::PositionRequest&,
                           v1::Acknowledgement&) override {
    co_return absl::UnimplementedError("nobody asks");
  }

  Task<absl::Status> AwaitJoined() { co_return co_await joined.Wait(); }

  verbena::Event joined;  // the in-sync set
  bool is_ready = false;  // to join: it has the copy
};

// A backup in sync whose disk has lost its last two entries, one of which etcd knows to be
// committed.
class LossyBackup final : public v1::Replication::Service {
 public:
  static constexpr LogPosition kCommitted = {.epoch = 2, .sequence = kEntries - 1};
  static std::vector<std::string> InSync() { return {"s1", "s2"}; }

  Task<absl::Status> Replicate(verbena::ServerContext&, LogStream& stream) override {
    v1::LogMessage message;
    VERBENA_CO_ASSIGN_OR_RETURN(bool read, co_await stream.Read(message));
    VERBENA_CO_RETURN_IF_ERROR(
        co_await stream.Write(AcknowledgementAt({.epoch = 2, .sequence = kEntries - 2})));
    while (read) {
      VERBENA_CO_ASSIGN_OR_RETURN(read, co_await stream.Read(message));
      if (!read || message.entry().sequence() != kEntries) continue;
      is_ready = true;
      VERBENA_CO_RETURN_IF_ERROR(
          co_await stream.Write(AcknowledgementAt({.epoch = 2, .sequence = kEntries})));
    }
    co_return absl::OkStatus();
  }
  Task<absl::Status> Where(verbena::ServerContext&, const v1::PositionRequest&,
                           v1::Acknowledgement&) override {
    co_return absl::UnimplementedError("nobody asks");
  }

  Task<absl::Status> AwaitJoined() { co_return co_await joined.Wait(); }

  verbena::Event joined;
  bool is_ready = false;  // it has all entries
};

// A backup whose disk has each entry when the primary's has the next one already, for as long as
// the backup is not in the set.
class LaggingBackup final : public v1::Replication::Service {
 public:
  static constexpr LogPosition kCommitted = {};
  static std::vector<std::string> InSync() { return {"s1"}; }

  Task<absl::Status> Replicate(verbena::ServerContext&, LogStream& stream) override {
    v1::LogMessage message;
    VERBENA_CO_ASSIGN_OR_RETURN(bool read, co_await stream.Read(message));
    uint64_t durable = kEntries;
    while (read) {
      if (!joined.is_set()) write();
      VERBENA_CO_RETURN_IF_ERROR(
          co_await stream.Write(AcknowledgementAt({.epoch = 2, .sequence = durable})));
      VERBENA_CO_ASSIGN_OR_RETURN(read, co_await stream.Read(message));
      durable = message.entry().sequence();
    }
    co_return absl::OkStatus();
  }
  Task<absl::Status> Where(verbena::ServerContext&, const v1::PositionRequest&,
                           v1::Acknowledgement&) override {
    co_return absl::UnimplementedError("nobody asks");
  }

  Task<absl::Status> AwaitJoined() { co_return co_await joined.Wait(); }

  std::function<void()> write;  // appends an entry to the primary's log
  verbena::Event joined;
  bool is_ready = true;
};

// Grants each change, and notes the sets, and whether the backup was ready at the first change and
// when it joined.
class NotingDirectory final : public ShardDirectory {
 public:
  NotingDirectory(verbena::Event& joined, const bool& is_ready)
      : joined_(joined), is_ready_(is_ready) {}

  Task<absl::StatusOr<SeenState>> Replace(SeenState seen, ShardState next, int64_t) override {
    if (sets.empty()) was_ready_at_first = is_ready_;
    sets.push_back(next.in_sync);
    if (IsInSync(next, "s2") && !joined_.is_set()) {
      was_ready = is_ready_;
      joined_.Set();
    }
    seen.state = std::move(next);
    ++seen.revision;
    co_return seen;
  }

  std::vector<std::vector<std::string>> sets;
  bool was_ready_at_first = false;
  bool was_ready = false;

 private:
  verbena::Event& joined_;
  const bool& is_ready_;
};

template <typename Backup>
class FollowerFixture : public testing::Test {
 protected:
  FollowerFixture() {
    peers_.push_back({.name = "s2",
                      .channel = std::make_unique<verbena::Channel>(backup_.runtime(),
                                                                    backup_.server().address())});
  }

  // Leads epoch 2 with a log of kEntries until the backup joins.
  Task<absl::Status> Lead() {
    verbena::TaskScope scope(co_await verbena::CurrentContext());
    ReplicaStore store(std::make_unique<kv::MemoryStore>(size_t{1} << 20));
    VERBENA_CO_RETURN_IF_ERROR(co_await store.Load());
    VERBENA_CO_RETURN_IF_ERROR(co_await store.WritePosition({}));
    ReplicaLog log(store, scope);
    const auto append = [&log] {
      auto entry = std::make_shared<v1::Entry>();
      entry->set_sequence(log.last().sequence + 1);
      entry->set_epoch(2);
      entry->set_key("key");
      entry->set_client(std::string(16, 'c'));
      entry->set_number(log.last().sequence + 1);
      log.Append(std::move(entry));
    };
    for (uint64_t i = 0; i < kEntries; ++i) append();
    if constexpr (requires { backup_.service().write; }) backup_.service().write = append;
    VERBENA_CO_RETURN_IF_ERROR(co_await log.Drain());
    verbena::Clock& clock = verbena::Clock::Real();
    LeaseTerm term;
    term.Renew(clock.Now(), std::chrono::hours(1));
    Primary primary(PrimaryParts{.shard = 0,
                                 .name = "s1",
                                 .store = store,
                                 .log = log,
                                 .directory = directory_,
                                 .peers = peers_,
                                 .term = term,
                                 .lease = kLease,
                                 .clock = clock},
                    {.state = {.epoch = 2,
                               .primary = "s1",
                               .in_sync = Backup::InSync(),
                               .committed = Backup::kCommitted},
                     .revision = 10,
                     .holder_lease = kLease});
    scope.Spawn(primary.Run());
    const absl::Status joined =
        co_await verbena::WithDeadline(backup_.service().AwaitJoined(), kLong);
    primary.End("the test ends");
    co_await scope.Join();
    co_return joined;
  }

  verbena::testing::InProcess<Backup> backup_{{.runtime = {.executors = 1}}};
  NotingDirectory directory_{backup_.service().joined, backup_.service().is_ready};
  std::vector<OtherReplica> peers_;
};

using FollowerTest = FollowerFixture<FormerPrimary>;
using LossTest = FollowerFixture<LossyBackup>;
using LagTest = FollowerFixture<LaggingBackup>;

TEST_F(FollowerTest, ABackupsDataBeforeItsCopyDoNotCount) {
  const absl::Status joined = backup_.Run(Lead());
  ASSERT_TRUE(joined.ok()) << joined;
  EXPECT_TRUE(directory_.was_ready);
}

TEST_F(LossTest, ABackupThatLostCommittedEntriesLeavesTheSetUntilItHasThem) {
  const absl::Status joined = backup_.Run(Lead());
  ASSERT_TRUE(joined.ok()) << joined;
  EXPECT_EQ(directory_.sets.front(), (std::vector<std::string>{"s1"}));
  EXPECT_FALSE(directory_.was_ready_at_first) << "it left for its silence, after it had them";
  EXPECT_TRUE(directory_.was_ready);
}

TEST_F(LagTest, ASlowerBackupJoinsAPrimaryWhoseWritersNeverPause) {
  const absl::Status joined = backup_.Run(Lead());
  ASSERT_TRUE(joined.ok()) << joined;
}

}  // namespace follower_test
}  // namespace replicated_kv
