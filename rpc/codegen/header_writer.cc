#include "verbena/rpc/codegen/header_writer.h"

#include <map>
#include <string>

#include "fmt/format.h"
#include "google/protobuf/descriptor.pb.h"
#include "verbena/rpc/codegen/comments.h"
#include "verbena/rpc/codegen/cpp_names.h"
#include "verbena/rpc/codegen/interface_writer.h"
#include "verbena/rpc/codegen/stream_types.h"
#include "verbena/rpc/version.h"

namespace verbena::codegen {
namespace {

using google::protobuf::FileDescriptor;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;
using google::protobuf::io::Printer;
using Variables = std::map<std::string, std::string>;

void WriteStubMethod(const MethodDescriptor& method, Printer& printer) {
  Variables vars = {
      {"deprecated", method.options().deprecated() ? "[[deprecated]] " : ""},
      {"method", CppName(method)},
      {"request", CppTypeIn(*method.service(), *method.input_type())},
      {"reply", StubReplyType(method)},
  };
  printer.Print("\n");
  PrintComment(CommentOf(method), printer);
  if (IsStreaming(method)) {
    vars["stream"] = ClientStreamType(method);
    vars["parameter"] = StreamRequestParameter(method);
    printer.Print(vars,
                  "$deprecated$$stream$ $method$(\n"
                  "    $parameter$::verbena::CallOptions options = {}) const;\n");
    return;
  }
  printer.Print(vars,
                "$deprecated$::verbena::UnaryCall<const $request$&, $reply$> $method$(\n"
                "    const $request$& request ABSL_ATTRIBUTE_LIFETIME_BOUND) const;\n"
                "$deprecated$::verbena::UnaryCall<const $request$&, $reply$> $method$(\n"
                "    const $request$& request ABSL_ATTRIBUTE_LIFETIME_BOUND,\n"
                "    ::verbena::CallOptions options) const;\n"
                "$deprecated$::verbena::UnaryCall<$request$, $reply$> $method$(\n"
                "    $request$&& request) const;\n"
                "$deprecated$::verbena::UnaryCall<$request$, $reply$> $method$(\n"
                "    $request$&& request, ::verbena::CallOptions options) const;\n"
                "$deprecated$::verbena::UnaryCall<const $request$&, $reply$&> $method$(\n"
                "    const $request$& request ABSL_ATTRIBUTE_LIFETIME_BOUND,\n"
                "    $reply$& reply ABSL_ATTRIBUTE_LIFETIME_BOUND) const;\n"
                "$deprecated$::verbena::UnaryCall<const $request$&, $reply$&> $method$(\n"
                "    const $request$& request ABSL_ATTRIBUTE_LIFETIME_BOUND,\n"
                "    $reply$& reply ABSL_ATTRIBUTE_LIFETIME_BOUND,\n"
                "    ::verbena::CallOptions options) const;\n");
}

void WriteStub(const ServiceDescriptor& service, const std::string& macro, Printer& printer) {
  Variables vars = {
      {"macro", macro},
      {"service", service.full_name()},
      {"deprecated", service.options().deprecated() ? "[[deprecated]] " : ""},
  };
  printer.Print(vars,
                "// Calls $service$ through a channel, which must outlive it and its calls.\n"
                "// Cheap to copy; any number of calls may be in flight. A unary method has three "
                "forms, each\n"
                "// with and without options:\n"
                "//   (const Request&)          borrows the request until the call ends,\n"
                "//   (Request&&)               owns it,\n"
                "//   (const Request&, Reply&)  borrows both, and allocates nothing once warm.\n"
                "// If responses have payloads, Reply is a WithPayload.\n");
  if (HasStreams(service)) {
    printer.Print(
        "// A streaming method serializes its request before it returns. The stream begins when "
        "its\n"
        "// Read, Write or Finish is first awaited; destroying it before the end cancels the "
        "handler.\n");
  }
  printer.Print(vars,
                "class $macro$Stub final {\n"
                " public:\n");
  printer.Indent();
  printer.Print(vars,
                "$deprecated$explicit Stub(::verbena::Channel& channel) : channel_(&channel) {}\n");
  for (int i = 0; i < service.method_count(); ++i) WriteStubMethod(*service.method(i), printer);
  printer.Outdent();
  printer.Print(
      "\n"
      "  // @@protoc_insertion_point(class_scope:$service$.Stub)\n"
      " private:\n"
      "  $unused$::verbena::Channel* channel_;\n"
      "};\n",
      "service", service.full_name(), "unused",
      service.method_count() == 0 ? "[[maybe_unused]] " : "");
}

void WriteServiceMethod(const MethodDescriptor& method, Printer& printer) {
  PrintComment(CommentOf(method), printer);
  const HandlerParameters parameters(method, /*named=*/true);
  printer.Print(
      "virtual ::verbena::Task<::absl::Status> $method$(\n"
      "    ::verbena::ServerContext& context,$first$\n"
      "    $last$);\n\n",
      "method", CppName(method), "first", parameters.first, "last", parameters.last);
}

void WriteServiceBase(const ServiceDescriptor& service, const std::string& macro,
                      Printer& printer) {
  printer.Print(
      "// Base of implementations of $service$. A method that is not overridden\n"
      "// answers UNIMPLEMENTED. Arguments are valid until the Task ends.\n"
      "class $macro$Service : public ::verbena::Service {\n"
      " public:\n",
      "service", service.full_name(), "macro", macro);
  printer.Indent();
  for (int i = 0; i < service.method_count(); ++i) WriteServiceMethod(*service.method(i), printer);
  printer.Print(
      "const char* full_name() const final;\n"
      "::absl::Span<const ::verbena::ServerMethod> methods() const final;\n"
      "\n"
      "// @@protoc_insertion_point(class_scope:$service$.Service)\n",
      "service", service.full_name());
  printer.Outdent();
  printer.Print("};\n");
}

void WriteService(const ServiceDescriptor& service, const Parameters& parameters,
                  Printer& printer) {
  const std::string macro = parameters.export_macro.empty() ? "" : parameters.export_macro + " ";
  Variables vars = {
      {"class", CppName(service)}, {"full_name", service.full_name()}, {"macro", macro}};
  printer.Print("\n");
  PrintComment(CommentOf(service), printer);
  printer.Print(vars,
                "class $macro$$class$ final {\n"
                " public:\n");
  printer.Indent();
  printer.Print(vars,
                "$class$() = delete;\n"
                "\n"
                "static constexpr char kFullName[] = \"$full_name$\";\n"
                "\n");
  WriteStub(service, macro, printer);
  printer.Print("\n");
  WriteStubInterface(service, macro, printer);
  printer.Print("\n");
  WriteStubAdapter(service, macro, printer);
  printer.Print("\n");
  WriteServiceBase(service, macro, printer);
  printer.Print(vars, "\n// @@protoc_insertion_point(class_scope:$full_name$)\n");
  printer.Outdent();
  if (service.method_count() > 0) {
    printer.Print(
        " private:\n"
        "  static const ::verbena::MethodDescriptor kMethods[];\n");
  }
  printer.Print("};\n");
}

// Ahead of all that could fail to compile with another version, so that this error comes first.
void WriteVersionCheck(const FileDescriptor& file, Printer& printer) {
  printer.Print(
      "#include \"verbena/rpc/version.h\"\n"
      "\n"
      "#if VERBENA_VERSION != $number$\n"
      "#error \"$base$.verbena.pb.h is of protoc-gen-verbena $version$, but the headers are of "
      "another "
      "Verbena: generate it again with the plugin of theirs\"\n"
      "#endif\n"
      "\n",
      "number", fmt::format("{}", VERBENA_VERSION), "base", BaseName(file), "version",
      fmt::format("{}.{}.{}", VERBENA_VERSION_MAJOR, VERBENA_VERSION_MINOR, VERBENA_VERSION_PATCH));
}

}  // namespace

void WriteHeader(const FileDescriptor& file, const Parameters& parameters, Printer& printer) {
  Variables vars = {
      {"file", file.name()},
      {"guard", GuardName(file)},
      {"base", BaseName(file)},
      {"namespace", ServicesNamespace(file, parameters)},
  };
  printer.Print(vars,
                "// Generated by protoc-gen-verbena from $file$. Do not edit.\n"
                "\n"
                "#ifndef $guard$\n"
                "#define $guard$\n"
                "\n");
  if (file.service_count() > 0) WriteVersionCheck(file, printer);
  printer.Print(vars, "#include \"$base$.pb.h\"\n");
  if (file.service_count() > 0) {
    printer.Print(
        "#include \"absl/base/attributes.h\"\n"
        "#include \"verbena/rpc/call_options.h\"\n"
        "#include \"verbena/rpc/client_stream.h\"\n"
        "#include \"verbena/rpc/server_context.h\"\n"
        "#include \"verbena/rpc/server_stream.h\"\n"
        "#include \"verbena/rpc/service.h\"\n");
    if (HasStreams(file)) printer.Print("#include \"verbena/rpc/stream_interface.h\"\n");
    printer.Print(
        "#include \"verbena/rpc/unary_call.h\"\n"
        "#include \"verbena/rpc/with_payload.h\"\n");
  }
  printer.Print("// @@protoc_insertion_point(includes)\n");
  if (file.service_count() > 0) {
    if (!vars["namespace"].empty()) printer.Print(vars, "\nnamespace $namespace$ {\n");
    for (int i = 0; i < file.service_count(); ++i) {
      WriteService(*file.service(i), parameters, printer);
    }
    printer.Print("\n// @@protoc_insertion_point(namespace_scope)\n");
    if (!vars["namespace"].empty()) printer.Print(vars, "\n}  // namespace $namespace$\n");
  }
  printer.Print(vars,
                "\n"
                "// @@protoc_insertion_point(global_scope)\n"
                "\n"
                "#endif  // $guard$\n");
}

}  // namespace verbena::codegen
