// Writes foo_mock.verbena.pb.h: a GoogleMock mock of each StubInterface of foo.proto.

#ifndef VERBENA_RPC_CODEGEN_MOCK_WRITER_H_
#define VERBENA_RPC_CODEGEN_MOCK_WRITER_H_

#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/printer.h"
#include "verbena/rpc/codegen/parameters.h"

namespace verbena::codegen {

// `file` has no problem that check.h names.
void WriteMocks(const google::protobuf::FileDescriptor& file, const Parameters& parameters,
                google::protobuf::io::Printer& printer);

}  // namespace verbena::codegen

#endif  // VERBENA_RPC_CODEGEN_MOCK_WRITER_H_
