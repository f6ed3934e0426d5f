#include "verbena/rpc/codegen/generator.h"

#include <memory>

#include "google/protobuf/io/printer.h"
#include "google/protobuf/io/zero_copy_stream.h"
#include "verbena/rpc/codegen/check.h"
#include "verbena/rpc/codegen/cpp_names.h"
#include "verbena/rpc/codegen/header_writer.h"
#include "verbena/rpc/codegen/source_writer.h"

namespace verbena::codegen {
namespace {

using google::protobuf::FileDescriptor;
using google::protobuf::compiler::GeneratorContext;
using google::protobuf::io::Printer;
using google::protobuf::io::ZeroCopyOutputStream;

void WriteFile(const FileDescriptor& file, const std::string& name,
               void (*write)(const FileDescriptor&, Printer&), GeneratorContext& context) {
  std::unique_ptr<ZeroCopyOutputStream> stream(context.Open(name));
  Printer printer(stream.get(), '$');
  write(file, printer);
}

}  // namespace

bool Generator::Generate(const FileDescriptor* file, const std::string& parameter,
                         GeneratorContext* context, std::string* error) const {
  if (!parameter.empty()) {
    *error = "protoc-gen-verbena takes no parameters, and was given '" + parameter + "'";
    return false;
  }
  *error = ProblemsOf(*file);
  if (!error->empty()) return false;
  WriteFile(*file, BaseName(*file) + ".verbena.pb.h", &WriteHeader, *context);
  WriteFile(*file, BaseName(*file) + ".verbena.pb.cc", &WriteSource, *context);
  return true;
}

}  // namespace verbena::codegen
