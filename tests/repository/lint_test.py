#!/usr/bin/env python3
"""./dev lint looks at a compiled source again once something that it is made of has changed, and
not before; gcc gets those arguments of a compile that it understands."""

import contextlib
import io
import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path[:0] = [os.path.abspath("tests/repository"), os.path.abspath("tools/dev")]
import case_report
import includes
import lint


class LookTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.top = pathlib.Path(directory.name) / "top"
        self.root = pathlib.Path(directory.name) / "root"
        self.runs = pathlib.Path(directory.name) / "runs"
        for folder in (self.top, self.root):
            folder.mkdir()
        for name, value in (("TOP", self.top), ("CACHE", pathlib.Path(directory.name) / "cache")):
            patch = mock.patch.object(lint, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def look(self, sources_of, exit_status=0, flag="a"):
        """(how many sources were looked at, what was found)."""
        self.runs.write_text("")

        def command(name):
            return ["sh", "-c", f"echo {name} >> {self.runs}; echo {flag}: wrong; exit {exit_status}"]

        with contextlib.redirect_stdout(io.StringIO()) as said:
            found = lint.look_at_compiled(sources_of, command, self.root)
        self.assertEqual(sorted(found), sorted(said.getvalue().splitlines()))
        return len(self.runs.read_text().splitlines()), found

    def test_a_clean_source_is_looked_at_again_once_it_or_a_header_or_the_command_changes(self):
        (self.top / "a.cc").write_text("1")
        (self.top / "a.h").write_text("1")
        (self.root / "made.cc").write_text("1")  # a generated one
        sources_of = {"a.cc": {"a.cc", "a.h"}, "made.cc": {"made.cc", "a.h"}}
        self.assertEqual((2, set()), self.look(sources_of))
        self.assertEqual((0, set()), self.look(sources_of))
        (self.top / "a.cc").write_text("2")
        self.assertEqual((1, set()), self.look(sources_of))
        (self.root / "made.cc").write_text("2")
        self.assertEqual((1, set()), self.look(sources_of))
        (self.top / "a.h").write_text("2")
        self.assertEqual((2, set()), self.look(sources_of))
        self.assertEqual((2, set()), self.look(sources_of, flag="b"))

    def test_a_source_is_looked_at_again_by_another_version_of_the_tool(self):
        (self.top / "a.cc").write_text("1")
        for version, looks in (("1", 1), ("1", 0), ("2", 1)):
            with mock.patch.object(lint, "installed", lambda _, version=version: version):
                self.assertEqual((looks, set()), self.look({"a.cc": {"a.cc"}}))

    def test_what_a_stricter_command_found_clean_is_clean_and_not_the_other_way_round(self):
        (self.top / "a.cc").write_text("1")
        sources_of = {"a.cc": {"a.cc"}}

        def look(flag, stricter=None):
            self.runs.write_text("")

            def command(by):
                return lambda name: ["sh", "-c", f"echo {name} >> {self.runs}; true {by}"]
            lint.look_at_compiled(sources_of, command(flag), self.root, command(stricter) if stricter else None)
            return len(self.runs.read_text().splitlines())

        self.assertEqual(1, look("quick", stricter="deep"))
        self.assertEqual(1, look("deep"))
        self.assertEqual(0, look("another quick", stricter="deep"))

    def test_a_tool_that_is_not_there_or_says_nothing_is_a_finding(self):
        (self.top / "a.cc").write_text("1")
        with contextlib.redirect_stdout(io.StringIO()) as said:
            self.assertEqual({"no-tool"}, lint.look_at_compiled({"a.cc": {"a.cc"}}, lambda _: ["no-tool"], self.root))
            lint.look_at_compiled({"a.cc": {"a.cc"}}, lambda _: ["sh", "-c", "exit 3"], self.root)
        self.assertEqual("there is no no-tool; run: ./dev install-deps lint\na.cc: sh ended with status 3\n",
                         said.getvalue())

    def test_a_finding_in_a_header_is_told_once_though_each_source_comes_first(self):
        for name in ("a.cc", "b.cc"):
            (self.top / name).write_text("1")
        with contextlib.redirect_stdout(io.StringIO()) as said:
            found = lint.look_at_compiled(
                {name: {name} for name in ("a.cc", "b.cc")},
                lambda name: ["sh", "-c", f"echo from {name}; echo 'x.h:1: error: bad'; exit 1"], self.root)
        self.assertEqual({"x.h:1: error: bad"}, found)
        self.assertEqual(1, said.getvalue().count("error"))

    def test_a_finding_is_told_once_and_not_forgotten(self):
        for name in ("a.cc", "b.cc"):
            (self.top / name).write_text("1")
        sources_of = {"a.cc": {"a.cc"}, "b.cc": {"b.cc"}}
        for _ in range(2):
            self.assertEqual((2, {"a: wrong"}), self.look(sources_of, exit_status=1))


class ArgumentsTest(unittest.TestCase):
    def test_gcc_gets_where_headers_are_and_macros(self):
        kept = lint.portable_arguments(
            ["-Wall", "-fcoro-aligned-allocation", "-iquote", ".", "-isystem", "external/absl",
             "-Iproto", "-DNDEBUG", "-D", "A=1", "-O2", "-std=c++20", "-c", "a.cc"])
        self.assertEqual(["-iquote", ".", "-isystem", "external/absl", "-Iproto", "-DNDEBUG", "-D",
                          "A=1"], kept[kept.index("-DVERBENA_SYNTAX_ONLY") + 1:])

    def test_a_generated_source_is_made_of_what_its_generated_header_includes(self):
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            made = root / "bazel-out" / "made"
            made.mkdir(parents=True)
            (made / "a.pb.cc").write_text('#include "a.pb.h"\n')
            (made / "a.pb.h").write_text('#include "verbena/rpc/task.h"\n#include <vector>\n')
            directories = lint.include_directories(["-iquote", ".", "-Inowhere", "-isystem", "bazel-out/made"])
            found = includes.closure_with_generated("bazel-out/made/a.pb.cc", directories, root)
        self.assertIn("bazel-out/made/a.pb.h", found)
        self.assertIn("transport/base/list.h", found)
        self.assertNotIn("rpc/channel.h", found)

    def test_gcc_looks_at_generated_code_and_at_what_has_changed(self):
        commands = {"rpc/call/status.cc": [], "rpc/call/metadata.cc": [], "bazel-out/a.pb.cc": [], "bazel-out/unbuilt.cc": []}
        with tempfile.TemporaryDirectory() as name, \
                mock.patch.object(lint, "compile_commands", lambda: commands), \
                mock.patch.object(lint, "execution_root", lambda: pathlib.Path(name)), \
                mock.patch.object(lint, "look_at_compiled", lambda sources_of, *_: set(sources_of)):
            (pathlib.Path(name) / "bazel-out").mkdir()
            (pathlib.Path(name) / "bazel-out" / "a.pb.cc").write_text("")
            self.assertEqual({"rpc/call/status.cc", "bazel-out/a.pb.cc"}, lint.check_portable(["rpc/call/status.cc"]))
            self.assertEqual({"rpc/call/status.cc"}, lint.check_tidy(["rpc/call/status.cc"]))

    def test_a_whole_run_leaves_out_sources_of_tests_and_the_analyzer_unless_it_is_deep(self):
        commands = {"rpc/call/status.cc": [], "tests/rpc/status_test.cc": []}

        def check(deep):
            looked = []
            with (tempfile.TemporaryDirectory() as name, mock.patch.object(lint, "compile_commands", lambda: commands),
                  mock.patch.object(lint, "execution_root", lambda: pathlib.Path(name)),
                  mock.patch.object(lint, "look_at_compiled", lambda *words: looked.append(words) or set())):
                lint.check_tidy([".clang-tidy"], deep)
            [(sources_of, command, _, stricter)] = looked
            return sorted(sources_of), lint.ANALYZER in " ".join(command("rpc/call/status.cc")), stricter is not None

        with mock.patch.object(lint, "needed_by", lambda commands, _: {name: {name} for name in commands}):
            self.assertEqual((sorted(commands), False, False), check(deep=True))
            self.assertEqual((["rpc/call/status.cc"], True, True), check(deep=False))

    def test_files_that_are_named_and_changed_ones_are_looked_at_deeply(self):
        def deep(*words):
            with mock.patch.object(sys, "argv", ["lint", *words]):
                return lint.arguments().deep
        self.assertEqual([False, True, True, True],
                         [deep(), deep("--deep"), deep("--changed"), deep("tools/dev/lint.py")])


if __name__ == "__main__":
    case_report.main()
