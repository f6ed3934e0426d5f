// Endpoint: all links of one executor on one device. It owns their completion queue, receives, send
// buffers and credit pool, and finds the link that a completion belongs to. EndpointQueues and
// ServiceState are parts of it.
//
// One per executor and device, used on the executor's thread. Connect() and Accept() run a
// LinkHandshake over a bootstrap stream, which then stays open for the life of the link. Shutdown()
// must have ended before it is destroyed; the device context and the executor outlive it.
//
//   VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Endpoint> endpoint,
//                            Endpoint::Create(executor, device_context, LinkLimits{}));
//   absl::StatusOr<Link*> link = co_await endpoint->Connect(std::move(stream), listener, {});

#ifndef VERBENA_TRANSPORT_LINK_ENDPOINT_H_
#define VERBENA_TRANSPORT_LINK_ENDPOINT_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/random.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/turn_pacer.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/endpoint_memory.h"
#include "verbena/transport/link/handshake.h"
#include "verbena/transport/link/host.h"
#include "verbena/transport/link/ids.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/links.h"
#include "verbena/transport/link/payload_memory.h"
#include "verbena/transport/link/peer_source.h"
#include "verbena/transport/link/qp.h"
#include "verbena/transport/link/receives.h"
#include "verbena/transport/link/stats.h"
#include "verbena/transport/link/supplies.h"

namespace verbena::internal {

// EndpointQueues: the completion queue and the receives of one endpoint, and the search for
// receives that a device loses from a shared receive queue.
//
// On a device without shared receive queues the ring is absent, and link_receives() has the buffers
// of the links' own queues, which stay when the completion queue is replaced.
//
// A device may lose either (CQ_ERR, SRQ_ERR). The endpoint then waits until no queue pair uses
// them, and calls Exchange(). Part of an Endpoint, on its executor's thread. Close() or
// TakeReceives() ends its use.
class EndpointQueues {
 public:
  // All outlive it. `listener` hears the completions. `executor_index` is the executor's in its
  // runtime.
  EndpointQueues(Executor& executor, DeviceContext& context, const LinkLimits& limits,
                 uint32_t executor_index, LinkTable& links, CompletionListener& listener);

  // The receives of an endpoint. Takes the device long, and runs on any thread.
  static absl::StatusOr<std::unique_ptr<ReceiveRing>> NewRing(DeviceContext& context,
                                                              const LinkLimits& limits);

  // The receives of links with a queue each, made as by NewRing(); nullptr on a device that has
  // shared receive queues.
  static absl::StatusOr<std::unique_ptr<LinkReceives>> NewLinkReceives(DeviceContext& context,
                                                                       const LinkLimits& limits);

  // Makes the completion queue, and takes the receives. The first call.
  absl::Status Create(std::unique_ptr<ReceiveRing> ring,
                      std::unique_ptr<LinkReceives> link_receives = nullptr);
  // Replaces both queues: `ring` is the former one afterwards, and nobody is subscribed. If this
  // fails, nothing has changed, subscriptions included. Precondition: no queue pair uses the
  // queues.
  absl::Status Exchange(std::unique_ptr<ReceiveRing>& ring);

  ibv_cq* cq() const { return cq_; }
  ReceiveRing& receives() { return *receives_; }
  const ReceiveRing& receives() const { return *receives_; }
  // nullptr on a device that has shared receive queues.
  LinkReceives* link_receives() { return link_receives_.get(); }
  const LinkReceives* link_receives() const { return link_receives_.get(); }
  LostReceives& lost_receives() { return lost_receives_; }

  // `handler` hears, on the executor, when a queue is lost, or all of the device is.
  void Subscribe(const DeviceContext::EventHandler& handler);
  void Unsubscribe();

  // How often the queues were replaced.
  uint32_t number() const { return number_; }
  // The queues in use are lost.
  bool are_lost() const { return are_lost_; }
  void MarkLost() { are_lost_ = true; }

  // Destroys the completion queue, and hands the receives to the caller. No completion comes any
  // more. Precondition: Unsubscribe() was called.
  std::unique_ptr<ReceiveRing> TakeReceives();
  // The same for the receives of links, which may be none. Precondition: TakeReceives() was called.
  std::unique_ptr<LinkReceives> TakeLinkReceives() { return std::move(link_receives_); }
  // Unsubscribes and destroys both, unless TakeReceives() was called.
  void Close();

 private:
  absl::StatusOr<ibv_cq*> NewCq();
  void RemoveCq();

  Executor& executor_;
  DeviceContext& context_;
  const LinkLimits& limits_;
  const int comp_vector_;  // of the CQ
  CompletionListener& listener_;
  ibv_cq* cq_ = nullptr;
  std::unique_ptr<ReceiveRing> receives_;
  std::unique_ptr<LinkReceives> link_receives_;
  LostReceives lost_receives_;
  uint32_t number_ = 0;
  bool are_lost_ = false;
};

// ServiceState: whether an endpoint can make links, and if not, why.
//
// An endpoint is in service, or suspended while lost queues are replaced, or failed for good with
// its device. Independently of these, it may be shutting down. Part of an Endpoint; one thread.
class ServiceState {
 public:
  bool in_service() const { return !shutting_down_ && reason_.ok(); }
  bool shutting_down() const { return shutting_down_; }
  bool failed() const { return failed_; }
  // Why no link can be made; OK in service.
  absl::Status Check() const {
    return shutting_down_ ? absl::UnavailableError("the endpoint is shutting down") : reason_;
  }
  // Why the endpoint is suspended or failed; OK otherwise, even while it shuts down.
  const absl::Status& reason() const { return reason_; }

  void ShutDown() { shutting_down_ = true; }
  // The device has failed: nothing brings the endpoint back.
  void Fail(const absl::Status& reason) {
    failed_ = true;
    reason_ = reason;
  }
  // Takes the endpoint out of service until Resume(). Returns false, and keeps the earlier reason,
  // if it was suspended or had failed already.
  bool Suspend(const absl::Status& reason) {
    if (!reason_.ok()) return false;
    reason_ = reason;
    return true;
  }
  // Precondition: not failed().
  void Resume() {
    VERBENA_CHECK(!failed_) << "a failed device does not come back";
    reason_ = absl::OkStatus();
  }

 private:
  absl::Status reason_;
  bool failed_ = false;
  bool shutting_down_ = false;
};

class Endpoint final : public LinkHost, private CompletionListener, private FlushHook {
 public:
  static absl::StatusOr<std::unique_ptr<Endpoint>> Create(
      Executor& executor, DeviceContext& context, const LinkLimits& wanted,
      uint32_t executor_index = 0, uint32_t executor_count = 1,
      const RuntimeId& id = RuntimeId::Random());
  // The same in two steps. Register() may take long, and runs on any thread.
  static absl::StatusOr<EndpointMemory> Register(DeviceContext& context, const LinkLimits& wanted);
  static absl::StatusOr<std::unique_ptr<Endpoint>> CreateWith(
      EndpointMemory memory, Executor& executor, DeviceContext& context, const LinkLimits& wanted,
      uint32_t executor_index, uint32_t executor_count, const RuntimeId& id);
  ~Endpoint() override;

  // The client's side: offers a link over `stream`. `wish` asks for an executor of the peer's.
  // Except over shared memory, the link first proves that it carries SENDs (proof.h), within
  // `proof_time` and LinkLimits::connect_timeout. UNAVAILABLE: it does not.
  Task<absl::StatusOr<Link*>> Connect(std::unique_ptr<MessageStream> stream, LinkListener& listener,
                                      ExecutorWish wish, Duration proof_time = Duration::max());
  // The server's side, after the offer was read (it may have been read on another executor).
  // `methods` are the server's, at most kMaxMethods, borrowed until the Task ends; `incarnation` is
  // the server's, or 0.
  Task<absl::StatusOr<Link*>> Accept(std::unique_ptr<MessageStream> stream, LinkParameters offer,
                                     LinkListener& listener,
                                     std::span<const OfferedMethod> methods = {},
                                     uint64_t incarnation = 0);

  // Closes every link and waits until all queue pairs are gone.
  Task<void> Shutdown();

  // How to end an endpoint whose device is no longer used, while buffers and coroutines may still
  // refer to the endpoint: call Retire(), wait until it is unused(), await Release(), then destroy
  // it.
  //
  // Closes every link with `reason`, and makes no more.
  void Retire(const absl::Status& reason);
  // Whether no link is left.
  bool drained() const { return links_.count() == 0 && link_tasks_.size() == 0; }
  // Whether nobody refers to it any more: no link, no buffer, no waiting coroutine.
  bool unused() const;
  // Gives everything that the endpoint has back to the device, on a control thread.
  Task<void> Release();
  // Held by a coroutine that refers to the endpoint, or to its pools, beyond a wait.
  [[nodiscard]] std::shared_ptr<const bool> Use() const { return users_; }

  const std::string& device_name() const { return context().device().name(); }
  // The memory of the payloads that its links move.
  const PayloadMemory& memory() const { return *memory_; }
  EndpointStats stats() const;
  // Calls `use` for each link, also one that is being made or torn down. For reports: there may be
  // thousands.
  void ForEachLink(absl::FunctionRef<void(const Link& link)> use) const {
    for (const LinkSlot& slot : links_.slots()) {
      if (slot.link != nullptr) use(*slot.link);
    }
  }
  // The number of leases that have not ended, on all links.
  size_t leases() const;
  // The link of that key when it is open(), else nullptr.
  Link* OpenLink(LinkKey key);

  // Open as long as the endpoint lives, for objects that may outlive it.
  const std::shared_ptr<ExecutorGate>& gate() const { return gate_; }
  // Expires with the endpoint. For objects on its own thread: unlike gate(), it needs no lock.
  std::weak_ptr<const bool> alive() const { return alive_; }

 private:
  Endpoint(Executor& executor, DeviceContext& context, const LinkLimits& derived,
           const EndpointIdentity& identity, SendMemory memory);
  absl::Status Init(std::unique_ptr<ReceiveRing> receives,
                    std::unique_ptr<LinkReceives> link_receives);

  // LinkHost.
  void WatchLiveness(WatchedLink& link) override { liveness_.Watch(link); }
  void OnLinkOpened() override {
    ++stats_.links_opened;
    liveness_.Start();
  }
  void OnCreditsBorrowed() override { UpdateReceiveTarget(); }
  void StartRefill(LinkKey key, const void* order, uint32_t count,
                   std::vector<MwHandle> worn) override {
    link_tasks_.Spawn(Refill(key, order, count, std::move(worn)));
  }
  void StartTeardown(Link& link, const absl::Status& reason) override;
  bool PostReceives() override;

  void OnCompletions(const ibv_wc* completions, int count) override;
  void OnReceive(const ibv_wc& completion, uint32_t buffer);
  // The same for a link with a receive queue of its own.
  void OnLinkReceive(const ibv_wc& completion, const WrId& id);
  void OnSendDone(const ibv_wc& completion, const WrId& id);
  void Flush() override;

  absl::StatusOr<uint32_t> TakeSlot();
  // The device's part of a link: windows are destroyed before their queue pair.
  struct DeviceParts {
    QpHandle qp;
    WindowBatch windows;
  };
  absl::StatusOr<DeviceParts> MakeParts(const PortAddress& address);
  Task<absl::StatusOr<DeviceParts>> NewParts(PortAddress address);
  // To the peer of `stream`.
  Task<absl::StatusOr<Link*>> NewLink(LinkListener& listener, const MessageStream& stream);
  void OnQpEvent(Link& link, ibv_event_type type);
  // Has OnQueueEvent() called when one of our queues is lost, or all of the device is.
  void SubscribeQueues();
  // `queues` are those that it was subscribed for.
  void OnQueueEvent(ibv_event_type type, uint32_t queues);
  void CloseAll(const absl::Status& reason);
  // The device has failed.
  void Fail(const absl::Status& reason);
  // Closes every link, and has the queues replaced.
  void LoseQueues(const char* reason);
  // Makes new queues to replace lost ones, once nothing uses the lost ones any more.
  Task<void> Rebuild();
  Task<absl::Status> ReplaceQueues();
  // Waits until no queue pair is being made on our queues.
  Task<void> AwaitMaking();
  void Watch(Link& link, std::unique_ptr<MessageStream> stream);
  Task<void> WatchStream(Link& link);
  Task<void> Refill(LinkKey key, const void* order, uint32_t count, std::vector<MwHandle> worn);
  Task<void> Teardown(Link& link);
  void FreeLink(Link& link, bool told_of_last, QpIdentity identity);
  // The queue pair of the link in `slot` had a receive queue of its own, and is destroyed, if the
  // device could do that. False if it may still write into receives of the slot.
  bool EndLinkReceives(uint32_t slot, QpIdentity identity);
  // Handles the completions that are there.
  void DrainCompletions();
  // Call after anything that may have proved receives to be lost.
  void SettleReceives();
  void Hold(QpIdentity qp, uint32_t qpn, std::vector<BufferPin> leased);
  Task<void> HoldUntilQuiesced(QpIdentity qp, std::vector<BufferPin> leased);
  // nullptr if the key's link is gone.
  Link* Find(LinkKey key) const { return links_.Find(key); }
  void UpdateReceiveTarget();
  void ScheduleFlush() { executor().FlushLater(*this, Executor::FlushPriority::kReceives); }

  const EndpointIdentity identity_;
  std::optional<PayloadMemory> memory_;
  LinkTable links_;
  EndpointQueues queues_;
  ServiceState service_;
  EndpointStats stats_;  // its `traffic` counts only links that are gone
  // Asynchronous events of the device may still be on their way when the endpoint is gone: they
  // pass through the gate, which the destructor closes.
  const std::shared_ptr<ExecutorGate> gate_;
  const std::shared_ptr<const bool> alive_ = std::make_shared<bool>(true);
  const std::shared_ptr<const bool> users_ = std::make_shared<bool>(true);
  // Shutdown() joins both scopes: no task outlives the endpoint. An exception that leaves a task is
  // logged there.
  TurnPacer teardown_pacer_;
  TaskScope link_tasks_;  // watches of bootstrap streams, refills of windows, and teardowns
  TaskScope holds_;       // memory that a lost link's peer may still write to; replacing queues
  LivenessRound liveness_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_ENDPOINT_H_
