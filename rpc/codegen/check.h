// Checks of .proto files: which ones protoc-gen-verbena refuses, and with which message.

#ifndef VERBENA_RPC_CODEGEN_CHECK_H_
#define VERBENA_RPC_CODEGEN_CHECK_H_

#include <string>

#include "verbena/rpc/codegen/names.h"
#include "verbena/rpc/codegen/protobuf.h"

namespace verbena::codegen {

// Empty if code can be generated for every service of `file`. Otherwise one line for each problem:
// "file:line:column: service, method: ..." and what to do. Problems are options of (verbena.method)
// that a stream cannot have, and names that collide or do not compile in C++.
std::string ProblemsOf(const FileDescriptor& file, const Parameters& parameters);

}  // namespace verbena::codegen

#endif  // VERBENA_RPC_CODEGEN_CHECK_H_
