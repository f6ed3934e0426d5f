// RemoteBlocks: memory of the server's that a client of payload_bench reads and writes one-sided,
// one block for each operation in flight. Its stamps are compared here: the server's processor has
// no part in what is measured.
//
// Owned by a PayloadClient, and used on its executor.

#ifndef VERBENA_BENCHMARKS_PAYLOAD_REMOTE_BLOCKS_H_
#define VERBENA_BENCHMARKS_PAYLOAD_REMOTE_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "benchmarks/payload/payload_bench.verbena.pb.h"
#include "verbena/benchmarks/harness/stamps.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/remote_memory.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::benchmarks {

class RemoteBlocks {
 public:
  // Both outlive it.
  RemoteBlocks(Channel& channel, bench::PayloadBench::Stub& stub)
      : channel_(channel), stub_(stub) {}

  // Has the server lend `count` blocks of `bytes`, unless these are what it lends already.
  Task<absl::Status> Borrow(size_t count, size_t bytes);

  // Block `index` into or from `local`, which is as large. DATA_LOSS when what was read is not what
  // was written last; a local block that keeps what it held does not pass for it.
  Task<absl::Status> Read(size_t index, Buffer& local, Stamps stamps);
  Task<absl::Status> Write(size_t index, Buffer& local, uint64_t number, Stamps stamps);

 private:
  struct Block {
    RemoteMemory memory;
    uint64_t number;  // of the stamps that it holds
  };

  Channel& channel_;
  bench::PayloadBench::Stub& stub_;
  std::vector<Block> blocks_;
};

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_PAYLOAD_REMOTE_BLOCKS_H_
