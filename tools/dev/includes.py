"""The headers of ours that a source file of ours includes."""

import functools
import re

import bazel_events


def _named(text):
    return [name[len("verbena/"):] if name.startswith("verbena/") else name
            for name in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE)]


@functools.lru_cache(maxsize=None)
def _direct(name):
    path = bazel_events.TOP / name
    return tuple(_named(path.read_text())) if path.is_file() else ()


def closure(name):
    """`name` and every file of ours that it includes, directly or not."""
    return _closure([name])


def closure_of(text):
    """Every file of ours that a source with this text includes, directly or not."""
    return _closure(_named(text))


def _closure(waiting):
    seen = set()
    while waiting:
        each = waiting.pop()
        if each not in seen and (bazel_events.TOP / each).is_file():
            seen.add(each)
            waiting += _direct(each)
    return seen
