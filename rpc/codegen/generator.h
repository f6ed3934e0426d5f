// Generator: protoc-gen-verbena as protoc's library sees it.
//
// foo.proto gives foo.verbena.pb.h and foo.verbena.pb.cc, also when it has no service, so that a
// build rule knows what to expect. The same input gives the same bytes. Takes no parameters.
//
//   protoc --plugin=protoc-gen-verbena --cpp_out=out --verbena_out=out demo/echo.proto

#ifndef VERBENA_RPC_CODEGEN_GENERATOR_H_
#define VERBENA_RPC_CODEGEN_GENERATOR_H_

#include <cstdint>
#include <string>

#include "google/protobuf/compiler/code_generator.h"
#include "google/protobuf/descriptor.h"

namespace verbena::codegen {

// Without state; may be used from any thread.
class Generator final : public google::protobuf::compiler::CodeGenerator {
 public:
  // False, with one line for each problem in `*error`, if the file asks for what is not supported.
  bool Generate(const google::protobuf::FileDescriptor* file, const std::string& parameter,
                google::protobuf::compiler::GeneratorContext* context,
                std::string* error) const override;

  uint64_t GetSupportedFeatures() const override { return FEATURE_PROTO3_OPTIONAL; }
};

}  // namespace verbena::codegen

#endif  // VERBENA_RPC_CODEGEN_GENERATOR_H_
