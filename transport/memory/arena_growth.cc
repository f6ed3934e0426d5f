#include "verbena/transport/memory/arena_growth.h"

#include <utility>

#include "verbena/transport/base/status_macros.h"

namespace verbena::internal {

absl::StatusOr<std::unique_ptr<CarvedArena>> ArenaGrowth::operator()() {
  retired.clear();
  absl::StatusOr<Arena> arena = Arena::Create(*device, pd, bytes, access, kind);
  if (!arena.ok() && least < bytes) arena = Arena::Create(*device, pd, least, access, kind);
  VERBENA_RETURN_IF_ERROR(arena.status());
  return std::make_unique<CarvedArena>(*std::move(arena), home, *owner);
}

}  // namespace verbena::internal
