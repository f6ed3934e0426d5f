#!/usr/bin/env python3
"""Plants known faults, one at a time, and sees that the test named for each fails."""

import argparse
import concurrent.futures
import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import bazel_events
import mutant_blocks
import mutant_switch
import mutant_tree

TIMEOUT_S = 60


def parser():
    description = (
        f"Runs the test that must catch each known fault ({mutant_blocks.FOLDER}/README.md), "
        "without the fault and with it. A fault that no test catches is a failure. The faults are "
        "planted in a copy of the tree below the user's cache directory: one build holds nearly "
        "all of them, and the environment says which is planted. A fault is caught if its test "
        f"fails or runs longer than {TIMEOUT_S} s, and then passes without the fault. Tests run in "
        "parallel, one per core. Exit status: 0 if all are caught, otherwise 1.")
    found = argparse.ArgumentParser(prog="./dev mutants", description=description)
    found.add_argument("faults", nargs="*", metavar="fault", help="only these (default: all)")
    found.add_argument("--changed", action="store_true",
                       help="only those whose block, file or test has changed since they were "
                            "caught; what these include does not count")
    found.add_argument("--sample", type=int, metavar="N", help="N of them, by chance")
    found.add_argument("--seed", type=int, metavar="S", help="chooses the sample of that seed")
    found.add_argument("--list", action="store_true", help="list the faults and their tests")
    return found


def choose(faults, options, verdicts, refuse):
    """The faults that the options name."""
    known = {fault.name for fault in faults}
    for name in options.faults:
        if name not in known:
            refuse(f"there is no fault '{name}'; ./dev mutants --list prints all")
    if options.faults:
        faults = [fault for fault in faults if fault.name in options.faults]
    if options.changed:
        faults = [fault for fault in faults if not verdicts.caught(fault)]
    if options.seed is not None and options.sample is None:
        refuse("--seed is for --sample")
    if options.sample is not None:
        if options.sample < 1:
            refuse("--sample takes a number from 1 on")
        seed = random.randrange(1 << 32) if options.seed is None else options.seed
        print(f"a sample of {options.sample} of {len(faults)} faults: --seed {seed}")
        chosen = random.Random(seed).sample(faults, min(options.sample, len(faults)))
        faults = [fault for fault in faults if fault in chosen]
    return faults


class BazelError(Exception):
    """Bazel did not come to an end."""


class Build:
    """The tests of some faults, built in the copy of the tree."""

    def __init__(self, tree, targets):
        status, events = bazel_events.run("build", ["--keep_going", "--", *sorted(targets)],
                                          top=tree.path)
        if status not in (0, 1):  # 1: some do not build
            raise BazelError(f"Bazel ended with status {status} in {tree.path}: see above")
        self.unbuilt = set(bazel_events.unbuilt_targets(events))
        info = subprocess.run([bazel_events.BAZEL, "info", "--noshow_progress", "bazel-bin"],
                              cwd=tree.path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              text=True, check=True)
        self._binaries = pathlib.Path(info.stdout.strip())

    def program(self, target):
        package, name = target[2:].split(":")
        return self._binaries / package / name

    def run(self, target, cases, planted=None):
        """Runs a test's cases as Bazel would. Returns ("passed", "failed" or "timeout", Outcome of
        the cases)."""
        program = self.program(target)
        with tempfile.TemporaryDirectory(prefix="verbena-mutant-") as directory:
            report = pathlib.Path(directory) / "test.xml"
            environment = dict(os.environ, TEST_TMPDIR=directory, VERBENA_DEVICE="soft",
                               TEST_SRCDIR=f"{program}.runfiles", TEST_WORKSPACE="verbena",
                               GTEST_OUTPUT=f"xml:{report}", GTEST_FILTER=cases)
            environment.pop(mutant_switch.ENVIRONMENT, None)
            if planted is not None:
                environment[mutant_switch.ENVIRONMENT] = str(planted)
                environment["GTEST_FAIL_FAST"] = "1"
            with subprocess.Popen([program], cwd=f"{program}.runfiles/verbena", env=environment,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, start_new_session=True) as process:
                try:
                    status = "passed" if process.wait(TIMEOUT_S) == 0 else "failed"
                except subprocess.TimeoutExpired:
                    status = "timeout"
                # With the processes that it started: none is to slow down the runs beside it.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            return status, bazel_events.cases_of(target, report)


def passes_without(build, fault):
    """Whether the fault's case passes in a build that has none."""
    status, cases = build.run(fault.test, fault.case)
    return status == "passed" and bool(cases.passed)


def verdict(build, fault, planted, passes=None):
    """(whether the fault is caught, in words). `passes`: what passes_without() said, if `build`
    has the fault for good."""
    start = time.monotonic()
    words = f"{fault.test} {fault.case}"
    status, _ = build.run(fault.test, fault.case, planted)
    if status == "passed":
        return False, f"not caught by {words}"
    # A case that fails on a busy machine, takes longer than a run may, or is not there, would seem
    # to catch it.
    if not (passes_without(build, fault) if passes is None else passes):
        return False, (f"{words} does not pass without the fault; run: "
                       f"GTEST_FILTER='{fault.case}' {build.program(fault.test)}")
    return True, f"caught by {words} ({status}), {time.monotonic() - start:.0f} s"


class Report:
    def __init__(self, verdicts):
        self._verdicts = verdicts
        self.caught = self.failed = 0

    def add(self, fault, caught, words):
        self.caught += caught
        self.failed += not caught
        if caught:
            self._verdicts.note_caught(fault)
        print(f"{'caught ' if caught else 'FAILED '} {fault.name}: {words}", flush=True)


def run(tree, every, faults, report):
    """Plants each of `faults`; `every` fault has its switch, so that what is built stays so."""
    alone = {fault.name for fault in tree.update(every)}
    by_test = {}
    for fault in faults:
        by_test.setdefault(fault.test, []).append(fault)
    build = Build(tree, by_test)
    for test in sorted(build.unbuilt & set(by_test)):
        for fault in by_test.pop(test):
            report.add(fault, False, f"{test} does not build: see above")
    if build.unbuilt:
        print("A switch that does not compile is one of VERBENA_FAULT(number) in the files below\n"
              f"{tree.path}. Name more of the code in the fault's block, or add a line 'alone:'\n"
              "that says why it has no switch.", flush=True)
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        verdicts = [(fault, pool.submit(verdict, build, fault, mutant_switch.number_of(fault.name)))
                    for its in by_test.values() for fault in its if fault.name not in alone]
        for fault, result in verdicts:
            report.add(fault, *result.result())
    singles = [fault for its in by_test.values() for fault in its if fault.name in alone]
    # Now: the builds that follow have the same programs.
    passes = {fault.name: passes_without(build, fault) for fault in singles}
    for fault in singles:
        if not passes[fault.name]:
            report.add(fault, False, f"{fault.test} {fault.case} does not pass without the fault; run: "
                                     f"./dev test {fault.test} --filter '{fault.case}'")
            continue
        tree.plant(fault)
        single = Build(tree, [fault.test])
        if fault.test in single.unbuilt:
            report.add(fault, False, f"{fault.test} does not build with the fault: see above")
        else:
            report.add(fault, *verdict(single, fault, 0, passes[fault.name]))
        tree.update(every)


def main():
    arguments = parser()
    options = arguments.parse_args()
    try:
        every = mutant_blocks.load(bazel_events.TOP)
        verdicts = mutant_tree.Verdicts(bazel_events.TOP)
        faults = choose(every, options, verdicts, arguments.error)
        if options.list:
            width = max((len(fault.name) for fault in faults), default=0)
            for fault in faults:
                print(f"{fault.name:{width}} {fault.test} {fault.case}")
            return 0
        verdicts.read(faults)
        report = Report(verdicts)
        if faults:
            with mutant_tree.MutantTree(bazel_events.TOP).lock() as tree:
                run(tree, every, faults, report)
    except (mutant_blocks.BlockError, BazelError) as error:
        print(f"FAILED  {error}")
        return 1
    except BlockingIOError:
        print("FAILED  another ./dev mutants runs for this tree: wait for its end")
        return 1
    print(f"{report.caught} caught, {report.failed} failed")
    return 1 if report.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
