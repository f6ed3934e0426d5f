"""The table of allowed dependencies: which folder may use which, and which outside library.

The longest folder that a file lies in decides. Both #include lines and Bazel dependencies are read.
`python3 tools/dev/layers.py --picture` prints the picture of FOLDERS that ARCHITECTURE.md shows.
"""

import argparse
import os
import re

_CORO = {"transport/base", "transport/coro"}
_DEVICE = _CORO | {"transport/device"}
_MEMORY = _DEVICE | {"transport/memory"}
_EXECUTOR = _MEMORY | {"transport/executor"}
_LINK = _EXECUTOR | {"transport/link", "transport/connect", "proto"}

# Everything below the applications; what these may use is bounded by review, not by a table.
_ANYTHING = None

# Folder -> the folders, besides itself, that it may use. Arrows point down. ARCHITECTURE.md shows
# a picture of this table.
FOLDERS = {
    "proto": set(),
    "transport/base": set(),
    "transport/coro": {"transport/base"},
    "transport/device": _CORO,
    "transport/verbs": _DEVICE,  # verbs and soft implement Device, and do not know each other
    "transport/soft": _DEVICE,
    "transport/preload": _DEVICE | {"transport/soft"},  # a library of its own; nobody uses it
    "transport/memory": _DEVICE,
    "transport/executor": _MEMORY,
    "transport/file": _EXECUTOR,
    "transport/connect": _EXECUTOR | {"transport/verbs", "transport/soft", "proto"},
    "transport/link": _EXECUTOR | {"transport/connect"},
    # The floor: what programs see of calls, and no bodies. //rpc joins it with the folders below.
    "rpc": _LINK | {"transport/file"},
    "rpc/call": _LINK | {"rpc"},
    "rpc/naming": _EXECUTOR | {"rpc"},
    "rpc/stream": _LINK | {"rpc", "rpc/call"},
    # Opens devices.
    "rpc/shard": _LINK | {"rpc", "rpc/call", "rpc/stream", "transport/verbs", "transport/soft"},
    "rpc/client": _LINK | {"rpc", "rpc/call", "rpc/stream", "rpc/shard", "rpc/naming"},
    "rpc/server": _LINK | {"rpc", "rpc/call", "rpc/stream", "rpc/shard", "rpc/naming"},
    # Optional (//rpc:etcd). It speaks HTTP on a thread of its own, as the bootstraps do: their
    # IoThread serves here, too.
    "rpc/naming/etcd": _EXECUTOR | {"rpc", "rpc/call", "rpc/naming", "transport/connect"},
    "rpc/codegen": {"proto", "rpc"},  # of rpc the version alone
    "rpc/testing": _CORO | {"rpc"},  # for users' tests; nothing but tests may use it
    # Users include nothing below transport/.
    "examples": {"rpc", "proto"},
    "benchmarks": _ANYTHING,
    "benchmarks/harness": _ANYTHING,
    "tests": _ANYTHING,
    "tools": _ANYTHING,
    "tools/pch": _ANYTHING,
}

# The folder whose target of its name joins those of the folders below it, so that users depend on one.
JOINS = "rpc"

# Outside library -> (what its includes look like, its Bazel repository, folders that may use it).
LIBRARIES = {
    "protobuf": (
        r"google/protobuf/|.*\.pb\.h$", "com_google_protobuf",
        {"proto", "rpc", "transport/connect", "examples", "benchmarks", "tests", "tools"}),
    "verbs": (
        r"infiniband/|rdma/", "rdma",
        {"transport", "benchmarks", "tests", "tools"}),
    # With Beast, which only etcd's gateway needs.
    "Asio": (
        r"boost/(asio|beast)", "boost",
        {"transport/connect", "rpc/naming/etcd", "benchmarks", "tests", "tools/pch"}),
    "Boost.JSON": (
        r"boost/json", "boost_json",
        {"rpc/naming", "tests"}),
    "liburing": (
        r"liburing", "uring",
        {"transport/executor", "transport/file", "transport/soft", "benchmarks", "tests"}),
    "ISA-L": (
        r"isa-l", "isal",
        {"transport/memory"}),
    "RocksDB": (
        r"rocksdb/", "rocksdb",
        {"examples", "tests"}),
    "OpenSSL": (
        r"openssl/", "openssl",
        {"transport/connect", "rpc/naming/etcd", "examples", "tests"}),
}
# Below folders that may use a library, these may not after all.
EXCEPT = {("transport/base", "verbs"), ("transport/coro", "verbs")}

# Folders whose README.md lists their files from the ground up: a file includes none above itself.
ORDERED = ("transport/link", "transport/soft", "rpc/client", "rpc/server")
_FROM_THE_GROUND_UP = re.compile(
    r"^From the ground up:.*\n(?:.+\n)*\n((?:\d+\. .*\n(?:   .*\n)*)+)", re.MULTILINE)
_ROOM = re.compile(r"`(\w+)`")
_KNOT = re.compile(r"\((`\w+`(?:, `\w+`)+)\)")

_INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)
_LABEL = re.compile(r'"(?:@(\w+))?//([\w/.+-]*)(?::[^"]*)?"|"@(\w+)"')
_NOT_DEPENDENCIES = re.compile(
    r'load\([^)]*\)|(?:default_)?visibility\s*=\s*\[[^\]]*\]|"//conditions:default"|#[^\n]*', re.DOTALL)


def folder_of(path):
    """The longest folder of the table that holds `path`, or None."""
    while path:
        if path in FOLDERS:
            return path
        path = os.path.dirname(path)
    return None


def _may_use_library(folder, library):
    allowed = LIBRARIES[library][2]
    if (folder, library) in EXCEPT:
        return False
    return any(folder == each or folder.startswith(each + "/") for each in allowed)


def _violation(path, folder, used, what):
    # `used` is a path of ours.
    target = folder_of(used)
    if target is None:
        return f"{path}: {what} is in no folder of tools/dev/layers.py"
    allowed = FOLDERS[folder]
    if target == folder or allowed is _ANYTHING or target in allowed:
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
        for library, (pattern, _, _) in LIBRARIES.items():
            if re.match(pattern, include):
                yield _library_violation(path, folder, library, include)


def _check_deps(path, folder, text):
    for repository, package, bare in _LABEL.findall(_NOT_DEPENDENCIES.sub("", text)):
        repository = repository or bare
        if repository in ("", "verbena"):
            joined = folder == JOINS and package.startswith(JOINS + "/")
            if package and not package.startswith("third_party") and not joined:
                yield _violation(path, folder, package, "//" + package)
        for library, (_, name, _) in LIBRARIES.items():
            if repository == name:
                yield _library_violation(path, folder, library, "@" + name)


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
            f"{path}: its folder is not in tools/dev/layers.py"]
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
            for folder, allowed in FOLDERS.items() if allowed is not _ANYTHING}


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
                if allowed is _ANYTHING and os.path.dirname(folder) not in FOLDERS]
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
