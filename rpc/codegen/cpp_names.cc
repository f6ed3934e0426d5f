#include "verbena/rpc/codegen/cpp_names.h"

#include <algorithm>
#include <iterator>

#include "fmt/format.h"
#include "google/protobuf/compiler/cpp/names.h"
#include "google/protobuf/descriptor.pb.h"
#include "verbena/rpc/codegen/payload_options.h"

namespace verbena::codegen {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;
using google::protobuf::FileDescriptorProto;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;

// Sorted, for binary search.
constexpr std::string_view kKeywords[] = {
    "alignas",       "alignof",     "and",
    "and_eq",        "asm",         "auto",
    "bitand",        "bitor",       "bool",
    "break",         "case",        "catch",
    "char",          "char16_t",    "char32_t",
    "char8_t",       "class",       "co_await",
    "co_return",     "co_yield",    "compl",
    "concept",       "const",       "const_cast",
    "consteval",     "constexpr",   "constinit",
    "continue",      "decltype",    "default",
    "delete",        "do",          "double",
    "dynamic_cast",  "else",        "enum",
    "explicit",      "export",      "extern",
    "false",         "float",       "for",
    "friend",        "goto",        "if",
    "inline",        "int",         "long",
    "mutable",       "namespace",   "new",
    "noexcept",      "not",         "not_eq",
    "nullptr",       "operator",    "or",
    "or_eq",         "private",     "protected",
    "public",        "register",    "reinterpret_cast",
    "requires",      "return",      "short",
    "signed",        "sizeof",      "static",
    "static_assert", "static_cast", "struct",
    "switch",        "template",    "this",
    "thread_local",  "throw",       "true",
    "try",           "typedef",     "typeid",
    "typename",      "union",       "unsigned",
    "using",         "virtual",     "void",
    "volatile",      "wchar_t",     "while",
    "xor",           "xor_eq",
};
static_assert(std::is_sorted(std::begin(kKeywords), std::end(kKeywords)));

// Macros of the headers that generated code includes. Sorted.
constexpr std::string_view kMacros[] = {"EOF",   "INFINITY", "NAN",   "NULL",  "assert",
                                        "errno", "stderr",   "stdin", "stdout"};
static_assert(std::is_sorted(std::begin(kMacros), std::end(kMacros)));

// Members of the generated classes, and the classes themselves. Sorted.
constexpr std::string_view kMembers[] = {"Service",  "Stub",      "StubAdapter", "StubInterface",
                                         "channel_", "full_name", "kFullName",   "kMethods",
                                         "methods",  "stub_"};
static_assert(std::is_sorted(std::begin(kMembers), std::end(kMembers)));

// Parameters of generated methods. Sorted.
constexpr std::string_view kParameters[] = {"context", "options", "reader", "reply",
                                            "request", "stream",  "writer"};
static_assert(std::is_sorted(std::begin(kParameters), std::end(kParameters)));

template <size_t n>
bool Contains(const std::string_view (&sorted)[n], std::string_view name) {
  return std::binary_search(std::begin(sorted), std::end(sorted), name);
}

std::string Escaped(const std::string& name) {
  if (IsKeyword(name) || Contains(kMacros, name) || Contains(kMembers, name)) return name + "_";
  return name;
}

}  // namespace

bool IsKeyword(std::string_view name) { return Contains(kKeywords, name); }

std::string CppNamespace(const FileDescriptor& file) {
  if (file.package().empty()) return "";
  // protobuf's public functions name only types: a made-up type of the package shows the namespace.
  FileDescriptorProto probe;
  probe.set_name(file.name());
  probe.set_package(file.package());
  probe.add_message_type()->set_name("M");
  DescriptorPool pool;
  std::string type = CppType(*pool.BuildFile(probe)->message_type(0));
  return type.substr(2, type.size() - std::string_view("::::M").size());
}

std::string ServicesNamespace(const FileDescriptor& file, const Parameters& parameters) {
  std::string name = CppNamespace(file);
  if (!name.empty() && !parameters.services_namespace.empty()) name += "::";
  return name + parameters.services_namespace;
}

std::string CppType(const Descriptor& message) {
  return google::protobuf::compiler::cpp::QualifiedClassName(&message);
}

std::string CppTypeIn(const ServiceDescriptor& service, const Descriptor& message) {
  std::string name = google::protobuf::compiler::cpp::ClassName(&message);
  bool hidden = message.file()->package() != service.file()->package() ||
                Contains(kMembers, name) || Contains(kParameters, name);
  for (int i = 0; i < service.method_count() && !hidden; ++i) {
    hidden = CppName(*service.method(i)) == name;
  }
  return hidden ? CppType(message) : name;
}

std::string StubReplyType(const MethodDescriptor& method) {
  const std::string reply = CppTypeIn(*method.service(), *method.output_type());
  return PayloadOptionsOf(method).response ? "::verbena::WithPayload<" + reply + ">" : reply;
}

std::string CppName(const ServiceDescriptor& service) { return Escaped(service.name()); }

std::string MockName(const ServiceDescriptor& service) { return "Mock" + service.name() + "Stub"; }

std::string CppName(const MethodDescriptor& method) { return Escaped(method.name()); }

std::string BaseName(const FileDescriptor& file) {
  return google::protobuf::compiler::cpp::StripProto(file.name());
}

std::string GuardName(const FileDescriptor& file) {
  std::string guard = "VERBENA_GENERATED_";
  for (unsigned char c : file.name()) {
    bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (plain) {
      guard += static_cast<char>(c);
    } else {
      guard += fmt::format("_{:02x}", c);
    }
  }
  return guard;
}

}  // namespace verbena::codegen
