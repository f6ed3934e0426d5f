#include "verbena/rpc/server/fetched_request.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/call/bulk_checksum.h"
#include "verbena/rpc/server/granted_share.h"
#include "verbena/rpc/server/server_session.h"
#include "verbena/rpc/server/server_shard.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/deadline.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/transfer_awaiter.h"

namespace verbena::internal {

void FetchedRequest::Begin(UsedGrant landing, const char* in_frame) {
  landed_ = landing.bytes;
  const RequestBulk& header = call_.header;
  // A call that has neither payload nor message here may begin after the link is lost.
  if (header.payload_bytes + header.message_bytes == 0) return;
  checked_ = call_.session->link()->checks_payloads();
  if (header.payload_in_frame) TakeFromFrame(in_frame);
  if (!landing.buffer) return;
  memory_ = std::move(landing.buffer);
  memory_.set_size(header.payload_bytes);
  lease_ = landing.lease;
  call_.session->link()->EndLease(*lease_, this);
}

void FetchedRequest::Clear() {
  ReturnLanded();
  shares_.Return(call_.session->client());
  if (lease_ != nullptr) LeaseTable::Forget(*std::exchange(lease_, nullptr));
  lease_over_.Reset();
  checked_ = earns_landing_ = false;
  context_bytes_ = 0;
  memory_.Reset();
  if (!unplaced_.empty()) unplaced_ = std::string();
}

void FetchedRequest::TakeFromFrame(const char* bytes) {
  const size_t size = call_.header.payload_bytes;
  const Endpoint& endpoint = call_.session->link()->endpoint();
  if (size <= endpoint.limits().max_payload_bytes &&
      shares_.TryTake(call_.session->client(), size)) {
    absl::StatusOr<Buffer> memory = endpoint.memory().receive().TryAllocate(size);
    if (memory.ok()) {
      memory_ = *std::move(memory);
      std::memcpy(memory_.data(), bytes, size);
      return;
    }
    shares_.Return(call_.session->client());
  }
  unplaced_.assign(bytes, size);
}

// The handler sees no memory that the client may still write to.
void FetchedRequest::OnLeaseEnded(const Lease&) {
  earns_landing_ = true;
  lease_ = nullptr;
  lease_over_.Set();
}

// The landing's memory returns to its pool by itself once the device is done with it.
void FetchedRequest::OnLeaseLost(const Lease& lease) {
  ReturnLanded();
  OnLeaseEnded(lease);
  earns_landing_ = false;
}

Task<absl::Status> FetchedRequest::Fetch() {
  if (lease_ != nullptr) VERBENA_CO_RETURN_IF_ERROR(co_await lease_over_.Wait());
  if (call_.header.source_count > 0) VERBENA_CO_RETURN_IF_ERROR(co_await Read());
  if (!unplaced_.empty()) VERBENA_CO_RETURN_IF_ERROR(co_await Place());
  VERBENA_CO_RETURN_IF_ERROR(call_.OpenLink().status());
  earns_landing_ = !call_.header.payload_in_frame;
  if (!checked_) co_return absl::OkStatus();
  const uint32_t arrived = ExtendChecksum(0, memory_.view());
  if (arrived == call_.header.checksum) co_return absl::OkStatus();
  co_return absl::DataLossError(
      fmt::format("the request's payload arrived with the checksum {:#010x} instead of {:#010x}",
                  arrived, call_.header.checksum));
}

Task<absl::Status> FetchedRequest::Read() {
  VERBENA_CO_ASSIGN_OR_RETURN(Link * link, call_.OpenLink());
  const uint64_t bytes = call_.header.payload_bytes + call_.header.message_bytes;
  VERBENA_CO_RETURN_IF_ERROR(CheckBulkLimit("a request with its payload", bytes, *link));
  if (link->max_reads() == 0) {
    earns_landing_ = true;
    co_return absl::UnimplementedError(fmt::format(
        "{} does not READ, which payloads of requests need", link->endpoint().device_name()));
  }
  VERBENA_CO_RETURN_IF_ERROR(co_await AllocateMemory(*link, bytes));
  // Not cut short: the client takes the response as the proof that nothing is read any more.
  CancelScope shield;
  call_.shard->receive_holders().transfers += bytes;
  absl::Status status = co_await ReadSources().In(&shield);
  call_.shard->receive_holders().transfers -= bytes;
  co_return status;
}

Task<absl::Status> FetchedRequest::Place() {
  VERBENA_CO_ASSIGN_OR_RETURN(Link * link, call_.OpenLink());
  VERBENA_CO_RETURN_IF_ERROR(
      CheckBulkLimit("a request's payload", call_.header.payload_bytes, *link));
  VERBENA_CO_RETURN_IF_ERROR(co_await AllocateMemory(*link, call_.header.payload_bytes));
  std::memcpy(memory_.data(), unplaced_.data(), unplaced_.size());
  unplaced_ = std::string();
  co_return absl::OkStatus();
}

Task<absl::Status> FetchedRequest::AllocateMemory(Link& link, uint64_t bytes) {
  MemoryWait wait{.deadline = call_.deadline,
                  .longest = call_.shard->limits().memory_wait,
                  .holders = &call_.shard->receive_holders()};
  const Endpoint& endpoint = link.endpoint();
  [[maybe_unused]] const auto use = endpoint.Use();
  if (!shares_.TryTake(call_.session->client(), bytes)) {
    const TimePoint began = endpoint.executor().now();
    const TimePoint limit = WaitLimit(began, wait);
    absl::Status waited = co_await WithDeadline(shares_.Take(*call_.session, bytes), limit);
    const TimePoint now = endpoint.executor().now();
    // An earlier deadline is the caller's own.
    if (absl::IsDeadlineExceeded(waited) && now >= limit) {
      ++call_.shard->memory_refused();
      co_return shares_.NotTaken(call_.session->client(), bytes, now - began);
    }
    VERBENA_CO_RETURN_IF_ERROR(waited);
    // One limit for both waits.
    wait.deadline = kNever;
    wait.longest = std::max(limit - now, Duration::zero());
  }
  BufferPool& pool = endpoint.memory().receive();
  absl::StatusOr<Buffer> now = pool.TryAllocate(bytes);
  if (!now.ok()) {
    call_.session->ReclaimGrants();
    now = co_await AllocateUntil(endpoint, pool, bytes, wait);
    VERBENA_CO_RETURN_IF_ERROR(now.status());
  }
  memory_ = *std::move(now);
  co_return absl::OkStatus();
}

Task<absl::Status> FetchedRequest::ReadSources() {
  size_t offset = 0;
  for (uint32_t i = 0; i < call_.header.source_count; ++i) {
    const RemoteRange& source = call_.header.sources[i];
    // After every wait the link may be gone.
    VERBENA_CO_ASSIGN_OR_RETURN(Link * link, call_.OpenLink());
    VERBENA_CO_RETURN_IF_ERROR(co_await TransferAwaiter(
        *link, Transfer::Direction::kRead, memory_.Slice(offset, source.bytes), source));
    offset += source.bytes;
  }
  co_return absl::OkStatus();
}

bool FetchedRequest::ParseMessage(google::protobuf::MessageLite& message) const {
  return message.ParseFromArray(memory_.data() + call_.header.payload_bytes + context_bytes_,
                                static_cast<int>(message_bytes()));
}

Buffer FetchedRequest::TakePayload() {
  if (memory_) memory_.set_size(call_.header.payload_bytes);
  return std::move(memory_);
}

void FetchedRequest::Drop() {
  ReturnLanded();
  memory_.Reset();
  shares_.Return(call_.session->client());
}

void FetchedRequest::ReturnLanded() {
  const size_t landed = std::exchange(landed_, 0);
  if (landed == 0) return;
  if (lease_ == nullptr) {
    call_.session->client().EndGrant(landed);
  } else {
    ReturnWithMemory(std::move(memory_), landed, call_.session->client(), nullptr);
  }
}

}  // namespace verbena::internal
