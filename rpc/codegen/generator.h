// Generator: protoc-gen-verbena as protoc's library sees it.
//
// foo.proto gives foo.verbena.pb.h and foo.verbena.pb.cc, and with generate_mock_code
// foo_mock.verbena.pb.h, also when it has no service, so that a build rule knows what to expect.
// The same input gives the same bytes. Parameters (names.h) lists the parameters.
//
//   protoc --plugin=protoc-gen-verbena --cpp_out=out --verbena_out=out demo/echo.proto
//
// proto2 and proto3 files are read. The installed protobuf (3.21) knows no editions: its protoc
// refuses such files, and a newer protoc refuses this plugin for them.

#ifndef VERBENA_RPC_CODEGEN_GENERATOR_H_
#define VERBENA_RPC_CODEGEN_GENERATOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "verbena/rpc/codegen/protobuf.h"

namespace verbena::codegen {

// Without state; may be used from any thread.
class Generator final : public CodeGenerator {
 public:
  // False, with one line for each problem in `*error`, if a file or a parameter asks for what is
  // not supported. Then no file is written.
  bool GenerateAll(const std::vector<const FileDescriptor*>& files, const std::string& parameter,
                   GeneratorContext* context, std::string* error) const override;
  // Generates the code of one file, as GenerateAll() does.
  bool Generate(const FileDescriptor* file, const std::string& parameter, GeneratorContext* context,
                std::string* error) const override;

  uint64_t GetSupportedFeatures() const override { return FEATURE_PROTO3_OPTIONAL; }
};

}  // namespace verbena::codegen

#endif  // VERBENA_RPC_CODEGEN_GENERATOR_H_
