#include "tests/rpc/memory_fixture.h"

#include <cstring>
#include <memory>
#include <utility>

#include "verbena/rpc/shard/runtime.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena::internal {

void MemoryFixture::StartBothWith(LinkLimits limits, int executors) {
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

LeaseAccess MemoryFixture::Access() const {
  return atomics_ ? kAnyAccess : LeaseAccess::kRead | LeaseAccess::kWrite;
}

void MemoryFixture::TearDown() {
  if (client_runtime_ != nullptr && server_runtime_ != nullptr) ExpectNothingHeld();
}

Task<absl::StatusOr<Buffer>> MemoryFixture::Zeroed(size_t bytes) {
  VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await channel_->AllocateBuffer(bytes));
  std::memset(buffer.data(), 0, buffer.size());
  co_return buffer;
}

uint64_t MemoryFixture::WordAt(const Buffer& buffer, size_t offset) {
  uint64_t word;
  std::memcpy(&word, buffer.data() + offset, sizeof(word));
  return word;
}

testing::UseRequest MemoryFixture::Request(const RemoteMemoryHandle& handle,
                                           testing::Operation operation, uint64_t offset,
                                           uint64_t bytes, uint32_t times) {
  testing::UseRequest request;
  *request.mutable_memory() = handle;
  request.set_operation(operation);
  request.set_offset(offset);
  request.set_bytes(bytes);
  request.set_times(times);
  return request;
}

Task<absl::StatusOr<testing::UseReply>> MemoryFixture::Use(testing::UseRequest request) {
  co_return co_await stub_->Use(std::move(request));
}

Task<absl::Status> MemoryFixture::Used(testing::UseRequest request) {
  absl::StatusOr<testing::UseReply> reply = co_await stub_->Use(std::move(request));
  co_return reply.status();
}

}  // namespace verbena::internal
