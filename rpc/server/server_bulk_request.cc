// The request's half of a ServerBulk: takes the payload from its frame or landing, or reads it, and
// checks what arrived.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "verbena/rpc/internal/allocate.h"
#include "verbena/rpc/internal/bulk_checksum.h"
#include "verbena/rpc/server/granted_share.h"
#include "verbena/rpc/server/server_bulk.h"
#include "verbena/rpc/server/server_session.h"
#include "verbena/rpc/server/server_shard.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/deadline.h"
#include "verbena/transport/coro/status_macros.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/transfer_awaiter.h"
#include "verbena/transport/log/mutant.h"

namespace verbena::internal {

void ServerBulk::TakeFromFrame(const char* bytes) {
  const size_t size = request_.payload_bytes;
  const Endpoint& endpoint = session_->link()->endpoint();
  if (size <= endpoint.limits().max_payload_bytes &&
      (VERBENA_MUTANT(kFramePayloadUncounted) || shares_.TryTake(session_->client(), size))) {
    absl::StatusOr<Buffer> memory = endpoint.memory().receive().TryAllocate(size);
    if (memory.ok()) {
      fetched_ = *std::move(memory);
      std::memcpy(fetched_.data(), bytes, size);
      return;
    }
    shares_.Return(session_->client());
  }
  unplaced_.assign(bytes, size);
}

// The handler sees no memory that the client may still write to.
void ServerBulk::OnLeaseEnded(const Lease&) {
  earns_landing_ = true;
  lease_ = nullptr;
  lease_over_.Set();
}

// The landing's memory returns to its pool by itself once the device is done with it.
void ServerBulk::OnLeaseLost(const Lease& lease) {
  ReturnLanded();
  OnLeaseEnded(lease);
  earns_landing_ = false;
}

Task<absl::Status> ServerBulk::Fetch() {
  if (lease_ != nullptr) VERBENA_CO_RETURN_IF_ERROR(co_await lease_over_.Wait());
  if (request_.source_count > 0) VERBENA_CO_RETURN_IF_ERROR(co_await ReadRequest());
  if (!unplaced_.empty()) VERBENA_CO_RETURN_IF_ERROR(co_await PlaceRequest());
  VERBENA_CO_RETURN_IF_ERROR(OpenLink().status());
  earns_landing_ = !request_.payload_in_frame;
  if (!checked_ || VERBENA_MUTANT(kRequestChecksumUnchecked)) co_return absl::OkStatus();
  const uint32_t arrived = ExtendChecksum(0, fetched_.view());
  if (arrived == request_.checksum) co_return absl::OkStatus();
  co_return absl::DataLossError(
      fmt::format("the request's payload arrived with the checksum {:#010x} instead of {:#010x}",
                  arrived, request_.checksum));
}

Task<absl::Status> ServerBulk::ReadRequest() {
  VERBENA_CO_ASSIGN_OR_RETURN(Link * link, OpenLink());
  const uint64_t bytes = request_.payload_bytes + request_.message_bytes;
  VERBENA_CO_RETURN_IF_ERROR(CheckLimit("a request with its payload", bytes, *link));
  if (link->max_reads() == 0) {
    earns_landing_ = true;
    co_return absl::UnimplementedError(fmt::format(
        "{} does not READ, which payloads of requests need", link->endpoint().device_name()));
  }
  VERBENA_CO_RETURN_IF_ERROR(co_await AllocateFetched(*link, bytes));
  // Not cut short: the client takes the response as the proof that nothing is read any more.
  CancelScope shield;
  shard_->receive_holders().transfers += bytes;
  absl::Status status = co_await ReadSources().In(&shield);
  shard_->receive_holders().transfers -= bytes;
  co_return status;
}

Task<absl::Status> ServerBulk::PlaceRequest() {
  VERBENA_CO_ASSIGN_OR_RETURN(Link * link, OpenLink());
  VERBENA_CO_RETURN_IF_ERROR(CheckLimit("a request's payload", request_.payload_bytes, *link));
  VERBENA_CO_RETURN_IF_ERROR(co_await AllocateFetched(*link, request_.payload_bytes));
  std::memcpy(fetched_.data(), unplaced_.data(), unplaced_.size());
  unplaced_ = std::string();
  co_return absl::OkStatus();
}

Task<absl::Status> ServerBulk::AllocateFetched(Link& link, uint64_t bytes) {
  MemoryWait wait{.deadline = deadline_,
                  .longest = shard_->limits().memory_wait,
                  .holders = &shard_->receive_holders()};
  const Endpoint& endpoint = link.endpoint();
  [[maybe_unused]] const auto use = endpoint.Use();
  if (!shares_.TryTake(session_->client(), bytes)) {
    const TimePoint began = endpoint.executor().now();
    const TimePoint limit = WaitLimit(began, wait);
    absl::Status waited = co_await WithDeadline(shares_.Take(*session_, bytes), limit);
    const TimePoint now = endpoint.executor().now();
    // An earlier deadline is the caller's own.
    if (absl::IsDeadlineExceeded(waited) && now >= limit) {
      ++shard_->memory_refused();
      co_return shares_.NotTaken(session_->client(), bytes, now - began);
    }
    VERBENA_CO_RETURN_IF_ERROR(waited);
    // One limit for both waits.
    wait.deadline = kNever;
    if (!VERBENA_MUTANT(kMemoryWaitsAddUp)) wait.longest = std::max(limit - now, Duration::zero());
  }
  BufferPool& pool = endpoint.memory().receive();
  absl::StatusOr<Buffer> now = pool.TryAllocate(bytes);
  if (!now.ok()) {
    session_->ReclaimGrants();
    now = co_await AllocateUntil(endpoint, pool, bytes, wait);
    VERBENA_CO_RETURN_IF_ERROR(now.status());
  }
  fetched_ = *std::move(now);
  co_return absl::OkStatus();
}

Task<absl::Status> ServerBulk::ReadSources() {
  size_t offset = 0;
  for (uint32_t i = 0; i < request_.source_count; ++i) {
    const RemoteRange& source = request_.sources[i];
    // After every wait the link may be gone.
    VERBENA_CO_ASSIGN_OR_RETURN(Link * link, OpenLink());
    VERBENA_CO_RETURN_IF_ERROR(co_await TransferAwaiter(
        *link, Transfer::Direction::kRead, fetched_.Slice(offset, source.bytes), source));
    offset += source.bytes;
  }
  co_return absl::OkStatus();
}

bool ServerBulk::ParseMessage(google::protobuf::MessageLite& message) const {
  return message.ParseFromArray(fetched_.data() + request_.payload_bytes + context_bytes_,
                                static_cast<int>(message_bytes()));
}

Buffer ServerBulk::TakeRequestPayload() {
  if (fetched_) fetched_.set_size(request_.payload_bytes);
  return std::move(fetched_);
}

void ServerBulk::DropRequest() {
  ReturnLanded();
  fetched_.Reset();
  if (!VERBENA_MUTANT(kSharesOutliveHandlers)) shares_.Return(session_->client());
}

void ServerBulk::ReturnLanded() {
  const size_t landed = std::exchange(landed_, 0);
  if (landed == 0) return;
  if (lease_ == nullptr) {
    session_->client().EndGrant(landed);
  } else {
    ReturnWithMemory(std::move(fetched_), landed, session_->client(), nullptr);
  }
}

}  // namespace verbena::internal
