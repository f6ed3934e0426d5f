// LogAge: which entries of a log are older than kKeepNames.
//
// Remembers how far the log went at some moments: about kMarks of them. Nothing is known of the
// time before it was made. A value; one thread.
//
//   age.Note(log.last().sequence, clock.Now());
//   if (sequence <= age.old(clock.Now())) … the entry was there kKeepNames ago …

#ifndef VERBENA_EXAMPLES_REPLICATED_KV_LOG_AGE_H_
#define VERBENA_EXAMPLES_REPLICATED_KV_LOG_AGE_H_

#include <cstddef>
#include <cstdint>
#include <deque>

#include "examples/replicated_kv/limits.h"
#include "verbena/rpc/time.h"

namespace replicated_kv {

class LogAge {
 public:
  // The log's last entry is now `last`.
  void Note(uint64_t last, verbena::TimePoint now) {
    if (!marks_.empty() && now - marks_.back().when < kKeepNames / kMarks) return;
    marks_.push_back({.when = now, .last = last});
    while (marks_.size() > 1 && IsOld(marks_[1], now)) marks_.pop_front();
  }
  // The last entry that is that old, as far as is known; 0: none.
  uint64_t old(verbena::TimePoint now) const {
    return !marks_.empty() && IsOld(marks_.front(), now) ? marks_.front().last : 0;
  }

 private:
  static constexpr int kMarks = 60;

  struct Mark {
    verbena::TimePoint when;
    uint64_t last;
  };
  static bool IsOld(const Mark& mark, verbena::TimePoint now) {
    return now - mark.when >= kKeepNames;
  }

  std::deque<Mark> marks_;  // the oldest first
};

}  // namespace replicated_kv

#endif  // VERBENA_EXAMPLES_REPLICATED_KV_LOG_AGE_H_
