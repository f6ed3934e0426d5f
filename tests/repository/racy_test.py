#!/usr/bin/env python3
"""./dev test --racy runs tests that may race; its load keeps cores busy and always ends."""

import argparse
import os
import subprocess
import sys
import unittest
from unittest import mock

sys.path[:0] = [os.path.abspath("tests/repository"), os.path.abspath("tools/dev")]
import bazel_events
import case_report
import changes
import racy

# A process that starts a load of one, says its id, and waits to be killed.
_LOADER = ("import sys\nsys.path[:0] = ['tools/dev']\nimport racy\n"
           "with racy.load(1) as busy:\n  print(busy[0].pid, flush=True)\n  sys.stdin.read()\n")


def runs(process_id):
    """Whether a process is there and no zombie."""
    try:
        with open(f"/proc/{process_id}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class LoadTest(unittest.TestCase):
    def test_there_is_one_process_for_each_core_until_the_end(self):
        with racy.load() as busy:
            self.assertEqual(len(os.sched_getaffinity(0)), len(busy))
            self.assertTrue(all(runs(process.pid) for process in busy))
        self.assertFalse(any(runs(process.pid) for process in busy))

    def test_the_load_ends_if_the_run_raises(self):
        with self.assertRaises(KeyboardInterrupt):
            with racy.load(1) as busy:
                raise KeyboardInterrupt
        self.assertFalse(runs(busy[0].pid))

    def test_the_load_ends_if_its_starter_is_killed(self):
        starter = subprocess.Popen([sys.executable, "-c", _LOADER], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True)
        process_id = int(starter.stdout.readline())
        self.assertTrue(runs(process_id))
        starter.kill()
        starter.wait()
        # The load keeps the pipe open for as long as it runs.
        self.assertEqual("", starter.stdout.read())
        starter.stdin.close()
        starter.stdout.close()


class RunTest(unittest.TestCase):
    def run_it(self, *arguments):
        """Runs the phase. Returns the flags and targets of building and of testing, and whether
        there was a load while it built and while it tested."""
        parser = argparse.ArgumentParser()
        racy.add_arguments(parser)
        parser.add_argument("targets", nargs="*")
        options = parser.parse_args(arguments)
        seen, loaded = [], []

        def busy():
            children = f"/proc/self/task/{os.getpid()}/children"
            with open(children, encoding="utf-8") as file:
                return bool(file.read().split())

        def build(command, arguments):
            self.assertEqual("build", command)
            seen.append(arguments)
            loaded.append(busy())
            return 0, []

        def test(flags, targets, _):
            seen.append(flags + targets)
            loaded.append(busy())
            return 0, bazel_events.Outcome(passed=3)

        with mock.patch.object(bazel_events, "run", build):
            self.assertEqual(3, racy.run(options, test).passed)
        return seen, loaded

    def test_tests_run_that_may_race_and_are_for_asan(self):
        seen, loaded = self.run_it()
        for arguments in seen:
            self.assertIn("--config=asan", arguments)
            self.assertIn("--test_tag_filters=-noasan,-guest,-long", arguments)
            targets = arguments[arguments.index("--") + 1:]
            self.assertIn("//tests/transport/coro:mailbox_test", targets)
            self.assertNotIn("//tests/transport/coro:event_test", targets)
        self.assertIn("--nocache_test_results", seen[1])
        self.assertEqual([False, False], loaded)

    def test_targets_narrow_it(self):
        seen, _ = self.run_it("//tests/transport/coro/...", "//tests/transport/executor:sleep_test")
        self.assertEqual({"//tests/transport/coro", "//tests/transport/executor"},
                         {label.split(":")[0] for label in seen[1][seen[1].index("--") + 1:]})
        self.assertIn("//tests/transport/executor:sleep_test", seen[1])

    def test_patterns_stand_for_what_bazel_takes_them_for(self):
        for pattern in ("//...", "//tests/...", "//tests/a/...", "//tests/a:all", "//tests/a:a_test"):
            self.assertTrue(racy.stands_for(pattern, "//tests/a:a_test"), pattern)
        self.assertTrue(racy.stands_for("//tests/a", "//tests/a:a"))
        for pattern in ("//tests/b/...", "//tests:all", "//tests/a:a", "//tests/a"):
            self.assertFalse(racy.stands_for(pattern, "//tests/a:a_test"), pattern)

    def test_a_target_that_cannot_race_is_refused(self):
        with self.assertRaisesRegex(ValueError, "no test of //tests/transport/coro:event_test has threads, processes or time"):
            racy.chosen(argparse.Namespace(targets=["//tests/transport/coro:event_test"], changed=False))

    def test_the_load_is_there_while_tests_run_and_not_while_they_are_built(self):
        self.assertEqual([False, True], self.run_it("--loaded")[1])


class ChosenTest(unittest.TestCase):
    def chosen(self, *targets, folders=None):
        options = argparse.Namespace(targets=list(targets), changed=folders is not None)
        with mock.patch.object(changes, "folders_with_statements", lambda: folders):
            return racy.chosen(options)

    def test_a_case_stands_for_the_tests_whose_sources_have_it(self):
        self.assertEqual((["//tests/transport/executor:sleep_test", "//tests/transport/executor:sleep_test_io_uring"],
                          ["ExecutorSleepTest.TheChoice*"]), self.chosen("ExecutorSleepTest.TheChoice*"))

    def test_a_case_has_its_parameters(self):
        targets, cases = self.chosen("Ways/PayloadTest.ARequestsPayloadArrivesWhole/strict")
        self.assertIn("//tests/rpc:payload_test", targets)
        self.assertEqual("Ways/PayloadTest.ARequestsPayloadArrivesWhole/strict", racy.test_filter(cases))
        self.assertEqual("PayloadTest.A:*/PayloadTest.A/*", racy.test_filter(["PayloadTest.A"]))

    def test_a_case_that_no_racy_test_has_is_refused(self):
        with self.assertRaisesRegex(ValueError, "has the case ExecutorSleepTest.Nowhere"):
            self.chosen("ExecutorSleepTest.Nowhere")

    def test_a_folder_with_other_statements_stands_for_its_tests(self):
        targets, cases = self.chosen(folders={"rpc/server", "tests/transport/soft", "rpc/nowhere"})
        self.assertEqual([], cases)
        self.assertEqual({"//tests/rpc/server", "//tests/transport/soft"}, {label.split(":")[0] for label in targets})
        with self.assertRaisesRegex(ValueError, "no folder with tests"):
            self.chosen(folders=set())

    def test_comments_space_and_includes_are_no_statements(self):
        self.assertEqual(changes.statements("int a;  // b\n"),
                         changes.statements('#include "c.h"\n\n// d\n  int  a;\n'))
        self.assertNotEqual(changes.statements("int a;"), changes.statements("int b;"))


if __name__ == "__main__":
    case_report.main()
