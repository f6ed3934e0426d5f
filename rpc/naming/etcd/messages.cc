#include "verbena/rpc/naming/etcd/messages.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/error.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/string.hpp>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <limits>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "fmt/format.h"
#include "verbena/rpc/naming/resolved_text.h"
#include "verbena/transport/base/status.h"

namespace verbena::internal {

namespace json = boost::json;

namespace {

// Longest lease that this side believes in: a year.
constexpr int64_t kMaxTtlSeconds = int64_t{365} * 24 * 3600;

// Tokens of JWT have some hundred.
constexpr size_t kMaxTokenBytes = 8192;

std::string Base64(std::string_view bytes) {
  return absl::Base64Escape(absl::string_view(bytes.data(), bytes.size()));
}

// The revision in the header of an answer, which each has.
absl::StatusOr<int64_t> RevisionOf(const json::object& answer) {
  VERBENA_ASSIGN_OR_RETURN(const json::object* header, JsonObject(answer, "header"));
  if (header == nullptr) return absl::InternalError("the field \"header\" is missing");
  VERBENA_ASSIGN_OR_RETURN(const int64_t revision, JsonInteger(*header, "revision"));
  if (revision < 1) {
    return absl::InternalError(
        fmt::format("the header's revision is {}, but must be 1 or more", revision));
  }
  return revision;
}

absl::StatusOr<EtcdEntry> ReadEntry(const json::value& value) {
  const json::object* object = value.if_object();
  if (object == nullptr) return absl::InternalError("a key and its value are no JSON object");
  EtcdEntry entry;
  VERBENA_ASSIGN_OR_RETURN(entry.key, JsonBase64(*object, "key"));
  if (entry.key.empty()) return absl::InternalError("the field \"key\" is missing");
  VERBENA_ASSIGN_OR_RETURN(entry.value, JsonBase64(*object, "value"));
  VERBENA_ASSIGN_OR_RETURN(entry.create_revision, JsonInteger(*object, "create_revision"));
  VERBENA_ASSIGN_OR_RETURN(entry.mod_revision, JsonInteger(*object, "mod_revision"));
  VERBENA_ASSIGN_OR_RETURN(entry.version, JsonInteger(*object, "version"));
  VERBENA_ASSIGN_OR_RETURN(entry.lease, JsonInteger(*object, "lease"));
  return entry;
}

absl::StatusOr<std::vector<EtcdEntry>> ReadEntries(const json::object& range) {
  std::vector<EtcdEntry> entries;
  VERBENA_ASSIGN_OR_RETURN(const json::array* kvs, JsonArray(range, "kvs"));
  if (kvs == nullptr) return entries;
  entries.reserve(kvs->size());
  for (const json::value& each : *kvs) {
    VERBENA_ASSIGN_OR_RETURN(EtcdEntry entry, ReadEntry(each));
    entries.push_back(std::move(entry));
  }
  return entries;
}

absl::StatusOr<EtcdLease> ReadLease(const json::object& answer) {
  EtcdLease lease;
  VERBENA_ASSIGN_OR_RETURN(lease.id, JsonInteger(answer, "ID"));
  VERBENA_ASSIGN_OR_RETURN(const int64_t seconds, JsonInteger(answer, "TTL"));
  if (lease.id == 0 || seconds < 0 || seconds > kMaxTtlSeconds) {
    return absl::InternalError(
        fmt::format("there is no lease {} with a time to live of {} s", lease.id, seconds));
  }
  lease.ttl = std::chrono::seconds(seconds);
  return lease;
}

absl::StatusOr<EtcdEvent> ReadEvent(const json::value& value) {
  const json::object* object = value.if_object();
  if (object == nullptr) return absl::InternalError("an event is no JSON object");
  VERBENA_ASSIGN_OR_RETURN(const std::string type, JsonText(*object, "type"));
  if (!type.empty() && type != "PUT" && type != "DELETE") {
    return absl::InternalError(fmt::format("an event has the type \"{}\"", Shown(type)));
  }
  const json::value* kv = object->if_contains("kv");
  if (kv == nullptr) return absl::InternalError("the field \"kv\" of an event is missing");
  EtcdEvent event;
  event.deleted = type == "DELETE";
  VERBENA_ASSIGN_OR_RETURN(event.entry, ReadEntry(*kv));
  return event;
}

// The code of gRPC and the message that an error has.
absl::Status ReadError(const json::object& error, int http_status) {
  VERBENA_ASSIGN_OR_RETURN(int64_t code, JsonInteger(error, "code"));
  if (code == 0) {
    VERBENA_ASSIGN_OR_RETURN(code, JsonInteger(error, "grpc_code"));
  }
  VERBENA_ASSIGN_OR_RETURN(const std::string message, JsonText(error, "message"));
  // The codes of gRPC are those of Abseil.
  const bool known = code > 0 && code <= static_cast<int64_t>(absl::StatusCode::kUnauthenticated);
  return absl::Status(
      known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
      fmt::format("{}{}", Shown(message, 300),
                  http_status == 200 ? "" : fmt::format(" (HTTP {})", http_status)));
}

// A message of a stream has an object "result", or "error".
absl::StatusOr<json::object> ResultOf(std::string_view text) {
  VERBENA_ASSIGN_OR_RETURN(json::object message, ParseJsonObject(text));
  VERBENA_ASSIGN_OR_RETURN(const json::object* error, JsonObject(message, "error"));
  if (error != nullptr) return ReadError(*error, 200);
  json::value* result = message.if_contains("result");
  json::object* object = result == nullptr ? nullptr : result->if_object();
  if (object == nullptr) return absl::InternalError("the field \"result\" is no object");
  return std::move(*object);
}

const json::value* Find(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(json::string_view(name.data(), name.size()));
  return value == nullptr || value->is_null() ? nullptr : value;
}

absl::Status NotA(std::string_view kind, std::string_view name) {
  return absl::InternalError(fmt::format("the field \"{}\" is no {}", name, kind));
}

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

// Etcd refuses a watch by a message with the text of a gRPC error, and not by a failure.
absl::Status EndOfWatch(const std::string& why) {
  std::string text = fmt::format("the watch was ended: {}", Shown(why));
  const auto says = [&why](std::string_view part) { return why.find(part) != std::string::npos; };
  if (says("invalid auth token") || says("revision of auth store is old") ||
      says("user name is empty")) {
    return absl::UnauthenticatedError(text);
  }
  // Etcd 3.4 says so of tokens that it does not know, too.
  if (says("permission denied")) return absl::PermissionDeniedError(text);
  return absl::UnavailableError(text);
}

}  // namespace

std::string EndOfPrefix(std::string_view prefix) {
  std::string end(prefix);
  while (!end.empty() && end.back() == '\xff') end.pop_back();
  if (end.empty()) return std::string(1, '\0');  // etcd's word for the end of all keys
  end.back() = static_cast<char>(static_cast<unsigned char>(end.back()) + 1);
  return end;
}

std::string EncodeRange(std::string_view key, EtcdRangeKind kind, size_t most) {
  std::string body = fmt::format(R"({{"key":"{}")", Base64(key));
  if (kind != EtcdRangeKind::kKey) {
    body += fmt::format(R"(,"range_end":"{}")", Base64(EndOfPrefix(key)));
  }
  if (kind == EtcdRangeKind::kNewest) {
    body += R"(,"sort_order":"DESCEND","sort_target":"MOD","keys_only":true)";
  }
  if (most != 0) body += fmt::format(R"(,"limit":"{}")", most);
  return body + "}";
}

std::string EncodeWatch(std::string_view prefix, int64_t from_revision) {
  // In parts, so that no message is larger than etcd lets one be.
  return fmt::format(
      R"({{"create_request":{{"key":"{}","range_end":"{}","start_revision":"{}","fragment":true}}}})",
      Base64(prefix), Base64(EndOfPrefix(prefix)), from_revision);
}

std::string EncodeGrant(int64_t seconds) { return fmt::format(R"({{"TTL":"{}"}})", seconds); }

std::string EncodeLease(int64_t lease) { return fmt::format(R"({{"ID":"{}"}})", lease); }

std::string EncodeLogin(std::string_view user, std::string_view password) {
  json::object object;
  object["name"] = json::string_view(user.data(), user.size());
  object["password"] = json::string_view(password.data(), password.size());
  return json::serialize(object);
}

absl::StatusOr<std::string> DecodeLogin(std::string_view text) {
  VERBENA_ASSIGN_OR_RETURN(const json::object answer, ParseJsonObject(text));
  VERBENA_ASSIGN_OR_RETURN(std::string token, JsonText(answer, "token"));
  const auto is_printable = [](char c) { return absl::ascii_isgraph(static_cast<uint8_t>(c)); };
  if (token.empty() || token.size() > kMaxTokenBytes ||
      !std::all_of(token.begin(), token.end(), is_printable)) {
    return absl::InternalError("etcd's token is none of 1 to 8192 printable characters");
  }
  return token;
}

absl::StatusOr<EtcdRange> DecodeRange(std::string_view text) {
  VERBENA_ASSIGN_OR_RETURN(const json::object answer, ParseJsonObject(text));
  EtcdRange range;
  VERBENA_ASSIGN_OR_RETURN(range.revision, RevisionOf(answer));
  VERBENA_ASSIGN_OR_RETURN(range.entries, ReadEntries(answer));
  VERBENA_ASSIGN_OR_RETURN(range.count, JsonInteger(answer, "count"));
  return range;
}

absl::StatusOr<EtcdTxnResult> DecodeTxn(std::string_view text) {
  VERBENA_ASSIGN_OR_RETURN(const json::object answer, ParseJsonObject(text));
  EtcdTxnResult result;
  VERBENA_ASSIGN_OR_RETURN(result.revision, RevisionOf(answer));
  VERBENA_ASSIGN_OR_RETURN(result.succeeded, JsonBool(answer, "succeeded"));
  VERBENA_ASSIGN_OR_RETURN(const json::array* responses, JsonArray(answer, "responses"));
  if (responses == nullptr) return result;
  for (const json::value& each : *responses) {
    const json::object* response = each.if_object();
    if (response == nullptr) return absl::InternalError("a response is no JSON object");
    VERBENA_ASSIGN_OR_RETURN(const json::object* range, JsonObject(*response, "response_range"));
    if (range == nullptr) continue;
    VERBENA_ASSIGN_OR_RETURN(std::vector<EtcdEntry> entries, ReadEntries(*range));
    for (EtcdEntry& entry : entries) result.read.push_back(std::move(entry));
  }
  return result;
}

absl::StatusOr<EtcdLease> DecodeGrant(std::string_view text) {
  VERBENA_ASSIGN_OR_RETURN(const json::object answer, ParseJsonObject(text));
  VERBENA_ASSIGN_OR_RETURN(const EtcdLease lease, ReadLease(answer));
  if (lease.ttl == Duration::zero()) return absl::InternalError("etcd's lease is 0 s long");
  return lease;
}

absl::StatusOr<EtcdLease> DecodeKeepAlive(std::string_view text) {
  VERBENA_ASSIGN_OR_RETURN(const json::object answer, ResultOf(text));
  VERBENA_ASSIGN_OR_RETURN(const EtcdLease lease, ReadLease(answer));
  // etcd says so without an error.
  if (lease.ttl == Duration::zero()) {
    return absl::NotFoundError(fmt::format("etcd's lease {} has ended", lease.id));
  }
  return lease;
}

absl::StatusOr<int64_t> DecodeRevision(std::string_view text) {
  VERBENA_ASSIGN_OR_RETURN(const json::object answer, ParseJsonObject(text));
  return RevisionOf(answer);
}

absl::StatusOr<EtcdChanges> DecodeWatch(std::string_view text) {
  VERBENA_ASSIGN_OR_RETURN(const json::object result, ResultOf(text));
  VERBENA_ASSIGN_OR_RETURN(const bool canceled, JsonBool(result, "canceled"));
  if (canceled) {
    VERBENA_ASSIGN_OR_RETURN(const int64_t compacted, JsonInteger(result, "compact_revision"));
    if (compacted > 0) {
      return absl::OutOfRangeError(
          fmt::format("the watch begins before revision {}, the first that is kept", compacted));
    }
    VERBENA_ASSIGN_OR_RETURN(const std::string why, JsonText(result, "cancel_reason"));
    return EndOfWatch(why);
  }
  EtcdChanges changes;
  VERBENA_ASSIGN_OR_RETURN(changes.revision, RevisionOf(result));
  VERBENA_ASSIGN_OR_RETURN(const json::array* events, JsonArray(result, "events"));
  if (events == nullptr) return changes;
  for (const json::value& each : *events) {
    VERBENA_ASSIGN_OR_RETURN(EtcdEvent event, ReadEvent(each));
    changes.events.push_back(std::move(event));
  }
  return changes;
}

absl::Status DecodeFailure(int http_status, std::string_view text) {
  if (absl::StatusOr<json::object> error = ParseJsonObject(text); error.ok()) {
    absl::Status status = ReadError(*error, http_status);
    if (!absl::IsInternal(status)) return status;
  }
  const std::string what = fmt::format("HTTP {}: \"{}\"", http_status, Shown(text));
  if (http_status == 404) {
    return absl::UnimplementedError(what + ", so this is no etcd of version 3.4 or newer");
  }
  return http_status >= 500 ? absl::UnavailableError(what) : absl::UnknownError(what);
}

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
