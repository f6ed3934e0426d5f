"""Holds #include lines and Bazel's dependencies to the table of folders, tools/folders.bzl.

`python3 tools/dev/layers.py --picture` prints the picture of the table that ARCHITECTURE.md shows.
"""

import argparse
import dataclasses
import difflib
import os
import pathlib
import re


@dataclasses.dataclass(frozen=True)
class Library:
    """A library of another project."""

    includes: str  # a regular expression that matches the beginning of its includes
    targets: list  # Bazel's
    folders: set  # that may use it, with those below them


def _table():
    """FOLDERS and LIBRARIES of tools/folders.bzl, with sets of folders."""
    table = {}
    source = pathlib.Path(__file__).resolve().parents[1] / "folders.bzl"
    exec(compile(source.read_text(), source, "exec"), table)  # pylint: disable=exec-used
    return ({folder: used if used is None else set(used) for folder, used in table["FOLDERS"].items()},
            {library: Library(*row[:-1], set(row[-1])) for library, row in table["LIBRARIES"].items()})


FOLDERS, LIBRARIES = _table()

# The folder whose target of its name joins those of the folders below it, so that users depend on one.
JOINS = "rpc"

# Folders whose README.md lists their files from the ground up: a file includes none above itself.
ORDERED = ("transport/link", "transport/soft", "rpc/client", "rpc/server")
_FROM_THE_GROUND_UP = re.compile(
    r"^From the ground up:.*\n(?:.+\n)*\n((?:\d+\. .*\n(?:   .*\n)*)+)", re.MULTILINE)
_ROOM = re.compile(r"`(\w+)`")
_KNOT = re.compile(r"\((`\w+`(?:, `\w+`)+)\)")

_INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)
_LABEL = re.compile(r'"(@\w+)?(?://([\w/.+-]*)(?::[^"]*)?)?"')
_NOT_DEPENDENCIES = re.compile(
    r'load\([^)]*\)|(?:default_)?visibility\s*=\s*\[[^\]]*\]|"//conditions:default"|#[^\n]*', re.DOTALL)


def folder_of(path):
    """The longest folder of the table that holds `path`, or None."""
    while path:
        if path in FOLDERS:
            return path
        path = os.path.dirname(path)
    return None


def wrong_names(folders, libraries, is_folder):
    """Names in the table that are no folder, each with the nearest right one."""
    there = [each for each in folders if is_folder(each)]
    named = set(folders).union(*(used or () for used in folders.values()),
                               *(library.folders for library in libraries.values()))
    return [f"tools/folders.bzl: there is no folder {each}; did you mean "
            f"{difflib.get_close_matches(each, there, 1, 0)[0]}?" for each in sorted(named) if not is_folder(each)]


def _may_use_library(folder, library):
    return any(f"{folder}/".startswith(f"{each}/") for each in LIBRARIES[library].folders)


def _violation(path, folder, used, what):
    # `used` is a path of ours.
    target = folder_of(used)
    if target is None:
        return f"{path}: {what} is in no folder of tools/folders.bzl"
    allowed = FOLDERS[folder]
    if target == folder or allowed is None or target in allowed:
        return None
    return f"{path}: {folder} may not use {target} ({what})"


def _library_violation(path, folder, library, what):
    if _may_use_library(folder, library):
        return None
    return f"{path}: {folder} may not use {library} ({what})"


def _check_includes(path, folder, text):
    for include in _INCLUDE.findall(text):
        ours = include[len("verbena/"):] if include.startswith("verbena/") else None
        if ours and not ours.endswith(".pb.h") and "/" in ours:
            yield _violation(path, folder, os.path.dirname(ours), include)
        for library, row in LIBRARIES.items():
            if re.match(row.includes, include):
                yield _library_violation(path, folder, library, include)


def _check_deps(path, folder, text):
    for label in _LABEL.finditer(_NOT_DEPENDENCIES.sub("", text)):
        repository, package = label.groups()
        if repository in (None, "@verbena"):
            joined = folder == JOINS and (package or "").startswith(JOINS + "/")
            if package and not package.startswith("third_party") and not joined:
                yield _violation(path, folder, package, "//" + package)
            continue
        there = [library for library, row in LIBRARIES.items()
                 if any(target.split("//")[0] == repository for target in row.targets)]
        # Two libraries may share a repository.
        exact = [library for library in there if label[0].strip('"') in LIBRARIES[library].targets] or there
        if there and not any(_may_use_library(folder, library) for library in exact):
            yield _library_violation(path, folder, exact[0], label[0].strip('"'))


def check(path, text):
    """Messages about the dependencies in `text`, the content of `path`, that are not allowed."""
    folder = folder_of(os.path.dirname(path))
    if path.endswith((".h", ".cc")):
        found = _check_includes
    elif os.path.basename(path) == "BUILD":
        found = _check_deps
    else:
        return []
    if folder is None:
        top_level = os.path.dirname(path) in ("", "third_party")
        return [] if top_level or path.startswith("third_party/") else [
            f"{path}: its folder is not in tools/folders.bzl"]
    return [message for message in found(path, folder, text) if message]


def order(readme):
    """The rooms that a README.md lists from the ground up, and those that may know each other.

    A room is a header and its source. Rooms in parentheses know each other.
    """
    found = _FROM_THE_GROUND_UP.search(readme)
    listed = found.group(1) if found else ""
    return _ROOM.findall(listed), [set(_ROOM.findall(knot)) for knot in _KNOT.findall(listed)]


def check_order(folder, readme, files):
    """Messages about `files` of `folder`, texts by path, that do not keep to its README's order."""
    rooms, knots = order(readme)
    there = {os.path.splitext(os.path.basename(path))[0] for path in files}
    found = [f"{folder}/README.md: {room} is {what}" for names, what in (
        (there.difference(rooms), "missing in the list from the ground up"),
        (set(rooms) - there, "in the list from the ground up, and no file has that name"),
        ({room for room in rooms if rooms.count(room) > 1}, "there twice")) for room in sorted(names)]
    below = {room: set(rooms[:index + 1]).union(*(knot for knot in knots if room in knot))
             for index, room in enumerate(rooms)}
    for path, text in sorted(files.items()):
        room = os.path.splitext(os.path.basename(path))[0]
        for include in _INCLUDE.findall(text):
            used, name = os.path.split(include.removeprefix("verbena/"))
            if used == folder and room in below and os.path.splitext(name)[0] not in below[room]:
                found.append(f"{path}: includes {name}, which comes after it in the list of "
                             f"{folder}/README.md: drop the include, or move one of the two in it")
    return found


def _arrows():
    """The arrows of FOLDERS without cycles: a folder's use of its own parent is left out."""
    return {folder: {used for used in allowed if not folder.startswith(used + "/")
                     or folder not in FOLDERS[used]}
            for folder, allowed in FOLDERS.items() if allowed is not None}


def _below(arrows, folder):
    """All folders that arrows lead to from `folder`, over any number of others."""
    return arrows[folder].union(*(_below(arrows, used) for used in arrows[folder]))


def picture():
    """FOLDERS as text, each folder above those that it may use.

    An arrow that follows from others is left out. Folders with the same arrows share a line.
    """
    arrows = _arrows()
    below = {folder: _below(arrows, folder) for folder in arrows}
    direct = {folder: used.difference(*(below[each] for each in used))
              for folder, used in arrows.items()}

    def height(folder):
        return max((1 + height(used) for used in direct[folder]), default=0)

    lines = {}
    for folder in sorted(arrows, key=lambda each: (-height(each), each)):
        lines.setdefault(", ".join(sorted(direct[folder])) or "nothing", []).append(folder)
    anything = [folder for folder, allowed in FOLDERS.items()
                if allowed is None and os.path.dirname(folder) not in FOLDERS]
    rows = [("anything", sorted(anything)), *lines.items()]
    width = max(len(", ".join(folders)) for _, folders in rows)
    return "".join(f"{', '.join(folders):{width}} ─▶ {used}\n" for used, folders in rows)


def main():
    parser = argparse.ArgumentParser(description="Shows the table of allowed dependencies.")
    parser.add_argument("--picture", action="store_true", required=True,
                        help="print the folders and their arrows, as ARCHITECTURE.md shows them")
    parser.parse_args()
    print(picture(), end="")


if __name__ == "__main__":
    main()
