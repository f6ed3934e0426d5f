"""The racy phase of ./dev test: tests whose outcome may depend on when something else runs.

They are those with one of TAGS, which tests/repository/tags_test.py holds to their sources. They
run in the asan configuration; with --loaded beside a load on every core. Targets narrow it, cases of
GoogleTest do, and --changed.
"""

import contextlib
import os
import re
import subprocess
import sys
import time

import bazel_events
import changes

sys.path.append(str(bazel_events.TOP / "tests/repository"))
import timing_tags
import tree

TAGS = ("threads", "processes", "time")
FLAGS = ("--config=asan", "--keep_going", "--build_tests_only")
KEPT_OUT = ("noasan", "guest", "long")

# Ends by itself once its parent has: then it has another.
_BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): sum(range(100000))"


def add_arguments(parser):
    parser.add_argument("--racy", action="store_true",
                        help="instead of all phases run the tests tagged " + ", ".join(TAGS) +
                             " in asan, whether or not they passed before")
    parser.add_argument("--loaded", action="store_true",
                        help="with --racy: keep every core busy while tests run")
    parser.add_argument("--changed", action="store_true",
                        help="with --racy: the tests of folders with other statements than origin's main branch")


@contextlib.contextmanager
def load(cores=None):
    """Keeps every core busy, with as much right to it as a test has. Gives the processes."""
    busy = []
    try:
        for _ in range(cores or len(os.sched_getaffinity(0))):
            busy.append(subprocess.Popen([sys.executable, "-c", _BUSY, str(os.getpid())]))
        yield busy
    finally:
        for process in busy:
            process.kill()
        for process in busy:
            process.wait()


def is_case(name):
    """Whether an argument names cases, as QueueTest.Closes or QueueTest.*, and no target."""
    return re.fullmatch(r"[\w*/]+\.[\w*/]+", name) is not None and not name.startswith("//")


def tests_with(case):
    """The tests whose sources have `case`, of those with one of TAGS."""
    # Of Ways/QueueTest.Closes/strict the source has QueueTest and Closes.
    suite, name = (part.split("/") for part in case.split("."))
    asks = re.compile(rf"\bTEST(?:_F|_P)?\(\s*{_words(suite[-1])},\s*{_words(name[0])}\s*\)")
    return [test.label() for test in timing_tags.tests()
            if set(TAGS).intersection(test.arguments.get("tags") or []) and
            any(asks.search(tree.text(source)) for source in timing_tags.sources(test))]


def _words(pattern):
    return "".join(r"\w*" if part == "*" else re.escape(part) for part in re.split(r"(\*)", pattern))


def test_filter(cases):
    """GoogleTest's filter for `cases`; one without parameters stands for those with each."""
    return ":".join(case if "/" in case else f"{case}:*/{case}/*" for case in cases)


def tests_of(folder):
    """The target that stands for the tests of the product's or the tests' `folder`, or None."""
    package = folder if f"{folder}/".startswith("tests/") else f"tests/{folder}"
    return f"//{package}:all" if tree.has(f"{package}/BUILD") else None


def chosen(options):
    """The targets and the cases that `options` name. Raises ValueError, in words, if there are none."""
    cases = [name for name in options.targets if is_case(name)]
    targets = [name for name in options.targets if not is_case(name)]
    for case in cases:
        found = tests_with(case)
        if not found:
            raise ValueError(f"no test tagged {', '.join(TAGS)} has the case {case}")
        targets += found
    if options.changed:
        found = {tests_of(folder) for folder in changes.folders_with_statements()} - {None}
        if not found:
            raise ValueError("no folder with tests has other statements than origin's main branch")
        targets += sorted(found)
    return targets or ["//..."], cases


def run(options, run_tests):
    """Builds, then tests. `run_tests(flags, targets, options)`: as in test.py."""
    try:
        with contextlib.chdir(bazel_events.TOP):
            targets, cases = chosen(options)
    except ValueError as problem:
        return bazel_events.Outcome(failures=[str(problem)])
    targets = ["--", *targets]
    flags = [*FLAGS, "--test_tag_filters=" + ",".join([*TAGS, *(f"-{tag}" for tag in KEPT_OUT)])]
    if cases:
        flags.append("--test_filter=" + test_filter(cases))
    start = time.monotonic()
    bazel_events.run("build", flags + targets)
    build_s = time.monotonic() - start
    with load() if options.loaded else contextlib.nullcontext():
        outcome = run_tests([*flags, "--nocache_test_results"], targets, options)[1]
    outcome.build_s = build_s
    return outcome
