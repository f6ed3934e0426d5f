#!/usr/bin/env python3
"""A compiler that would miscompile coroutines is refused, in words, before it compiles any."""

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
        with tempfile.TemporaryDirectory() as directory:
            (pathlib.Path(directory) / "verbena").symlink_to(tree.top())
            result = subprocess.run(
                ["g++", "-std=c++20", "-fsyntax-only", "-I", directory, "-x", "c++", "-"],
                input='#include "verbena/transport/coro/task.h"\n', stderr=subprocess.PIPE,
                text=True, check=False)
        errors = re.findall(r"error: .*", result.stderr)
        self.assertEqual(1, len(errors), result.stderr)
        self.assertIn("needs clang 17 or newer, or gcc 13 or newer", errors[0])


if __name__ == "__main__":
    case_report.main()
