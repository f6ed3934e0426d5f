// KvLoad: puts and gets, so many at once, on a store in this process or through a server.
//
// A load runs on executor 0 of its runtime, whose thread the runtime owns. Keys are those of
// kKeys entries in turn, so that puts replace values once the first round is over. Used by one
// thread.

#ifndef VERBENA_BENCHMARKS_KV_KV_LOAD_H_
#define VERBENA_BENCHMARKS_KV_KV_LOAD_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/kv/kv.verbena.pb.h"
#include "examples/kv/store.h"
#include "verbena/benchmarks/harness/latency_histogram.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/task.h"

namespace verbena::benchmarks {

inline constexpr uint64_t kKeys = 1000;

enum class KvOp { kPut, kGet };

struct KvSample {
  LatencyHistogram latencies;
  double per_s = 0;
  // Puts of each batch that was committed; 0 for gets.
  double puts_per_batch = 0;
};

class KvLoad {
 public:
  virtual ~KvLoad() = default;
  // Runs `outstanding` operations at once for `seconds`. The first error ends it.
  absl::StatusOr<KvSample> Run(Runtime& runtime, KvOp op, size_t value_bytes, int outstanding,
                               double seconds);
  // Puts a value of so many bytes under each of kKeys, `at_once` together.
  absl::Status Fill(Runtime& runtime, size_t value_bytes, int at_once);

 protected:
  virtual Task<absl::Status> Put(const std::string& key, const std::string& value) = 0;
  // Fails unless the value has `bytes`.
  virtual Task<absl::Status> Get(const std::string& key, size_t bytes) = 0;
  virtual Task<absl::StatusOr<uint64_t>> Batches() = 0;

 private:
  // On the executor.
  Task<absl::StatusOr<KvSample>> RunHere(KvOp op, std::string value, int outstanding,
                                         double seconds);
  Task<absl::Status> FillHere(std::string value, int at_once);
  // One of the operations at a time, until `until`.
  Task<void> Work(KvOp op, const std::string& value, uint64_t until, KvSample& sample,
                  absl::Status& failed);
  Task<void> FillSome(const std::string& value, uint64_t& next, absl::Status& failed);

  uint64_t next_ = 0;
};

class DirectLoad final : public KvLoad {
 public:
  explicit DirectLoad(kv::Store& store) : store_(store) {}

 private:
  Task<absl::Status> Put(const std::string& key, const std::string& value) override;
  Task<absl::Status> Get(const std::string& key, size_t bytes) override;
  Task<absl::StatusOr<uint64_t>> Batches() override;

  kv::Store& store_;
};

class RpcLoad final : public KvLoad {
 public:
  explicit RpcLoad(Channel& channel) : channel_(channel), stub_(channel) {}

 private:
  Task<absl::Status> Put(const std::string& key, const std::string& value) override;
  Task<absl::Status> Get(const std::string& key, size_t bytes) override;
  Task<absl::StatusOr<uint64_t>> Batches() override;

  Channel& channel_;
  kv::v1::KeyValue::Stub stub_;
};

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_KV_KV_LOAD_H_
