// A message from JSON, with the place of what is wrong in it, and JSON from a message.
//
// The text is strict JSON, at most LocatedJson::kMaxBytes of it. Keys are the fields' names as the
// .proto has them, or in lowerCamelCase. Bytes are base64. Pure functions; any thread.

#ifndef VERBENA_TOOLS_VERBENA_MESSAGE_JSON_H_
#define VERBENA_TOOLS_VERBENA_MESSAGE_JSON_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message.h"

namespace verbena::command {

// Fills `message`, which is empty, from `text`, whose first line is line `first_line` of what the
// user gave. INVALID_ARGUMENT: "line:column: what is wrong".
absl::Status ParseMessage(std::string_view text, uint32_t first_line,
                          google::protobuf::Message& message);

// One line, without a line break at its end. `pretty`: several lines. `defaults`: also fields that
// have their default. The error names the type: its bytes are no such message.
absl::StatusOr<std::string> PrintMessage(const google::protobuf::Message& message, bool pretty,
                                         bool defaults);

// Those of `names` that are most like `wrong`, the nearest first: three at most, and none if none
// is near. Of names that are long, or beyond the first thousands, none is near.
std::vector<std::string> Nearest(std::string_view wrong, const std::vector<std::string>& names);

// "; did you mean 'a' or 'b'?", or nothing.
std::string DidYouMean(std::string_view wrong, const std::vector<std::string>& names);

}  // namespace verbena::command

#endif  // VERBENA_TOOLS_VERBENA_MESSAGE_JSON_H_
