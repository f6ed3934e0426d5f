#!/usr/bin/env python3
"""Users need the headers of rpc/ alone: verbena.h has all of them, and what is shown to users includes no other."""

import os
import re
import sys
import unittest

sys.path[:0] = [os.path.abspath("tests/repository")]
import case_report
import tree

# Written to be copied by users, or compiled as they would.
SHOWN = ("examples/", "docs/", "tests/docs/", "tests/consumer/", "tools/dev/new_service/", "README.md")
_INTERNAL = re.compile(r'verbena/transport/(?!log/mutant\.h)[\w/]+\.h|@verbena//transport[\w/:]*')


def public_headers():
    """The headers of rpc/ itself. Those of its folders are internal."""
    return [name for name in tree.files() if re.fullmatch(r"rpc/\w+\.h", name)]


def includes(name):
    return re.findall(r'^#include "verbena/([^"]+)"', tree.text(name), re.MULTILINE)


class PublicNamesTest(unittest.TestCase):
    def test_verbena_h_includes_every_public_header(self):
        self.assertIn("rpc/channel.h", public_headers())
        self.assertEqual(public_headers(), includes("verbena.h"))

    def test_users_are_shown_no_internal_header(self):
        shown = [name for name in tree.files() if name.startswith(SHOWN)]
        self.assertIn("docs/guide.md", shown)
        self.assertEqual([], [f"{name}: {found}" for name in shown for found in _INTERNAL.findall(tree.text(name))])


if __name__ == "__main__":
    case_report.main()
