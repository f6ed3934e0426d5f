// MemoryFixture: a server and a client of MemoryService, in one process.

#ifndef VERBENA_TESTS_RPC_MEMORY_FIXTURE_H_
#define VERBENA_TESTS_RPC_MEMORY_FIXTURE_H_

#include <memory>

#include "tests/rpc/memory_service.h"
#include "tests/rpc/payload_service.h"

namespace verbena::internal {

inline constexpr LeaseAccess kAnyAccess =
    LeaseAccess::kRead | LeaseAccess::kWrite | LeaseAccess::kAtomic;

class MemoryFixture : public PayloadFixture {
 protected:
  void StartBothWith(LinkLimits limits, int executors = 1);
  // Every kind of access that the device supports.
  LeaseAccess Access() const;

  void TearDown() override;

  Task<absl::StatusOr<Buffer>> Zeroed(size_t bytes);
  static uint64_t WordAt(const Buffer& buffer, size_t offset);
  static testing::UseRequest Request(const RemoteMemoryHandle& handle, testing::Operation operation,
                                     uint64_t offset, uint64_t bytes = 0, uint32_t times = 1);
  Task<absl::StatusOr<testing::UseReply>> Use(testing::UseRequest request);
  // Use(), for tests that need the status alone.
  Task<absl::Status> Used(testing::UseRequest request);

  size_t LinksLost(Runtime& runtime) { return runtime.endpoint_stats(0).links_lost; }

  MemoryService memories_;
  std::unique_ptr<testing::Memories::Stub> stub_;
  bool atomics_ = false;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_RPC_MEMORY_FIXTURE_H_
