#include "tools/verbena/message_json.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "fmt/format.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/util/json_util.h"
#include "verbena/rpc/naming/located_json.h"
#include "verbena/transport/base/letters_apart.h"

namespace verbena::command {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using internal::JsonPlace;
using internal::LocatedJson;

absl::Status Wrong(JsonPlace place, uint32_t first_line, std::string_view what) {
  place.line += first_line - 1;
  return place.Wrong(what);
}

const FieldDescriptor* FieldOf(const Descriptor& type, const std::string& key) {
  if (const FieldDescriptor* field = type.FindFieldByName(key)) return field;
  if (const FieldDescriptor* field = type.FindFieldByCamelcaseName(key)) return field;
  for (int i = 0; i < type.field_count(); ++i) {
    if (type.field(i)->json_name() == key) return type.field(i);
  }
  return nullptr;
}

// Messages that JSON writes in a way of their own, such as a Timestamp.
bool HasOwnForm(const Descriptor& type) {
  return std::string_view(type.full_name()).substr(0, 16) == "google.protobuf.";
}

// Unknown fields, which protobuf names without their place.
absl::Status CheckKeys(const LocatedJson& value, const Descriptor& type, uint32_t first_line) {
  if (HasOwnForm(type) || value.kind == LocatedJson::Kind::kNull) return absl::OkStatus();
  if (value.kind != LocatedJson::Kind::kObject) {
    return Wrong(value.place, first_line,
                 fmt::format("here must be an object, {{...}}, for a message {}",
                             std::string(type.full_name())));
  }
  for (const LocatedJson& member : value.items) {
    const FieldDescriptor* field = FieldOf(type, member.key);
    if (field == nullptr) {
      std::vector<std::string> names;
      names.reserve(static_cast<size_t>(type.field_count()));
      for (int i = 0; i < type.field_count(); ++i) names.emplace_back(type.field(i)->name());
      return Wrong(member.key_place, first_line,
                   fmt::format("{} has no field {}{}", std::string(type.full_name()),
                               internal::Quoted(member.key), DidYouMean(member.key, names)));
    }
    const Descriptor* inner = field->message_type();
    if (field->is_map()) inner = field->message_type()->map_value()->message_type();
    if (inner == nullptr) continue;
    if (!field->is_repeated()) {
      absl::Status checked = CheckKeys(member, *inner, first_line);
      if (!checked.ok()) return checked;
      continue;
    }
    for (const LocatedJson& item : member.items) {
      absl::Status checked = CheckKeys(item, *inner, first_line);
      if (!checked.ok()) return checked;
    }
  }
  return absl::OkStatus();
}

// The value at `path`, "a.b[1].c" as protobuf's errors have it, as far as it is found.
const LocatedJson& At(const LocatedJson& root, std::string_view path) {
  const LocatedJson* value = &root;
  while (!path.empty()) {
    const size_t end = path.front() == '[' ? path.find(']') : path.find_first_of(".[");
    std::string_view step = path.substr(0, end);
    const LocatedJson* next = nullptr;
    if (step.front() == '[') {
      path.remove_prefix(std::min(path.size(), end == path.npos ? end : end + 1));
      step.remove_prefix(1);
      size_t index = 0;
      if (absl::SimpleAtoi(absl::string_view(step.data(), step.size()), &index)) {
        if (index < value->items.size()) next = &value->items[index];
      } else if (step.size() > 1 && step.front() == '"') {
        // The key of a map.
        step = step.substr(1, step.size() - 2);
      }
    } else {
      path.remove_prefix(std::min(path.size(), end));
    }
    if (next == nullptr) {
      for (const LocatedJson& member : value->items) {
        if (!member.key.empty() && member.key == step) next = &member;
      }
    }
    if (!path.empty() && path.front() == '.') path.remove_prefix(1);
    if (next == nullptr) break;
    value = next;
  }
  return *value;
}

// One line of protobuf's error, with the place that its path names.
absl::Status Located(const LocatedJson& root, std::string error, uint32_t first_line) {
  error = error.substr(0, error.find('\n'));
  const size_t open = error.find('(');
  const size_t close = error.find("): ");
  JsonPlace place = root.place;
  if (open != std::string::npos && close != std::string::npos && open < close) {
    place = At(root, std::string_view(error).substr(open + 1, close - open - 1)).place;
  }
  return Wrong(place, first_line, error);
}

constexpr size_t kLongestName = 256;
constexpr size_t kMostNames = 4096;

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = absl::ascii_tolower(static_cast<unsigned char>(c));
  return lower;
}

}  // namespace

absl::Status ParseMessage(std::string_view text, uint32_t first_line,
                          google::protobuf::Message& message) {
  absl::StatusOr<LocatedJson> root = internal::ParseLocatedJson(text);
  if (!root.ok() && first_line > 1) {
    // The parser counts lines from 1.
    const std::string what(root.status().message());
    const size_t colon = what.find(':');
    uint32_t line = 0;
    if (absl::SimpleAtoi(what.substr(0, colon), &line)) {
      return absl::InvalidArgumentError(
          fmt::format("{}{}", line + first_line - 1, what.substr(colon)));
    }
  }
  if (!root.ok()) return root.status();
  absl::Status checked = CheckKeys(*root, *message.GetDescriptor(), first_line);
  if (!checked.ok()) return checked;
  const auto parsed =
      google::protobuf::util::JsonStringToMessage({text.data(), text.size()}, &message);
  if (!parsed.ok()) {
    return Located(*root, std::string(parsed.message().data(), parsed.message().size()),
                   first_line);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> PrintMessage(const google::protobuf::Message& message, bool pretty,
                                         bool defaults) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = pretty;
  options.always_print_primitive_fields = defaults;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto printed = google::protobuf::util::MessageToJsonString(message, &text, options);
  if (!printed.ok()) {
    return absl::DataLossError(fmt::format(
        "a message {} is no JSON: {}", std::string(message.GetDescriptor()->full_name()),
        std::string(printed.message().data(), printed.message().size())));
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::vector<std::string> Nearest(std::string_view wrong, const std::vector<std::string>& names) {
  const std::string lower = Lower(wrong.substr(0, kLongestName));
  std::vector<std::pair<size_t, std::string>> near;
  for (size_t i = 0; i < std::min(names.size(), kMostNames); ++i) {
    const std::string& name = names[i];
    if (name.size() > kLongestName) continue;
    const std::string other = Lower(name);
    size_t distance = internal::LettersApart(lower, other);
    // The last part of "package.Service", when somebody leaves the package out.
    const size_t dot = other.rfind('.');
    if (dot != std::string::npos) {
      distance = std::min(
          distance, 1 + internal::LettersApart(lower, std::string_view(other).substr(dot + 1)));
    }
    if (distance <= std::max<size_t>(2, lower.size() / 3)) near.emplace_back(distance, name);
  }
  std::sort(near.begin(), near.end());
  std::vector<std::string> nearest;
  for (size_t i = 0; i < std::min<size_t>(near.size(), 3); ++i) nearest.push_back(near[i].second);
  return nearest;
}

std::string DidYouMean(std::string_view wrong, const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : Nearest(wrong, names)) {
    text += fmt::format("{}'{}'", text.empty() ? "; did you mean " : " or ", name);
  }
  return text.empty() ? text : text + "?";
}

}  // namespace verbena::command
