#!/usr/bin/env python3
"""Test files open with a comment that says what their tests prove."""

import os
import sys
import unittest

sys.path[:0] = [os.path.abspath("tests/repository"), os.path.abspath("tools/dev")]
import case_report
import prose
import tree


class TreeTest(unittest.TestCase):
    maxDiff = None  # each finding is shown

    def test_each_test_file_opens_with_a_comment(self):
        found = [message for name in tree.files() if prose.is_test(name)
                 for message in prose.check(name, tree.text(name))]
        self.assertEqual([], found)

    def test_the_tree_was_really_read(self):
        for name in ("tests/transport/coro/task_test.cc", "tests/repository/tree_test.py",
                     "tests/examples/kv/demo_test.sh"):
            self.assertTrue(name in tree.files() and prose.is_test(name), name)


class RuleTest(unittest.TestCase):
    def refused(self, name, text):
        self.assertEqual([f"{name}:1: open the file with a comment that says what its tests prove"],
                         prose.check(name, text))

    def accepted(self, name, text):
        self.assertEqual([], prose.check(name, text))

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


if __name__ == "__main__":
    case_report.main()
