// MemoryFixture: a server and a client of MemoryService, in one process.

#ifndef VERBENA_TESTS_RPC_MEMORY_FIXTURE_H_
#define VERBENA_TESTS_RPC_MEMORY_FIXTURE_H_

#include <cstring>
#include <memory>
#include <utility>

#include "tests/rpc/memory_service.h"
#include "tests/rpc/payload_service.h"
#include "verbena/rpc/shard/runtime.h"

namespace verbena::internal {

inline constexpr LeaseAccess kAnyAccess =
    LeaseAccess::kRead | LeaseAccess::kWrite | LeaseAccess::kAtomic;

class MemoryFixture : public PayloadFixture {
 protected:
  void StartBothWith(LinkLimits limits, int executors = 1) {
    server_runtime_ = StartRuntime({.executors = executors, .limits = limits});
    ServeWith(memories_);
    StartClient({.limits = limits});
    stub_ = std::make_unique<testing::Memories::Stub>(*channel_);
    // If the device has no atomics, their cases test only the refusal.
    auto probe = [this]() -> Task<bool> {
      absl::StatusOr<Endpoint*> endpoint = CoreOf(*client_runtime_).shard(0).EndpointOn(0);
      co_return endpoint.ok() && (*endpoint)->device().capabilities().atomics;
    };
    atomics_ = Run(probe());
  }
  // Every kind of access that the device supports.
  LeaseAccess Access() const {
    return atomics_ ? kAnyAccess : LeaseAccess::kRead | LeaseAccess::kWrite;
  }

  void TearDown() override {
    if (client_runtime_ != nullptr && server_runtime_ != nullptr) ExpectNothingHeld();
  }

  Task<absl::StatusOr<Buffer>> Zeroed(size_t bytes) {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await channel_->AllocateBuffer(bytes));
    std::memset(buffer.data(), 0, buffer.size());
    co_return buffer;
  }
  static uint64_t WordAt(const Buffer& buffer, size_t offset) {
    uint64_t word;
    std::memcpy(&word, buffer.data() + offset, sizeof(word));
    return word;
  }

  static testing::UseRequest Request(const RemoteMemoryHandle& handle, testing::Operation operation,
                                     uint64_t offset, uint64_t bytes = 0, uint32_t times = 1) {
    testing::UseRequest request;
    *request.mutable_memory() = handle;
    request.set_operation(operation);
    request.set_offset(offset);
    request.set_bytes(bytes);
    request.set_times(times);
    return request;
  }
  Task<absl::StatusOr<testing::UseReply>> Use(testing::UseRequest request) {
    co_return co_await stub_->Use(std::move(request));
  }
  // Use(), for tests that need the status alone.
  Task<absl::Status> Used(testing::UseRequest request) {
    absl::StatusOr<testing::UseReply> reply = co_await stub_->Use(std::move(request));
    co_return reply.status();
  }

  size_t LinksLost(Runtime& runtime) { return runtime.endpoint_stats(0).links_lost; }

  MemoryService memories_;
  std::unique_ptr<testing::Memories::Stub> stub_;
  bool atomics_ = false;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_RPC_MEMORY_FIXTURE_H_
