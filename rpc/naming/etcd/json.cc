#include "verbena/rpc/naming/etcd/json.h"

#include <boost/json/error.hpp>
#include <boost/json/parse.hpp>
#include <charconv>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "fmt/format.h"
#include "verbena/rpc/naming/resolved_text.h"
#include "verbena/transport/base/status_macros.h"

namespace verbena::internal {
namespace {

namespace json = boost::json;

const json::value* Find(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(json::string_view(name.data(), name.size()));
  return value == nullptr || value->is_null() ? nullptr : value;
}

absl::Status NotA(std::string_view kind, std::string_view name) {
  return absl::InternalError(fmt::format("the field \"{}\" is no {}", name, kind));
}

}  // namespace

absl::StatusOr<json::object> ParseJsonObject(std::string_view text) {
  boost::system::error_code error;
  json::value value = json::parse(json::string_view(text.data(), text.size()), error);
  if (error) {
    return absl::InternalError(fmt::format("no JSON: {}: \"{}\"", error.message(), Shown(text)));
  }
  json::object* object = value.if_object();
  if (object == nullptr) {
    return absl::InternalError(fmt::format("no JSON object: \"{}\"", Shown(text)));
  }
  return std::move(*object);
}

absl::StatusOr<int64_t> JsonInteger(const json::object& object, std::string_view name) {
  const json::value* value = Find(object, name);
  if (value == nullptr) return 0;
  if (const int64_t* number = value->if_int64()) return *number;
  const json::string* text = value->if_string();
  int64_t number = 0;
  if (text == nullptr || text->empty()) return NotA("whole number", name);
  const char* end = text->data() + text->size();
  const auto [rest, error] = std::from_chars(text->data(), end, number);
  if (rest != end || error != std::errc()) return NotA("whole number", name);
  return number;
}

absl::StatusOr<std::string> JsonText(const json::object& object, std::string_view name) {
  const json::value* value = Find(object, name);
  if (value == nullptr) return "";
  const json::string* text = value->if_string();
  if (text == nullptr) return NotA("text", name);
  return std::string(text->data(), text->size());
}

absl::StatusOr<std::string> JsonBase64(const json::object& object, std::string_view name) {
  VERBENA_ASSIGN_OR_RETURN(const std::string text, JsonText(object, name));
  std::string bytes;
  if (!absl::Base64Unescape(text, &bytes)) return NotA("base64", name);
  return bytes;
}

absl::StatusOr<bool> JsonBool(const json::object& object, std::string_view name) {
  const json::value* value = Find(object, name);
  if (value == nullptr) return false;
  if (const bool* is = value->if_bool()) return *is;
  return NotA("true or false", name);
}

absl::StatusOr<const json::object*> JsonObject(const json::object& object, std::string_view name) {
  const json::value* value = Find(object, name);
  if (value == nullptr) return nullptr;
  const json::object* found = value->if_object();
  if (found == nullptr) return NotA("object", name);
  return found;
}

absl::StatusOr<const json::array*> JsonArray(const json::object& object, std::string_view name) {
  const json::value* value = Find(object, name);
  if (value == nullptr) return nullptr;
  const json::array* found = value->if_array();
  if (found == nullptr) return NotA("array", name);
  return found;
}

}  // namespace verbena::internal
