"""Which cases ./dev test may leave out: left_out.txt, in this folder, names them."""

import fnmatch
import functools

import bazel_events

LIST = "tools/dev/left_out.txt"


@functools.lru_cache(maxsize=None)
def known():
    """The patterns of the list."""
    lines = (bazel_events.TOP / LIST).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def unexpected(skips):
    """Those of `skips`, lines as ./dev test prints them, that the list does not name."""
    return [line for line in skips if not any(fnmatch.fnmatchcase(line, pattern) for pattern in known())]
