// The demo's puts and gets on a store in this process, without calls: what the same work costs
// beside the RPC.
//
// Each class is the work of one Phase. Store and corpus must outlive it.

#ifndef VERBENA_EXAMPLES_KV_DIRECT_WORKERS_H_
#define VERBENA_EXAMPLES_KV_DIRECT_WORKERS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "examples/common/phase.h"
#include "examples/kv/corpus.h"
#include "examples/kv/store.h"
#include "verbena/rpc/task.h"

namespace kv {

class DirectWork : public examples::Work {
 public:
  DirectWork(Store& store, const Corpus& corpus) : store_(store), corpus_(corpus) {}
  uint64_t total_calls() const override { return corpus_.pieces().size(); }
  int max_workers() const override { return 1 << 20; }
  verbena::Task<void> RunWorker(examples::Lane& lane) override;

 protected:
  virtual verbena::Task<absl::Status> Do(const std::string& key, const Piece& piece) = 0;
  Store& store() { return store_; }

 private:
  Store& store_;
  const Corpus& corpus_;
  std::atomic<size_t> next_{0};
};

class DirectPutWork final : public DirectWork {
 public:
  using DirectWork::DirectWork;
  const char* name() const override { return "put, direct"; }

 private:
  verbena::Task<absl::Status> Do(const std::string& key, const Piece& piece) override;
};

class DirectGetWork final : public DirectWork {
 public:
  using DirectWork::DirectWork;
  const char* name() const override { return "get, direct"; }

 private:
  verbena::Task<absl::Status> Do(const std::string& key, const Piece& piece) override;
};

}  // namespace kv

#endif  // VERBENA_EXAMPLES_KV_DIRECT_WORKERS_H_
