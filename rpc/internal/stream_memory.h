// StreamMemory: the heap memory of one executor for stream messages that nobody has read yet.
//
// Parts of messages that wait for their reader lie in chunks, which go back to a free list of at
// most kMaxIdleChunks. A message that comes in several frames also reserves what has come of it
// while it is put together. Both count against one budget; a stream that finds it used up fails
// with RESOURCE_EXHAUSTED. Owned by the Shard, on its executor's thread.

#ifndef VERBENA_RPC_INTERNAL_STREAM_MEMORY_H_
#define VERBENA_RPC_INTERNAL_STREAM_MEMORY_H_

#include <cstddef>
#include <cstdint>

namespace verbena::internal {

// Parts of messages, one behind the other.
struct StreamChunk {
  StreamChunk* next = nullptr;
  uint32_t begin = 0;  // of what is not read
  uint32_t end = 0;
  uint32_t capacity = 0;

  char* data() { return reinterpret_cast<char*>(this + 1); }
};

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

  // An empty chunk for at least `bytes`; nullptr if the budget is used up.
  StreamChunk* Allocate(uint32_t bytes);
  void Free(StreamChunk* chunk);

  // For a message that is put together. False if the budget is used up.
  bool TryReserve(size_t bytes);
  void EndReservation(size_t bytes) { used_bytes_ -= bytes; }

  size_t budget_bytes() const { return budget_bytes_; }
  size_t used_bytes() const { return used_bytes_; }

 private:
  const size_t budget_bytes_;
  size_t used_bytes_ = 0;
  StreamChunk* idle_ = nullptr;
  uint32_t idle_count_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_INTERNAL_STREAM_MEMORY_H_
