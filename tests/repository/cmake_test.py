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
import programs

# CMake's target by Bazel's. A target of CMake has all sources of its folders.
TARGETS = {
    "verbena_objects": "//rpc:rpc",
    "verbena_admin": "//rpc/admin:admin",
    "verbena_etcd": "//rpc/naming/etcd:etcd",
    "verbena_reflection": "//rpc/reflection:reflection",
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

    def test_each_proto_file_is_asked_for_by_the_check_for_a_second_copy(self):
        # A program that is linked with an archive has only some of them.
        listed = re.search(r"kProtoFiles\[\] = {([^}]*)}", tree.text("rpc/detail/message.cc"))[1]
        self.assertCountEqual([name.replace("proto/", "verbena/") for name in tree.files()
                               if os.path.dirname(name) == "proto" and name.endswith(".proto")],
                              re.findall(r'"([^"]+)"', listed))

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


class TestProgramsTest(unittest.TestCase):
    def test_cmake_has_each_test_in_cpp_or_says_why_not(self):
        built = {source for program in programs.programs(["cmake"]) for source in program.sources}
        for test in programs.tests():
            joined = programs.joined_source(test)
            for source in [joined] if joined else test.files("srcs"):
                if source.endswith(".cc") and source not in built:
                    self.assertTrue(programs.why_not(test, ["cmake"]), source)
        self.assertLess(280, len(built))

    def test_each_line_of_the_list_leaves_out_a_test_and_says_why(self):
        lines = programs.left_out()
        self.assertEqual(set(programs.WHERES), {line.where for line in lines})
        for line in lines:
            others = ["cmake"] if line.where == "arm64" else []
            self.assertTrue(any(line.has(test.label()) and not programs.why_not(test, others, without=line)
                                for test in programs.tests()), line)


class FakeProgramsTest(unittest.TestCase):
    """The programs of a tree of one folder."""

    JOINED = '''
cc_library(name = "test_cases", deps = [":fake", "//rpc:etcd"])
cc_library(name = "fake", srcs = ["fake.cc"], deps = [":notes_cc_proto", "//tests/y:y"])
cc_proto_library(name = "notes_cc_proto", deps = [":notes_proto"])
proto_library(name = "notes_proto", srcs = ["notes.proto"])
[sh_test(name = name, srcs = [":tests"], tags = tags) for name, tags in [("a_test", []), ("b_test", ["guest"])]]
sh_test(name = "script_test", srcs = ["script_test.sh"])
'''
    ALONE = '''
cc_test(name = "c_test", srcs = ["c_test.cc"], local_defines = ["X"], env = {"Y": "1"})
cc_test(name = "d_test", srcs = ["d_test.cc"], data = [":z"])
'''

    def setUp(self):
        self.files = {"tests/x/BUILD": self.JOINED + self.ALONE, programs.LEFT_OUT: "",
                      "tests/y/BUILD": 'cc_library(name = "y", srcs = ["y.cc"])'}
        self.files.update({f"tests/{name}": "" for name in ("y/y.cc", "x/fake.cc", "x/notes.proto", "x/a_test.cc",
                                                            "x/b_test.cc", "x/c_test.cc", "x/d_test.cc")})
        build_files.targets.cache_clear()
        self.addCleanup(build_files.targets.cache_clear)
        for name, fake in (("files", lambda: sorted(self.files)), ("text", self.files.get),
                           ("has", self.files.__contains__)):
            patch = mock.patch.object(tree, name, fake)
            patch.start()
            self.addCleanup(patch.stop)

    def calls(self, *wheres):
        return [program.call() for program in programs.programs(wheres)]

    def test_joined_tests_are_one_program_with_what_they_use_and_others_have_their_own(self):
        self.assertEqual([
            'verbena_add_test_program("x" SOURCES tests/x/a_test.cc JOINED SUPPORT x/fake y/y '
            'LIBRARIES Verbena::etcd verbena_test_protos)\n',
            'verbena_add_test_program("x/c_test" SOURCES tests/x/c_test.cc DEFINES X ENVIRONMENT Y=1)\n'], self.calls())

    def test_a_library_of_tests_is_compiled_once_for_all_programs(self):
        self.assertEqual([
            'verbena_add_test_support("x/fake" SOURCES tests/x/fake.cc LIBRARIES verbena_test_protos)\n',
            'verbena_add_test_support("y/y" SOURCES tests/y/y.cc)\n'],
                         [programs.support_call(library)
                          for program in programs.programs([]) for library in program.support])

    def test_the_list_leaves_out_a_test_or_a_folder_for_whom_it_names(self):
        self.files[programs.LEFT_OUT] = "# text\n\narm64 //tests/x:c_test it is slow\ncmake tests/x/ of a reason\n"
        self.assertEqual([], self.calls("cmake"))
        self.assertEqual(1, len(self.calls("arm64")))
        self.assertEqual("it is slow", programs.why_not(programs.find("//tests/x:c_test"), ["arm64"]))

    def test_why_a_test_is_left_out_without_a_line_of_the_list(self):
        self.assertEqual({"script_test": "a script", "b_test": "tagged guest", "d_test": "needs files of Bazel's"},
                         {test.name: programs.why_not(test, []) for test in programs.tests()
                          if programs.why_not(test, [])})


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
