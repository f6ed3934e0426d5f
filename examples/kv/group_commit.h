// GroupCommit: a thread that makes the writes of many coroutines durable in common.
//
// Coroutines on any executor await Commit(). The thread takes all writes that wait, within
// kMaxBatchWrites and kMaxBatchBytes, hands them to the engine as one batch, and resumes the
// coroutines, each on its own executor, when the engine has stored it. Writes that come meanwhile
// make up the next batch. So no write waits until others come, and the slower the disk, the larger
// the batches.
//
// The queue holds only suspended coroutines. A bound on these, such as a server's bound of calls,
// is a bound of the queue, too. A write that waits or is under way cannot be cancelled. Destroying
// a coroutine that awaits takes its write back if its batch has not begun, and otherwise blocks
// until the batch has ended.
//
//   GroupCommit commits(engine);
//   absl::StatusOr<bool> existed = co_await commits.Commit(write);

#ifndef VERBENA_EXAMPLES_KV_GROUP_COMMIT_H_
#define VERBENA_EXAMPLES_KV_GROUP_COMMIT_H_

#include <atomic>
#include <condition_variable>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/kv/store.h"

namespace kv {

// A write on its way through a batch.
struct PendingWrite {
  const StoreWrite* write;
  // Set by the engine: `status` if it leaves this write out of its batch.
  bool existed = false;
  absl::Status status = {};
};

// The part of a store that stores batches. Must outlive the GroupCommit.
class BatchEngine {
 public:
  virtual ~BatchEngine() = default;
  // On the committer's thread: stores the writes of `batch` in their order and in one atomic step,
  // and returns once they are as durable as the engine makes them. An error is that of each write
  // that the engine did not leave out.
  virtual absl::Status StoreBatch(absl::Span<PendingWrite* const> batch) = 0;
};

class GroupCommit {
 public:
  static constexpr size_t kMaxBatchWrites = 1024;            // (start)
  static constexpr size_t kMaxBatchBytes = size_t{4} << 20;  // (start) or one larger write

  // Lives in the frame of the coroutine that awaits.
  class [[nodiscard]] Awaiter {
   public:
    Awaiter(GroupCommit& commits, const StoreWrite& write)
        : commits_(commits), pending_{.write = &write} {}
    Awaiter(const Awaiter&) = delete;
    Awaiter& operator=(const Awaiter&) = delete;
    ~Awaiter() {
      if (waiting_) commits_.Leave(*this);
    }

    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> waiting) {
      waiting_ = waiting;
      commits_.Enter(*this);
    }
    absl::StatusOr<bool> await_resume() {
      waiting_ = nullptr;
      if (!pending_.status.ok()) return pending_.status;
      return pending_.existed;
    }

   private:
    friend class GroupCommit;
    enum class State { kIdle, kQueued, kInBatch, kStored };

    GroupCommit& commits_;
    PendingWrite pending_;
    std::coroutine_handle<> waiting_;  // null before the await and after it
    State state_ = State::kIdle;       // under the GroupCommit's mutex
  };

  // Starts the thread. Throws std::system_error if that is impossible.
  explicit GroupCommit(BatchEngine& engine);
  GroupCommit(const GroupCommit&) = delete;
  GroupCommit& operator=(const GroupCommit&) = delete;
  // Stores the writes that wait, then ends the thread.
  ~GroupCommit();

  // `write`, and what it refers to, must live until the await has ended.
  Awaiter Commit(const StoreWrite& write) { return Awaiter(*this, write); }

  // Batches that the engine was given. From any thread.
  uint64_t batches() const { return batches_.load(std::memory_order_relaxed); }

 private:
  void Enter(Awaiter& awaiter);
  void Leave(Awaiter& awaiter);
  void RunThread();
  // Under the mutex.
  void TakeBatch();
  void EndBatch(const absl::Status& status);

  BatchEngine& engine_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable ended_;
  bool stopping_ = false;
  std::deque<Awaiter*> queue_;
  // The batch that is under way. For the thread alone.
  std::vector<Awaiter*> batch_;
  std::vector<std::coroutine_handle<>> waiting_;
  std::atomic<uint64_t> batches_{0};
  std::thread thread_;
};

}  // namespace kv

#endif  // VERBENA_EXAMPLES_KV_GROUP_COMMIT_H_
