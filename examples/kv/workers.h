// The demo's work on a store: put every piece of a corpus, get each back and compare it, scan all.
//
// Each is one Phase's work. Channel and corpus must outlive it. Failures name the key, the method,
// the status and what is known of the call's outcome.

#ifndef VERBENA_EXAMPLES_KV_WORKERS_H_
#define VERBENA_EXAMPLES_KV_WORKERS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "examples/common/phase.h"
#include "examples/kv/corpus.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/task.h"

namespace kv {

// Work on each piece, by as many workers as there are.
class PieceWork : public examples::Work {
 public:
  PieceWork(verbena::Channel& channel, const Corpus& corpus) : channel_(channel), corpus_(corpus) {}
  uint64_t total_calls() const override { return corpus_.pieces().size(); }
  int max_workers() const override { return 1 << 20; }

 protected:
  // nullptr when nothing is left, or the lane may not go on.
  const Piece* Take(const examples::Lane& lane);
  verbena::Channel& channel() { return channel_; }

 private:
  verbena::Channel& channel_;
  const Corpus& corpus_;
  std::atomic<size_t> next_{0};
};

class PutWork final : public PieceWork {
 public:
  using PieceWork::PieceWork;
  const char* name() const override { return "put"; }
  verbena::Task<void> RunWorker(examples::Lane& lane) override;
};

class GetWork final : public PieceWork {
 public:
  using PieceWork::PieceWork;
  const char* name() const override { return "get"; }
  verbena::Task<void> RunWorker(examples::Lane& lane) override;
};

// One worker walks through all pages, and sees that there are as many keys as the corpus has, in
// order.
class ScanWork final : public examples::Work {
 public:
  ScanWork(verbena::Channel& channel, const Corpus& corpus) : channel_(channel), corpus_(corpus) {}
  const char* name() const override { return "scan"; }
  uint64_t total_calls() const override { return 0; }
  int max_workers() const override { return 1; }
  verbena::Task<void> RunWorker(examples::Lane& lane) override;

 private:
  verbena::Channel& channel_;
  const Corpus& corpus_;
};

}  // namespace kv

#endif  // VERBENA_EXAMPLES_KV_WORKERS_H_
