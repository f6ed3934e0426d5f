#include "verbena/rpc/client/client_bulk.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "fmt/format.h"
#include "verbena/rpc/client/client_call.h"
#include "verbena/rpc/internal/bulk_checksum.h"
#include "verbena/transport/coro/status_macros.h"

namespace verbena::internal {

ClientBulk::~ClientBulk() {
  for (Lease* lease : leases_) LeaseTable::Forget(*lease);
  EndSettling();
  if (write_ != nullptr) write_->Abandon();
}

// A large message is read, and the payload with it: one buffer of the server's holds both.
bool ClientBulk::WantsLanding() const { return !payload.empty() && !message; }

uint32_t ClientBulk::leases_needed(const ClientSession* session) const {
  uint32_t count = 0;
  if (session == nullptr || !WantsLanding() || !session->grants().Fits(payload.size())) {
    for (size_t i = 0; i < payload.part_count(); ++i) count += payload.part(i).empty() ? 0 : 1;
  }
  return count + (message.size() > 0 ? 1 : 0) + (landing.size() > 0 ? 1 : 0);
}

absl::StatusOr<RemoteRange> ClientBulk::OpenLease(Link& link, const BufferView& view,
                                                  LeaseAccess access) {
  VERBENA_ASSIGN_OR_RETURN(Lease * lease, link.OpenLease(view, access));
  if (lease == nullptr) {
    return absl::ResourceExhaustedError(
        "no memory window is free: make fewer calls with payloads at once, or raise "
        "LeaseLimits::windows_per_link");
  }
  leases_.push_back(lease);
  return lease->terms();
}

absl::Status ClientBulk::OpenSource(Link& link, const BufferView& view) {
  if (view.empty()) return absl::OkStatus();
  VERBENA_ASSIGN_OR_RETURN(RemoteRange terms, OpenLease(link, view, LeaseAccess::kRead));
  request_.sources[request_.source_count++] = terms;
  return absl::OkStatus();
}

absl::Status ClientBulk::OpenLeases(ClientSession& session) {
  Link& link = *session.link();
  checked_ = link.checks_payloads();
  request_.has_payload = payload.present();
  request_.payload_bytes = payload.size();
  request_.message_bytes = message.size();
  absl::Status status;
  if (WantsLanding()) {
    // Checked as if the server were to READ it: the result must not depend on what is granted now.
    for (size_t i = 0; i < payload.part_count() && status.ok(); ++i) {
      if (payload.part(i).empty()) continue;
      status = link.leases().Check(payload.part(i), LeaseAccess::kRead);
    }
    if (status.ok()) landing_ = session.grants().Take(payload.size());
  }
  if (landing_.has_value()) {
    request_.grant = landing_->slot;
  } else {
    for (size_t i = 0; i < payload.part_count() && status.ok(); ++i) {
      status = OpenSource(link, payload.part(i));
    }
  }
  if (status.ok()) status = OpenSource(link, message.view());
  if (status.ok() && landing.size() > 0) {
    absl::StatusOr<RemoteRange> terms = OpenLease(link, landing.view(), LeaseAccess::kWrite);
    if (terms.ok()) request_.landing = *terms;
    status = terms.status();
  }
  if (!status.ok()) {
    (void)Abandon(session, /*sent=*/false);
    return status;
  }
  if (checked_) {
    uint32_t checksum = ChecksumOf(payload);
    request_.checksum = ExtendChecksum(checksum, message.view());
  }
  return absl::OkStatus();
}

absl::StatusOr<RemoteRange> ClientBulk::OpenAsked(Link& link, Buffer asked,
                                                  const LandingRequest& wanted) {
  asked_ = std::move(asked);
  wanted_ = wanted;
  checked_ = link.checks_payloads();
  return OpenLease(link, asked_.view(), LeaseAccess::kWrite);
}

absl::Status ClientBulk::OnResponse(const ResponseBulk& response) {
  const uint64_t payload_room =
      response.payload_in_asked ? wanted_.payload_bytes : request_.landing.bytes;
  if (response.payload_bytes > payload_room || response.message_bytes > wanted_.message_bytes) {
    return absl::InvalidArgumentError(fmt::format(
        "a response with a payload of {} bytes and a message of {}, for which {} and {} were "
        "leased",
        response.payload_bytes, response.message_bytes, payload_room, wanted_.message_bytes));
  }
  response_ = response;
  return absl::OkStatus();
}

void ClientBulk::OnFinal(ClientSession& session) {
  landing_.reset();
  // Iterates over a copy: leases that end at once leave leases_.
  const LeaseList leases = leases_;
  for (Lease* lease : leases) session.link()->EndLease(*lease, this);
  if (leases_.empty()) return;
  settling_on_ = &session;
  session.BeginSettling();
}

void ClientBulk::EndSettling() {
  if (ClientSession* session = std::exchange(settling_on_, nullptr)) session->EndSettling();
}

bool ClientBulk::StartWrite(ClientSession& session, ClientCall& call) {
  if (!landing_.has_value()) return false;
  absl::InlinedVector<BufferView, 8> views;
  for (size_t i = 0; i < payload.part_count(); ++i) views.push_back(payload.part(i));
  call_ = &call;
  const RemoteRange to{
      .address = landing_->range.address, .bytes = payload.size(), .rkey = landing_->range.rkey};
  write_ = &session.link()->StartTransfer(Transfer::Direction::kWrite, views, to, this);
  return true;
}

void ClientBulk::OnTransferPosted() {
  std::exchange(write_, nullptr)->Abandon();
  call_->SendRequestBehindPayload();
}

// Comes before OnTransferPosted() only if the link is lost, which OnLinkDown() handles.
void ClientBulk::OnTransferDone(const absl::Status&) { write_ = nullptr; }

void ClientBulk::OnRequestAppended(ClientSession& session) {
  if (landing_.has_value()) session.grants().OnUsed(*landing_);
}

uint32_t ClientBulk::RequestKey(const Link& link) const {
  return landing_.has_value() && link.reports_invalidation() ? landing_->range.rkey : 0;
}

LeaseList ClientBulk::Abandon(ClientSession& session, bool sent) {
  Link& link = *session.link();
  if (write_ != nullptr) link.AbandonTransfer(*std::exchange(write_, nullptr));
  if (landing_.has_value() && !sent) session.grants().Return(link, *landing_);
  LeaseList leases = std::exchange(leases_, {});
  // The device may still be sending the payload, which must not change: the request behind it
  // describes it as it was.
  lost_ = (landing_.has_value() && call_ != nullptr) || (sent && !leases.empty());
  landing_.reset();
  for (Lease* lease : leases) {
    if (sent) {
      link.AbandonLease(*lease);
    } else {
      link.EndLease(*lease, nullptr);
    }
  }
  return sent ? std::move(leases) : LeaseList();
}

void ClientBulk::OnLinkDown() {
  if (write_ != nullptr) std::exchange(write_, nullptr)->Abandon();
  lost_ = !leases_.empty() || landing_.has_value();
  leases_.clear();
}

void ClientBulk::OnLeaseEnded(const Lease& lease) {
  leases_.erase(std::find(leases_.begin(), leases_.end(), &lease));
  if (!leases_.empty()) return;
  settled_.Set();
  EndSettling();
}

void ClientBulk::OnLeaseLost(const Lease& lease) {
  lost_ = true;
  OnLeaseEnded(lease);
}

absl::Status ClientBulk::CheckResponse() const {
  if (!checked_) return absl::OkStatus();
  const Buffer& holder = response_.payload_in_asked ? asked_ : landing;
  uint32_t checksum = 0;
  if (response_.payload_bytes > 0) {
    checksum = ExtendChecksum(checksum, holder.Slice(0, response_.payload_bytes));
  }
  if (response_.message_bytes > 0) {
    checksum = ExtendChecksum(checksum, asked_.Slice(message_offset(), response_.message_bytes));
  }
  if (checksum == response_.checksum) return absl::OkStatus();
  return absl::DataLossError(
      fmt::format("the response's payload arrived with the checksum {:#010x} instead of {:#010x}",
                  checksum, response_.checksum));
}

bool ClientBulk::ParseMessage(google::protobuf::MessageLite& reply) const {
  return reply.ParseFromArray(asked_.data() + message_offset(),
                              static_cast<int>(response_.message_bytes));
}

Buffer ClientBulk::TakeResponsePayload() {
  Buffer& holder = response_.payload_in_asked ? asked_ : landing;
  if (holder) holder.set_size(response_.payload_bytes);
  return std::move(holder);
}

}  // namespace verbena::internal
