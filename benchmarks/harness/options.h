// Options: the arguments that ./dev bench hands to every benchmark.

#ifndef VERBENA_BENCHMARKS_HARNESS_OPTIONS_H_
#define VERBENA_BENCHMARKS_HARNESS_OPTIONS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace verbena::benchmarks {

struct Options {
  std::string json;                     // rows are appended to this file; empty: none
  double seconds = 2;                   // per point
  std::vector<int> sizes = {32, 1024};  // bytes of payload
  std::vector<int> outstanding = {1, 8, 64, 512};
};

inline constexpr char kOptionsHelp[] =
    "  --json FILE          append one JSON object a line to FILE\n"
    "  --seconds N          seconds per point (default 2)\n"
    "  --size N[,N]         bytes of payload (default 32,1024)\n"
    "  --outstanding N[,N]  calls in flight (default 1,8,64,512)\n";

// Reads `--name value` and `--name=value`. Unknown arguments go to `rest`, in order.
// InvalidArgument names the option and its value. Options that are not given are as in `defaults`.
absl::StatusOr<Options> ParseOptions(int argc, char** argv, std::vector<std::string>& rest,
                                     const Options& defaults = {});

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_HARNESS_OPTIONS_H_
