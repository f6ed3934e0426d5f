// The calling side of payload_bench: slices of calls that read or write payloads, or of one-sided
// operations in their place. Every payload has new stamps. Its receiver compares them; after a
// slice of one-sided writes, the client reads the blocks back and compares.

#ifndef VERBENA_BENCHMARKS_PAYLOAD_PAYLOAD_CLIENT_H_
#define VERBENA_BENCHMARKS_PAYLOAD_PAYLOAD_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/payload/payload_bench.verbena.pb.h"
#include "verbena/benchmarks/floor/copy_floor.h"
#include "verbena/benchmarks/floor/payload_table.h"
#include "verbena/benchmarks/harness/latency_histogram.h"
#include "verbena/benchmarks/harness/stamps.h"
#include "verbena/benchmarks/payload/paced_echo.h"
#include "verbena/benchmarks/payload/remote_blocks.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::benchmarks {

struct BlockSlice {
  CopyDirection direction = CopyDirection::kToClient;
  size_t size = 4096;
  int outstanding = 1;
  Duration duration = std::chrono::milliseconds(kPayloadSliceMs);
  Stamps stamps = Stamps::kPages;
  bool one_sided = false;
};

// Owns a runtime without threads: the calling thread runs its executor during a slice.
class PayloadClient {
 public:
  static absl::StatusOr<std::unique_ptr<PayloadClient>> Connect(const RuntimeOptions& options,
                                                                const std::string& address);

  const Runtime& runtime() const { return *runtime_; }

  // Each operation in flight has one Buffer, which the next operation uses again. The caller adds
  // the server's processor time. `beside`, if given, makes its calls on the same link meanwhile.
  absl::StatusOr<PayloadSample> RunSlice(const BlockSlice& slice, PacedEcho* beside = nullptr);
  // `echo` makes its calls for `duration`, and there are no others.
  absl::Status RunEcho(Duration duration, PacedEcho& echo);
  bench::PayloadBench::Stub& stub() { return stub_; }
  absl::Status ServeFloorSlice();

 private:
  PayloadClient(std::unique_ptr<Runtime> runtime, const std::string& address);

  Task<absl::Status> Allocate(const BlockSlice& slice);
  Task<void> Workers(const BlockSlice& slice, PacedEcho* beside, absl::Status& status,
                     PayloadSample& sample);
  Task<void> Worker(const BlockSlice& slice, size_t index, uint64_t until_ns, absl::Status& status);
  // One operation with block `index`; `what` lives until the Task has ended.
  VERBENA_CORO_WRAPPER Task<absl::Status> Move(const BlockSlice& slice, size_t index,
                                               const bench::Block& what);
  // Block by block: write what a one-sided slice will read; compare what a one-sided slice wrote.
  Task<absl::Status> WriteRemote();
  Task<absl::Status> CompareRemote(Stamps stamps);
  Task<absl::Status> Read(const bench::Block& what, Buffer& block, Stamps stamps);
  Task<absl::Status> Write(const bench::Block& what, Buffer& block, Stamps stamps);

  const std::unique_ptr<Runtime> runtime_;
  Channel channel_;
  bench::PayloadBench::Stub stub_;
  RemoteBlocks remote_;
  std::vector<Buffer> blocks_;
  uint64_t next_number_ = 0;
  LatencyHistogram latencies_;
};

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_PAYLOAD_PAYLOAD_CLIENT_H_
