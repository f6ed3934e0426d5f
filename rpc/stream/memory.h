// StreamMemory: the heap memory of one executor for messages of streams. StreamShare: the part of
// it that one peer may take.
//
// Three things count. First, parts of messages that wait for their reader, in chunks; free chunks
// go to a free list of at most kMaxIdleChunks. Second, a message that is put together: the part
// that has come, and then the whole message until its reader is done with it. Third, a message that
// leaves in parts. A StreamShare's quota may be a part of another one's, as a client's is of its
// source's. If one of them, or the executor's, is used up, the operation fails with
// RESOURCE_EXHAUSTED. Owned by the Shard, which outlives the shares; on its executor's thread.

#ifndef VERBENA_RPC_STREAM_MEMORY_H_
#define VERBENA_RPC_STREAM_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "verbena/transport/coro/quota.h"

namespace verbena::internal {

// Parts of messages, one behind the other.
struct StreamChunk {
  StreamChunk* next = nullptr;
  uint32_t begin = 0;  // of the bytes that are not read
  uint32_t end = 0;
  uint32_t capacity = 0;

  char* data() { return reinterpret_cast<char*>(this + 1); }
};

class StreamShare;

class StreamMemory {
 public:
  static constexpr size_t kBudgetBytes = size_t{256} << 20;  // (start)
  // The size of a chunk, unless one part needs more: room for the largest frame of the default
  // eager size.
  static constexpr uint32_t kChunkBytes = 4096;
  static constexpr uint32_t kMaxIdleChunks = 256;

  explicit StreamMemory(size_t budget_bytes = kBudgetBytes) { set_budget_bytes(budget_bytes); }
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;
  ~StreamMemory();

  size_t budget_bytes() const { return quota_->limit(); }
  size_t used_bytes() const { return quota_->used(); }
  // For tests, before there are shares.
  void set_budget_bytes(size_t bytes) {
    quota_.emplace(bytes, nullptr, Quota::Words{.whose = "all streams", .remedy = ""});
  }

 private:
  friend StreamShare;

  StreamChunk* NewChunk(uint32_t capacity);
  void Free(StreamChunk* chunk);

  std::optional<Quota> quota_;
  StreamChunk* idle_ = nullptr;
  uint32_t idle_count_ = 0;
};

class StreamShare {
 public:
  // `whose` says, in errors, whose streams these are. `above` is null, or the share that this one
  // is a part of.
  StreamShare(StreamMemory& memory, size_t max_bytes, std::string whose,
              std::shared_ptr<StreamShare> above = nullptr);
  StreamShare(const StreamShare&) = delete;
  StreamShare& operator=(const StreamShare&) = delete;

  // An empty chunk for at least `bytes`; nullptr if a quota is used up.
  StreamChunk* Allocate(uint32_t bytes);
  void Free(StreamChunk* chunk);
  // For a message that is put together, or leaves in parts. False if a quota is used up. Out of
  // line, since small messages need neither.
  bool TryReserve(size_t bytes);
  void EndReservation(size_t bytes);
  // Why there is no memory for `bytes` more.
  [[gnu::cold]] absl::Status Exhausted(size_t bytes) const;

  size_t used_bytes() const { return quota_.used(); }

 private:
  StreamMemory& memory_;
  const std::shared_ptr<StreamShare> above_;
  Quota quota_;
};

// Empties memory that a message was put together in, or cut from. Only a little stays for the next
// message.
inline constexpr size_t kMaxKeptBytes = 4096;
void EmptyAndKeepLittle(std::string& bytes);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_STREAM_MEMORY_H_
