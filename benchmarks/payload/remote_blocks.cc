#include "verbena/benchmarks/payload/remote_blocks.h"

#include <utility>

#include "absl/status/statusor.h"
#include "verbena/transport/base/status.h"

namespace verbena::benchmarks {

Task<absl::Status> RemoteBlocks::Borrow(size_t count, size_t bytes) {
  if (blocks_.size() == count && blocks_.front().memory.size() == bytes) {
    co_return absl::OkStatus();
  }
  blocks_.clear();
  bench::Blocks wanted;
  wanted.set_count(count);
  wanted.set_bytes(bytes);
  bench::LentBlocks lent;
  VERBENA_CO_RETURN_IF_ERROR(co_await stub_.Lend(wanted, lent));
  for (const RemoteMemoryHandle& handle : lent.blocks()) {
    VERBENA_CO_ASSIGN_OR_RETURN(RemoteMemory memory, channel_.Remote(handle));
    blocks_.push_back({.memory = memory, .number = 0});
  }
  co_return absl::OkStatus();
}

Task<absl::Status> RemoteBlocks::Read(size_t index, Buffer& local, Stamps stamps) {
  const Block& block = blocks_[index];
  WriteStamps(local.data(), local.size(), ~block.number, stamps);
  VERBENA_CO_RETURN_IF_ERROR(co_await block.memory.Read(0, local.view()));
  if (!HasStamps(local.data(), local.size(), block.number, stamps)) {
    co_return absl::DataLossError("a block that was read is wrong");
  }
  co_return absl::OkStatus();
}

Task<absl::Status> RemoteBlocks::Write(size_t index, Buffer& local, uint64_t number,
                                       Stamps stamps) {
  Block& block = blocks_[index];
  WriteStamps(local.data(), local.size(), number, stamps);
  block.number = number;
  co_return co_await block.memory.Write(0, local.view());
}

}  // namespace verbena::benchmarks
