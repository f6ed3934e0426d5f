// verbena: the command-line tool of a machine that runs Verbena.

#include <unistd.h>

#include <iostream>

#include "tools/verbena/command_line.h"

int main(int argc, char** argv) {
  verbena::command::Terminal terminal{
      .input = STDIN_FILENO, .output = std::cout, .error = std::cerr};
  return verbena::command::RunCommandLine({argv + 1, argv + argc}, terminal);
}
