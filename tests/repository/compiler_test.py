#!/usr/bin/env python3
"""A compiler that lacks what Verbena needs is refused by one error in words (transport/base/compiler.h).
An old gcc accepts the public headers all the same: what newer versions are to compile is not clang's alone."""

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
CLANG = "clang++-19"
# Flags, and words of the error that they give.
REFUSED = (
    (["-std=c++17"], "Verbena needs C++20: compile with -std=c++20 or newer"),
    (["-std=c++20", "-fno-exceptions"], "Verbena needs exceptions: compile without -fno-exceptions"),
    (["-std=c++20", "-fno-rtti"], "Verbena needs run-time type information: compile without -fno-rtti"),
    # Here only the macro is libc++'s. It need not be installed.
    (["-std=c++20", "-D_LIBCPP_VERSION=190000"], "Verbena needs libstdc++: compile without -stdlib=libc++"),
)

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
  auto [one, other] = co_await verbena::WhenAll(verbena::WaitFor(event), event.Wait());
  verbena::Queue<int> queue(1);
  verbena::Mutex mutex;
  verbena::Semaphore semaphore(1);
  auto first = co_await verbena::WhenAny(queue.Pop(), mutex.Lock(),
                                           verbena::Sleep(verbena::Duration(1)));
  (void)co_await verbena::WithDeadline(semaphore.Acquire(), verbena::kNever);
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

# Each has an await of another type in a variable.
VARIABLES = """
#include "verbena/rpc/task.h"

using namespace verbena;

Task<void> Any(Queue<int>& queue, Event& event) {
  auto pop = queue.Pop();
  (void)co_await WhenAny(pop, event.Wait());
}
Task<void> All(Mutex& mutex, Event& event) {
  auto lock = mutex.Lock();
  (void)co_await WhenAll(lock, event.Wait());
}
Task<void> Deadline(Semaphore& semaphore) {
  auto acquire = semaphore.Acquire();
  (void)co_await WithDeadline(acquire, kNever);
}
"""


def gcc_version():
    if not shutil.which("g++"):
        return None
    result = subprocess.run(["g++", "-dumpversion"], stdout=subprocess.PIPE, text=True, check=True)
    return int(result.stdout.split(".")[0])


class CompilerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        headers, protos, generated = (directory / name for name in ("headers", "protos", "generated"))
        for folder, to in ((headers, tree.top()), (protos, tree.top() / "proto")):
            folder.mkdir()
            (folder / "verbena").symlink_to(to)
        generated.mkdir()
        subprocess.run(["protoc", f"-I{protos}", f"--cpp_out={generated}", "verbena/remote_memory.proto"],
                       check=True)
        cls.includes = [f"-I{headers}", f"-I{generated}"]

    def test_an_old_gcc_gets_one_clear_error(self):
        version = gcc_version()
        if version is None or version >= OLDEST_GOOD_GCC:
            self.skipTest(f"needs a g++ older than {OLDEST_GOOD_GCC}; here: {version or 'none'}")
        errors, said, status = self.errors_of('#include "verbena/transport/coro/task.h"\n', "g++", "-std=c++20")
        self.assertEqual((1, 1), (len(errors), status), said)
        self.assertIn("needs gcc 13 or newer", errors[0])

    def test_gcc_parses_what_users_include_and_what_generated_code_says(self):
        if gcc_version() is None:
            self.skipTest("needs a g++; here: none")
        errors, said, status = self.errors_of(USER, "g++", "-std=c++20", "-DVERBENA_SYNTAX_ONLY", "-Wall")
        self.assertEqual(([], 0), (errors, status), said)

    def test_gcc_refuses_what_it_would_misalign(self):
        if gcc_version() is None:
            self.skipTest("needs a g++; here: none")
        for coroutine, words in (("Task<int> Take(Wide) { co_return 1; }", "take over-aligned parameters by reference"),
                                 ("Generator<int> Count(Wide) { co_yield 1; }",
                                  "take over-aligned parameters by reference"),
                                 ("Task<Wide> Make() { co_return Wide(); }", "return an over-aligned result"),
                                 ("Generator<Wide> Each() { co_yield Wide(); }", "yield an over-aligned item"),
                                 ("Task<int> Look(const Wide&, int) { co_return 1; }", None)):
            program = ('#include "verbena/rpc/task.h"\nusing namespace verbena;\n'
                       f"struct alignas(32) Wide {{ char bytes[32]; }};\n{coroutine}\n")
            errors, said, _ = self.errors_of(program, "g++", "-std=c++20", "-DVERBENA_SYNTAX_ONLY")
            if words is None:
                self.assertEqual([], errors, said)
            else:
                self.assertTrue(any(words in error for error in errors), said)

    def test_an_await_in_a_variable_is_refused_in_words(self):
        for compiler in self.compilers():
            errors, said, status = self.errors_of(VARIABLES, *compiler, "-std=c++20")
            self.assertEqual(1, status, said)
            self.assertEqual(3, sum("std::move() a variable" in error for error in errors), said)
            moved = re.sub(r"\((\w+),", r"(std::move(\1),", VARIABLES)
            self.assertEqual([], self.errors_of(moved, *compiler, "-std=c++20")[0], moved)

    def test_flags_that_verbena_cannot_do_with_give_one_clear_error(self):
        for compiler in self.compilers():
            for flags, words in REFUSED:
                self.refuses('#include "verbena/verbena.h"\n', words, *compiler, *flags)

    def test_each_public_header_says_it_before_anything_fails(self):
        headers = [name for name in tree.files() if re.fullmatch(r"rpc/\w+\.h|rpc/testing/\w+\.h|testing\.h", name)]
        self.assertIn("rpc/call.h", headers)
        for compiler in self.compilers():
            for header in headers:
                if header == "rpc/version.h":
                    continue  # macros alone, which any compiler takes
                self.refuses(f'#include "verbena/{header}"\n', REFUSED[0][1], *compiler, *REFUSED[0][0])

    def test_generated_code_says_it_before_anything_fails(self):
        golden = tree.text("tests/rpc/codegen/testdata/unary.verbena.pb.h.golden")
        included = re.findall(r'^#include "(?:absl|verbena)/.*"$', golden, re.MULTILINE)
        self.assertIn('#include "verbena/rpc/version.h"', included)
        for compiler in self.compilers():
            for flags, words in REFUSED[:2]:
                self.refuses("\n".join(included) + "\n", words, *compiler, *flags)

    def compilers(self):
        """Command lines without a standard. Each is taken by the headers but for what a test adds."""
        self.assertIsNotNone(shutil.which(CLANG), "./dev install-deps build")
        found = [[CLANG, "-fcoro-aligned-allocation"]]
        if gcc_version() is not None:
            found.append(["g++", "-DVERBENA_SYNTAX_ONLY"])
        return found

    def refuses(self, program, words, *command):
        errors, said, status = self.errors_of(program, *command)
        self.assertEqual((1, 1), (len(errors), status), f"{command}, {program}:\n{said}")
        self.assertIn(words, errors[0])

    def errors_of(self, program, *command):
        """(the errors, all that the compiler says, its exit status)."""
        result = subprocess.run([*command, "-fsyntax-only", *self.includes, "-x", "c++", "-"],
                                input=program, stderr=subprocess.PIPE, text=True, check=False)
        return re.findall(r"error: .*", result.stderr), result.stderr, result.returncode


if __name__ == "__main__":
    case_report.main()
