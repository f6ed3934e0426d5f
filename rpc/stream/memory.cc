#include "verbena/rpc/stream/memory.h"

#include <algorithm>
#include <new>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/list.h"

namespace verbena::internal {

StreamMemory::~StreamMemory() {
  while (idle_ != nullptr) {
    StreamChunk* chunk = idle_;
    UnpoisonMemory(chunk->data(), chunk->capacity);
    idle_ = chunk->next;
    ::operator delete(chunk);
  }
}

StreamChunk* StreamMemory::NewChunk(uint32_t capacity) {
  if (capacity == kChunkBytes && idle_ != nullptr) {
    StreamChunk* chunk = idle_;
    idle_ = chunk->next;
    VERBENA_DCHECK(idle_count_ > 0);
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
  if (chunk->capacity != kChunkBytes || idle_count_ == kMaxIdleChunks) {
    ::operator delete(chunk);
    return;
  }
  PoisonMemory(chunk->data(), chunk->capacity);
  chunk->next = idle_;
  idle_ = chunk;
  ++idle_count_;
}

StreamShare::StreamShare(StreamMemory& memory, size_t max_bytes, std::string whose,
                         std::shared_ptr<StreamShare> above)
    : memory_(memory),
      above_(std::move(above)),
      quota_(max_bytes, above_ == nullptr ? &*memory.quota_ : &above_->quota_,
             {.whose = std::move(whose), .remedy = ""}) {}

StreamChunk* StreamShare::Allocate(uint32_t bytes) {
  const uint32_t capacity = std::max(bytes, StreamMemory::kChunkBytes);
  return quota_.TryTake(capacity) ? memory_.NewChunk(capacity) : nullptr;
}

void StreamShare::Free(StreamChunk* chunk) {
  quota_.Give(chunk->capacity);
  memory_.Free(chunk);
}

bool StreamShare::TryReserve(size_t bytes) { return quota_.TryTake(bytes); }

void StreamShare::EndReservation(size_t bytes) { quota_.Give(bytes); }

absl::Status StreamShare::Exhausted(size_t bytes) const {
  const Quota& full = quota_.Lacking(bytes);
  return absl::ResourceExhaustedError(fmt::format(
      "no memory for {} bytes of a stream's message: {} have {} of {} bytes on this executor that "
      "wait to be read or sent: read them sooner, or send smaller messages, or fewer at once",
      bytes, full.whose(), full.used(), full.limit()));
}

void EmptyAndKeepLittle(std::string& bytes) {
  bytes.clear();
  if (bytes.capacity() > kMaxKeptBytes) {
    // An assignment of an empty string would keep the memory.
    std::string().swap(bytes);
  }
}

}  // namespace verbena::internal
