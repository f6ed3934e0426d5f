"""Runs ctest on a build of CMake's, and counts the test cases of its report."""

import os
import pathlib
import re
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree

import bazel_events

# What each of a case's failures begins with.
FAILURE = ": Failure\n"
CASE_S = 300


def outcome_of(report, excuse=lambda output: None):
    """Counts the cases of a JUnit report of ctest. A case that fails is left out if `excuse` gives a reason, by what
    the case printed."""
    outcome = bazel_events.Outcome()
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name, status, output = case.get("name"), case.get("status"), case.findtext("system-out") or ""
        excused = excuse(output) if status == "fail" else None
        if status == "run":
            outcome.passed += 1
        # ctest also calls a case "notrun" that fails before it skips itself.
        elif status == "notrun" and "[  SKIPPED ]" in output and FAILURE not in output:
            outcome.skips.append(f"{name}: {skip_reason(output)}")
        elif excused:
            outcome.skips.append(f"{name}: {excused}")
        else:
            problem = case.find("failure")
            said = problem.get("message") if problem is not None else None
            outcome.failures.append(f"{name}: {said or status}")
    return outcome


def skip_reason(output):
    """What a case said when it skipped itself."""
    said = re.search(r": Skipped\n(.*?)\n*(?:\n\[|$)", output, re.DOTALL)
    return " ".join(said.group(1).split()) if said and said.group(1).strip() else "it skips itself"


def run_tests(directory, pattern=None, jobs=None, excuse=lambda output: None, **options):
    """Runs the tests of the build `directory` whose names match `pattern`. `options` are subprocess.run's."""
    with tempfile.TemporaryDirectory(prefix="verbena-") as scratch:
        report = pathlib.Path(scratch) / "report.xml"
        command = ["ctest", "--test-dir", str(directory), "--output-on-failure", "--timeout", str(CASE_S),
                   "--parallel", str(jobs or os.cpu_count() or 1),
                   # Reasons of skips are in what such cases print, which ctest cuts short.
                   "--test-output-size-passed", "100000", "--output-junit", str(report)]
        if pattern:
            command += ["-R", pattern]
        status = subprocess.run(command, check=False, **options).returncode
        if not report.is_file():
            return bazel_events.Outcome(failures=["ctest: wrote no report; see above"])
        reasons = []  # that were accepted

        def remember(output):
            reasons.append(excuse(output))
            return reasons[-1]

        outcome = outcome_of(report, remember)
    # To ctest, a case that is excused has failed.
    if status != 0 and not outcome.failures and not any(reasons):
        outcome.failures.append(f"ctest: ended with status {status}, but its report has no failure; see above")
    return outcome
