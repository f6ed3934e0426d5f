// C++ names of the things in a .proto file, and the options of its methods.
//
// Messages and namespaces have the names that protobuf's own generator gives them. The plugin asks
// that generator, so that it follows a newer protobuf which escapes more names. The plugin itself
// names services and methods: a name that C++ or the generated classes need for themselves gets a
// trailing underscore. Names on the wire never change.
//
// Pure functions; descriptors are borrowed for the call.

#ifndef VERBENA_RPC_CODEGEN_NAMES_H_
#define VERBENA_RPC_CODEGEN_NAMES_H_

#include <string>
#include <string_view>

#include "verbena/rpc/codegen/protobuf.h"

namespace verbena::codegen {

// Comments of a .proto, carried over into generated code.

// The comment above a service or method (if there is none, the one behind it), as lines of "// …";
// empty if it has none. Blank lines inside stay. Comments detached by a blank line are not its own.
std::string CommentOf(const ServiceDescriptor& service);
std::string CommentOf(const MethodDescriptor& method);

// `text` as lines of "// …", with nothing in it that could end or continue a comment.
std::string AsComment(const std::string& text);

// Prints a comment of CommentOf() at the printer's indentation.
void PrintComment(const std::string& comment, Printer& printer);

// Parameters of protoc-gen-verbena: `--verbena_opt=generate_mock_code=true`.
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

// A C++20 keyword or alternative token.
bool IsKeyword(std::string_view name);

// "demo::v1" for package demo.v1; empty for none.
std::string CppNamespace(const FileDescriptor& file);

// The namespace of the classes generated for services: that of the package, and below it
// Parameters::services_namespace. Empty for none.
std::string ServicesNamespace(const FileDescriptor& file, const Parameters& parameters);

// "::demo::v1::Outer_Inner" for message demo.v1.Outer.Inner.
std::string CppType(const Descriptor& message);

// The shortest of "SayRequest" and "::demo::v1::SayRequest" that means the message inside the
// classes generated for `service`.
std::string CppTypeIn(const ServiceDescriptor& service, const Descriptor& message);

// A method's reply as its stub gives it: CppTypeIn(), in a ::verbena::WithPayload if responses have
// payloads.
std::string StubReplyType(const MethodDescriptor& method);

// The class that holds a service's Stub and Service.
std::string CppName(const ServiceDescriptor& service);

// The mock of a service's StubInterface: "MockEchoStub".
std::string MockName(const ServiceDescriptor& service);

// The member of Stub and Service that stands for a method.
std::string CppName(const MethodDescriptor& method);

// "demo/echo" for demo/echo.proto: what generated files of it begin with.
std::string BaseName(const FileDescriptor& file);

// A macro's name for a file: different files never share one.
std::string GuardName(const FileDescriptor& file);

// The payloads that a method's option (verbena.method) declares.
struct PayloadOptions {
  bool request = false;
  bool response = false;
};

// Reads the options through the extension that the user's import declares. The plugin has no
// extension of its own, so it never mistakes another project's option of the same number for ours.
PayloadOptions PayloadOptionsOf(const MethodDescriptor& method);
// The option's `dedupe`, read in the same way.
bool IsDeduplicated(const MethodDescriptor& method);

// The C++ types of streaming methods, as generated code spells them.

bool IsStreaming(const MethodDescriptor& method);
// Whether a method of `service`, or of a service of `file`, is streaming.
bool HasStreams(const ServiceDescriptor& service);
bool HasStreams(const FileDescriptor& file);

// The enumerator of verbena::Streams. Precondition: IsStreaming().
const char* StreamsName(const MethodDescriptor& method);

// "::verbena::ClientReader<Reply>" and so on: the result of the stub's method. Precondition:
// IsStreaming().
std::string ClientStreamType(const MethodDescriptor& method);
// "::verbena::ClientReaderInterface<Reply>" and so on: its virtual form, for StubInterface.
// Precondition: IsStreaming().
std::string StreamInterfaceType(const MethodDescriptor& method);
// The type of a stream's replies, or of its one reply: "Reply", or "::verbena::WithPayload<Reply>".
std::string StreamReplyType(const MethodDescriptor& method);
// The request among the parameters of a stub's streaming method, "const Request& request, "; empty
// if the client sends a stream.
std::string StreamRequestParameter(const MethodDescriptor& method);

// The handler's parameters behind its ServerContext, of a unary method too; with their names in
// comments unless `named`. `first` is empty, or begins with a space and ends with a comma.
struct HandlerParameters {
  HandlerParameters(const MethodDescriptor& method, bool named);

  std::string first;
  std::string last;
};

}  // namespace verbena::codegen

#endif  // VERBENA_RPC_CODEGEN_NAMES_H_
