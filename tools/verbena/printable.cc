#include "tools/verbena/printable.h"

#include <cstddef>
#include <cstdint>

#include "fmt/format.h"

namespace verbena::command {
namespace {

// The bytes of the character that begins `text`, which is not empty. 0: this is no UTF-8, overlong
// or a surrogate.
size_t FirstCharacter(std::string_view text, uint32_t& code) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t bytes = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if ((lead >= 0x80 && lead < 0xc2) || lead > 0xf4 || text.size() < bytes) return 0;
  code = bytes == 1 ? lead : lead & (0x7fU >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xc0) != 0x80) return 0;
    code = code << 6 | (next & 0x3f);
  }
  const bool overlong = (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
  return overlong || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : bytes;
}

bool IsControl(uint32_t code) { return code < 0x20 || (code >= 0x7f && code < 0xa0); }

std::string Escaped(uint32_t code) {
  switch (code) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return fmt::format("\\u{:04x}", code);
  }
}

}  // namespace

std::string Printable(std::string_view text, LineBreaks breaks) {
  std::string printable;
  printable.reserve(text.size());
  while (!text.empty()) {
    uint32_t code = 0;
    const size_t bytes = FirstCharacter(text, code);
    if (bytes == 0) {
      printable += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
    } else if (IsControl(code) && !(code == '\n' && breaks == LineBreaks::kKeep)) {
      printable += Escaped(code);
    } else {
      printable += text.substr(0, bytes);
    }
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return printable;
}

}  // namespace verbena::command
