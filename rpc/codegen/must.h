// Must: what holds in the plugin whatever a .proto says.
//
// A condition that does not hold is a fault of the plugin: it says so on standard error and aborts,
// and protoc writes no file. The plugin is built before the library, and takes nothing of
// transport/: so this stands for VERBENA_CHECK. Problems of a .proto are found by check.h.

#ifndef VERBENA_RPC_CODEGEN_MUST_H_
#define VERBENA_RPC_CODEGEN_MUST_H_

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "fmt/format.h"

namespace verbena::codegen {

// `what` says what is wrong.
inline void Must(bool holds, std::string_view what) {
  if (holds) return;
  fmt::print(stderr, "protoc-gen-verbena: a fault of the plugin: {}\n", what);
  std::fflush(stderr);
  std::abort();
}

}  // namespace verbena::codegen

#endif  // VERBENA_RPC_CODEGEN_MUST_H_
