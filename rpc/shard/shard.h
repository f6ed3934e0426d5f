// The part of a Runtime that lives on one executor: Shard; and Published, a value that other
// executors may read.
//
// The Runtime owns a Shard for each executor; used on that executor's thread.

#ifndef VERBENA_RPC_SHARD_SHARD_H_
#define VERBENA_RPC_SHARD_SHARD_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/shard/device_sizes.h"
#include "verbena/rpc/shard/parts.h"
#include "verbena/rpc/shard/shard_device.h"
#include "verbena/rpc/stream/memory.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/link/limits.h"

namespace verbena::internal {

class Endpoint;
class RuntimeCore;
struct ExecutorCounts;

// Published: a value that its owner sets from time to time, and any thread reads.
//
// For statistics of one executor that another executor reads: the reader must not wait for the
// owner.
//
//   published_.Set(stats());               // on the owner's thread
//   DeviceStats before = published_.Get();  // on any thread
template <typename T>
class Published {
 public:
  void Set(T value) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::swap(value_, value);
  }
  T Get() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return value_;
  }

 private:
  mutable std::mutex mutex_;
  T value_{};
};

// Shard: the part of a Runtime that lives on one executor: an endpoint for each device that is in
// use, and the tasks that belong to nobody else.
//
// Owned by the Runtime; used on its executor's thread, except published_stats().
class Shard {
 public:
  // `id` names the runtime to the servers that its connections reach. `owner` is null in tests that
  // have a shard alone.
  Shard(Executor& executor, Bootstrap& bootstrap, uint32_t index, const RuntimeId& id,
        RuntimeCore* owner = nullptr);

  // Call it once, on the executor's thread or before it runs. `devices` has one of each kind. A
  // single device, not counting those in reserve, is put to use at once, so that its faults show
  // when the program starts.
  absl::Status Init(const std::vector<DeviceKeeper*>& devices, const DeviceSizes& sizes,
                    uint32_t shards);
  // A runtime shuts its shards down in steps, each on all shards before the next begins: tasks of
  // one shard use the others.
  //
  // Cancels the tasks. From now on no task begins here, and no connection is made.
  void BeginShutdown();
  // True since BeginShutdown().
  bool closing() const { return closing_; }
  // Closes every link.
  Task<void> CloseLinks();
  // Waits for the tasks.
  Task<void> JoinTasks();
  // Clears the parts, and gives the endpoints back when nobody uses their memory any more. The last
  // thing that runs on a shard.
  Task<void> End();

  Executor& executor() const { return executor_; }
  RuntimeCore* owner() const { return owner_; }
  // What this executor counts of calls; null if the runtime counts none. Set before anything runs.
  ExecutorCounts* counts() const { return counts_; }
  void set_counts(ExecutorCounts& counts) { counts_ = &counts; }
  // The objects that folders above keep with this shard.
  Parts& parts() { return parts_; }
  Bootstrap& bootstrap() const { return bootstrap_; }
  // The devices' kinds, by index.
  const std::vector<LinkKind>& kinds() const { return kinds_; }
  // Made when first asked for: an endpoint pins memory. UNAVAILABLE while the device, which has
  // failed, is being opened again. A caller that keeps it beyond a wait must hold its Use().
  absl::StatusOr<Endpoint*> EndpointOn(size_t device);
  // Like EndpointOn(), but the executor serves others meanwhile: a control thread registers the
  // memory.
  VERBENA_CORO_WRAPPER Task<absl::StatusOr<Endpoint*>> AwaitEndpointOn(size_t device) {
    VERBENA_CHECK(device < devices_.size()) << device << " of " << devices_.size() << " devices";
    return devices_[device]->AwaitEndpoint();
  }
  // The endpoint on the device of that kind, for a peer that asks for it. A device in reserve is
  // opened. FAILED_PRECONDITION if there is no such device.
  Task<absl::StatusOr<Endpoint*>> AwaitEndpointFor(LinkKind kind);
  // Whether a client may try that device. False for one in reserve if the bootstrap's connection
  // goes over loopback, or tells no address: a process opens no port by itself for links that stay
  // on its host, unless they cannot go through shared memory (DeviceAttempts::AddFailure).
  bool MayConnectOver(size_t device, const MessageStream& stream) const;
  // The device of that name; "": the only one that is not in reserve. INVALID_ARGUMENT names the
  // devices that exist.
  absl::StatusOr<ShardDevice*> DeviceNamed(const std::string& device);
  // The endpoint whose links use that protection domain; nullptr when there is none.
  const Endpoint* EndpointWith(const ibv_pd* pd) const;
  const std::vector<std::unique_ptr<ShardDevice>>& devices() const { return devices_; }
  // Statistics of each device that was used or passed over.
  std::vector<DeviceStats> stats() const;
  // The smallest of the devices' limits.
  const LinkLimits& wanted_limits() const { return limits_; }
  // The smallest number of links that one of the devices takes; devices that are not in use yet
  // count.
  uint32_t max_links() const;
  uint32_t index() const { return index_; }
  // The runtime's id: random, and the same as long as the runtime lives.
  const RuntimeId& runtime_id() const { return runtime_id_; }
  // Tasks that belong to nobody else: attempts to connect, and those of Runtime::Spawn().
  TaskScope& tasks() { return tasks_; }
  // For messages of streams that nobody has read yet.
  StreamMemory& stream_memory() { return stream_memory_; }
  // stats(), kept for threads that cannot wait for this one. Published here, read anywhere.
  void PublishStats();
  std::vector<DeviceStats> published_stats() const { return published_.Get(); }

 private:
  Executor& executor_;
  Bootstrap& bootstrap_;
  const uint32_t index_;
  const RuntimeId runtime_id_;
  RuntimeCore* const owner_;
  ExecutorCounts* counts_ = nullptr;
  std::vector<LinkKind> kinds_;
  LinkLimits limits_;
  StreamMemory stream_memory_;
  TaskScope tasks_;
  bool closing_ = false;
  std::vector<std::unique_ptr<ShardDevice>> devices_;
  Published<std::vector<DeviceStats>> published_;
  Parts parts_;  // they use the rest
};

// What the executor counts that is `scheduler`; null if that is none of a runtime, or the runtime
// counts nothing.
inline ExecutorCounts* CountsOf(const Scheduler& scheduler) {
  const auto* shard = static_cast<const Shard*>(scheduler.attachment());
  return shard != nullptr ? shard->counts() : nullptr;
}

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SHARD_SHARD_H_
