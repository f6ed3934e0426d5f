// Parameters of protoc-gen-verbena: `--verbena_opt=generate_mock_code=true`.

#ifndef VERBENA_RPC_CODEGEN_PARAMETERS_H_
#define VERBENA_RPC_CODEGEN_PARAMETERS_H_

#include <string>

namespace verbena::codegen {

struct Parameters {
  // True: foo_mock.verbena.pb.h is written, too, with a GoogleMock mock of each StubInterface.
  bool generate_mock_code = false;
  // Not empty: generated classes lie in this namespace below that of the package, "rpc" or
  // "rpc::v1".
  std::string services_namespace = {};
  // Not empty: a macro that stands before the name of each generated class, for libraries that hide
  // their symbols. Whoever compiles generated code defines it.
  std::string export_macro = {};
};

// Reads `text`, which is a comma-separated list of name=value, into `*parameters`. Returns an empty
// string, or what is wrong: a name that is unknown or given twice, or a value out of its range.
std::string ParseParameters(const std::string& text, Parameters* parameters);

}  // namespace verbena::codegen

#endif  // VERBENA_RPC_CODEGEN_PARAMETERS_H_
