#include "verbena/rpc/codegen/stream_types.h"

#include "fmt/format.h"
#include "verbena/rpc/codegen/cpp_names.h"
#include "verbena/rpc/codegen/payload_options.h"

namespace verbena::codegen {
namespace {

using google::protobuf::MethodDescriptor;

std::string WithPayload(const std::string& type) { return "::verbena::WithPayload<" + type + ">"; }

// As a stream of them is spelled, if there is one.
std::string RequestOf(const MethodDescriptor& method) {
  const std::string type = CppTypeIn(*method.service(), *method.input_type());
  const bool has_payloads = method.client_streaming() && PayloadOptionsOf(method).request;
  return has_payloads ? WithPayload(type) : type;
}

std::string ReplyOf(const MethodDescriptor& method) {
  const std::string type = CppTypeIn(*method.service(), *method.output_type());
  const bool has_payloads = method.server_streaming() && PayloadOptionsOf(method).response;
  return has_payloads ? WithPayload(type) : type;
}

std::string StreamType(const MethodDescriptor& method, const char* suffix) {
  if (!method.client_streaming()) {
    return fmt::format("::verbena::ClientReader{}<{}>", suffix, ReplyOf(method));
  }
  const char* type = method.server_streaming() ? "ClientReaderWriter" : "ClientWriter";
  return fmt::format("::verbena::{}{}<{}, {}>", type, suffix, RequestOf(method), ReplyOf(method));
}

std::string Name(const char* name, bool named) {
  return named ? name : fmt::format("/*{}*/", name);
}

}  // namespace

bool IsStreaming(const MethodDescriptor& method) {
  return method.client_streaming() || method.server_streaming();
}

bool HasStreams(const google::protobuf::ServiceDescriptor& service) {
  for (int i = 0; i < service.method_count(); ++i) {
    if (IsStreaming(*service.method(i))) return true;
  }
  return false;
}

bool HasStreams(const google::protobuf::FileDescriptor& file) {
  for (int i = 0; i < file.service_count(); ++i) {
    if (HasStreams(*file.service(i))) return true;
  }
  return false;
}

const char* StreamsName(const MethodDescriptor& method) {
  if (!method.client_streaming()) return "kServer";
  return method.server_streaming() ? "kBoth" : "kClient";
}

std::string ClientStreamType(const MethodDescriptor& method) { return StreamType(method, ""); }

std::string StreamInterfaceType(const MethodDescriptor& method) {
  return StreamType(method, "Interface");
}

std::string StreamReplyType(const MethodDescriptor& method) { return ReplyOf(method); }

std::string StreamRequestParameter(const MethodDescriptor& method) {
  if (method.client_streaming()) return "";
  return fmt::format("const {}& request, ", RequestOf(method));
}

HandlerParameters::HandlerParameters(const MethodDescriptor& method, bool named) {
  const std::string request = RequestOf(method);
  const std::string reply = ReplyOf(method);
  if (method.client_streaming() && method.server_streaming()) {
    last = fmt::format("::verbena::ServerReaderWriter<{}, {}>& {}", request, reply,
                       Name("stream", named));
    return;
  }
  first = method.client_streaming()
              ? fmt::format(" ::verbena::ServerReader<{}>& {},", request, Name("reader", named))
              : fmt::format(" const {}& {},", request, Name("request", named));
  last = method.server_streaming()
             ? fmt::format("::verbena::ServerWriter<{}>& {}", reply, Name("writer", named))
             : fmt::format("{}& {}", reply, Name("reply", named));
}

}  // namespace verbena::codegen
