#include "verbena/rpc/stream/memory.h"

#include <algorithm>
#include <new>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/list.h"

namespace verbena::internal {

StreamMemory::~StreamMemory() {
  VERBENA_CHECK(used_bytes_ == 0) << used_bytes_ << " bytes of streams' messages are in use";
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
    : memory_(memory), max_bytes_(max_bytes), whose_(std::move(whose)), above_(std::move(above)) {}

StreamChunk* StreamShare::Allocate(uint32_t bytes) {
  const uint32_t capacity = std::max(bytes, StreamMemory::kChunkBytes);
  return TryReserve(capacity) ? memory_.NewChunk(capacity) : nullptr;
}

void StreamShare::Free(StreamChunk* chunk) {
  EndReservation(chunk->capacity);
  memory_.Free(chunk);
}

bool StreamShare::TryReserve(size_t bytes) {
  VERBENA_DCHECK(memory_.used_bytes_ <= memory_.budget_bytes_)
      << memory_.used_bytes_ << " of " << memory_.budget_bytes_;
  if (bytes > memory_.budget_bytes_ - memory_.used_bytes_) return false;
  for (const StreamShare* share = this; share != nullptr; share = share->above_.get()) {
    if (!share->has(bytes)) return false;
  }
  for (StreamShare* share = this; share != nullptr; share = share->above_.get()) {
    share->used_bytes_ += bytes;
  }
  memory_.used_bytes_ += bytes;
  return true;
}

void StreamShare::EndReservation(size_t bytes) {
  for (StreamShare* share = this; share != nullptr; share = share->above_.get()) {
    VERBENA_CHECK(share->used_bytes_ >= bytes)
        << share->whose_ << " have " << share->used_bytes_ << " bytes, and give back " << bytes;
    share->used_bytes_ -= bytes;
  }
  memory_.used_bytes_ -= bytes;
}

absl::Status StreamShare::Exhausted(size_t bytes) const {
  const StreamShare* full = this;
  while (full != nullptr && full->has(bytes)) full = full->above_.get();
  const bool is_shared = full == nullptr;
  return absl::ResourceExhaustedError(fmt::format(
      "no memory for {} bytes of a stream's message: {} have {} of {} bytes on this executor that "
      "wait to be read or sent: read them sooner, or send smaller messages, or fewer at once",
      bytes, is_shared ? "all streams" : full->whose_,
      is_shared ? memory_.used_bytes_ : full->used_bytes_,
      is_shared ? memory_.budget_bytes_ : full->max_bytes_));
}

void EmptyAndKeepLittle(std::string& bytes) {
  bytes.clear();
  if (bytes.capacity() > kMaxKeptBytes) {
    // An assignment of an empty string would keep the memory.
    std::string().swap(bytes);
  }
}

}  // namespace verbena::internal
