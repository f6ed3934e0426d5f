// What an executor counts of its calls: CallTimes, a histogram; MethodCounts, of one method;
// CallCounts, of all methods of one side; ServedCalls, server's calls that have ended and are
// counted together; ExecutorCounts, all of it.
//
// One thread writes, the executor's, and any thread reads: numbers are atomics that are loaded and
// stored, never locked. They only grow. A reader may see a call in one of two numbers and not yet
// in the other (Tally). The runtime's MetricsCore owns them.

#ifndef VERBENA_RPC_SHARD_CALL_COUNTS_H_
#define VERBENA_RPC_SHARD_CALL_COUNTS_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/ticks.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/flush_queue.h"

namespace verbena::internal {

// A number that one thread changes and any thread reads.
//
// Whoever reads it, and another one afterwards, sees that one at least as it was when this one was
// changed: who reads first how many calls have ended never finds that fewer began.
class Tally {
 public:
  void Add(uint64_t more) {
    value_.store(value_.load(std::memory_order_relaxed) + more, std::memory_order_release);
  }
  uint64_t value() const { return value_.load(std::memory_order_acquire); }

 private:
  std::atomic<uint64_t> value_{0};
};

// CallTimes: how long calls of one method took that ended with one code.
//
// A histogram with four slots for each power of two, from 31 ns to 16.8 s; shorter and longer times
// have the first and the last slots. So a time that is read from it is at most an eighth off. Times
// are counted in units of 250/32 ns: each bound that is exported, 250 ns * 2^k, is a bound of
// slots.
class CallTimes {
 public:
  static constexpr double kUnitNanoseconds = 250.0 / 32;
  // The exported bounds: 250 ns * 2^k for k below this.
  static constexpr int kBounds = 27;
  // The slot from which on times are as long as the last bound.
  static constexpr uint32_t kSlots = 121;

  // The slot of a time of so many units.
  static uint32_t SlotOf(uint64_t units) {
    units = std::min(units, kLongest);
    const int shift = std::bit_width(units | 4) - 3;
    return static_cast<uint32_t>(shift) * 4 + static_cast<uint32_t>(units >> shift);
  }
  // The least time in a slot, in units. The next slot's is the end of it.
  static uint64_t UnitsAt(uint32_t slot) {
    return slot < 4 ? slot : uint64_t{slot % 4 + 4} << (slot / 4 - 1);
  }

  // So many calls took `units` each, which are of that slot.
  void Add(uint32_t slot, uint64_t units, uint64_t calls = 1) {
    slots_[slot].Add(calls);
    units_.Add(units * calls);
  }

  // Of all times, in units.
  uint64_t units() const { return units_.value(); }
  uint64_t count(uint32_t slot) const { return slots_[slot].value(); }

 private:
  static constexpr uint64_t kLongest = uint64_t{32} << (kBounds - 1);

  Tally units_;
  std::array<Tally, kSlots> slots_;
};
static_assert(sizeof(CallTimes) <= 1024);

// MethodCounts: what one side of one executor counts of one method.
//
// Histograms are made when a code first comes: most methods have one or two. Part of a CallCounts.
class MethodCounts {
 public:
  static constexpr size_t kCodes = 17;    // of absl::StatusCode
  static constexpr size_t kOutcomes = 4;  // by Outcome; 0: none

  // `ticks` outlive it. The name is copied: that of a plug-in's method may go with the plug-in.
  MethodCounts(std::string_view name, const TurnTicks& ticks, uint64_t units_per_tick)
      : ticks_(ticks), units_per_tick_(units_per_tick), name_(name) {}
  MethodCounts(const MethodCounts&) = delete;
  MethodCounts& operator=(const MethodCounts&) = delete;
  ~MethodCounts();

  // --- on the executor's thread

  // A call has ended well that began at `began`, and whose response the last poll has found.
  void EndFound(Ticks began) { Add(ok_, ticks_.found() - began, 1); }
  // Whether the last poll was in this turn, so that what it found may have ended a call.
  bool found_now() const { return ticks_.found_now(); }
  // A call has ended, in whatever way, that took `ticks`.
  [[gnu::cold, gnu::noinline]] void End(Ticks ticks, absl::StatusCode code, Outcome outcome);
  // The same of one that began at `began` and ends now.
  [[gnu::cold, gnu::noinline]] void EndNow(Ticks began, absl::StatusCode code, Outcome outcome);

  Tally begun;
  Tally retries;
  Tally hedges;
  Tally request_bytes;  // of messages
  Tally reply_bytes;
  Tally request_payload_bytes;
  Tally reply_payload_bytes;
  // The histogram of calls that ended well; of `code`, which is made now if there is none.
  CallTimes& ok() { return ok_; }
  // So many calls have ended that took `ticks` each; 0 if they are negative. `times` are its own.
  void Add(CallTimes& times, Ticks ticks, uint64_t calls) {
    // Calls share readings: often one took as long as the one before.
    if (ticks != last_) [[unlikely]]
      Scale(ticks);
    times.Add(slot_, units_, calls);
  }
  CallTimes& OfCode(absl::StatusCode code) {
    return code == absl::StatusCode::kOk ? ok_ : OfFailure(code);
  }
  void AddFailed(Outcome outcome) { failed_as_[static_cast<size_t>(outcome)].Add(1); }

  // --- on any thread

  const std::string& name() const { return name_; }
  // Null if no call has ended with the code.
  const CallTimes* times(size_t code) const {
    return code == 0 ? &ok_ : failed_[code].load(std::memory_order_acquire);
  }
  // Failed calls, by what is known of them.
  uint64_t failed(Outcome outcome) const {
    return failed_as_[static_cast<size_t>(outcome)].value();
  }

 private:
  [[gnu::cold, gnu::noinline]] CallTimes& OfFailure(absl::StatusCode code);
  [[gnu::noinline]] void Scale(Ticks ticks);

  const TurnTicks& ticks_;
  const uint64_t units_per_tick_;
  // The time that was added last.
  Ticks last_ = 0;
  uint64_t units_ = 0;
  uint32_t slot_ = 0;
  CallTimes ok_;
  std::array<std::atomic<CallTimes*>, kCodes> failed_{};  // owned
  std::array<Tally, kOutcomes> failed_as_;
  const std::string name_;
};

// CallCounts: what one executor counts of the calls that it makes, or of those that it serves.
//
// By the method's number in this process. At most kMaxMethods have numbers of their own, and the
// others share those of "_OTHER"; so do calls whose method nobody knows.
class CallCounts {
 public:
  static constexpr uint32_t kMaxMethods = 1024;

  // `ticks` outlive it.
  explicit CallCounts(const TurnTicks& ticks);
  CallCounts(const CallCounts&) = delete;
  CallCounts& operator=(const CallCounts&) = delete;
  ~CallCounts();

  // --- on the executor's thread

  MethodCounts& Of(const MethodDescriptor& method) {
    const uint32_t index = method.index.value_if_given();  // the first place stays empty
    MethodCounts* const counts =
        index < kMaxMethods ? methods_[index].load(std::memory_order_relaxed) : nullptr;
    return counts != nullptr ? *counts : Make(method);
  }
  MethodCounts& other() { return other_; }

  const TurnTicks& ticks() const { return ticks_; }

  // --- on any thread

  // visit(counts), for "_OTHER" and each method that has had a call.
  template <typename Visit>
  void ForEach(Visit visit) const {
    visit(other_);
    for (const std::atomic<MethodCounts*>& each : methods_) {
      const MethodCounts* counts = each.load(std::memory_order_acquire);
      if (counts != nullptr) visit(*counts);
    }
  }

 private:
  [[gnu::cold, gnu::noinline]] MethodCounts& Make(const MethodDescriptor& method);

  const TurnTicks& ticks_;
  const uint64_t units_per_tick_;
  MethodCounts other_{"_OTHER", ticks_, units_per_tick_};
  std::array<std::atomic<MethodCounts*>, kMaxMethods> methods_{};  // owned
};

// ServedCalls: a server's calls that have ended since the counter was read last.
//
// A call has ended once its response is posted, and one group of posts has many. So the calls wait
// here for the end of the turn, when their responses are posted, or until there are as many as a
// group of frames that leaves early; then the counter is read once for all. Most came with one
// poll, and to one method: such a run is counted by one number. Part of an ExecutorCounts, on its
// thread.
class ServedCalls final : public FlushHook {
 public:
  static constexpr uint64_t kGroup = 32;
  static constexpr size_t kRuns = 8;

  // Both outlive it.
  ServedCalls(Executor& executor, CallCounts& counts) : executor_(executor), counts_(counts) {}
  ServedCalls(const ServedCalls&) = delete;
  ServedCalls& operator=(const ServedCalls&) = delete;

  // A call that came at `arrived` has given its response to the link. `times` are of `method`, and
  // both outlive this.
  void Push(Ticks arrived, MethodCounts& method, CallTimes& times) {
    Run& run = runs_[last_];
    if (run.times != &times || run.arrived != arrived) [[unlikely]] {
      Begin({.arrived = arrived, .method = &method, .times = &times, .calls = 1});
    } else if (++run.calls == kGroup) [[unlikely]] {
      Flush();
    }
  }
  void Flush() override;

 private:
  struct Run {
    Ticks arrived = 0;
    MethodCounts* method = nullptr;
    CallTimes* times = nullptr;  // null: no run
    uint64_t calls = 0;
  };

  [[gnu::noinline]] void Begin(const Run& run);

  Executor& executor_;
  CallCounts& counts_;
  // The runs up to that of last_; none if that is empty.
  size_t last_ = 0;
  std::array<Run, kRuns> runs_;
};

// Why a server starts none of a call: the bound that it would break, or what is wrong with it.
enum class RefusalBound : uint8_t {
  kExecutor,  // the names of the first seven are those of ServerRefusals
  kClient,
  kSource,
  kMethod,
  kBytes,
  kQueue,
  kAge,
  kMetadata,
  kUnknownMethod,
  kShape,
  kShutdown,
};
inline constexpr size_t kRefusalBounds = 11;
const char* NameOf(RefusalBound bound);

// All that one executor counts.
struct ExecutorCounts {
  explicit ExecutorCounts(Executor& executor)
      : client(executor.ticks()), server(executor.ticks()), served(executor, server) {}

  CallCounts client;
  CallCounts server;
  ServedCalls served;
  std::array<Tally, kRefusalBounds> refusals;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SHARD_CALL_COUNTS_H_
