// Writes foo.verbena.pb.h: for each service of foo.proto a class that holds its Stub and Service.

#ifndef VERBENA_RPC_CODEGEN_HEADER_WRITER_H_
#define VERBENA_RPC_CODEGEN_HEADER_WRITER_H_

#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/printer.h"
#include "verbena/rpc/codegen/parameters.h"

namespace verbena::codegen {

// `file` has no problem that check.h names.
void WriteHeader(const google::protobuf::FileDescriptor& file, const Parameters& parameters,
                 google::protobuf::io::Printer& printer);

}  // namespace verbena::codegen

#endif  // VERBENA_RPC_CODEGEN_HEADER_WRITER_H_
