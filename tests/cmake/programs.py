#!/usr/bin/env python3
"""Writes what test programs the CMake build has, as calls of CMake's verbena_add_test_program(), and what libraries
they share, as calls of its verbena_add_test_support().

The BUILD files say what each test is made of. CMake's share is every test in C++ except those that are not for
each machine or need files of Bazel's, and those that left_out.txt names, with the reason.
"""

import argparse
import dataclasses
import os
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "repository"))
import build_files
import tree

LEFT_OUT = "tests/cmake/left_out.txt"
WHERES = ("cmake", "arm64")
# Tests with these tags run inside a virtual machine, or take longer than a test of each day may.
TAGS = ("guest", "long")
# What a program is linked with besides Verbena, by the beginning of a label that it depends on.
LIBRARIES = {
    "//rpc:admin": "Verbena::admin",
    "//rpc/admin": "Verbena::admin",
    "//rpc:etcd": "Verbena::etcd",
    "//rpc/naming/etcd": "Verbena::etcd",
    "//rpc:reflection": "Verbena::reflection",
    "//rpc/reflection": "Verbena::reflection",
}


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """A line of left_out.txt: a test, all of a package, or those in and below a folder, that `where` leaves out."""

    where: str  # one of WHERES
    what: str
    reason: str

    def has(self, label):
        package = label[2:].split(":")[0]
        return self.what in (label, f"//{package}:all") or f"{package}/".startswith(self.what)


def left_out():
    """The lines of left_out.txt."""
    lines = [line.split(maxsplit=2) for line in tree.text(LEFT_OUT).splitlines() if line[:1] not in ("", "#")]
    return [LeftOut(*line) for line in lines]


@dataclasses.dataclass
class Program:
    """A test program: that of a folder's joined tests, or of one test that stands alone."""

    name: str
    sources: list
    support: list  # libraries below tests/ with sources
    protos: list
    libraries: list
    defines: list
    link_options: list
    environment: dict
    joined: bool

    def call(self):
        """The call that adds it."""
        words = [f'"{self.name}"', "SOURCES", *self.sources]
        if self.joined:
            words.append("JOINED")
        for name, values in (("SUPPORT", [name_of(library) for library in self.support]), ("LIBRARIES", self.libraries),
                             ("DEFINES", self.defines), ("LINK_OPTIONS", self.link_options),
                             ("ENVIRONMENT", [f"{key}={value}" for key, value in self.environment.items()])):
            if values:
                words += [name, *values]
        return f"verbena_add_test_program({' '.join(words)})\n"


class Parts:
    """What a target depends on, below tests/ and elsewhere."""

    def __init__(self, target):
        self.support, self.protos, self.outside, self.data = [], [], set(), list(target.arguments.get("data") or [])
        seen, waiting = set(), target.labels("deps")
        while waiting:
            label = waiting.pop(0)
            if label in seen:
                continue
            seen.add(label)
            # What verbena_proto_library() calls a library is its messages and services together.
            library = (find(label) or find(label + "_proto")) if label.startswith("//tests/") else None
            if library is None:
                self.outside.add(label)
                continue
            self.data += library.arguments.get("data") or []
            files = library.files("srcs")
            self.protos += [file for file in files if file.endswith(".proto")]
            if any(file.endswith(".cc") for file in files):
                self.support.append(library)
            waiting += library.labels("deps")

    def libraries(self):
        """What the target is linked with besides Verbena, and compiled with."""
        found = {library for start, library in LIBRARIES.items()
                 if any(label.startswith(start) for label in self.outside)}
        return sorted(found) + ["verbena_test_protos"] * bool(self.protos)


def find(label):
    """The target `label` of this workspace, or None."""
    package, name = label[2:].split(":")
    return next((each for each in build_files.targets(package) if each.name == name), None)


def name_of(library):
    """What CMake calls a library below tests/."""
    return f"{library.package.removeprefix('tests/')}/{library.name}"


def support_call(library):
    """The call that adds a library that programs share."""
    words = [f'"{name_of(library)}"', "SOURCES", *(file for file in library.files("srcs") if file.endswith(".cc"))]
    if library.name == "support":  # verbena_test_support() of tools/tests.bzl
        words.append("JOINED")
    if libraries := Parts(library).libraries():
        words += ["LIBRARIES", *libraries]
    return f"verbena_add_test_support({' '.join(words)})\n"


def joined_source(test):
    """The source of a test that is compiled together with others (tools/tests.bzl), or None."""
    return f"{test.package}/{test.name}.cc" if test.arguments.get("srcs") == [":tests"] else None


def why_not(test, wheres, without=None):
    """Why a test is not in CMake's share, or None. Lines of left_out.txt count whose `where` is among `wheres`, all but
    `without`."""
    if test.rule == "sh_test" and not joined_source(test):
        return "a script"
    tags = [tag for tag in test.arguments.get("tags") or [] if tag in TAGS]
    if tags:
        return f"tagged {tags[0]}"
    if Parts(test if test.rule == "cc_test" else find(f"//{test.package}:test_cases")).data:
        return "needs files of Bazel's"
    return next((line.reason for line in left_out()
                 if line.where in wheres and line != without and line.has(test.label())), None)


def tests():
    """Every test below tests/."""
    return [target for package in build_files.packages("tests") for target in build_files.targets(package)
            if target.rule.endswith("_test")]


def programs(wheres):
    """The programs of CMake's share."""
    folders, alone = {}, []
    for test in tests():
        if why_not(test, wheres):
            continue
        if joined_source(test):
            folders.setdefault(test.package, []).append(joined_source(test))
        else:
            alone.append(test)
    found = [program(package, sources, find(f"//{package}:test_cases"), True)
             for package, sources in sorted(folders.items())]
    return found + [program(f"{test.package}/{test.name}", test.files("srcs"), test, False) for test in alone]


def program(path, sources, target, joined):
    """A program that is made of `sources` and of what `target` depends on."""
    parts = Parts(target)
    defines, link_options, environment = (target.arguments.get(each) for each in ("local_defines", "linkopts", "env"))
    return Program(path.removeprefix("tests/"), sources, parts.support, parts.protos, parts.libraries(),
                   defines or [], link_options or [], environment or {}, joined)


def main():
    parser = argparse.ArgumentParser(description="Writes CMake's test programs to stdout, one call a line.")
    parser.add_argument("--emulated", action="store_true",
                        help="leave out what left_out.txt names for arm64, too")
    options = parser.parse_args()
    found = programs(WHERES if options.emulated else WHERES[:1])
    protos = sorted({proto for each in found for proto in each.protos})
    if protos:
        print(f"verbena_add_test_protos({' '.join(protos)})")
    libraries = {name_of(library): library for each in found for library in each.support}
    for _, library in sorted(libraries.items()):
        print(support_call(library), end="")
    for each in found:
        print(each.call(), end="")


if __name__ == "__main__":
    os.chdir(pathlib.Path(__file__).resolve().parents[2])
    main()
