// LinkHandshake: one side's handshake of one link, until the link is open.
//
// It tells the peer what this side's queue pair is, connects that queue pair to the peer's, and
// opens the link. transport/connect/handshake.h has the messages; this class has their order among
// the verbs and the states of the link. Without a connection manager:
//
//   client: Offer()                          server: Answer()
//     offers the link              ----->      takes its queue pair to RTR
//                                              opens the link, which may not send yet
//     takes its queue pair to RTS  <-----      accepts the offer
//     opens the link
//     says that it is ready        ----->      takes its queue pair to RTS: the link may send
//
// With one (qp_connector.h), the server's link opens before the manager lets the client send, and
// the client's before it says that it is ready.
//
// Owned by the coroutine of Endpoint::Connect() or Endpoint::Accept(), on the thread of the
// endpoint's executor. It owns the bootstrap stream until TakeStream(). It never holds the link
// across an await, because the link may be lost meanwhile: then the handshake fails with
// UNAVAILABLE. Unless TakeStream() was called, its destructor closes the stream and the link: also
// after an exception, or if the coroutine is destroyed. The endpoint then takes the link down. The
// handshake can be cancelled at every await, and has no time limit of its own: put WithDeadline
// around. There is at most one for each link that is being made, so
// LinkLimits::max_links bounds them.
//
//   LinkHandshake handshake(*this, links_, gate_, identity_, link->key(), std::move(stream));
//   VERBENA_CO_ASSIGN_OR_RETURN(Link * open,
//                               co_await WithDeadline(handshake.Offer(wish), deadline));
//   Watch(*open, handshake.TakeStream());

#ifndef VERBENA_TRANSPORT_LINK_HANDSHAKE_H_
#define VERBENA_TRANSPORT_LINK_HANDSHAKE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/connect/qp_connector.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/device/control_pool.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/host.h"
#include "verbena/transport/link/ids.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/links.h"
#include "verbena/transport/link/qp.h"
#include "verbena/transport/link/sender.h"

namespace verbena::internal {

// The place of an endpoint among those of its runtime, as the handshake names it.
struct EndpointIdentity {
  uint32_t executor_index;
  uint32_t executor_count;
  RuntimeId runtime_id;
};

class LinkHandshake {
 public:
  // For the link of that key, which is in `links`; its peer is at the other end of `stream`.
  // `host`, `links` and `identity` are the endpoint's, and outlive the handshake and its link;
  // `gate` closes before they end.
  LinkHandshake(LinkHost& host, LinkTable& links, std::shared_ptr<ExecutorGate> gate,
                const EndpointIdentity& identity, LinkKey key,
                std::unique_ptr<MessageStream> stream);
  LinkHandshake(const LinkHandshake&) = delete;
  LinkHandshake& operator=(const LinkHandshake&) = delete;
  ~LinkHandshake();

  // Call one of the two, once, right after the link was made. Both return the link, which is open.

  // The client's side: offers the link. `wish` asks for an executor of the peer's.
  Task<absl::StatusOr<Link*>> Offer(ExecutorWish wish);
  // The server's side. `offer`, `methods` and `incarnation` as for Endpoint::Accept().
  Task<absl::StatusOr<Link*>> Answer(LinkParameters offer, std::span<const OfferedMethod> methods,
                                     uint64_t incarnation);

  // The stream, for the link to keep. Precondition: Offer() or Answer() has returned the link.
  std::unique_ptr<MessageStream> TakeStream() { return std::move(stream_); }

 private:
  static absl::Status Lost();
  // nullptr if the link is gone.
  Link* Find() const { return links_.Find(key_); }
  // nullptr if the link is gone, or is in another state.
  Link* FindIn(LinkState state) const;

  LinkParameters MyParameters(Link& link) const;
  HandshakeOptions MyOptions() const;

  Task<absl::Status> AnswerOffer(const LinkParameters& offer,
                                 std::span<const OfferedMethod> methods, uint64_t incarnation);
  // The server's last step: its queue pair sends once the client is ready, not before.
  Task<absl::Status> AwaitClientsReady(uint8_t peer_reads);

  // A client's queue pair to RTS, a server's to RTR.
  Task<absl::Status> ConnectQp(const Link& link, const LinkParameters& peer);
  Task<absl::Status> ReceiveOnQp(const Link& link, const LinkParameters& peer);
  ConnectableQp Connectable(const Link& link, const LinkParameters& peer) const;
  // `client` is the name by which a server knows its peer; nullptr at the client.
  Task<absl::Status> ConnectManaged(std::shared_ptr<QpConnection> connection,
                                    const LinkParameters& peer, const std::string* client);
  // Awaits verbs on the link's queue pair, which run on a control thread. The link may be gone when
  // the coroutine resumes. kResolve is for verbs that take the queue pair to RTR: each source has a
  // share of the threads that run these.
  template <typename Verbs>
  ControlPool::Awaiter<Verbs> OnQp(ControlKind kind, const Link& link, Verbs verbs) {
    const bool resolves = kind == ControlKind::kResolve;
    if (resolves) links_.slot(key_).may_receive = true;
    return context().control().Run(kind, link.qp().get(), std::move(verbs),
                                   resolves ? link.source().name : std::string());
  }
  void MarkOpen(Link& link, const LinkParameters& peer, const std::string& name,
                FirstSend first_send);

  DeviceContext& context() const { return host_.context(); }
  // The port that the link was made on. Precondition: the link is there.
  const PortAddress& address() const { return links_.slot(key_).address; }

  LinkHost& host_;
  LinkTable& links_;
  const std::shared_ptr<ExecutorGate> gate_;
  const EndpointIdentity& identity_;
  const LinkKey key_;
  const uint32_t psn_ = NewPsn();                        // of our queue pair
  const char* failure_ = "the handshake did not begin";  // why the link closes, if it does
  std::unique_ptr<MessageStream> stream_;                // null once it was taken
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_HANDSHAKE_H_
