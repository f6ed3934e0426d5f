// Endpoint: all links of one executor on one device. It owns their completion queue, receives, send
// buffers and credit pool, and finds the link that a completion belongs to.
//
// One per executor and device, used on the executor's thread. Connect() and Accept() run the
// handshake over a bootstrap stream, which then stays open for the life of the link. Shutdown()
// must have ended before it is destroyed; the device context and the executor outlive it.
//
//   VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Endpoint> endpoint,
//                            Endpoint::Create(executor, device_context, LinkLimits{}));
//   absl::StatusOr<Link*> link = co_await endpoint->Connect(std::move(stream), listener, {});

#ifndef VERBENA_TRANSPORT_LINK_ENDPOINT_H_
#define VERBENA_TRANSPORT_LINK_ENDPOINT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/random.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/connect/qp_connector.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/endpoint_life.h"
#include "verbena/transport/link/endpoint_queues.h"
#include "verbena/transport/link/endpoint_tasks.h"
#include "verbena/transport/link/host.h"
#include "verbena/transport/link/ids.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/links.h"
#include "verbena/transport/link/payload_memory.h"
#include "verbena/transport/link/peer_host.h"
#include "verbena/transport/link/qp.h"
#include "verbena/transport/link/receives.h"
#include "verbena/transport/link/service_state.h"
#include "verbena/transport/link/stats.h"
#include "verbena/transport/link/supplies.h"
#include "verbena/transport/memory/carved_arena.h"

namespace verbena::internal {

// Memory and queues that an endpoint registers with its device when it is made. Move-only; any
// thread.
struct EndpointMemory {
  std::unique_ptr<ReceiveRing> receives;
  SendMemory send;
  // For payloads. None when an endpoint is made: its pools grow by themselves.
  std::vector<std::unique_ptr<CarvedArena>> arenas = {};
  // On a device without shared receive queues.
  std::unique_ptr<LinkReceives> link_receives = nullptr;
};

// The place of an endpoint among those of its runtime, as the handshake names it.
struct EndpointIdentity {
  uint32_t executor_index;
  uint32_t executor_count;
  RuntimeId runtime_id;
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
  Task<absl::StatusOr<Link*>> Connect(std::unique_ptr<MessageStream> stream, LinkListener& listener,
                                      ExecutorWish wish);
  // The server's side, after the offer was read (it may have been read on another executor).
  // `methods` are the ids of the server's, at most kMaxMethods, borrowed until the Task ends;
  // `incarnation` is the server's, or 0.
  Task<absl::StatusOr<Link*>> Accept(std::unique_ptr<MessageStream> stream, LinkParameters offer,
                                     LinkListener& listener, std::span<const uint64_t> methods = {},
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
  bool drained() const { return links_.count() == 0 && tasks_.links.size() == 0; }
  // Whether nobody refers to it any more: no link, no buffer, no waiting coroutine.
  bool unused() const;
  // Gives everything that the endpoint has back to the device, on a control thread.
  Task<void> Release();
  // Held by a coroutine that refers to the endpoint, or to its pools, beyond a wait.
  [[nodiscard]] std::shared_ptr<const bool> Use() const { return life_.Use(); }

  const std::string& device_name() const { return context_.device().name(); }
  // The memory of the payloads that its links move.
  const PayloadMemory& memory() const { return *memory_; }
  EndpointStats stats() const;
  // The number of leases that have not ended, on all links.
  size_t leases() const;
  // The link of that key when it is open(), else nullptr.
  Link* OpenLink(LinkKey key);

  // Open as long as the endpoint lives, for objects that may outlive it.
  const std::shared_ptr<ExecutorGate>& gate() const { return life_.gate(); }
  // Expires with the endpoint. For objects on its own thread: unlike gate(), it needs no lock.
  std::weak_ptr<const bool> alive() const { return life_.alive(); }

 private:
  Endpoint(Executor& executor, DeviceContext& context, const LinkLimits& limits,
           const EndpointIdentity& identity, SendMemory memory);
  absl::Status Init(std::unique_ptr<ReceiveRing> receives,
                    std::unique_ptr<LinkReceives> link_receives);

  // LinkHost.
  void WatchLiveness(WatchedLink& link) override { liveness_.Watch(link); }
  void OnCreditsBorrowed() override { UpdateReceiveTarget(); }
  void StartRefill(LinkKey key, const void* order, uint32_t count,
                   std::vector<MwHandle> worn) override {
    tasks_.links.Spawn(Refill(key, order, count, std::move(worn)));
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
  const PortAddress& AddressOf(const Link& link) const { return links_.slot(link.key()).address; }
  // To the peer of `stream`.
  Task<absl::StatusOr<Link*>> NewLink(LinkListener& listener, const MessageStream& stream);
  // Awaits verbs on the link's queue pair, which run on a control thread. The link may be gone when
  // the coroutine resumes. kResolve is for verbs that take the queue pair to RTR: each source has a
  // share of the threads that run these.
  template <typename Verbs>
  ControlPool::Awaiter<Verbs> OnQp(ControlKind kind, const Link& link, Verbs verbs) {
    const bool resolves = kind == ControlKind::kResolve;
    if (resolves) links_.slot(link.key()).may_receive = true;
    return context_.control().Run(kind, link.qp().get(), std::move(verbs),
                                  resolves ? link.source().name : std::string());
  }
  Task<absl::Status> Offer(LinkKey key, MessageStream& stream, ExecutorWish wish,
                           LinkParameters& peer);
  // The server's last step: its queue pair sends once the client is ready, not before.
  Task<absl::Status> AwaitClientsReady(LinkKey key, MessageStream& stream, uint32_t psn,
                                       uint8_t peer_reads);
  Task<absl::Status> Answer(LinkKey key, MessageStream& stream, const LinkParameters& offer,
                            std::span<const uint64_t> methods, uint64_t incarnation);
  LinkParameters MyParameters(Link& link, uint32_t psn) const;
  HandshakeOptions MyOptions(const MessageStream& stream) const;
  // A client's queue pair to RTS, a server's to RTR.
  Task<absl::Status> ConnectQp(const Link& link, uint32_t psn, const LinkParameters& peer);
  Task<absl::Status> ReceiveOnQp(const Link& link, uint32_t psn, const LinkParameters& peer);
  ConnectableQp Connectable(const Link& link, const LinkParameters& peer);
  // `client` is the name by which a server knows its peer; nullptr at the client.
  Task<absl::Status> ConnectManaged(LinkKey key, std::shared_ptr<QpConnection> connection,
                                    const LinkParameters& peer, const std::string* client);
  void OnQpEvent(Link& link, ibv_event_type type);
  void MarkOpen(Link& link, const LinkParameters& peer, const std::string& name,
                FirstSend first_send);
  void CloseIfThere(LinkKey key, const char* reason);
  static absl::Status Lost();
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
  void ScheduleFlush() { executor_.FlushLater(*this, Executor::FlushPriority::kReceives); }

  const EndpointIdentity identity_;
  std::optional<PayloadMemory> memory_;
  LinkTable links_;
  EndpointQueues queues_;
  ServiceState service_;
  EndpointStats stats_;  // its `traffic` counts only links that are gone
  EndpointLife life_;
  EndpointTasks tasks_;
  LivenessRound liveness_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_ENDPOINT_H_
