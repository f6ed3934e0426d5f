#include "verbena/rpc/codegen/names.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "fmt/format.h"
#include "verbena/rpc/codegen/must.h"
#include "verbena/rpc/codegen/protobuf.h"

namespace verbena::codegen {

namespace {

std::vector<std::string_view> LinesOf(std::string_view text) {
  std::vector<std::string_view> lines;
  while (true) {
    size_t end = text.find_first_of("\r\n");
    std::string_view line = text.substr(0, end);
    lines.push_back(line.substr(0, line.find_last_not_of(" \t\v\f") + 1));
    if (end == std::string_view::npos) break;
    text.remove_prefix(text.substr(end, 2) == "\r\n" ? end + 2 : end + 1);
  }
  return lines;
}

template <typename Descriptor>
std::string LocatedComment(const Descriptor& descriptor) {
  SourceLocation location;
  if (!descriptor.GetSourceLocation(&location)) return "";
  return AsComment(location.leading_comments.empty() ? location.trailing_comments
                                                     : location.leading_comments);
}

constexpr char kKnown[] = "export_macro=NAME, generate_mock_code=true, services_namespace=NAME";

bool IsIdentifier(std::string_view name) {
  if (name.empty() || absl::ascii_isdigit(static_cast<unsigned char>(name[0]))) return false;
  for (char c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '_') return false;
  }
  return !IsKeyword(name);
}

// "a" or "a::b".
bool IsNamespace(std::string_view name) {
  for (size_t end = name.find("::"); end != std::string_view::npos; end = name.find("::")) {
    if (!IsIdentifier(name.substr(0, end))) return false;
    name.remove_prefix(end + 2);
  }
  return IsIdentifier(name);
}

std::string Read(const std::string& name, const std::string& value, Parameters* parameters) {
  if (name == "generate_mock_code") {
    if (value != "true" && value != "false") {
      return fmt::format("generate_mock_code is true or false, not '{}'", value);
    }
    parameters->generate_mock_code = value == "true";
  } else if (name == "services_namespace") {
    if (!IsNamespace(value)) {
      return fmt::format("services_namespace is a C++ namespace, such as rpc or rpc::v1, not '{}'",
                         value);
    }
    parameters->services_namespace = value;
  } else if (name == "export_macro") {
    if (!IsIdentifier(value)) {
      return fmt::format("export_macro is the name of a macro, such as STORE_EXPORT, not '{}'",
                         value);
    }
    parameters->export_macro = value;
  } else {
    return fmt::format("unknown parameter '{}'; known are {}", name, kKnown);
  }
  return "";
}

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

// Macros of the headers that generated code includes, and those that -std=gnu++20 defines. Sorted.
constexpr std::string_view kMacros[] = {"EOF",   "INFINITY", "NAN",   "NULL",   "assert", "errno",
                                        "linux", "stderr",   "stdin", "stdout", "unix"};
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

// Whether the boolean field `name` of the method's option is true.
bool IsSet(const MethodDescriptor& method, const char* name) {
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
  Must(IsStreaming(method), FullNameOf(method) + " is no stream");
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

std::string AsComment(const std::string& text) {
  std::vector<std::string_view> lines = LinesOf(text);
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  size_t first = 0;
  while (first < lines.size() && lines[first].empty()) ++first;
  std::string comment;
  for (size_t i = first; i < lines.size(); ++i) {
    comment += "//";
    if (!lines[i].empty() && lines[i][0] != ' ') comment += ' ';
    comment += lines[i];
    // A backslash at the end of a line would make the next one, perhaps code, part of the comment.
    if (lines[i].ends_with('\\')) comment += " //";
    comment += '\n';
  }
  return comment;
}

std::string CommentOf(const ServiceDescriptor& service) { return LocatedComment(service); }

std::string CommentOf(const MethodDescriptor& method) { return LocatedComment(method); }

void PrintComment(const std::string& comment, Printer& printer) {
  // Line by line, since the printer indents only what it sees begin a line.
  for (size_t begin = 0; begin < comment.size();) {
    size_t end = comment.find('\n', begin);
    Must(end != std::string::npos && comment.compare(begin, 2, "//") == 0,
         "what is printed as a comment is none");
    printer.Print("$line$\n", "line", comment.substr(begin, end - begin));
    begin = end + 1;
  }
}

std::string ParseParameters(const std::string& text, Parameters* parameters) {
  std::vector<std::pair<std::string, std::string>> given;
  ParseGeneratorParameter(text, &given);
  std::set<std::string> seen;
  for (const auto& [name, value] : given) {
    if (!seen.insert(name).second) return fmt::format("parameter {} is given twice", name);
    std::string problem = Read(name, value, parameters);
    if (!problem.empty()) return problem;
  }
  return "";
}

bool IsKeyword(std::string_view name) { return Contains(kKeywords, name); }

std::string CppNamespace(const FileDescriptor& file) {
  if (PackageOf(file).empty()) return "";
  // protobuf's public functions name only types: a made-up type of the package shows the namespace.
  FileDescriptorProto probe;
  probe.set_name(NameOf(file));
  probe.set_package(PackageOf(file));
  probe.add_message_type()->set_name("M");
  DescriptorPool pool;
  const FileDescriptor* const built = pool.BuildFile(probe);
  Must(built != nullptr, "protobuf takes no file of package " + PackageOf(file));
  std::string type = CppType(*built->message_type(0));
  Must(type.starts_with("::") && type.ends_with("::M"), "protobuf's name of a class is " + type);
  return type.substr(2, type.size() - std::string_view("::::M").size());
}

std::string ServicesNamespace(const FileDescriptor& file, const Parameters& parameters) {
  std::string name = CppNamespace(file);
  if (!name.empty() && !parameters.services_namespace.empty()) name += "::";
  return name + parameters.services_namespace;
}

std::string CppType(const Descriptor& message) { return QualifiedClassNameOf(message); }

std::string CppTypeIn(const ServiceDescriptor& service, const Descriptor& message) {
  std::string name = ClassNameOf(message);
  bool hidden = PackageOf(*message.file()) != PackageOf(*service.file()) ||
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

std::string CppName(const ServiceDescriptor& service) { return Escaped(NameOf(service)); }

std::string MockName(const ServiceDescriptor& service) { return "Mock" + NameOf(service) + "Stub"; }

std::string CppName(const MethodDescriptor& method) { return Escaped(NameOf(method)); }

std::string BaseName(const FileDescriptor& file) { return WithoutProto(NameOf(file)); }

std::string GuardName(const FileDescriptor& file) {
  std::string guard = "VERBENA_GENERATED_";
  for (unsigned char c : NameOf(file)) {
    bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (plain) {
      guard += static_cast<char>(c);
    } else {
      guard += fmt::format("_{:02x}", c);
    }
  }
  return guard;
}

PayloadOptions PayloadOptionsOf(const MethodDescriptor& method) {
  return {.request = IsSet(method, "request_payload"),
          .response = IsSet(method, "response_payload")};
}

bool IsDeduplicated(const MethodDescriptor& method) { return IsSet(method, "dedupe"); }

bool IsStreaming(const MethodDescriptor& method) {
  return method.client_streaming() || method.server_streaming();
}

bool HasStreams(const ServiceDescriptor& service) {
  for (int i = 0; i < service.method_count(); ++i) {
    if (IsStreaming(*service.method(i))) return true;
  }
  return false;
}

bool HasStreams(const FileDescriptor& file) {
  for (int i = 0; i < file.service_count(); ++i) {
    if (HasStreams(*file.service(i))) return true;
  }
  return false;
}

const char* StreamsName(const MethodDescriptor& method) {
  Must(IsStreaming(method), FullNameOf(method) + " is no stream");
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
