// StreamMemory: the heap memory of one executor for messages of streams. StreamShare: the part of
// it that one peer may take.
//
// Three things count. First, parts of messages that wait for their reader, in chunks; free chunks
// go to a free list of at most kMaxIdleChunks. Second, a message that is put together: the part
// that has come, and then the whole message until its reader is done with it. Third, a message that
// leaves in parts. A StreamShare may be a part of another one, as a client's share is of its
// source's. If a share, or the executor's budget, is used up, the operation fails with
// RESOURCE_EXHAUSTED. Owned by the Shard, which outlives the shares; on its executor's thread.

#ifndef VERBENA_RPC_STREAM_MEMORY_H_
#define VERBENA_RPC_STREAM_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "verbena/transport/base/check.h"

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

  explicit StreamMemory(size_t budget_bytes = kBudgetBytes) : budget_bytes_(budget_bytes) {}
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;
  ~StreamMemory();

  size_t budget_bytes() const { return budget_bytes_; }
  size_t used_bytes() const { return used_bytes_; }
  // For tests, before there are shares.
  void set_budget_bytes(size_t bytes) {
    VERBENA_CHECK(used_bytes_ == 0) << used_bytes_ << " bytes are in use";
    budget_bytes_ = bytes;
  }

 private:
  friend StreamShare;

  StreamChunk* NewChunk(uint32_t capacity);
  void Free(StreamChunk* chunk);

  size_t budget_bytes_;
  size_t used_bytes_ = 0;
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
  ~StreamShare() {
    VERBENA_CHECK(used_bytes_ == 0) << whose_ << " never gave back " << used_bytes_ << " bytes";
  }

  // An empty chunk for at least `bytes`; nullptr if a budget is used up.
  StreamChunk* Allocate(uint32_t bytes);
  void Free(StreamChunk* chunk);
  // For a message that is put together, or leaves in parts. False if a budget is used up.
  bool TryReserve(size_t bytes);
  void EndReservation(size_t bytes);
  // Why there is no memory for `bytes` more.
  [[gnu::cold]] absl::Status Exhausted(size_t bytes) const;

  size_t used_bytes() const { return used_bytes_; }

 private:
  bool has(size_t bytes) const {
    return used_bytes_ <= max_bytes_ && bytes <= max_bytes_ - used_bytes_;
  }

  StreamMemory& memory_;
  const size_t max_bytes_;
  const std::string whose_;
  const std::shared_ptr<StreamShare> above_;
  size_t used_bytes_ = 0;
};

// Empties memory that a message was put together in, or cut from. Only a little stays for the next
// message.
inline constexpr size_t kMaxKeptBytes = 4096;
void EmptyAndKeepLittle(std::string& bytes);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_STREAM_MEMORY_H_
