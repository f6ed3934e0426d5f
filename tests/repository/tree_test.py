#!/usr/bin/env python3
"""Holds every tracked file to the habits of the tree."""

import os
import re
import sys
import unittest

sys.path[:0] = [os.path.abspath("tests/repository")]
import case_report
import tree

MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:work|home|root|Users|mnt)/[.\w]")
UNFINISHED = re.compile(r"\b(?:TO[D]O|FIX[M]E|XX[X])\b")
DOWNLOADS = re.compile(r"\bhttps?:[/]/")
# A class or enumeration of a namespace, but no template and no declaration without a body.
_ATTRIBUTES = r"(?:\[\[.*?\]\] |alignas\(.*?\) |VERBENA_EXPORT )*"
CLASS = re.compile(rf"(?<!>\n)^(?:class|struct|enum class) {_ATTRIBUTES}(\w+)(?: final)?(?: :.*| \{{.*)?(?<!;)$",
                   re.MULTILINE)
# Switches and doors that only tests use, among them a hook that is a variable of the program. Text
# of tests/mutants says what is to break.
FOR_TESTS = re.compile(r"ForTest|friend class \w*Test\b|FRIEND_TEST|VERBENA_MUTANT|VERBENA_FAULT|"
                       r"\binline (?:constinit )?(?:std::atomic<)?\w*Hook>? \w+ ?[=;{]")
# Its fakes take the names of what generated code calls.
FAKES = "tests/rpc/codegen/generated_code_test.cc"
# What only x86 has, and the size of its pages.
ONE_PROCESSOR = re.compile(r"\w*mmintrin\.h|\b_mm\d*_|\bk\w*Page(?:Bytes|Size)? = (?:4096|4 \* 1024|1 << 12)\b")


def lines_that_match(pattern, names):
    return [f"{name}:{number}: {line.strip()}" for name in names
            for number, line in enumerate(tree.text(name).splitlines(), 1) if pattern.search(line)]


class TreeTest(unittest.TestCase):
    def test_no_file_names_a_path_of_one_machine(self):
        self.assertEqual([], lines_that_match(MACHINE_PATHS, tree.files()))

    def test_no_file_is_left_unfinished(self):
        self.assertEqual([], lines_that_match(UNFINISHED, tree.files()))

    def test_no_build_file_downloads_anything(self):
        build = [name for name in tree.files()
                 if os.path.basename(name) in ("BUILD", "WORKSPACE") or
                 name.endswith((".bzl", ".BUILD", ".bazelrc"))]
        self.assertEqual([], lines_that_match(DOWNLOADS, build))

    def test_the_product_has_no_way_in_that_only_tests_use(self):
        product = [name for name in tree.files()
                   if name.startswith(("rpc/", "transport/", "proto/", "examples/"))]
        self.assertEqual([], lines_that_match(FOR_TESTS, product))

    def test_the_library_takes_no_processor_and_no_size_of_pages_for_granted(self):
        self.assertEqual([], lines_that_match(ONE_PROCESSOR, [
            name for name in tree.files() if name.startswith(("rpc/", "transport/", "proto/"))]))

    def test_no_build_output_is_tracked(self):
        # A link into Bazel's output base would be followed on somebody else's machine.
        self.assertEqual([], [name for name in tree.files()
                              if (tree.top() / name).is_symlink() or name.startswith("bazel-")])

    def test_every_header_guard_follows_from_its_path(self):
        wrong = []
        for name in tree.files():
            if name.endswith(".h"):
                guard = "VERBENA_" + re.sub(r"[^A-Z0-9]", "_", name.upper()) + "_"
                if f"#ifndef {guard}\n#define {guard}\n" not in tree.text(name):
                    wrong.append(f"{name}: no guard {guard}")
        self.assertEqual([], wrong)

    def test_no_class_has_the_name_of_one_in_a_header_of_the_library(self):
        places = {}
        for name in tree.files():
            if name.endswith((".h", ".cc")) and name != FAKES:
                for title in CLASS.findall(tree.text(name)):
                    places.setdefault(title, []).append(name)
        self.assertIn("Endpoint", places)
        self.assertEqual({}, {title: names for title, names in places.items() if len(names) > 1 and any(
            name.endswith(".h") and name.startswith(("rpc/", "transport/")) for name in names)})

    def test_every_script_with_an_interpreter_line_is_executable(self):
        self.assertEqual([], [name for name in tree.files() if tree.text(name).startswith("#!")
                              and not os.access(tree.top() / name, os.X_OK)])

    def test_text_ends_its_lines(self):
        wrong = [name for name in tree.files() if tree.text(name) and "golden" not in name and
                 "/corpus/" not in name and
                 (not tree.text(name).endswith("\n") or "\r\n" in tree.text(name))]
        self.assertEqual([], wrong)


class PatternsTest(unittest.TestCase):
    def test_a_path_of_one_machine_is_recognised(self):
        self.assertTrue(MACHINE_PATHS.search("cat " + "/home" + "/someone/file"))
        self.assertTrue(MACHINE_PATHS.search('"' + "/root" + '/.cache"'))
        self.assertFalse(MACHINE_PATHS.search("transport/root/file"))
        self.assertFalse(MACHINE_PATHS.search("https://example.org/home/page"))

    def test_an_unfinished_mark_is_recognised(self):
        self.assertTrue(UNFINISHED.search("// TO" + "DO: later"))

    def test_a_door_for_tests_is_recognised(self):
        for line in ("void PauseForTest();", "inline std::atomic<StepHook> step_hook = nullptr;",
                     "inline constinit StepHook step_hook = nullptr;"):
            self.assertTrue(FOR_TESTS.search(line), line)
        self.assertFalse(FOR_TESTS.search("class TurnPacer final : private FlushHook {"))


if __name__ == "__main__":
    case_report.main()
