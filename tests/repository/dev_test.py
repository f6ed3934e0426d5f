#!/usr/bin/env python3
"""./dev counts each test case once, installs only what is missing, and refuses in words."""

import argparse
import contextlib
import io
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest
from unittest import mock
import xml.etree.ElementTree as ElementTree

sys.path[:0] = [os.path.abspath("tests/repository"), os.path.abspath("tools/dev")]
import arm64
import bazel_events
import bench
import case_report
import ctest_cases
import fuzz
import guest_phase
import includes
import left_out
import lint
import lock
import passed_phases
import test as whole_run
import test_log
import tree

sys.path.insert(0, str(tree.top() / "benchmarks/rpc"))
import instructions


def summary(label, status):
    return {"id": {"testSummary": {"label": label}}, "testSummary": {"overallStatus": status}}


class LogExcerptTest(unittest.TestCase):
    def test_cases_that_failed_are_shown_and_others_are_not(self):
        shown = test_log.excerpt(
            "[ RUN      ] S.Good\nfine\n[       OK ] S.Good (1 ms)\n"
            "[ RUN      ] S.Bad\na.cc:3: Failure\n[  FAILED  ] S.Bad (1 ms)\n"
            "[ RUN      ] S.Skip\n[  SKIPPED ] S.Skip (0 ms)\n")
        self.assertEqual("[ RUN      ] S.Bad\na.cc:3: Failure\n[  FAILED  ] S.Bad (1 ms)", shown)

    def test_a_case_that_did_not_end_is_shown_with_its_last_lines(self):
        steps = "".join(f"step {i}\n" for i in range(200))
        shown = test_log.excerpt("[ RUN      ] S.Crash\n" + steps).splitlines()
        self.assertEqual(["[ RUN      ] S.Crash", "step 199"], [shown[0], shown[-1]])
        self.assertLess(len(shown), 100)

    def test_without_a_failed_case_the_end_of_the_log_is_shown(self):
        log = "[ RUN      ] S.A\n[       OK ] S.A (1 ms)\nLeakSanitizer: detected memory leaks\n"
        self.assertIn("LeakSanitizer", test_log.excerpt(log))

    def test_a_long_case_is_shown_from_both_ends(self):
        lines = [f"line {i}" for i in range(500)]
        shown = test_log.excerpt("\n".join(["[ RUN      ] S.Bad", *lines, "[  FAILED  ] S.Bad"]))
        self.assertIn("line 0", shown)
        self.assertIn("line 499", shown)
        self.assertNotIn("line 250\n", shown)


class CountTest(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)

    def result(self, label, xml, attempt=1, shard=0, log=None):
        outputs = []
        for name, text in (("test.xml", xml), ("test.log", log)):
            if text is not None:
                path = pathlib.Path(self.directory.name) / f"{label.strip('/:')}-{attempt}-{shard}-{name}"
                path.write_text(text)
                outputs.append({"name": name, "uri": f"file://{path}"})
        return {"id": {"testResult": {"label": label, "attempt": attempt, "shard": shard}},
                "testResult": {"testActionOutput": outputs}}

    def count(self, *events):
        return bazel_events.count_cases(events)

    def test_each_case_counts_by_itself(self):
        outcome = self.count(summary("//:a", "FAILED"), self.result("//:a", """
            <testsuites><testsuite name="S">
              <testcase name="Good" status="run" classname="S"/>
              <testcase name="Bad" status="run" classname="S"><failure message="x"/></testcase>
              <testcase name="Off" status="notrun" classname="S"/>
              <testcase name="Skip" status="run" result="skipped" classname="S">
                <skipped message="a.cc:3&#x0A;no device here&#x0A;"/></testcase>
            </testsuite></testsuites>"""))
        self.assertEqual(1, outcome.passed)
        self.assertEqual(["//:a S.Bad"], outcome.failures)
        self.assertEqual(["//:a S.Skip: no device here"], outcome.skips)

    def test_a_leak_found_at_exit_is_a_failure_though_every_case_passed(self):
        outcome = self.count(summary("//:a", "FAILED"), self.result(
            "//:a", '<testsuites><testcase name="Good" classname="S"/></testsuites>'))
        self.assertEqual((1, ["//:a: failed"]), (outcome.passed, outcome.failures))

    def test_a_time_out_without_a_report_is_one_failure(self):
        outcome = self.count(summary("//:a", "TIMEOUT"), self.result("//:a", "<testsuites><tests"))
        self.assertEqual((0, ["//:a: timeout"]), (outcome.passed, outcome.failures))

    def test_a_program_that_dies_fails_each_case_that_it_did_not_reach(self):
        log = ("[==========] Running 5 tests from 1 test suite.\n"
               "[ RUN      ] S.A\n[       OK ] S.A (1 ms)\n"
               "[ RUN      ] S.B\n[  SKIPPED ] S.B (0 ms)\n"
               "[ RUN      ] S.C\nboom\n")
        event = self.result("//:a", '<testsuites><testcase name="a"><error/></testcase></testsuites>', log=log)
        outcome = self.count(summary("//:a", "FAILED"), event)
        self.assertEqual(1, outcome.passed)
        self.assertEqual(["//:a S.B"], outcome.skips)
        self.assertEqual(["//:a S.C: the program died", "//:a: case 4 of 5 not reached",
                          "//:a: case 5 of 5 not reached"], outcome.failures)

    def test_a_childs_end_is_not_the_end_of_its_parent(self):
        log = ("[==========] Running 2 tests from 1 test suite.\n"
               "[ RUN      ] S.A\n[==========] 1 test from 1 test suite ran. (1 ms total)\n")
        event = self.result("//:a", '<testsuites><testcase name="a"/></testsuites>', log=log)
        self.assertEqual(["//:a S.A: the program died", "//:a: case 2 of 2 not reached"],
                         self.count(summary("//:a", "PASSED"), event).failures)

    def test_a_target_that_does_not_build_is_one_failure(self):
        outcome = self.count(
            {"id": {"targetCompleted": {"label": "//:a"}}, "completed": {}},
            {"id": {"targetCompleted": {"label": "//:b"}}, "completed": {"success": True}},
            summary("//:a", "FAILED_TO_BUILD"))
        self.assertEqual((0, ["//:a: does not build"]), (outcome.passed, outcome.failures))

    def test_a_target_that_cannot_be_analysed_is_one_failure(self):
        outcome = self.count({"id": {"targetConfigured": {"label": "//:a"}},
                              "aborted": {"reason": "ANALYSIS_FAILURE"}})
        self.assertEqual(["//:a: does not build"], outcome.failures)

    def test_shards_add_up_and_only_the_last_attempt_counts(self):
        good = '<testsuites><testcase name="Good" classname="S"/></testsuites>'
        bad = '<testsuites><testcase name="Good" classname="S"><error/></testcase></testsuites>'
        outcome = self.count(
            summary("//:a", "FLAKY"), self.result("//:a", bad, attempt=1, shard=1),
            self.result("//:a", good, attempt=2, shard=1), self.result("//:a", good, shard=2))
        self.assertEqual((2, []), (outcome.passed, outcome.failures))

    def test_a_passing_script_counts_as_one_case(self):
        outcome = self.count(summary("//:a", "PASSED"))
        self.assertEqual((1, []), (outcome.passed, outcome.failures))

    def test_what_a_case_leaves_out_counts_as_skipped_though_it_passes(self):
        log = ("[==========] Running 1 test from 1 test suite.\nleft out: server pid, client user: refused\n"
               "[==========] 1 test from 1 test suite ran. (1 ms total)\n")
        event = self.result("//:a", '<testsuites><testcase name="Pairs" classname="S"/></testsuites>', log=log)
        outcome = self.count(summary("//:a", "PASSED"), event)
        self.assertEqual((1, ["//:a: server pid, client user: refused"]), (outcome.passed, outcome.skips))

    def test_a_script_that_says_that_it_is_skipped_counts_as_skipped(self):
        log = "skipped: no etcd\n"
        event = self.result("//:a", '<testsuites><testcase name="a"/></testsuites>', log=log)
        outcome = self.count(summary("//:a", "PASSED"), event)
        self.assertEqual((0, ["//:a: no etcd"]), (outcome.passed, outcome.skips))

    def test_a_filter_that_matches_nothing_counts_nothing(self):
        outcome = self.count(summary("//:a", "PASSED"), self.result("//:a", "<testsuites/>"))
        self.assertEqual((0, []), (outcome.passed, outcome.failures))


class WholeRunTest(unittest.TestCase):
    def filters(self, **options):
        choice = argparse.Namespace(**{"short": False, "all": False, **options})
        return {name: whole_run.tag_filter(configuration, choice)
                for name, configuration in whole_run.CONFIGURATIONS.items()}

    def test_a_short_run_has_each_test_in_asan_or_in_plain(self):
        filters = self.filters(short=True)
        self.assertEqual("noasan,-guest,-long", filters["plain"])
        self.assertEqual("-noasan,-guest,-long", filters["asan"])

    def test_a_phase_that_is_named_has_every_test(self):
        self.assertEqual("-guest,-long", self.filters()["plain"])
        self.assertEqual("-notsan,-guest,-long", self.filters()["tsan"])

    def test_the_tcp_phase_runs_what_other_phases_have_built(self):
        def flags(**options):
            return whole_run.tcp_flags(argparse.Namespace(**{"short": False, "all": False, **options}))
        self.assertIn("--config=asan", flags())
        self.assertIn("--test_tag_filters=-notcp,-noasan,-guest,-long", flags())
        self.assertIn("--test_env=VERBENA_DEVICE=soft:tcp", flags())
        self.assertIn("--test_tag_filters=-notcp,-noasan,-guest", flags(all=True))

    def test_all_runs_long_tests_too(self):
        self.assertEqual("-guest", self.filters(all=True)["plain"])

    def run_tests(self, on_disk, statuses):
        """The status of a run, and its runs of Bazel: whether tests write into memory, their filter and targets."""
        ran = []

        def run(_, words, in_memory):
            ran.append((in_memory, words[0], words[words.index("--") + 1:]))
            return statuses[len(ran) - 1], []
        options = argparse.Namespace(filter=None, runs=1)
        with (mock.patch.object(guest_phase, "tests_with", lambda *_: on_disk),
              mock.patch.object(bazel_events, "run", run)):
            return whole_run.run_tests(["--test_tag_filters=-guest"], ["--", "//..."], options)[0], ran

    def test_tests_write_into_memory_unless_they_need_a_disk(self):
        disk = argparse.Namespace(label="//:disk")
        first = (True, "--test_tag_filters=-guest,-on_disk", ["//..."])
        second = (False, "--test_tag_filters=-guest", ["//:disk"])
        for statuses, status in (((0, 0), 0), ((0, 4), 0), ((4, 3), 3), ((3, 0), 3), ((4, 4), 4)):
            self.assertEqual((status, [first, second]), self.run_tests([disk], statuses))
        self.assertEqual((0, [(True, "--test_tag_filters=-guest", ["//..."])]), self.run_tests([], (0,)))
        self.assertEqual((0, [(False, "--test_tag_filters=-guest", ["//..."])]), self.run_tests(None, (0,)))
        self.assertEqual((1, [first]), self.run_tests([disk], (1,)))

    def test_each_profile_runs_by_itself_and_its_failures_name_it(self):
        def run(command, arguments, in_memory):
            self.assertTrue(in_memory)
            self.assertEqual("test", command)
            self.assertIn("--test_tag_filters=-noprofile,-guest,-long", arguments)
            path = [flag.partition("VERBENA_SOFT_PROFILE=")[2] for flag in arguments
                    if flag.startswith("--test_env=VERBENA_SOFT_PROFILE=")]
            ran.append(pathlib.Path(path[0]).name)
            return 3, [summary("//:a", "FAILED")]
        ran = []
        choice = argparse.Namespace(targets=[], filter=None)
        with mock.patch.object(bazel_events, "run", run):
            outcome = whole_run.run_profiles_phase(choice)
        names = ["bnxt", "erdma", "hns", "irdma", "mlx5", "tiny", "x722"]
        self.assertEqual([name + ".profile" for name in names], ran)
        self.assertEqual([name + ": //:a: failed" for name in names], outcome.failures)

    def test_a_phase_says_what_building_and_what_running_took(self):
        self.assertEqual("tsan        300 s (building 200 s, running 100 s)",
                         whole_run.phase_line("tsan", 300, 200, whole=True))
        self.assertEqual("consumer   1000 s, over its budget of 480 s",
                         whole_run.phase_line("consumer", 1000, 0, whole=False))

    def test_a_phase_of_a_whole_run_has_a_budget_of_its_own_and_all_of_them_last_two_hours_at_most(self):
        self.assertEqual("", whole_run.lateness("plain", 500, whole=True))
        self.assertIn("over its budget", whole_run.lateness("plain", 500, whole=False))
        phases = whole_run.phases_of(argparse.Namespace(racy=False, only=[], all=True, targets=[]))
        self.assertLessEqual(sum(whole_run.PHASES[phase] for phase in phases), 120)

    def run_late(self, *words):
        """The exit status and the last lines of a run in which a phase took a thousand seconds."""
        times = iter((0, 1000))
        with (mock.patch.object(sys, "argv", ["test", "--only", "consumer", *words]),
              mock.patch.object(whole_run, "run_phase", lambda *_: bazel_events.Outcome(passed=1)),
              mock.patch.object(whole_run.time, "monotonic", lambda: next(times)),
              mock.patch.object(passed_phases, "default_cache", lambda: None),
              contextlib.redirect_stdout(io.StringIO()) as said):
            return whole_run.main(), said.getvalue().splitlines()

    def test_a_phase_over_its_budget_fails_only_if_that_is_asked_for(self):
        status, lines = self.run_late()
        self.assertEqual((0, "1 passed, 0 failed"), (status, lines[-1]))
        self.assertIn("over its budget of 480 s", lines[-2])
        status, lines = self.run_late("--budgets")
        self.assertEqual((1, "1 passed, 1 failed"), (status, lines[-1]))
        self.assertIn("FAILED   consumer: 1000 s, over its budget of 480 s", lines)

    def run_with_skip(self, *words):
        outcome = bazel_events.Outcome(passed=1, skips=["//:a S.Known: why", "//:a S.New: why"])
        with (mock.patch.object(sys, "argv", ["test", *words]),
              mock.patch.object(whole_run, "phases_of", lambda _: ["asan"]),
              mock.patch.object(whole_run, "run_phase", lambda *_: outcome),
              mock.patch.object(left_out, "known", lambda: ["asan: //:a S.Known: *"]),
              mock.patch.object(passed_phases, "default_cache", lambda: None),
              contextlib.redirect_stdout(io.StringIO()) as said):
            return whole_run.main(), said.getvalue().splitlines()

    def test_what_is_left_out_and_not_in_the_list_is_printed_and_fails_a_whole_run(self):
        status, lines = self.run_with_skip()
        self.assertEqual((0, "1 passed, 0 failed"), (status, lines[-1]))
        self.assertIn("new skip asan: //:a S.New: why", lines)
        self.assertNotIn("new skip asan: //:a S.Known: why", lines)
        status, lines = self.run_with_skip("--all")
        self.assertEqual((1, "1 passed, 1 failed"), (status, lines[-1]))

    def test_a_whole_run_plants_a_few_of_the_changed_faults_and_lints_and_packages(self):
        def command(phase, status=0):
            done = subprocess.CompletedProcess([], status)
            with mock.patch.object(whole_run.subprocess, "run", return_value=done) as run:
                outcome = whole_run.run_phase(phase, argparse.Namespace())
            program, *words = run.call_args.args[0]
            return [program.name, *words], outcome
        self.assertEqual(["mutants.py", "--changed", "--sample", "40"], command("mutants")[0])
        self.assertEqual(["lint.py"], command("lint")[0])
        self.assertEqual(["deb.py", "--test"], command("deb")[0])
        self.assertEqual(1, command("deb")[1].passed)
        self.assertEqual(["./dev deb --test: failed"], command("deb", status=1)[1].failures)

    def test_the_consumer_phase_tries_all_rows_of_cmake_in_a_whole_run_alone(self):
        def commands(whole):
            done = subprocess.CompletedProcess([], 0)
            with mock.patch.object(whole_run.subprocess, "run", return_value=done) as run:
                whole_run.run_consumer_phase(argparse.Namespace(all=whole))
            return [call.args[0][1:] for call in run.call_args_list]
        self.assertEqual([[], [], [], []], commands(whole=False))
        self.assertEqual([[], [], [], ["--all"]], commands(whole=True))

    def test_a_short_run_has_a_smoke_test_and_a_whole_one_all_guests(self):
        def phases(**options):
            return whole_run.phases_of(argparse.Namespace(
                **{"racy": False, "only": [], "all": False, "targets": [], **options}))
        self.assertEqual(["asan", "plain", "consumer", "smoke"], phases())
        self.assertEqual(set(whole_run.PHASES) - {"smoke"}, set(phases(all=True)))
        self.assertEqual(["asan", "plain", "smoke"], phases(targets=["//rpc"]))
        self.assertEqual(["guest"], phases(only=["guest"]))


class KernelTest(unittest.TestCase):
    """--kernel of ./dev test."""

    def options(self, *words):
        with mock.patch.object(sys, "argv", ["test", *words]):
            return whole_run.arguments()

    def refusal(self, *words):
        with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit) as end:
            self.options(*words)
        self.assertEqual(2, end.exception.code)
        return said.getvalue().splitlines()[-1]

    def test_guests_boot_bookworms_kernel_unless_another_is_named(self):
        self.assertEqual("bookworm", self.options().kernel)
        self.assertEqual("bookworm", self.options("--only", "asan").kernel)
        self.assertEqual("trixie", self.options("--all", "--only", "guest", "--kernel", "trixie").kernel)

    def test_an_unknown_kernel_is_refused_and_those_that_exist_are_named(self):
        self.assertIn("'sid' (choose from 'bookworm', 'trixie')", self.refusal("--kernel", "sid"))

    def test_a_kernel_without_a_guest_is_refused(self):
        for words in (["--only", "asan,plain"], ["--racy"]):
            self.assertIn("--kernel is for the phases guest and smoke", self.refusal(*words, "--kernel", "trixie"))

    def test_all_guests_boot_the_kernel_that_is_named(self):
        test = guest_phase.Test("//:a", [], 240)
        started, flags = [], []

        def run(words, **_):
            started.append([str(word) for word in words])
            return subprocess.CompletedProcess(words, guest_phase.CANNOT_RUN, "", "")

        def run_bazel(_, words):
            flags.extend(words)
            return 0, []
        options = self.options("--all", "--only", "guest", "--kernel", "trixie")
        with (contextlib.redirect_stdout(io.StringIO()), mock.patch.object(guest_phase, "missing", lambda kernel: ""),
              mock.patch.multiple(guest_phase, tests_with=lambda tag, _: [test, test], build=lambda tests, _: tests),
              mock.patch.object(guest_phase.subprocess, "run", run),
              mock.patch.object(bazel_events, "run", run_bazel)):
            guest_phase.run(options)
        self.assertEqual(len(guest_phase.BOOTS + guest_phase.MORE_BOOTS), len(started))
        for words in started:
            self.assertEqual("trixie", words[words.index("--kernel") + 1])
        self.assertIn("--test_env=VERBENA_GUEST_KERNEL=trixie", flags)


class PassedPhasesTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.top = pathlib.Path(directory.name) / "top"
        self.cache = pathlib.Path(directory.name) / "cache"
        self.top.mkdir()
        subprocess.run(["git", "init", "-q", self.top], check=True)
        (self.top / "a.cc").write_text("int a;")

    def passed(self, **options):
        said = argparse.Namespace(**{"all": True, "filter": None, "runs": 1, "targets": [],
                                     "only": [], "kernel": "bookworm", **options})
        return passed_phases.PassedPhases(said, self.top, self.cache)

    def test_a_phase_that_passed_on_the_same_files_is_known_with_its_count(self):
        self.passed().add("tsan", 17)
        self.assertTrue(self.passed().has("tsan"))
        self.assertEqual(17, self.passed().count("tsan"))
        self.assertFalse(self.passed().has("tcp"))

    def test_a_changed_or_a_new_file_makes_it_unknown(self):
        self.passed().add("tsan", 17)
        (self.top / "b.cc").write_text("int b;")
        self.assertFalse(self.passed().has("tsan"))
        (self.top / "b.cc").unlink()
        self.assertTrue(self.passed().has("tsan"))
        (self.top / "a.cc").write_text("int c;")
        self.assertFalse(self.passed().has("tsan"))

    def test_a_changed_document_counts_where_documents_are_read(self):
        for phase in ("tsan", "plain"):
            self.passed().add(phase, 17)
        (self.top / "README.md").write_text("new")
        self.assertTrue(self.passed().has("tsan"))
        self.assertFalse(self.passed().has("plain"))

    def test_other_options_are_another_run(self):
        self.passed().add("tsan", 17)
        self.assertFalse(self.passed(kernel="trixie").has("tsan"))
        self.assertFalse(self.passed(all=False).has("tsan"))
        self.assertFalse(self.passed(filter="A.*").has("tsan"))

    def test_of_a_whole_run_a_phase_may_have_run_alone(self):
        self.passed(only=["tsan"]).add("tsan", 17)
        self.assertTrue(self.passed().has("tsan"))
        self.passed(all=False, only=["tcp"]).add("tcp", 17)
        self.assertFalse(self.passed(all=False).has("tcp"), "without --all it takes fewer tests")

    def test_other_compilers_flags_and_settings_are_another_run(self):
        self.passed().add("tsan", 17)
        for name in ("CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", "CMAKE_GENERATOR", "VERBENA_DEVICE"):
            with mock.patch.dict(os.environ, {name: "another"}):
                self.assertFalse(self.passed().has("tsan"), name)
        with mock.patch.dict(os.environ, {"ACCESS": "another", "CCACHE_DIR": "another"}):
            self.assertTrue(self.passed().has("tsan"))

    def test_a_phase_whose_files_changed_while_it_ran_is_not_remembered(self):
        run = self.passed()
        (self.top / "a.cc").write_text("int changed;")
        run.add("tsan", 17)
        (self.top / "a.cc").write_text("int a;")
        self.assertFalse(self.passed().has("tsan"))

    def test_a_phase_in_which_nothing_ran_is_not_known(self):
        self.passed().add("smoke", 0)
        self.assertFalse(self.passed().has("smoke"))

    def test_a_file_that_was_cut_short_is_forgotten(self):
        self.passed().add("tsan", 17)
        for path in self.cache.iterdir():
            path.write_text("")
        self.assertFalse(self.passed().has("tsan"))

    def test_outside_of_git_nothing_is_remembered(self):
        with tempfile.TemporaryDirectory() as elsewhere:
            said = argparse.Namespace(all=True, filter=None, runs=1, targets=[], only=[],
                                      kernel="bookworm")
            outside = passed_phases.PassedPhases(said, elsewhere, self.cache)
            outside.add("tsan", 17)
            self.assertFalse(outside.has("tsan"))


class GuestPhaseTest(unittest.TestCase):
    RULE = """<rule class="cc_test" name="//tests/a:b_test"><string name="size" value="small"/>
                <list name="args"><string value="--device=rxe0"/></list></rule>"""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.results = pathlib.Path(directory.name)
        (self.results / "0.log").write_text("what it said\n")

    def outcome(self, status):
        written = []
        outcome = guest_phase.outcome_of("//:a", status, self.results, 0, written)
        self.assertEqual(status != 0, "what it said" in "".join(written))
        return outcome.passed, outcome.failures

    def test_a_test_runs_in_its_runfiles_with_its_arguments_and_a_limit(self):
        test = guest_phase.test_of(ElementTree.fromstring(self.RULE))
        command = test.command(pathlib.Path("/out"), pathlib.Path("/results"), 3)
        self.assertIn("cd /out/tests/a/b_test.runfiles/verbena\n", command)
        self.assertIn("timeout -k 5 240 /out/tests/a/b_test --device=rxe0 ", command)
        self.assertIn("GTEST_OUTPUT=xml:/results/3.xml", command)

    def test_the_guests_that_share_a_tag_run_each_of_its_tests_once(self):
        tests = list(range(7))
        sharing = [boot for boot in guest_phase.BOOTS if boot.tag == "rdma"]
        self.assertEqual(2, len(sharing))
        self.assertEqual(tests, sorted(test for boot in sharing
                                       for test in boot.tests_among(tests)))

    def test_a_script_is_one_case(self):
        self.assertEqual((1, []), self.outcome(0))
        self.assertEqual((0, ["//:a: exit status 3"]), self.outcome(3))

    def test_a_test_that_was_stopped_timed_out(self):
        self.assertEqual((0, ["//:a: timeout"]), self.outcome(124))

    def test_a_crash_after_passed_cases_is_a_failure(self):
        (self.results / "0.xml").write_text(
            '<testsuites><testcase name="Good" classname="S"/></testsuites>')
        self.assertEqual((1, ["//:a: exit status 139"]), self.outcome(139))
        self.assertEqual((1, []), self.outcome(0))


class InstallDepsTest(unittest.TestCase):
    """Runs install_deps.sh among fake programs that write down how they were called."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = pathlib.Path(directory.name)
        self.calls = self.path / "calls"
        for real in ("bash", "sed", "sort", "comm", "tr", "dirname", "env", "cat"):
            found = subprocess.run(["which", real], stdout=subprocess.PIPE, text=True, check=True)
            (self.path / real).symlink_to(found.stdout.strip())
        packages = [line.split() for line in
                    tree.text("tools/dev/packages.txt").splitlines() if line[:1] not in ("", "#")]
        self.packages = {name for group, name in packages if group in ("build", "lint")}
        self.user(0)

    def fake(self, name, body):
        program = self.path / name
        program.write_text(f"#!{self.path / 'bash'}\n{body}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def user(self, number):
        self.fake("id", f"echo {number}")

    def installed(self, names):
        lines = "".join(f"ii {name}\\n" for name in names)
        self.fake("dpkg-query", f"printf '{lines}'")

    def run_script(self, *arguments):
        return subprocess.run(
            [str(self.path / "bash"), str(tree.top() / "tools/dev/install_deps.sh"), *arguments],
            env={"PATH": str(self.path)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, check=False)

    def apt(self):
        self.fake("apt-get", f'echo "$*" >> {self.calls}')

    def called(self):
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def test_apt_is_not_asked_when_nothing_is_missing(self):
        self.installed(self.packages)
        self.apt()
        result = self.run_script()
        self.assertEqual((0, "Everything is installed.\n"), (result.returncode, result.stdout))
        self.assertEqual([], self.called())

    def test_only_what_is_missing_is_installed(self):
        self.installed(self.packages - {"clang-19", "libfmt-dev"})
        self.apt()
        self.assertEqual(0, self.run_script().returncode)
        self.assertEqual(
            ["update -q", "install -q -y --no-install-recommends clang-19 libfmt-dev"],
            [call.strip() for call in self.called()])

    def test_peers_are_installed_only_when_asked_for(self):
        self.installed(self.packages)
        self.apt()
        self.run_script("--peers")
        self.assertIn("libgrpc++-dev", self.called()[-1])

    def test_a_guests_packages_are_installed_only_when_asked_for(self):
        self.installed(self.packages)
        self.apt()
        self.run_script()
        self.assertEqual([], self.called())
        self.run_script("--vm")
        self.assertIn("qemu-system-x86", self.called()[-1])

    def test_programs_for_the_soft_device_are_installed_only_when_asked_for(self):
        self.installed(self.packages)
        self.apt()
        self.run_script()
        self.assertEqual([], self.called())
        self.run_script("--soft")
        self.assertIn("python3-pyverbs", self.called()[-1])

    def test_what_builds_for_arm64_is_installed_only_when_asked_for(self):
        self.installed(self.packages)
        self.apt()
        self.run_script()
        self.assertEqual([], self.called())
        self.run_script("--arm64")
        self.assertIn("qemu-user", self.called()[-1])

    def test_what_makes_roots_of_newer_debians_is_installed_only_when_asked_for(self):
        self.installed(self.packages)
        self.apt()
        self.run_script()
        self.assertEqual([], self.called())
        self.run_script("--toolchains")
        self.assertIn("mmdebstrap", self.called()[-1])

    def test_another_user_goes_through_sudo(self):
        self.installed(self.packages - {"clang-19"})
        self.user(1000)
        self.apt()
        self.fake("sudo", f'echo sudo >> {self.calls}; "$@"')
        self.assertEqual(0, self.run_script().returncode)
        self.assertEqual("sudo", self.called()[0])

    def test_without_root_and_sudo_the_command_to_run_is_named(self):
        self.installed(self.packages - {"clang-19"})
        self.user(1000)
        self.apt()
        result = self.run_script()
        self.assertNotEqual(0, result.returncode)
        self.assertIn("apt-get install --no-install-recommends clang-19", result.stdout)
        self.assertEqual([], self.called())

    def test_a_failing_apt_is_a_failure(self):
        self.installed(self.packages - {"clang-19"})
        self.fake("apt-get", "exit 100")
        self.assertNotEqual(0, self.run_script().returncode)


class Arm64Test(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = pathlib.Path(directory.name)

    def test_the_sysroot_has_what_is_linked_and_a_standard_library(self):
        packages = arm64.wanted_packages("# build libold-dev\nbuild libfmt-dev\nbuild clang-19\n"
                                         "build librocksdb-dev\npeers libucx-dev\n")
        self.assertEqual(["libfmt-dev", "libstdc++-12-dev"], packages)

    def sysroot(self, *packages):
        """The sysroot of `packages`, and whether it was made now."""
        def fill(sysroot, listed):
            self.assertEqual(list(packages), listed)
            sysroot.mkdir()
            made.append(sysroot)
        made = []
        with mock.patch.multiple(arm64, cache=lambda: self.path, wanted_packages=lambda _: list(packages),
                                 fill_sysroot=fill):
            return arm64.make_sysroot(), bool(made)

    def test_clones_with_the_same_packages_share_a_sysroot_and_others_have_their_own(self):
        first, made = self.sysroot("liba-dev")
        self.assertTrue(made)
        self.assertEqual((first, False), self.sysroot("liba-dev"))
        second, made = self.sysroot("liba-dev", "libb-dev")
        self.assertTrue(made)
        self.assertNotEqual(first, second)

    def test_the_toolchain_file_takes_the_sysroot_that_was_asked_for_last(self):
        self.assertIn("/verbena-arm64/sysroot-latest", tree.text(arm64.TOOLCHAIN))
        for packages in (["liba-dev"], ["libb-dev"], ["liba-dev"]):
            sysroot, _ = self.sysroot(*packages)
            self.assertEqual(sysroot.resolve(), (self.path / "sysroot-latest").resolve())

    def test_a_sysroot_that_was_left_incomplete_is_made_again(self):
        sysroot, _ = self.sysroot("liba-dev")
        (sysroot / "packages").unlink()
        sysroot.rmdir()
        self.assertEqual((sysroot, True), self.sysroot("liba-dev"))

    def test_absolute_links_lead_to_files_of_the_sysroot(self):
        (self.path / "lib").mkdir()
        (self.path / "usr" / "lib").mkdir(parents=True)
        (self.path / "lib" / "libz.so.1").write_text("arm64")
        link = self.path / "usr" / "lib" / "libz.so"
        link.symlink_to("/lib/libz.so.1")
        (self.path / "usr" / "lib" / "libz.so.1").symlink_to("libz.so")
        arm64.make_links_relative(self.path)
        self.assertEqual("../../lib/libz.so.1", os.readlink(link))
        self.assertEqual("arm64", (self.path / "usr" / "lib" / "libz.so.1").read_text())

    def test_apt_keeps_its_state_away_from_this_machines(self):
        text = arm64.apt_configuration(pathlib.Path("/own"))
        for name in ("Dir::State", "Dir::State::lists", "Dir::State::status", "Dir::Cache", "Dir::Log"):
            self.assertIn(f'\n{name} "/own', text)

    DEATH = "a.cc:3: Failure\nDeath test: F()\n[  DEATH   ] execv(/a, ...) in / failed: Exec format error\n"
    SKIP = "a.cc:3: Skipped\nno ring\nhere\n\n[  SKIPPED ] S.Skip (0 ms)\n"

    def outcome(self, *cases):
        """Of a report with a case of each (status, output)."""
        suite = ElementTree.Element("testsuite")
        for number, (status, output) in enumerate(cases):
            case = ElementTree.SubElement(suite, "testcase", name=f"S.{number}", status=status)
            if status == "fail":
                ElementTree.SubElement(case, "failure", message="")
            ElementTree.SubElement(case, "system-out").text = output
        report = self.path / "report.xml"
        ElementTree.ElementTree(suite).write(report)
        return ctest_cases.outcome_of(report, arm64.excuse)

    def test_each_case_of_ctest_counts_by_itself(self):
        outcome = self.outcome(("run", "x"), ("fail", "bad"), ("notrun", self.SKIP), ("notrun", "not built"))
        self.assertEqual(1, outcome.passed)
        self.assertEqual(["S.1: fail", "S.3: notrun"], outcome.failures)
        self.assertEqual(["S.2: no ring here"], outcome.skips)

    def test_a_case_that_fails_or_crashes_is_not_left_out_because_it_skips_itself(self):
        outcome = self.outcome(("fail", self.SKIP), ("notrun", "a.cc:2: Failure\n" + self.SKIP))
        self.assertEqual((["S.0: fail", "S.1: notrun"], []), (outcome.failures, outcome.skips))

    def test_only_a_case_without_other_failures_is_left_out_because_it_executes_itself(self):
        outcome = self.outcome(("fail", 2 * self.DEATH + "\n 1 FAILED TEST\n"))
        self.assertEqual(([], [f"S.0: {arm64.EXECUTES_ITSELF}"]), (outcome.failures, outcome.skips))
        outcome = self.outcome(("fail", self.DEATH + "a.cc:4: Failure\nExpected: 1\n\n 1 FAILED TEST\n"),
                               ("fail", "a.cc:4: Failure\nDeath test: F()\n" + self.DEATH + " 1 FAILED TEST\n"),
                               ("fail", self.DEATH))
        self.assertEqual((["S.0: fail", "S.1: fail", "S.2: fail"], []), (outcome.failures, outcome.skips))

    def test_a_case_whose_child_qemu_aborted_is_left_out_unless_it_fails_again(self):
        abort = "Bail out! ERROR:../../accel/tcg/cpu-exec.c:954:cpu_exec: assertion failed: (cpu == current_cpu)\n"
        failure = "a.cc:3: Failure\nExpected: true\n"
        outcome = self.outcome(("fail", abort + failure + "\n 1 FAILED TEST\n"))
        self.assertEqual(([], [f"S.0: {arm64.ABORTED_BY_QEMU}"]), (outcome.failures, outcome.skips))
        outcome = self.outcome(("fail", abort + 2 * failure + "\n 1 FAILED TEST\n"),
                               ("fail", failure + abort + "\n 1 FAILED TEST\n"), ("fail", abort + failure))
        self.assertEqual((["S.0: fail", "S.1: fail", "S.2: fail"], []), (outcome.failures, outcome.skips))

    def test_a_status_of_ctest_that_no_case_explains_is_a_failure(self):
        def failures(status, *cases):
            def run(command, **_):
                self.outcome(*cases)
                (self.path / "report.xml").rename(command[command.index("--output-junit") + 1])
                return subprocess.CompletedProcess(command, status)
            with mock.patch.object(ctest_cases.subprocess, "run", run):
                return ctest_cases.run_tests(self.path, None, 1, arm64.excuse).failures
        self.assertEqual([], failures(0, ("run", "")))
        self.assertEqual(["ctest: ended with status 8, but its report has no failure; see above"],
                         failures(8, ("run", "")))
        self.assertEqual(["S.0: fail"], failures(8, ("fail", "")))
        self.assertEqual([], failures(8, ("fail", self.DEATH + " 1 FAILED TEST\n")))

    def test_a_sysroot_that_cannot_be_made_is_one_failure(self):
        def fails():
            raise arm64.Failed("no sysroot")
        with mock.patch.multiple(arm64, cache=lambda: self.path, make_sysroot=fails):
            self.assertEqual(["arm64: no sysroot"], arm64.run().failures)

    def test_a_second_run_in_the_same_tree_is_refused(self):
        with mock.patch.multiple(arm64, cache=lambda: self.path, make_sysroot=self.fail):
            with lock.locked(arm64.build_directory()):
                self.assertIn("another run works in", arm64.run().failures[0])


COMMANDS = ("demo", "test", "bench", "arm64", "toolchains", "vm", "soft", "verbena", "doctor", "fmt", "lint", "mutants",
            "golden", "new-service", "compdb", "deb", "install-deps")


class CommandTest(unittest.TestCase):
    def test_an_unknown_command_gets_one_line_that_lists_the_known_ones(self):
        result = subprocess.run([str(tree.top() / "dev"), "tset"], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(2, result.returncode)
        self.assertEqual(1, len(result.stdout.splitlines()))
        for command in COMMANDS:
            self.assertIn(command, result.stdout)

    def test_every_command_has_help(self):
        for command in COMMANDS:
            result = subprocess.run([str(tree.top() / "dev"), command, "--help"],
                                    stdout=subprocess.PIPE, text=True, check=False)
            self.assertEqual(0, result.returncode, command)
            self.assertIn(f"usage: ./dev {command}", result.stdout)


class ContinuousIntegrationTest(unittest.TestCase):
    """.ci/run, beside a ./dev that answers as a test says."""

    def run_with(self, toolchains, test, lint="echo lint: clean"):
        with tempfile.TemporaryDirectory() as name:
            top = pathlib.Path(name)
            (top / ".ci").mkdir()
            shutil.copy(tree.top() / ".ci/run", top / ".ci/run")
            (top / "dev").write_text(f"#!/bin/sh\ncase $1 in toolchains) {toolchains} ;; test) {test} ;; lint) {lint} ;; "
                                     "esac\n",
                                     encoding="utf-8")
            (top / "dev").chmod(0o755)
            result = subprocess.run([str(top / ".ci/run")], stdout=subprocess.PIPE, text=True, check=False)
            return result.returncode, result.stdout.splitlines()[-1]

    def test_the_last_line_counts_what_all_commands_counted(self):
        self.assertEqual((0, "12 passed, 0 failed"),
                         self.run_with("echo 2 passed, 0 failed", "echo 10 passed, 0 failed"))

    def test_a_failure_of_gcc_alone_fails_the_run(self):
        self.assertEqual((1, "11 passed, 1 failed"),
                         self.run_with("echo 1 passed, 1 failed; exit 1", "echo 10 passed, 0 failed"))

    def test_a_machine_without_a_root_counts_the_tests_alone(self):
        self.assertEqual((0, "10 passed, 0 failed"), self.run_with("echo no root", "echo 10 passed, 0 failed"))

    def test_a_command_that_ends_without_a_count_is_one_failure(self):
        self.assertEqual((3, "10 passed, 1 failed"), self.run_with("exit 3", "echo 10 passed, 0 failed"))

    def test_what_does_not_build_fails_the_run(self):
        self.assertEqual((1, "10 passed, 1 failed"),
                         self.run_with("echo no root", "echo 10 passed, 0 failed", "echo lint: 2 found; exit 1"))


class BenchDeviceTest(unittest.TestCase):
    def refusal(self, *words):
        with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit):
            bench.arguments(words)
        return said.getvalue()

    def test_a_program_that_takes_a_device_gets_it(self):
        for name in ("rpc,payload", "interference_bench", "parameters", "rpc_instructions"):
            options = bench.arguments(["--only", name, "--device", "rdma:rxe0"])
            self.assertEqual(["--device", "rdma:rxe0"], options.rest)

    def test_a_device_for_a_program_that_takes_none_is_refused(self):
        self.assertIn("--device is not taken by links, kv;", self.refusal("--only", "rpc,links,kv", "--device", "soft"))

    def test_a_device_of_no_kind_is_refused_before_anything_is_built(self):
        self.assertIn("--device is 'softtcp', but must be soft, soft:tcp or rdma:NAME",
                      self.refusal("--only", "rpc", "--device", "softtcp"))

    def test_a_guest_has_the_devices_rxe_and_siw(self):
        self.assertEqual("rxe", bench.arguments(["--vm"]).device)
        options = bench.arguments(["--vm", "--only", "payload", "--device", "siw"])
        self.assertEqual(("siw", []), (options.device, options.rest))
        self.assertIn("must be one of: rxe, siw", self.refusal("--vm", "--device", "mlx5_0"))


class BenchMetricsTest(unittest.TestCase):
    """--metrics of ./dev bench."""

    def words(self, *words):
        """The words that each program gets, by its name."""
        options = bench.arguments(words)
        ran = {}

        def run(command, **_):
            ran[command[0]] = command[1:]
            return subprocess.CompletedProcess(command, 0)
        with (contextlib.redirect_stdout(io.StringIO()), mock.patch.object(bench.subprocess, "run", run),
              mock.patch.object(bench, "build_with_grpc", lambda program: [program]),
              mock.patch.object(bench, "command_of", lambda name, directory: [name])):
            self.assertEqual(0, bench.run(options, pathlib.Path("/bin"), options.rest, None))
        return ran

    def refusal(self, *words):
        with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit):
            bench.arguments(words)
        return said.getvalue()

    def test_calls_and_their_instructions_get_it_and_neither_others_nor_peers_do(self):
        self.assertEqual({"rpc": ["--metrics", "both"], "rpc_instructions": ["--metrics", "both"], "stream": [],
                          "grpc_stream_bench": []},
                         self.words("--only", "rpc,rpc_instructions,stream", "--metrics", "both"))

    def test_without_it_each_program_has_its_default(self):
        self.assertEqual({"rpc": [], "rpc_instructions": []}, self.words("--only", "rpc,rpc_instructions"))

    def test_programs_that_do_not_take_it_a_guest_and_a_comparison_refuse_it(self):
        self.assertIn("--metrics is not taken by links, kv; run --only rpc or rpc_instructions with it",
                      self.refusal("--only", "links,kv", "--metrics", "off"))
        for words in (["--vm"], ["--compare", "a", "b"]):
            self.assertIn("--metrics does not go with --vm or --compare", self.refusal(*words, "--metrics", "both"))
        self.assertIn("invalid choice: 'yes'", self.refusal("--metrics", "yes"))


class InstructionsTest(unittest.TestCase):
    def test_what_counting_adds_and_what_is_left_when_it_is_off_have_limits(self):
        before = instructions.WITHOUT_METRICS["client"]
        self.assertEqual({"counting_client_64": (40.0, 45), "uncounted_client_64": (3.0, 4)},
                         instructions.counting_choices("client", before + 43, before + 3))

    def test_a_budget_of_calls_that_are_not_counted_is_refused(self):
        with (mock.patch.object(sys, "argv", ["instructions", "--binary", "a", "--update", "--metrics", "off"]),
              contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit)):
            instructions.arguments()
        self.assertIn("leave out --metrics off", said.getvalue())


class FuzzCoverageTest(unittest.TestCase):
    SOURCE = "if (a) {\n  VERBENA_CHECK(b) << c;\n}\nVERBENA_RETURN_IF_ERROR(d);\n"

    def found(self):
        at = lambda line, taken, missed: [line, 1, line, 9, taken, missed, 0, 0, 4]
        exported = {"data": [{"files": [
            {"filename": "/a/x/parser.cc", "branches": [at(1, 5, 0)],
             "expansions": [{"source_region": [2, 3, 2, 9], "branches": [at(70, 0, 5)]},
                            {"source_region": [4, 1, 4, 9], "branches": [at(18, 0, 5)]}]},
            {"filename": "/a/x/other_parser.cc", "branches": [at(1, 0, 0)], "expansions": []}]}]}
        return fuzz.branches(exported, "x/parser.cc")

    def test_a_branch_has_two_ways_and_that_of_a_macro_lies_where_it_is_used(self):
        self.assertEqual([(1, 1, "true", 5), (1, 1, "false", 0), (2, 3, "true", 0), (2, 3, "false", 5),
                          (4, 1, "true", 0), (4, 1, "false", 5)], self.found())

    def test_checks_do_not_count_and_errors_that_are_passed_on_do(self):
        self.assertEqual({1, 4}, {line for line, _, _, _ in fuzz.without_checks(self.found(), self.SOURCE)})


class BenchPeersTest(unittest.TestCase):
    def test_calls_over_tcp_run_through_grpc_too(self):
        with mock.patch.object(bench, "build_with_grpc", lambda program: [program]):
            parts = dict(bench.commands_of("rpc", pathlib.Path("/bin"), "soft:tcp"))
            self.assertEqual(["rpc", "rpc by gRPC"], list(parts))
            self.assertEqual(["rpc"], list(dict(bench.commands_of("rpc", pathlib.Path("/bin"), "soft"))))

    def test_streams_run_through_grpc_too(self):
        with mock.patch.object(bench, "build_with_grpc", lambda program: [program]):
            parts = dict(bench.commands_of("stream", pathlib.Path("/bin")))
        self.assertEqual(["stream", "stream by gRPC"], list(parts))
        self.assertEqual(["grpc_stream_bench"], parts["stream by gRPC"])

    def test_a_floor_alone_is_run_without_peers(self):
        options = bench.arguments(["--only", "rpc,payload", "--device", "soft:tcp", "--floor-only"])
        with (contextlib.redirect_stdout(io.StringIO()),
              mock.patch.object(bench, "build_with_grpc", self.fail),
              mock.patch.object(bench, "command_of", lambda name, directory: ["true"])):
            self.assertEqual(0, bench.run(options, pathlib.Path("/bin"), options.rest, None))

    def test_a_peer_that_is_not_installed_is_left_out_by_name(self):
        options = bench.arguments(["--only", "stream"])
        with (contextlib.redirect_stdout(io.StringIO()) as said,
              mock.patch.object(bench, "build_with_grpc", lambda program: None),
              mock.patch.object(bench, "command_of", lambda name, directory: ["true"])):
            self.assertEqual(0, bench.run(options, pathlib.Path("/bin"), [], None))
        self.assertIn("stream by gRPC is left out: not installed (./dev install-deps --peers)", said.getvalue())


class LintTest(unittest.TestCase):
    def test_shell_scripts_are_known_by_their_name_or_their_interpreter(self):
        for name in ("dev", "tools/vm/init", "tools/dev/fmt.sh", ".ci/run"):
            self.assertTrue(lint.is_shell(name), name)
        for name in ("BUILD", "LICENSE", "tools/dev/lint.py", "WORKSPACE"):
            self.assertFalse(lint.is_shell(name), name)

    def found(self, check, name, text):
        """Whether `check` finds something in a file of that name and text."""
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / name
            path.write_text(text, encoding="utf-8")
            return check([str(path)])

    def test_scripts_and_words_are_checked(self):
        for check, name, bad, good in (
                (lint.check_shellcheck, "a.sh", "#!/bin/sh\ncat $1\n", '#!/bin/sh\ncat "$1"\n'),
                (lint.check_pylint, "a.py", "print(a)\n", "print(1)\n"),
                (lint.check_codespell, "a.md", "This is " + "t" + "eh end.\n", "This is the end.\n")):
            self.assertEqual([], self.found(check, name, good))
            self.assertEqual(1, len(self.found(check, name, bad)), name)

    def test_flags_for_layering_check_are_kept_from_clang_tidy(self):
        kept = lint.tidy_arguments(["-O2", "-Werror", "-fmodule-name=x", "-fmodules-strict-decluse",
                                    "-Ifoo", "-MD", "-MF", "a.d", "-c", "a.cc", "-o", "a.o"])
        self.assertEqual(["-O2", "-Ifoo"], kept)

    def test_a_changed_header_changes_the_key_of_what_includes_it(self):
        self.assertIn("transport/coro/frame_pool.h", includes.closure("transport/coro/task.h"))


if __name__ == "__main__":
    case_report.main()
