#include "verbena/rpc/codegen/generator.h"

#include <memory>

#include "verbena/rpc/codegen/check.h"
#include "verbena/rpc/codegen/must.h"
#include "verbena/rpc/codegen/names.h"
#include "verbena/rpc/codegen/protobuf.h"
#include "verbena/rpc/codegen/writers.h"

namespace verbena::codegen {
namespace {

using Writer = void (*)(const FileDescriptor&, const Parameters&, Printer&);

void WriteFile(const FileDescriptor& file, const Parameters& parameters, const char* suffix,
               Writer write, GeneratorContext& context) {
  std::unique_ptr<ZeroCopyOutputStream> stream(context.Open(BaseName(file) + suffix));
  Printer printer(stream.get(), '$');
  write(file, parameters, printer);
  Must(!printer.failed(), "a file could not be written: " + BaseName(file) + suffix);
}

}  // namespace

bool Generator::GenerateAll(const std::vector<const FileDescriptor*>& files,
                            const std::string& parameter, GeneratorContext* context,
                            std::string* error) const {
  Parameters parameters;
  *error = ParseParameters(parameter, &parameters);
  if (!error->empty()) *error = "protoc-gen-verbena: " + *error;
  for (const FileDescriptor* file : files) {
    const std::string problems = ProblemsOf(*file, parameters);
    if (!error->empty() && !problems.empty()) *error += '\n';
    *error += problems;
  }
  if (!error->empty()) return false;
  for (const FileDescriptor* file : files) {
    WriteFile(*file, parameters, ".verbena.pb.h", &WriteHeader, *context);
    WriteFile(*file, parameters, ".verbena.pb.cc", &WriteSource, *context);
    if (parameters.generate_mock_code) {
      WriteFile(*file, parameters, "_mock.verbena.pb.h", &WriteMocks, *context);
    }
  }
  return true;
}

bool Generator::Generate(const FileDescriptor* file, const std::string& parameter,
                         GeneratorContext* context, std::string* error) const {
  return GenerateAll({file}, parameter, context, error);
}

}  // namespace verbena::codegen
