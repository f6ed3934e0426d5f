#!/usr/bin/env python3
"""./dev toolchains chooses rows by their names, takes nothing half-made for whole, remembers by files, and fails in
words."""

import contextlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.path[:0] = [os.path.abspath("tests/repository"), os.path.abspath("tools/dev")]
import bazel_events
import case_report
import debian_archive
import lock
import toolchain_root
import toolchain_row
import toolchain_rows
import toolchains
import tree


def names(*given):
    return [row.name for row in toolchain_rows.select(given)]


class RowsTest(unittest.TestCase):
    def test_without_a_name_those_run_that_gate_and_the_reference_first(self):
        self.assertEqual(["trixie-clang19-O2", "trixie-g++14-O2", "trixie-g++14-O0", "trixie-g++14-asan",
                          "trixie-g++13-O2", "trixie-mixed"], names())

    def test_a_name_stands_for_all_rows_that_begin_with_it(self):
        self.assertEqual(["trixie-g++14-O2", "trixie-g++14-O0", "trixie-g++14-asan"], names("trixie-g++14"))
        self.assertEqual(["trixie-g++14-O0"], names("trixie-g++14-O0"))
        self.assertEqual(["trixie-g++14-O2", "trixie-mixed"], names("trixie-mixed", "trixie-g++14-O2"))
        self.assertEqual({"sid"}, {row.suite for row in toolchain_rows.select(["sid"])})

    def test_a_name_that_is_no_rows_is_refused(self):
        for name in ("trixie-g++1", "trixie-g++15", "gcc", ""):
            with self.assertRaisesRegex(toolchain_rows.Unknown, f"no row '{re.escape(name)}'; rows: trixie-clang19"):
                names(name)

    def test_rows_of_sid_are_reported_only(self):
        self.assertEqual({"sid": {False}, "trixie": {True}},
                         {suite: {row.gates for row in toolchain_rows.ROWS if row.suite == suite}
                          for suite in ("sid", "trixie")})

    def test_each_suite_has_the_compilers_of_its_rows(self):
        for row in toolchain_rows.ROWS:
            package = row.compiler.replace("clang++", "clang")
            newest = package in ("clang", "g++", "")
            self.assertIn(f"{package}-*" if newest and package else package or "g++-14",
                          toolchain_root.listed_packages(row.suite))

    def test_every_example_of_the_demo_command_runs(self):
        listed = re.search(r"^  (block_store \|.*)\) example=", tree.text("tools/dev/demo.sh"), re.MULTILINE)[1]
        self.assertEqual(set(listed.split(" | ")), {name.split()[0] for name in toolchain_row.DEMOS})


class ArgumentsTest(unittest.TestCase):
    def refusal(self, *words):
        with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit):
            toolchains.arguments(words)
        return said.getvalue()

    def test_what_does_not_go_together_is_refused(self):
        self.assertIn("there is no row 'trixie-gcc'", self.refusal("trixie-gcc"))
        self.assertIn("--jobs is 0, but must be at least 1", self.refusal("--jobs", "0"))
        self.assertIn("--shell is for one row", self.refusal("--shell"))
        self.assertIn("has no bin/protoc", self.refusal("--protobuf", "/nonexistent"))

    def test_without_root_the_command_to_run_is_named(self):
        with (mock.patch.object(os, "geteuid", lambda: 1000),
              mock.patch.object(sys, "argv", ["toolchains.py", "trixie-g++14", "--resume"]),
              self.assertRaisesRegex(toolchain_root.Failed, r"sudo ./dev toolchains trixie-g\+\+14 --resume$")):
            toolchains.main()


class WithCache(unittest.TestCase):
    """Roots and builds lie in a directory of the test's own. This machine's disk may be full: it is not asked."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = pathlib.Path(directory.name)
        for patch in (mock.patch.object(toolchain_root, "cache", lambda: self.path),
                      mock.patch.object(debian_archive, "sources", lambda: ["deb http://a.invalid bookworm main"]),
                      mock.patch.object(debian_archive, "settings", lambda: ""),
                      mock.patch.object(toolchain_root.shutil, "disk_usage", lambda _: mock.Mock(free=10**12)),
                      contextlib.redirect_stderr(io.StringIO())):
            patch.__enter__()
            self.addCleanup(patch.__exit__, None, None, None)


class RootTest(WithCache):
    def bootstrapped(self, status=0, output="", whole=True):
        """Makes a root by a mmdebstrap that does just that. Returns the sources that it was given."""
        real, given = subprocess.run, []

        def run(command, **options):
            words = [str(word) for word in command]
            if "mmdebstrap" in words:
                given.append(options["input"])
                directory = pathlib.Path(words[-2])
                self.assertFalse(directory.exists(), "it begins anew")
                (directory / "etc").mkdir(parents=True)
                if not whole:
                    raise KeyboardInterrupt
                return subprocess.CompletedProcess(command, status, output)
            if words[0] == "dpkg-query":
                return subprocess.CompletedProcess(command, 0, "g++-14 14.2\n")
            return real(command, check=options.pop("check", False), **options)

        with mock.patch.object(toolchain_root.subprocess, "run", run):
            toolchain_root.make("trixie")
        return given

    def test_a_root_is_made_once_of_the_machines_own_archive(self):
        self.assertEqual(["deb http://a.invalid trixie main\n"], self.bootstrapped())
        self.assertEqual([], self.bootstrapped())
        root = toolchain_root.root_path("trixie")
        self.assertIn("localhost", (root / "etc/hosts").read_text())
        self.assertTrue(all((root / name).is_dir() for name in toolchain_root.PLACES))
        self.assertEqual({"g++": "g++-14", "clang++": "clang++-19"},
                         json.loads((root / toolchain_root.STAMP).read_text())["compilers"])

    def test_one_that_was_interrupted_is_not_taken_for_whole_and_made_anew(self):
        with self.assertRaises(KeyboardInterrupt):
            self.bootstrapped(whole=False)
        self.assertFalse(toolchain_root.root_path("trixie").exists())
        self.assertEqual(1, len(self.bootstrapped()))
        self.assertEqual([], list(self.path.glob("*.new")))

    def test_one_without_its_stamp_is_made_anew(self):
        toolchain_root.root_path("trixie").mkdir()
        self.assertEqual(1, len(self.bootstrapped()))

    def test_a_failure_of_mmdebstrap_is_one_message_and_leaves_no_root(self):
        for output, message in (
                ("E: Failed to fetch http://a.invalid/x  Temporary failure resolving 'a.invalid'",
                 "http://a.invalid cannot be reached"),
                ("E: The repository 'http://a.invalid trixie Release' does not have a Release file.",
                 "http://a.invalid has no suite trixie"),
                ("W: GPG error: http://a.invalid trixie InRelease: NO_PUBKEY 0E98404D386FA1D9",
                 "no key of Debian trixie"),
                ("dpkg: error: failed to write: No space left on device", "is full"),
                ("one\nE: something else", "making a root of Debian trixie failed:\nE: something else")):
            with self.assertRaisesRegex(toolchain_root.Failed, re.escape(message)):
                self.bootstrapped(1, output)
            self.assertFalse(toolchain_root.root_path("trixie").exists())

    def test_a_full_disk_is_said_before_anything_is_downloaded(self):
        with (mock.patch.object(toolchain_root.shutil, "disk_usage", lambda _: mock.Mock(free=1_000_000_000)),
              self.assertRaisesRegex(toolchain_root.Failed, r"is full \(1.0 GB are free\): a root takes 2.5 GB")):
            self.bootstrapped()

    def test_a_machine_without_debians_archive_is_told_so(self):
        with (mock.patch.object(debian_archive, "sources", side_effect=debian_archive.Failed("run apt-get update")),
              self.assertRaisesRegex(toolchain_root.Failed, "run apt-get update")):
            self.bootstrapped()

    def test_the_newest_compilers_of_a_suite_are_taken_and_clangs_parts_are_of_one_version(self):
        suite = ["g++-15", "g++-16", "g++-9", "g++-16-doc", "clang-20", "clang-21", "clang-22", "lld-21", "lld-20",
                 "libclang-rt-21-dev", "libclang-rt-20-dev", "libclang-rt-22-dev"]
        chosen = toolchain_root.with_newest(["clang-*", "g++-*", "g++-15", "libclang-rt-*-dev", "lld-*", "make"], suite)
        self.assertEqual(["clang-21", "g++-15", "g++-16", "libclang-rt-21-dev", "lld-21", "make"], chosen)
        self.assertEqual({"g++": "g++-16", "clang++": "clang++-21"}, toolchain_root.compilers(chosen))
        with self.assertRaisesRegex(toolchain_root.Failed, r"no package g\+\+-\*"):
            toolchain_root.with_newest(["g++-*"], ["g++"])

    def test_the_archive_is_that_of_debian_itself(self):
        lines = ["deb http://a.invalid/security bookworm-security main", "deb http://a.invalid/debian bookworm main"]
        self.assertEqual("http://a.invalid/debian", debian_archive.uri(lines))
        with self.assertRaises(debian_archive.Failed):
            debian_archive.uri(lines[:1])


class RememberingTest(WithCache):
    ROW = toolchain_rows.by_name("trixie-g++14-O2")

    def setUp(self):
        super().setUp()
        self.root = mock.Mock(identity=lambda: self.identity)
        self.identity = "a root"
        self.tree = "files"
        for patch in (mock.patch.object(toolchains.passed_phases, "digest_of_tree", lambda _: self.tree),
                      contextlib.redirect_stdout(io.StringIO())):
            patch.__enter__()
            self.addCleanup(patch.__exit__, None, None, None)

    def run_row(self, steps=(), status=0, meanwhile=lambda: None, **more):
        """Runs a row whose inner command leaves `steps`. Returns its outcome, and whether that command ran."""
        ran = []

        def run(*_, **__):
            ran.append(True)
            meanwhile()
            record = toolchains.builds_directory() / self.ROW.name / \
                ("hello.json" if more.get("hello") else "outcome.json")
            record.write_text(json.dumps({"steps": [
                {"name": name, "passed": not failures, "failures": failures, "skips": []}
                for name, failures in steps]}))
            return mock.Mock(returncode=status)

        options = mock.Mock(**{"changed": False, "resume": False, "hello": False, "protobuf": None, "jobs": None, **more})
        with (mock.patch.object(toolchain_root, "enter", lambda *_: []),
              mock.patch.object(toolchains.subprocess, "run", run)):
            return toolchains.run_row(self.ROW, self.root, options), bool(ran)

    def test_a_row_is_left_out_while_its_last_green_run_was_of_the_same_files(self):
        self.assertEqual(1, self.run_row([("build", [])])[0].passed)
        self.assertFalse(self.run_row(changed=True)[1])
        self.assertTrue(self.run_row([("build", [])])[1])
        for change in ("tree", "identity"):
            setattr(self, change, "another")
            self.assertTrue(self.run_row([("build", ["it failed"])], 1, changed=True)[1])
        self.assertTrue(self.run_row([("build", [])], changed=True)[1])
        self.assertFalse(self.run_row(changed=True)[1])
        self.assertTrue(self.run_row(protobuf=self.path, changed=True)[1])

    def test_files_that_change_meanwhile_are_not_remembered(self):
        self.run_row([("build", [])], meanwhile=lambda: setattr(self, "tree", "later"))
        self.tree = "files"
        self.assertTrue(self.run_row([("build", [])], changed=True)[1])

    def test_hello_alone_makes_no_row_green(self):
        self.assertEqual(1, self.run_row([("hello", [])], hello=True)[0].passed)
        self.assertTrue(self.run_row([("build", [])], changed=True)[1])

    def test_hello_makes_no_root(self):
        with (mock.patch.object(toolchain_root, "make", side_effect=AssertionError),
              mock.patch.object(toolchains.os, "geteuid", lambda: 0),
              mock.patch.object(sys, "argv", ["toolchains.py", "trixie-g++14-O2", "--hello"])):
            self.assertEqual(0, toolchains.main())

    def test_outside_of_git_nothing_is_remembered(self):
        self.tree = None
        self.run_row([("build", [])])
        self.assertTrue(self.run_row([("build", [])], changed=True)[1])

    def test_a_row_that_ends_without_a_record_has_failed(self):
        self.assertEqual(["ended with status 137 before its end; see above"], self.run_row([], 137)[0].failures)

    def test_builds_of_another_root_are_removed(self):
        directory = self.path / "row"
        toolchains.keep_only_builds_of(self.root, directory)
        (directory / "object").touch()
        toolchains.keep_only_builds_of(self.root, directory)
        self.assertTrue((directory / "object").exists())
        self.identity = "another root"
        toolchains.keep_only_builds_of(self.root, directory)
        self.assertFalse((directory / "object").exists())

    def test_a_second_run_in_the_same_tree_is_refused(self):
        with (mock.patch.object(os, "geteuid", lambda: 0), mock.patch.object(sys, "argv", ["toolchains.py"]),
              lock.locked(toolchains.builds_directory()), self.assertRaisesRegex(lock.Held, "another run works in")):
            toolchains.main()

    def test_only_rows_that_gate_fail_a_run(self):
        failed = bazel_events.Outcome(failures=["ctest: A.B"])
        for name, status in (("trixie-g++14-O2", 1), ("sid-g++-O2", 0)):
            options = mock.Mock(rows=toolchain_rows.select([name]))
            with (mock.patch.object(toolchain_root, "make", lambda _: self.root),
                  mock.patch.object(toolchains, "run_row", lambda *_: failed)):
                self.assertEqual(status, toolchains.run(options))


class StepsTest(WithCache):
    def record(self, sources="files", resume=True):
        return toolchain_row.Record(self.path / "outcome.json", sources, resume)

    def test_a_step_that_passed_with_the_same_files_is_known_and_one_that_failed_is_not(self):
        record = self.record()
        record.add({"name": "build", "failures": []})
        record.add({"name": "ctest", "failures": ["A.B"]})
        self.assertTrue(self.record().passed_before("build"))
        self.assertIsNone(self.record().passed_before("ctest"))
        self.assertIsNone(self.record(sources="others").passed_before("build"))
        self.assertIsNone(self.record(resume=False).passed_before("build"))

    def test_a_run_that_is_interrupted_again_keeps_what_is_known_of_later_steps(self):
        first = self.record()
        for name in ("build", "ctest", "install"):
            first.add({"name": name, "failures": []})
        self.record().add({"name": "build", "failures": []})
        self.assertTrue(self.record().passed_before("install"))

    def test_steps_of_an_earlier_run_that_this_one_did_not_reach_are_not_counted(self):
        steps = [{"name": "build", "passed": 1, "failures": [], "skips": []},
                 {"name": "ctest", "passed": 9, "failures": [], "skips": [], "before": True}]
        self.assertEqual(1, toolchains.outcome_of({"steps": steps}, 0).passed)

    def test_a_command_that_fails_or_takes_too_long_is_told_with_its_log(self):
        logs = toolchain_row.Logs(self.path, "/outside")
        logs.begin("a step")
        self.assertEqual("said\n", logs.run("echo", "said"))
        with self.assertRaisesRegex(toolchain_row.StepFailed, r"(?s)failed \(3\).*the whole log: /outside/a-step.log"):
            logs.run("sh", "-c", "exit 3")
        with self.assertRaisesRegex(toolchain_row.StepFailed, "took longer than 0.1 s"):
            logs.run("tail", "-f", "/dev/null", timeout=0.1)

    def test_instructions_are_compared_with_those_of_the_reference_if_there_are_any(self):
        figures = self.path / "instructions.json"
        self.assertIn("no figure of trixie-clang19-O2 yet", toolchain_row.compared({"client_1": 110}, figures))
        figures.write_text('{"client_1": 100}')
        self.assertEqual("a call takes client_1 110 (1.10)", toolchain_row.compared({"client_1": 110}, figures))

    def test_what_ccache_had_is_counted(self):
        self.assertEqual("ccache had 2 of 3 objects", toolchain_row.ccache_had(
            "# a.cc\ndirect_cache_hit\n# b.cc\ndirect_cache_miss\npreprocessed_cache_hit\n# c.cc\ncache_miss\n"))
        self.assertEqual("everything was built", toolchain_row.ccache_had(""))


if __name__ == "__main__":
    case_report.main()
