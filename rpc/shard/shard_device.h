// ShardDevice: one device in the hands of one executor: its endpoint there, also when the device
// has failed and was opened again.
//
// An endpoint of an opening that has failed is retired: it takes no links, and is destroyed once
// nobody refers to it, its pools or a buffer of them any more.
//
// Owned by a Shard, on its executor's thread, except the functions that its DeviceKeeper calls.

#ifndef VERBENA_RPC_SHARD_SHARD_DEVICE_H_
#define VERBENA_RPC_SHARD_SHARD_DEVICE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/shard/device_keeper.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/endpoint_memory.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/stats.h"

namespace verbena::internal {

class Endpoint;

// The arguments of each endpoint of one executor.
struct EndpointOptions {
  LinkLimits limits = {};
  uint32_t executor_index = 0;
  uint32_t executor_count = 1;
  RuntimeId runtime_id = {};
};

class ShardDevice final : private DeviceKeeper::User {
 public:
  // `tasks` runs this object's Tasks, and is joined between Shutdown() and End().
  ShardDevice(Executor& executor, DeviceKeeper& keeper, const EndpointOptions& options,
              TaskScope& tasks);
  ShardDevice(const ShardDevice&) = delete;
  ShardDevice& operator=(const ShardDevice&) = delete;
  ~ShardDevice() override;

  const std::string& name() const { return keeper_.name(); }
  LinkKind kind() const { return keeper_.kind(); }
  // True until somebody needs the device.
  bool in_reserve() const { return keeper_.in_reserve(); }
  // Made when first asked for: an endpoint pins memory. UNAVAILABLE while the device is being
  // opened again, or is in reserve.
  absl::StatusOr<Endpoint*> UseEndpoint();
  // UseEndpoint() without blocking the executor: a control thread registers the memory, once for
  // all who ask meanwhile. UNAVAILABLE also if the device fails meanwhile. A device in reserve is
  // opened first, on this thread: a fraction of a millisecond, once in a runtime.
  Task<absl::StatusOr<Endpoint*>> AwaitEndpoint();
  // nullptr if none was needed yet, or the device is being opened again.
  Endpoint* endpoint() const { return endpoint_.get(); }
  // The device in service, null while there is none. Whoever keeps it keeps the device open.
  const std::shared_ptr<OpenedDevice>& opened() const { return opened_; }
  // The most links that the endpoint takes. Without an endpoint: an estimate from the limits and
  // the device.
  uint32_t max_links() const;
  // A connection of this executor went over another device, for the reason `why`.
  void NotePassedOver(std::string why) { passed_over_ = std::move(why); }
  bool NoteFirstLink() { return keeper_.NoteFirstLink(); }
  // Sums over all its endpoints. None if no endpoint was needed yet, and nobody has passed the
  // device over.
  std::optional<DeviceStats> stats() const;
  // Endpoints that failed with their device, and are still in use.
  size_t retired() const { return retired_.size(); }

  // Closes all links for good.
  Task<void> Shutdown();
  // Destroys the endpoints, when `tasks` is joined.
  Task<void> End();

 private:
  struct Retired {
    // Outlives the endpoint.
    std::shared_ptr<OpenedDevice> opened;
    std::unique_ptr<Endpoint> endpoint;
    bool drained = false;
  };
  // An opening, and the memory registered there for the executor. The memory is destroyed first.
  struct Arrival {
    std::shared_ptr<OpenedDevice> opened;
    std::optional<EndpointMemory> memory;
  };

  void OnDeviceFailed(const std::shared_ptr<OpenedDevice>& opened) override;
  absl::StatusOr<std::optional<EndpointMemory>> Prepare(DeviceContext& context) override;
  void OnDeviceOpened(std::shared_ptr<OpenedDevice> opened,
                      std::optional<EndpointMemory> memory) override;

  // For all who are in AwaitEndpoint().
  Task<void> Register(std::shared_ptr<OpenedDevice> opened);
  absl::Status UseRegistered(const OpenedDevice& opened, absl::StatusOr<EndpointMemory>& memory);
  void EndRegistration(absl::Status end);
  absl::Status Ended() const;
  absl::Status InReserve() const;
  absl::StatusOr<Endpoint*> MakeEndpoint(EndpointMemory memory);
  void Retire(OpenedDevice& opened);
  void Take(Arrival arrival);
  Task<void> Sweep();
  void NoteDrained();
  // A retired endpoint that nobody refers to any more, if there is one.
  std::optional<Retired> TakeUnused();

  Executor& executor_;
  DeviceKeeper& keeper_;
  const EndpointOptions options_;
  TaskScope& tasks_;
  std::shared_ptr<OpenedDevice> opened_;  // null while there is none
  std::unique_ptr<Endpoint> endpoint_;
  // Whether there was an endpoint: then the next opening is prepared for one. Read by the keeper's
  // thread.
  std::atomic<bool> in_use_ = false;
  std::vector<Retired> retired_;
  EndpointStats past_;  // of endpoints that are gone
  // The opening in service while Register() works on it; null: nobody waits for one.
  std::shared_ptr<OpenedDevice> registering_;
  Event registered_;
  absl::Status registration_;  // how the last one ended
  // Set once the keeper has opened the device and this object knows it.
  Event arrived_;
  std::string passed_over_;
  bool sweeping_ = false;
  bool shutting_down_ = false;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SHARD_SHARD_DEVICE_H_
