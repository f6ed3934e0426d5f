#include "verbena/rpc/client/payload.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "fmt/format.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/rpc/client/landings.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

namespace {

char* CopyTo(char* to, const BufferView& view) {
  if (view.empty()) return to;
  std::memcpy(to, view.data(), view.size());
  return to + view.size();
}

}  // namespace

ClientBulk::~ClientBulk() {
  for (Lease* lease : leases_) LeaseTable::Forget(*lease);
  EndSettling();
  if (write_ != nullptr) write_->Abandon();
}

// A large message is read, and the payload with it: one buffer of the server's holds both.
bool ClientBulk::MayUseGrant() const { return !payload.empty() && !message; }

bool ClientBulk::PayloadInFrame(const Link& link) const {
  const size_t bytes = payload.size();
  return MayUseGrant() && bytes <= link.endpoint().limits().largest_payload_in_frame &&
         kRequestBulkBytes + bytes + frame_message_bytes <= link.max_body_bytes();
}

bool ClientBulk::RoomInFrame(const Link& link) const {
  const size_t bytes = std::max(landing.size(), response_room);
  return bytes > 0 && bytes <= link.endpoint().limits().largest_payload_in_frame &&
         ResponseBulk::kEncodedBytes + bytes <= link.max_body_bytes();
}

uint32_t ClientBulk::leases_needed(const ClientSession* session) const {
  uint32_t count = message.size() > 0 ? 1 : 0;
  if (landing.size() > 0 && (session == nullptr || !RoomInFrame(*session->link()))) ++count;
  const bool leased = session == nullptr || !MayUseGrant() ||
                      !(PayloadInFrame(*session->link()) || session->grants().Fits(payload.size()));
  if (!leased) return count;
  for (size_t i = 0; i < payload.part_count(); ++i) count += payload.part(i).empty() ? 0 : 1;
  return count;
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
  VERBENA_CHECK(leases_.empty() && !grant_.has_value()) << "leases are opened once";
  Link& link = *session.link();
  checked_ = link.checks_payloads();
  request_.has_payload = payload.present();
  request_.payload_bytes = payload.size();
  request_.message_bytes = message.size();
  absl::Status status;
  if (MayUseGrant()) {
    // Checked as if the server were to READ it: the result must not depend on what is granted now.
    for (size_t i = 0; i < payload.part_count() && status.ok(); ++i) {
      if (payload.part(i).empty()) continue;
      status = link.leases().Check(payload.part(i), LeaseAccess::kRead);
    }
    request_.payload_in_frame = PayloadInFrame(link);
    if (status.ok() && !request_.payload_in_frame) grant_ = session.grants().Take(payload.size());
  }
  if (request_.payload_in_frame) {
    // Copied when the request's frame is written.
  } else if (grant_.has_value()) {
    request_.grant = grant_->slot;
  } else {
    for (size_t i = 0; i < payload.part_count() && status.ok(); ++i) {
      status = OpenSource(link, payload.part(i));
    }
  }
  if (status.ok()) status = OpenSource(link, message.view());
  if (status.ok()) status = OpenLanding(link);
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

absl::Status ClientBulk::OpenLanding(Link& link) {
  if (RoomInFrame(link)) {
    request_.room_in_frame = true;
    request_.landing.bytes = std::max(landing.size(), response_room);
    // As if it were leased: the result must not depend on how the payload travels.
    return landing ? link.leases().Check(landing.view(), LeaseAccess::kWrite) : absl::OkStatus();
  }
  if (!landing && response_room > 0) {
    return absl::UnavailableError(
        "the link, and with it the size of a frame, changed while the call began; try again");
  }
  if (landing.size() == 0) return absl::OkStatus();
  VERBENA_ASSIGN_OR_RETURN(request_.landing, OpenLease(link, landing.view(), LeaseAccess::kWrite));
  landing_leased_ = true;
  return absl::OkStatus();
}

char* ClientBulk::WriteTo(char* body) const {
  request_.Encode(body);
  body += request_.encoded_bytes();
  if (!request_.payload_in_frame) return body;
  for (size_t i = 0; i < payload.part_count(); ++i) body = CopyTo(body, payload.part(i));
  return body;
}

absl::StatusOr<RemoteRange> ClientBulk::OpenAsked(Link& link, Buffer asked,
                                                  const LandingRequest& wanted) {
  asked_ = std::move(asked);
  wanted_ = wanted;
  checked_ = link.checks_payloads();
  return OpenLease(link, asked_.view(), LeaseAccess::kWrite);
}

// The most bytes that the response's payload may have.
uint64_t ClientBulk::PayloadRoom(const ResponseBulk& response) const {
  const uint64_t room = request_.landing.bytes;  // what the caller has room for, if it says so
  if (response.payload_in_frame) return room > 0 ? room : response.payload_bytes;
  if (!response.payload_in_asked) return request_.room_in_frame ? 0 : room;
  return room > 0 ? std::min(room, wanted_.payload_bytes) : wanted_.payload_bytes;
}

absl::Status ClientBulk::OnResponse(ClientSession& session, const ResponseBulk& response,
                                    const char* in_frame) {
  const uint64_t payload_room = PayloadRoom(response);
  const bool too_large = response.payload_bytes > payload_room;
  if (too_large || response.message_bytes > wanted_.message_bytes) {
    return absl::InvalidArgumentError(fmt::format(
        "a response with a payload of {} bytes and a message of {}, for which {} and {} were "
        "leased",
        response.payload_bytes, response.message_bytes, payload_room, wanted_.message_bytes));
  }
  response_ = response;
  if (response.payload_in_frame) TakeFromFrame(session, in_frame);
  return absl::OkStatus();
}

void ClientBulk::TakeFromFrame(ClientSession& session, const char* bytes) {
  const size_t size = response_payload_bytes();
  if (landing.size() == 0) {
    Endpoint& endpoint = session.link()->endpoint();
    absl::StatusOr<Buffer> memory =
        response_room > 0 ? endpoint.memory().landing().TryAllocate(size)
                          : TryAllocateLanding(session.landing_quota(), endpoint, size);
    if (!memory.ok()) {
      unplaced_.assign(bytes, size);
      return;
    }
    landing = *std::move(memory);
  }
  VERBENA_CHECK(size <= landing.size()) << size << " bytes for memory of " << landing.size();
  std::memcpy(landing.data(), bytes, size);
}

void ClientBulk::PlaceResponse(Buffer memory) {
  VERBENA_CHECK(memory.size() >= unplaced_.size()) << memory.size() << ", " << unplaced_.size();
  landing = std::move(memory);
  std::memcpy(landing.data(), unplaced_.data(), unplaced_.size());
  unplaced_ = std::string();
}

void ClientBulk::OnFinal(ClientSession& session) {
  grant_.reset();
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

bool ClientBulk::StartWrite(ClientSession& session, PayloadListener& call) {
  if (!grant_.has_value()) return false;
  absl::InlinedVector<BufferView, 8> views;
  for (size_t i = 0; i < payload.part_count(); ++i) views.push_back(payload.part(i));
  call_ = &call;
  const RemoteRange to{
      .address = grant_->range.address, .bytes = payload.size(), .rkey = grant_->range.rkey};
  write_ = &session.link()->StartTransfer(Transfer::Direction::kWrite, views, to, this);
  return true;
}

void ClientBulk::OnTransferPosted() {
  VERBENA_CHECK(write_ != nullptr && call_ != nullptr);
  std::exchange(write_, nullptr)->Abandon();
  call_->OnPayloadAhead();
}

// Comes before OnTransferPosted() only if the link is lost, which OnLinkDown() handles.
void ClientBulk::OnTransferDone(const absl::Status&) { write_ = nullptr; }

void ClientBulk::OnRequestAppended(ClientSession& session) {
  if (grant_.has_value()) session.grants().OnUsed(*grant_);
}

uint32_t ClientBulk::RequestKey(const Link& link) const {
  return grant_.has_value() && link.reports_invalidation() ? grant_->range.rkey : 0;
}

// The server has not heard of the leases of a request that has not left. But the device may still
// be sending the payload, which must not change: the request behind it describes it as it was.
bool ClientBulk::MayBeInUse(bool sent) const {
  return (grant_.has_value() && call_ != nullptr) || (sent && !leases_.empty());
}

LeaseList ClientBulk::Abandon(ClientSession& session, bool sent) {
  Link& link = *session.link();
  if (write_ != nullptr) link.AbandonTransfer(*std::exchange(write_, nullptr));
  if (grant_.has_value() && !sent) session.grants().Return(link, *grant_);
  lost_ = MayBeInUse(sent);
  LeaseList leases = std::exchange(leases_, {});
  grant_.reset();
  if (sent) {
    for (Lease* lease : leases) link.AbandonLease(*lease);
    return leases;
  }
  bool all_over = true;
  for (Lease* lease : leases) all_over &= link.EndLease(*lease, nullptr);
  landing_lost_ = landing_leased_ && !all_over;
  return {};
}

void ClientBulk::OnLinkDown(bool sent) {
  if (write_ != nullptr) std::exchange(write_, nullptr)->Abandon();
  lost_ = MayBeInUse(sent);
  landing_lost_ = landing_leased_ && !leases_.empty();
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
  // The peer chose these numbers, and a payload that came in a frame may have found no memory.
  if (response_.payload_bytes > holder.size() ||
      (response_.message_bytes > 0 && message_offset() + response_.message_bytes > asked_.size())) {
    return absl::DataLossError(
        fmt::format("a response's payload of {} bytes has no place here", response_.payload_bytes));
  }
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

bool ClientBulk::ParseMessage(MessageLite& reply) const {
  return reply.ParseFromArray(asked_.data() + message_offset(),
                              static_cast<int>(response_.message_bytes));
}

absl::Status ClientBulk::ReadFailure(const absl::Status& known) const {
  if (response_.message_bytes > kMaxFailureBytes) {
    return Annotate(
        known, fmt::format("{} bytes are more than a failure may have", response_.message_bytes));
  }
  if (absl::Status intact = CheckResponse(); !intact.ok()) {
    return Annotate(known, std::string(intact.message()));
  }
  return WithOutcome(DecodeStatus(static_cast<uint8_t>(known.code()),
                                  asked_.data() + message_offset(), response_.message_bytes),
                     OutcomeOf(known));
}

Buffer ClientBulk::TakeResponsePayload() {
  if (response_.payload_in_asked && landing.size() > 0) {
    // The caller has memory of its own for it, which was not leased.
    VERBENA_CHECK(response_payload_bytes() <= landing.size() &&
                  response_payload_bytes() <= asked_.size())
        << response_payload_bytes() << " bytes, memory of " << landing.size();
    std::memcpy(landing.data(), asked_.data(), response_payload_bytes());
    response_.payload_in_asked = false;
  }
  Buffer& holder = response_.payload_in_asked ? asked_ : landing;
  if (holder) holder.set_size(response_.payload_bytes);
  return std::move(holder);
}

}  // namespace verbena::internal
