// Operation: one call of a client on one key, as the client saw it. History: those of all keys.
//
// Times are of one clock. A write whose end is not known may have taken effect at any time after
// its start, or never. Values.

#ifndef VERBENA_EXAMPLES_ROLLING_HISTORY_H_
#define VERBENA_EXAMPLES_ROLLING_HISTORY_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace rolling {

struct Operation {
  enum class Kind { kPut, kAppend, kGet };
  static constexpr int64_t kNeverEnded = INT64_MAX;

  Kind kind = Kind::kGet;
  // The value that was written, or that a Get saw: none, if the key had no value.
  std::optional<std::string> value;
  int64_t start = 0;
  int64_t end = kNeverEnded;  // when it was acknowledged
};

using History = std::map<std::string, std::vector<Operation>>;

}  // namespace rolling

#endif  // VERBENA_EXAMPLES_ROLLING_HISTORY_H_
