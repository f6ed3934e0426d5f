#include "verbena/rpc/codegen/payload_options.h"

#include <memory>

#include "google/protobuf/descriptor.pb.h"
#include "google/protobuf/dynamic_message.h"

namespace verbena::codegen {
namespace {

using google::protobuf::DynamicMessageFactory;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

bool IsSet(const Message& options, const char* name) {
  const FieldDescriptor* field = options.GetDescriptor()->FindFieldByName(name);
  return field != nullptr && field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL &&
         !field->is_repeated() && options.GetReflection()->GetBool(options, field);
}

}  // namespace

PayloadOptions PayloadOptionsOf(const google::protobuf::MethodDescriptor& method) {
  const FieldDescriptor* extension = method.file()->pool()->FindExtensionByName("verbena.method");
  if (extension == nullptr || extension->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) return {};
  DynamicMessageFactory factory;
  std::unique_ptr<Message> options(factory.GetPrototype(extension->containing_type())->New());
  if (!options->ParseFromString(method.options().SerializeAsString())) return {};
  const Message& ours = options->GetReflection()->GetMessage(*options, extension, &factory);
  return {.request = IsSet(ours, "request_payload"), .response = IsSet(ours, "response_payload")};
}

}  // namespace verbena::codegen
