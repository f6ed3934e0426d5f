// Payload memory: Buffer and BufferView, RegisteredMemory, and MemoryBudgets.
//
// A Buffer owns registered memory. It comes from Channel::AllocateBuffer() or
// ServerContext::AllocateBuffer(), or wraps a part of the program's own memory (RegisteredMemory).
// MemoryBudgets bounds what each executor pins.
//
//   VERBENA_CO_ASSIGN_OR_RETURN(Buffer block, co_await channel.AllocateBuffer(64 * 1024));
//   std::memcpy(block.data(), bytes.data(), bytes.size());

#ifndef VERBENA_RPC_BUFFER_H_
#define VERBENA_RPC_BUFFER_H_

#include "verbena/transport/memory/buffer.h"             // IWYU pragma: export
#include "verbena/transport/memory/memory_budgets.h"     // IWYU pragma: export
#include "verbena/transport/memory/registered_memory.h"  // IWYU pragma: export

#endif  // VERBENA_RPC_BUFFER_H_
