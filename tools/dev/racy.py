"""The racy phase of ./dev test: tests whose outcome may depend on when something else runs.

They are those with one of TAGS, which tests/repository/tags_test.py holds to their sources. They
run in the asan configuration; with --loaded beside a load on every core.
"""

import contextlib
import os
import subprocess
import sys
import time

import bazel_events

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


def run(options, run_tests):
    """Builds, then tests. `run_tests(flags, targets, options)`: as in test.py."""
    targets = ["--"] + (options.targets or ["//..."])
    flags = [*FLAGS, "--test_tag_filters=" + ",".join([*TAGS, *(f"-{tag}" for tag in KEPT_OUT)])]
    start = time.monotonic()
    bazel_events.run("build", flags + targets)
    build_s = time.monotonic() - start
    with load() if options.loaded else contextlib.nullcontext():
        outcome = run_tests([*flags, "--nocache_test_results"], targets, options)[1]
    outcome.build_s = build_s
    return outcome
