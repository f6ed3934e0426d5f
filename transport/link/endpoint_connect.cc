// How an Endpoint makes links: the two sides of a handshake, and what connects their queue pairs.

#include <cstring>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "fmt/format.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/log/log.h"

namespace verbena {

absl::StatusOr<Link*> Endpoint::NewLink(FrameSink& sink) {
  if (shutting_down_) return absl::UnavailableError("the endpoint is shutting down");
  if (free_slots_.empty()) {
    ++stats_.links_refused;
    return absl::ResourceExhaustedError(fmt::format(
        "max_links reached: all {} links of this executor are in use", limits_.max_links));
  }
  absl::StatusOr<QpHandle> qp =
      CreateLinkQp(context_.device(), context_.pd(), cq_, receives_->srq(), limits_,
                   max_inline_bytes_, address_);
  if (!qp.ok()) return qp.status();
  if (links_by_qpn_.contains((*qp)->qp_num)) {
    // The device gave out a number whose old completions may still be queued: poll them out first.
    executor_.DrainCq(cq_);
    if (links_by_qpn_.contains((*qp)->qp_num)) {
      return absl::UnavailableError(
          fmt::format("QPN {:#x} is still in use by a closing link; try again", (*qp)->qp_num));
    }
  }
  const uint32_t index = free_slots_.front();
  free_slots_.pop_front();
  Slot& slot = slots_[index];
  const LinkKey key{index, slot.generation & WrId::kGenerationMask};
  slot.link.reset(new Link(*this, key, *std::move(qp), sink));
  Link* link = slot.link.get();
  links_by_qpn_[link->qpn()] = link;
  ++stats_.links;
  UpdateReceiveTarget();
  // The peer may send as soon as it has the answer, so the receives must lie there before.
  Flush();
  std::weak_ptr<bool> alive = alive_;
  context_.Subscribe(link->qpn(), executor_, [this, alive, key](ibv_event_type type) {
    if (alive.expired()) return;
    if (Link* found = Find(key)) OnQpEvent(*found, type);
  });
  return link;
}

void Endpoint::OnQpEvent(Link& link, ibv_event_type type) {
  if (type == IBV_EVENT_QP_LAST_WQE_REACHED) {
    link.last_wqe_.Set();
    return;
  }
  link.Close(absl::UnavailableError(
      fmt::format("{} on QPN {:#x}, peer {}", ibv_event_type_str(type), link.qpn(), link.peer())));
}

LinkParameters Endpoint::MyParameters(Link& link, uint32_t psn) const {
  link.SetIdentity(psn);
  LinkParameters mine;
  mine.kind = context_.address().kind;
  std::memcpy(mine.gid.data(), address_.gid.raw, mine.gid.size());
  mine.lid = address_.lid;
  mine.qp_number = link.qpn();
  mine.packet_sequence_number = psn;
  mine.max_reads = MaxReads(context_.device());
  mine.mtu_bytes = 128u << address_.active_mtu;
  mine.credit_grant = limits_.initial_credits;
  mine.eager_bytes = limits_.eager_bytes;
  mine.executor_index = executor_index_;
  mine.executor_count = executor_count_;
  return mine;
}

HandshakeOptions Endpoint::MyOptions() const {
  HandshakeOptions options;
  if (context_.connector() == nullptr) options.features &= ~kFeatureRdmaCm;
  // Where windows are not checked their invalidation is not reported either; and only they can be
  // invalidated.
  if (!context_.device().capabilities().windows_checked ||
      limits_.leases.level != LeaseLevel::kStrict) {
    options.features &= ~kFeatureInvalidation;
  }
  const bool checked = limits_.payload_checksum == PayloadChecksum::kOn ||
                       (limits_.payload_checksum == PayloadChecksum::kAuto &&
                        context_.address().kind != LinkKind::kSoft);
  if (!checked) options.features &= ~kFeatureChecksum;
  if (limits_.leases.granted_bytes_per_link == 0) options.features &= ~kFeatureGrants;
  return options;
}

absl::Status Endpoint::ConnectQp(Link& link, uint32_t psn, const LinkParameters& peer) {
  return ConnectLinkQp(context_.device(), link.qp_.get(), address_, psn, RemoteQpOf(peer));
}

ConnectableQp Endpoint::Connectable(const Link& link, const LinkParameters& peer) {
  std::weak_ptr<bool> alive = alive_;
  const LinkKey key = link.key();
  return {.qp_number = link.qpn(),
          .peer_qp_number = peer.qp_number,
          .reads_served = MaxReads(context_.device()),
          .reads_started = ReadsStarted(context_.device(), peer.max_reads),
          .on_end = [this, alive, key](const std::string& reason) {
            executor_.PostFunction([this, alive, key, reason] {
              if (alive.expired()) return;
              if (Link* found = Find(key)) found->Close(absl::UnavailableError(reason));
            });
          }};
}

// Through the connection manager, either side. A server's link opens before its client may send.
Task<absl::Status> Endpoint::ConnectManaged(LinkKey key, std::shared_ptr<QpConnection> connection,
                                            const LinkParameters& peer, const std::string* client) {
  if (absl::Status met = co_await connection->AwaitPeer(); !met.ok()) co_return met;
  Link* link = Find(key);
  if (link == nullptr || link->state() != LinkState::kConnecting) co_return Lost();
  absl::Status status =
      ConnectManagedQp(context_.device(), link->qp_.get(), address_, peer.max_reads, *connection);
  if (!status.ok()) co_return status;
  if (client != nullptr) {
    MarkOpen(*link, peer, *client,
             connection->client_sends_first() ? FirstSend::kPeers : FirstSend::kAny);
  }
  status = connection->Confirm();
  if (!status.ok()) co_return status;
  co_return co_await connection->AwaitEstablished();
}

Task<absl::StatusOr<Link*>> Endpoint::Connect(std::unique_ptr<MessageStream> stream,
                                              FrameSink& sink, uint32_t wanted_executor) {
  absl::StatusOr<Link*> created = NewLink(sink);
  if (!created.ok()) co_return created.status();
  const LinkKey key = (*created)->key();
  // Also when the caller abandons this: the queue pair must not stay behind.
  absl::Cleanup give_up = [this, key] { CloseIfThere(key, "connecting was given up"); };
  LinkParameters peer;
  absl::Status status = co_await WithDeadline(Offer(key, *stream, wanted_executor, peer),
                                              executor_.now() + limits_.connect_timeout);
  if (!status.ok()) co_return status;
  Link* link = Find(key);
  if (link == nullptr || link->state() != LinkState::kConnecting) co_return Lost();
  std::move(give_up).Cancel();
  const bool first = link->connection_ != nullptr && link->connection_->client_sends_first();
  MarkOpen(*link, peer, stream->peer(), first ? FirstSend::kOurs : FirstSend::kAny);
  Watch(*link, std::move(stream));
  co_return link;
}

Task<absl::Status> Endpoint::Offer(LinkKey key, MessageStream& stream, uint32_t wanted_executor,
                                   LinkParameters& peer) {
  const uint32_t psn = NewPsn();
  LinkParameters mine = MyParameters(*Find(key), psn);
  mine.executor_index = wanted_executor;
  absl::StatusOr<LinkParameters> answer = co_await OfferLink(stream, mine, MyOptions());
  if (!answer.ok()) co_return answer.status();
  peer = *answer;
  absl::Status status = CheckConnectable(mine.kind, peer.features);
  if (!status.ok()) co_return status;
  Link* link = Find(key);
  if (link == nullptr || link->state() != LinkState::kConnecting) co_return Lost();
  if ((peer.features & kFeatureRdmaCm) != 0) {
    absl::StatusOr<std::shared_ptr<QpConnection>> connection =
        context_.connector()->Connect(Connectable(*link, peer), peer.rdma_cm);
    if (!connection.ok()) co_return connection.status();
    link->connection_ = *connection;
    status = co_await ConnectManaged(key, *std::move(connection), peer, nullptr);
  } else {
    status = ConnectQp(*link, psn, peer);
  }
  if (!status.ok()) co_return status;
  co_return co_await ConfirmReady(stream);
}

Task<absl::StatusOr<Link*>> Endpoint::Accept(std::unique_ptr<MessageStream> stream,
                                             LinkParameters offer, FrameSink& sink) {
  offer.features &= MyOptions().features;
  absl::StatusOr<Link*> created = NewLink(sink);
  if (!created.ok()) {
    absl::Status refused = co_await WithDeadline(RefuseOffer(*stream, created.status()),
                                                 executor_.now() + limits_.connect_timeout);
    if (!refused.ok()) Log(LogLevel::kInfo, refused.ToString());
    co_return created.status();
  }
  const LinkKey key = (*created)->key();
  absl::Cleanup give_up = [this, key] { CloseIfThere(key, "the handshake failed"); };
  absl::Status status = co_await WithDeadline(Answer(**created, *stream, offer),
                                              executor_.now() + limits_.connect_timeout);
  if (!status.ok()) co_return status;
  // Open since its answer went out, it may have been lost again meanwhile.
  Link* link = Find(key);
  if (link == nullptr || !link->open()) co_return Lost();
  std::move(give_up).Cancel();
  Watch(*link, std::move(stream));
  co_return link;
}

// Touches the link before its first wait only: after that it may be gone.
Task<absl::Status> Endpoint::Answer(Link& link, MessageStream& stream,
                                    const LinkParameters& offer) {
  const uint32_t psn = NewPsn();
  const bool managed = (offer.features & kFeatureRdmaCm) != 0 && context_.connector() != nullptr;
  LinkParameters mine = MyParameters(link, psn);
  absl::Status status = CheckConnectable(mine.kind, managed ? kFeatureRdmaCm : 0);
  if (status.ok() && managed) {
    absl::StatusOr<std::shared_ptr<QpConnection>> connection =
        context_.connector()->Expect(Connectable(link, offer), mine.rdma_cm);
    status = connection.status();
    if (connection.ok()) link.connection_ = *std::move(connection);
  } else if (status.ok()) {
    status = ConnectQp(link, psn, offer);
  }
  if (!status.ok()) {
    absl::Status refused = co_await RefuseOffer(stream, status);
    co_return refused.ok() ? status : refused;
  }
  // Open before the answer goes out: the peer's first request may be faster than its word that it
  // is ready.
  if (!managed) MarkOpen(link, offer, stream.peer(), FirstSend::kAny);
  const LinkKey key = link.key();
  std::shared_ptr<QpConnection> connection = link.connection_;
  status = co_await AcceptOffer(stream, offer, mine);
  if (status.ok() && managed) {
    status = co_await ConnectManaged(key, std::move(connection), offer, &stream.peer());
  }
  if (!status.ok()) co_return status;
  co_return co_await AwaitReady(stream);
}

void Endpoint::MarkOpen(Link& link, const LinkParameters& peer, const std::string& name,
                        FirstSend first_send) {
  const uint32_t max_reads = ReadsStarted(context_.device(), peer.max_reads);
  link.MarkOpen(peer, max_reads, name, first_send);
  if (const std::string mtu = DescribePathMtu(address_, peer.mtu_bytes); !mtu.empty()) {
    Log(LogLevel::kInfo, fmt::format("link with {} (QPN {:#x}): {}", name, link.qpn(), mtu));
  }
  ++stats_.links_opened;
  StartLivenessTimer();
}

void Endpoint::CloseIfThere(LinkKey key, const char* reason) {
  if (Link* link = Find(key)) link->Close(absl::CancelledError(reason));
}

absl::Status Endpoint::Lost() {
  return absl::UnavailableError("the link was lost during its handshake");
}

uint32_t Endpoint::NewPsn() {
  // A packet sequence number has 24 bits; random, so that packets of a former QP with this number
  // do not fit.
  return static_cast<uint32_t>(Random::Real().Next()) & 0xffffff;
}

void Endpoint::Watch(Link& link, std::unique_ptr<MessageStream> stream) {
  link.stream_ = std::move(stream);
  link.unwatched_.Reset();
  tasks_.Spawn(WatchStream(link));
}

}  // namespace verbena
