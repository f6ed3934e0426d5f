#!/usr/bin/env python3
"""CMake compiles the sources that Bazel compiles, and each product of one is a product of the other."""

import os
import pathlib
import re
import sys
import tempfile
import unittest
from unittest import mock

sys.path[:0] = [os.path.abspath("tests/repository"), os.path.abspath("tools/dev")]
import build_files
import case_report
import lock
import tree

sys.path.append(str(tree.top() / "tests/cmake"))
import consumers

# CMake's target by Bazel's. A target of CMake has all sources of its folders.
TARGETS = {
    "verbena_objects": "//rpc:rpc",
    "verbena_etcd": "//rpc/naming/etcd:etcd",
    "verbena_testing": "//rpc/testing:testing",
    "protoc-gen-verbena": "//rpc/codegen:protoc-gen-verbena",
    "verbena_command": "//tools/verbena:verbena",
    "verbena_soft": "//transport/preload:libverbena_soft.so",
}


def without_comments(name):
    return re.sub(r"#.*", "", tree.text(name))


def folders_of_cmake():
    """The folders of sources by target of CMakeLists.txt."""
    text = without_comments("CMakeLists.txt")
    library = re.search(r"set\(library_folders\s([^)]*)\)", text)[1].split()
    folders = {"verbena_objects": library}
    for folder, target in re.findall(r"verbena_sources\(sources ([\w/]+)\)\s+add_\w+\((\S+) ", text):
        folders[target] = [folder]
    return folders


def sources_in(folders):
    return {name for name in tree.files() if name.endswith(".cc") and os.path.dirname(name) in folders}


def closure(label):
    """The sources of a Bazel target and of everything that it is linked with."""
    waiting, seen, sources = [label], set(), set()
    while waiting:
        label = waiting.pop()
        if label in seen:
            continue
        seen.add(label)
        package, name = label[2:].split(":")
        target = next((each for each in build_files.targets(package) if each.name == name), None) if package else None
        if target:
            sources.update(file for file in target.files("srcs") if file.endswith(".cc"))
            waiting += target.labels("deps")
    return sources


def listed(name, pattern):
    return re.search(pattern, without_comments(name))[1].split()


class CmakeTest(unittest.TestCase):
    def test_each_target_has_the_sources_of_bazels(self):
        folders = folders_of_cmake()
        self.assertEqual(set(TARGETS), set(folders))
        library = closure(TARGETS["verbena_objects"])
        self.assertIn("transport/link/link.cc", library)
        self.assertEqual(library, sources_in(folders.pop("verbena_objects")))
        for target, its_folders in folders.items():
            own = closure(TARGETS[target]) - library
            self.assertEqual(own, sources_in(its_folders), target)

    def test_every_folder_of_the_product_belongs_to_a_target(self):
        known = {folder for folders in folders_of_cmake().values() for folder in folders}
        product = {os.path.dirname(name) for name in tree.files()
                   if name.endswith(".cc") and name.startswith(("rpc/", "transport/", "tools/verbena/"))}
        self.assertEqual(product, known)

    def test_every_message_of_the_wire_is_compiled(self):
        protos = listed("CMakeLists.txt", r"set\(wire_protos\s([^)]*)\)")
        self.assertEqual({name for name in tree.files() if re.fullmatch(r"proto/\w+\.proto", name)},
                         {f"proto/{proto}.proto" for proto in protos})

    def test_every_example_with_a_program_is_built(self):
        built = re.findall(r"verbena_example\((\w+)", without_comments("tools/cmake/VerbenaExamples.cmake"))
        self.assertEqual({name.split("/")[1] for name in tree.files()
                          if name.startswith("examples/") and name.endswith(".cc")}, set(built))

    def test_packages_of_the_build_have_what_cmake_looks_for(self):
        packages = tree.text("tools/dev/packages.txt")
        for package in re.findall(r"\blib[\w.+-]+-dev\b|\bprotobuf-compiler\b",
                                  without_comments("tools/cmake/VerbenaDependencies.cmake")):
            self.assertIn(f"build {package}\n", packages)

    def test_a_new_service_has_a_short_listfile(self):
        self.assertLessEqual(len(tree.text("tools/dev/new_service/CMakeLists.txt.in").splitlines()), 15)


class ConsumersTest(unittest.TestCase):
    def test_a_command_that_hangs_fails_its_row_with_what_it_said(self):
        # The pipe stays open until the second process ends, too.
        with self.assertRaisesRegex(consumers.RowFailed, "took longer than 0.5 s\nbegun"):
            consumers.run("sh", "-c", "echo begun; sleep 600 & sleep 600", timeout=0.5)

    def test_a_command_must_end_as_its_row_says(self):
        self.assertEqual("good\n", consumers.run("echo", "good"))
        self.assertEqual("", consumers.run("false", fails=True))
        for command, fails in (("false", False), ("true", True)):
            with self.assertRaises(consumers.RowFailed):
                consumers.run(command, fails=fails)

    def build_library(self, cache):
        commands = []
        with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": cache}), \
                mock.patch.object(consumers, "run", lambda *command, **_: commands.append(command)):
            consumers.build_library("shared", pathlib.Path("/nowhere"))
        return commands

    def test_a_build_directory_that_stays_is_configured_afresh(self):
        with tempfile.TemporaryDirectory() as cache:
            self.assertIn("--fresh", self.build_library(cache)[0])

    def test_a_second_build_in_the_same_directory_is_refused(self):
        with tempfile.TemporaryDirectory() as cache:
            build = self.build_library(cache)[1][2]
            with lock.locked(build), self.assertRaisesRegex(consumers.RowFailed, "another run works in"):
                self.build_library(cache)


if __name__ == "__main__":
    case_report.main()
