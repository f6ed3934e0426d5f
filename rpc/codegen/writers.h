// Writers of the files that protoc-gen-verbena generates from foo.proto: header, source and mocks.
//
// Functions of descriptors, which are borrowed for the call, into the caller's printer. One thread.

#ifndef VERBENA_RPC_CODEGEN_WRITERS_H_
#define VERBENA_RPC_CODEGEN_WRITERS_H_

#include <string>

#include "verbena/rpc/codegen/names.h"
#include "verbena/rpc/codegen/protobuf.h"

namespace verbena::codegen {

// Writes foo.verbena.pb.h: for each service of foo.proto a class that holds its Stub and Service.
// `file` has no problem that check.h names.
void WriteHeader(const FileDescriptor& file, const Parameters& parameters, Printer& printer);

// Writes foo.verbena.pb.cc: what the classes of foo.verbena.pb.h do.
// `file` has no problem that check.h names.
void WriteSource(const FileDescriptor& file, const Parameters& parameters, Printer& printer);

// Writes StubInterface and StubAdapter: the calls of a service as virtual functions, for users'
// fakes and mocks, and their implementation on a Stub.

// The result of a call of `method`, inside the classes of its service: "::absl::StatusOr<Reply>".
std::string ResultType(const MethodDescriptor& method);
// The result of a streaming method: "::std::unique_ptr<::verbena::ClientReaderInterface<Reply>>".
std::string StreamResultType(const MethodDescriptor& method);

// The classes, for the header. `macro` is empty, or an export macro and a space.
void WriteStubInterface(const ServiceDescriptor& service, const std::string& macro,
                        Printer& printer);
void WriteStubAdapter(const ServiceDescriptor& service, const std::string& macro, Printer& printer);

// StubAdapter's functions, for the source.
void WriteStubAdapterMethods(const ServiceDescriptor& service, Printer& printer);

// Writes foo_mock.verbena.pb.h: a GoogleMock mock of each StubInterface of foo.proto.
// `file` has no problem that check.h names.
void WriteMocks(const FileDescriptor& file, const Parameters& parameters, Printer& printer);

}  // namespace verbena::codegen

#endif  // VERBENA_RPC_CODEGEN_WRITERS_H_
