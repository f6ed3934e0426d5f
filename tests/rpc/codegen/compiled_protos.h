// .proto text, compiled in this process and handed to the plugin as protoc would.

#ifndef VERBENA_TESTS_RPC_CODEGEN_COMPILED_PROTOS_H_
#define VERBENA_TESTS_RPC_CODEGEN_COMPILED_PROTOS_H_

#include <map>
#include <string>

#include "google/protobuf/compiler/plugin.pb.h"

namespace verbena::testing {

// File name → text. The texts may import verbena/options.proto and
// google/protobuf/descriptor.proto.
using ProtoTexts = std::map<std::string, std::string>;

// The plugin's answer when protoc asks for `file` of `texts`. A text that does not compile fails
// the test.
google::protobuf::compiler::CodeGeneratorResponse Generate(const ProtoTexts& texts,
                                                           const std::string& file,
                                                           const std::string& parameter = "");

}  // namespace verbena::testing

#endif  // VERBENA_TESTS_RPC_CODEGEN_COMPILED_PROTOS_H_
