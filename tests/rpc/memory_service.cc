#include "tests/rpc/memory_service.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

#include "tests/rpc/payload_service.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"

namespace verbena::internal {
namespace {

absl::Status Keep(const absl::StatusOr<uint64_t>& before, uint32_t index,
                  testing::UseReply& reply) {
  if (before.ok()) reply.set_before(static_cast<int>(index), *before);
  return before.status();
}

Task<absl::Status> Increment(RemoteMemory memory, uint64_t at) {
  for (uint64_t seen = 0;;) {
    VERBENA_CO_ASSIGN_OR_RETURN(uint64_t before,
                                co_await memory.CompareAndSwap(at, seen, seen + 1));
    if (before == seen) co_return absl::OkStatus();
    seen = before;
  }
}

Task<absl::Status> One(RemoteMemory memory, const testing::UseRequest& request,
                       const Buffer& buffer, uint32_t index, testing::UseReply& reply) {
  const uint64_t at = request.offset() + request.bytes() * index;
  switch (request.operation()) {
    case testing::READ:
      co_return co_await memory.Read(at, buffer.Slice(request.bytes() * index, request.bytes()));
    case testing::WRITE:
      co_return co_await memory.Write(at, buffer.Slice(request.bytes() * index, request.bytes()));
    case testing::COMPARE_AND_SWAP:
      co_return Keep(co_await memory.CompareAndSwap(at, request.operand(), request.swap()), index,
                     reply);
    case testing::FETCH_ADD:
      co_return Keep(co_await memory.FetchAdd(at, request.operand()), index, reply);
    default:
      co_return co_await Increment(memory, at);
  }
}

Task<absl::Status> Patiently(Task<absl::Status> task, const testing::UseRequest& request) {
  if (request.patience_us() == 0) co_return co_await std::move(task);
  co_return co_await WithDeadline(std::move(task),
                                  std::chrono::microseconds(request.patience_us()));
}

}  // namespace

Task<absl::Status> MemoryService::Use(ServerContext& context, const testing::UseRequest& request,
                                      testing::UseReply& reply) {
  VERBENA_CO_ASSIGN_OR_RETURN(RemoteMemory memory, context.Remote(request.memory()));
  const uint32_t times = std::max(request.times(), 1u);
  const bool moves = request.operation() == testing::READ || request.operation() == testing::WRITE;
  Buffer buffer;
  if (moves) {
    VERBENA_CO_ASSIGN_OR_RETURN(buffer, co_await context.AllocateBuffer(request.bytes() * times));
    if (request.operation() == testing::WRITE) FillPattern(buffer.view(), request.offset());
  }
  if (!moves) reply.mutable_before()->Resize(static_cast<int>(times), 0);
  absl::Status worst;
  TaskScope scope(co_await CurrentContext());
  for (uint32_t i = 0; i < times; ++i) {
    scope.Spawn([&, i]() -> Task<void> {
      ++started;
      absl::Status status = co_await Patiently(One(memory, request, buffer, i, reply), request);
      if (!status.ok()) worst = status;
    });
  }
  co_await scope.Join();
  VERBENA_CO_RETURN_IF_ERROR(worst);
  reply.set_right(true);
  for (size_t i = 0; i < buffer.size(); ++i) {
    if (buffer.data()[i] != PatternAt(request.offset() + i)) reply.set_right(false);
  }
  co_return absl::OkStatus();
}

Task<absl::Status> MemoryService::Borrow(ServerContext& context,
                                         const testing::BorrowRequest& request,
                                         testing::BorrowReply& reply) {
  VERBENA_CO_ASSIGN_OR_RETURN(lent_, co_await context.AllocateBuffer(request.bytes()));
  FillPattern(lent_.view());
  VERBENA_CO_ASSIGN_OR_RETURN(
      loan_, co_await context.Lend(lent_.view(), static_cast<LeaseAccess>(request.access())));
  *reply.mutable_memory() = loan_.handle();
  co_return absl::OkStatus();
}

Task<absl::Status> MemoryService::Return(ServerContext&, const testing::ReturnRequest&,
                                         testing::ReturnReply& reply) {
  Buffer lent = std::move(lent_);
  VERBENA_CO_RETURN_IF_ERROR(co_await std::move(loan_).End());
  reply.mutable_content()->assign(lent.data(), lent.size());
  co_return absl::OkStatus();
}

}  // namespace verbena::internal
