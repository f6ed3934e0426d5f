// The commands stats and top: what a process does, by /status.json of its admin server.
//
// They answer also while calls hang. Texts of the server are Printable(). Block; any thread.

#ifndef VERBENA_TOOLS_VERBENA_STATS_H_
#define VERBENA_TOOLS_VERBENA_STATS_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/verbena/calls.h"
#include "verbena/rpc/shard/call_report.h"

namespace verbena::command {

// What /status.json says, as far as the table shows it.
struct ProcessStats {
  // One device or pool of memory, by its name, and what there is to tell of it.
  struct Line {
    std::string name;
    std::string text;
  };

  std::string version = {};
  bool ready = false;
  double seconds = 0;                   // by a clock of the process's machine
  std::vector<std::string> notes = {};  // why it is not ready, and what it does without
  std::vector<internal::MethodReport> methods = {};
  std::vector<Line> lines = {};
};

// INVALID_ARGUMENT: `json` is no status, or lacks something. The message names the first such
// field; what comes after it is not read.
absl::StatusOr<ProcessStats> ParseStats(const std::string& json);

// The table. With `before`, earlier stats of the same process, it has rates, the busiest methods
// are first, and p50 and p99 are those since then; otherwise they are those since the start.
std::string StatsTable(const ProcessStats& now, const ProcessStats* before);

struct StatsArguments {
  std::string admin;     // as of AskAdmin()
  bool metrics = false;  // prints /metrics instead
};

struct TopArguments {
  std::string admin;
  // Tables, or lines of error in their place, then it ends; 0: until it is killed.
  uint64_t count = 0;
  std::chrono::milliseconds interval = std::chrono::seconds(1);
};

// Return the exit status: 0; 1 if there is no answer; or kMistake. RunTop() ends at once if there
// is none at first. Later it goes on, and returns 1 if there was none at last.
int RunStats(const StatsArguments& arguments, Terminal& terminal);
int RunTop(const TopArguments& arguments, Terminal& terminal);

}  // namespace verbena::command

#endif  // VERBENA_TOOLS_VERBENA_STATS_H_
