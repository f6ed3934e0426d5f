// Texts from a resolver or a file: which ones are accepted, and how errors show them.
//
// A server's name may come from another program, and gets into messages and logs. So it is short
// and printable, and whatever else an error shows is cut and escaped. Pure functions.

#ifndef VERBENA_RPC_NAMING_RESOLVED_TEXT_H_
#define VERBENA_RPC_NAMING_RESOLVED_TEXT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "fmt/format.h"

namespace verbena::internal {

// The most bytes of a name, a zone or an address.
inline constexpr size_t kMaxResolvedText = 255;

// The first bytes of `text`, at most `most`, with all but printable characters escaped.
inline std::string Shown(std::string_view text, size_t most = 100) {
  std::string shown = absl::CHexEscape(std::string(text.substr(0, most)));
  if (text.size() > most) shown += fmt::format("... ({} bytes)", text.size());
  return shown;
}

// `what` names the text, as in "a name".
inline absl::Status CheckResolvedText(std::string_view what, std::string_view text) {
  if (text.size() > kMaxResolvedText) {
    return absl::InvalidArgumentError(fmt::format("{} has {} bytes, but may have {}: \"{}\"", what,
                                                  text.size(), kMaxResolvedText, Shown(text)));
  }
  const auto is_printable = [](char c) { return absl::ascii_isgraph(static_cast<uint8_t>(c)); };
  if (!std::all_of(text.begin(), text.end(), is_printable)) {
    return absl::InvalidArgumentError(fmt::format(
        "{} may have printable ASCII characters alone, and no blanks: \"{}\"", what, Shown(text)));
  }
  return absl::OkStatus();
}

}  // namespace verbena::internal

#endif  // VERBENA_RPC_NAMING_RESOLVED_TEXT_H_
