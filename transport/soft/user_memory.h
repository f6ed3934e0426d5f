// Reads and writes of memory that a program has registered: CopyUserMemory, StoreUserMemory and
// AccessUserMemory, and the guard around them.
//
// A NIC pins registered memory, so a program may unmap or protect it at any time. Here nothing is
// pinned, and the copy faults. Verbena's own processes keep their memory mapped; programs of others
// need the guard (GuardUserMemory). With it, such a copy ends and says so. Any thread.

#ifndef VERBENA_TRANSPORT_SOFT_USER_MEMORY_H_
#define VERBENA_TRANSPORT_SOFT_USER_MEMORY_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/functional/function_ref.h"

namespace verbena::internal::soft {

// From now on the functions below return false for memory that is not mapped, or not to be read or
// written; before, and without this call, they crash. Handles SIGSEGV and SIGBUS of the process,
// and hands what is not theirs on to the handlers that the program had by then. A program that
// replaces the handlers later has no guard any more.
void GuardUserMemory();

// Whether the guard is there.
extern std::atomic<bool> user_memory_guarded;

// Calls `access`, which touches [one, one + bytes) and [other, other + bytes). False if that
// faulted, somewhere in the middle. Nothing that `access` makes is destroyed then.
bool CallGuarded(const void* one, const void* other, size_t bytes,
                 absl::FunctionRef<void()> access);

// The same for one range.
template <typename Access>
bool AccessUserMemory(const void* memory, size_t bytes, Access access) {
  if (user_memory_guarded.load(std::memory_order_relaxed)) {
    return CallGuarded(memory, memory, bytes, access);
  }
  access();
  return true;
}

// Either may be memory of the program. False: some of the bytes were copied.
inline bool CopyUserMemory(void* to, const void* from, size_t bytes) {
  if (user_memory_guarded.load(std::memory_order_relaxed)) {
    return CallGuarded(to, from, bytes, [&] { std::memcpy(to, from, bytes); });
  }
  std::memcpy(to, from, bytes);
  return true;
}

// How many of the last bytes of [to, to + bytes) StoreUserMemory stores after all others: those in
// the last aligned word of 8 bytes.
inline size_t LastWordBytes(uint64_t to, size_t bytes) {
  return std::min<size_t>(bytes, (to + bytes - 1) % 8 + 1);
}

// A copy to memory on which the program may spin, as on that of a NIC that writes in order: whoever
// sees the flag at its end sees everything before. The last word is stored last, each aligned piece
// of it at once.
bool StoreUserMemory(void* to, const void* from, size_t bytes);

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_USER_MEMORY_H_
