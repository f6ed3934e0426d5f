// Endpoint: all links of one executor on one device. It owns their shared receive queue, completion
// queue, send buffers and credit pool, and finds the link that a completion belongs to.
//
// One per executor and device, used on the executor's thread. Connect() and Accept() run the
// handshake over a bootstrap stream, which then stays open for the life of the link. Shutdown()
// must have ended before it is destroyed; the device context and the executor outlive it.
//
//   VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Endpoint> endpoint,
//                            Endpoint::Create(executor, device_context, LinkLimits{}));
//   absl::StatusOr<Link*> link = co_await endpoint->Connect(std::move(stream), sink, {});

#ifndef VERBENA_TRANSPORT_LINK_ENDPOINT_H_
#define VERBENA_TRANSPORT_LINK_ENDPOINT_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/connect/qp_connector.h"
#include "verbena/transport/coro/deadline.h"
#include "verbena/transport/coro/event.h"
#include "verbena/transport/coro/random.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/coro/task_scope.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/link/atomic_landings.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/payload_memory.h"
#include "verbena/transport/link/qp_setup.h"
#include "verbena/transport/link/receive_ring.h"
#include "verbena/transport/link/send_buffers.h"
#include "verbena/transport/link/send_chain.h"
#include "verbena/transport/link/stats.h"
#include "verbena/transport/link/wr_id.h"

namespace verbena {

class Endpoint final : private CompletionSink, private FlushHook, private Timer {
 public:
  static absl::StatusOr<std::unique_ptr<Endpoint>> Create(Executor& executor,
                                                          DeviceContext& context,
                                                          const LinkLimits& wanted,
                                                          uint32_t executor_index = 0,
                                                          uint32_t executor_count = 1);
  ~Endpoint() override;

  // The client's side: offers a link over `stream`. `wanted_executor` asks for one of the peer's.
  Task<absl::StatusOr<Link*>> Connect(std::unique_ptr<MessageStream> stream, FrameSink& sink,
                                      uint32_t wanted_executor);
  // The server's side, after the offer was read (it may have been read on another executor).
  Task<absl::StatusOr<Link*>> Accept(std::unique_ptr<MessageStream> stream, LinkParameters offer,
                                     FrameSink& sink);

  // Closes every link and waits until all queue pairs are gone.
  Task<void> Shutdown();

  Executor& executor() const { return executor_; }
  const LinkLimits& limits() const { return limits_; }
  const std::string& device_name() const { return context_.device().name(); }
  // Where payloads lie that its links move.
  const PayloadMemory& memory() const { return *memory_; }
  EndpointStats stats() const;
  // That are granted and have not ended, on all links.
  size_t leases() const;
  // The link of that key when it is open(), else nullptr.
  Link* OpenLink(LinkKey key);

  // Expires with it, for what may outlive it.
  std::weak_ptr<const bool> alive() const { return alive_; }

  // For Link.
  Device& device() const { return context_.device(); }
  ibv_pd* pd() const { return context_.pd(); }
  CreditPool& credit_pool() { return credit_pool_; }
  SendBuffers& send_buffers() { return *send_buffers_; }
  SendChain& send_chain() { return *send_chain_; }
  TransferPool& transfers() { return transfers_; }
  const AtomicLandings& atomic_landings() const { return atomic_landings_; }
  uint32_t max_inline_bytes() const { return max_inline_bytes_; }
  uint32_t max_wr_bytes() const { return max_wr_bytes_; }
  // Lends `grants` more if there is more, else asks idle links for theirs.
  void GrowWindow(ReceiveGrants& grants);
  // `link` waits for send buffers; NoteSendRoom() tells those who wait that there may be some.
  void AwaitSendRoom(Link& link);
  void NoteSendRoom() {
    if (!room_waiters_.empty()) WakeRoomWaiters();
  }
  void StartTeardown(Link& link, const absl::Status& reason);
  // The completion that is being handled is the only one that this turn's poll found.
  bool handles_one_completion() const { return one_completion_; }
  // Nobody waits for what a SEND before the turn's end would take, and the receives are posted
  // whose credits it would return.
  bool MaySendNow() const { return room_waiters_.empty() && !receives_->needs_post(); }

 private:
  struct Slot {
    std::unique_ptr<Link> link;
    uint32_t generation = 0;
  };

  Endpoint(Executor& executor, DeviceContext& context, const LinkLimits& limits,
           const PortAddress& address, uint32_t executor_index, uint32_t executor_count);
  absl::Status Init();

  void OnCompletions(const ibv_wc* completions, int count) override;
  void OnReceive(const ibv_wc& completion, uint32_t buffer);
  void OnSendDone(const ibv_wc& completion, const WrId& id);
  void Flush() override;
  void OnTimer() override;

  absl::StatusOr<Link*> NewLink(FrameSink& sink);
  Task<absl::Status> Offer(LinkKey key, MessageStream& stream, uint32_t wanted_executor,
                           LinkParameters& peer);
  Task<absl::Status> Answer(Link& link, MessageStream& stream, const LinkParameters& offer);
  LinkParameters MyParameters(Link& link, uint32_t psn) const;
  HandshakeOptions MyOptions() const;
  absl::Status ConnectQp(Link& link, uint32_t psn, const LinkParameters& peer);
  ConnectableQp Connectable(const Link& link, const LinkParameters& peer);
  // `client` is how a server names its peer; nullptr at the client.
  Task<absl::Status> ConnectManaged(LinkKey key, std::shared_ptr<QpConnection> connection,
                                    const LinkParameters& peer, const std::string* client);
  void OnQpEvent(Link& link, ibv_event_type type);
  void MarkOpen(Link& link, const LinkParameters& peer, const std::string& name,
                FirstSend first_send);
  void CloseIfThere(LinkKey key, const char* reason);
  static absl::Status Lost();
  void StartLivenessTimer();
  static uint32_t NewPsn();
  static Task<absl::Status> WaitFor(Event& event);
  void Watch(Link& link, std::unique_ptr<MessageStream> stream);
  Task<void> WatchStream(Link& link);
  Task<void> Teardown(Link& link);
  void FreeLink(Link& link);
  void Hold(uint32_t qpn, std::vector<BufferPin> leased);
  Task<void> HoldUntilQuiesced(uint32_t qpn, std::vector<BufferPin> leased);
  // nullptr when that link is gone, and its slot perhaps another's.
  Link* Find(LinkKey key);
  void UpdateReceiveTarget();
  void WakeRoomWaiters();
  void ScheduleFlush() { executor_.FlushLater(*this, Executor::FlushPriority::kReceives); }

  Executor& executor_;
  DeviceContext& context_;
  const LinkLimits limits_;
  const PortAddress address_;
  const uint32_t executor_index_;
  const uint32_t executor_count_;
  const uint32_t max_inline_bytes_;
  const uint32_t max_wr_bytes_;  // of a WR of a transfer
  ibv_cq* cq_ = nullptr;
  std::unique_ptr<ReceiveRing> receives_;
  std::unique_ptr<SendBuffers> send_buffers_;
  std::optional<SendChain> send_chain_;
  CreditPool credit_pool_;
  TransferPool transfers_;
  AtomicLandings atomic_landings_;
  std::optional<PayloadMemory> memory_;

  std::vector<Slot> slots_;
  std::deque<uint32_t> free_slots_;  // reused late, first in, first out
  absl::flat_hash_map<uint32_t, Link*> links_by_qpn_;
  Link* last_receiver_ = nullptr;  // the link of the last receive: usually of the next one too
  std::vector<Link*> room_waiters_;
  bool one_completion_ = false;
  bool shutting_down_ = false;
  bool timer_running_ = false;
  EndpointStats stats_;
  LinkStats closed_traffic_;  // of links that are gone
  // Asynchronous events of the device may still be on their way here when this is gone.
  std::shared_ptr<bool> alive_;
  TaskScope tasks_;  // stream watches and teardowns
  TaskScope holds_;  // memory that a lost link's peer may still be writing to
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_LINK_ENDPOINT_H_
