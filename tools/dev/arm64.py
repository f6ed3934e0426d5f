#!/usr/bin/env python3
"""Builds library, command and tests for arm64 on this machine, and runs the tests under QEMU."""

import argparse
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import bazel_events
import ctest_cases
import lock

TOP = bazel_events.TOP
TOOLCHAIN = "tools/cmake/aarch64-linux-gnu.cmake"
ARCHITECTURE = "arm64"
# Libraries of the group "build" that only the examples, or only the compiler of this machine needs.
NOT_LINKED = {"libclang-rt-19-dev", "librocksdb-dev"}
STANDARD_LIBRARY = "libstdc++-12-dev"
# What a case prints if it executes its own program, an arm64 one, and this machine's kernel refuses.
# Death tests of the style "threadsafe" do so.
CANNOT_EXECUTE = re.compile(r"execve?\(.*failed: Exec format error")
EXECUTES_ITSELF = ("it executes itself, and this kernel executes no arm64 programs (the package qemu-user-binfmt "
                   "changes that)")
# What a case prints if QEMU aborts a child that it forked: the parent had threads, or has ended meanwhile.
QEMU_ABORTS = re.compile(r"^Bail out! ERROR:[./]*(?:plugins|accel/tcg)/\S+\.c:\d+:\w+: assertion failed", re.MULTILINE)
ABORTED_BY_QEMU = "QEMU ended a child of fork by an assertion of its own"
# What GoogleTest prints last unless it crashes.
ENDED = re.compile(r"^ *\d+ FAILED TESTS?$", re.MULTILINE)


class Failed(Exception):
    """A step failed; the text says which."""


def cache():
    """Where the sysroot and the build directories are, from run to run."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(base) / "verbena-arm64"


def run_step(command, what, **options):
    """Runs `command`, whose output goes where ours goes."""
    if subprocess.run([str(word) for word in command], check=False, **options).returncode != 0:
        raise Failed(f"{what} failed; see above")


def wanted_packages(listing):
    """The packages whose content the sysroot needs, of packages.txt."""
    lines = [line.split() for line in listing.splitlines() if line[:1] not in ("", "#")]
    return sorted({name for group, name in lines
                   if group == "build" and re.fullmatch("lib.*-dev", name)} - NOT_LINKED |
                  {STANDARD_LIBRARY})


# --- The sysroot.

def apt_configuration(state):
    """Has apt resolve and download for arm64 with nothing installed, by lists of its own below
    `state`. Sources and keys are this machine's; what it has installed stays as it is."""
    return (f'APT::Architecture "{ARCHITECTURE}";\n'
            f'APT::Architectures {{ "{ARCHITECTURE}"; }};\n'
            # Below a home directory that apt's own user cannot read.
            'APT::Sandbox::User "";\n'
            f'Dir::State "{state}";\n'
            f'Dir::State::lists "{state}/lists";\n'
            f'Dir::State::status "{state}/status";\n'
            f'Dir::Cache "{state}";\n'
            f'Dir::Cache::archives "{state}/archives";\n'
            f'Dir::Log "{state}";\n')


def download(packages, state):
    """Downloads `packages` and what they depend on. Returns the files."""
    for name in ("lists/partial", "archives/partial"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    configuration = state / "apt.conf"
    configuration.write_text(apt_configuration(state), encoding="utf-8")
    environment = {**os.environ, "APT_CONFIG": str(configuration), "DEBIAN_FRONTEND": "noninteractive"}
    # A source without arm64 makes this fail, though the others have all that is needed.
    subprocess.run(["apt-get", "update", "-q"], env=environment, check=False, stdout=sys.stderr)
    run_step(["apt-get", "install", "-q", "-y", "--no-install-recommends", "--download-only", *packages],
             f"downloading packages for {ARCHITECTURE} by apt-get", env=environment, stdout=sys.stderr)
    return sorted((state / "archives").glob("*.deb"))


def make_links_relative(sysroot):
    """Links with absolute targets lead out of the sysroot: makes them lead to the same file in it."""
    for directory, folders, files in os.walk(sysroot):
        for name in folders + files:
            path = os.path.join(directory, name)
            if os.path.islink(path) and os.path.isabs(os.readlink(path)):
                target = os.path.relpath(f"{sysroot}{os.readlink(path)}", directory)
                os.unlink(path)
                os.symlink(target, path)


def make_sysroot():
    """Returns the sysroot of packages.txt's packages, which all clones of this user share. Makes it if
    it is not there; it never changes afterwards. `sysroot-latest` beside it leads to it."""
    packages = wanted_packages((TOP / "tools/dev/packages.txt").read_text(encoding="utf-8"))
    sysroot = cache() / f"sysroot-{hashlib.sha256(' '.join(packages).encode()).hexdigest()[:12]}"
    with lock.locked(sysroot, wait=True):
        # Written last: a sysroot without it is incomplete.
        stamp = sysroot / "packages"
        if not stamp.is_file():
            fill_sysroot(sysroot, packages)
            stamp.write_text("\n".join(packages) + "\n", encoding="utf-8")
    link = cache() / "sysroot-latest"
    aside = cache() / f"sysroot-latest-{os.getpid()}"
    aside.symlink_to(sysroot.name)
    aside.replace(link)
    return sysroot


def fill_sysroot(sysroot, packages):
    """Unpacks `packages`, and what they depend on, into `sysroot`."""
    print(f"Making a sysroot for {ARCHITECTURE} in {sysroot} ...", file=sys.stderr, flush=True)
    shutil.rmtree(sysroot, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=sysroot.parent, prefix="apt-") as state:
        for package in download(packages, pathlib.Path(state)):
            run_step(["dpkg-deb", "-x", package, sysroot], f"unpacking {package.name}")
    make_links_relative(sysroot)


# --- The build.

def build_directory():
    """This tree's build directory."""
    return cache() / f"{TOP.name}-{hashlib.sha256(str(TOP).encode()).hexdigest()[:12]}"


def configure(directory, *options):
    # Afresh, because the libraries that CMake found before may lie in another sysroot. Objects stay.
    run_step(["cmake", "--fresh", "-S", TOP, "-B", directory, "-G", "Ninja", "-DBUILD_SHARED_LIBS=OFF",
              "-DVERBENA_INSTALL=OFF", *options], f"configuring {directory}", stdout=sys.stderr)


def build(directory, sysroot, jobs):
    """Builds for arm64. Returns whether all of it was built: what was can be tested all the same."""
    # Code without optimisation takes longer to run under QEMU than optimising takes.
    configure(directory, f"-DCMAKE_TOOLCHAIN_FILE={TOP / TOOLCHAIN}", f"-DVERBENA_SYSROOT={sysroot}",
              "-DVERBENA_TOOLS=ON", "-DVERBENA_TESTS=ON",
              "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O1")
    command = ["cmake", "--build", str(directory), *(["--parallel", str(jobs)] if jobs else []), "--", "-k", "0"]
    return subprocess.run(command, check=False).returncode == 0


# --- The tests.

def excuse(output):
    """Why a case is left out that failed and printed `output`: each failure is that of a death test which could not
    execute its program; or its only failure is behind an assertion of QEMU. None if the case has other failures or
    did not end by itself."""
    before, *failures = output.split(ctest_cases.FAILURE)
    if not failures or ENDED.search(output) is None:
        return None
    if all(each.startswith("Death test: ") and CANNOT_EXECUTE.search(each) for each in failures):
        return EXECUTES_ITSELF
    return ABORTED_BY_QEMU if len(failures) == 1 and QEMU_ABORTS.search(before) else None


def run(pattern=None, jobs=None):
    """Builds, tests, and returns what became of each case."""
    try:
        with lock.locked(build_directory()):
            return build_and_test(pattern, jobs)
    except (Failed, lock.Held, OSError) as problem:
        return bazel_events.Outcome(failures=[f"arm64: {problem}"])


def build_and_test(pattern, jobs):
    """The same for a process that has the build directories for itself."""
    start = time.monotonic()
    built = build(build_directory(), make_sysroot(), jobs)
    build_s = time.monotonic() - start
    outcome = ctest_cases.run_tests(build_directory(), pattern, jobs, excuse)
    outcome.build_s = build_s
    if not built:
        outcome.failures.append("arm64: something does not build; see above")
    return outcome


def arguments():
    parser = argparse.ArgumentParser(
        prog="./dev arm64",
        description="Builds library, command and tests for arm64 by CMake and clang, and runs the tests under "
                    "qemu-user. Headers and libraries are those of Debian's packages: the first run downloads them by "
                    f"apt and unpacks them below {cache()}. It installs none of them. Exit status: 0 if all passed, "
                    "otherwise 1. QEMU on x86 keeps x86's memory order: these tests cannot show what arm64's weaker "
                    "order would break.",
        epilog="example: ./dev arm64 --filter TimerWheel")
    parser.add_argument("--sysroot", action="store_true", help="only make the sysroot, and print its path")
    parser.add_argument("--filter", metavar="REGEX", help="run only the cases whose names match")
    parser.add_argument("--jobs", type=int, metavar="N", help="build and test so many at once (default: one a core)")
    options = parser.parse_args()
    if options.jobs is not None and options.jobs < 1:
        parser.error(f"--jobs is {options.jobs}, but must be at least 1")
    return options


def main():
    options = arguments()
    if options.sysroot:
        print(make_sysroot())
        return 0
    outcome = run(pattern=options.filter, jobs=options.jobs)
    for line in outcome.skips:
        print(f"left out {line}")
    for line in outcome.failures:
        print(f"FAILED   {line}")
    print(f"{outcome.passed} passed, {len(outcome.failures)} failed", flush=True)
    return 1 if outcome.failures or not outcome.passed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except Failed as failure:
        sys.exit(f"arm64: {failure}")
