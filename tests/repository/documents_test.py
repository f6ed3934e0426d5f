#!/usr/bin/env python3
"""Documents show code that is compiled, and name commands and files that are there."""

import json
import os
import re
import sys
import unittest

sys.path[:0] = [os.path.abspath("tests/repository")]
import case_report
import tree


# The files that a document's code comes from.
SOURCES = {
    "README.md": ["examples/hello/hello.cc", "examples/hello/hello.proto",
                  "examples/block_store/block_service.cc", "examples/block_store/block_store.proto"],
    "docs/command.md": ["examples/kv/kv_server.cc"],
    "docs/payloads.md": ["examples/own_memory/own_memory.cc", "tests/rpc/memory_service.cc"],
    "docs/operations.md": ["tests/docs/admin.cc", "tests/docs/operations_test.cc"],
    "docs/guide.md": ["examples/dedupe/dedupe.cc", "examples/dedupe/dedupe.proto", "tests/docs/BUILD",
                      "tests/docs/block_client.cc", "tests/docs/block_service.h",
                      "tests/docs/blocks.proto", "tests/docs/etcd.cc",
                      "tests/docs/guide_streams_test.cc", "tests/docs/guide_test.cc",
                      "tests/docs/guide_testing_test.cc", "tests/docs/lifetimes.cc"],
}


def blocks(name):
    return re.findall(r"^```\w+\n(.*?)^```$", tree.text(name), re.MULTILINE | re.DOTALL)


class DocumentsTest(unittest.TestCase):
    def test_code_that_they_show_is_compiled(self):
        for name, sources in SOURCES.items():
            texts = [tree.text(source) for source in sources]
            self.assertNotEqual([], blocks(name))
            for block in blocks(name):
                self.assertTrue(any(block.strip() in text for text in texts), f"{name}:\n{block}")

    def test_commands_and_files_that_they_name_are_there(self):
        documents = [name for name in tree.files() if name.endswith(".md") and "new_service" not in name]
        self.assertIn("docs/tuning.md", documents)
        for name in documents:
            for command in re.findall(r"\./dev ([a-z0-9-]+)", tree.text(name)):
                self.assertRegex(tree.text("dev"), rf"(?m)^  {command}\b", name)
            folder = (tree.top() / name).parent
            for link in re.findall(r"\]\(([^)#:]+)\)", tree.text(name)):
                self.assertTrue((folder / link).exists(), f"{name}: {link}")

    def test_they_install_where_a_new_project_looks(self):
        expected = re.search(r'"CMAKE_PREFIX_PATH": "@verbena@/([^"]*)"',
                             tree.text("tools/dev/new_service/CMakePresets.json.in"))[1]
        for name in ("README.md", "tools/dev/new_service/README.cmake.md.in"):
            self.assertEqual([expected], re.findall(r"--prefix (\S+)", tree.text(name)), name)
        self.assertIn(f"-DCMAKE_PREFIX_PATH=CLONE/{expected} ", tree.text("README.md"))

    def test_they_tell_the_budget_of_instructions(self):
        budget = json.loads(tree.text("benchmarks/rpc/instructions_budget.json"))
        told = [tuple(int(figure.replace(",", "")) for figure in row) for row in re.findall(
            r"^\| (?:plain|with|message)[^|]*\|[^|]*\| ([\d,]+) \| ([\d,]+) \|$", tree.text("docs/performance.md"),
            re.MULTILINE)]
        sides = [[int(figure + 0.5) for name, figure in budget.items() if name.startswith(side)]
                 for side in ("client_", "server_")]
        self.assertCountEqual(list(zip(*sides)), told)

    def test_metrics_that_they_name_are_those_of_the_text(self):
        written = re.findall(r'"((?:verbena|rpc)_(?!method\b|response_status_code\b)[a-z_]+)"',
                             tree.text("rpc/shard/metrics.cc"))
        rows = re.findall(r"^\| `((?:verbena|rpc)_[a-z_]+)` \|(.*)\|$", tree.text("docs/metrics.md"), re.MULTILINE)
        self.assertIn("rpc_server_call_duration_seconds", written)
        self.assertCountEqual(set(written), [name for name, _ in rows])
        for name, cells in rows:
            self.assertEqual(3, len([cell for cell in cells.split(" | ") if cell.strip()]), name)
        parts = {name + suffix for name in written for suffix in ("", "_bucket", "_sum", "_count")}
        for document in tree.files():
            if document.endswith(".md"):
                named = re.findall(r"\b(?:rpc_(?:server|client)_call_\w+"
                                   r"|verbena_(?:server|client|memory|links?|executor)_\w+(?=`|\{| ))",
                                   tree.text(document))
                self.assertLessEqual(set(named) - parts, set(), document)


if __name__ == "__main__":
    case_report.main()
