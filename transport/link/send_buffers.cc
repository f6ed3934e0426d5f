#include "verbena/transport/link/send_buffers.h"

#include <utility>

#include "verbena/transport/link/limits.h"

namespace verbena {

absl::StatusOr<std::unique_ptr<SendBuffers>> SendBuffers::Create(Device& device, ibv_pd* pd,
                                                                 uint32_t count, uint32_t bytes) {
  absl::StatusOr<Arena> arena =
      Arena::Create(device, pd, size_t{count} * (bytes + kReceiveStridePadding), /*access=*/0);
  if (!arena.ok()) return arena.status();
  return std::unique_ptr<SendBuffers>(new SendBuffers(*std::move(arena), count, bytes));
}

SendBuffers::SendBuffers(Arena arena, uint32_t count, uint32_t bytes)
    : arena_(std::move(arena)),
      count_(count),
      bytes_(bytes),
      stride_(bytes + kReceiveStridePadding),
      free_(count) {
  for (uint32_t index = count; index-- > 0;) free_.PushBack(index);
  PoisonMemory(arena_.data(), arena_.size());
}

SendBuffers::~SendBuffers() { UnpoisonMemory(arena_.data(), arena_.size()); }

}  // namespace verbena
