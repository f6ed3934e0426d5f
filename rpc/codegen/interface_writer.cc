#include "verbena/rpc/codegen/interface_writer.h"

#include <map>

#include "google/protobuf/descriptor.pb.h"
#include "verbena/rpc/codegen/comments.h"
#include "verbena/rpc/codegen/cpp_names.h"
#include "verbena/rpc/codegen/stream_types.h"

namespace verbena::codegen {
namespace {

using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;
using google::protobuf::io::Printer;
using Variables = std::map<std::string, std::string>;

Variables VariablesOf(const MethodDescriptor& method) {
  return {
      {"class", CppName(*method.service())},
      {"deprecated", method.options().deprecated() ? "[[deprecated]] " : ""},
      {"method", CppName(method)},
      {"request", CppTypeIn(*method.service(), *method.input_type())},
      {"result", ResultType(method)},
  };
}

int UnaryMethods(const ServiceDescriptor& service) {
  int count = 0;
  for (int i = 0; i < service.method_count(); ++i) count += IsStreaming(*service.method(i)) ? 0 : 1;
  return count;
}

}  // namespace

std::string ResultType(const MethodDescriptor& method) {
  return "::absl::StatusOr<" + StubReplyType(method) + ">";
}

void WriteStubInterface(const ServiceDescriptor& service, const std::string& macro,
                        Printer& printer) {
  printer.Print(
      "// The calls of $service$ as virtual functions, for code whose tests put a\n"
      "// fake or a mock in the place of a Stub. A call owns its request and its options, and "
      "begins\n"
      "// when its Task is awaited. The object must outlive its Tasks. Streams are not among "
      "them.\n"
      "class $macro$StubInterface {\n"
      " public:\n"
      "  virtual ~StubInterface() = default;\n",
      "service", service.full_name(), "macro", macro);
  printer.Indent();
  for (int i = 0; i < service.method_count(); ++i) {
    const MethodDescriptor& method = *service.method(i);
    if (IsStreaming(method)) continue;
    printer.Print("\n");
    PrintComment(CommentOf(method), printer);
    printer.Print(VariablesOf(method),
                  "$deprecated$virtual ::verbena::Task<$result$> $method$(\n"
                  "    $request$ request, ::verbena::CallOptions options = {}) = 0;\n");
  }
  printer.Print("\n// @@protoc_insertion_point(class_scope:$service$.StubInterface)\n", "service",
                service.full_name());
  printer.Outdent();
  printer.Print("};\n");
}

void WriteStubAdapter(const ServiceDescriptor& service, const std::string& macro,
                      Printer& printer) {
  printer.Print(
      "// A StubInterface whose calls go through a Stub, of which it keeps a copy. The channel "
      "must\n"
      "// outlive it and its Tasks; the Tasks may outlive the adapter.\n"
      "class $macro$StubAdapter final : public StubInterface {\n"
      " public:\n"
      "  explicit StubAdapter(const Stub& stub) : stub_(stub) {}\n"
      "\n",
      "macro", macro);
  printer.Indent();
  for (int i = 0; i < service.method_count(); ++i) {
    if (IsStreaming(*service.method(i))) continue;
    printer.Print(VariablesOf(*service.method(i)),
                  "$deprecated$VERBENA_CORO_WRAPPER ::verbena::Task<$result$> $method$(\n"
                  "    $request$ request, ::verbena::CallOptions options = {}) override;\n");
  }
  printer.Outdent();
  printer.Print(
      "\n"
      " private:\n"
      "  $unused$Stub stub_;\n"
      "};\n",
      "unused", UnaryMethods(service) == 0 ? "[[maybe_unused]] " : "");
}

void WriteStubAdapterMethods(const ServiceDescriptor& service, Printer& printer) {
  for (int i = 0; i < service.method_count(); ++i) {
    if (IsStreaming(*service.method(i))) continue;
    printer.Print(VariablesOf(*service.method(i)),
                  "::verbena::Task<$result$> $class$::StubAdapter::$method$(\n"
                  "    $request$ request, ::verbena::CallOptions options) {\n"
                  "  return stub_.$method$(::std::move(request), ::std::move(options));\n"
                  "}\n"
                  "\n");
  }
}

}  // namespace verbena::codegen
