// The C++ types of streaming methods, as generated code spells them.

#ifndef VERBENA_RPC_CODEGEN_STREAM_TYPES_H_
#define VERBENA_RPC_CODEGEN_STREAM_TYPES_H_

#include <string>

#include "google/protobuf/descriptor.h"

namespace verbena::codegen {

bool IsStreaming(const google::protobuf::MethodDescriptor& method);
// Whether a method of `service`, or of a service of `file`, is streaming.
bool HasStreams(const google::protobuf::ServiceDescriptor& service);
bool HasStreams(const google::protobuf::FileDescriptor& file);

// The enumerator of verbena::Streams. Precondition: IsStreaming().
const char* StreamsName(const google::protobuf::MethodDescriptor& method);

// "::verbena::ClientReader<Reply>" and so on: the result of the stub's method. Precondition:
// IsStreaming().
std::string ClientStreamType(const google::protobuf::MethodDescriptor& method);
// "::verbena::ClientReaderInterface<Reply>" and so on: its virtual form, for StubInterface.
// Precondition: IsStreaming().
std::string StreamInterfaceType(const google::protobuf::MethodDescriptor& method);
// The replies of that stream, or its one reply: "Reply", or "::verbena::WithPayload<Reply>".
std::string StreamReplyType(const google::protobuf::MethodDescriptor& method);
// The request among the parameters of a stub's streaming method, "const Request& request, "; empty
// if the client sends a stream.
std::string StreamRequestParameter(const google::protobuf::MethodDescriptor& method);

// The handler's parameters behind its ServerContext, of a unary method too; with their names in
// comments unless `named`. `first` is empty, or begins with a space and ends with a comma.
struct HandlerParameters {
  HandlerParameters(const google::protobuf::MethodDescriptor& method, bool named);

  std::string first;
  std::string last;
};

}  // namespace verbena::codegen

#endif  // VERBENA_RPC_CODEGEN_STREAM_TYPES_H_
