#include "verbena/rpc/internal/stream_memory.h"

#include <algorithm>
#include <new>

#include "verbena/transport/coro/poison.h"
#include "verbena/transport/log/check.h"

namespace verbena::internal {

StreamMemory::~StreamMemory() {
  while (idle_ != nullptr) {
    StreamChunk* chunk = idle_;
    UnpoisonMemory(chunk->data(), chunk->capacity);
    idle_ = chunk->next;
    ::operator delete(chunk);
  }
}

StreamChunk* StreamMemory::Allocate(uint32_t bytes) {
  const uint32_t capacity = std::max(bytes, kChunkBytes);
  if (!TryReserve(capacity)) return nullptr;
  if (capacity == kChunkBytes && idle_ != nullptr) {
    StreamChunk* chunk = idle_;
    idle_ = chunk->next;
    --idle_count_;
    UnpoisonMemory(chunk->data(), chunk->capacity);
    chunk->next = nullptr;
    chunk->begin = chunk->end = 0;
    return chunk;
  }
  auto* chunk = new (::operator new(sizeof(StreamChunk) + capacity)) StreamChunk;
  chunk->capacity = capacity;
  return chunk;
}

void StreamMemory::Free(StreamChunk* chunk) {
  VERBENA_CHECK(used_bytes_ >= chunk->capacity) << used_bytes_ << " bytes are in use";
  used_bytes_ -= chunk->capacity;
  if (chunk->capacity != kChunkBytes || idle_count_ == kMaxIdleChunks) {
    ::operator delete(chunk);
    return;
  }
  PoisonMemory(chunk->data(), chunk->capacity);
  chunk->next = idle_;
  idle_ = chunk;
  ++idle_count_;
}

bool StreamMemory::TryReserve(size_t bytes) {
  if (bytes > budget_bytes_ - used_bytes_) return false;
  used_bytes_ += bytes;
  return true;
}

}  // namespace verbena::internal
