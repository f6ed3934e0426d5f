// AsksForHelp: whether a command line has --help or -h before a "--".
//
// To be called before Abseil parses the flags: Abseil's own help lists the flags of every library
// that is linked in, and exits with 1.

#ifndef VERBENA_EXAMPLES_COMMON_HELP_H_
#define VERBENA_EXAMPLES_COMMON_HELP_H_

#include <string_view>

namespace examples {

inline bool AsksForHelp(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") return false;
    if (word == "--help" || word == "-help" || word == "-h") return true;
  }
  return false;
}

}  // namespace examples

#endif  // VERBENA_EXAMPLES_COMMON_HELP_H_
