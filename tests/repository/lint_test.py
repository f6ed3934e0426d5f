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

    def test_a_text_includes_what_its_headers_do(self):
        found = includes.closure_of('#include "verbena/rpc/task.h"\n#include <vector>\n')
        self.assertIn("rpc/task.h", found)
        self.assertIn("transport/base/list.h", found)
        self.assertNotIn("rpc/channel.h", found)


if __name__ == "__main__":
    case_report.main()
