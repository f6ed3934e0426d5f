#!/usr/bin/env python3
"""Who uses whose bodies in rpc/: circles of rooms, and rooms that use what lies above them.

A room is a header and the source of its name. A chapter (rpc/*.h, and rpc/detail/stream_awaits.h, which stubs include)
is declarations alone: the bodies of what it declares lie in rooms of the folders. A room depends on what it includes, and
on each room that holds bodies of a class or function that it names. Bodies lie above a room if its folder may not use
theirs (layers.py).
"""

import argparse
import os
import re
import sys

import bazel_events
import layers

TOP = bazel_events.TOP
CHAPTERS = re.compile(r"rpc/\w+\.h|rpc/detail/stream_awaits\.h")
# They use what programs use, from outside.
OUTSIDE = ("rpc/testing/", "rpc/codegen/")

_INCLUDE = re.compile(r'^\s*#\s*include\s*"verbena/((?:rpc|transport)/[^"]+)"', re.MULTILINE)
_NO_CODE = re.compile(r'//[^\n]*|"(?:\\.|[^"\n])*"')
# What names a class without using it.
_NO_USE = re.compile(r"^\s*(?:friend [^;]*|(?:class|struct)(?: VERBENA_EXPORT)? \w+);", re.MULTILINE)
_CLASS = re.compile(r"^\s*(?:class|struct) (?:\[\[\w+\]\] )?(?:VERBENA_EXPORT )?(\w+)(?: final)?\s*(?::[^;{]*)?\{",
                    re.MULTILINE)
_FUNCTION = re.compile(r"^VERBENA_EXPORT [\w:<>,&* ]+?\b(\w+)\(", re.MULTILINE)
# A member's declaration, whose name is another's than the chapter's function of that name.
_OWN_MEMBER = re.compile(r"^ +(?!return |co_return |co_await |throw )\w[\w:<>,&* ]* (\w+)\(", re.MULTILINE)
# Definitions begin at the start of a line, and a name may follow its type there, or on the next line.
_MEMBER = re.compile(r"^(?:\w[\w:<>,&*\[\] ]*?[ &*])?(\w+)::~?\w+(?:::\w+)*\(", re.MULTILINE)
_FREE = re.compile(r"^\w[\w:<>,&* ]*? (\w+)\(", re.MULTILINE)


def load(top=TOP):
    """The texts of the headers and sources of rpc/ and transport/."""
    texts = {}
    for folder in ("rpc", "transport"):
        for directory, _, names in os.walk(top / folder):
            for name in names:
                if name.endswith((".h", ".cc")):
                    path = os.path.relpath(os.path.join(directory, name), top)
                    with open(os.path.join(directory, name), encoding="utf-8") as file:
                        texts[path] = file.read()
    return texts


def room_of(path):
    """The name of a file's room. A chapter has one of its own."""
    if CHAPTERS.fullmatch(path):
        return path
    return os.path.splitext(path)[0]


def is_chapter(room):
    return CHAPTERS.fullmatch(room) is not None


def bodies(texts):
    """To each class and function that a chapter declares the rooms that hold its bodies."""
    found = {}
    declared = set()
    for path, text in texts.items():
        if is_chapter(path):
            declared.update(_CLASS.findall(text), _FUNCTION.findall(text))
    for path, text in texts.items():
        if path.endswith(".cc") and path.startswith("rpc/") and not path.startswith(OUTSIDE):
            for name in set(_MEMBER.findall(text) + _FREE.findall(text)) & declared:
                found.setdefault(name, set()).add(room_of(path))
    return found


def uses(texts):
    """(arrows between rooms, those of them that come of a name: (room, room with bodies) -> names)."""
    arrows, named = {}, {}
    held = bodies(texts)
    for path, text in texts.items():
        room = room_of(path)
        mine = arrows.setdefault(room, set())
        mine.update(room_of(used) for used in _INCLUDE.findall(text) if used in texts and room_of(used) != room)
        if is_chapter(path) or path.startswith(OUTSIDE) or not path.startswith("rpc/"):
            continue
        code = _NO_USE.sub("", _NO_CODE.sub("", text))
        # Behind a point, an arrow or a scope stands a member's name.
        words = set(re.findall(r"(?<![\w.])(?<!->)(?<!::)\w+|(?<=verbena::)\w+|(?<=internal::)\w+", code))
        for name in (words & held.keys()) - set(_OWN_MEMBER.findall(code)):
            if room in held[name]:  # an overload
                continue
            # Of overloads, the room uses those that it includes.
            included = {other for other in held[name] if other in mine}
            for other in included or held[name]:
                mine.add(other)
                named.setdefault((room, other), set()).add(name)
    return arrows, named


def circles(arrows):
    """The largest sets of rooms that can all reach each other, each sorted (Tarjan 1972)."""
    index, low, stack, waiting, found = {}, {}, [], set(), []

    def visit(room):
        index[room] = low[room] = len(index)
        stack.append(room)
        waiting.add(room)
        for used in sorted(arrows.get(room, ())):
            if used not in index:
                visit(used)
                low[room] = min(low[room], low[used])
            elif used in waiting:
                low[room] = min(low[room], index[used])
        if low[room] == index[room]:
            circle = []
            while not circle or circle[-1] != room:
                circle.append(stack.pop())
                waiting.discard(circle[-1])
            if len(circle) > 1:
                found.append(sorted(circle))

    sys.setrecursionlimit(max(sys.getrecursionlimit(), 10 * len(arrows) + 1000))
    for room in sorted(arrows):
        if room not in index:
            visit(room)
    return sorted(found)


def circles_of_rpc(arrows):
    return [circle for circle in circles(arrows) if any(room.startswith("rpc/") for room in circle)]


def from_below(named):
    """The uses of bodies in folders that the user's folder may not use: (room, room with bodies) -> names."""
    def lies_above(room, other):
        folder, used = layers.folder_of(os.path.dirname(room)), layers.folder_of(os.path.dirname(other))
        return used != folder and used not in layers.FOLDERS[folder]
    return {(room, other): names for (room, other), names in named.items() if lies_above(room, other)}


def report(texts):
    """The figures with names, as lines."""
    arrows, named = uses(texts)
    found = circles_of_rpc(arrows)
    up = from_below(named)
    rooms = {room for room, _ in up}
    return ([f"circles by use in rpc/: {len(found)}"] + [f"  {', '.join(circle)}" for circle in found] +
            [f"uses of bodies that lie above: {len(up)} in {len(rooms)} rooms"] +
            [f"  {room} uses {', '.join(sorted(names))} of {other}" for (room, other), names in sorted(up.items())])


def main():
    argparse.ArgumentParser(prog="tools/dev/rooms.py", description=__doc__.splitlines()[0]).parse_args()
    print("\n".join(report(load())))


if __name__ == "__main__":
    main()
