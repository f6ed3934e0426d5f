// A plugin that uses Verbena: a library that a program loads while it runs.

#include "verbena/rpc/runtime.h"

extern "C" const char* Plug() {
  static const auto runtime = verbena::Runtime::Start({.device = "soft"});
  return runtime.ok() ? "has started" : "could not start";
}
