// ArenaGrowth: a function that makes the next arena of a pool, and destroys those whose room it
// takes. Internal to transport/memory.
//
// Both are control verbs, which may take milliseconds to seconds. The function owns all that it
// works on, so that it may run on a control thread while the pool is used, and after the pool is
// gone. The device and the PD outlive it.

#ifndef VERBENA_TRANSPORT_MEMORY_ARENA_GROWTH_H_
#define VERBENA_TRANSPORT_MEMORY_ARENA_GROWTH_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/memory/arena.h"
#include "verbena/transport/memory/block.h"
#include "verbena/transport/memory/carved_arena.h"

namespace verbena::internal {

struct ArenaGrowth {
  Device* device;
  ibv_pd* pd;
  int access;
  ArenaKind kind;
  // The home thread of the arena, and the owner of its blocks.
  Scheduler* home;
  BlockOwner* owner;
  // Makes an arena of `bytes`, or of `least` if the device refuses that. Whole pages.
  size_t bytes = 0;
  size_t least = 0;
  // Arenas to destroy first. No io_uring knows them any more.
  std::vector<std::unique_ptr<CarvedArena>> retired = {};
  size_t retired_bytes = 0;

  absl::StatusOr<std::unique_ptr<CarvedArena>> operator()();
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_MEMORY_ARENA_GROWTH_H_
