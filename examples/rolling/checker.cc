#include "examples/rolling/checker.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_split.h"

namespace rolling {
namespace {

using Value = std::optional<std::string>;

// The start or the end of an operation, in a list by time.
struct Moment {
  size_t operation = 0;
  bool is_end = false;
  int64_t time = 0;
  size_t previous = 0;
  size_t next = 0;
};

// Whether the operation may come now, and what it leaves.
bool Apply(const Operation& operation, Value& value) {
  switch (operation.kind) {
    case Operation::Kind::kPut:
      value = operation.value;
      return true;
    case Operation::Kind::kAppend:
      value = value.value_or("") + operation.value.value_or("");
      return true;
    case Operation::Kind::kGet:
      return value == operation.value;
  }
  return false;
}

class Search {
 public:
  Search(std::vector<Operation> operations, size_t max_bytes)
      : operations_(std::move(operations)), max_bytes_(max_bytes), placed_(operations_.size(), 0) {
    MakeMoments();
  }

  Verdict Run() {
    size_t at = moments_[kHead].next;
    while (moments_[kHead].next != kHead) {
      const Moment& moment = moments_[at];
      if (moment.is_end) {
        // Its operation must be placed before anything that starts later.
        if (steps_.empty()) return Verdict::kNo;
        at = Undo();
        continue;
      }
      Value after = value_;
      if (Apply(operations_[moment.operation], after) && IsNew(moment.operation, after)) {
        if (bytes_ > max_bytes_) return Verdict::kUndecided;
        steps_.push_back({at, std::exchange(value_, std::move(after))});
        Unlink(at);
        Unlink(EndOf(moment.operation));
        at = moments_[kHead].next;
      } else {
        placed_[moment.operation] = 0;
        at = moment.next;
      }
    }
    return Verdict::kYes;
  }

 private:
  // The list is a ring. Behind the head, moments 2i + 1 and 2i + 2 are the start and the end of
  // operation i.
  static constexpr size_t kHead = 0;

  struct Step {
    size_t start;
    Value before;
  };

  static size_t EndOf(size_t operation) { return 2 * operation + 2; }

  void MakeMoments() {
    moments_.resize(2 * operations_.size() + 1);
    std::vector<size_t> order;
    for (size_t i = 0; i < operations_.size(); ++i) {
      moments_[2 * i + 1] = {.operation = i, .time = operations_[i].start};
      moments_[2 * i + 2] = {.operation = i, .is_end = true, .time = operations_[i].end};
      order.push_back(2 * i + 1);
      order.push_back(2 * i + 2);
    }
    // An operation that starts when another one ends is taken for concurrent.
    std::sort(order.begin(), order.end(), [this](size_t a, size_t b) {
      return std::pair(moments_[a].time, moments_[a].is_end) <
             std::pair(moments_[b].time, moments_[b].is_end);
    });
    size_t last = kHead;
    for (const size_t each : order) {
      moments_[last].next = each;
      moments_[each].previous = last;
      last = each;
    }
    moments_[last].next = kHead;
    moments_[kHead].previous = last;
  }

  // Places the operation, and tells whether this set with this value was not tried before.
  bool IsNew(size_t operation, const Value& after) {
    placed_[operation] = 1;
    const bool is_new = tried_.emplace(placed_, after).second;
    if (is_new) bytes_ += placed_.size() + after.value_or("").size() + kBytesOfEntry;
    return is_new;
  }

  // Takes the last step back, and returns the moment to try next.
  size_t Undo() {
    Step step = std::move(steps_.back());
    steps_.pop_back();
    value_ = std::move(step.before);
    const size_t operation = moments_[step.start].operation;
    placed_[operation] = 0;
    Link(EndOf(operation));
    Link(step.start);
    return moments_[step.start].next;
  }

  void Unlink(size_t moment) {
    moments_[moments_[moment].previous].next = moments_[moment].next;
    moments_[moments_[moment].next].previous = moments_[moment].previous;
  }
  // Puts it back between its former neighbours; call in the reverse order of Unlink().
  void Link(size_t moment) {
    moments_[moments_[moment].previous].next = moment;
    moments_[moments_[moment].next].previous = moment;
  }

  static constexpr size_t kBytesOfEntry = 96;

  const std::vector<Operation> operations_;
  const size_t max_bytes_;
  std::vector<Moment> moments_;
  std::string placed_;  // a byte for each operation
  Value value_;
  std::vector<Step> steps_;
  absl::flat_hash_set<std::pair<std::string, Value>> tried_;
  size_t bytes_ = 0;
};

Losses LossesOfAppends(const std::vector<Operation>& operations, const Value& final) {
  std::map<std::string, uint64_t> times;
  const std::string text = final.value_or("");
  for (const std::string& each :
       std::vector<std::string>(absl::StrSplit(text, '.', absl::SkipEmpty()))) {
    ++times[each + "."];
  }
  Losses losses;
  for (const Operation& operation : operations) {
    if (operation.kind != Operation::Kind::kAppend) continue;
    const auto found = times.find(operation.value.value_or(""));
    if (found != times.end() && found->second > 1) ++losses.duplicated;
    if (found == times.end() && operation.end != Operation::kNeverEnded) ++losses.lost;
  }
  return losses;
}

Losses LossesOfPuts(const std::vector<Operation>& operations, const Value& final) {
  int64_t last_end = INT64_MIN;  // of the Put whose value is there
  for (const Operation& operation : operations) {
    if (operation.kind == Operation::Kind::kPut && operation.value == final) {
      last_end = operation.end;
    }
  }
  Losses losses;
  for (const Operation& operation : operations) {
    const bool is_acknowledged_put =
        operation.kind == Operation::Kind::kPut && operation.end != Operation::kNeverEnded;
    if (is_acknowledged_put && operation.start > last_end) ++losses.lost;
  }
  return losses;
}

}  // namespace

Verdict CheckKey(const std::vector<Operation>& operations, size_t max_bytes) {
  std::vector<Operation> telling;
  for (const Operation& operation : operations) {
    // A Get that never ended has seen nothing.
    if (operation.kind == Operation::Kind::kGet && operation.end == Operation::kNeverEnded) {
      continue;
    }
    telling.push_back(operation);
  }
  return Search(std::move(telling), max_bytes).Run();
}

Losses CountLosses(const std::vector<Operation>& operations,
                   const std::optional<std::string>& final) {
  const bool has_put = std::any_of(
      operations.begin(), operations.end(),
      [](const Operation& operation) { return operation.kind == Operation::Kind::kPut; });
  return has_put ? LossesOfPuts(operations, final) : LossesOfAppends(operations, final);
}

}  // namespace rolling
