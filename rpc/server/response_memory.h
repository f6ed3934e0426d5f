// ResponseMemory: one client's share of one executor's send memory, for responses.
//
// A client that reads slowly, or takes no response at all, keeps the memory of its responses. So
// each client, and each source address, has a bound for the buffers that
// ServerContext::AllocateBuffer() gives the handlers of its calls, and for its large replies. A
// buffer counts until its memory is free again, even if a handler keeps it beyond its call. On its
// executor's thread.

#ifndef VERBENA_RPC_SERVER_RESPONSE_MEMORY_H_
#define VERBENA_RPC_SERVER_RESPONSE_MEMORY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call/memory.h"
#include "verbena/rpc/server/server_source.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

class ResponseMemory final : public std::enable_shared_from_this<ResponseMemory>,
                             private BlockListener {
 public:
  ResponseMemory(std::shared_ptr<ServerSource> source, size_t max_bytes)
      : source_(std::move(source)), max_bytes_(max_bytes), bytes_(max_bytes) {}
  ResponseMemory(const ResponseMemory&) = delete;
  ResponseMemory& operator=(const ResponseMemory&) = delete;

  // A buffer of `bytes` from the send memory of `endpoint`. RESOURCE_EXHAUSTED if `wait` ends
  // before there is room within the bounds, and memory: the message names the budget, who holds it
  // and who waits ahead, and `refused` counts one more. A buffer that is larger than a bound takes
  // all of that bound. `beside` is how many parts the payload of the same call has. If the client
  // has no more buffers than that, a wait for a share would be a wait for the call itself, so its
  // buffer comes beyond the bounds. One call of each source has such a buffer at a time.
  Task<absl::StatusOr<Buffer>> Allocate(const Endpoint& endpoint, size_t bytes, MemoryWait wait,
                                        const std::string& peer, uint64_t& refused,
                                        size_t beside = 0);

 private:
  // A part of both bounds, given back unless a buffer took it over.
  class Share;
  // Hears when the memory that one call has beyond the bounds is free.
  class Extra final : public BlockListener {
   public:
    explicit Extra(ResponseMemory& memory) : memory_(memory) {}
    void OnBlockHome(size_t capacity) override;

   private:
    ResponseMemory& memory_;
  };

  void OnBlockHome(size_t capacity) override;
  size_t OfClient(size_t bytes) const { return std::min(bytes, max_bytes_); }
  size_t OfSource(size_t bytes) const { return std::min(bytes, source_->max_response_bytes()); }
  Task<absl::StatusOr<Buffer>> AllocateExtra(const Endpoint& endpoint, size_t bytes,
                                             MemoryWait wait);
  void Hold() {
    if (held_++ == 0) self_ = shared_from_this();
  }
  void LetGo() {
    VERBENA_CHECK(held_ > 0);
    if (--held_ == 0) self_.reset();  // perhaps the end of this
  }
  static std::string Others(size_t asked, size_t available, size_t kept_for_calls);
  absl::Status Exhausted(size_t bytes, Duration waited, const std::string& peer,
                         bool of_source) const;

  const std::shared_ptr<ServerSource> source_;
  const size_t max_bytes_;
  Semaphore bytes_;
  // Buffers within the bounds, and their bytes. The rest of what is taken of bytes_ is kept for
  // calls that wait.
  size_t buffers_ = 0;
  size_t buffer_bytes_ = 0;
  Extra extra_{*this};
  // While there are buffers, which may outlive the client's links.
  size_t held_ = 0;
  std::shared_ptr<ResponseMemory> self_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_RESPONSE_MEMORY_H_
