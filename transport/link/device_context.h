// DeviceContext: what the endpoints of one process share of a device: its protection domain, the
// address that peers reach it by, its connection manager, and the reader of its asynchronous
// events.
//
// Owned by whoever opened the device, and outlives every endpoint on it. Events are read by a
// thread of its own, which copies what is needed, acknowledges at once (destroying a queue pair
// waits for that), and hands it to the owner's executor. Without that thread (a simulated device)
// teardown reads them.

#ifndef VERBENA_TRANSPORT_LINK_DEVICE_CONTEXT_H_
#define VERBENA_TRANSPORT_LINK_DEVICE_CONTEXT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "verbena/transport/connect/qp_connector.h"
#include "verbena/transport/device/handles.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/link/qp_setup.h"

namespace verbena {

class DeviceContext {
 public:
  struct Options {
    bool event_thread = true;
    // How queue pairs are connected: "exchange", by the numbers of the handshake; "rdma_cm",
    // through rdma_cm where the peer can, too; "auto" (or ""), what the environment variable
    // VERBENA_CONNECT says, else rdma_cm on iWARP, which knows no other way, and the exchange on
    // all else. The soft device always exchanges.
    std::string connect = "auto";
    // Not owned; instead of the above.
    QpConnector* use_connector = nullptr;
  };

  // INVALID_ARGUMENT names a way of connecting that does not exist.
  static absl::StatusOr<std::unique_ptr<DeviceContext>> Create(Device& device,
                                                               const Options& options);
  ~DeviceContext();

  Device& device() const { return device_; }
  ibv_pd* pd() const { return pd_.get(); }
  const PortAddress& address() const { return address_; }

  // nullptr: queue pairs are connected by the numbers of the handshake.
  QpConnector* connector() const { return connector_; }

  // Calls `handler` on `executor` for each event of the queue pair, until Unsubscribe(). Events of
  // CQs and SRQs are logged: with credits and reserved CQ slots they mean a fault of ours. So are
  // those of ports: a port that is down ends no link before its retries are used up. When the
  // device fails or is removed, every handler is called.
  using EventHandler = std::function<void(ibv_event_type)>;
  void Subscribe(uint32_t qpn, Executor& executor, EventHandler handler);
  // An event that is under way to the executor may still arrive after this.
  void Unsubscribe(uint32_t qpn);

  // Reads and dispatches what is there, without blocking.
  void PollEvents();
  // The same when there is no thread that does.
  void PollEventsIfUnattended() {
    if (!thread_.joinable()) PollEvents();
  }

 private:
  struct Subscription {
    Executor* executor;
    EventHandler handler;
  };

  DeviceContext(Device& device, PdHandle pd, const PortAddress& address);
  absl::Status StartThread();
  absl::Status ChooseConnector(const Options& options);
  void ReadEvents();
  void Dispatch(ibv_event_type type, uint32_t qpn);
  void DispatchToAll(ibv_event_type type);

  Device& device_;
  PdHandle pd_;
  const PortAddress address_;
  std::unique_ptr<QpConnector> owned_connector_;
  QpConnector* connector_ = nullptr;
  std::mutex mutex_;  // guards subscriptions_
  absl::flat_hash_map<uint32_t, Subscription> subscriptions_;
  int stop_fd_ = -1;
  std::thread thread_;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_LINK_DEVICE_CONTEXT_H_
