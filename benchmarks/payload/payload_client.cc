#include "verbena/benchmarks/payload/payload_client.h"

#include <utility>

#include "verbena/benchmarks/harness/cpu_time.h"
#include "verbena/benchmarks/harness/drive.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::benchmarks {

absl::StatusOr<std::unique_ptr<PayloadClient>> PayloadClient::Connect(const RuntimeOptions& options,
                                                                      const std::string& address) {
  absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Start(options);
  if (!runtime.ok()) return runtime.status();
  std::unique_ptr<PayloadClient> client(new PayloadClient(*std::move(runtime), address));
  absl::Status status = client->runtime_->BlockOn(client->channel_.Connect());
  if (!status.ok()) return status;
  return client;
}

PayloadClient::PayloadClient(std::unique_ptr<Runtime> runtime, const std::string& address)
    : runtime_(std::move(runtime)),
      channel_(*runtime_, address),
      stub_(channel_),
      remote_(channel_, stub_) {}

absl::StatusOr<PayloadSample> PayloadClient::RunSlice(const BlockSlice& slice, PacedEcho* beside) {
  absl::Status status = runtime_->BlockOn(Allocate(slice));
  if (!status.ok()) return status;
  latencies_.Clear();
  PayloadSample sample;
  Drive(*runtime_, Workers(slice, beside, status, sample));
  if (status.ok() && slice.one_sided && slice.direction == CopyDirection::kToServer) {
    status = runtime_->BlockOn(CompareRemote(slice.stamps));
  }
  if (!status.ok()) return status;
  return sample;
}

absl::Status PayloadClient::RunEcho(Duration duration, PacedEcho& echo) {
  absl::Status status;
  const uint64_t until =
      NowNs() + static_cast<uint64_t>(std::chrono::nanoseconds(duration).count());
  Drive(*runtime_, echo.Run(until, status));
  return status;
}

Task<absl::Status> PayloadClient::Allocate(const BlockSlice& slice) {
  if (!blocks_.empty() && blocks_.front().size() != slice.size) blocks_.clear();
  blocks_.resize(static_cast<size_t>(slice.outstanding));
  for (Buffer& block : blocks_) {
    if (block) continue;
    VERBENA_CO_ASSIGN_OR_RETURN(block, co_await channel_.AllocateBuffer(slice.size));
  }
  if (!slice.one_sided) co_return absl::OkStatus();
  VERBENA_CO_RETURN_IF_ERROR(co_await remote_.Borrow(blocks_.size(), slice.size));
  if (slice.direction == CopyDirection::kToServer) co_return absl::OkStatus();
  co_return co_await WriteRemote();
}

Task<absl::Status> PayloadClient::WriteRemote() {
  for (size_t i = 0; i < blocks_.size(); ++i) {
    VERBENA_CO_RETURN_IF_ERROR(
        co_await remote_.Write(i, blocks_[i], next_number_++, Stamps::kAllWords));
  }
  co_return absl::OkStatus();
}

Task<absl::Status> PayloadClient::CompareRemote(Stamps stamps) {
  for (size_t i = 0; i < blocks_.size(); ++i) {
    VERBENA_CO_RETURN_IF_ERROR(co_await remote_.Read(i, blocks_[i], stamps));
  }
  co_return absl::OkStatus();
}

Task<void> PayloadClient::Workers(const BlockSlice& slice, PacedEcho* beside, absl::Status& status,
                                  PayloadSample& sample) {
  const uint64_t cpu = CpuNanoseconds();
  const uint64_t start = NowNs();
  const uint64_t until =
      start + static_cast<uint64_t>(std::chrono::nanoseconds(slice.duration).count());
  {
    TaskScope scope(runtime_->executor(0));
    for (size_t i = 0; i < blocks_.size(); ++i) scope.Spawn(Worker(slice, i, until, status));
    if (beside != nullptr) scope.Spawn(beside->Run(until, status));
    co_await scope.Join();
  }
  const double seconds = static_cast<double>(NowNs() - start) / 1e9;
  sample.client_cpu_ns = CpuNanoseconds() - cpu;
  sample.calls = latencies_.count();
  sample.calls_per_s = static_cast<double>(sample.calls) / seconds;
  sample.p50_ns = latencies_.PercentileNs(50);
  sample.p99_ns = latencies_.PercentileNs(99);
}

Task<void> PayloadClient::Worker(const BlockSlice& slice, size_t index, uint64_t until_ns,
                                 absl::Status& status) {
  bench::Block what;
  what.set_bytes(slice.size);
  what.set_all_words(slice.stamps == Stamps::kAllWords);
  what.set_ends(slice.stamps == Stamps::kEnds);
  // At least one operation, however short the slice.
  uint64_t began = NowNs();
  do {
    what.set_number(next_number_++);
    absl::Status moved = co_await Move(slice, index, what);
    if (!moved.ok()) {
      status = std::move(moved);
      co_return;
    }
    const uint64_t ended = NowNs();
    latencies_.Record(ended - began);
    began = ended;
  } while (began < until_ns && status.ok());
}

Task<absl::Status> PayloadClient::Move(const BlockSlice& slice, size_t index,
                                       const bench::Block& what) {
  Buffer& block = blocks_[index];
  const bool reads = slice.direction == CopyDirection::kToClient;
  if (slice.one_sided) {
    return reads ? remote_.Read(index, block, slice.stamps)
                 : remote_.Write(index, block, what.number(), slice.stamps);
  }
  return reads ? Read(what, block, slice.stamps) : Write(what, block, slice.stamps);
}

Task<absl::Status> PayloadClient::Read(const bench::Block& what, Buffer& block, Stamps stamps) {
  WithPayload<bench::Nothing> reply;
  absl::Status status =
      co_await stub_.Read(what, reply, {.response_payload_into = std::move(block)});
  block = std::move(reply.payload);
  if (!status.ok()) co_return status;
  if (block.size() != what.bytes() ||
      !HasStamps(block.data(), block.size(), what.number(), stamps)) {
    co_return absl::DataLossError("a payload that was read is wrong");
  }
  co_return absl::OkStatus();
}

Task<absl::Status> PayloadClient::Write(const bench::Block& what, Buffer& block, Stamps stamps) {
  WriteStamps(block.data(), block.size(), what.number(), stamps);
  Payload payload = std::move(block);
  bench::Nothing reply;
  absl::Status status = co_await stub_.Write(
      // NOLINTNEXTLINE(bugprone-use-after-move): it comes back to the same place.
      what, reply, {.request_payload = std::move(payload), .returned_payload = &payload});
  block = payload.TakeBuffer();
  if (status.ok() && block.size() != what.bytes()) {
    co_return absl::InternalError("the buffer of a payload has not come back");
  }
  co_return status;
}

absl::Status PayloadClient::ServeFloorSlice() {
  return runtime_->BlockOn(stub_.ServeFloorSlice(bench::Nothing())).status();
}

}  // namespace verbena::benchmarks
