#include "verbena/rpc/naming/etcd/server_value.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/string.hpp>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/rpc/naming/etcd/json.h"
#include "verbena/rpc/naming/resolved_text.h"
#include "verbena/transport/base/status_macros.h"

namespace verbena::internal {
namespace {

namespace json = boost::json;

json::array ArrayOf(const std::vector<std::string>& texts) {
  json::array array;
  for (const std::string& each : texts) array.emplace_back(each);
  return array;
}

absl::StatusOr<std::vector<std::string>> TextsOf(const json::object& object,
                                                 std::string_view name) {
  std::vector<std::string> texts;
  VERBENA_ASSIGN_OR_RETURN(const json::array* array, JsonArray(object, name));
  if (array == nullptr) return texts;
  for (const json::value& each : *array) {
    const json::string* text = each.if_string();
    if (text == nullptr) {
      return absl::InternalError(fmt::format("the field \"{}\" is no array of texts", name));
    }
    texts.emplace_back(text->data(), text->size());
  }
  return texts;
}

absl::StatusOr<uint32_t> NumberOf(const json::object& object, std::string_view name) {
  VERBENA_ASSIGN_OR_RETURN(const int64_t number, JsonInteger(object, name));
  if (number < 0 || number > std::numeric_limits<uint32_t>::max()) {
    return absl::InternalError(fmt::format("the field \"{}\" is {}", name, number));
  }
  return static_cast<uint32_t>(number);
}

absl::StatusOr<ServerEntry> Read(std::string_view name, std::string_view value) {
  if (value.size() > kMaxServerValueBytes) {
    return absl::InvalidArgumentError(fmt::format("the value has {} bytes, but may have {}",
                                                  value.size(), size_t{kMaxServerValueBytes}));
  }
  VERBENA_ASSIGN_OR_RETURN(const json::object object, ParseJsonObject(value));
  ServerEntry entry;
  entry.server.name = name;
  VERBENA_ASSIGN_OR_RETURN(entry.server.addresses, TextsOf(object, "addresses"));
  VERBENA_ASSIGN_OR_RETURN(entry.server.zone, JsonText(object, "zone"));
  if (object.contains("weight")) {
    VERBENA_ASSIGN_OR_RETURN(entry.server.weight, NumberOf(object, "weight"));
  }
  VERBENA_ASSIGN_OR_RETURN(entry.devices, TextsOf(object, "devices"));
  VERBENA_ASSIGN_OR_RETURN(entry.executors, NumberOf(object, "executors"));
  VERBENA_RETURN_IF_ERROR(CheckServerEntry(entry));
  return entry;
}

}  // namespace

std::string EncodeServerValue(const ServerEntry& entry) {
  json::object object;
  object["addresses"] = ArrayOf(entry.server.addresses);
  object["devices"] = ArrayOf(entry.devices);
  object["executors"] = entry.executors;
  object["weight"] = entry.server.weight;
  object["zone"] = entry.server.zone;
  return json::serialize(object);
}

absl::StatusOr<ServerEntry> DecodeServerValue(std::string_view name, std::string_view value) {
  absl::StatusOr<ServerEntry> entry = Read(name, value);
  if (entry.ok()) return entry;
  return absl::InvalidArgumentError(std::string(entry.status().message()));
}

}  // namespace verbena::internal
