// RegisteredMemory: a user's own memory, registered once with a device, and handed out as Buffers.
//
// For caches and write logs that exist already: their memory becomes payload without a copy. The
// user owns the memory, which outlives this object; this object outlives its Buffers: else the
// registration stays, with an error in the log. Any thread. O_DIRECT wants the memory aligned as
// the file says; nothing else does.
//
//   VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<RegisteredMemory> cache,
//                            RegisteredMemory::Register(device, pd, memory, bytes, /*access=*/0));
//   VERBENA_ASSIGN_OR_RETURN(Buffer block, cache->Wrap(offset, 4096, [this] { Unpin(block); }));

#ifndef VERBENA_TRANSPORT_MEMORY_REGISTERED_MEMORY_H_
#define VERBENA_TRANSPORT_MEMORY_REGISTERED_MEMORY_H_

#include <cstddef>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "verbena/transport/memory/buffer.h"

// verbs' headers stay out of what a user of buffers includes.
struct ibv_pd;

namespace verbena {

class Device;

class RegisteredMemory {
 public:
  // `access` is a set of IBV_ACCESS_*. Fails as Device::RegMr does.
  static absl::StatusOr<std::unique_ptr<RegisteredMemory>> Register(Device& device, ibv_pd* pd,
                                                                    void* memory, size_t bytes,
                                                                    int access);
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;
  ~RegisteredMemory();

  // [offset, offset + bytes) as a Buffer. `released` is called once neither it nor any operation
  // uses the memory any more, on whatever thread that happens. OUT_OF_RANGE beyond the memory.
  absl::StatusOr<Buffer> Wrap(size_t offset, size_t bytes,
                              absl::AnyInvocable<void()> released = {});

  const MemoryRegion& region() const;
  // Buffers that are not home.
  size_t in_use() const;

 private:
  class Core;
  explicit RegisteredMemory(std::unique_ptr<Core> core);

  std::unique_ptr<Core> core_;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_MEMORY_REGISTERED_MEMORY_H_
