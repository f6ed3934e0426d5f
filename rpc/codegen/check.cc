#include "verbena/rpc/codegen/check.h"

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "verbena/rpc/codegen/names.h"
#include "verbena/rpc/codegen/protobuf.h"

namespace verbena::codegen {
namespace {

// C++ type → the .proto name that it stands for.
using TypeNames = std::map<std::string, std::string>;

void AddTypes(const Descriptor& message, const std::string& prefix, TypeNames& types) {
  std::string name = prefix + NameOf(message);
  types.emplace(name, FullNameOf(message));
  for (int i = 0; i < message.nested_type_count(); ++i) {
    AddTypes(*message.nested_type(i), name + "_", types);
  }
  for (int i = 0; i < message.enum_type_count(); ++i) {
    const EnumDescriptor& type = *message.enum_type(i);
    types.emplace(name + "_" + NameOf(type), FullNameOf(type));
  }
}

// The classes that protobuf makes of nested types (Outer_Inner) share a namespace with services,
// though their names in the .proto do not.
void AddTypesOfPackage(const FileDescriptor& file, const std::string& package,
                       std::set<const FileDescriptor*>& seen, TypeNames& types) {
  if (!seen.insert(&file).second) return;
  if (PackageOf(file) == package) {
    for (int i = 0; i < file.message_type_count(); ++i) AddTypes(*file.message_type(i), "", types);
  }
  for (int i = 0; i < file.dependency_count(); ++i) {
    AddTypesOfPackage(*file.dependency(i), package, seen, types);
  }
}

// The first part of a C++ name like "::a::b" that is a keyword; empty if none is.
std::string KeywordIn(const std::string& qualified) {
  for (size_t begin = 0; begin < qualified.size();) {
    size_t end = std::min(qualified.find("::", begin), qualified.size());
    std::string part = qualified.substr(begin, end - begin);
    if (IsKeyword(part)) return part;
    begin = end + 2;
  }
  return "";
}

std::string StreamingProblem(const MethodDescriptor& method) {
  if (!method.client_streaming() && !method.server_streaming()) return "";
  if (IsDeduplicated(method)) {
    return "a stream cannot be repeated as a whole; remove dedupe, or make request and reply "
           "single messages";
  }
  const PayloadOptions payloads = PayloadOptionsOf(method);
  if (payloads.request && !method.client_streaming()) {
    return "the one request of a stream has no payload; remove request_payload, or make the "
           "request "
           "a stream";
  }
  if (payloads.response && !method.server_streaming()) {
    return "the one reply to a stream has no payload; remove response_payload, or make the reply a "
           "stream";
  }
  return "";
}

std::string TypeProblem(const Descriptor& message) {
  std::string keyword = KeywordIn(CppType(message));
  if (keyword.empty()) return "";
  return fmt::format(
      "message {} cannot be used: '{}' is a C++ keyword that protobuf does not escape; rename it",
      FullNameOf(message), keyword);
}

std::string ProblemOf(const MethodDescriptor& method) {
  std::string problem = StreamingProblem(method);
  if (problem.empty()) problem = TypeProblem(*method.input_type());
  if (problem.empty()) problem = TypeProblem(*method.output_type());
  return problem;
}

class Checker {
 public:
  Checker(const FileDescriptor& file, const Parameters& parameters)
      : file_(file), parameters_(parameters) {
    std::set<const FileDescriptor*> seen;
    AddTypesOfPackage(file, PackageOf(file), seen, types_);
  }

  std::string Check() {
    std::string keyword = KeywordIn(CppNamespace(file_));
    if (!keyword.empty()) {
      Add(Where({FileDescriptorProto::kPackageFieldNumber}),
          fmt::format("package {}: '{}' is a C++ keyword that protobuf does not escape; rename it",
                      PackageOf(file_), keyword));
    }
    if (file_.options().cc_generic_services()) {
      Add(Where({FileDescriptorProto::kOptionsFieldNumber,
                 FileOptions::kCcGenericServicesFieldNumber}),
          "option cc_generic_services makes protobuf generate classes of the same names; remove "
          "it");
    }
    CheckNamespace();
    for (int i = 0; i < file_.service_count(); ++i) CheckService(*file_.service(i));
    return std::move(problems_);
  }

 private:
  // "a.proto:4:3: ", as compilers write it, or "a.proto: " if protoc kept no locations.
  std::string Prefix(const SourceLocation* location) const {
    if (location == nullptr) return NameOf(file_) + ": ";
    return fmt::format("{}:{}:{}: ", NameOf(file_), location->start_line + 1,
                       location->start_column + 1);
  }
  std::string Where(const std::vector<int>& path) const {
    SourceLocation location;
    return Prefix(file_.GetSourceLocation(path, &location) ? &location : nullptr);
  }
  template <typename Described>
  std::string Where(const Described& descriptor) const {
    SourceLocation location;
    return Prefix(descriptor.GetSourceLocation(&location) ? &location : nullptr);
  }

  void Add(const std::string& where, const std::string& problem) {
    if (!problems_.empty()) problems_ += '\n';
    problems_ += where + problem;
  }

  // A class and a namespace of one name do not compile.
  void CheckNamespace() {
    const std::string& name = parameters_.services_namespace;
    const std::string first = name.substr(0, name.find("::"));
    auto type = types_.find(first);
    if (!first.empty() && type != types_.end()) {
      Add(NameOf(file_) + ": ",
          fmt::format("services_namespace {} is also the C++ name of {}; choose another", first,
                      type->second));
    }
  }

  void CheckClass(const ServiceDescriptor& service, const std::string& name, const char* what) {
    auto [other, added] = types_.emplace(name, FullNameOf(service));
    if (added) return;
    Add(Where(service), fmt::format("service {}: its C++ {} {} is also that of {}; rename one",
                                    FullNameOf(service), what, name, other->second));
  }

  void CheckService(const ServiceDescriptor& service) {
    CheckClass(service, CppName(service), "class");
    if (parameters_.generate_mock_code) CheckClass(service, MockName(service), "mock");
    std::map<std::string, std::string> members;
    for (int i = 0; i < service.method_count(); ++i) {
      const MethodDescriptor& method = *service.method(i);
      std::string problem = ProblemOf(method);
      auto [twin, is_new] = members.emplace(CppName(method), NameOf(method));
      if (problem.empty() && !is_new) {
        problem = fmt::format("its C++ name {} is also that of method {}; rename one", twin->first,
                              twin->second);
      }
      if (!problem.empty()) {
        Add(Where(method),
            fmt::format("service {}, method {}: {}", FullNameOf(service), NameOf(method), problem));
      }
    }
  }

  const FileDescriptor& file_;
  const Parameters& parameters_;
  TypeNames types_;
  std::string problems_;
};

}  // namespace

std::string ProblemsOf(const FileDescriptor& file, const Parameters& parameters) {
  if (file.service_count() == 0) return "";
  return Checker(file, parameters).Check();
}

}  // namespace verbena::codegen
