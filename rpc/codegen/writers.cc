#include "verbena/rpc/codegen/writers.h"

#include <map>
#include <string>

#include "fmt/format.h"
#include "verbena/rpc/codegen/check.h"
#include "verbena/rpc/codegen/must.h"
#include "verbena/rpc/codegen/names.h"
#include "verbena/rpc/codegen/protobuf.h"
#include "verbena/rpc/version.h"

namespace verbena::codegen {

namespace {

using Variables = std::map<std::string, std::string>;

void MustHaveNoProblem(const FileDescriptor& file, const Parameters& parameters) {
  const std::string problems = ProblemsOf(file, parameters);
  Must(problems.empty(), "code is asked for in spite of " + problems);
}

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
      {"service", FullNameOf(service)},
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
                "$deprecated$explicit Stub(::verbena::Channel& channel)\n"
                "    : channel_(&::verbena::internal::CoreOf(channel)) {}\n");
  for (int i = 0; i < service.method_count(); ++i) WriteStubMethod(*service.method(i), printer);
  printer.Outdent();
  printer.Print(
      "\n"
      "  // @@protoc_insertion_point(class_scope:$service$.Stub)\n"
      " private:\n"
      "  $unused$::verbena::internal::ClientChannel* channel_;\n"
      "};\n",
      "service", FullNameOf(service), "unused",
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
      "// answers UNIMPLEMENTED, as not executed. Arguments are valid until the Task ends.\n"
      "class $macro$Service : public ::verbena::Service {\n"
      " public:\n",
      "service", FullNameOf(service), "macro", macro);
  printer.Indent();
  for (int i = 0; i < service.method_count(); ++i) WriteServiceMethod(*service.method(i), printer);
  printer.Print(
      "const char* full_name() const final;\n"
      "::absl::Span<const ::verbena::ServerMethod> methods() const final;\n"
      "\n"
      "// @@protoc_insertion_point(class_scope:$service$.Service)\n",
      "service", FullNameOf(service));
  printer.Outdent();
  printer.Print("};\n");
}

void WriteService(const ServiceDescriptor& service, const Parameters& parameters,
                  Printer& printer) {
  const std::string macro = parameters.export_macro.empty() ? "" : parameters.export_macro + " ";
  Variables vars = {
      {"class", CppName(service)}, {"full_name", FullNameOf(service)}, {"macro", macro}};
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

const char* IdempotencyOf(const MethodDescriptor& method) {
  switch (method.options().idempotency_level()) {
    case MethodOptions::NO_SIDE_EFFECTS:
      return "kNoSideEffects";
    case MethodOptions::IDEMPOTENT:
      return "kIdempotent";
    case MethodOptions::IDEMPOTENCY_UNKNOWN:
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
                  FullNameOf(service), "method", NameOf(method), "idempotency",
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
      {"full_name", FullNameOf(*method.service()) + "/" + NameOf(method)},
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
                "    ::verbena::ServerContext& context,$first$\n"
                "    $last$) {\n"
                "  co_return context.NotExecuted(\n"
                "      ::absl::UnimplementedError(\"$full_name$ is not implemented\"));\n"
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
      {"full_name", FullNameOf(*method.service()) + "/" + NameOf(method)},
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
                "    ::verbena::ServerContext& context, const $request$& /*request*/,\n"
                "    $reply$& /*reply*/) {\n"
                "  co_return context.NotExecuted(\n"
                "      ::absl::UnimplementedError(\"$full_name$ is not implemented\"));\n"
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

// GoogleMock's function is not const and takes references. The override is const and takes values.
// A caller's options are a temporary, which only the override takes: nobody can copy CallOptions.
// GoogleMock's own functions cannot return a Task: clang asks for coroutines.
void MockMethod(const MethodDescriptor& method, Printer& printer) {
  Variables vars = {
      {"method", CppName(method)},
      {"mock", MockName(*method.service())},
      {"request", CppTypeIn(*method.service(), *method.input_type())},
      {"result", ResultType(method)},
  };
  printer.Print("\n");
  PrintComment(CommentOf(method), printer);
  printer.Print(
      vars,
      "MOCK_METHOD((::verbena::testing::MockedCall<$result$>), $method$,\n"
      "            (const $request$& request, ::verbena::CallOptions& options));\n"
      "::verbena::Task<$result$> $method$(\n"
      "    $request$ request, ::verbena::CallOptions options = {}) const override {\n"
      "  co_return co_await const_cast<$mock$*>(this)->$method$(request, options).AsTask();\n"
      "}\n");
}

void MockStreamingMethod(const MethodDescriptor& method, Printer& printer) {
  Variables vars = {
      {"method", CppName(method)},
      {"parameter", StreamRequestParameter(method)},
      {"result", StreamResultType(method)},
  };
  printer.Print("\n");
  PrintComment(CommentOf(method), printer);
  printer.Print(vars,
                "MOCK_METHOD(($result$), $method$,\n"
                "            ($parameter$::verbena::CallOptions options), (const, override));\n");
}

// A streaming method without an action gives a stream that says so.
void WriteConstructor(const ServiceDescriptor& service, Printer& printer) {
  Variables vars = {{"mock", MockName(service)}};
  if (!HasStreams(service)) {
    printer.Print(vars, "$mock$() = default;\n");
    return;
  }
  printer.Print(vars, "$mock$() {\n");
  for (int i = 0; i < service.method_count(); ++i) {
    const MethodDescriptor& method = *service.method(i);
    if (!IsStreaming(method)) continue;
    vars["method"] = CppName(method);
    vars["reply"] = StreamReplyType(method);
    vars["play"] = method.server_streaming() ? "PlayMessages" : "PlayReply";
    vars["none"] = method.server_streaming() ? "{}, " : "";
    printer.Print(vars,
                  "  ON_CALL(*this, $method$)\n"
                  "      .WillByDefault(::verbena::testing::$play$<$reply$>(\n"
                  "          $none$::verbena::internal::NoMockAction()));\n");
  }
  printer.Print("}\n");
}

void WriteMock(const ServiceDescriptor& service, Printer& printer) {
  Variables vars = {
      {"mock", MockName(service)}, {"class", CppName(service)}, {"service", FullNameOf(service)}};
  printer.Print(
      vars,
      "\n"
      "// A mock of $class$::StubInterface. An expectation is met when the call's Task is\n"
      "// awaited; its arguments live until that Task ends:\n"
      "//   EXPECT_CALL(mock, Method(matches_request, _)).WillOnce(Return(reply));\n");
  if (HasStreams(service)) {
    printer.Print(
        "// A streaming method is called at once, and gives a stream:\n"
        "//   EXPECT_CALL(mock, Method).WillOnce(PlayMessages<Reply>({reply, reply}, status));\n");
  }
  printer.Print(vars,
                "class $mock$ : public $class$::StubInterface {\n"
                " public:\n");
  printer.Indent();
  WriteConstructor(service, printer);
  for (int i = 0; i < service.method_count(); ++i) {
    const MethodDescriptor& method = *service.method(i);
    if (IsStreaming(method)) {
      MockStreamingMethod(method, printer);
    } else {
      MockMethod(method, printer);
    }
  }
  printer.Print(vars, "\n// @@protoc_insertion_point(class_scope:$service$.$mock$)\n");
  printer.Outdent();
  printer.Print("};\n");
}

}  // namespace

void WriteHeader(const FileDescriptor& file, const Parameters& parameters, Printer& printer) {
  MustHaveNoProblem(file, parameters);
  Variables vars = {
      {"file", NameOf(file)},
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
        "#include \"verbena/rpc/call.h\"\n"
        "#include \"verbena/rpc/service.h\"\n"
        "#include \"verbena/rpc/stream.h\"\n");
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

void WriteSource(const FileDescriptor& file, const Parameters& parameters, Printer& printer) {
  MustHaveNoProblem(file, parameters);
  Variables vars = {
      {"file", NameOf(file)},
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
      "service", FullNameOf(service));
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
                  "    $parameter$::verbena::CallOptions options = {}) const = 0;\n");
  }
  printer.Print("\n// @@protoc_insertion_point(class_scope:$service$.StubInterface)\n", "service",
                FullNameOf(service));
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
                  "    $parameter$::verbena::CallOptions options = {}) const override;\n");
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
                  "    $parameter$::verbena::CallOptions options) const {\n");
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

void WriteMocks(const FileDescriptor& file, const Parameters& parameters, Printer& printer) {
  MustHaveNoProblem(file, parameters);
  Variables vars = {
      {"file", NameOf(file)},
      {"guard", GuardName(file) + "_MOCK"},
      {"base", BaseName(file)},
      {"namespace", ServicesNamespace(file, parameters)},
  };
  printer.Print(vars,
                "// Generated by protoc-gen-verbena from $file$. Do not edit.\n"
                "\n"
                "#ifndef $guard$\n"
                "#define $guard$\n"
                "\n");
  if (file.service_count() > 0) {
    if (HasStreams(file)) printer.Print("#include <memory>\n\n");
    printer.Print(
        "#include \"absl/status/statusor.h\"\n"
        "#include \"gmock/gmock.h\"\n");
  }
  printer.Print(vars, "#include \"$base$.verbena.pb.h\"\n");
  if (file.service_count() > 0) {
    printer.Print("#include \"verbena/rpc/call.h\"\n");
    if (HasStreams(file)) printer.Print("#include \"verbena/rpc/testing/mock_stream.h\"\n");
    printer.Print("#include \"verbena/rpc/testing/mocked_call.h\"\n");
  }
  printer.Print("// @@protoc_insertion_point(includes)\n");
  if (file.service_count() > 0) {
    if (!vars["namespace"].empty()) printer.Print(vars, "\nnamespace $namespace$ {\n");
    for (int i = 0; i < file.service_count(); ++i) WriteMock(*file.service(i), printer);
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
