#!/usr/bin/env python3
"""Plants known faults, one at a time, and sees that the test named for each fails."""

import argparse
import concurrent.futures
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import bazel_events
import mutant_table

HEADER = "transport/log/fault.h"
MACRO = "transport/log/mutant.h"
FOLDERS = ("transport", "rpc", "tests", "examples", "benchmarks")
CONFIG = "--config=mutants"
TIMEOUT_S = 60


def arguments():
    parser = argparse.ArgumentParser(
        prog="./dev mutants",
        description="Runs the test that must catch each known fault, without the fault and with it. "
                    "A fault that no test catches is a failure. One build holds all faults; the "
                    "environment says which of them is planted. A fault is caught if its test "
                    f"fails or runs longer than {TIMEOUT_S} s. Tests run in parallel, one per "
                    "core. Exit status: 0 if all are caught, otherwise 1.")
    parser.add_argument("--list", action="store_true", help="list the faults and their tests")
    parser.add_argument("faults", nargs="*", metavar="fault", help="only these (default: all)")
    options = parser.parse_args()
    known = [mutant.fault for mutant in mutant_table.MUTANTS]
    for fault in options.faults:
        if fault not in known:
            parser.error(f"there is no fault '{fault}'; faults: {', '.join(known)}")
    return options


def declared_faults():
    """The enumerators of fault.h, in order: each must be in the table."""
    body = re.search(r"enum class PlantedFault \{(.*?)\};", (bazel_events.TOP / HEADER).read_text(),
                     re.DOTALL).group(1)
    return re.findall(r"^\s*(k\w+)", body, re.MULTILINE)


def places():
    """PlantedFault -> the files in which it is planted."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((bazel_events.TOP / folder).rglob("*")):
            if path.suffix not in (".h", ".cc"):
                continue
            name = str(path.relative_to(bazel_events.TOP))
            if name == MACRO:
                continue  # it shows an example
            for fault in re.findall(r"VERBENA_MUTANT\((k\w+)\)", path.read_text()):
                found.setdefault(fault, []).append(name)
    return found


def build(targets):
    """Builds the tests. Returns where their programs are, or None."""
    status, events = bazel_events.run("build", [CONFIG, "--keep_going", "--", *targets])
    if status != 0:
        print("FAILED  does not build: " + " ".join(bazel_events.unbuilt_targets(events)))
        return None
    result = subprocess.run([bazel_events.BAZEL, "info", "--noshow_progress", CONFIG, "bazel-bin"],
                            cwd=bazel_events.TOP, stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, text=True, check=True)
    return pathlib.Path(result.stdout.strip())


def run_test(mutant, binaries, planted):
    """Runs the mutant's test as Bazel would. Returns ("passed", "failed" or "timeout", cases)."""
    package, name = mutant.target[2:].split(":")
    binary = binaries / package / name
    with tempfile.TemporaryDirectory(prefix="verbena-mutant-") as directory:
        report = pathlib.Path(directory) / "test.xml"
        environment = dict(os.environ, TEST_TMPDIR=directory, VERBENA_DEVICE="soft",
                           TEST_SRCDIR=f"{binary}.runfiles", TEST_WORKSPACE="verbena",
                           GTEST_OUTPUT=f"xml:{report}", GTEST_FILTER=mutant.filter)
        environment.pop("VERBENA_PLANTED_FAULT", None)
        if planted is not None:
            environment["VERBENA_PLANTED_FAULT"] = str(planted)
        with subprocess.Popen([binary], cwd=f"{binary}.runfiles/verbena", env=environment,
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, start_new_session=True) as process:
            try:
                status = "passed" if process.wait(TIMEOUT_S) == 0 else "failed"
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                status = "timeout"
        return status, bazel_events.cases_of(mutant.target, report)


def verdict(mutant, files, binaries, number):
    """(whether the fault is caught, in words)."""
    if len(files) != 1:
        return False, f"planted {len(files)} times, not once: {' '.join(files)}"
    status, cases = run_test(mutant, binaries, None)
    if status != "passed" or not cases.passed:
        package, name = mutant.target[2:].split(":")
        return False, (f"{mutant.target} {mutant.filter} does not pass without the fault; run: "
                       f"GTEST_FILTER='{mutant.filter}' {binaries / package / name}")
    status, _ = run_test(mutant, binaries, number)
    if status == "passed":
        return False, f"not caught by {mutant.target} {mutant.filter}"
    return True, f"caught by {mutant.target} {mutant.filter} ({status})"


def timed_verdict(*arguments):
    start = time.monotonic()
    caught, words = verdict(*arguments)
    return caught, f"{words}, {time.monotonic() - start:.0f} s"


def main():
    options = arguments()
    if options.list:
        width = max(len(mutant.fault) for mutant in mutant_table.MUTANTS)
        for mutant in mutant_table.MUTANTS:
            print(f"{mutant.fault:{width}} {mutant.target} {mutant.filter}")
        return 0
    faults = declared_faults()
    tabled = {mutant.fault for mutant in mutant_table.MUTANTS}
    untabled = [fault for fault in faults if fault not in tabled]
    for fault in untabled:
        print(f"FAILED  {fault}: declared in {HEADER}, but not in tools/dev/mutant_table.py")
    undeclared = [fault for fault in tabled if fault not in faults]
    for fault in undeclared:
        print(f"FAILED  {fault}: in tools/dev/mutant_table.py, but not declared in {HEADER}")
    planted = places()
    chosen = [mutant for mutant in mutant_table.MUTANTS
              if mutant.fault in (options.faults or faults)]
    binaries = build(sorted({mutant.target for mutant in chosen}))
    caught_count = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        verdicts = [] if binaries is None else [
            pool.submit(timed_verdict, mutant, planted.get(mutant.fault, []), binaries,
                        faults.index(mutant.fault)) for mutant in chosen]
        for mutant, result in zip(chosen, verdicts):
            caught, words = result.result()
            caught_count += caught
            print(f"{'caught ' if caught else 'FAILED '} {mutant.fault}: {words}", flush=True)
    failed = len(chosen) - caught_count + len(untabled) + len(undeclared)
    print(f"{caught_count} caught, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
