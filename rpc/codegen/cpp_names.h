// C++ names of the things in a .proto file.
//
// Messages and namespaces have the names that protobuf's own generator gives them. The plugin asks
// that generator, so that it follows a newer protobuf which escapes more names. Services and
// methods are ours to name: one that C++, or the generated classes, need for themselves gets a
// trailing underscore. Names on the wire never change.
//
// Pure functions; descriptors are borrowed for the call.

#ifndef VERBENA_RPC_CODEGEN_CPP_NAMES_H_
#define VERBENA_RPC_CODEGEN_CPP_NAMES_H_

#include <string>
#include <string_view>

#include "google/protobuf/descriptor.h"
#include "verbena/rpc/codegen/parameters.h"

namespace verbena::codegen {

// A C++20 keyword or alternative token.
bool IsKeyword(std::string_view name);

// "demo::v1" for package demo.v1; empty for none.
std::string CppNamespace(const google::protobuf::FileDescriptor& file);

// The namespace of the classes generated for services: that of the package, and below it
// Parameters::services_namespace. Empty for none.
std::string ServicesNamespace(const google::protobuf::FileDescriptor& file,
                              const Parameters& parameters);

// "::demo::v1::Outer_Inner" for message demo.v1.Outer.Inner.
std::string CppType(const google::protobuf::Descriptor& message);

// The shortest of "SayRequest" and "::demo::v1::SayRequest" that means the message inside the
// classes generated for `service`.
std::string CppTypeIn(const google::protobuf::ServiceDescriptor& service,
                      const google::protobuf::Descriptor& message);

// A method's reply as its stub gives it: CppTypeIn(), in a ::verbena::WithPayload if responses have
// payloads.
std::string StubReplyType(const google::protobuf::MethodDescriptor& method);

// The class that holds a service's Stub and Service.
std::string CppName(const google::protobuf::ServiceDescriptor& service);

// The mock of a service's StubInterface: "MockEchoStub".
std::string MockName(const google::protobuf::ServiceDescriptor& service);

// The member of Stub and Service that stands for a method.
std::string CppName(const google::protobuf::MethodDescriptor& method);

// "demo/echo" for demo/echo.proto: what generated files of it begin with.
std::string BaseName(const google::protobuf::FileDescriptor& file);

// A macro's name for a file: different files never share one.
std::string GuardName(const google::protobuf::FileDescriptor& file);

}  // namespace verbena::codegen

#endif  // VERBENA_RPC_CODEGEN_CPP_NAMES_H_
