// DeviceContext: the part of a device that the endpoints of one process share: its protection
// domain, the address by which peers reach it, its connection manager, the threads that run its
// control verbs, and the reader of its asynchronous events.
//
// Owned by the Runtime (or a test) that opened the device; outlives every endpoint on it. A thread
// reads events. It copies each, acknowledges it at once (destroying a queue pair waits for that),
// and posts it to the subscriber's executor. Without that thread (RuntimeOptions::threads is false)
// endpoints read events on their liveness timer, before they make a link, and during teardown.

#ifndef VERBENA_TRANSPORT_LINK_DEVICE_CONTEXT_H_
#define VERBENA_TRANSPORT_LINK_DEVICE_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "verbena/transport/connect/qp_connector.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/device/control_pool.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/link/qp.h"
#include "verbena/transport/link/rdma_options.h"
#include "verbena/transport/memory/registered_memory.h"

namespace verbena::internal {

class DeviceContext {
 public:
  using FailureHandler = std::function<void()>;
  using ThreadStarter = std::function<std::thread(std::function<void()>)>;

  struct Options {
    bool event_thread = true;
    // False: control verbs run on the executors, at once. For devices whose verbs never wait.
    bool control_threads = true;
    // How queue pairs are connected: as RuntimeOptions::connect. "" means "auto". The soft device
    // always exchanges.
    std::string connect = "auto";
    RdmaOptions rdma = {};
    // Not owned; replaces `connect`.
    QpConnector* use_connector = nullptr;
    // Called when the device has failed or was removed, behind the handlers of its queue pairs: on
    // the thread that reads its events, and perhaps more than once.
    FailureHandler on_failure = {};
    // std::thread if not set. May throw std::system_error, as that does.
    ThreadStarter start_thread = {};
  };

  // INVALID_ARGUMENT names a way of connecting that does not exist, or a value of RdmaOptions that
  // is out of range. RESOURCE_EXHAUSTED: the system starts no thread.
  static absl::StatusOr<std::unique_ptr<DeviceContext>> Create(Device& device,
                                                               const Options& options);
  ~DeviceContext();

  Device& device() const { return device_; }
  ibv_pd* pd() const { return pd_.get(); }
  // Links ask this of the fabric.
  const RdmaOptions& rdma() const { return rdma_; }
  // The completion vector of an executor, as rdma() says.
  int CompVectorOf(uint32_t executor_index) const;
  // The last usable address. Its kind never changes.
  PortAddress address() const;
  // The address for a new link, as read when the device last reported a change: that of the port
  // which is `own` (MessageStream::own_address()), if the port has it, or else address(). With a
  // connection manager always the latter, because the manager has one address. UNAVAILABLE while
  // the port is down, or lacks the address that the device was opened by.
  absl::StatusOr<PortAddress> CurrentAddress(const std::string& own) const;
  // The threads that run control verbs. Executors only post, poll, make their completion queues,
  // and register the buffers of their endpoints when they make them.
  ControlPool& control() const { return *control_; }

  // nullptr: queue pairs are connected by the numbers of the handshake.
  QpConnector* connector() const { return connector_; }

  // Calls `handler` on `executor` for each event of the queue pair, until Unsubscribe(). When the
  // device fails or is removed, every handler is called. A port that goes down, or changes its
  // address, ends no link: its address is read again, for new links.
  using EventHandler = std::function<void(ibv_event_type)>;
  void Subscribe(uint32_t qpn, Executor& executor, EventHandler handler);
  // An event that is under way to the executor may still arrive after this.
  void Unsubscribe(uint32_t qpn);
  // The same for a CQ or an SRQ: the events that say that it is lost.
  void SubscribeQueue(const void* queue, Executor& executor, EventHandler handler);
  void UnsubscribeQueue(const void* queue);

  // Ends the threads and gives the protection domain back. The last call before the destructor.
  // Fails if the device refuses to take the domain back: objects and memory of the domain may still
  // be in use.
  absl::Status Close();

  // Reads and dispatches what is there, without blocking.
  void PollEvents();
  // The same, if no thread reads events.
  void PollEventsIfUnattended() {
    if (!thread_.joinable()) PollEvents();
  }

 private:
  struct Subscription {
    Executor* executor;
    EventHandler handler;
  };

  DeviceContext(Device& device, PdHandle pd, std::vector<PortAddress> addresses,
                const Options& options);
  absl::Status StartThread(const ThreadStarter& start_thread);
  void StopThread();
  absl::Status ChooseConnector(const Options& options);
  void ReadEvents();
  // Precondition: the event is not acknowledged.
  void OnEvent(const ibv_async_event& event);
  void RereadAddress();
  absl::StatusOr<std::vector<PortAddress>> ReadAddressesAgain();
  static void Tell(const Subscription& subscription, ibv_event_type type);
  void Dispatch(ibv_event_type type, uint32_t qpn);
  void DispatchToQueue(ibv_event_type type, const void* queue);
  void DispatchToQueues(ibv_event_type type);
  void DispatchToAll(ibv_event_type type);

  Device& device_;
  const RdmaOptions rdma_;
  const FailureHandler on_failure_;
  PdHandle pd_;
  std::unique_ptr<QpConnector> owned_connector_;
  QpConnector* connector_ = nullptr;
  std::unique_ptr<ControlPool> control_;
  std::mutex reread_mutex_;   // held from reading the port's address until it is kept
  mutable std::mutex mutex_;  // guards what follows; taken after reread_mutex_
  PortAddress address_;
  std::vector<PortAddress> alike_;  // DevicePort::alike, as far as they are there
  absl::Status port_status_;
  absl::flat_hash_map<uint32_t, Subscription> subscriptions_;
  absl::flat_hash_map<const void*, Subscription> queue_subscriptions_;
  int stop_fd_ = -1;
  std::thread thread_;
};

}  // namespace verbena::internal

namespace verbena {

// RegisterMemory: a user's memory, registered without holding up an executor.
//
// Programs use Runtime::RegisterMemory(), which calls this. Registering a gibibyte takes 0.3 s and
// more. RegisteredMemory::Register() blocks its thread for that time: use it for set-up only. These
// Tasks run on any executor, and do the work on the device's control threads.
//
//   VERBENA_CO_ASSIGN_OR_RETURN(std::unique_ptr<RegisteredMemory> cache,
//                               co_await RegisterMemory(context, memory, bytes, access));
//   co_await DeregisterMemory(context, std::move(cache));

class Scheduler;

}  // namespace verbena

namespace verbena::internal {

// Registers `memory` as RegisteredMemory::Register() does. `home`: the executor whose O_DIRECT
// files use it as a fixed buffer, or nullptr. `memory` must stay mapped until this Task has ended.
// If the Task is cancelled or destroyed first, keep the memory mapped until the context is
// destroyed: the registration ends by then. The context must outlive the result.
Task<absl::StatusOr<std::unique_ptr<RegisteredMemory>>> RegisterMemory(const DeviceContext& context,
                                                                       void* memory, size_t bytes,
                                                                       int access,
                                                                       Scheduler* home = nullptr);

// Deregisters `memory`, even if the Task is given up after it began. Precondition: no Buffer of it
// is in use. If it has a home, call this on that executor.
Task<void> DeregisterMemory(const DeviceContext& context, std::unique_ptr<RegisteredMemory> memory);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_DEVICE_CONTEXT_H_
