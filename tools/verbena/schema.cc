#include "tools/verbena/schema.h"

#include <set>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "google/protobuf/descriptor.pb.h"
#include "tools/verbena/message_json.h"
#include "verbena/options.pb.h"
#include "verbena/transport/base/status.h"

namespace verbena::command {
namespace {

namespace pb = google::protobuf;

// Keeps the first error of a file.
class FirstError final : public pb::DescriptorPool::ErrorCollector {
 public:
  void AddError(const std::string& /*file*/, const std::string& element, const pb::Message*,
                ErrorLocation, const std::string& message) override {
    if (text_.empty()) text_ = fmt::format("{}: {}", element, message);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

Idempotency IdempotencyOf(const pb::MethodDescriptor& method) {
  switch (method.options().idempotency_level()) {
    case pb::MethodOptions::NO_SIDE_EFFECTS:
      return Idempotency::kNoSideEffects;
    case pb::MethodOptions::IDEMPOTENT:
      return Idempotency::kIdempotent;
    default:
      return Idempotency::kUnknown;
  }
}

Payloads PayloadsOf(const MethodOptions& options) {
  if (options.request_payload()) {
    return options.response_payload() ? Payloads::kBoth : Payloads::kRequest;
  }
  return options.response_payload() ? Payloads::kResponse : Payloads::kNone;
}

Streams StreamsOf(const pb::MethodDescriptor& method) {
  if (method.client_streaming()) {
    return method.server_streaming() ? Streams::kBoth : Streams::kClient;
  }
  return method.server_streaming() ? Streams::kServer : Streams::kNone;
}

absl::Status NoMethod(const pb::ServiceDescriptor& service, const std::string& method) {
  std::vector<std::string> names;
  for (int i = 0; i < service.method_count(); ++i) names.emplace_back(service.method(i)->name());
  return absl::NotFoundError(fmt::format("{} has no method '{}'{}",
                                         std::string(service.full_name()), method,
                                         DidYouMean(method, names)));
}

// Appends `types` that `seen` has not, each with an empty line before it.
void AddMessages(const pb::MethodDescriptor& method, std::set<const pb::Descriptor*>& seen,
                 std::string& text) {
  for (const pb::Descriptor* type : {method.input_type(), method.output_type()}) {
    if (seen.insert(type).second) text += "\n" + type->DebugString();
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Schema>> Schema::Build(const std::vector<std::string>& files) {
  std::unique_ptr<Schema> schema(new Schema());
  for (const std::string& bytes : files) {
    pb::FileDescriptorProto file;
    if (!file.ParseFromString(bytes)) {
      return absl::DataLossError("the server sent a .proto file that does not parse");
    }
    FirstError error;
    if (schema->pool_.BuildFileCollectingErrors(file, &error) == nullptr) {
      return absl::DataLossError(
          fmt::format("the server sent a .proto file that is wrong: {}", error.text()));
    }
  }
  return schema;
}

absl::StatusOr<std::unique_ptr<DynamicMethod>> Schema::Method(const std::string& service,
                                                              const std::string& method) {
  const pb::ServiceDescriptor* its_service = pool_.FindServiceByName(service);
  if (its_service == nullptr) {
    return absl::DataLossError(fmt::format("the server sent files without {}", service));
  }
  const pb::MethodDescriptor* found = its_service->FindMethodByName(method);
  if (found == nullptr) return NoMethod(*its_service, method);
  const MethodOptions& options = found->options().GetExtension(verbena::method);
  auto dynamic =
      std::make_unique<DynamicMethod>(fmt::format("{}/{}", service, method), IdempotencyOf(*found),
                                      PayloadsOf(options), StreamsOf(*found), options.dedupe());
  dynamic->request = messages_.GetPrototype(found->input_type());
  dynamic->reply = messages_.GetPrototype(found->output_type());
  return dynamic;
}

absl::StatusOr<std::string> Schema::Text(const std::string& name) const {
  const MethodName parts = SplitMethodName(name, false);
  std::set<const pb::Descriptor*> seen;
  if (const pb::ServiceDescriptor* service = pool_.FindServiceByName(parts.service)) {
    std::string text;
    if (!parts.method.empty()) {
      const pb::MethodDescriptor* method = service->FindMethodByName(parts.method);
      if (method == nullptr) return NoMethod(*service, parts.method);
      text = method->DebugString();
      AddMessages(*method, seen, text);
      return text;
    }
    text = service->DebugString();
    for (int i = 0; i < service->method_count(); ++i) {
      AddMessages(*service->method(i), seen, text);
    }
    return text;
  }
  if (const pb::Descriptor* message = pool_.FindMessageTypeByName(name)) {
    return message->DebugString();
  }
  if (const pb::EnumDescriptor* type = pool_.FindEnumTypeByName(name)) return type->DebugString();
  return absl::NotFoundError(fmt::format("{} is no service, message or enum", name));
}

MethodName SplitMethodName(const std::string& name, bool dots) {
  size_t at = name.find('/');
  if (at == std::string::npos && dots) at = name.rfind('.');
  if (at == std::string::npos) return {name, ""};
  return {name.substr(0, at), name.substr(at + 1)};
}

}  // namespace verbena::command
