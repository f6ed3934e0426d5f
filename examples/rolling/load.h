// Load: clients that write to a replicated store and read it without a pause, and remember what
// they saw.
//
// Each of its workers makes one call at a time. A call is repeated until it is answered, for
// kCallPatience, with one DedupeToken: so a write takes effect once. Half of the keys are only put,
// half only appended to; a key gets kCallsPerKey calls, then another takes its place, so that
// values and histories stay short. All on one executor.
//
//   Load load(channels);
//   auto runs = runtime->Spawn(load.Run());
//   … runtime->BlockOn(load.Stop()); runs.Join(); …
//   Check(load.history())

#ifndef VERBENA_EXAMPLES_ROLLING_LOAD_H_
#define VERBENA_EXAMPLES_ROLLING_LOAD_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/replicated_kv/replicated_kv.pb.h"
#include "examples/rolling/history.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/task.h"

namespace rolling {

struct LoadCounts {
  uint64_t calls = 0;
  uint64_t retries = 0;
  uint64_t unanswered = 0;                // calls that were given up
  std::array<uint64_t, 4> failures = {};  // of attempts, by Outcome
};

class Load {
 public:
  static constexpr int kWorkers = 16;
  static constexpr int kSlots = 8;  // keys of a shard that are in use at once
  static constexpr int kCallsPerKey = 120;
  static constexpr std::chrono::seconds kCallPatience{30};
  // After this time an attempt is repeated elsewhere. The first handler goes on.
  static constexpr std::chrono::milliseconds kAttemptPatience{1500};

  // The channel of each shard, to its primary.
  explicit Load(const std::vector<std::unique_ptr<verbena::Channel>>& channels);

  verbena::Task<void> Run();
  verbena::Task<void> Stop();
  // Reads all keys once more, when nobody writes. UNAVAILABLE: a key cannot be read.
  verbena::Task<absl::Status> ReadAll();

  const History& history() const { return history_; }
  // The values that ReadAll() found.
  const std::map<std::string, std::optional<std::string>>& last_values() const {
    return last_values_;
  }
  const LoadCounts& counts() const { return counts_; }
  // The newest epoch in which a write to a shard was acknowledged, and when this first happened.
  struct Serving {
    uint64_t epoch = 0;
    verbena::TimePoint since{};
  };
  verbena::Task<Serving> ServingOf(size_t shard);

 private:
  // A key in use.
  struct Slot {
    size_t shard = 0;
    bool appends = false;
    std::string key;
    int calls = 0;
  };

  verbena::Task<void> Work(size_t worker);
  Slot& TakeSlot();
  verbena::Task<bool> Write(size_t shard, std::string key, bool appends);
  verbena::Task<absl::StatusOr<std::optional<std::string>>> Read(size_t shard, std::string key);
  // Whether the call is to be made again, after a pause.
  verbena::Task<bool> MayRetry(const absl::Status& failed, verbena::TimePoint give_up);

  const std::vector<std::unique_ptr<verbena::Channel>>& channels_;
  std::vector<Slot> slots_;
  std::vector<Serving> serving_;
  bool stops_ = false;
  uint64_t keys_ = 0;
  uint64_t values_ = 0;
  std::mt19937 random_{15};
  History history_;
  std::map<std::string, std::optional<std::string>> last_values_;
  std::map<std::string, size_t> shard_of_;
  LoadCounts counts_;
};

}  // namespace rolling

#endif  // VERBENA_EXAMPLES_ROLLING_LOAD_H_
