#include "verbena/rpc/codegen/payload_options.h"

#include <memory>

#include "google/protobuf/descriptor.pb.h"
#include "google/protobuf/dynamic_message.h"

namespace verbena::codegen {
namespace {

using google::protobuf::DynamicMessageFactory;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Whether the boolean field `name` of the method's option is true.
bool IsSet(const google::protobuf::MethodDescriptor& method, const char* name) {
  const FieldDescriptor* extension = method.file()->pool()->FindExtensionByName("verbena.method");
  if (extension == nullptr || extension->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
    return false;
  }
  DynamicMessageFactory factory;
  std::unique_ptr<Message> options(factory.GetPrototype(extension->containing_type())->New());
  if (!options->ParseFromString(method.options().SerializeAsString())) return false;
  const Message& ours = options->GetReflection()->GetMessage(*options, extension, &factory);
  const FieldDescriptor* field = ours.GetDescriptor()->FindFieldByName(name);
  return field != nullptr && field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL &&
         !field->is_repeated() && ours.GetReflection()->GetBool(ours, field);
}

}  // namespace

PayloadOptions PayloadOptionsOf(const google::protobuf::MethodDescriptor& method) {
  return {.request = IsSet(method, "request_payload"),
          .response = IsSet(method, "response_payload")};
}

bool IsDeduplicated(const google::protobuf::MethodDescriptor& method) {
  return IsSet(method, "dedupe");
}

}  // namespace verbena::codegen
