#include "verbena/rpc/server/response_memory.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/memory/carved_arena.h"

namespace verbena::internal {

class ResponseMemory::Share {
 public:
  Share(ResponseMemory& memory, size_t bytes)
      : memory_(memory), of_client_(memory.OfClient(bytes)), of_source_(memory.OfSource(bytes)) {}
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;
  ~Share() {
    if (has_client_) memory_.bytes_.Release(of_client_);
    if (has_source_) memory_.source_->response_bytes().Release(of_source_);
  }

  // False, and nothing is taken, if one is missing.
  bool TryTake() {
    has_client_ = memory_.bytes_.TryAcquire(of_client_);
    has_source_ = has_client_ && memory_.source_->response_bytes().TryAcquire(of_source_);
    if (has_client_ && !has_source_) {
      has_client_ = false;
      memory_.bytes_.Release(of_client_);
    }
    return has_source_;
  }
  // Always in this order, so that no two calls wait for each other.
  Task<absl::Status> Take() {
    VERBENA_CO_RETURN_IF_ERROR(co_await memory_.bytes_.Acquire(of_client_));
    has_client_ = true;
    VERBENA_CO_RETURN_IF_ERROR(co_await memory_.source_->response_bytes().Acquire(of_source_));
    has_source_ = true;
    co_return absl::OkStatus();
  }
  bool has_client() const { return has_client_; }
  // Until the memory of `buffer` is free.
  void MoveTo(Buffer& buffer) {
    has_client_ = has_source_ = false;
    ++memory_.buffers_;
    memory_.buffer_bytes_ += of_client_;
    memory_.source_->AddResponseBuffer(of_source_);
    memory_.Hold();
    buffer.set_listener(memory_);
  }

 private:
  ResponseMemory& memory_;
  const size_t of_client_;
  const size_t of_source_;
  bool has_client_ = false;
  bool has_source_ = false;
};

Task<absl::StatusOr<Buffer>> ResponseMemory::Allocate(const Endpoint& endpoint, size_t bytes,
                                                      MemoryWait wait, const std::string& peer,
                                                      uint64_t& refused, size_t beside) {
  // The device may fail meanwhile.
  [[maybe_unused]] const auto use = endpoint.Use();
  BufferPool& pool = endpoint.memory().send();
  // The pool refuses so many bytes, and names the number.
  if (bytes > kMaxBufferBytes) {
    co_return co_await AllocateUntil(endpoint, pool, bytes, wait);
  }
  // As many bytes as OnBlockHome() will hear when the buffer's memory is free.
  Share share(*this, SizeClassBytes(SizeClassOf(bytes)));
  if (!share.TryTake()) {
    const bool alone = buffers_ > 0 && buffers_ <= beside;
    if (alone && source_->TryTakeExtra()) co_return co_await AllocateExtra(endpoint, bytes, wait);
    const TimePoint began = endpoint.executor().now();
    const TimePoint limit = WaitLimit(began, wait);
    const absl::Status waited = co_await WithDeadline(share.Take(), limit);
    const TimePoint now = endpoint.executor().now();
    // An earlier deadline is the caller's own.
    if (absl::IsDeadlineExceeded(waited) && now >= limit) {
      ++refused;
      co_return Exhausted(bytes, now - began, peer, share.has_client());
    }
    VERBENA_CO_RETURN_IF_ERROR(waited);
    // One limit for both waits.
    wait.deadline = kNever;
    wait.longest = std::max(limit - now, Duration::zero());
  }
  absl::StatusOr<Buffer> buffer = co_await AllocateUntil(endpoint, pool, bytes, wait);
  if (buffer.ok()) share.MoveTo(*buffer);
  co_return buffer;
}

Task<absl::StatusOr<Buffer>> ResponseMemory::AllocateExtra(const Endpoint& endpoint, size_t bytes,
                                                           MemoryWait wait) {
  absl::Cleanup give_up = [this] { source_->GiveExtra(); };
  absl::StatusOr<Buffer> buffer =
      co_await AllocateUntil(endpoint, endpoint.memory().send(), bytes, wait);
  if (buffer.ok()) {
    std::move(give_up).Cancel();
    Hold();
    buffer->set_listener(extra_);
  }
  co_return buffer;
}

void ResponseMemory::OnBlockHome(size_t capacity) {
  VERBENA_CHECK(buffers_ > 0 && buffer_bytes_ >= OfClient(capacity))
      << buffers_ << " buffers of " << buffer_bytes_ << " bytes, one of " << capacity;
  bytes_.Release(OfClient(capacity));
  source_->response_bytes().Release(OfSource(capacity));
  buffer_bytes_ -= OfClient(capacity);
  source_->RemoveResponseBuffer(OfSource(capacity));
  --buffers_;
  LetGo();
}

void ResponseMemory::Extra::OnBlockHome(size_t) {
  memory_.source_->GiveExtra();
  memory_.LetGo();
}

// The call has left the queue by now: who was ahead of it is not known, since those behind may have
// got their shares meanwhile. Shares are given first come, first served: if there is enough for a
// call that was not served, one that wants more was ahead, unless that came free just now.
std::string ResponseMemory::Others(size_t asked, size_t available, size_t kept_for_calls) {
  std::string text;
  if (kept_for_calls > 0) {
    text += fmt::format(", and {} more are kept for other calls, which wait for memory",
                        kept_for_calls);
  }
  if (asked <= available) {
    text += fmt::format(", and the {} left may be too few for a call that asked before", available);
  }
  return text;
}

absl::Status ResponseMemory::Exhausted(size_t bytes, Duration waited, const std::string& peer,
                                       bool of_source) const {
  const size_t most = of_source ? source_->max_response_bytes() : max_bytes_;
  const size_t free = of_source ? source_->response_bytes().available() : bytes_.available();
  const size_t taken = of_source ? source_->response_buffer_bytes() : buffer_bytes_;
  const size_t asked = std::min(SizeClassBytes(SizeClassOf(bytes)), most);
  return absl::ResourceExhaustedError(fmt::format(
      "{} bytes for a response did not come free within {} ms: responses to {} ({}), and buffers "
      "that its handlers keep, take {} of the {} bytes of send memory that {} may have{}. Take "
      "responses faster, or raise ServerOptions::{}",
      bytes, std::chrono::duration_cast<std::chrono::milliseconds>(waited).count(),
      of_source ? "this client's address" : "this client", peer, taken, most,
      of_source ? "all its clients" : "it", Others(asked, free, most - free - taken),
      of_source ? "max_response_bytes_per_source" : "max_response_bytes_per_client"));
}

}  // namespace verbena::internal
