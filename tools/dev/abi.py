"""Compares libverbena.so of two trees: does a program that was linked with the old one run with the new?

CMake builds both without optimisation and with all types in their debug information. abidiff then
compares the exported symbols, and the types of the installed headers that these symbols reach. It
sees no template and no inline function: what those change in a program shows only if a type changes.
"""

import os
import pathlib
import re
import subprocess

COMPILER = "clang++-19"
# clang leaves out types that a file does not need whole, unless it is told not to.
OPTIONS = ("-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0 -g -fstandalone-debug -DNDEBUG",
           "-DBUILD_SHARED_LIBS=ON", "-DVERBENA_LTO=OFF", "-DVERBENA_TOOLS=OFF", "-DVERBENA_ADMIN=OFF",
           "-DVERBENA_ETCD=OFF")
SOVERSION = re.compile(r"^set\(VERBENA_SOVERSION (\d+)\)$", re.MULTILINE)
# Bits of abidiff's exit status. A changed type sets CHANGED alone, so with --no-added-syms both
# mean that linked programs may break.
FAILED = 1 | 2
CHANGED = 4 | 8
# Of what abidiff and the build print, a failure shows this many lines.
LINES = 80


class AbiError(Exception):
    """What has changed though the soname has not, or why the libraries cannot be compared."""


class NothingToCompare(Exception):
    """The old tree has no CMake build."""


def soversion(top):
    """VERBENA_SOVERSION of the tree at `top`."""
    file = pathlib.Path(top) / "CMakeLists.txt"
    if not file.is_file():
        raise NothingToCompare("the old version has no CMakeLists.txt, so nobody has linked its libverbena.so")
    found = SOVERSION.search(file.read_text(encoding="utf-8"))
    if not found:
        raise AbiError(f"{file} has no line set(VERBENA_SOVERSION N)")
    return int(found[1])


def _run(command, accepted=(0,)):
    # (exit status, what the command printed). AbiError if the status is not one of `accepted`.
    command = [str(word) for word in command]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", check=False)
    except FileNotFoundError as error:
        raise AbiError(f"there is no {command[0]}: run ./dev install-deps build upgrade") from error
    if done.returncode not in accepted:
        said = "\n".join(done.stdout.splitlines()[-LINES:])
        raise AbiError(f"{' '.join(command)} ended with status {done.returncode}\n{said}")
    return done.returncode, done.stdout


def build(top, directory):
    """Builds the tree at `top` in `directory`, where an earlier build is taken up. Returns the paths of
    libverbena.so and of its installed headers."""
    objects, installed = directory / "build", directory / "installed"
    _run(["cmake", "-S", top, "-B", objects, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={COMPILER}",
          f"-DCMAKE_INSTALL_PREFIX={installed}", "-DCMAKE_INSTALL_LIBDIR=lib", *OPTIONS])
    # A header that is no longer installed must not be taken for one of this version's.
    _run(["cmake", "-E", "rm", "-rf", installed])
    _run(["cmake", "--build", objects])
    _run(["cmake", "--install", objects])
    return installed / "lib" / "libverbena.so", installed / "include"


def changes(old, new):
    """What abidiff finds between two results of build(): empty if programs of `old` run with `new`."""
    (old_library, old_headers), (new_library, new_headers) = old, new
    # Without the full paths both versions' libraries have one name in what abidiff prints.
    status, said = _run(["abidiff", "--no-added-syms", "--fail-no-debug-info", "--no-corpus-path",
                         "--headers-dir1", old_headers, "--headers-dir2", new_headers,
                         os.path.realpath(old_library), os.path.realpath(new_library)],
                        accepted=[status for status in range(16) if not status & FAILED])
    return said.strip() if status & CHANGED else ""


def check(old_top, new_top, directory):
    """Returns a sentence on what was compared. AbiError if programs that were linked with the old
    version would no longer run, and the soname does not say so."""
    before, now = soversion(old_top), soversion(new_top)
    if now < before:
        raise AbiError(f"VERBENA_SOVERSION in CMakeLists.txt is {now}, but was {before}: it must not sink")
    if now > before:
        return f"VERBENA_SOVERSION was raised from {before} to {now}"
    found = changes(build(old_top, directory / "old"), build(new_top, directory / "new"))
    if found:
        lines = found.splitlines()
        left_out = f"\n({len(lines) - LINES} more lines)" if len(lines) > LINES else ""
        raise AbiError("programs that were linked with the old libverbena.so may not run with the new one: undo "
                       "the change, or raise VERBENA_SOVERSION in CMakeLists.txt and say so in CHANGELOG.md. "
                       "abidiff says:\n" + "\n".join(lines[:LINES]) + left_out)
    return f"VERBENA_SOVERSION is {now}, and abidiff found no change"
