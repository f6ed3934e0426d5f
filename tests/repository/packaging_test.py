#!/usr/bin/env python3
"""The bill of materials and the ports name what CMake looks for, and the version of the headers."""

import json
import os
import re
import sys
import unittest

sys.path[:0] = [os.path.abspath("tests/repository")]
import case_report
import tree

DEPENDENCIES = ("tools/cmake/VerbenaDependencies.cmake", "tools/cmake/VerbenaProtobuf.cmake")
BILL = "tools/packaging/verbena.spdx"
# How the bill and the ports call what CMake has under another name.
BILL_NAMES = {"absl": "abseil"}
VCPKG_NAMES = {"absl": "abseil", "boost": "boost-json", "uring": "liburing"}
CONAN_NAMES = {"absl": "abseil", "uring": "liburing", "isal": "isa-l", "ibverbs": "rdma-core", "rdmacm": "rdma-core"}
# vcpkg has no verbs.
NOT_IN_VCPKG = {"ibverbs", "rdmacm"}


def dependencies():
    """The libraries that CMake looks for, in lower case."""
    text = "".join(map(tree.text, DEPENDENCIES))
    found = set(re.findall(r"^\s*find_package\((\w+)", text, re.MULTILINE)) - {"Threads"}
    found |= set(re.findall(r"^verbena_import\(Verbena::(\w+)", text, re.MULTILINE))
    if "VERBENA_BOOST_INCLUDE_DIR" in text:
        found.add("Boost")
    return {name.lower() for name in found}


def version():
    return ".".join(re.findall(r"^#define VERBENA_VERSION_\w+ (\d+)$", tree.text("rpc/version.h"), re.MULTILINE))


class PackagingTest(unittest.TestCase):
    def test_the_bill_of_materials_has_each_library(self):
        listed = set(re.findall(r"^PackageName: (\S+)$", tree.text(BILL), re.MULTILINE)) - {"verbena"}
        self.assertEqual({BILL_NAMES.get(name, name) for name in dependencies()}, listed)
        linked = set(re.findall(r"^Relationship: SPDXRef-verbena \w+_LINK SPDXRef-(\S+)$", tree.text(BILL),
                                re.MULTILINE))
        self.assertEqual(listed, linked)

    def test_the_ports_have_each_library(self):
        port = json.loads(tree.text("tools/packaging/vcpkg/vcpkg.json"))
        there = [each for each in port["dependencies"] if isinstance(each, str)]
        there += port["features"]["etcd"]["dependencies"]
        for name in dependencies() - NOT_IN_VCPKG:
            self.assertIn(VCPKG_NAMES.get(name, name), there)
        recipe = tree.text("tools/packaging/conan/conanfile.py")
        for name in dependencies():
            self.assertIn(f'"{CONAN_NAMES.get(name, name)}/', recipe)

    def test_they_are_of_the_version_of_the_headers(self):
        self.assertIn(f"\nSPDXID: SPDXRef-verbena\nPackageVersion: {version()}\n", tree.text(BILL))
        self.assertIn(f"/verbena-{version()}\n", tree.text(BILL))
        self.assertEqual(version(), json.loads(tree.text("tools/packaging/vcpkg/vcpkg.json"))["version-semver"])

    def test_every_file_has_the_licence_of_the_whole(self):
        self.assertIn("\nFiles: *\n", tree.text(".reuse/dep5"))
        self.assertEqual(tree.text("LICENSE"), tree.text("LICENSES/Apache-2.0.txt"))


if __name__ == "__main__":
    case_report.main()
