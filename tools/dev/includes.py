"""The headers of ours that a source file of ours includes."""

import functools
import re

import bazel_events


@functools.lru_cache(maxsize=None)
def _direct(name):
    path = bazel_events.TOP / name
    if not path.is_file():
        return ()
    found = re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE)
    return tuple(include[len("verbena/"):] if include.startswith("verbena/") else include
                 for include in found)


def closure(name):
    """`name` and every file of ours that it includes, directly or not."""
    seen = set()
    waiting = [name]
    while waiting:
        each = waiting.pop()
        if each not in seen and (bazel_events.TOP / each).is_file():
            seen.add(each)
            waiting += _direct(each)
    return seen
