#include "verbena/transport/link/send_buffers.h"

#include <utility>

#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/link/limits.h"

namespace verbena::internal {

absl::StatusOr<std::unique_ptr<SendBuffers>> SendBuffers::Create(Device& device, ibv_pd* pd,
                                                                 uint32_t count, uint32_t bytes,
                                                                 uint32_t max_links) {
  const size_t in_all = size_t{count} + kSpares;
  VERBENA_ASSIGN_OR_RETURN(
      Arena arena,
      Arena::Create(device, pd, in_all * (bytes + kReceiveStridePadding), /*access=*/0));
  return std::unique_ptr<SendBuffers>(new SendBuffers(std::move(arena), count, bytes, max_links));
}

SendBuffers::SendBuffers(Arena arena, uint32_t count, uint32_t bytes, uint32_t max_links)
    : arena_(std::move(arena)),
      count_(count),
      bytes_(bytes),
      stride_(bytes + kReceiveStridePadding),
      max_links_(max_links),
      free_(count),
      spare_(kSpares) {
  for (uint32_t index = count; index-- > 0;) free_.PushBack(index);
  for (uint32_t index = count; index < count + kSpares; ++index) spare_.PushBack(index);
  PoisonMemory(arena_.data(), arena_.size());
}

SendBuffers::~SendBuffers() { UnpoisonMemory(arena_.data(), arena_.size()); }

}  // namespace verbena::internal
