// RuntimeCore: what stands behind a Runtime (runtime.h): its executors, its devices, and a shard
// for each executor.
//
// The Runtime owns it. Channels and servers reach it by CoreOf(), and must not use it once the
// Runtime is destroyed. Any thread, unless a function says otherwise.

#ifndef VERBENA_RPC_SHARD_RUNTIME_H_
#define VERBENA_RPC_SHARD_RUNTIME_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/shard/call_counts.h"
#include "verbena/rpc/shard/device_keeper.h"
#include "verbena/rpc/shard/device_sizes.h"
#include "verbena/rpc/shard/parts.h"
#include "verbena/rpc/shard/served.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/device/process_memory.h"
#include "verbena/transport/executor/blocking.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/spawn.h"

namespace verbena::internal {

// The devices of a runtime that tests and benchmarks start; `open` or the others.
struct TestDevice {
  // Opens its only one, in Start() and after each failure on a separate thread.
  DeviceKeeper::Open open = {};
  // Not owned; must outlive the runtime, and is not opened again.
  Device* use = nullptr;
  // One of another kind, beside `use`; the same holds for it.
  Device* also_use = nullptr;
  // What the process may pin and have with them; without limits, whatever the machine has.
  ProcessMemory memory = {};
};

class RuntimeCore final : private ExecutorDriver {
 public:
  // Runtime::Start(), and for tests the same on a device of theirs, in the place of those that
  // `options` name.
  VERBENA_EXPORT static absl::StatusOr<std::unique_ptr<Runtime>> Start(RuntimeOptions options,
                                                                       TestDevice device = {});

  RuntimeCore(RuntimeOptions options, TestDevice device);
  RuntimeCore(const RuntimeCore&) = delete;
  RuntimeCore& operator=(const RuntimeCore&) = delete;
  // Also after a Start() that failed at any step.
  ~RuntimeCore() override;
  // Ends tasks and links; a second call does nothing. Each step ends on all executors before the
  // next begins: until all tasks have ended, those of one executor may start tasks on another, or
  // use connections there.
  void Shutdown();

  int executors() const { return static_cast<int>(shards_.size()); }
  // The index of an executor that a program names. A check aborts if there is no such executor.
  size_t CheckedIndex(int index) const;
  // The part of the runtime that lives on an executor. Precondition of this and the following
  // functions: index < executors().
  Shard& shard(size_t index) const { return *shards_[index]; }
  // The shard of the executor whose thread this is; nullptr on any other thread.
  Shard* ShardHere() const {
    const Scheduler* current = Scheduler::Current();
    if (current == nullptr) return nullptr;
    auto* shard = static_cast<Shard*>(current->attachment());
    // It may be another runtime's.
    return shard != nullptr && shard->owner() == this ? shard : nullptr;
  }
  // The objects that folders above keep with this runtime.
  Parts& parts() { return parts_; }
  const std::vector<std::string>& device_names() const { return device_names_; }
  const std::string& reduced() const { return sizes_.reduced; }
  // What each executor counts, in their order; empty if calls are not counted.
  const std::vector<std::unique_ptr<ExecutorCounts>>& counts() const { return counts_; }
  // Whether its calls are counted and timed.
  bool counts_calls() const { return options_.metrics; }
  uint64_t failed_tasks() const { return failed_tasks_.load(std::memory_order_relaxed); }

  // One more server uses the runtime, or one less.
  void AddServer() { servers_.fetch_add(1, std::memory_order_relaxed); }
  void RemoveServer() { servers_.fetch_sub(1, std::memory_order_release); }
  int servers() const { return servers_.load(std::memory_order_acquire); }
  // Those that have started.
  ServedServers& served() { return served_; }
  const ServedServers& served() const { return served_; }

  // One more RuntimeReporter uses the runtime, or one less.
  void AddReporter() { reporters_.fetch_add(1, std::memory_order_relaxed); }
  void RemoveReporter() { reporters_.fetch_sub(1, std::memory_order_release); }
  int reporters() const { return reporters_.load(std::memory_order_acquire); }

  // What the runtime does without, in words: a line each, "mlx5_0 is not used: …". The bound is
  // that each line is noted once.
  void NoteDegraded(std::string line) {
    std::lock_guard lock(degraded_mutex_);
    degraded_.push_back(std::move(line));
  }
  std::vector<std::string> degraded() const {
    std::lock_guard lock(degraded_mutex_);
    return degraded_;
  }
  const std::vector<std::unique_ptr<DeviceKeeper>>& keepers() const { return keepers_; }

  // As Runtime::BlockOn().
  template <typename T>
  T BlockOn(Task<T> task, size_t index = 0) {
    CheckMayBlock();
    BlockOnTask<T> blocked(std::move(task));
    LaunchAndWait(blocked, index);
    return blocked.TakeResult();
  }
  void LaunchAndWait(BlockOnRoot& root, size_t index);
  // As Runtime::Spawn().
  SpawnSite SiteOf(size_t index);
  void LaunchSpawned(Task<void> task, size_t index);

 private:
  absl::Status StartAll();
  absl::Status OpenParts();
  absl::Status OpenDevices();
  absl::Status OpenNamedDevices();
  // Sets sizes_ for these devices, and logs what is to be known of them.
  absl::Status FitDevices(const std::vector<Device*>& devices);
  // The same. If `automatic`, takes RDMA devices away that do not fit, except the last device.
  absl::Status FitOpened(bool automatic, std::vector<std::unique_ptr<Device>>& opened);
  // Logs, and notes as degraded, that a device is left out.
  void NoteUnused(const std::string& device, const absl::Status& why);
  // Sets cpus_. `devices` as they are opened.
  void ChooseCores(const std::vector<Device*>& devices);
  // Without need no port is opened.
  absl::Status KeepTcpInReserve();
  DeviceKeeper::Options KeeperOptions(DeviceKind kind) const;
  absl::Status Keep(absl::StatusOr<std::unique_ptr<DeviceKeeper>> keeper);
  absl::StatusOr<Executor*> StartExecutor(int index);
  Task<absl::Status> InitShard(Shard& shard);

  void DriveUntil(absl::FunctionRef<bool()> done) override { PollExecutors(0, done); }
  // Without threads. The executor `first` comes first.
  void PollExecutors(size_t first, absl::FunctionRef<bool()> done);

  Task<void> BeginShutdown(size_t index);
  Task<void> CloseLinks(size_t index) { co_await shards_[index]->CloseLinks(); }
  Task<void> JoinTasks(size_t index) { co_await shards_[index]->JoinTasks(); }
  Task<void> End(size_t index) { co_await shards_[index]->End(); }

  const pid_t process_;
  const RuntimeOptions options_;
  const TestDevice test_device_;
  const RuntimeId id_ = RuntimeId::Random();
  bool shut_down_ = false;
  DeviceSizes sizes_;
  std::vector<int> cpus_;  // as RuntimeOptions::cpus
  std::vector<std::string> device_names_;
  std::unique_ptr<Bootstrap> owned_bootstrap_;
  Bootstrap* bootstrap_ = nullptr;
  std::vector<std::unique_ptr<DeviceKeeper>> keepers_;  // of the devices in use
  // By executor, if calls are counted. They outlive the executors, whose tasks may end calls late.
  std::vector<std::unique_ptr<ExecutorCounts>> counts_;
  std::atomic<uint64_t> failed_tasks_ = 0;
  std::atomic<int> servers_ = 0;  // that use the runtime
  Parts parts_;
  BlockingPool blocking_pool_;
  std::vector<std::unique_ptr<Executor>> executors_;  // without threads
  std::vector<std::unique_ptr<ExecutorThread>> threads_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::atomic<int> reporters_ = 0;  // RuntimeReporters that use the runtime
  ServedServers served_;
  mutable std::mutex degraded_mutex_;
  std::vector<std::string> degraded_;  // under degraded_mutex_
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SHARD_RUNTIME_H_
