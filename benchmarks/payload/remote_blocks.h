// RemoteBlocks: the server's memory that a client of payload_bench reads and writes one-sided, one
// block for each operation in flight. Only the client compares stamps: the server's processor does
// no work in these slices.
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
#include "verbena/rpc/memory.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::benchmarks {

class RemoteBlocks {
 public:
  // `channel` and `stub` must outlive it.
  RemoteBlocks(Channel& channel, bench::PayloadBench::Stub& stub)
      : channel_(channel), stub_(stub) {}

  // Asks the server to lend `count` blocks of `bytes`, unless it already lends just these.
  Task<absl::Status> Borrow(size_t count, size_t bytes);

  // Reads block `index` into `local`, or writes it from there. `local` has the size of a block.
  // Read() fails with DATA_LOSS unless `local` then has the stamps of the last Write(). It first
  // overwrites `local`, so that old content cannot pass.
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
