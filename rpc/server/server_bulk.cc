#include "verbena/rpc/server/server_bulk.h"

#include <string>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/server/server_session.h"
#include "verbena/rpc/server/server_shard.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena::internal {

void ServerBulk::Begin(ServerShard& shard, ServerSession& session, CallId id, TimePoint deadline,
                       const RequestBulk& request, UsedGrant landing, const char* in_frame) {
  shard_ = &shard;
  session_ = &session;
  id_ = id;
  deadline_ = deadline;
  request_ = request;
  landed_ = landing.bytes;
  // A call that has neither payload nor message here may begin after the link is lost.
  if (request.payload_bytes + request.message_bytes == 0) return;
  checked_ = session.link()->checks_payloads();
  if (request.payload_in_frame) TakeFromFrame(in_frame);
  if (!landing.buffer) return;
  fetched_ = std::move(landing.buffer);
  fetched_.set_size(request.payload_bytes);
  lease_ = landing.lease;
  session.link()->EndLease(*lease_, this);
}

void ServerBulk::Clear() {
  SendWaiter::Unlink();
  ForgetWrites();
  ReturnLanded();
  shares_.Return(session_->client());
  shard_->send_holders().transfers -= std::exchange(writing_, 0);
  if (lease_ != nullptr) LeaseTable::Forget(*std::exchange(lease_, nullptr));
  lease_over_.Reset();
  checked_ = earns_landing_ = false;
  request_.source_count = 0;
  request_.has_payload = request_.payload_in_frame = request_.room_in_frame = false;
  request_.payload_bytes = request_.message_bytes = context_bytes_ = 0;
  request_.landing = {};
  fetched_.Reset();
  if (!unplaced_.empty()) unplaced_ = std::string();
  response_ = {};
  has_response_ = response_in_frame_ = false;
  written_ = 0;
  staged_.clear();
  checksum_ = 0;
  payload_bytes_ = message_bytes_ = 0;
  asks_payload_ = landing_awaited_ = false;
  asked_ = {};
  landing_arrived_.Reset();
  message_.Reset();
}

absl::StatusOr<Link*> ServerBulk::OpenLink() const {
  Link* link = session_->link();
  if (link == nullptr || !link->open()) return absl::UnavailableError("the link was lost");
  return link;
}

absl::Status ServerBulk::CheckLimit(const char* what, uint64_t bytes, const Link& link) {
  const uint64_t limit = link.endpoint().limits().max_payload_bytes;
  if (bytes <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      fmt::format("{} of {} bytes is over this server's LinkLimits::max_payload_bytes of {}: send "
                  "it in pieces, or raise that (at most {} MiB)",
                  what, bytes, limit, kMaxBufferBytes >> 20));
}

}  // namespace verbena::internal
