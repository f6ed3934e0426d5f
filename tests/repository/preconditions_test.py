#!/usr/bin/env python3
"""The tables of preconditions in headers: what a check guards has a test, and that test is there.

A check that only some builds have is called by its name, VERBENA_DCHECK.
"""

import os
import re
import sys
import unittest

sys.path[:0] = [os.path.abspath("tests/repository")]
import case_report
import tree

HEAD = re.compile(r"//   precondition +how it is checked( +test)?")


def rows(text):
    """The tables' rows: precondition, how it is checked, test ("": none)."""
    found = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if not HEAD.fullmatch(line):
            continue
        check = line.index("how it")
        test = line.index("test") if line.endswith("test") else sys.maxsize  # no column
        for row in lines[number + 1:]:
            if not row.startswith("//   "):
                break
            found.append((row[5:check].strip(), row[check:test].strip(), row[test:].strip()))
    return found


def tables():
    return [(name, row) for name in tree.files() if re.fullmatch(r"(rpc|transport)/.*\.h", name)
            for row in rows(tree.text(name))]


def sources(test):
    """The sources of the tests of that name, perhaps in several folders."""
    return [tree.text(name) for name in tree.files()
            if name.startswith("tests/") and os.path.basename(name) == test + ".cc"]


class TablesTest(unittest.TestCase):
    maxDiff = None  # each finding is shown

    def test_each_check_that_aborts_has_a_death_test(self):
        self.assertEqual([], [f"{name}: {row}" for name, row in tables() if row[1] == "a check aborts"
                              and not any("EXPECT_DEATH" in source for source in sources(row[2]))])

    def test_each_test_that_is_named_is_there(self):
        self.assertEqual([], [f"{name}: {row}" for name, row in tables() if row[2] and not sources(row[2])])

    def test_the_tables_were_really_read(self):
        headers = {name for name, _ in tables()}
        self.assertLessEqual({"rpc/channel.h", "rpc/runtime.h", "transport/coro/sync.h"}, headers)
        self.assertGreater(len(tables()), 80)

    def test_a_row_is_taken_apart_at_the_columns_of_its_head(self):
        self.assertEqual([("one at a time", "a check aborts", "a_test"), ("alive", "not checked", "")],
                         rows("//   precondition    how it is checked   test\n"
                              "//   one at a time   a check aborts      a_test\n"
                              "//   alive           not checked\n//\n//   x\n"))

    def test_a_table_may_name_no_tests(self):
        self.assertEqual([("alive", "not checked at all, by nobody", "")],
                         rows("//   precondition    how it is checked\n"
                              "//   alive           not checked at all, by nobody\n"))


if __name__ == "__main__":
    case_report.main()
