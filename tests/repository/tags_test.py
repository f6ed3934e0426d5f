#!/usr/bin/env python3
"""Each tag of a test is one that something reads; tests that may race are found by their sources; none waits by a clock."""

import difflib
import os
import re
import sys
import unittest
from unittest import mock

sys.path[:0] = [os.path.abspath("tests/repository"), os.path.abspath("tools/dev")]
import build_files
import case_report
import documents_test
import timing
import tree

# Every tag of a test. The last four are Bazel's own; CONTRIBUTING.md says what the others mean.
TAGS = ("disk", "guest", "iwarp", "long", "lossy", "noasan", "noprofile", "notcp", "notsan", "on_disk",
        "rdma", "rdma_cm", "smoke", "two_devices", "two_hosts", "two_networks",
        "exclusive", "external", "local", "manual")


def unknown_tags(test):
    """Tags of `test` that nothing reads, with the tag that was probably meant, one line for each."""
    return [f"{test.label()}: there is no tag '{tag}'; did you mean '{difflib.get_close_matches(tag, TAGS, 1, 0)[0]}'?"
            for tag in test.arguments.get("tags") or [] if tag not in TAGS]


def shown_lines(name):
    """The lines of the file `name` that a document shows."""
    return {line.strip() for document, sources in documents_test.SOURCES.items() if name in sources
            for block in documents_test.blocks(document) for line in block.split("\n")}


def untaken(sources):
    """Those of `sources` that have cases of GoogleTest, or the name of a test, and that no test is made of."""
    taken = set()
    for package in build_files.packages("tests"):
        for target in build_files.targets(package):
            # A library whose object files nobody refers to is linked only if it says so.
            if target.rule.endswith(("_test", "_binary")) or target.arguments.get("alwayslink"):
                taken.update(target.files("srcs"))
    return [name for name in sources if name not in taken and
            (name.endswith("_test.cc") or re.search(r"(?m)^(?:TYPED_)?TEST(?:_F|_P)?\(", tree.text(name)))]


class TreeTest(unittest.TestCase):
    def test_each_tag_of_a_test_is_one_that_something_reads(self):
        self.assertEqual([], [line for test in timing.tests() for line in unknown_tags(test)])
        used = {tag for test in timing.tests() for tag in test.arguments.get("tags") or []}
        self.assertEqual({"manual"}, set(TAGS) - used)

    def test_no_test_waits_by_the_machines_clock(self):
        exempt = {
            "tests/examples/block_store/logged_disk.h",  # no kernel tells when it lets go of a disk
            "tests/examples/block_store/power_loss_test.cc",  # nor of a file
            "tests/rpc/runtime_pair.cc",  # looks again at what other processes and executors count
            "tests/toolchains/border.cc",  # looks again at what frames of other executors count
        }
        sleeps = {name: timing.sleep(name, shown_lines(name)) for name in tree.files()
                  if name.startswith("tests/") and name.endswith((".cc", ".h"))}
        self.assertEqual([], [sleep for name, sleep in sleeps.items()
                              if sleep and name not in exempt],
                         "wait for an event, or move a clock (CONTRIBUTING.md)")
        self.assertEqual([], [name for name in exempt if not sleeps.get(name)])

    def test_each_source_with_cases_is_taken_by_a_test(self):
        others = {name.removesuffix("WORKSPACE") for name in tree.files() if name.endswith("/WORKSPACE")}
        sources = [name for name in tree.files() if name.startswith("tests/") and name.endswith(".cc")
                   and not name.startswith((*others, "tests/cmake/", "tests/toolchains/"))]
        self.assertEqual([], untaken(sources), "name it <what>_test.cc, or in its folder's BUILD (tests/README.md)")

    def test_the_tests_were_really_found(self):
        labels = {test.label() for test in timing.tests()}
        self.assertLess(300, len(labels))
        for label in ("//tests/rpc:runtime_test",
                      "//tests/transport/executor:sleep_test_io_uring",  # in a list comprehension
                      "//tests/fuzz:send_corpus_test",  # in a macro
                      "//tests/conformance:processes_test"):  # without sources of its own
            self.assertIn(label, labels)


class FakeTree(unittest.TestCase):
    """A tree of a few files."""

    def setUp(self):
        self.files = {}
        for function in (build_files.targets, timing.reasons):
            function.cache_clear()
            self.addCleanup(function.cache_clear)
        for name, fake in (("files", lambda: sorted(self.files)), ("text", self.files.get),
                           ("has", self.files.__contains__)):
            patch = mock.patch.object(tree, name, fake)
            patch.start()
            self.addCleanup(patch.stop)


class RulesTest(FakeTree):
    def reasons(self, source, name="a_test.cc", rule="cc_test"):
        timing.reasons.cache_clear()
        build_files.targets.cache_clear()
        self.files[f"tests/x/{name}"] = source
        self.files["tests/x/BUILD"] = f'{rule}(name = "a_test", srcs = ["{name}"])'
        [test] = timing.tests()
        return timing.reasons_of(test)

    def test_a_line_of_the_source_decides(self):
        self.assertEqual({"threads": "tests/x/a_test.cc:2: std::thread t(f);"},
                         self.reasons("\n  std::thread t(f);\n"))
        self.assertEqual(["processes"], list(self.reasons("pid = fork();")))
        self.assertEqual(["time"], list(self.reasons("std::this_thread::sleep_for(1ms);")))

    def test_comments_and_the_ids_of_threads_do_not_count(self):
        self.assertEqual({}, self.reasons("// std::thread\nstd::thread::id id;"))

    def test_a_header_of_the_tests_counts_if_the_source_includes_it_itself(self):
        self.files["tests/y/direct.h"] = '#include "tests/y/far.h"\nfork();\n'
        self.files["tests/y/far.h"] = "std::thread t;"
        self.assertEqual({"processes": "tests/y/direct.h:2: fork();"},
                         self.reasons('#include "tests/y/direct.h"\n'))

    def test_a_timer_counts_unless_only_the_test_moves_its_clock(self):
        self.assertEqual(["time"], list(self.reasons("co_await Sleep(1ms);")))
        self.assertEqual({}, self.reasons("ManualScheduler scheduler;\nco_await Sleep(1ms);"))

    def test_a_device_that_the_test_steps_has_no_thread(self):
        self.assertEqual(["threads"], list(self.reasons("SoftDevice::Create({});")))
        self.assertEqual({}, self.reasons("SoftDevice::Create({.engine_thread = false});"))

    def test_a_sleep_is_found_unless_only_the_test_moves_its_clock(self):
        def sleep(source):
            self.files["tests/x/a.cc"] = source
            return timing.sleep("tests/x/a.cc")
        self.assertEqual("tests/x/a.cc:1: usleep(1);", sleep("usleep(1);"))
        self.assertEqual("tests/x/a.cc:2: co_await Sleep(1ms);", sleep("\nco_await Sleep(1ms);"))
        self.assertIsNone(sleep("ManualScheduler s;\nco_await Sleep(1ms);"))
        self.assertIsNone(sleep("co_await SleepUntil(kNever);  // not sleep_for(1ms)"))

    def test_a_sleep_that_a_document_shows_is_the_users(self):
        self.files["tests/x/a.cc"] = "\n  co_await Sleep(1ms);\n  usleep(1);\n"
        self.assertEqual("tests/x/a.cc:3: usleep(1);",
                         timing.sleep("tests/x/a.cc", {"co_await Sleep(1ms);"}))

    def test_scripts_count_by_what_they_run(self):
        self.assertEqual(["processes", "time"],
                         list(self.reasons("#!/bin/bash\nsleep 1\n", "a_test.sh", "sh_test")))
        self.assertEqual(["processes"],
                         list(self.reasons("subprocess" + '.run(["x"])', "a_test.py", "sh_test")))


class UntakenTest(FakeTree):
    def test_cases_in_a_library_that_nobody_refers_to_and_a_folder_without_a_BUILD_are_found(self):
        self.files["tests/x/BUILD"] = 'cc_library(name = "l", srcs = ["a_tests.cc", "help.cc"])\n' \
            'cc_library(name = "k", srcs = ["b_cases.cc"], alwayslink = True)\ncc_test(name = "c_test", srcs = ["c_test.cc"])'
        cases = "TEST_F(ATest, Works) {\n}\n"
        self.files |= {"tests/x/a_tests.cc": cases, "tests/x/b_cases.cc": cases, "tests/x/c_test.cc": cases,
                       "tests/x/help.cc": "", "tests/y/d_test.cc": ""}
        self.assertEqual(["tests/x/a_tests.cc", "tests/y/d_test.cc"],
                         untaken([name for name in sorted(self.files) if name.endswith(".cc")]))


class TagNamesTest(FakeTree):
    def test_a_wrong_name_is_refused_with_the_nearest_right_one(self):
        self.files["tests/x/BUILD"] = 'cc_test(name = "a", tags = ["exclusi", "manual", "no_tsan"])'
        [test] = timing.tests()
        self.assertEqual(["//tests/x:a: there is no tag 'exclusi'; did you mean 'exclusive'?",
                          "//tests/x:a: there is no tag 'no_tsan'; did you mean 'notsan'?"], unknown_tags(test))


class BuildFilesTest(FakeTree):
    def test_targets_of_list_comprehensions_and_macros_are_found(self):
        self.files["tests/x/macro.bzl"] = \
            'load("//tools:none.bzl", "other")\n_RULE = rule(attr.string())\n' \
            "def twice(name):\n    native.cc_test(name = name + native.package_name())\n"
        self.files["tools/none.bzl"] = "other = Label('//x')"
        self.files["tests/x/BUILD"] = \
            'load(":macro.bzl", "twice")\n' \
            '[cc_test(name = n) for n in ["a", "b"]]\ntwice(name = "c")\n'
        self.assertEqual(["//tests/x:a", "//tests/x:b", "//tests/x:ctests/x"],
                         [target.label() for target in build_files.targets("tests/x")])

    def test_a_star_of_glob_stays_within_a_folder_and_two_do_not(self):
        self.files["tests/x/BUILD"] = 'cc_test(name = "a", srcs = glob(["*_test.cc"]), data = glob(["b/*", "c/**"]))'
        self.files |= {f"tests/x/{name}": "" for name in ("a_test.cc", "d/a_test.cc", "b/e", "b/f/g", "c/h/i")}
        [test] = build_files.targets("tests/x")
        self.assertEqual((["a_test.cc"], ["b/e", "c/h/i"]), (test.arguments["srcs"], test.arguments["data"]))

    def test_tests_of_a_folder_are_those_that_no_target_above_takes(self):
        self.files["tests/x/BUILD"] = 'load("//tools:t.bzl", "t")\ncc_test(name = "a", srcs = ["a_test.cc"])\nt()\n'
        self.files["tools/t.bzl"] = \
            "def t():\n    taken = [s for rule in native.existing_rules().values() for s in rule.get('srcs', [])]\n" \
            "    [native.sh_test(name = s) for s in native.glob(['*_test.cc']) if ':' + s not in taken]\n"
        self.files |= {"tests/x/a_test.cc": "", "tests/x/b_test.cc": ""}
        self.assertEqual(["a", "b_test.cc"], [target.name for target in build_files.targets("tests/x")])

    def test_a_test_without_sources_has_those_of_the_libraries_of_its_package(self):
        self.files["tests/x/BUILD"] = \
            'cc_test(name = "t", deps = [":a", "//z"])\n' \
            'cc_library(name = "a", deps = [":b"])\ncc_library(name = "b", srcs = ["b.cc"])\n'
        self.files["tests/x/b.cc"] = ""
        [test] = timing.tests()
        self.assertEqual(["tests/x/b.cc"], timing.sources(test))


if __name__ == "__main__":
    case_report.main()
