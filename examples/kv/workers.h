// The demo's work on a store: put every piece of a corpus, get each back and compare it, scan all.
//
// Each class is the work of one Phase. Channel and corpus must outlive it. Errors of calls name the
// key, the method, the status and the outcome as far as it is known.

#ifndef VERBENA_EXAMPLES_KV_WORKERS_H_
#define VERBENA_EXAMPLES_KV_WORKERS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "examples/common/phase.h"
#include "examples/kv/corpus.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/task.h"

namespace kv {

// Work on each piece, shared by any number of workers.
class PieceWork : public examples::Work {
 public:
  PieceWork(verbena::Channel& channel, const Corpus& corpus) : channel_(channel), corpus_(corpus) {}
  uint64_t total_calls() const override { return corpus_.pieces().size(); }
  int max_workers() const override { return 1 << 20; }

 protected:
  // The next piece; nullptr if none is left, or the lane may not go on.
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

 private:
  verbena::Task<absl::StatusOr<verbena::Payload>> PayloadOf(std::string_view bytes);
};

class GetWork final : public PieceWork {
 public:
  using PieceWork::PieceWork;
  const char* name() const override { return "get"; }
  verbena::Task<void> RunWorker(examples::Lane& lane) override;
};

// One worker scans all pages, and checks that the keys are in order and as many as the corpus has.
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
