// Runtime: what a process needs to make and serve calls: executors, devices, and a way to find
// peers.
//
//   Runtime, RuntimeOptions, MemoryOptions   all of it; memory of the program's own
//   ReopenBackoff                            when a failed device is opened again
//   LinkLimits and its parts                 bounds (docs/tuning.md explains each)
//   RdmaOptions                              how links use the fabric of RDMA devices
//   Bootstrap and its kinds                  how two processes find each other: over TCP, in a
//                                            directory that all hosts share, within one process,
//                                            by fixed names
//   Executor, ExecutorThread, BlockOn        the loop of each core, for programs that drive it
//   DeviceStats, EndpointStats, LinkStats    counters of a runtime's links
//   ExecutorStats                            counters of an executor
//
//   VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Runtime> runtime, Runtime::Start({.executors = 2}));
//   absl::Status status = runtime->BlockOn(Main(*runtime));

#ifndef VERBENA_RPC_RUNTIME_H_
#define VERBENA_RPC_RUNTIME_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/connect/bootstrap.h"        // IWYU pragma: export
#include "verbena/transport/connect/file_bootstrap.h"   // IWYU pragma: export
#include "verbena/transport/connect/local_bootstrap.h"  // IWYU pragma: export
#include "verbena/transport/connect/tcp_bootstrap.h"    // IWYU pragma: export
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"      // IWYU pragma: export
#include "verbena/transport/executor/options.h"       // IWYU pragma: export
#include "verbena/transport/executor/spawn.h"         // IWYU pragma: export
#include "verbena/transport/link/limits.h"            // IWYU pragma: export
#include "verbena/transport/link/rdma_options.h"      // IWYU pragma: export
#include "verbena/transport/link/stats.h"             // IWYU pragma: export
#include "verbena/transport/memory/memory_budgets.h"  // IWYU pragma: export
#include "verbena/transport/memory/registered_memory.h"

namespace verbena {

class Metrics;
class Runtime;

namespace internal {
class RuntimeCore;

// The core of `runtime`, for Verbena itself.
VERBENA_EXPORT RuntimeCore& CoreOf(const Runtime& runtime);
}  // namespace internal

// How often a device that has failed is opened again: the pauses before attempts, give or take a
// fifth, each twice the one before. Unless 0 < first <= longest, Runtime::Start() returns
// INVALID_ARGUMENT.
//
//   Runtime::Start({.reopen = {.longest = std::chrono::minutes(2)}});
struct ReopenBackoff {
  Duration first = std::chrono::milliseconds(100);
  // The longest pause. If a device served for this long before it failed again, the pauses begin
  // with `first` anew.
  Duration longest = std::chrono::seconds(30);
};

struct RuntimeOptions {
  // 1 to 1024: one for each core that should serve or make calls.
  int executors = 1;
  // How an idle executor waits: kBusy never sleeps (one core each), kAdaptive polls for `spin` and
  // then sleeps, kEvent sleeps at once.
  ExecutorMode mode = ExecutorMode::kAdaptive;
  // With kAdaptive: how long an executor polls after its last event before it sleeps, 0 or more.
  // Other modes ignore it.
  Duration spin = std::chrono::microseconds(50);
  // How it sleeps and reaches files: kAuto takes io_uring if the kernel allows it, otherwise epoll.
  WaiterKind waiter = WaiterKind::kAuto;
  // The core of each executor, counted from 0; -1, or no entry: it is not pinned. At most one for
  // each executor, and one that the machine has. If the process may not run on that core, the log
  // says so and the executor runs unpinned. Without threads, executor(i).Run() pins the thread that
  // calls it until it returns; Poll() pins no thread.
  std::vector<int> cpus = {};
  // True: each executor is pinned to a core near the first RDMA device, as the kernel tells them
  // (/sys/class/infiniband/NAME/device/local_cpulist, or the cores of its NUMA node), of those that
  // the process may run on: physical cores first, then their other hardware threads. Executors
  // beyond them, and all if there is no such device or the kernel does not tell, run unpinned,
  // and the log warns; at level "info" it says which cores were taken. Contradicts `cpus`, which
  // must be empty then.
  bool numa = false;
  // "soft": the software device over shared memory: processes of this host and user. "soft:tcp":
  // the software device over TCP, at any free port ("soft:tcp:4791": at that port of every address,
  // "soft:tcp:10.0.0.1:4791": of that one). "soft:4791": both, with TCP at that port. "rdma" or
  // "rdma:NAME": an RDMA device by its name (as ibv_devices lists them, "mlx5_0:2" for its port 2),
  // interface ("eth0") or address ("10.0.0.1"). "auto": what the environment variable
  // VERBENA_DEVICE says. If that is not set: shared memory, the first active RDMA port of each kind
  // (InfiniBand, RoCE, iWARP), and TCP in reserve; TCP in the place of shared memory if the process
  // may not share any. A port that cannot be opened is left out, and logged. Each connection takes
  // the first device that reaches its peer: shared memory on one host, otherwise RDMA, otherwise
  // TCP, which opens its port only then (docs/devices.md).
  std::string device = "auto";
  // How queue pairs of RDMA devices are connected. "exchange": by the numbers in the handshake.
  // "rdma_cm": through rdma_cm if the peer can do that, too. "auto": what the environment variable
  // VERBENA_CONNECT says. If that is not set: rdma_cm on iWARP, which requires it, and the exchange
  // on all other devices.
  std::string connect = "auto";
  // How links of RDMA devices use the fabric: traffic class, service level and the like.
  RdmaOptions rdma = {};
  // If the sizes in it are the defaults, and RLIMIT_MEMLOCK has no room for them, RDMA devices get
  // those of LinkLimits::Small(), and the log says so (reduced()). Other sizes stay as they are.
  LinkLimits limits = {};
  // False: the host drives the executors; BlockOn() does it by itself.
  bool threads = true;
  // A device that has failed, or was removed, is opened again; its links are lost. What happens to
  // calls, buffers and registered memory: docs/devices.md.
  ReopenBackoff reopen = {};
  // Not owned; must outlive the runtime. nullptr: TCP.
  Bootstrap* use_bootstrap = nullptr;
  // Not owned; must outlive the runtime. nullptr: the machine's clock.
  Clock* clock = nullptr;
  // 1 to 1024, 8 by default: how many callables of RunBlocking() run at once, on threads that all
  // executors share. A thread starts when a callable needs it.
  int blocking_threads = internal::kDefaultBlockingThreads;
  // Counts calls and their times for Runtime::metrics() (metrics.h). It costs some dozen
  // instructions a call, and half a millisecond when the first runtime of a process starts.
  bool metrics = true;
};

struct MemoryOptions {
  // The device to register the memory with, by its name in Runtime::device_names() ("soft0",
  // "mlx5_0", "tcp0"). "": the only one; INVALID_ARGUMENT if the runtime has several, not counting
  // the TCP device that "auto" keeps in reserve until a link needs it. Payloads of a call
  // lie in memory of its link's device: ServerContext::device_name(), Channel::DeviceName().
  std::string device = "";
  // True: files with O_DIRECT of the calling executor use it as a fixed buffer of its io_uring
  // (RegisteredMemory). Then only that executor may deregister it.
  bool for_files = false;
};

// The executors and devices of a process, on which it makes channels and servers.
//
// Start() opens the devices, starts one thread per executor, and gives each an endpoint (a shared
// receive queue, a completion queue, links) on every device that it uses. The program owns the
// runtime. Channels must not be used after the runtime is destroyed, but may be destroyed then. The
// runtime is usable from any thread; what runs on its executors stays there.
//
// An embedding program that has an event loop asks for no threads, and drives executor(i) itself
// (Executor::Poll, Arm and fd; examples/host_loop). Then one thread at a time uses the runtime, and
// counts as the thread of all its executors: BlockOn(), Server::Shutdown() and destructors drive
// all of them. examples/host_loop/README.md names the threads that remain.
//
//   precondition                                          how it is checked      test
//   its servers are destroyed before it                   a check aborts         runtime_test
//   ~Runtime and BlockOn() on no executor's thread        a check aborts         runtime_test
//   without threads, one thread at a time drives it       a check aborts         host_driven_test
//   an executor's index is in [0, executors())            a check aborts         runtime_test
//   Spawn() of a call that owns its messages              does not compile       lifetimes
//   options are in range                                  INVALID_ARGUMENT       runtime_test
//   use_bootstrap and clock outlive it                    not checked
class VERBENA_EXPORT Runtime {
 public:
  // INVALID_ARGUMENT: an option is out of range or contradicts another, or names a way of
  // connecting that does not exist, or `device` names an address that this host does not have.
  // NOT_FOUND: no device has the name in `device`. UNAVAILABLE: its port is down.
  // FAILED_PRECONDITION: iWARP cannot be connected by exchange, or a TCP port that `device` names
  // is in use. RESOURCE_EXHAUSTED: a thread could not be started, or the device's queues are too
  // small, or RLIMIT_MEMLOCK is too small even for LinkLimits::Small(), or the cgroup's memory.max
  // is less than the devices pin at once; the message names the limit and what to set. With "auto",
  // RDMA devices that these limits do not admit are left out, and logged. Other errors come from
  // opening the device, making its queues and registering memory; the message says what was
  // refused.
  static absl::StatusOr<std::unique_ptr<Runtime>> Start(RuntimeOptions options = {});
  // Closes every link. A check aborts the process if a Server still uses the runtime: declare the
  // server after the runtime, so that it is destroyed first. While this runs, only tasks of Spawn()
  // may use a Channel; any thread may destroy one. Waits for these tasks, and names in the log,
  // every ten seconds, an executor on which some have not ended. Must not be called on one of its
  // executors.
  ~Runtime();

  // Runs `task` on an executor and waits until it has ended and its frame is destroyed. Returns its
  // result, or throws its exception. Without threads, polls all executors meanwhile. A check aborts
  // the process if this is called inside an executor's loop, which it would block: co_await there.
  template <typename T>
  T BlockOn(Task<T> task, int executor_index = 0) {
    internal::CheckMayBlock();
    internal::BlockOnTask<T> blocked(std::move(task));
    LaunchAndWait(blocked, executor_index);
    return blocked.TakeResult();
  }

  // Runs a stub's call in the same way: runtime.BlockOn(stub.Get(request)).
  template <internal::TaskSource A>
  typename A::value_type BlockOn(A awaitable, int executor_index = 0) {
    return BlockOn(internal::ToTask(std::move(awaitable)), executor_index);
  }

  // From any thread: starts `task` on an executor and returns a handle, to wait for its end, take
  // its result or ask it to stop (JoinHandle). Dropping the handle lets the task run on alone.
  // The runtime's destructor cancels the task and waits until it has ended; the handle may live
  // longer. A task that one of these tasks spawns while the destructor runs is destroyed and never
  // begins: its handle gives CANCELLED. An exception is counted, and logged if nobody takes it from
  // the handle.
  //
  //   JoinHandle<absl::Status> scrub = runtime->Spawn(Scrub(store));
  //   absl::Status scrubbed = scrub.Join();  // in a coroutine: co_await std::move(scrub)
  template <typename T>
  JoinHandle<T> Spawn(Task<T> task, int executor_index = 0) {
    internal::JoinableTask<T> joinable(SiteOf(executor_index), std::move(task));
    JoinHandle<T> handle = joinable.handle();
    LaunchSpawned(internal::RunJoinable(std::move(joinable)), executor_index);
    return handle;
  }
  // For a stub's call, which must own its messages: a call that borrows its request or reply does
  // not compile. Give it the request with std::move(), and take the reply as its result. Nor does
  // an await of an object, such as Queue::Pop(): spawn a lambda that has or outlives the object.
  template <internal::TaskSource A>
  JoinHandle<typename A::value_type> Spawn(A awaitable, int executor_index = 0) {
    return Spawn(internal::ToTask(std::move(awaitable)), executor_index);
  }
  template <internal::BorrowingSource A>
  JoinHandle<typename A::value_type> Spawn(A borrows_what_may_be_gone,
                                           int executor_index = 0) = delete;
  // Spawns the Task that a callable returns, such as a lambda. The callable is called on the
  // executor, and lives with its captures until the Task's frame is destroyed.
  template <internal::TaskFunction Function>
  JoinHandle<internal::TaskFunctionResult<Function>> Spawn(Function function,
                                                           int executor_index = 0) {
    return Spawn(internal::RunFunction(std::move(function)), executor_index);
  }
  // How many tasks of Spawn() have thrown. From any thread.
  uint64_t failed_tasks() const;

  // Registers the program's own memory, such as a cache, so that its Buffers (Wrap()) serve for
  // payloads, loans and files as those of AllocateBuffer() do. A gibibyte takes 0.3 s and more. A
  // control thread does the work, and no executor waits. Await it on an executor of this runtime.
  //   FAILED_PRECONDITION: this thread is no executor of this runtime.
  //   INVALID_ARGUMENT: the runtime has no such device, or has several and none is named, or no
  //     memory is given.
  //   RESOURCE_EXHAUSTED: the device or RLIMIT_MEMLOCK refuses.
  //
  // The memory must be writable. It must stay mapped until it is deregistered, or until the runtime
  // is destroyed if the Task is cancelled or destroyed before it has ended. When a device has
  // failed and was opened again, register the memory anew: payloads cannot use the former
  // registration.
  Task<absl::StatusOr<std::unique_ptr<RegisteredMemory>>> RegisterMemory(
      void* memory, size_t bytes, MemoryOptions options = {});
  // Deregisters the memory, also on a control thread. Call it before the runtime is destroyed, when
  // memory->in_use() is 0. A call that was given up may keep its Buffers for up to
  // LeaseLimits::grace. While a Buffer is in use the registration stays, with an error in the
  // log, and the program must keep the memory until the process ends. Await it on an executor of
  // this runtime, otherwise a check aborts; with MemoryOptions::for_files on the executor that
  // registered it.
  Task<void> DeregisterMemory(std::unique_ptr<RegisteredMemory> memory);

  // What it counts, and what the program adds (metrics.h). Lives as long as the runtime.
  Metrics& metrics() const;

  int executors() const;
  Executor& executor(int index) const;
  // The names of the devices, as MemoryOptions::device takes them: "soft0", "mlx5_0". With "auto"
  // the last is "tcp0", also while it is in reserve.
  const std::vector<std::string>& device_names() const;
  // Why the runtime runs with LinkLimits::Small() on its RDMA devices though its options did not
  // ask for it: a sentence with the limit and the remedy. Empty if it does not. For probes: such a
  // runtime serves, but takes few links and small payloads.
  const std::string& reduced() const;
  // The statistics of an executor: the sum over its devices, and those of each device in use. From
  // any thread; never blocks an executor. Current values if called on that executor, or on a thread
  // that runs none. On another executor: the values that the last call asked for; this call asks
  // for new ones. DeviceStats say which device carries how many links, and why others were passed
  // over.
  EndpointStats endpoint_stats(int executor_index);
  std::vector<DeviceStats> device_stats(int executor_index);

 private:
  friend class internal::RuntimeCore;
  friend internal::RuntimeCore& internal::CoreOf(const Runtime& runtime);
  explicit Runtime(std::unique_ptr<internal::RuntimeCore> core);
  void LaunchAndWait(internal::BlockOnRoot& root, int executor_index);
  internal::SpawnSite SiteOf(int executor_index);
  void LaunchSpawned(Task<void> task, int executor_index);

  const std::unique_ptr<internal::RuntimeCore> core_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_RUNTIME_H_
