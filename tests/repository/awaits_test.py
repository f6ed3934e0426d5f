#!/usr/bin/env python3
"""No expression holds an await that gcc would run although it is not asked for."""

import os
import sys
import unittest

sys.path[:0] = [os.path.abspath("tests/repository"), os.path.abspath("tools/dev")]
import awaits
import case_report
import tree


class AwaitsTest(unittest.TestCase):
    maxDiff = None  # each finding is shown

    def refused(self, text, line=1):
        found = awaits.check("a.cc", text)
        self.assertEqual(1, len(found), found or text)
        self.assertTrue(found[0].startswith(f"a.cc:{line}: "), found[0])

    def accepted(self, text):
        self.assertEqual([], awaits.check("a.cc", text), text)

    def test_no_file_has_such_an_await(self):
        files = [name for name in tree.files() if awaits.is_checked(name)]
        self.assertIn("transport/coro/task.h", files)
        self.assertEqual([], [message for name in files for message in awaits.check(name, tree.text(name))])

    def test_an_await_that_an_expression_may_not_need_is_refused(self):
        self.refused("while (more && (co_await Sleep(1s)).ok()) {}")
        self.refused("int a;\nwhile (!(done ||\n         (co_await Next()).ok())) {}", line=3)
        self.refused("while (n % 2 == 0 ? co_await A() : (B()).value_or(false)) {}")
        self.refused("do {\n} while (more && (co_await F()).ok());", line=2)
        self.refused("for (int i = 0; i < 3 && (co_await F(i)).ok(); ++i) {}")
        self.refused("status = handler ? co_await std::move(handler) : None();")
        self.refused("if (more) status = handler ? co_await F() : None();")
        self.refused("seen.push_back(more && (co_await F()).ok());")

    def test_others_are_accepted(self):
        self.accepted("while (co_await stream.Read(message)) {}")
        self.accepted("while ((co_await Sleep(1s)).ok() && more) {}")
        self.accepted("while (a && b) co_await F();")
        self.accepted("for (int i = 0; a && i < 3; ++i) co_await F();")
        self.accepted("for (const auto& status : co_await WhenAll(a && b ? F() : G())) {}")
        self.accepted("if (more && (co_await Sleep(1s)).ok()) {}")
        self.accepted("{ absl::Status status = more ? co_await F() : co_await G(); }")
        self.accepted("const bool lost = size > 1 && (co_await F()).ok();")
        self.accepted("VERBENA_CO_ASSIGN_OR_RETURN(const Lease lease, id == 0 ? co_await F() : co_await G());")
        self.accepted("co_return first.ok() ? co_await F() : first;")
        self.accepted("if (a && b) (void)co_await F();")
        self.accepted("auto run = [&](Item&& item) -> Task<void> { co_await F(item); };")
        self.accepted("// while (more && (co_await F()).ok()) {}")


if __name__ == "__main__":
    case_report.main()
