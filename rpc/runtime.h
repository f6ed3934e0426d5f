// Runtime: what a process needs to make and serve calls: executors, a device, and a way to find
// peers.
//
// Start() opens the devices, starts one thread per executor, and gives each an endpoint (a shared
// receive queue, a completion queue, links) on every device that it uses. Channels and servers are
// made on it and must be gone before it is destroyed. An embedding program that has an event loop
// asks for no threads, and polls executor(i) itself. The runtime is usable from any thread; what
// runs on its executors stays there.
//
//   VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Runtime> runtime, Runtime::Start({.executors = 2}));
//   absl::Status status = runtime->BlockOn(Main(*runtime));

#ifndef VERBENA_RPC_RUNTIME_H_
#define VERBENA_RPC_RUNTIME_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/coro/clock.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor_options.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/stats.h"

namespace verbena {

class Bootstrap;
class Device;
class Executor;
class Shard;

struct RuntimeOptions {
  // One per core that should serve or make calls.
  int executors = 1;
  ExecutorMode mode = ExecutorMode::kAdaptive;
  // How long an adaptive executor spins before it sleeps.
  Duration spin = std::chrono::microseconds(50);
  WaiterKind waiter = WaiterKind::kAuto;
  // The core of each executor; missing ones are not pinned.
  std::vector<int> cpus = {};
  // "soft": the software device, which reaches processes of this host and user. "rdma" or
  // "rdma:NAME": an RDMA device by its name (as ibv_devices lists them, "mlx5_0:2" for its port 2),
  // interface ("eth0") or address ("10.0.0.1"). "auto": what the environment variable
  // VERBENA_DEVICE says, else the software device and the active RDMA ports, of which each
  // connection takes the first that reaches its peer: shared memory on one host, else RDMA.
  std::string device = "auto";
  // How queue pairs of RDMA devices are connected: "exchange", by the numbers of the handshake;
  // "rdma_cm", through rdma_cm where the peer can, too. "auto": what the environment variable
  // VERBENA_CONNECT says, else rdma_cm on iWARP, which knows no other way, and the exchange on all
  // else.
  std::string connect = "auto";
  LinkLimits limits = {};
  // False: no threads; the host calls executor(i).Poll(), and BlockOn() polls by itself.
  bool threads = true;
  // Not owned; must outlive the runtime. nullptr: the devices named above, TCP, the machine's
  // clock.
  Device* use_device = nullptr;
  Bootstrap* use_bootstrap = nullptr;
  Clock* clock = nullptr;
};

class Runtime {
 public:
  static absl::StatusOr<std::unique_ptr<Runtime>> Start(RuntimeOptions options = {});
  // Closes every link. Channels and servers are gone by then; not called on one of its executors.
  ~Runtime();

  // Runs `task` on an executor and waits for its result, on a thread that runs none of them.
  template <typename T>
  T BlockOn(Task<T> task, int executor_index = 0) {
    if constexpr (std::is_void_v<T>) {
      RunToEnd(std::move(task), executor_index);
    } else {
      std::optional<T> result;
      RunToEnd(Keep(std::move(task), result), executor_index);
      return *std::move(result);
    }
  }

  // From any thread: starts `task` on an executor and lets it run. Destroyed with the runtime if it
  // has not ended.
  void Spawn(Task<void> task, int executor_index = 0);

  int executors() const;
  Executor& executor(int index) const;
  // "soft", "mlx5_0", or what is open of both kinds: "soft, mlx5_0".
  const std::string& device_name() const;
  // Gathered on the executor's thread: the sum, and by device, those that are in use alone.
  EndpointStats endpoint_stats(int executor_index);
  std::vector<DeviceStats> device_stats(int executor_index);

  // For Channel and Server: the part of the runtime that lives on one executor.
  Shard& shard(int index) const;
  // The shard of the executor whose thread this is; nullptr on any other thread.
  Shard* CurrentShard() const;

 private:
  class Impl;
  explicit Runtime(std::unique_ptr<Impl> impl);

  template <typename T>
  static Task<void> Keep(Task<T> task, std::optional<T>& result) {
    result.emplace(co_await std::move(task));
  }
  void RunToEnd(Task<void> task, int executor_index);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_RUNTIME_H_
