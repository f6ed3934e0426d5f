"""The headers of ours that a source file of ours includes."""

import functools
import re

import bazel_events


def _named(text):
    return [name[len("verbena/"):] if name.startswith("verbena/") else name
            for name in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE)]


@functools.lru_cache(maxsize=None)
def _direct(path):
    return tuple(_named(path.read_text())) if path.is_file() else ()


def closure(name):
    """`name` and every file of ours that it includes, directly or not."""
    return closure_with_generated(name, (), bazel_events.TOP)


def closure_with_generated(name, directories, root):
    """The same, with generated headers: those that are not ours are looked for in `directories`, which
    like `name` may be relative to `root`, Bazel's execution root."""
    seen = set()
    waiting = [name]
    while waiting:
        each = waiting.pop()
        found = next((path for path in (each, *(f"{directory}/{each}" for directory in directories))
                      if (bazel_events.TOP / path).is_file() or (root / path).is_file()), None)
        if found is None or found in seen:
            continue
        seen.add(found)
        ours = bazel_events.TOP / found
        waiting += _direct(ours if ours.is_file() else root / found)
    return seen
