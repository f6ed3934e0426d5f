#include "benchmarks/kv/kv_load.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "examples/kv/kv.pb.h"
#include "fmt/format.h"
#include "verbena/benchmarks/harness/drive.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/memory.h"

namespace verbena::benchmarks {
namespace {

// A sync of a slow disk may take long.
constexpr std::chrono::seconds kCallTimeout(60);

absl::Status CheckBytes(size_t got, size_t wanted) {
  if (got == wanted) return absl::OkStatus();
  return absl::DataLossError(fmt::format("a get gave {} bytes instead of {}", got, wanted));
}

std::string KeyOf(uint64_t number) { return fmt::format("key {:08}", number); }

}  // namespace

absl::StatusOr<KvSample> KvLoad::Run(Runtime& runtime, KvOp op, size_t value_bytes, int outstanding,
                                     double seconds) {
  return runtime.BlockOn(RunHere(op, std::string(value_bytes, 'v'), outstanding, seconds));
}

Task<absl::StatusOr<KvSample>> KvLoad::RunHere(KvOp op, std::string value, int outstanding,
                                               double seconds) {
  KvSample sample;
  absl::Status failed;
  VERBENA_CO_ASSIGN_OR_RETURN(const uint64_t before, co_await Batches());
  const uint64_t begin = NowNs();
  const uint64_t until = begin + static_cast<uint64_t>(seconds * 1e9);
  TaskScope scope(co_await CurrentContext());
  for (int i = 0; i < outstanding; ++i) scope.Spawn(Work(op, value, until, sample, failed));
  co_await scope.Join();
  VERBENA_CO_RETURN_IF_ERROR(failed);
  const double elapsed_s = static_cast<double>(NowNs() - begin) / 1e9;
  const auto operations = static_cast<double>(sample.latencies.count());
  sample.per_s = operations / elapsed_s;
  VERBENA_CO_ASSIGN_OR_RETURN(const uint64_t after, co_await Batches());
  if (after > before) sample.puts_per_batch = operations / static_cast<double>(after - before);
  co_return sample;
}

Task<void> KvLoad::Work(KvOp op, const std::string& value, uint64_t until, KvSample& sample,
                        absl::Status& failed) {
  uint64_t begin = NowNs();
  while (begin < until && failed.ok()) {
    const std::string key = KeyOf(next_++ % kKeys);
    absl::Status done =
        op == KvOp::kPut ? co_await Put(key, value) : co_await Get(key, value.size());
    const uint64_t end = NowNs();
    sample.latencies.Record(end - begin);
    begin = end;
    if (!done.ok()) failed = std::move(done);
    // A get that memory answers does not suspend, and others wait for their turn.
    (co_await Yield()).IgnoreError();
  }
}

absl::Status KvLoad::Fill(Runtime& runtime, size_t value_bytes, int at_once) {
  return runtime.BlockOn(FillHere(std::string(value_bytes, 'v'), at_once));
}

Task<absl::Status> KvLoad::FillHere(std::string value, int at_once) {
  absl::Status failed;
  uint64_t next = 0;
  TaskScope scope(co_await CurrentContext());
  for (int i = 0; i < at_once; ++i) scope.Spawn(FillSome(value, next, failed));
  co_await scope.Join();
  co_return failed;
}

Task<void> KvLoad::FillSome(const std::string& value, uint64_t& next, absl::Status& failed) {
  while (next < kKeys && failed.ok()) {
    absl::Status done = co_await Put(KeyOf(next++), value);
    if (!done.ok()) failed = std::move(done);
  }
}

Task<absl::Status> DirectLoad::Put(const std::string& key, const std::string& value) {
  co_return (co_await store_.Put(key, value)).status();
}

Task<absl::Status> DirectLoad::Get(const std::string& key, size_t bytes) {
  std::string value;
  VERBENA_CO_RETURN_IF_ERROR(co_await store_.Get(key, value));
  co_return CheckBytes(value.size(), bytes);
}

Task<absl::StatusOr<uint64_t>> DirectLoad::Batches() {
  VERBENA_CO_ASSIGN_OR_RETURN(const kv::StoreStats stats, co_await store_.Stats());
  co_return stats.batches;
}

Task<absl::Status> RpcLoad::Put(const std::string& key, const std::string& value) {
  VERBENA_CO_ASSIGN_OR_RETURN(Buffer payload, co_await channel_.AllocateBuffer(value.size()));
  std::memcpy(payload.data(), value.data(), value.size());
  kv::v1::PutRequest request;
  request.set_key(key);
  kv::v1::PutReply reply;
  co_return co_await stub_.Put(request, reply,
                               {.deadline = kCallTimeout, .request_payload = std::move(payload)});
}

Task<absl::Status> RpcLoad::Get(const std::string& key, size_t bytes) {
  kv::v1::GetRequest request;
  request.set_key(key);
  WithPayload<kv::v1::GetReply> reply;
  VERBENA_CO_RETURN_IF_ERROR(co_await stub_.Get(
      request, reply, {.deadline = kCallTimeout, .max_response_payload = bytes}));
  co_return CheckBytes(reply.payload.size(), bytes);
}

Task<absl::StatusOr<uint64_t>> RpcLoad::Batches() {
  VERBENA_CO_ASSIGN_OR_RETURN(const kv::v1::StatsReply stats,
                              co_await stub_.Stats(kv::v1::StatsRequest()));
  co_return stats.batches();
}

}  // namespace verbena::benchmarks
