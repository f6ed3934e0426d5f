#!/usr/bin/env python3
"""The README shows code that compiles: what it shows is what an example is built from."""

import os
import re
import sys
import unittest

sys.path[:0] = [os.path.abspath("tests/repository")]
import case_report
import tree


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", tree.text("README.md"),
                      re.MULTILINE | re.DOTALL)


class ReadmeTest(unittest.TestCase):
    def setUp(self):
        if "README.md" not in tree.files():
            self.skipTest("there is no README.md")

    def assert_parts_of_examples(self, language, *names):
        sources = [tree.text(name) for name in names]
        self.assertNotEqual([], blocks(language))
        for block in blocks(language):
            self.assertTrue(any(block.strip() in source for source in sources), block)

    def test_its_code_is_a_part_of_the_examples(self):
        self.assert_parts_of_examples("cpp", "examples/hello/hello.cc",
                                      "examples/block_store/block_service.cc",
                                      "tests/rpc/memory_service.h")

    def test_its_schemas_are_parts_of_the_examples(self):
        self.assert_parts_of_examples("proto", "examples/hello/hello.proto",
                                      "examples/block_store/block_store.proto")

    def test_the_commands_and_files_that_it_names_are_there(self):
        for command in re.findall(r"\./dev ([a-z-]+)", tree.text("README.md")):
            self.assertRegex(tree.text("dev"), rf"(?m)^  {command}\b")
        for link in re.findall(r"\]\(([^)#:]+)\)", tree.text("README.md")):
            self.assertTrue((tree.top() / link).exists(), link)


if __name__ == "__main__":
    case_report.main()
