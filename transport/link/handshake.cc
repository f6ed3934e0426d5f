#include "verbena/transport/link/handshake.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/link/limits.h"

namespace verbena::internal {

LinkHandshake::LinkHandshake(LinkHost& host, LinkTable& links, std::shared_ptr<ExecutorGate> gate,
                             const EndpointIdentity& identity, LinkKey key,
                             std::unique_ptr<MessageStream> stream)
    : host_(host),
      links_(links),
      gate_(std::move(gate)),
      identity_(identity),
      key_(key),
      stream_(std::move(stream)) {}

LinkHandshake::~LinkHandshake() {
  if (stream_ == nullptr) return;
  // The peer hears of it at once. The link keeps the stream until its slot is free, since a server
  // bounds the links of one source by their streams.
  stream_->Close();
  Link* link = Find();
  if (link == nullptr) return;
  link->qp().stream().Keep(std::move(stream_));
  link->Close(absl::CancelledError(failure_));
}

// --- the client's side

Task<absl::StatusOr<Link*>> LinkHandshake::Offer(ExecutorWish wish) {
  failure_ = "connecting was given up";
  LinkParameters mine = MyParameters(*Find());
  mine.executor_index = wish.number;
  mine.executor_choice = wish.choice;
  mine.executor_key = wish.key;
  VERBENA_CO_ASSIGN_OR_RETURN(LinkParameters peer, co_await OfferLink(*stream_, mine, MyOptions()));
  if (mine.kind == LinkKind::kTcp) peer.gid = ReachableAddress(peer.gid, stream_->peer());
  VERBENA_CO_RETURN_IF_ERROR(CheckConnectable(mine.kind, peer.features));
  Link* link = FindIn(LinkState::kConnecting);
  if (link == nullptr) co_return Lost();
  if ((peer.features & kFeatureRdmaCm) != 0) {
    VERBENA_CO_ASSIGN_OR_RETURN(
        std::shared_ptr<QpConnection> connection,
        context().connector()->Connect(Connectable(*link, peer), peer.rdma_cm));
    link->qp().set_connection(connection);
    VERBENA_CO_RETURN_IF_ERROR(co_await ConnectManaged(std::move(connection), peer, nullptr));
  } else {
    VERBENA_CO_RETURN_IF_ERROR(co_await ConnectQp(*link, peer));
  }
  link = FindIn(LinkState::kConnecting);
  if (link == nullptr) co_return Lost();
  // Before the server hears that it may send: a SEND that found the link not open would be dropped,
  // and its credit with it.
  const bool first =
      link->qp().connection() != nullptr && link->qp().connection()->client_sends_first();
  MarkOpen(*link, peer, stream_->peer(), first ? FirstSend::kOurs : FirstSend::kAny);
  VERBENA_CO_RETURN_IF_ERROR(co_await ConfirmReady(*stream_));
  // Open since before its Ready went out, it may have been lost again meanwhile.
  link = FindIn(LinkState::kOpen);
  if (link == nullptr) co_return Lost();
  co_return link;
}

// --- the server's side

Task<absl::StatusOr<Link*>> LinkHandshake::Answer(LinkParameters offer,
                                                  std::span<const OfferedMethod> methods,
                                                  uint64_t incarnation) {
  failure_ = "the handshake failed";
  offer.features &= MyOptions().features;
  VERBENA_CO_RETURN_IF_ERROR(co_await AnswerOffer(offer, methods, incarnation));
  // Open since its answer went out, it may have been lost again meanwhile.
  Link* link = FindIn(LinkState::kOpen);
  if (link == nullptr) co_return Lost();
  co_return link;
}

Task<absl::Status> LinkHandshake::AnswerOffer(const LinkParameters& offer,
                                              std::span<const OfferedMethod> methods,
                                              uint64_t incarnation) {
  Link* link = Find();
  if (link == nullptr) co_return Lost();
  const bool managed = (offer.features & kFeatureRdmaCm) != 0 && context().connector() != nullptr;
  LinkParameters mine = MyParameters(*link);
  mine.methods.assign(methods.begin(), methods.end());
  mine.incarnation = incarnation;
  absl::Status status = CheckConnectable(mine.kind, managed ? kFeatureRdmaCm : 0);
  if (status.ok() && managed) {
    absl::StatusOr<std::shared_ptr<QpConnection>> connection =
        context().connector()->Expect(Connectable(*link, offer), mine.rdma_cm);
    status = connection.status();
    if (connection.ok()) link->qp().set_connection(*std::move(connection));
  } else if (status.ok()) {
    status = co_await ReceiveOnQp(*link, offer);
  }
  if (!status.ok()) {
    absl::Status refused = co_await RefuseOffer(*stream_, status);
    co_return refused.ok() ? status : refused;
  }
  link = FindIn(LinkState::kConnecting);
  if (link == nullptr) co_return Lost();
  // Open before the answer goes out: the peer's first request may be faster than its word that it
  // is ready.
  if (!managed) MarkOpen(*link, offer, stream_->peer(), FirstSend::kAfterReady);
  std::shared_ptr<QpConnection> connection = link->qp().connection();
  VERBENA_CO_RETURN_IF_ERROR(co_await AcceptOffer(*stream_, offer, mine));
  if (!managed) co_return co_await AwaitClientsReady(offer.max_reads);
  VERBENA_CO_RETURN_IF_ERROR(
      co_await ConnectManaged(std::move(connection), offer, &stream_->peer()));
  co_return co_await AwaitReady(*stream_);
}

Task<absl::Status> LinkHandshake::AwaitClientsReady(uint8_t peer_reads) {
  VERBENA_CO_RETURN_IF_ERROR(co_await AwaitReady(*stream_));
  Link* link = FindIn(LinkState::kOpen);
  if (link == nullptr) co_return Lost();
  VERBENA_CO_RETURN_IF_ERROR(
      co_await OnQp(ControlKind::kConnect, *link,
                    [&context = context(), qp = link->qp().get(), psn = psn_, peer_reads] {
                      return MakeQpSend(context.device(), qp, psn, peer_reads, context.rdma());
                    }));
  link = FindIn(LinkState::kOpen);
  if (link == nullptr) co_return Lost();
  link->AllowSends();
  co_return absl::OkStatus();
}

// --- what this side says

LinkParameters LinkHandshake::MyParameters(Link& link) const {
  link.SetIdentity(psn_);
  LinkParameters mine;
  mine.kind = address().kind;
  mine.wire_revision = address().wire_revision;
  std::memcpy(mine.gid.data(), address().gid.raw, mine.gid.size());
  mine.lid = address().lid;
  mine.qp_number = link.qpn();
  mine.packet_sequence_number = psn_;
  mine.max_reads = MaxReads(context().device());
  mine.mtu_bytes = 128u << address().path_mtu;
  mine.initial_credits = host_.limits().initial_credits;
  mine.eager_bytes = host_.limits().eager_bytes;
  mine.executor_index = identity_.executor_index;
  mine.executor_count = identity_.executor_count;
  mine.runtime_id = identity_.runtime_id;
  return mine;
}

HandshakeOptions LinkHandshake::MyOptions() const {
  const LinkLimits& limits = host_.limits();
  HandshakeOptions options;
  if (context().connector() == nullptr) options.features &= ~kFeatureRdmaCm;
  // Only memory windows can be invalidated, and a device that does not check windows does not
  // report their invalidation.
  if (!context().device().capabilities().windows_checked ||
      limits.leases.level != LeaseLevel::kStrict) {
    options.features &= ~kFeatureInvalidation;
  }
  const LinkKind kind = context().address().kind;
  const bool within_host =
      kind == LinkKind::kSoft || (kind == LinkKind::kTcp && stream_->same_host());
  const bool checked = limits.payload_checksum == PayloadChecksum::kOn ||
                       (limits.payload_checksum == PayloadChecksum::kAuto && !within_host);
  if (!checked) options.features &= ~kFeatureChecksum;
  if (limits.leases.granted_bytes_per_client == 0) options.features &= ~kFeatureGrants;
  return options;
}

// --- queue pairs

// RoCE resolves the peer's address inside, which may take a second.
Task<absl::Status> LinkHandshake::ConnectQp(const Link& link, const LinkParameters& peer) {
  co_return co_await OnQp(ControlKind::kResolve, link,
                          [&context = context(), qp = link.qp().get(), address = address(),
                           psn = psn_, remote = RemoteQpOf(peer)] {
                            return ConnectLinkQp(context.device(), qp, address, psn, remote,
                                                 context.rdma());
                          });
}

// The server sends nothing to an address that has only been claimed.
Task<absl::Status> LinkHandshake::ReceiveOnQp(const Link& link, const LinkParameters& peer) {
  co_return co_await OnQp(
      ControlKind::kResolve, link,
      [&context = context(), qp = link.qp().get(), address = address(), remote = RemoteQpOf(peer)] {
        return MakeQpReceive(context.device(), qp, address, remote, context.rdma());
      });
}

// The connection outlives the handshake, so its end refers to what the endpoint owns.
ConnectableQp LinkHandshake::Connectable(const Link& link, const LinkParameters& peer) const {
  return {.qp_number = link.qpn(),
          .peer_qp_number = peer.qp_number,
          .reads_served = MaxReads(context().device()),
          .reads_started = ReadsStarted(context().device(), peer.max_reads),
          .on_end = [&links = links_, gate = gate_, key = key_](const std::string& reason) {
            gate->Post([&links, gate, key, reason] {
              if (!gate->open()) return;
              if (Link* found = links.Find(key)) found->Close(absl::UnavailableError(reason));
            });
          }};
}

// Through the connection manager, either side. A server's link opens before its client may send.
Task<absl::Status> LinkHandshake::ConnectManaged(std::shared_ptr<QpConnection> connection,
                                                 const LinkParameters& peer,
                                                 const std::string* client) {
  VERBENA_CO_RETURN_IF_ERROR(co_await connection->AwaitPeer());
  Link* link = FindIn(LinkState::kConnecting);
  if (link == nullptr) co_return Lost();
  VERBENA_CO_RETURN_IF_ERROR(co_await OnQp(
      ControlKind::kResolve, *link,
      [&context = context(), qp = link->qp().get(), address = address(), remote = RemoteQpOf(peer),
       connection] {
        return ConnectManagedQp(context.device(), qp, address, remote, *connection, context.rdma());
      }));
  link = FindIn(LinkState::kConnecting);
  if (link == nullptr) co_return Lost();
  if (client != nullptr) {
    MarkOpen(*link, peer, *client,
             connection->client_sends_first() ? FirstSend::kPeers : FirstSend::kAny);
  }
  VERBENA_CO_RETURN_IF_ERROR(connection->Confirm());
  co_return co_await connection->AwaitEstablished();
}

// --- the link

void LinkHandshake::MarkOpen(Link& link, const LinkParameters& peer, const std::string& name,
                             FirstSend first_send) {
  const uint32_t max_reads = ReadsStarted(context().device(), peer.max_reads);
  const uint32_t packet_bytes = std::min(128u << address().path_mtu, peer.mtu_bytes);
  link.MarkOpen(peer, max_reads, packet_bytes, name, first_send);
  VERBENA_LOG_LINE(
      kLink, kDebug,
      fmt::format("link to {} (QPN {:#x}) is open over {}: {} READs at once, {} bytes a packet",
                  name, link.qpn(), context().device().name(), max_reads, packet_bytes),
      {{"peer", name}, {"link", link.qpn()}, {"device", context().device().name()}});
  if (const std::string mtu = DescribePathMtu(address(), peer.mtu_bytes); !mtu.empty()) {
    VERBENA_LOG_LINE(kLink, kInfo,
                     fmt::format("link with {} (QPN {:#x}): {}", name, link.qpn(), mtu),
                     {{"peer", name}, {"link", link.qpn()}});
  }
}

Link* LinkHandshake::FindIn(LinkState state) const {
  Link* link = Find();
  return link != nullptr && link->state() == state ? link : nullptr;
}

absl::Status LinkHandshake::Lost() {
  return absl::UnavailableError("the link was lost during its handshake");
}

}  // namespace verbena::internal
