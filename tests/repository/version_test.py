#!/usr/bin/env python3
"""One version everywhere, and a clear error where generated code and headers are of two."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [os.path.abspath("tests/repository")]
import case_report
import tree

HEADER = "rpc/version.h"
GENERATED = "tests/rpc/codegen/testdata/unary.verbena.pb.h.golden"


def version(header):
    return ".".join(re.findall(r"^#define VERBENA_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", header, re.MULTILINE))


def errors(header):
    """Clang's errors on generated code whose only header is `header`, as verbena/rpc/version.h."""
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "verbena/rpc/version.h"
        path.parent.mkdir(parents=True)
        path.write_text(header)
        done = subprocess.run(["clang-19", "-std=c++20", "-fsyntax-only", "-I", directory, "-x", "c++", "-"],
                              input=tree.text(GENERATED), stderr=subprocess.PIPE, text=True, check=False)
    return re.findall(r"error: (.*)", done.stderr)


class VersionTest(unittest.TestCase):
    def test_the_changelog_begins_with_the_version_of_the_headers(self):
        self.assertEqual(version(tree.text(HEADER)), re.findall(r"^## ([\d.]+)", tree.text("CHANGELOG.md"),
                                                                re.MULTILINE)[0])

    def test_generated_code_of_another_version_is_refused_in_words_first(self):
        for part in ("MAJOR", "MINOR", "PATCH"):
            other = re.sub(rf"(_{part}) (\d+)", lambda match: f"{match[1]} {int(match[2]) + 1}", tree.text(HEADER), 1)
            first = errors(other)[0]
            self.assertIn("unary.verbena.pb.h is of protoc-gen-verbena " + version(tree.text(HEADER)), first)
            self.assertIn("generate it again", first)

    def test_generated_code_of_this_version_is_not_refused(self):
        self.assertEqual(["'testdata/unary.pb.h' file not found"], errors(tree.text(HEADER)))


if __name__ == "__main__":
    case_report.main()
