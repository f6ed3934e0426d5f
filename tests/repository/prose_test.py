#!/usr/bin/env python3
"""Holds comments and the names of tests to the rule about their first word.

Holds test files to the rule that they open with a comment.
"""

import os
import sys
import unittest

sys.path[:0] = [os.path.abspath("tests/repository"), os.path.abspath("tools/dev")]
import case_report
import prose
import tree


class TreeTest(unittest.TestCase):
    maxDiff = None  # each finding is shown

    def test_each_comment_and_test_names_who_acts_and_each_test_file_opens_with_a_comment(self):
        found = [message for name in tree.files() for message in prose.check(name, tree.text(name))]
        self.assertEqual([], found)

    def test_the_tree_was_really_read(self):
        for name in ("transport/coro/task.h", "proto/status.proto", "tools/dev/lint.py", "BUILD",
                     "tests/repository/tree_test.py"):
            self.assertTrue(name in tree.files() and prose.is_checked(name), name)


class RuleTest(unittest.TestCase):
    def refused(self, name, text, line=1):
        found = prose.check(name, text)
        self.assertEqual(1, len(found), found or text)
        self.assertIn(f"{name}:{line}: ", found[0])

    def accepted(self, name, text):
        self.assertEqual([], prose.check(name, text))

    def test_each_word_is_refused_at_the_beginning_of_a_comment(self):
        for word in prose.WORDS:
            self.refused("a.h", f"// {word} is there.\nint a;\n")
            self.refused("a.proto", f"message A {{\n  // {word} is there.\n}}\n", line=2)
            self.refused("a/BUILD", f"# {word} is there.\n")

    def test_words_that_only_begin_alike_are_accepted(self):
        for word in ("Whatever", "Whoever", "Whether", "Offers", "Items", "Thatched", "Often"):
            self.accepted("a.h", f"// {word} is there.\n")
            self.accepted("a.cc", f"TEST(A, {word}IsThere) {{}}\n")

    def test_each_block_has_a_first_line_and_other_lines_are_free(self):
        self.accepted("a.h", "// The link's end.\n// It is told once.\n\nint a;\n")
        self.refused("a.h", "// The link's end.\n\n// It is told once.\n", line=3)
        self.refused("a.h", "// The link's end.\nint a;\n// It is told once.\n", line=3)

    def test_a_sentence_behind_code_is_a_comment_and_a_fragment_is_free(self):
        self.refused("a.h", "int a;  // Where it lies.\n")
        self.accepted("a.h", "int a;  // where it lies\nint b;  // of a\n")
        self.accepted("a.h", "int a;  // The place.\n        // It may move.\n")
        self.refused("a.h", "int a;  // the place\n// It may move.\nint b;\n", line=2)

    def test_strings_are_no_comments(self):
        self.accepted("a.cc", 'Emit("// What it is\\n");\nconst char* text = R"(\n// It is\n)";\n')
        self.accepted("a.py", "text = '# What it is'\nmore = '''\n# It is\n'''\n")
        self.refused("a.cc", "if (c == '\"') n = 1'000;  // It is a quote.\n")

    def test_names_of_tests_are_refused(self):
        for macro in ("TEST", "TEST_F", "TEST_P"):
            self.refused("a.cc", f"\n{macro}(A, WhatIsSentArrives) {{}}\n", line=2)
        self.refused("a.cc", "TEST_F(ALongName,\n       OfTwoOneGoes) {}\n")
        self.refused("a_test.py", '"""Ends."""\nclass A:\n    def test_it_ends(self):\n', line=3)
        self.accepted("a.cc", "TEST(OfA, SendsArrive) {}\n")
        self.accepted("a_test.py", '"""Ends."""\ndef test_items_end(self):\n')
        self.accepted("a.py", "def test_of(target):\n")

    def test_a_cpp_test_file_opens_with_a_comment(self):
        for name in ("a/b_test.cc", "a/b_cases.cc"):
            self.accepted(name, "// Links keep their order.\n\n#include <a>\n")
            self.refused(name, "#include <a>\n\n// Links keep their order.\n")
            self.refused(name, "\n// Links keep their order.\n")
            self.refused(name, "//\n// Links keep their order.\n")
            self.refused(name, "")
        for name in ("a/b.cc", "a/b_test.h", "a/latest.cc", "a/b.py", "a/latest.sh"):
            self.accepted(name, "\n")

    def test_a_script_of_tests_opens_with_a_comment_behind_the_name_of_its_interpreter(self):
        for name, interpreter, comment in (("a/b_test.py", "python3", '"""Links keep order."""'),
                                           ("a/b_test.sh", "bash", "# Links keep order.")):
            first = f"#!/usr/bin/env {interpreter}\n"
            self.accepted(name, f"{first}{comment}\n")
            self.accepted(name, f"{comment}\n")
            self.refused(name, f"{first}\n{comment}\n")
            self.refused(name, first)

    def test_a_comment_begins_behind_the_name_of_an_interpreter(self):
        self.refused("a.sh", "#!/bin/sh\n# What it does.\n", line=2)
        self.accepted("a.sh", "#!/bin/sh\n# The end.\n# It is told once.\n")

    def test_docstrings_are_comments(self):
        self.refused("a.py", '"""What it does."""\n')
        self.refused("a.py", 'def f():\n    """Of `a` the first."""\n', line=2)
        self.accepted("a.py", 'def f():\n    """The first of `a`.\n\n    It may be None.\n    """\n')

    def test_generated_and_foreign_files_are_left_out(self):
        for name in ("third_party/stubs/rules_cc/cc/defs.bzl", "docs/guide.md",
                     "tests/rpc/codegen/testdata/a.proto", "a.verbena.pb.h.golden"):
            self.accepted(name, "# It is.\n// It is.\n")


if __name__ == "__main__":
    case_report.main()
