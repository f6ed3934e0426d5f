#!/usr/bin/env python3
"""A compiler that would miscompile coroutines is refused, in words, before it compiles any. It
accepts the public headers all the same: what newer versions are to compile is not clang's alone."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [os.path.abspath("tests/repository")]
import case_report
import tree

OLDEST_GOOD_GCC = 13

# A service of each kind of method, and awaits of Verbena's awaitables and of a library's.
USER = """
#include <coroutine>

#include "verbena/verbena.h"
#include "google/protobuf/empty.pb.h"

using verbena::ServerContext;
using verbena::Task;
using Message = google::protobuf::Empty;

class Service : public verbena::Service {
 public:
  virtual Task<absl::Status> One(ServerContext&, const Message&, Message&) = 0;
  virtual Task<absl::Status> Down(ServerContext&, const Message&,
                                  verbena::ServerWriter<Message>&) = 0;
  virtual Task<absl::Status> Up(ServerContext&, verbena::ServerReader<Message>&, Message&) = 0;
  virtual Task<absl::Status> Both(ServerContext&,
                                  verbena::ServerReaderWriter<Message, Message>&) = 0;
};

struct Foreign {
  bool await_ready() { return false; }
  void await_suspend(std::coroutine_handle<>) {}
  void await_resume() {}
};

Task<absl::Status> Use(verbena::ServerReaderWriter<Message, Message>& stream) {
  co_await Foreign();
  verbena::Event event;
  VERBENA_CO_RETURN_IF_ERROR(co_await event.Wait());
  VERBENA_CO_RETURN_IF_ERROR(co_await verbena::WithDeadline(verbena::WaitFor(event),
                                                            verbena::kNever));
  Message message;
  VERBENA_CO_ASSIGN_OR_RETURN(const bool read, co_await stream.Read(message));
  if (read) VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(message));
  auto [one, other] = co_await verbena::WhenAll(verbena::WaitFor(event), verbena::WaitFor(event));
  co_return one.ok() ? other : one;
}

verbena::ServerMethod Of(const verbena::MethodDescriptor& method, int kind) {
  using verbena::internal::ServerMethodFor;
  return kind == 0   ? ServerMethodFor<&Service::One>(method)
         : kind == 1 ? ServerMethodFor<&Service::Down>(method)
         : kind == 2 ? ServerMethodFor<&Service::Up>(method)
                     : ServerMethodFor<&Service::Both>(method);
}
"""


def gcc_version():
    if not shutil.which("g++"):
        return None
    result = subprocess.run(["g++", "-dumpversion"], stdout=subprocess.PIPE, text=True, check=True)
    return int(result.stdout.split(".")[0])


class CompilerTest(unittest.TestCase):
    def test_an_old_gcc_gets_one_clear_error(self):
        version = gcc_version()
        if version is None or version >= OLDEST_GOOD_GCC:
            self.skipTest(f"needs a g++ older than {OLDEST_GOOD_GCC}; here: {version or 'none'}")
        errors, said, status = self.errors_of_gcc('#include "verbena/transport/coro/task.h"\n')
        self.assertEqual((1, 1), (len(errors), status), said)
        self.assertIn("needs clang 17 or newer, or gcc 13 or newer", errors[0])

    def test_gcc_parses_what_users_include_and_what_generated_code_says(self):
        if gcc_version() is None:
            self.skipTest("needs a g++; here: none")
        errors, said, status = self.errors_of_gcc(USER, "-DVERBENA_SYNTAX_ONLY", "-Wall")
        self.assertEqual(([], 0), (errors, status), said)

    def errors_of_gcc(self, program, *flags):
        """(the errors, all that gcc says, its exit status)."""
        with tempfile.TemporaryDirectory() as directory:
            headers, protos, generated = (pathlib.Path(directory) / name
                                          for name in ("headers", "protos", "generated"))
            for folder, to in ((headers, tree.top()), (protos, tree.top() / "proto")):
                folder.mkdir()
                (folder / "verbena").symlink_to(to)
            generated.mkdir()
            subprocess.run(["protoc", f"-I{protos}", f"--cpp_out={generated}",
                            "verbena/remote_memory.proto"], check=True)
            result = subprocess.run(
                ["g++", "-std=c++20", "-fsyntax-only", *flags, f"-I{headers}", f"-I{generated}",
                 "-x", "c++", "-"],
                input=program, stderr=subprocess.PIPE, text=True, check=False)
        return re.findall(r"error: .*", result.stderr), result.stderr, result.returncode


if __name__ == "__main__":
    case_report.main()
