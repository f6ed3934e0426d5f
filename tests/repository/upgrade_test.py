#!/usr/bin/env python3
"""The upgrade phase says what it lacks, makes the previous version's tree, and counts each case."""

import os
import pathlib
import select
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

sys.path[:0] = [os.path.abspath("tests/repository"), os.path.abspath("tools/dev")]
import abi
import case_report
import lock
import tree
import upgrade_phase


def git(top, *arguments):
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", "-C", str(top), *who, *arguments], stdout=subprocess.PIPE, text=True,
                          check=True).stdout.strip()


class RepositoryTest(unittest.TestCase):
    def test_one_commit_is_named_in_full(self):
        self.assertRegex(tree.text(upgrade_phase.PREVIOUS), r"\A[0-9a-f]{40}\n\Z")

    def test_what_is_copied_and_built_is_there(self):
        for name in upgrade_phase.OVERLAY:
            self.assertTrue(tree.has(name), name)
        for target in upgrade_phase.TARGETS:
            package, name = target[2:].split(":")
            self.assertIn(f'name = "{name}"', tree.text(f"{package}/BUILD"))


class CloneTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.top = pathlib.Path(directory.name).resolve() / "top"
        self.path = pathlib.Path(directory.name).resolve() / "cache" / "previous"
        git(".", "init", "-q", str(self.top))
        self.write("a.cc", "int old;\n")
        self.old = self.commit()
        self.write("a.cc", "int now;\n")
        self.write(upgrade_phase.PREVIOUS, f"{self.old}\n")
        for name in upgrade_phase.OVERLAY:
            self.write(name, f"today's {name}\n")
        self.commit()

    def write(self, name, text):
        (self.top / name).parent.mkdir(parents=True, exist_ok=True)
        (self.top / name).write_text(text)

    def commit(self):
        git(self.top, "add", "-A")
        git(self.top, "commit", "-q", "-m", "a")
        return git(self.top, "rev-parse", "HEAD")

    def refusal(self):
        outcome = upgrade_phase.run(self.top, self.path)
        self.assertEqual((0, 1), (outcome.passed, len(outcome.failures)))
        return outcome.failures[0]

    def update(self, commit):
        upgrade_phase.update_worktree(self.top, self.path, commit)

    def test_a_commit_that_the_clone_lacks_is_named_with_what_to_fetch(self):
        self.write(upgrade_phase.PREVIOUS, "0123456789" * 4 + "\n")
        self.assertIn("names the commit " + "0123456789" * 4, self.refusal())
        self.assertIn("git fetch --unshallow", self.refusal())

    def test_another_word_than_a_commit_in_full_is_refused(self):
        self.write(upgrade_phase.PREVIOUS, "main\n")
        self.assertIn("says 'main'", self.refusal())

    def test_a_second_phase_of_the_same_tree_is_refused(self):
        with lock.locked(self.path):
            self.assertIn("another run works in", self.refusal())

    def test_the_tree_has_the_old_sources_and_todays_client(self):
        self.update(self.old)
        self.assertEqual("int old;\n", (self.path / "a.cc").read_text())
        for name in upgrade_phase.OVERLAY:
            self.assertEqual(f"today's {name}\n", (self.path / name).read_text())

    def test_a_tree_that_is_there_follows_the_commit(self):
        self.update(self.old)
        (self.path / "a.cc").write_text("int other;\n")
        (self.path / "left_over.cc").write_text("")
        self.update(git(self.top, "rev-parse", "HEAD"))
        self.assertEqual("int now;\n", (self.path / "a.cc").read_text())
        self.assertFalse((self.path / "left_over.cc").exists())
        self.update(self.old)
        self.assertEqual("int old;\n", (self.path / "a.cc").read_text())

    def test_what_is_no_tree_of_this_clone_is_made_anew(self):
        self.path.mkdir(parents=True)
        (self.path / "a.cc").write_text("int other;\n")
        self.update(self.old)
        self.assertEqual("int old;\n", (self.path / "a.cc").read_text())


class CasesTest(unittest.TestCase):
    def test_each_version_is_client_and_server_on_each_device(self):
        old, new = upgrade_phase.Programs("old", "a"), upgrade_phase.Programs("new", "b")
        names = [name for name, _, _ in upgrade_phase.cases(old, new)]
        self.assertEqual(len(names), len(set(names)))
        for device in upgrade_phase.DEVICES:
            for client, server in (("old", "new"), ("new", "old")):
                for what in ("streams", "kv"):
                    self.assertIn(f"{client} client, {server} server, {what}, {device}", names)
                self.assertIn(f"{client} client, servers restarted from old to new and back, {device}", names)

    def outcome(self, script):
        """Of one case: a program that prints a line and ends, as its script says."""
        def case(processes, _):
            process = processes.start(["bash", "-c", script])
            processes.line(process, "listening on ")
            processes.end(process)
        return upgrade_phase.run_cases([("case", "soft", case)])

    def test_a_case_counts_by_its_lines_and_its_status(self):
        good = self.outcome("echo listening on a")
        self.assertEqual((1, []), (good.passed, good.failures))
        self.assertEqual(["case: bash said 'no' instead of saying 'listening on '"], self.outcome("echo no").failures)
        self.assertEqual(["case: bash ended instead of saying 'listening on '"], self.outcome("exit 0").failures)
        self.assertEqual(["case: bash ended with status 3\nlost"],
                         self.outcome("echo listening on a; echo lost; exit 3").failures)

    def test_no_process_outlives_its_case(self):
        with upgrade_phase.Processes("soft") as processes:
            process = processes.start(["cat"])
            self.assertIsNone(process.poll())
        self.assertEqual(-9, process.returncode)

    def test_a_server_that_a_demo_has_started_does_not_outlive_the_case(self):
        with upgrade_phase.Processes("soft") as processes:
            demo = processes.start(["bash", "-c", "tail -f /dev/null >&2 & echo server $!"])
            server = os.pidfd_open(int(processes.line(demo, "server ")))
            self.addCleanup(os.close, server)
            processes.end(demo)
        ended, _, _ = select.select([server], [], [], 60)
        self.assertEqual([server], ended)

    def test_a_program_that_is_not_there_fails_its_case_alone(self):
        def missing(processes, _):
            processes.start(["/nonexistent/server"])
        def late(*_):
            raise subprocess.TimeoutExpired("server", 1)
        listed = [("missing", "soft", missing), ("late", "soft", late), ("good", "soft", lambda *_: None)]
        outcome = upgrade_phase.run_cases(listed)
        self.assertEqual((1, 2), (outcome.passed, len(outcome.failures)))
        self.assertIn("missing: [Errno 2]", outcome.failures[0])


class AbiTest(unittest.TestCase):
    """With programs in the place of cmake and abidiff: they write down how they are called."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = pathlib.Path(directory.name).resolve()
        self.calls = self.path / "calls"
        self.fake("cmake")
        self.fake("abidiff")
        patched = unittest.mock.patch.dict(os.environ, PATH=f"{self.path}:{os.environ['PATH']}")
        patched.start()
        self.addCleanup(patched.stop)
        self.old, self.new = (self.tree(version, 3) for version in ("before", "now"))

    def fake(self, name, script=""):
        program = self.path / name
        program.write_text(f"#!/usr/bin/env bash\necho {name} \"$@\" >>{self.calls}\n{script}\n")
        program.chmod(0o755)

    def tree(self, name, number):
        top = self.path / name
        top.mkdir(exist_ok=True)
        (top / "CMakeLists.txt").write_text(f"project(Verbena)\nset(VERBENA_SOVERSION {number})\n")
        return top

    def outcome(self):
        return upgrade_phase.run_abi(self.old, self.new, self.path / "abi")

    def failure(self):
        outcome = self.outcome()
        self.assertEqual((0, 1, []), (outcome.passed, len(outcome.failures), outcome.skips))
        return outcome.failures[0]

    def called(self, program):
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line for line in lines if line.startswith(program)]

    def test_the_soname_of_this_tree_is_read(self):
        self.assertGreaterEqual(abi.soversion(tree.top()), 0)

    def test_both_versions_are_built_and_their_installed_headers_compared(self):
        self.assertEqual((1, []), (self.outcome().passed, self.outcome().failures))
        for version, top in (("old", self.old), ("new", self.new)):
            build = self.path / "abi" / version / "build"
            self.assertTrue(any(f"-S {top} -B {build} " in call for call in self.called("cmake")))
            self.assertIn(f"cmake --build {build}", self.called("cmake"))
        headers = [f"--headers-dir{n} {self.path}/abi/{version}/installed/include"
                   for n, version in ((1, "old"), (2, "new"))]
        libraries = [f"{self.path}/abi/{version}/installed/lib/libverbena.so" for version in ("old", "new")]
        for part in (" ".join(headers), " ".join(libraries), "--no-added-syms"):
            self.assertIn(part, self.called("abidiff")[0])

    def test_a_change_fails_unless_the_soname_was_raised(self):
        for status in (4, 12):
            self.fake("abidiff", f"echo type size changed from 64 to 128; exit {status}")
            said = self.failure()
            self.assertIn("type size changed from 64 to 128", said)
            self.assertIn("raise VERBENA_SOVERSION in CMakeLists.txt", said)
        self.tree("now", 4)
        self.assertEqual((1, []), (self.outcome().passed, self.outcome().failures))

    def test_a_soname_never_sinks(self):
        self.tree("now", 2)
        self.assertIn("VERBENA_SOVERSION in CMakeLists.txt is 2, but was 3", self.failure())

    def test_a_version_without_cmake_is_skipped_before_anything_is_built(self):
        (self.old / "CMakeLists.txt").unlink()
        outcome = self.outcome()
        self.assertEqual((0, [], 1), (outcome.passed, outcome.failures, len(outcome.skips)))
        self.assertIn("the old version has no CMakeLists.txt", outcome.skips[0])
        self.assertEqual([], self.called(""))

    def test_libraries_that_cannot_be_compared_fail(self):
        self.fake("abidiff", "echo could not read; exit 1")
        self.assertRegex(self.failure(), "(?s)abidiff .* ended with status 1\ncould not read")
        self.fake("cmake", "echo error: no type; exit 2")
        self.assertRegex(self.failure(), "(?s)cmake .* ended with status 2\nerror: no type")

    def test_a_long_list_of_changes_is_cut(self):
        self.fake("abidiff", "seq 1 200; exit 4")
        self.assertTrue(self.failure().endswith("\n80\n(120 more lines)"))


if __name__ == "__main__":
    case_report.main()
