// Questions: what a wire has asked a peer and waits for: which CQ a queue pair of the peer's
// receives through.
//
// Each question is over after kPatience, so that no queue pair waits for ever for a peer that was
// stopped. An answer may still come to one that is over. So it stays known until then; a peer that
// leaves more than kMaxUnanswered is to be given up. Part of a wire's connection with one peer,
// used by the engine's thread.

#ifndef VERBENA_TRANSPORT_SOFT_QUESTIONS_H_
#define VERBENA_TRANSPORT_SOFT_QUESTIONS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/soft/address.h"

namespace verbena::internal::soft {

class Questions {
 public:
  // A peer answers as soon as its engine runs. (start)
  static constexpr Duration kPatience = std::chrono::seconds(10);
  static constexpr size_t kMaxUnanswered = 1024;

  // `id` is greater than all before. Call TakeOverdue() at next().
  void Ask(uint64_t id, const ConnectRequest& request, TimePoint now);
  // The answer to `id` came: its request, or nothing if it was over. INVALID_ARGUMENT: nobody asked
  // that.
  absl::StatusOr<std::optional<ConnectRequest>> Answered(uint64_t id);
  // The queue pair of `request` is no more: what it asked is over.
  void Forget(const ConnectRequest& request);
  // When the next question will be over; kNever: none waits.
  TimePoint next() const { return asked_.empty() ? kNever : asked_.begin()->second.deadline; }
  // The requests whose questions are over by `now`.
  std::vector<ConnectRequest> TakeOverdue(TimePoint now);
  // All that wait, at the end of the connection.
  std::vector<ConnectRequest> TakeAll();
  // DEADLINE_EXCEEDED: the peer has left too many unanswered, and is to be given up.
  absl::Status CheckUnanswered() const;

 private:
  struct Asked {
    ConnectRequest request;
    TimePoint deadline;
  };

  std::map<uint64_t, Asked> asked_;  // by id, so in the order of their deadlines
  std::set<uint64_t> over_;          // the answers to these may still come
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_QUESTIONS_H_
