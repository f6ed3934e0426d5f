#!/usr/bin/env python3
"""Holds rpc/ and transport/ to the macros that hand an error on."""

import os
import sys
import unittest

sys.path[:0] = [os.path.abspath("tests/repository"), os.path.abspath("tools/dev")]
import case_report
import errors
import tree


class TreeTest(unittest.TestCase):
    maxDiff = None  # each finding is shown

    def test_no_file_hands_an_error_on_by_hand(self):
        found = [message for name in tree.files() if errors.is_checked(name)
                 for message in errors.check(name, tree.text(name))]
        self.assertEqual([], found)

    def test_the_tree_was_really_read(self):
        for name in ("rpc/server/server.cc", "transport/memory/buffer_pool.h"):
            self.assertTrue(name in tree.files() and errors.is_checked(name), name)


class RuleTest(unittest.TestCase):
    def refused(self, text, line=1):
        found = errors.check("rpc/a.cc", text)
        self.assertEqual(1, len(found), found or text)
        self.assertTrue(found[0].startswith(f"rpc/a.cc:{line}: "), found[0])

    def accepted(self, text, name="rpc/a.cc"):
        self.assertEqual([], errors.check(name, text), text)

    def test_a_status_that_is_tested_and_returned_is_refused(self):
        self.refused("if (!status.ok()) return status;")
        self.refused("if (!status.ok()) co_return status;")
        self.refused("if (!status_.ok()) return std::move(status_);")
        self.refused("absl::Status s = F();\nif (!s.ok()) {\n  return s;\n}", line=2)
        self.refused("if (!waiter.cancelled().ok()) co_return waiter.cancelled();")
        self.refused("if (!call->failure.ok()) return call->failure;")
        self.refused("if (!(*made).ok()) return (*made).status();")

    def test_the_status_of_a_value_is_refused(self):
        self.refused("if (!link.ok()) return link.status();")
        self.refused("if (!link.ok()) co_return std::move(link).status();")
        self.refused("if (!link.ok())\n  return link;")

    def test_a_status_that_the_condition_declares_is_refused(self):
        self.refused("if (absl::Status s = F(a, G()); !s.ok()) return s;")
        self.refused("if (auto s = co_await F(); !s.ok()) {\n  co_return s;\n}")
        self.refused("if (const absl::Status s =\n        F(\"a;\");\n    !s.ok())\n  return s;")
        self.refused("if (absl::StatusOr<A> a = F(); !a.ok()) return a.status();")

    def test_a_place_that_does_more_is_accepted(self):
        self.accepted("if (!status.ok()) return About(status);")
        self.accepted("if (!status.ok()) {\n  Close();\n  return status;\n}")
        self.accepted("if (!status.ok() && last) return status;")
        self.accepted("if (status.ok()) return status;")
        self.accepted("if (!status.ok()) return other;")
        self.accepted("if (!status.ok()) return other.status();")
        self.accepted("if (absl::Status s = F(); !s.ok()) return About(s);")
        self.accepted("if (absl::Status s = F(); !s.ok()) Log(s);\nreturn s;")

    def test_a_status_that_was_made_before_is_refused(self):
        self.refused("absl::Status s = F();\nif (s.ok()) s = G();\nif (!s.ok()) return s;", line=3)

    def test_the_macros_are_accepted(self):
        self.accepted("VERBENA_RETURN_IF_ERROR(F());\nVERBENA_ASSIGN_OR_RETURN(A a, G());")

    def test_comments_and_strings_are_no_code(self):
        self.accepted("//   if (!device.ok()) return device.status();\n")
        self.accepted('Emit("if (!status.ok()) return status;");\n')
        self.accepted('Emit(R"(\nif (!status.ok()) return status;\n)");\n')
        self.refused("Emit(R\"(\n'\n)\");\n// an executor's\nif (!s.ok()) return s;", line=5)
        self.refused("if (!s.ok()) {  // lost\n  return s;\n}")

    def test_files_outside_of_rpc_and_transport_are_free(self):
        for name in ("examples/kv/a.cc", "tests/rpc/a_test.cc", "docs/guide.md", "rpc/README.md",
                     "transport/base/status.h", "rpc/codegen/a.cc"):
            self.accepted("if (!status.ok()) return status;", name)


if __name__ == "__main__":
    case_report.main()
