// RunCommandLine: the command `verbena`, from its arguments to its exit status.
//
// On the main thread, before there are others: `doctor` forks.

#ifndef VERBENA_TOOLS_VERBENA_COMMAND_LINE_H_
#define VERBENA_TOOLS_VERBENA_COMMAND_LINE_H_

#include <string>
#include <vector>

#include "tools/verbena/calls.h"

namespace verbena::command {

// `arguments` are those behind the program's name. Exit status 2, and a line of `terminal.error`,
// for arguments that are wrong.
int RunCommandLine(std::vector<std::string> arguments, Terminal& terminal);

}  // namespace verbena::command

#endif  // VERBENA_TOOLS_VERBENA_COMMAND_LINE_H_
