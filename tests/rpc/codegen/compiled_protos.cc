#include "tests/rpc/codegen/compiled_protos.h"

#include <set>

#include "google/protobuf/compiler/importer.h"
#include "google/protobuf/compiler/plugin.h"
#include "google/protobuf/descriptor.pb.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "gtest/gtest.h"
#include "tests/rpc/codegen/golden_files.h"
#include "verbena/rpc/codegen/generator.h"

namespace verbena::testing {
namespace {

using google::protobuf::DescriptorProto;
using google::protobuf::FileDescriptor;
using google::protobuf::compiler::CodeGeneratorRequest;
using google::protobuf::compiler::CodeGeneratorResponse;

class TextTree final : public google::protobuf::compiler::SourceTree {
 public:
  explicit TextTree(const ProtoTexts& texts) : texts_(texts) {
    texts_["verbena/options.proto"] = ReadFile("proto/options.proto");
    texts_["google/protobuf/descriptor.proto"] =
        DescriptorProto::descriptor()->file()->DebugString();
  }

  google::protobuf::io::ZeroCopyInputStream* Open(const std::string& name) override {
    auto text = texts_.find(name);
    if (text == texts_.end()) return nullptr;
    return new google::protobuf::io::ArrayInputStream(text->second.data(),
                                                      static_cast<int>(text->second.size()));
  }

 private:
  ProtoTexts texts_;
};

class Failing final : public google::protobuf::compiler::MultiFileErrorCollector {
 public:
  void AddError(const std::string& file, int line, int /*column*/,
                const std::string& message) override {
    ADD_FAILURE() << file << ":" << line + 1 << ": " << message;
  }
};

// Imports come before what imports them, as protoc does it.
void AddFile(const FileDescriptor& file, std::set<const FileDescriptor*>& seen,
             CodeGeneratorRequest& request) {
  if (!seen.insert(&file).second) return;
  for (int i = 0; i < file.dependency_count(); ++i) AddFile(*file.dependency(i), seen, request);
  google::protobuf::FileDescriptorProto& proto = *request.add_proto_file();
  file.CopyTo(&proto);
  file.CopyJsonNameTo(&proto);
  file.CopySourceCodeInfoTo(&proto);
}

}  // namespace

CodeGeneratorResponse Generate(const ProtoTexts& texts, const std::string& file,
                               const std::string& parameter) {
  TextTree tree(texts);
  Failing errors;
  google::protobuf::compiler::Importer importer(&tree, &errors);
  CodeGeneratorResponse response;
  const FileDescriptor* descriptor = importer.Import(file);
  if (descriptor == nullptr) {
    ADD_FAILURE() << file << " does not compile";
    return response;
  }
  CodeGeneratorRequest request;
  request.set_parameter(parameter);
  request.add_file_to_generate(file);
  std::set<const FileDescriptor*> seen;
  AddFile(*descriptor, seen, request);
  codegen::Generator generator;
  std::string error;
  EXPECT_TRUE(google::protobuf::compiler::GenerateCode(request, generator, &response, &error))
      << error;
  return response;
}

}  // namespace verbena::testing
