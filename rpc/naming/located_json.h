// LocatedJson: a JSON text as a tree whose nodes know their place in the text, so that an error can
// name it.
//
// For configurations, which are small and read once. Values; any thread.
//
//   VERBENA_ASSIGN_OR_RETURN(LocatedJson root, ParseLocatedJson(text));
//   for (const LocatedJson& member : root.items) {
//     if (member.key == "timeout") …
//     return member.key_place.Wrong("unknown key");

#ifndef VERBENA_RPC_NAMING_LOCATED_JSON_H_
#define VERBENA_RPC_NAMING_LOCATED_JSON_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::internal {

// A place in a text; both count from 1, columns in bytes.
struct JsonPlace {
  // INVALID_ARGUMENT: "line:column: what".
  absl::Status Wrong(std::string_view what) const;

  uint32_t line = 1;
  uint32_t column = 1;
};

struct LocatedJson {
  // The longest text that is parsed.
  static constexpr size_t kMaxBytes = size_t{1} << 20;
  // The most members of an object; each key is compared with those before it.
  static constexpr size_t kMaxMembers = 1024;

  enum class Kind : uint8_t { kNull, kBool, kNumber, kString, kArray, kObject };

  Kind kind = Kind::kNull;
  bool boolean = false;
  double number = 0;
  std::string text;                // of a string; of a number as it is written
  std::vector<LocatedJson> items;  // of an array; of an object its members, each with its key
  JsonPlace place;                 // the value's first character
  std::string key;                 // of a member
  JsonPlace key_place;
};

// INVALID_ARGUMENT, with the place: no JSON, nested deeper than 32, an object that has a key twice
// or more than kMaxMembers, or more than kMaxBytes.
absl::StatusOr<LocatedJson> ParseLocatedJson(std::string_view text);

// `text` in quotes, without control characters, and cut off if it is long.
std::string Quoted(std::string_view text);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_NAMING_LOCATED_JSON_H_
