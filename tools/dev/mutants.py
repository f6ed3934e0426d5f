#!/usr/bin/env python3
"""Plants known faults, one at a time, and sees that the test named for each fails."""

import argparse
import re
import sys
import time

import bazel_events
import includes
import mutant_table

HEADER = "transport/log/mutant.h"
FOLDERS = ("transport", "rpc", "tests", "examples", "benchmarks")


def arguments():
    parser = argparse.ArgumentParser(
        prog="./dev mutants",
        description="Builds with one known fault at a time, and runs the test that must catch it. "
                    "A fault that no test catches is a failure.")
    parser.add_argument("--list", action="store_true", help="list the faults and their tests")
    parser.add_argument("faults", nargs="*", metavar="fault", help="only these (default: all)")
    options = parser.parse_args()
    known = [mutant.fault for mutant in mutant_table.MUTANTS]
    for fault in options.faults:
        if fault not in known:
            parser.error(f"there is no fault '{fault}'; faults: {', '.join(known)}")
    return options


def declared_faults():
    """The enumerators of mutant.h: each must be in the table."""
    body = re.search(r"enum class Fault \{(.*?)\};", (bazel_events.TOP / HEADER).read_text(),
                     re.DOTALL).group(1)
    return re.findall(r"^\s*(k\w+)", body, re.MULTILINE)


def places():
    """Fault -> the files in which it is planted."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((bazel_events.TOP / folder).rglob("*")):
            if path.suffix not in (".h", ".cc"):
                continue
            name = str(path.relative_to(bazel_events.TOP))
            if name == HEADER:
                continue  # it shows an example
            for fault in re.findall(r"VERBENA_MUTANT\((k\w+)\)", path.read_text()):
                found.setdefault(fault, []).append(name)
    return found


def compiled_with(file):
    """The source files that include `file`, directly or not; itself, if it is one."""
    names = [str(path.relative_to(bazel_events.TOP)) for folder in FOLDERS
             for path in (bazel_events.TOP / folder).rglob("*.cc")]
    return [name for name in names if file in includes.closure(name)]


def run_test(mutant, flags):
    """Runs the mutant's test. Returns (status or None when it did not build, cases counted)."""
    _, events = bazel_events.run(
        "test", ["--test_output=summary", "--test_timeout=60", f"--test_filter={mutant.filter}",
                 *flags, "--", mutant.target], quiet=True)
    if bazel_events.unbuilt_targets(events):
        return None, bazel_events.Outcome()
    return (bazel_events.test_statuses(events).get(mutant.target),
            bazel_events.count_cases(events))


def verdict(mutant, files):
    """(whether the fault is caught, in words)."""
    if len(files) != 1:
        return False, f"planted {len(files)} times, not once: {' '.join(files)}"
    status, cases = run_test(mutant, [])
    if status != "PASSED" or not cases.passed:
        return False, f"{mutant.target} {mutant.filter} does not pass without the fault"
    # Only what compiles the line that holds the fault is compiled again.
    pattern = "|".join(re.escape(name) for name in compiled_with(files[0]))
    status, _ = run_test(
        mutant, [f"--per_file_copt=^({pattern})$@-DVERBENA_MUTANT_FAULT={mutant.fault}"])
    if status is None:
        return False, "does not build with the fault"
    if status == "PASSED":
        return False, f"not caught by {mutant.target} {mutant.filter}"
    return True, f"caught by {mutant.target} {mutant.filter} ({status.lower()})"


def main():
    options = arguments()
    if options.list:
        for mutant in mutant_table.MUTANTS:
            print(f"{mutant.fault:22} {mutant.target} {mutant.filter}")
        return 0
    tabled = {mutant.fault for mutant in mutant_table.MUTANTS}
    untabled = [fault for fault in declared_faults() if fault not in tabled]
    for fault in untabled:
        print(f"FAILED  {fault}: declared in {HEADER}, but not in tools/dev/mutant_table.py")
    planted = places()
    chosen = [mutant for mutant in mutant_table.MUTANTS
              if not options.faults or mutant.fault in options.faults]
    caught_count = 0
    for mutant in chosen:
        start = time.monotonic()
        caught, words = verdict(mutant, planted.get(mutant.fault, []))
        caught_count += caught
        print(f"{'caught ' if caught else 'FAILED '} {mutant.fault}: {words}, "
              f"{time.monotonic() - start:.0f} s", flush=True)
    failed = len(chosen) - caught_count + len(untabled)
    print(f"{caught_count} caught, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
