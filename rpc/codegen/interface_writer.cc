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
  const bool streams = IsStreaming(method);
  const std::string request = CppTypeIn(*method.service(), *method.input_type());
  return {
      {"argument", method.client_streaming() ? "" : "request, "},
      {"class", CppName(*method.service())},
      {"deprecated", method.options().deprecated() ? "[[deprecated]] " : ""},
      {"method", CppName(method)},
      {"parameter", streams ? StreamRequestParameter(method) : request + " request, "},
      {"result",
       streams ? StreamResultType(method) : "::verbena::Task<" + ResultType(method) + ">"},
      {"wrapper", streams ? "" : "VERBENA_CORO_WRAPPER "},
  };
}

}  // namespace

std::string ResultType(const MethodDescriptor& method) {
  return "::absl::StatusOr<" + StubReplyType(method) + ">";
}

std::string StreamResultType(const MethodDescriptor& method) {
  return "::std::unique_ptr<" + StreamInterfaceType(method) + ">";
}

void WriteStubInterface(const ServiceDescriptor& service, const std::string& macro,
                        Printer& printer) {
  printer.Print(
      "// The calls of $service$ as virtual functions, for code whose tests put a\n"
      "// fake or a mock in the place of a Stub. A call owns its request and its options, and "
      "begins\n"
      "// when its Task is awaited. The object must outlive its Tasks.\n",
      "service", service.full_name());
  if (HasStreams(service)) {
    printer.Print(
        "// A streaming method borrows its request until it returns. Its result, the client's end "
        "of the\n"
        "// stream, is never null, and the object must outlive it, too.\n");
  }
  printer.Print(
      "class $macro$StubInterface {\n"
      " public:\n"
      "  virtual ~StubInterface() = default;\n",
      "macro", macro);
  printer.Indent();
  for (int i = 0; i < service.method_count(); ++i) {
    const MethodDescriptor& method = *service.method(i);
    printer.Print("\n");
    PrintComment(CommentOf(method), printer);
    printer.Print(VariablesOf(method),
                  "$deprecated$virtual $result$ $method$(\n"
                  "    $parameter$::verbena::CallOptions options = {}) = 0;\n");
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
      "// outlive it and its Tasks$streams$; the Tasks$streams$ may outlive the adapter.\n"
      "class $macro$StubAdapter final : public StubInterface {\n"
      " public:\n"
      "  explicit StubAdapter(const Stub& stub) : stub_(stub) {}\n"
      "\n",
      "macro", macro, "streams", HasStreams(service) ? " and streams" : "");
  printer.Indent();
  for (int i = 0; i < service.method_count(); ++i) {
    printer.Print(VariablesOf(*service.method(i)),
                  "$deprecated$$wrapper$$result$ $method$(\n"
                  "    $parameter$::verbena::CallOptions options = {}) override;\n");
  }
  printer.Outdent();
  printer.Print(
      "\n"
      " private:\n"
      "  $unused$Stub stub_;\n"
      "};\n",
      "unused", service.method_count() == 0 ? "[[maybe_unused]] " : "");
}

void WriteStubAdapterMethods(const ServiceDescriptor& service, Printer& printer) {
  for (int i = 0; i < service.method_count(); ++i) {
    const MethodDescriptor& method = *service.method(i);
    printer.Print(VariablesOf(method),
                  "$result$ $class$::StubAdapter::$method$(\n"
                  "    $parameter$::verbena::CallOptions options) {\n");
    printer.Print(VariablesOf(method),
                  IsStreaming(method)
                      ? "  return ::verbena::internal::AdaptStream("
                        "stub_.$method$($argument$::std::move(options)));\n"
                      : "  return stub_.$method$(::std::move(request), ::std::move(options));\n");
    printer.Print(
        "}\n"
        "\n");
  }
}

}  // namespace verbena::codegen
