"""The racy phase of ./dev test: tests whose outcome may depend on when something else runs.

They are those whose sources have threads, processes or time (tests/repository/timing.py). They run in the asan
configuration, with --loaded beside a load on every core. Targets, cases of GoogleTest and --changed choose among them.
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
import timing
import tree

FLAGS = ("--config=asan", "--keep_going", "--build_tests_only")
KEPT_OUT = ("noasan", "guest", "long")

# Ends by itself once its parent has: then it has another.
_BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): sum(range(100000))"


def add_arguments(parser):
    parser.add_argument("--racy", action="store_true",
                        help="instead of all phases run the tests with " + timing.WORDS +
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
    """The tests that may race whose sources have `case`."""
    # Of Ways/QueueTest.Closes/strict the source has QueueTest and Closes.
    suite, name = (part.split("/") for part in case.split("."))
    asks = re.compile(rf"\bTEST(?:_F|_P)?\(\s*{_words(suite[-1])},\s*{_words(name[0])}\s*\)")
    return [test.label() for test in timing.tests() if timing.reasons_of(test) and
            any(asks.search(tree.text(source)) for source in timing.sources(test))]


def _words(pattern):
    return "".join(r"\w*" if part == "*" else re.escape(part) for part in re.split(r"(\*)", pattern))


def test_filter(cases):
    """GoogleTest's filter for `cases`; one without parameters stands for those with each."""
    return ":".join(case if "/" in case else f"{case}:*/{case}/*" for case in cases)


def tests_of(folder):
    """The target that stands for the tests of the product's or the tests' `folder`, or None."""
    package = folder if f"{folder}/".startswith("tests/") else f"tests/{folder}"
    return f"//{package}:all" if tree.has(f"{package}/BUILD") else None


def stands_for(pattern, label):
    """Whether Bazel's target pattern, //a/..., //a:all, //a:b or //a, stands for `label`."""
    package, name = label[2:].split(":")
    if pattern.endswith("..."):
        return f"{package}/".startswith(pattern[2:-3])
    folder, _, target = pattern[2:].partition(":")
    return package == folder and (target or folder.rsplit("/", 1)[-1]) in (name, "all", "*")


def chosen(options):
    """The targets and the cases that `options` name. Raises ValueError, in words, if there are none."""
    cases = [name for name in options.targets if is_case(name)]
    patterns = [name for name in options.targets if not is_case(name)]
    targets = []
    for case in cases:
        found = tests_with(case)
        if not found:
            raise ValueError(f"no test with {timing.WORDS} has the case {case}")
        targets += found
    if options.changed:
        found = {tests_of(folder) for folder in changes.folders_with_statements()} - {None}
        if not found:
            raise ValueError("no folder with tests has other statements than origin's main branch")
        patterns += sorted(found)
    racy = [test.label() for test in timing.tests() if timing.reasons_of(test)]
    for pattern in patterns or ([] if targets else ["//..."]):
        found = [label for label in racy if stands_for(pattern, label)]
        if not found and not options.changed:
            raise ValueError(f"no test of {pattern} has {timing.WORDS}")
        targets += found
    if not targets:
        raise ValueError(f"no test of the folders with other statements has {timing.WORDS}")
    return targets, cases


def run(options, run_tests):
    """Builds, then tests. `run_tests(flags, targets, options)`: as in test.py."""
    try:
        with contextlib.chdir(bazel_events.TOP):
            targets, cases = chosen(options)
    except ValueError as problem:
        return bazel_events.Outcome(failures=[str(problem)])
    targets = ["--", *targets]
    flags = [*FLAGS, "--test_tag_filters=" + ",".join(f"-{tag}" for tag in KEPT_OUT)]
    if cases:
        flags.append("--test_filter=" + test_filter(cases))
    start = time.monotonic()
    bazel_events.run("build", flags + targets)
    build_s = time.monotonic() - start
    with load() if options.loaded else contextlib.nullcontext():
        outcome = run_tests([*flags, "--nocache_test_results"], targets, options)[1]
    outcome.build_s = build_s
    return outcome
