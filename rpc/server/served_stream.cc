#include "verbena/rpc/server/served_stream.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/call/memory.h"
#include "verbena/rpc/server/server_client.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena::internal {
namespace {

// The part of the client's bytes, and of its source's, that a payload takes. Owns itself once a
// buffer has it, until that buffer's memory is free.
class PayloadShare final : public BlockListener {
 public:
  PayloadShare(std::shared_ptr<ServerClient> client, size_t bytes)
      : client_(std::move(client)),
        of_client_(std::min(bytes, client_->max_bytes())),
        of_source_(std::min(bytes, client_->source().max_bytes())) {}
  PayloadShare(const PayloadShare&) = delete;
  PayloadShare& operator=(const PayloadShare&) = delete;
  ~PayloadShare() override {
    if (has_client_) client_->bytes().Release(of_client_);
    if (has_source_) client_->source_bytes().Release(of_source_);
  }

  bool TryTake() {
    has_client_ = client_->bytes().TryAcquire(of_client_);
    has_source_ = has_client_ && client_->source_bytes().TryAcquire(of_source_);
    if (has_client_ && !has_source_) {
      has_client_ = false;
      client_->bytes().Release(of_client_);
    }
    return has_source_;
  }
  // Always in this order, so that no two calls wait for each other.
  Task<absl::Status> Take() {
    VERBENA_CO_RETURN_IF_ERROR(co_await client_->bytes().Acquire(of_client_));
    has_client_ = true;
    VERBENA_CO_RETURN_IF_ERROR(co_await client_->source_bytes().Acquire(of_source_));
    has_source_ = true;
    co_return absl::OkStatus();
  }
  bool lacks_source_bytes() const { return of_source_ > client_->source_bytes().available(); }

  // The wait for it took `waited`, in vain.
  absl::Status Exhausted(size_t bytes, Duration waited) const {
    const ServerSource& source = client_->source();
    const size_t most = has_client_ ? source.max_bytes() : client_->max_bytes();
    const size_t free =
        has_client_ ? client_->source_bytes().available() : client_->bytes().available();
    return absl::ResourceExhaustedError(fmt::format(
        "{} bytes for a payload did not come free within {} ms: payloads of {} take {} of the {} "
        "bytes that {} may have. Destroy the Buffers of messages sooner, or raise "
        "ServerOptions::{}",
        bytes, std::chrono::duration_cast<std::chrono::milliseconds>(waited).count(),
        has_client_ ? "this client's address" : "this client", most - free, most,
        has_client_ ? "all its clients" : "it",
        has_client_ ? "max_bytes_per_source" : "max_bytes_per_client"));
  }

  void OnBlockHome(size_t) override { delete this; }

 private:
  const std::shared_ptr<ServerClient> client_;
  const size_t of_client_;
  const size_t of_source_;
  bool has_client_ = false;
  bool has_source_ = false;
};

Buffer Counted(Buffer buffer, std::unique_ptr<PayloadShare> share) {
  buffer.set_listener(*share.release());
  return buffer;
}

absl::Status LinkLost() { return absl::UnavailableError("the link was lost"); }

}  // namespace

absl::StatusOr<Buffer> RequestBuffers::TryAllocate(size_t bytes) {
  const Link* link = call_link_->link();
  if (link == nullptr) return LinkLost();
  auto share = std::make_unique<PayloadShare>(call_link_->client().shared_from_this(), bytes);
  if (!share->TryTake()) {
    return absl::ResourceExhaustedError("the client's share of payload memory is taken");
  }
  VERBENA_ASSIGN_OR_RETURN(Buffer buffer, link->endpoint().memory().receive().TryAllocate(bytes));
  return Counted(std::move(buffer), std::move(share));
}

Task<absl::StatusOr<Buffer>> RequestBuffers::Allocate(size_t bytes) {
  const Link* link = call_link_->link();
  if (link == nullptr) co_return LinkLost();
  const Endpoint& endpoint = link->endpoint();
  [[maybe_unused]] const auto use = endpoint.Use();
  MemoryWait wait{.deadline = deadline_,
                  .longest = state_->limits().memory_wait,
                  .holders = &state_->receive_holders()};
  auto share = std::make_unique<PayloadShare>(call_link_->client().shared_from_this(), bytes);
  if (!share->TryTake()) {
    if (share->lacks_source_bytes()) call_link_->ReclaimGrantsOfSource();
    const TimePoint began = endpoint.executor().now();
    const TimePoint limit = WaitLimit(began, wait);
    const absl::Status waited = co_await WithDeadline(share->Take(), limit);
    const TimePoint now = endpoint.executor().now();
    // An earlier deadline is the caller's own.
    if (absl::IsDeadlineExceeded(waited) && now >= limit) {
      ++state_->memory_refused();
      co_return share->Exhausted(bytes, now - began);
    }
    VERBENA_CO_RETURN_IF_ERROR(waited);
    // One limit for both waits.
    wait.deadline = kNever;
    wait.longest = std::max(limit - now, Duration::zero());
  }
  BufferPool& pool = endpoint.memory().receive();
  absl::StatusOr<Buffer> buffer = pool.TryAllocate(bytes);
  if (!buffer.ok()) {
    call_link_->ReclaimGrants();
    buffer = co_await AllocateUntil(endpoint, pool, bytes, wait);
    VERBENA_CO_RETURN_IF_ERROR(buffer.status());
  }
  co_return Counted(*std::move(buffer), std::move(share));
}

}  // namespace verbena::internal
