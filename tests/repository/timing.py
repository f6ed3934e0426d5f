"""Which tests have threads, processes or time, by what their sources say.

The outcome of such a test may depend on when something else runs: a thread, a process, the
machine's clock. `./dev test --racy` runs these tests and no others.

The sources of a C++ test are its own, or that of its name in a program with others, and the headers
below tests/ that these include. A test without sources of its own has those of the libraries of its
package. Of a test in shell or Python only the script counts.
"""

import functools
import re

import build_files
import tree

KINDS = ("threads", "processes", "time")
WORDS = "threads, processes or time"

# A line of its kind matches one of these expressions, in a C++ source without comments.
_CPP = {
    "threads": (
        # Threads of the test, and what it synchronises them with.
        r"std::j?thread\b(?!::)", r"std::(?:async|latch|barrier|counting_semaphore)\b",
        r"\bpthread_create\(",
        r"\babsl::(?:Notification|BlockingCounter)\b",
        # Parts of Verbena that have threads of their own.
        r"\bRuntime::Start\(", r"\bExecutorThread\b", r"\bBlockingPool\b", r"\bRunBlocking\(",
        r"\bInProcess(?:Server)?\b", r"\bDeviceContext::Create\(",
        r"\bControlPool\b", r"\bDeviceKeeper\b", r"\b(?:Tcp|File)Bootstrap\b", r"\b(?:NameLookups|FileReads)\b",
        r"\bEtcdClient::Start\(", r"\bGroupCommit\b", r'"verbena/transport/file/file\.h"',
        r"\bCmLoop\b", r"\brdma_create_event_channel\(", r"\bibv_get_device_list\(",
        # Fixtures that start some.
        r"\bRuntimePair\b", r"\bServerSetTest\b", r"\bStartRuntime\(", r"\bTwoExecutors\b",
        r"\bFileTest\b", r"\bRocksFixture\b", r"\bTransfersFixture\b",
    ),
    "processes": (
        r"\bv?fork\(\)", r"\bposix_spawnp?\(", r"\bexec[lv]p?e?\(", r"\bpopen\(", r"\bstd::system\(",
        r"\bwaitpid\(", r"\bServerProcess\b", r"\bRestartableServer\b",
    ),
    "time": (
        # The machine's clock, and waiting by it.
        r"\b(?:steady|system)_clock::now\b", r"\bClock::Real\(\)", r"\babsl::Now\(",
        r"\bclock_gettime\(", r"\bsleep_(?:for|until)\(", r"\b(?:usleep|nanosleep|alarm)\(",
        r"\.wait_(?:for|until)\(", r"\bWaitForNotificationWithTimeout\(",
        # Polls of fixtures that give up after a time.
        r"\bEventually\(", r"\bPause\(\)", r"\bMovedClock\b", r"\bTestTimer\b",
    ),
}
# These, too, unless the source or a header below tests/ that it includes matches the last
# expression: a clock that only the test moves, and a device that the test steps.
_CPP_UNLESS = {
    "threads": ((r"\bSoftDevice::Create\(",), r"\bengine_thread = false\b"),
    "time": ((r"\bco_await (?:verbena::)?Sleep\(", r"\bWithDeadline\(",
              r"\b(?:deadline|timeout) = (?:std::chrono::)?(?:\w*seconds\(|\d+(?:s|ms|us)\b)"),
             r"\b(?:ManualScheduler|FakeClock|fake_clock|ManualClock)\b"),
}

# Waiting by the machine's clock, unless the same holds.
_SLEEPS = (r"\bsleep_(?:for|until)\(", r"\b(?:usleep|nanosleep)\(")
_SLEEPS_UNLESS = r"\bco_await (?:verbena::)?Sleep\("

_PYTHON = {
    "threads": (r"\bthreading\.(?:Thread|Timer)\(",),
    "processes": (r"\bsubprocess\.(?:run|Popen|check_output)\(", r"\bos\.fork\("),
    "time": (r"\btime\.(?:sleep|monotonic|time)\(", r"\btimeout="),
}
# A script runs programs: that is what it is for.
_SHELL = {"processes": (r"^#!",), "time": (r"\bsleep [0-9.$]", r"\btimeout ")}


def _code(path):
    return [line.split("//")[0] for line in tree.text(path).split("\n")]


def _support(path):
    # The headers below tests/ that a C++ source includes, each with the source of its name.
    headers = re.findall(r'(?m)^#include "(tests/[^"]+)"', tree.text(path))
    return [file for header in headers for file in (header, header.removesuffix(".h") + ".cc")
            if tree.has(file) and file != path]


def _known(path):
    # The code of a C++ source and of those headers.
    return "\n".join(line for file in [path, *_support(path)] for line in _code(file))


def _table(path):
    # Kind -> its expressions in the file `path`.
    if path.endswith(".py"):
        return _PYTHON
    if path.endswith(".sh"):
        return _SHELL
    table = dict(_CPP)
    for kind, (expressions, unless) in _CPP_UNLESS.items():
        if not re.search(unless, _known(path)):
            table[kind] += expressions
    return table


@functools.lru_cache(maxsize=None)
def reasons(path):
    """Kind -> the first place in the file `path` that has it, as "path:line: text"."""
    lines = tree.text(path).split("\n") if path.endswith((".py", ".sh")) else _code(path)
    found = {}
    for kind, expressions in _table(path).items():
        asks = re.compile("|".join(expressions))
        for number, line in enumerate(lines, 1):
            if asks.search(line):
                found[kind] = f"{path}:{number}: {line.strip()}"
                break
    return found


def sleep(path, shown=()):
    """The first place in the C++ source `path` that waits by the machine's clock, or None.

    Lines of `shown` do not count: a document shows them, and users wait as they like.
    """
    asks = _SLEEPS
    if not re.search(_CPP_UNLESS["time"][1], _known(path)):
        asks += (_SLEEPS_UNLESS,)
    for number, line in enumerate(_code(path), 1):
        if re.search("|".join(asks), line) and line.strip() not in shown:
            return f"{path}:{number}: {line.strip()}"
    return None


def _libraries(test):
    # The libraries of its package that it depends on, through others of them, too.
    by_label = {target.label(): target for target in build_files.targets(test.package)}
    found, queue = [], [test]
    while queue:
        for label in queue.pop().labels("deps"):
            library = by_label.pop(label, None)
            if library:
                found.append(library)
                queue.append(library)
    return found


def sources(test):
    """The files whose lines count for `test`."""
    files = test.files("srcs")
    joined = f"{test.package}/{test.name}.cc"
    if not files and tree.has(joined):  # in a program with others (tools/tests.bzl)
        files = [joined]
    if not files:
        files = [file for library in _libraries(test) for file in library.files("srcs")]
    headers = {header for file in files if file.endswith((".cc", ".h")) for header in _support(file)}
    return files + sorted(headers)


def reasons_of(test):
    """Kind -> the first place that has it in the sources of `test`."""
    found = {}
    for file in sources(test):
        for kind, reason in reasons(file).items():
            found.setdefault(kind, reason)
    return found


def tests():
    """Every test below tests/."""
    return [target for package in build_files.packages("tests")
            for target in build_files.targets(package) if target.rule.endswith("_test")]
