#include "tools/verbena/schema.h"

#include <algorithm>
#include <set>
#include <unordered_map>

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
  names.reserve(static_cast<size_t>(service.method_count()));
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

absl::Status NotOurs() {
  return absl::DataLossError(
      "the server sent a .proto file that declares types of google.protobuf, and this program has "
      "no such file");
}

// Replaces `file`, of a server, by this program's own if it is one of google/protobuf.
absl::Status TakeOurs(pb::FileDescriptorProto& file) {
  const bool named = file.name().rfind("google/protobuf/", 0) == 0;
  const pb::FileDescriptor* ours =
      named ? pb::DescriptorPool::generated_pool()->FindFileByName(file.name()) : nullptr;
  if (ours == nullptr) return file.package() == "google.protobuf" ? NotOurs() : absl::OkStatus();
  file.Clear();
  ours->CopyTo(&file);
  return absl::OkStatus();
}

// TypeWalk: how many types deep GetPrototype() may call itself. It follows some fields and not
// others, by protobuf's version, and a type only once. So this takes the most that any order can
// reach: all types that reach each other count, and then the deepest of those that they reach
// (Tarjan's algorithm for strongly connected components, without recursion).
class TypeWalk {
 public:
  // `type` and what is declared in it; parsing has bounded how deep that is.
  absl::Status AddWithNested(const pb::Descriptor& type) {
    VERBENA_RETURN_IF_ERROR(Add(type));
    for (int i = 0; i < type.nested_type_count(); ++i) {
      VERBENA_RETURN_IF_ERROR(AddWithNested(*type.nested_type(i)));
    }
    return absl::OkStatus();
  }

 private:
  struct Node {
    size_t index = 0;
    size_t low = 0;    // the lowest index that it reaches
    size_t below = 0;  // the depth of the types that it reaches, and that do not reach it
    size_t depth = 0;  // once it is closed
    bool closed = false;
  };
  struct Step {
    const pb::Descriptor* type;
    int next_field = 0;
  };

  absl::Status Add(const pb::Descriptor& root) {
    if (nodes_.count(&root) != 0) return absl::OkStatus();
    Enter(root);
    while (!path_.empty()) {
      Step& step = path_.back();
      if (step.next_field < step.type->field_count()) {
        const pb::Descriptor* inner = step.type->field(step.next_field++)->message_type();
        if (inner == nullptr) continue;
        if (const auto known = nodes_.find(inner); known == nodes_.end()) {
          Enter(*inner);
        } else {
          Reach(*step.type, known->second);
        }
        continue;
      }
      const pb::Descriptor& type = *step.type;
      path_.pop_back();
      Node& node = nodes_[&type];
      if (node.low == node.index) VERBENA_RETURN_IF_ERROR(Close(type));
      if (!path_.empty()) Reach(*path_.back().type, node);
    }
    return absl::OkStatus();
  }

  void Enter(const pb::Descriptor& type) {
    const size_t index = nodes_.size();
    nodes_[&type] = {.index = index, .low = index};
    open_.push_back(&type);
    path_.push_back({.type = &type});
  }

  void Reach(const pb::Descriptor& from, const Node& to) {
    Node& node = nodes_[&from];
    if (to.closed) {
      node.below = std::max(node.below, to.depth);
    } else {
      node.low = std::min(node.low, to.low);
    }
  }

  // `type` is the first of those that reach each other.
  absl::Status Close(const pb::Descriptor& type) {
    size_t first = open_.size();
    size_t below = 0;
    do {
      below = std::max(below, nodes_[open_[--first]].below);
    } while (open_[first] != &type);
    const size_t depth = below + open_.size() - first;
    for (size_t i = first; i < open_.size(); ++i) {
      nodes_[open_[i]].depth = depth;
      nodes_[open_[i]].closed = true;
    }
    open_.resize(first);
    if (depth <= Schema::kMostDepth) return absl::OkStatus();
    return absl::DataLossError(
        fmt::format("the server sent a .proto file in which messages nest more than {} deep: {}",
                    Schema::kMostDepth, std::string(type.full_name())));
  }

  std::unordered_map<const pb::Descriptor*, Node> nodes_;
  std::vector<Step> path_;
  std::vector<const pb::Descriptor*> open_;  // in the order of their indices
};

}  // namespace

absl::StatusOr<std::unique_ptr<Schema>> Schema::Build(const std::vector<std::string>& files) {
  if (files.size() > kMostFiles) {
    return absl::DataLossError(
        fmt::format("the server sent {} .proto files, more than {}, the most that are read",
                    files.size(), kMostFiles));
  }
  std::unique_ptr<Schema> schema(new Schema());
  TypeWalk walk;
  for (const std::string& bytes : files) {
    pb::FileDescriptorProto file;
    if (!file.ParseFromString(bytes)) {
      return absl::DataLossError("the server sent a .proto file that does not parse");
    }
    VERBENA_RETURN_IF_ERROR(TakeOurs(file));
    FirstError error;
    const pb::FileDescriptor* built = schema->pool_.BuildFileCollectingErrors(file, &error);
    if (built == nullptr) {
      return absl::DataLossError(
          fmt::format("the server sent a .proto file that is wrong: {}", error.text()));
    }
    for (int i = 0; i < built->message_type_count(); ++i) {
      VERBENA_RETURN_IF_ERROR(walk.AddWithNested(*built->message_type(i)));
    }
  }
  // As a message it could have its own Struct inside.
  if (schema->pool_.FindMessageTypeByName("google.protobuf") != nullptr) return NotOurs();
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
