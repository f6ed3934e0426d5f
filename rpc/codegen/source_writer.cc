#include "verbena/rpc/codegen/source_writer.h"

#include <map>
#include <string>

#include "google/protobuf/descriptor.pb.h"
#include "verbena/rpc/codegen/cpp_names.h"
#include "verbena/rpc/codegen/interface_writer.h"
#include "verbena/rpc/codegen/payload_options.h"
#include "verbena/rpc/codegen/stream_types.h"

namespace verbena::codegen {
namespace {

using google::protobuf::FileDescriptor;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;
using google::protobuf::io::Printer;
using Variables = std::map<std::string, std::string>;

const char* IdempotencyOf(const MethodDescriptor& method) {
  switch (method.options().idempotency_level()) {
    case google::protobuf::MethodOptions::NO_SIDE_EFFECTS:
      return "kNoSideEffects";
    case google::protobuf::MethodOptions::IDEMPOTENT:
      return "kIdempotent";
    case google::protobuf::MethodOptions::IDEMPOTENCY_UNKNOWN:
      break;
  }
  return "kUnknown";
}

const char* PayloadsName(const PayloadOptions& payloads) {
  if (payloads.request && payloads.response) return "kBoth";
  if (payloads.request) return "kRequest";
  return payloads.response ? "kResponse" : "kNone";
}

// constinit: a stub may be used by the constructor of another file's global.
void WriteDescriptors(const ServiceDescriptor& service, Printer& printer) {
  printer.Print("constinit const ::verbena::MethodDescriptor $class$::kMethods[] = {\n", "class",
                CppName(service));
  for (int i = 0; i < service.method_count(); ++i) {
    const MethodDescriptor& method = *service.method(i);
    printer.Print("    {\"$service$/$method$\", ::verbena::Idempotency::$idempotency$", "service",
                  service.full_name(), "method", method.name(), "idempotency",
                  IdempotencyOf(method));
    const PayloadOptions payloads = PayloadOptionsOf(method);
    const bool dedupe = IsDeduplicated(method);
    if (payloads.request || payloads.response || IsStreaming(method) || dedupe) {
      printer.Print(",\n     ::verbena::Payloads::$payloads$", "payloads", PayloadsName(payloads));
    }
    if (IsStreaming(method) || dedupe) {
      printer.Print(", ::verbena::Streams::$streams$", "streams",
                    IsStreaming(method) ? StreamsName(method) : "kNone");
    }
    if (dedupe) printer.Print(", /*is_deduplicated=*/true");
    printer.Print("},\n");
  }
  printer.Print("};\n\n");
}

void WriteStreamingMethod(const MethodDescriptor& method, Printer& printer) {
  const HandlerParameters parameters(method, /*named=*/false);
  Variables vars = {
      {"class", CppName(*method.service())},
      {"index", std::to_string(method.index())},
      {"method", CppName(method)},
      {"full_name", method.service()->full_name() + "/" + method.name()},
      {"stream", ClientStreamType(method)},
      {"parameter", StreamRequestParameter(method)},
      {"argument", method.client_streaming() ? "" : "request, "},
      {"first", parameters.first},
      {"last", parameters.last},
  };
  printer.Print(vars,
                "$stream$ $class$::Stub::$method$(\n"
                "    $parameter$::verbena::CallOptions options) const {\n"
                "  return {*channel_, kMethods[$index$], $argument$::std::move(options)};\n"
                "}\n"
                "\n"
                "::verbena::Task<::absl::Status> $class$::Service::$method$(\n"
                "    ::verbena::ServerContext& /*context*/,$first$\n"
                "    $last$) {\n"
                "  co_return ::absl::UnimplementedError(\"$full_name$ is not implemented\");\n"
                "}\n"
                "\n");
}

void WriteMethod(const MethodDescriptor& method, Printer& printer) {
  if (IsStreaming(method)) {
    WriteStreamingMethod(method, printer);
    return;
  }
  Variables vars = {
      {"class", CppName(*method.service())},
      {"index", std::to_string(method.index())},
      {"method", CppName(method)},
      {"full_name", method.service()->full_name() + "/" + method.name()},
      {"request", CppTypeIn(*method.service(), *method.input_type())},
      {"reply", CppTypeIn(*method.service(), *method.output_type())},
      {"stub_reply", StubReplyType(method)},
  };
  printer.Print(vars,
                "::verbena::UnaryCall<const $request$&, $stub_reply$> $class$::Stub::$method$(\n"
                "    const $request$& request) const {\n"
                "  return {*channel_, kMethods[$index$], request};\n"
                "}\n"
                "\n"
                "::verbena::UnaryCall<const $request$&, $stub_reply$> $class$::Stub::$method$(\n"
                "    const $request$& request, ::verbena::CallOptions options) const {\n"
                "  return {*channel_, kMethods[$index$], request, ::std::move(options)};\n"
                "}\n"
                "\n"
                "::verbena::UnaryCall<$request$, $stub_reply$> $class$::Stub::$method$(\n"
                "    $request$&& request) const {\n"
                "  return {*channel_, kMethods[$index$], ::std::move(request)};\n"
                "}\n"
                "\n"
                "::verbena::UnaryCall<$request$, $stub_reply$> $class$::Stub::$method$(\n"
                "    $request$&& request, ::verbena::CallOptions options) const {\n"
                "  return {*channel_, kMethods[$index$], ::std::move(request), "
                "::std::move(options)};\n"
                "}\n"
                "\n"
                "::verbena::UnaryCall<const $request$&, $stub_reply$&> $class$::Stub::$method$(\n"
                "    const $request$& request, $stub_reply$& reply) const {\n"
                "  return {*channel_, kMethods[$index$], request, reply};\n"
                "}\n"
                "\n"
                "::verbena::UnaryCall<const $request$&, $stub_reply$&> $class$::Stub::$method$(\n"
                "    const $request$& request, $stub_reply$& reply,\n"
                "    ::verbena::CallOptions options) const {\n"
                "  return {*channel_, kMethods[$index$], request, reply, ::std::move(options)};\n"
                "}\n"
                "\n"
                "::verbena::Task<::absl::Status> $class$::Service::$method$(\n"
                "    ::verbena::ServerContext& /*context*/, const $request$& /*request*/,\n"
                "    $reply$& /*reply*/) {\n"
                "  co_return ::absl::UnimplementedError(\"$full_name$ is not implemented\");\n"
                "}\n"
                "\n");
}

void WriteTable(const ServiceDescriptor& service, Printer& printer) {
  Variables vars = {{"class", CppName(service)}};
  printer.Print(
      vars,
      "const char* $class$::Service::full_name() const { return kFullName; }\n"
      "\n"
      "::absl::Span<const ::verbena::ServerMethod> $class$::Service::methods() const {\n");
  if (service.method_count() == 0) {
    printer.Print("  return {};\n}\n");
    return;
  }
  printer.Print("  static const ::verbena::ServerMethod table[] = {\n");
  for (int i = 0; i < service.method_count(); ++i) {
    vars["index"] = std::to_string(i);
    vars["method"] = CppName(*service.method(i));
    printer.Print(
        vars,
        "      ::verbena::internal::ServerMethodFor<&Service::$method$>(kMethods[$index$]),\n");
  }
  printer.Print(
      "  };\n"
      "  return table;\n"
      "}\n");
}

void WriteService(const ServiceDescriptor& service, Printer& printer) {
  printer.Print("\n");
  if (service.method_count() > 0) WriteDescriptors(service, printer);
  for (int i = 0; i < service.method_count(); ++i) WriteMethod(*service.method(i), printer);
  WriteStubAdapterMethods(service, printer);
  WriteTable(service, printer);
}

}  // namespace

void WriteSource(const FileDescriptor& file, const Parameters& parameters, Printer& printer) {
  Variables vars = {
      {"file", file.name()},
      {"base", BaseName(file)},
      {"namespace", ServicesNamespace(file, parameters)},
  };
  printer.Print(vars,
                "// Generated by protoc-gen-verbena from $file$. Do not edit.\n"
                "\n"
                "#include \"$base$.verbena.pb.h\"\n");
  if (file.service_count() > 0) printer.Print("\n#include <utility>\n");
  printer.Print("// @@protoc_insertion_point(includes)\n");
  if (file.service_count() > 0) {
    if (!vars["namespace"].empty()) printer.Print(vars, "\nnamespace $namespace$ {\n");
    for (int i = 0; i < file.service_count(); ++i) WriteService(*file.service(i), printer);
    printer.Print("\n// @@protoc_insertion_point(namespace_scope)\n");
    if (!vars["namespace"].empty()) printer.Print(vars, "\n}  // namespace $namespace$\n");
  }
  printer.Print("\n// @@protoc_insertion_point(global_scope)\n");
}

}  // namespace verbena::codegen
