"""Runs Bazel, and reads what became of every target and test case from its build event file."""

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import tempfile
import urllib.parse
import xml.etree.ElementTree as ElementTree

import test_log

TOP = pathlib.Path(os.environ.get("VERBENA_TOP") or pathlib.Path(__file__).resolve().parents[2])
BAZEL = str(TOP / "tools/dev/bazel.sh")


@dataclasses.dataclass
class Outcome:
    """Test cases counted over some targets. `failures` and `skips` hold one line per case."""

    passed: int = 0
    failures: list = dataclasses.field(default_factory=list)
    skips: list = dataclasses.field(default_factory=list)
    # The seconds that building them took before the first ran; 0 if that is not known.
    build_s: float = 0

    def add(self, other):
        self.passed += other.passed
        self.failures += other.failures
        self.skips += other.skips


def run(command, arguments, quiet=False, top=TOP, in_memory=False):
    """Runs `bazel <command>` in the tree at `top`. Returns (exit status, events).

    Its output goes where ours goes; a quiet run shows it only if something did not build. `in_memory`: tests may
    write their files into memory, if there is enough.
    """
    with tempfile.TemporaryDirectory(prefix="verbena-") as directory:
        path = pathlib.Path(directory) / "events.json"
        result = subprocess.run(
            [BAZEL, command, f"--build_event_json_file={path}"] + list(arguments), cwd=top,
            stdout=subprocess.PIPE if quiet else None, stderr=subprocess.STDOUT if quiet else None,
            text=True, check=False, env={**os.environ, **({"VERBENA_TESTS_IN_MEMORY": "1"} if in_memory else {})})
        lines = path.read_text().splitlines() if path.exists() else []
    if quiet and result.returncode not in (0, 3, 4):  # 3: tests failed; 4: there were none
        print(result.stdout)
    return result.returncode, [json.loads(line) for line in lines if line.strip()]


def unbuilt_targets(events):
    """The labels that failed to load, analyse or build, sorted."""
    labels = set()
    for event in events:
        identity = event["id"]
        target = identity.get("targetCompleted") or identity.get("targetConfigured")
        if not target:
            continue
        # A failing build also skips targets whose own turn never came: those carry SKIPPED.
        if "aborted" in event:
            if event["aborted"].get("reason") not in ("SKIPPED", "NO_BUILD"):
                labels.add(target["label"])
        elif "completed" in event and not event["completed"].get("success", False):
            labels.add(target["label"])
    return sorted(labels)


def test_statuses(events):
    """Label -> overall status (PASSED, FLAKY, FAILED, TIMEOUT, ...) of every test that ran."""
    return {
        event["id"]["testSummary"]["label"]: event["testSummary"].get("overallStatus", "NO_STATUS")
        for event in events if "testSummary" in event
    }


def _output(result, name):
    # The path of the file `name` that a test left, or None.
    for output in result.get("testActionOutput", []):
        uri = urllib.parse.urlparse(output.get("uri", ""))
        if output.get("name") == name and uri.scheme == "file":
            return urllib.parse.unquote(uri.path)
    return None


def _result_files(events):
    # Label -> (test.xml, test.log) of the last attempt of each run and shard.
    attempts = {}
    for event in events:
        if "testResult" not in event or "testResult" not in event["id"]:
            continue
        identity = event["id"]["testResult"]
        key = (identity["label"], identity.get("run", 0), identity.get("shard", 0))
        attempt = identity.get("attempt", 0)
        if key in attempts and attempts[key][0] > attempt:
            continue
        result = event["testResult"]
        attempts[key] = (attempt, (_output(result, "test.xml"), _output(result, "test.log")))
    files = {}
    for (label, _, _), (_, outputs) in attempts.items():
        files.setdefault(label, []).append(outputs)
    return files


def show_failures(events):
    """Prints what the logs of the tests that failed say of it."""
    for event in events:
        result = event.get("testResult")
        if result is None or result.get("status", "PASSED") == "PASSED":
            continue
        path = _output(result, "test.log")
        log = pathlib.Path(path).read_text(encoding="utf-8", errors="replace") if path else "it left no log"
        label, status = event["id"]["testResult"]["label"], result["status"].lower()
        print(f"== {label}: {status}; the whole log: {path}\n{test_log.excerpt(log)}", flush=True)


def cases_of(label, path):
    """The cases of one report of GoogleTest; nothing where there is none."""
    outcome = Outcome()
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, TypeError, ElementTree.ParseError):
        return outcome
    for case in root.iter("testcase"):
        name = label
        if case.get("classname"):  # else Bazel's own report of a test that wrote none
            name += f" {case.get('classname')}.{case.get('name', '')}"
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            outcome.failures.append(name)
        elif skipped is not None:
            reason = (skipped.get("message") or skipped.text or "").strip().splitlines()
            # GoogleTest puts the place on a line of its own before the reason.
            reason = [line for line in reason if line.strip()] or ["no reason given"]
            outcome.skips.append(f"{name}: {reason[-1].strip()}")
        elif case.get("status") != "notrun" and case.get("result") != "suppressed":
            outcome.passed += 1
    return outcome


def cases_of_dead(label, log):
    """The cases of a GoogleTest program that died and left no report, by the text of its log.

    The case that it died in has failed, and so has each one that it did not reach.
    """
    outcome = Outcome()
    total = re.search(r"^\[=+\] Running (\d+) tests? from", log, re.MULTILINE)
    if total is None:
        return outcome
    ends = dict.fromkeys(re.findall(r"^\[ RUN      \] (\S+)", log, re.MULTILINE))
    for result, name in re.findall(r"\[ *(OK|FAILED|SKIPPED) *\] (\S+?),? (?:.*)\(\d+ ms\)", log,
                                   re.MULTILINE):
        ends[name] = result
    for name, result in ends.items():
        if result == "OK":
            outcome.passed += 1
        elif result == "SKIPPED":
            outcome.skips.append(f"{label} {name}")
        else:
            outcome.failures.append(f"{label} {name}" + ("" if result else ": the program died"))
    unreached = int(total.group(1)) - len(ends)
    outcome.failures += [f"{label}: case {len(ends) + 1 + number} of {total.group(1)} not reached"
                         for number in range(unreached)]
    return outcome


def _read(path):
    try:
        return pathlib.Path(path).read_text(encoding="utf-8", errors="replace")
    except (OSError, TypeError):
        return ""


def _ended_in_words(log):
    """Whether a log of GoogleTest has its last lines, or is no log of GoogleTest.

    A child may have written lines of its own: the first number of cases is the program's.
    """
    begun = re.search(r"^\[=+\] Running (\d+) tests? from", log, re.MULTILINE)
    ends = re.findall(r"^\[=+\] (\d+) tests? from .* ran\.", log, re.MULTILINE)
    return begun is None or begun.group(1) in ends


def _is_report_of_bazel(path):
    """Whether a report is missing, cut short, or Bazel's own of a program that wrote none."""
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, TypeError, ElementTree.ParseError):
        return True
    return not any(case.get("classname") for case in root.iter("testcase"))


def count_cases(events):
    """Counts the test cases of `events`; a target that fails beyond its cases counts as one."""
    outcome = Outcome()
    unbuilt = unbuilt_targets(events)
    outcome.failures += [f"{label}: does not build" for label in unbuilt]
    files = _result_files(events)
    for label, status in sorted(test_statuses(events).items()):
        if label in unbuilt:
            continue
        cases = Outcome()
        for xml, log in files.get(label, []):
            # Bazel writes a report of its own, of one case, for a program that died before its own.
            text = _read(log)
            dead = Outcome() if _ended_in_words(text) or not _is_report_of_bazel(xml) else \
                cases_of_dead(label, text)
            cases.add(dead if dead.failures else cases_of(label, xml))
        # A crash, a leak found at exit or a time-out leaves a report that blames no case.
        if status not in ("PASSED", "FLAKY") and not cases.failures:
            cases.failures.append(f"{label}: {status.lower().replace('_', ' ')}")
        elif status in ("PASSED", "FLAKY") and not any(xml for xml, _ in files.get(label, [])):
            cases.passed += 1
        why = [reason for xml, log in files.get(label, []) if _is_report_of_bazel(xml)
               for reason in re.findall(r"^skipped: (.*)", _read(log), re.MULTILINE)]
        if why and not cases.failures:  # a script
            cases = Outcome(skips=[f"{label}: {why[0]}"])
        # What a case passes without, such as a namespace that the kernel refuses.
        parts = [part for _, log in files.get(label, []) for part in re.findall(r"^left out: (.*)", _read(log),
                                                                                re.MULTILINE)]
        cases.skips += [f"{label}: {part}" for part in dict.fromkeys(parts)]
        outcome.add(cases)
    return outcome
