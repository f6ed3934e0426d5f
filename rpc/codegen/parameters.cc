#include "verbena/rpc/codegen/parameters.h"

#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "fmt/format.h"
#include "google/protobuf/compiler/code_generator.h"
#include "verbena/rpc/codegen/cpp_names.h"

namespace verbena::codegen {
namespace {

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

}  // namespace

std::string ParseParameters(const std::string& text, Parameters* parameters) {
  std::vector<std::pair<std::string, std::string>> given;
  google::protobuf::compiler::ParseGeneratorParameter(text, &given);
  std::set<std::string> seen;
  for (const auto& [name, value] : given) {
    if (!seen.insert(name).second) return fmt::format("parameter {} is given twice", name);
    std::string problem = Read(name, value, parameters);
    if (!problem.empty()) return problem;
  }
  return "";
}

}  // namespace verbena::codegen
