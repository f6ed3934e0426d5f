#!/usr/bin/env python3
"""Builds, tests and uses Verbena by other compilers, in roots of newer Debian releases."""

import argparse
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import bazel_events
import lock
import passed_phases
import toolchain_root
import toolchain_rows

TOP = bazel_events.TOP
INSIDE = "/verbena/tools/dev/toolchain_row.py"


def arguments(words=None):
    parser = argparse.ArgumentParser(
        prog="./dev toolchains", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Builds library, command, preload library, tests and examples by CMake with other compilers\n"
                    "than this machine's, in roots of newer Debian releases, and uses what is installed. Runs as root.",
        epilog=rows_text() +
               "\nA row of one compiler runs ctest and every example's demo, installs, builds the README's hello by\n"
               "find_package and by pkg-config, and a project of ./dev new-service with its test. It makes 10,000,000\n"
               "calls at 64 in flight and 100,000 with payloads of 1 byte to 1 MiB, and compares each reply and each\n"
               "byte. At -O2 it counts the instructions of a call. trixie-mixed builds libverbena.so by one compiler,\n"
               "and programs by another, in which Tasks cross the border both ways. Rows of sid build the library,\n"
               "and run ctest and hello.\n"
               "\nThe first run makes the root: by mmdebstrap, of the archive that this machine's apt takes, in a\n"
               "minute. On two cores a row takes 5 to 15 minutes, and with ccache's files two to five; those that gate\n"
               "took 61 minutes from nothing. All of it lies below\n"
               f"  {toolchain_root.cache()}\n"
               "a root takes 1.6 GB, the build directory of a row 1 to 5 GB beside it, ccache's files up to 20 GB.\n"
               "Nothing else is changed or installed. To remove it all:\n"
               f"  rm -rf {toolchain_root.cache()}\n"
               "\nThe last line is \"N passed, N failed\": cases of ctest, and each other step. Exit status: 0 if all\n"
               "passed in the rows that gate, otherwise 1.\n"
               "\nexample: ./dev toolchains trixie-g++14 --resume")
    parser.add_argument("names", nargs="*", metavar="NAME",
                        help="a row, or what the names of several begin with, such as trixie-g++14 (default: the rows "
                             "that gate)")
    parser.add_argument("--changed", action="store_true",
                        help="leave out rows whose last green run was of just these files")
    parser.add_argument("--resume", action="store_true",
                        help="leave out steps that have passed with just these files, after a run that was interrupted "
                             "or failed")
    parser.add_argument("--protobuf", metavar="PREFIX", type=pathlib.Path,
                        help="take the protobuf that is installed below PREFIX, and was built for the root, instead of "
                             "Debian's")
    parser.add_argument("--jobs", type=int, metavar="N", help="build and test so many at once (default: one a core)")
    parser.add_argument("--hello", action="store_true",
                        help="only build the library and hello, and run that; without a root say so, and end with 0 "
                             "(what .ci/run does)")
    parser.add_argument("--shell", action="store_true",
                        help="only open a shell in the root of one row, at its build directories")
    options = parser.parse_args(words)
    check(parser, options)
    return options


def rows_text():
    lines = [f"  {row.name:19} {what_is(row)}\n" for row in toolchain_rows.ROWS]
    return ("rows, those that gate:\n" +
            "".join(line for line, row in zip(lines, toolchain_rows.ROWS) if row.gates) +
            "rows that are reported, and run only if they are named:\n" +
            "".join(line for line, row in zip(lines, toolchain_rows.ROWS) if not row.gates))


def what_is(row):
    """A row in words."""
    if row.kind == toolchain_rows.MIXED:
        return "libverbena.so by clang++-19 with programs by g++-14, and the other way round"
    newest = "the newest " if row.compiler in ("g++", "clang++") else ""
    return f"Debian {row.suite}, {newest}{row.compiler}, {toolchain_rows.MODES[row.mode].flags()}"


def check(parser, options):
    """Ends the program if the options do not go together. Otherwise adds the rows that they choose."""
    try:
        options.rows = toolchain_rows.select(options.names)
    except toolchain_rows.Unknown as unknown:
        parser.error(str(unknown))
    if options.jobs is not None and options.jobs < 1:
        parser.error(f"--jobs is {options.jobs}, but must be at least 1")
    if options.protobuf is not None:
        options.protobuf = options.protobuf.resolve()
        if not (options.protobuf / "bin/protoc").is_file():
            parser.error(f"--protobuf: '{options.protobuf}' has no bin/protoc: name the prefix of an installed one")
    if options.hello and any(row.kind != toolchain_rows.WHOLE for row in options.rows):
        parser.error("--hello is for rows of one compiler: name one, such as trixie-g++14-O2")
    if options.shell and not (options.names and len({row.suite for row in options.rows}) == 1):
        parser.error("--shell is for one row: name it")


# --- What is remembered.

def builds_directory():
    """This tree's build directories. A build directory belongs to one tree: CMake goes by times of files."""
    return toolchain_root.cache() / f"builds-{TOP.name}-{hashlib.sha256(str(TOP).encode()).hexdigest()[:12]}"


def installed_files(prefix):
    """What is installed below `prefix`: names, sizes and times of its files."""
    return [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(prefix.rglob("*"))
            if path.is_file()]


def sources(root, protobuf):
    """Names what a row is built of: the files of this tree, the root's packages, another protobuf. "" if the tree is
    outside of git: then nothing is remembered."""
    tree = passed_phases.digest_of_tree(TOP)
    said = f"{tree} {root.identity()} {installed_files(protobuf) if protobuf else ''}"
    return hashlib.sha256(said.encode()).hexdigest() if tree else ""


def read(path):
    """The JSON in a file; an empty object if there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def is_green(directory, named):
    """Whether the last green run of the row with that directory was of these sources."""
    return bool(named) and read(directory / "green.json").get("sources") == named


def remember_green(directory, named):
    if named:
        (directory / "green.json").write_text(json.dumps({"sources": named}), encoding="utf-8")


def keep_only_builds_of(root, directory):
    """A build directory belongs to one root, too: headers of another may be older than the objects."""
    mark = directory / "root"
    if directory.is_dir() and (not mark.is_file() or mark.read_text(encoding="utf-8") != root.identity()):
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    mark.write_text(root.identity(), encoding="utf-8")


# --- Running.

def run_row(row, root, options):
    """Runs a row. Returns its outcome: cases, and each other step as one."""
    builds = builds_directory()
    directory = builds / row.name
    keep_only_builds_of(root, directory)
    named = sources(root, options.protobuf)
    if options.changed and is_green(directory, named):
        print(f"== {row.name}: green before, with the same files", flush=True)
        return bazel_events.Outcome(skips=["green before, with the same files"])
    print(f"== {row.name}: {what_is(row)}", flush=True)
    record = directory / ("hello.json" if options.hello else "outcome.json")
    if not options.resume:
        record.unlink(missing_ok=True)
    command = ["python3", INSIDE, row.name, "--sources", named, "--outside", builds,
               *(["--resume"] if options.resume else []), *(["--hello"] if options.hello else []),
               *(["--jobs", options.jobs] if options.jobs else [])]
    status = subprocess.run(toolchain_root.enter(root, builds, command, options.protobuf), check=False).returncode
    outcome = outcome_of(read(record), status)
    if sources(root, options.protobuf) != named:
        record.unlink(missing_ok=True)  # of files that were changed meanwhile
    elif not outcome.failures and not options.hello:
        remember_green(directory, named)
    return outcome


def outcome_of(record, status):
    """The outcome of a row by the record of its steps and the exit status of what ran them."""
    outcome = bazel_events.Outcome()
    for step in record.get("steps", []):
        if step.get("before"):
            continue  # of an earlier run, and not reached in this one
        outcome.passed += step["passed"]
        outcome.failures += [f"{step['name']}: {line}" for line in step["failures"]]
        outcome.skips += [f"{step['name']}: {line}" for line in step["skips"]]
    if status != 0 and not outcome.failures:
        outcome.failures.append(f"ended with status {status} before its end; see above")
    return outcome


def table(results):
    """The lines of the last table, for (row, outcome, seconds) of each."""
    for row, outcome, seconds in results:
        counts = f"{outcome.passed} passed, {len(outcome.failures)} failed"
        yield f"{row.name:19} {seconds:5.0f} s  {counts}" + ("" if row.gates else "  (does not gate)")


def run(options):
    """Runs the chosen rows. Returns the exit status."""
    results = []
    for row in options.rows:
        start = time.monotonic()
        try:
            outcome = run_row(row, toolchain_root.make(row.suite), options)
        except toolchain_root.Failed as problem:
            if row.gates:
                raise
            outcome = bazel_events.Outcome(failures=[str(problem)])
        results.append((row, outcome, time.monotonic() - start))
    for kind, word in (("skips", "left out"), ("failures", "FAILED  ")):
        for row, outcome, _ in results:
            for line in getattr(outcome, kind):
                print(f"{word} {row.name}: {line}")
    print("\n".join(table(results)))
    gating = [outcome for row, outcome, _ in results if row.gates]
    print(f"{sum(outcome.passed for _, outcome, _ in results)} passed, "
          f"{sum(len(outcome.failures) for _, outcome, _ in results)} failed", flush=True)
    return 1 if any(outcome.failures for outcome in gating) else 0


def shell(options):
    root = toolchain_root.make(options.rows[0].suite)
    return subprocess.run(toolchain_root.enter(root, builds_directory(), ["bash"], options.protobuf),
                          check=False).returncode


def main():
    options = arguments()
    as_root = f"mounting takes root: sudo ./dev toolchains {' '.join(sys.argv[1:])}".rstrip()
    if options.hello:
        missing = [suite for suite in dict.fromkeys(row.suite for row in options.rows)
                   if not toolchain_root.is_there(suite)]
        if missing or os.geteuid() != 0:
            why = f"there is no root of Debian {missing[0]}: ./dev toolchains makes it" if missing else as_root
            print(f"toolchains: nothing is built by another compiler: {why}")
            return 0
    if os.geteuid() != 0:
        raise toolchain_root.Failed(as_root)
    with lock.locked(builds_directory()):
        return shell(options) if options.shell else run(options)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except (toolchain_root.Failed, lock.Held, OSError) as failure:
        sys.exit(f"toolchains: {failure}")
