#include "verbena/rpc/client/outliers.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

#include "fmt/format.h"

namespace verbena::internal {
namespace {

using Microseconds = std::chrono::duration<double, std::micro>;

// The calls of one server since the last judgement.
struct Interval {
  uint64_t calls = 0;
  uint64_t failed = 0;
  uint64_t in_a_row = 0;  // failures without an answer in between, also of earlier intervals
  uint64_t timed = 0;
  double mean_us = 0;

  double failed_percent() const {
    return 100.0 * static_cast<double>(failed) / static_cast<double>(calls);
  }
};

Interval IntervalOf(const JudgedServer& server) {
  const CallTally& now = *server.tally;
  const CallTally& before = server.record->before;
  Interval since{
      .failed = now.failed - before.failed,
      .in_a_row = now.failed - std::max(now.failed_before_answer, server.record->forgiven),
      .timed = now.timed - before.timed};
  since.calls = since.failed + now.answered - before.answered;
  if (since.timed > 0) {
    since.mean_us = std::chrono::duration_cast<Microseconds>(now.time - before.time).count() /
                    static_cast<double>(since.timed);
  }
  return since;
}

// The lower one of the middle two; 0 if there are none.
double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// How the set did, to which each server is compared.
struct Middle {
  double failed_percent = 0;
  double mean_us = 0;
  bool answers = false;  // at least half of the servers have answered a call, or had none
};

Middle MiddleOf(const EjectionOptions& options, const std::vector<Interval>& intervals) {
  std::vector<double> failed;
  std::vector<double> means;
  size_t silent = 0;
  for (const Interval& each : intervals) {
    if (each.calls >= options.min_calls) failed.push_back(each.failed_percent());
    if (each.timed >= kLeastTimed) means.push_back(each.mean_us);
    if (each.in_a_row > 0 && each.failed == each.calls) ++silent;
  }
  return {.failed_percent = Median(std::move(failed)),
          .mean_us = Median(std::move(means)),
          .answers = silent * 2 <= intervals.size()};
}

// "": it goes on.
std::string Verdict(const EjectionOptions& options, const Interval& own, const Middle& middle) {
  if (options.consecutive_failures > 0 && own.in_a_row >= options.consecutive_failures &&
      middle.answers) {
    return fmt::format("{} calls in a row failed", own.in_a_row);
  }
  if (options.failure_percent > 0 && own.calls >= options.min_calls &&
      own.failed_percent() >= options.failure_percent &&
      middle.failed_percent * 2 < options.failure_percent) {
    return fmt::format("{} of {} calls failed", own.failed, own.calls);
  }
  if (options.latency_factor > 0 && own.timed >= kLeastTimed &&
      own.mean_us > options.latency_factor * middle.mean_us) {
    return fmt::format(
        "its calls took {:.0f} us on average, and {:.0f} us is the median of the set", own.mean_us,
        middle.mean_us);
  }
  return "";
}

Duration LengthOf(const EjectionOptions& options, uint32_t times) {
  // Divided, since the product may be beyond a Duration.
  return options.longest_ejection / times < options.first_ejection ? options.longest_ejection
                                                                   : options.first_ejection * times;
}

void Eject(const EjectionOptions& options, TimePoint now, std::string why, OutlierRecord& record) {
  record.ejected = true;
  record.times = std::min(record.times + 1, 1'000'000u);
  record.until = SaturatingAdd(now, LengthOf(options, record.times));
  record.why = std::move(why);
}

void Readmit(TimePoint now, const JudgedServer& server) {
  OutlierRecord& record = *server.record;
  record.ejected = false;
  record.changed = now;
  record.before = *server.tally;
  record.forgiven = server.tally->failed;
}

// Ejections whose time is over, and those beyond `most`, which end when servers leave the set.
bool ReadmitDue(TimePoint now, const std::vector<JudgedServer>& servers, size_t most) {
  std::vector<const JudgedServer*> ejected;
  for (const JudgedServer& each : servers) {
    if (each.record->ejected) ejected.push_back(&each);
  }
  std::sort(ejected.begin(), ejected.end(), [](const JudgedServer* a, const JudgedServer* b) {
    return a->record->until < b->record->until;
  });
  bool any = false;
  for (size_t i = 0; i < ejected.size(); ++i) {
    const bool is_due = ejected[i]->record->until <= now;
    if (!is_due && ejected.size() - i <= most) continue;
    Readmit(now, *ejected[i]);
    any = true;
  }
  return any;
}

}  // namespace

bool JudgeServers(const EjectionOptions& options, TimePoint now,
                  const std::vector<JudgedServer>& servers) {
  const size_t most = servers.size() * options.max_ejected_percent / 100;
  bool changed = ReadmitDue(now, servers, most);
  std::vector<JudgedServer> judged;
  std::vector<Interval> intervals;
  for (const JudgedServer& each : servers) {
    if (each.record->ejected) continue;
    judged.push_back(each);
    intervals.push_back(IntervalOf(each));
  }
  size_t ejected = servers.size() - judged.size();
  const Middle middle = MiddleOf(options, intervals);
  for (size_t i = 0; i < judged.size(); ++i) {
    OutlierRecord& record = *judged[i].record;
    std::string why = Verdict(options, intervals[i], middle);
    if (!why.empty() && ejected < most) {
      Eject(options, now, std::move(why), record);
      ++ejected;
      changed = true;
    } else if (record.times > 0 && why.empty() &&
               now - record.changed >= LengthOf(options, record.times)) {
      --record.times;
      record.changed = now;
    }
    record.before = *judged[i].tally;
  }
  return changed;
}

}  // namespace verbena::internal
