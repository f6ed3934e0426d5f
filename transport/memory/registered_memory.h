// RegisteredMemory: a user's own memory, registered once with a device, and handed out as Buffers.
//
// For caches and write logs that exist already: their memory becomes payload without a copy. The
// user owns the memory, which must outlive this object. This object must outlive its Buffers:
// otherwise the registration stays, with an error in the log. Any thread. O_DIRECT wants the memory
// aligned as the file says; nothing else does.
//
// Memory with a home executor is a fixed buffer of that executor's io_uring, as a pool's is: files
// of that executor with O_DIRECT read and write it without pinning it each time. Their first
// transfer pins all of it on the executor's thread, against RLIMIT_MEMLOCK. Memory that cannot be
// pinned, or is larger than 1 GiB, is no fixed buffer. Memory with a home must be destroyed on its
// home's thread, or leave the ring there first (LeaveRing()). Other files, and memory without a
// home, use no fixed buffer.
//
// Programs get it from Runtime::RegisterMemory(), which registers on a control thread.
//
//   VERBENA_CO_ASSIGN_OR_RETURN(std::unique_ptr<RegisteredMemory> cache,
//                               co_await runtime.RegisterMemory(memory, bytes));
//   VERBENA_CO_ASSIGN_OR_RETURN(Buffer block, cache->Wrap(offset, 4096, [=] { Unpin(offset); }));
//
//   precondition                           how it is checked   test
//   with a home: destroyed on its thread   a check aborts      ring_backend_test
//   Wrap() within the memory               OUT_OF_RANGE        buffer_test
//   its Buffers are destroyed before it    the log says so
//   the memory outlives it                 not checked

#ifndef VERBENA_TRANSPORT_MEMORY_REGISTERED_MEMORY_H_
#define VERBENA_TRANSPORT_MEMORY_REGISTERED_MEMORY_H_

#include <cstddef>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/memory/buffer.h"

// Declared here, so that users of buffers do not include the headers of libibverbs.
struct ibv_pd;

namespace verbena {

class Scheduler;

namespace internal {
class Device;
}  // namespace internal

class VERBENA_EXPORT RegisteredMemory {
 public:
  // For the runtime. Blocks, 0.3 s and more for a gibibyte: not for an executor's thread. `access`
  // is a set of IBV_ACCESS_*. `home` is the executor whose files use the memory, or null. Fails as
  // Device::RegMr does.
  static absl::StatusOr<std::unique_ptr<RegisteredMemory>> Register(internal::Device& device,
                                                                    ibv_pd* pd, void* memory,
                                                                    size_t bytes, int access,
                                                                    Scheduler* home = nullptr);
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;
  // Blocks while the device deregisters it.
  ~RegisteredMemory();

  // [offset, offset + bytes) as a Buffer. `released` is called once neither it nor any operation
  // uses the memory any more, on whatever thread that happens. OUT_OF_RANGE beyond the memory.
  absl::StatusOr<Buffer> Wrap(size_t offset, size_t bytes,
                              absl::AnyInvocable<void()> released = {});

  const internal::MemoryRegion& region() const;
  // For the runtime: keeps `holder`, which keeps the device open, until the memory is deregistered.
  // Call before this object is handed out.
  void HoldDevice(std::shared_ptr<const void> holder);
  // The number of Buffers that still use the memory.
  size_t in_use() const;
  // Takes the memory out of its home's ring. Returns true if it is in none: then this may be
  // destroyed on any thread. Returns false, and does nothing, if a Buffer is in use: then only the
  // home's thread may destroy this. Call it on the home's thread. Without a home it returns true.
  bool LeaveRing();

 private:
  class Core;
  explicit RegisteredMemory(std::unique_ptr<Core> core);

  std::unique_ptr<Core> core_;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_MEMORY_REGISTERED_MEMORY_H_
