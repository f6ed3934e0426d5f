#!/usr/bin/env python3
"""Writes a small project that builds a service against Verbena, with Bazel or with CMake."""

import argparse
import os
import pathlib
import re
import subprocess
import sys

TOP = pathlib.Path(os.environ.get("VERBENA_TOP") or pathlib.Path(__file__).parents[2]).resolve()
TEMPLATES = pathlib.Path(__file__).parent / "new_service"

# The files to write, by template: those of each build, and those of both.
BAZEL_FILES = {
    "WORKSPACE": "WORKSPACE",
    "bazelrc": ".bazelrc",
    "BUILD": "BUILD",
    "README.md": "README.md",
}
CMAKE_FILES = {
    "CMakeLists.txt": "CMakeLists.txt",
    "CMakePresets.json": "CMakePresets.json",
    "README.cmake.md": "README.md",
}
FILES = {
    "gitignore": ".gitignore",
    "service.proto": "{name}.proto",
    "service.h": "{name}_service.h",
    "service.cc": "{name}_service.cc",
    "server.cc": "server.cc",
    "client.cc": "client.cc",
    "service_test.cc": "{name}_service_test.cc",
}

# Names that the project or its libraries use already.
TAKEN = {"absl", "client", "google", "server", "std", "test", "testing", "verbena",
         "get_reply", "get_request", "put_reply", "put_request"}

# The headers that every program of the project sees, more or less. Their functions are in the global
# namespace, where no namespace can have the same name.
PROBE = """
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
namespace {name} {{}}
"""


def is_namespace(name):
    """Whether a C++ program can have a namespace of this name, which is no keyword either."""
    return subprocess.run(["clang-19", "-x", "c++", "-std=c++20", "-fsyntax-only", "-"],
                          input=PROBE.format(name=name), text=True, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, check=False).returncode == 0


def check_name(name):
    """Why `name` cannot be a service's; None if it can."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or len(name) > 40:
        return (f"'{name}' cannot name a service: take at most 40 lower-case letters, digits and "
                "single underscores, such as block_index")
    if name in TAKEN or not is_namespace(name):
        return f"'{name}' means something in C++ or in the project already: try {name}_store"
    return None


def version():
    """The version of Verbena that the project asks for: below 1.0, minor versions differ."""
    header = (TOP / "rpc" / "version.h").read_text()
    return ".".join(re.findall(r"#define VERBENA_VERSION_(?:MAJOR|MINOR) (\d+)", header))


def write_project(name, directory, build_files):
    values = {
        "@name@": name,
        "@NAME@": name.upper(),
        "@Name@": "".join(word.capitalize() for word in name.split("_")),
        "@verbena@": str(TOP),
        "@version@": version(),
    }
    directory.mkdir(parents=True, exist_ok=True)
    for template, target in {**build_files, **FILES}.items():
        text = (TEMPLATES / f"{template}.in").read_text()
        for placeholder, value in values.items():
            text = text.replace(placeholder, value)
        (directory / target.format(name=name)).write_text(text)


def main():
    parser = argparse.ArgumentParser(
        prog="./dev new-service",
        description="Writes a small project that builds against this clone of Verbena: a .proto, a "
                    "service, a server, a client and a test.",
        epilog="example: ./dev new-service block_index --dir ~/src/block_index")
    parser.add_argument("name", metavar="NAME",
                        help="the service's name in lower case, such as block_index")
    parser.add_argument("--dir", metavar="DIR",
                        help="where to write it (default ./NAME); must be empty, or not there yet")
    parser.add_argument("--cmake", action="store_true",
                        help="build with CMake against an installed Verbena, not with Bazel")
    options = parser.parse_args()
    complaint = check_name(options.name)
    directory = pathlib.Path(options.dir or options.name)
    if complaint is None and directory.exists() and not directory.is_dir():
        complaint = f"{directory} is not a directory"
    elif complaint is None and directory.exists() and any(directory.iterdir()):
        complaint = f"{directory} is not empty: name another with --dir"
    elif complaint is None and directory.resolve().is_relative_to(TOP):
        complaint = (f"{directory} lies inside Verbena's clone, whose build would take it up: name "
                     f"another with --dir, such as ~/src/{options.name}")
    if complaint is not None:
        parser.error(complaint)
    try:
        write_project(options.name, directory, CMAKE_FILES if options.cmake else BAZEL_FILES)
    except OSError as error:
        sys.exit(f"dev new-service: {error}")
    test = "cmake --preset default  # README.md says how to install Verbena first" if options.cmake else f"{TOP}/tools/dev/bazel.sh test //..."
    print(f"Written to {directory}. Next:\n\n  cd {directory}\n  {test}")


if __name__ == "__main__":
    main()
