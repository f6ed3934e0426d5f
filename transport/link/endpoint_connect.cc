// How an Endpoint makes links: the two sides of a handshake, and what connects their queue pairs.

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena::internal {

absl::StatusOr<uint32_t> Endpoint::TakeSlot() {
  VERBENA_RETURN_IF_ERROR(service_.Check());
  const std::optional<uint32_t> index = links_.Take();
  if (!index.has_value()) {
    ++stats_.links_refused;
    return absl::ResourceExhaustedError(fmt::format(
        "max_links reached: all {} links of this executor are in use", limits_.max_links));
  }
  return *index;
}

absl::StatusOr<Endpoint::DeviceParts> Endpoint::MakeParts(const PortAddress& address) {
  Device& device = context_.device();
  VERBENA_ASSIGN_OR_RETURN(
      QpHandle qp, CreateLinkQp(device, context_.pd(), queues_.cq(), queues_.receives().srq(),
                                limits_, supplies_.max_inline_bytes(), address));
  DeviceParts parts{.qp = std::move(qp), .windows = {}};
  if (limits_.leases.level == LeaseLevel::kStrict) {
    parts.windows = AllocateWindows(device, context_.pd(),
                                    std::min(kSpareWindows, limits_.leases.windows_per_link));
  }
  return parts;
}

// Ordered by the endpoint: Shutdown() waits until no queue pair is being made on its queues.
Task<absl::StatusOr<Endpoint::DeviceParts>> Endpoint::NewParts(PortAddress address) {
  absl::StatusOr<DeviceParts> parts = co_await context_.control().Run(
      ControlKind::kConnect, this, [this, address] { return MakeParts(address); });
  if (!parts.ok() || service_.in_service()) co_return parts;
  co_return co_await context_.control().Finish(
      ControlKind::kTeardown, this,
      [parts = *std::move(parts)]() mutable -> absl::StatusOr<DeviceParts> {
        parts.windows.windows.clear();
        parts.qp.Reset();
        return absl::UnavailableError("the endpoint went out of service meanwhile");
      });
}

Task<absl::StatusOr<Link*>> Endpoint::NewLink(LinkListener& listener, const MessageStream& stream) {
  // Without links no timer of this endpoint reads them.
  context_.PollEventsIfUnattended();
  VERBENA_CO_ASSIGN_OR_RETURN(PortAddress address, context_.CurrentAddress());
  VERBENA_CO_ASSIGN_OR_RETURN(uint32_t taken, TakeSlot());
  const uint32_t index = taken;
  absl::Cleanup give_back = [this, index] { links_.GiveBack(index); };
  VERBENA_CO_ASSIGN_OR_RETURN(DeviceParts parts, co_await NewParts(address));
  std::move(give_back).Cancel();
  // The device may have given out the number of a queue pair that it has just destroyed: the
  // completions of the old one are polled out before the number is another link's.
  if (links_.HasQpn(parts.qp->qp_num)) DrainCompletions();
  const LinkKey key = links_.KeyOf(index);
  links_.slot(key).address = address;
  PeerSource& source = supplies_.JoinSource(stream.source(), stream.names_source());
  Link* link =
      &links_.Add(index, std::make_unique<Link>(*this, key, std::move(parts.qp), listener, source));
  link->AddWindows(std::move(parts.windows));
  UpdateReceiveTarget();
  // The peer may send as soon as it has the answer, so the receives must lie there before.
  Flush();
  if (LinkReceives* receives = queues_.link_receives(); receives != nullptr) {
    if (absl::Status posted = receives->Begin(key, link->qp().get()); !posted.ok()) {
      link->Close(posted);
      co_return posted;
    }
  }
  context_.Subscribe(link->qpn(), executor_, [this, gate = gate(), key](ibv_event_type type) {
    if (!gate->open()) return;
    if (Link* found = Find(key)) OnQpEvent(*found, type);
  });
  co_return link;
}

void Endpoint::OnQpEvent(Link& link, ibv_event_type type) {
  if (type == IBV_EVENT_QP_LAST_WQE_REACHED) {
    link.qp().OnLastWqe();
    return;
  }
  link.Close(absl::UnavailableError(
      fmt::format("{} on QPN {:#x}, peer {}", ibv_event_type_str(type), link.qpn(), link.peer())));
}

LinkParameters Endpoint::MyParameters(Link& link, uint32_t psn) const {
  link.SetIdentity(psn);
  const PortAddress& address = AddressOf(link);
  LinkParameters mine;
  mine.kind = address.kind;
  std::memcpy(mine.gid.data(), address.gid.raw, mine.gid.size());
  mine.lid = address.lid;
  mine.qp_number = link.qpn();
  mine.packet_sequence_number = psn;
  mine.max_reads = MaxReads(context_.device());
  mine.mtu_bytes = 128u << address.active_mtu;
  mine.initial_credits = limits_.initial_credits;
  mine.eager_bytes = limits_.eager_bytes;
  mine.executor_index = identity_.executor_index;
  mine.executor_count = identity_.executor_count;
  mine.runtime_id = identity_.runtime_id;
  return mine;
}

HandshakeOptions Endpoint::MyOptions(const MessageStream& stream) const {
  HandshakeOptions options;
  if (context_.connector() == nullptr) options.features &= ~kFeatureRdmaCm;
  // Only memory windows can be invalidated, and a device that does not check windows does not
  // report their invalidation.
  if (!context_.device().capabilities().windows_checked ||
      limits_.leases.level != LeaseLevel::kStrict) {
    options.features &= ~kFeatureInvalidation;
  }
  const LinkKind kind = context_.address().kind;
  const bool within_host =
      kind == LinkKind::kSoft || (kind == LinkKind::kTcp && stream.same_host());
  const bool checked = limits_.payload_checksum == PayloadChecksum::kOn ||
                       (limits_.payload_checksum == PayloadChecksum::kAuto && !within_host);
  if (!checked) options.features &= ~kFeatureChecksum;
  if (limits_.leases.granted_bytes_per_client == 0) options.features &= ~kFeatureGrants;
  return options;
}

// RoCE resolves the peer's address inside, which may take a second.
Task<absl::Status> Endpoint::ConnectQp(const Link& link, uint32_t psn, const LinkParameters& peer) {
  co_return co_await OnQp(
      ControlKind::kResolve, link,
      [&device = context_.device(), qp = link.qp().get(), address = AddressOf(link), psn,
       remote = RemoteQpOf(peer)] { return ConnectLinkQp(device, qp, address, psn, remote); });
}

// The server sends nothing to an address that has only been claimed.
Task<absl::Status> Endpoint::ReceiveOnQp(const Link& link, uint32_t psn,
                                         const LinkParameters& peer) {
  co_return co_await OnQp(
      ControlKind::kResolve, link,
      [&device = context_.device(), qp = link.qp().get(), address = AddressOf(link),
       remote = RemoteQpOf(peer)] { return MakeQpReceive(device, qp, address, remote); });
}

ConnectableQp Endpoint::Connectable(const Link& link, const LinkParameters& peer) {
  const LinkKey key = link.key();
  return {.qp_number = link.qpn(),
          .peer_qp_number = peer.qp_number,
          .reads_served = MaxReads(context_.device()),
          .reads_started = ReadsStarted(context_.device(), peer.max_reads),
          .on_end = [this, gate = gate(), key](const std::string& reason) {
            gate->Post([this, gate, key, reason] {
              if (!gate->open()) return;
              if (Link* found = Find(key)) found->Close(absl::UnavailableError(reason));
            });
          }};
}

// Through the connection manager, either side. A server's link opens before its client may send.
Task<absl::Status> Endpoint::ConnectManaged(LinkKey key, std::shared_ptr<QpConnection> connection,
                                            const LinkParameters& peer, const std::string* client) {
  VERBENA_CO_RETURN_IF_ERROR(co_await connection->AwaitPeer());
  Link* link = Find(key);
  if (link == nullptr || link->state() != LinkState::kConnecting) co_return Lost();
  VERBENA_CO_RETURN_IF_ERROR(co_await OnQp(
      ControlKind::kResolve, *link,
      [&device = context_.device(), qp = link->qp().get(), address = AddressOf(*link),
       reads = peer.max_reads,
       connection] { return ConnectManagedQp(device, qp, address, reads, *connection); }));
  link = Find(key);
  if (link == nullptr || link->state() != LinkState::kConnecting) co_return Lost();
  if (client != nullptr) {
    MarkOpen(*link, peer, *client,
             connection->client_sends_first() ? FirstSend::kPeers : FirstSend::kAny);
  }
  VERBENA_CO_RETURN_IF_ERROR(connection->Confirm());
  co_return co_await connection->AwaitEstablished();
}

Task<absl::StatusOr<Link*>> Endpoint::Connect(std::unique_ptr<MessageStream> stream,
                                              LinkListener& listener, ExecutorWish wish) {
  const TimePoint deadline = SaturatingAdd(executor_.now(), limits_.connect_timeout);
  VERBENA_CO_ASSIGN_OR_RETURN(Link * created,
                              co_await WithDeadline(NewLink(listener, *stream), deadline));
  const LinkKey key = created->key();
  // Also when the caller abandons this: the queue pair must not stay behind.
  absl::Cleanup give_up = [this, key] { CloseIfThere(key, "connecting was given up"); };
  LinkParameters peer;
  VERBENA_CO_RETURN_IF_ERROR(co_await WithDeadline(Offer(key, *stream, wish, peer), deadline));
  // Open since before its Ready went out, it may have been lost again meanwhile.
  Link* link = Find(key);
  if (link == nullptr || !link->open()) co_return Lost();
  std::move(give_up).Cancel();
  Watch(*link, std::move(stream));
  co_return link;
}

Task<absl::Status> Endpoint::Offer(LinkKey key, MessageStream& stream, ExecutorWish wish,
                                   LinkParameters& peer) {
  const uint32_t psn = NewPsn();
  LinkParameters mine = MyParameters(*Find(key), psn);
  mine.executor_index = wish.number;
  mine.executor_choice = wish.choice;
  mine.executor_key = wish.key;
  VERBENA_CO_ASSIGN_OR_RETURN(peer, co_await OfferLink(stream, mine, MyOptions(stream)));
  if (mine.kind == LinkKind::kTcp) peer.gid = ReachableAddress(peer.gid, stream.peer());
  VERBENA_CO_RETURN_IF_ERROR(CheckConnectable(mine.kind, peer.features));
  Link* link = Find(key);
  if (link == nullptr || link->state() != LinkState::kConnecting) co_return Lost();
  if ((peer.features & kFeatureRdmaCm) != 0) {
    VERBENA_CO_ASSIGN_OR_RETURN(
        std::shared_ptr<QpConnection> connection,
        context_.connector()->Connect(Connectable(*link, peer), peer.rdma_cm));
    link->qp().set_connection(connection);
    VERBENA_CO_RETURN_IF_ERROR(co_await ConnectManaged(key, std::move(connection), peer, nullptr));
  } else {
    VERBENA_CO_RETURN_IF_ERROR(co_await ConnectQp(*link, psn, peer));
  }
  link = Find(key);
  if (link == nullptr || link->state() != LinkState::kConnecting) co_return Lost();
  // Before the server hears that it may send: a SEND that found the link not open would be dropped,
  // and its credit with it.
  const bool first =
      link->qp().connection() != nullptr && link->qp().connection()->client_sends_first();
  MarkOpen(*link, peer, stream.peer(), first ? FirstSend::kOurs : FirstSend::kAny);
  co_return co_await ConfirmReady(stream);
}

Task<absl::StatusOr<Link*>> Endpoint::Accept(std::unique_ptr<MessageStream> stream,
                                             LinkParameters offer, LinkListener& listener,
                                             std::span<const uint64_t> methods,
                                             uint64_t incarnation) {
  offer.features &= MyOptions(*stream).features;
  const TimePoint deadline = SaturatingAdd(executor_.now(), limits_.connect_timeout);
  absl::StatusOr<Link*> created = co_await WithDeadline(NewLink(listener, *stream), deadline);
  if (!created.ok()) {
    absl::Status refused = co_await WithDeadline(RefuseOffer(*stream, created.status()), deadline);
    if (!refused.ok()) Log(LogLevel::kInfo, refused.ToString());
    co_return created.status();
  }
  const LinkKey key = (*created)->key();
  absl::Cleanup give_up = [this, key] { CloseIfThere(key, "the handshake failed"); };
  absl::Status status =
      co_await WithDeadline(Answer(key, *stream, offer, methods, incarnation), deadline);
  // Open since its answer went out, it may have been lost again meanwhile.
  Link* link = Find(key);
  if (status.ok() && (link == nullptr || !link->open())) status = Lost();
  if (!status.ok()) {
    // The client hears of it at once, but what its server bounds by streams counts until the link
    // has given back its slot.
    stream->Close();
    if (link != nullptr) link->qp().stream().Keep(std::move(stream));
    co_return status;
  }
  std::move(give_up).Cancel();
  Watch(*link, std::move(stream));
  co_return link;
}

Task<absl::Status> Endpoint::Answer(LinkKey key, MessageStream& stream, const LinkParameters& offer,
                                    std::span<const uint64_t> methods, uint64_t incarnation) {
  Link* link = Find(key);
  if (link == nullptr) co_return Lost();
  const uint32_t psn = NewPsn();
  const bool managed = (offer.features & kFeatureRdmaCm) != 0 && context_.connector() != nullptr;
  LinkParameters mine = MyParameters(*link, psn);
  mine.methods.assign(methods.begin(), methods.end());
  mine.incarnation = incarnation;
  absl::Status status = CheckConnectable(mine.kind, managed ? kFeatureRdmaCm : 0);
  if (status.ok() && managed) {
    absl::StatusOr<std::shared_ptr<QpConnection>> connection =
        context_.connector()->Expect(Connectable(*link, offer), mine.rdma_cm);
    status = connection.status();
    if (connection.ok()) link->qp().set_connection(*std::move(connection));
  } else if (status.ok()) {
    status = co_await ReceiveOnQp(*link, psn, offer);
  }
  if (!status.ok()) {
    absl::Status refused = co_await RefuseOffer(stream, status);
    co_return refused.ok() ? status : refused;
  }
  link = Find(key);
  if (link == nullptr || link->state() != LinkState::kConnecting) co_return Lost();
  // Open before the answer goes out: the peer's first request may be faster than its word that it
  // is ready.
  if (!managed) MarkOpen(*link, offer, stream.peer(), FirstSend::kAfterReady);
  std::shared_ptr<QpConnection> connection = link->qp().connection();
  VERBENA_CO_RETURN_IF_ERROR(co_await AcceptOffer(stream, offer, mine));
  if (!managed) co_return co_await AwaitClientsReady(key, stream, psn, offer.max_reads);
  VERBENA_CO_RETURN_IF_ERROR(
      co_await ConnectManaged(key, std::move(connection), offer, &stream.peer()));
  co_return co_await AwaitReady(stream);
}

Task<absl::Status> Endpoint::AwaitClientsReady(LinkKey key, MessageStream& stream, uint32_t psn,
                                               uint8_t peer_reads) {
  VERBENA_CO_RETURN_IF_ERROR(co_await AwaitReady(stream));
  Link* link = OpenLink(key);
  if (link == nullptr) co_return Lost();
  VERBENA_CO_RETURN_IF_ERROR(
      co_await OnQp(ControlKind::kConnect, *link,
                    [&device = context_.device(), qp = link->qp().get(), psn, peer_reads] {
                      return MakeQpSend(device, qp, psn, peer_reads);
                    }));
  link = OpenLink(key);
  if (link == nullptr) co_return Lost();
  link->AllowSends();
  co_return absl::OkStatus();
}

void Endpoint::MarkOpen(Link& link, const LinkParameters& peer, const std::string& name,
                        FirstSend first_send) {
  const uint32_t max_reads = ReadsStarted(context_.device(), peer.max_reads);
  link.MarkOpen(peer, max_reads, name, first_send);
  if (const std::string mtu = DescribePathMtu(AddressOf(link), peer.mtu_bytes); !mtu.empty()) {
    Log(LogLevel::kInfo, fmt::format("link with {} (QPN {:#x}): {}", name, link.qpn(), mtu));
  }
  ++stats_.links_opened;
  liveness_.Start();
}

void Endpoint::CloseIfThere(LinkKey key, const char* reason) {
  if (Link* link = Find(key)) link->Close(absl::CancelledError(reason));
}

absl::Status Endpoint::Lost() {
  return absl::UnavailableError("the link was lost during its handshake");
}

void Endpoint::Watch(Link& link, std::unique_ptr<MessageStream> stream) {
  link.qp().stream().KeepAndRead(std::move(stream));
  tasks_.links.Spawn(WatchStream(link));
}

}  // namespace verbena::internal
