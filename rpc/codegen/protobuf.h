// The plugin takes from protobuf what is here: descriptors, printers, and protoc's library.
//
// The only file of rpc/codegen that includes protobuf. 3.21 returns names as strings, newer
// versions as views: the functions below return strings. Built and tested with protobuf 3.21.
//
// Pure functions; descriptors are borrowed for the call.

#ifndef VERBENA_RPC_CODEGEN_PROTOBUF_H_
#define VERBENA_RPC_CODEGEN_PROTOBUF_H_

#include <string>

#include "google/protobuf/compiler/code_generator.h"
#include "google/protobuf/compiler/cpp/names.h"
#include "google/protobuf/compiler/plugin.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "google/protobuf/dynamic_message.h"
#include "google/protobuf/io/printer.h"
#include "google/protobuf/io/zero_copy_stream.h"
#include "google/protobuf/stubs/common.h"

namespace verbena::codegen {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::DynamicMessageFactory;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::FileDescriptorProto;
using google::protobuf::FileOptions;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;
using google::protobuf::MethodOptions;
using google::protobuf::ServiceDescriptor;
using google::protobuf::SourceLocation;
using google::protobuf::compiler::CodeGenerator;
using google::protobuf::compiler::GeneratorContext;
using google::protobuf::compiler::ParseGeneratorParameter;
using google::protobuf::compiler::PluginMain;
using google::protobuf::io::Printer;
using google::protobuf::io::ZeroCopyOutputStream;

// 3021012 for protobuf 3.21.12.
inline constexpr int kProtobufVersion = GOOGLE_PROTOBUF_VERSION;

// "SayRequest"; of a file its path.
template <typename Described>
std::string NameOf(const Described& descriptor) {
  return std::string(descriptor.name());
}

// "demo.v1.SayRequest".
template <typename Described>
std::string FullNameOf(const Described& descriptor) {
  return std::string(descriptor.full_name());
}

// "demo.v1"; empty for none.
inline std::string PackageOf(const FileDescriptor& file) { return std::string(file.package()); }

// protobuf's own generator gives a message's class this name, "Outer_Inner". The second function
// returns how that is reached from anywhere, "::demo::v1::Outer_Inner".
inline std::string ClassNameOf(const Descriptor& message) {
  return std::string(google::protobuf::compiler::cpp::ClassName(&message));
}
inline std::string QualifiedClassNameOf(const Descriptor& message) {
  return std::string(google::protobuf::compiler::cpp::QualifiedClassName(&message));
}

// "demo/echo" for demo/echo.proto.
inline std::string WithoutProto(const std::string& path) {
  return std::string(google::protobuf::compiler::cpp::StripProto(path));
}

}  // namespace verbena::codegen

#endif  // VERBENA_RPC_CODEGEN_PROTOBUF_H_
