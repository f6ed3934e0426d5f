// Writes foo.verbena.pb.cc: what the classes of foo.verbena.pb.h do.

#ifndef VERBENA_RPC_CODEGEN_SOURCE_WRITER_H_
#define VERBENA_RPC_CODEGEN_SOURCE_WRITER_H_

#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/printer.h"
#include "verbena/rpc/codegen/parameters.h"

namespace verbena::codegen {

// `file` has no problem that check.h names.
void WriteSource(const google::protobuf::FileDescriptor& file, const Parameters& parameters,
                 google::protobuf::io::Printer& printer);

}  // namespace verbena::codegen

#endif  // VERBENA_RPC_CODEGEN_SOURCE_WRITER_H_
