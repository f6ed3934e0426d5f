// A replica in sync takes a shard without a primary if its disk has all that etcd knows to be
// committed, and otherwise leaves it to others. A replica whose disk fails ends.

#include "examples/replicated_kv/replica.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "examples/kv/memory_store.h"
#include "examples/replicated_kv/replica_store.h"
#include "examples/replicated_kv/shard_state.h"
#include "gtest/gtest.h"
#include "tests/examples/replicated_kv/scripted_disk.h"
#include "tests/rpc/naming/etcd/fake_etcd.h"
#include "tests/support/manual_clock.h"
#include "tests/support/manual_scheduler.h"
#include "verbena/rpc/etcd.h"
#include "verbena/rpc/naming/etcd/client.h"
#include "verbena/rpc/task.h"

namespace replicated_kv {
namespace replica_test {

// The replica s1, whose disk has a log up to entry 5 of epoch 2.
class ReplicaTest : public testing::Test {
 protected:
  ReplicaTest() {
    EXPECT_TRUE(scheduler_.Run(store_.Load()).ok());
    EXPECT_TRUE(scheduler_.Run(store_.WritePosition({.epoch = 2, .sequence = 5})).ok());
  }
  // How often the replica asks etcd to make it the primary.
  int RequestsToLead(const std::string& state) {
    etcd_.Put("shard/state", state);
    Replica replica({.name = "s1", .replicas = {"s1"}, .prefix = "shard", .clock = &clock_}, store_,
                    *client_, {});
    verbena::TaskScope scope(scheduler_);
    scope.Spawn([&]() -> verbena::Task<void> {
      const absl::Status ran = co_await replica.Run("127.0.0.1:1");
      EXPECT_TRUE(ran.ok()) << ran;
    });
    scheduler_.AdvanceBy(std::chrono::seconds(5));
    scope.RequestCancel();
    scheduler_.RunUntilIdle();
    EXPECT_EQ(scope.size(), 0u);
    return etcd_.Count("/v3/kv/txn");
  }

  verbena::internal::ManualScheduler scheduler_;
  verbena::ManualClock clock_;
  verbena::internal::FakeEtcd etcd_;
  std::unique_ptr<verbena::EtcdClient> client_ =
      verbena::internal::EtcdCore::MakeClient(etcd_.Wire());
  ReplicaStore store_{std::make_unique<kv::MemoryStore>(size_t{1} << 20)};
};

TEST_F(ReplicaTest, LeadsWithAllThatWasCommitted) {
  EXPECT_GT(RequestsToLead("epoch 3 primary s1 in_sync s1 committed 2:5"), 0);
}

TEST_F(ReplicaTest, LeavesTheShardToOthersIfItsDiskLostWhatWasCommitted) {
  EXPECT_EQ(RequestsToLead("epoch 3 primary s1 in_sync s1 committed 2:6"), 0);
}

TEST_F(ReplicaTest, EndsIfItsDiskFailsInACopy) {
  etcd_.Put("shard/state", "epoch 3 primary s2 in_sync s2");
  DiskScript disk;
  ReplicaStore store(std::make_unique<ScriptedDisk>(disk));
  Replica replica({.name = "s1", .replicas = {"s1", "s2"}, .prefix = "shard", .clock = &clock_},
                  store, *client_, {});
  verbena::TaskScope scope(scheduler_);
  absl::Status ran;
  scope.Spawn([&]() -> verbena::Task<void> { ran = co_await replica.Run("127.0.0.1:1"); });
  scheduler_.AdvanceBy(std::chrono::seconds(5));
  ASSERT_EQ(scope.size(), 1u) << ran;
  v1::Page page;
  page.add_entries()->set_key("k");
  ASSERT_TRUE(scheduler_.Run(store.AddPage(page)).ok());
  disk.fails_at = disk.writes + 1;
  EXPECT_FALSE(scheduler_.Run(store.AddPage(page)).ok());
  scheduler_.AdvanceBy(std::chrono::seconds(5));
  EXPECT_EQ(scope.size(), 0u) << "it goes on";
  EXPECT_EQ(ran, absl::ResourceExhaustedError("the disk is full"));
  scope.RequestCancel();
  scheduler_.RunUntilIdle();
}

}  // namespace replica_test
}  // namespace replicated_kv
