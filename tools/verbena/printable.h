// Printable: a peer's text for a terminal.
//
// A pure function; any thread.

#ifndef VERBENA_TOOLS_VERBENA_PRINTABLE_H_
#define VERBENA_TOOLS_VERBENA_PRINTABLE_H_

#include <string>
#include <string_view>

namespace verbena::command {

// Which line breaks a text keeps.
enum class LineBreaks { kEscape, kKeep };

// `text` as UTF-8 without control characters, which could command the terminal or feign further
// lines: those below U+0020 and of U+007F to U+009F become \u001b, \n, \r or \t, and bytes that are
// no UTF-8 become \xff. For every text that a server sent.
std::string Printable(std::string_view text, LineBreaks breaks = LineBreaks::kEscape);

}  // namespace verbena::command

#endif  // VERBENA_TOOLS_VERBENA_PRINTABLE_H_
