"""A copy of the tree in which ./dev mutants plants faults, and what it caught before."""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import subprocess

import mutant_blocks
import mutant_switch


def cache():
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(home) / "verbena-mutants"


class MutantTree:
    """A copy of the tree at `top`, with what is not committed. It stays from run to run, and what
    Bazel has built in it. One process at a time has it (lock())."""

    def __init__(self, top, where=None):
        self.top = pathlib.Path(top)
        name = f"{self.top.name}-{hashlib.sha256(str(self.top).encode()).hexdigest()[:12]}"
        self.path = pathlib.Path(where or cache() / name)

    @contextlib.contextmanager
    def lock(self):
        """Raises BlockingIOError if another process has the tree."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{self.path}.lock", "w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield self

    def update(self, faults):
        """Makes the copy one of today's tree with a switch for each fault, but for those that it
        returns: they can only be planted alone."""
        names, alone = files(self.top), []
        by_file = {}
        for fault in faults:
            by_file.setdefault(fault.file, []).append(fault)
        for name in names:
            content = None
            if name in by_file:
                content, single = mutant_switch.switched(by_file[name],
                                                         (self.top / name).read_text())
                alone += single
            self._put(name, content)
        for name in set(_walk(self.path)) - set(names):
            (self.path / name).unlink()
        return alone

    def plant(self, fault):
        """Plants one fault in its file, in place of all switches there."""
        self._put(fault.file, mutant_blocks.planted(fault, (self.top / fault.file).read_text()))

    def _put(self, name, content):
        # Leaves a file that needs no change alone: it stays built.
        source, target = self.top / name, self.path / name
        data = source.read_bytes() if content is None else content.encode()
        if not target.is_symlink() and target.is_file() and target.read_bytes() == data and (
                target.stat().st_mode == source.stat().st_mode):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.write_bytes(data)
        shutil.copymode(source, target)


def files(top):
    """The files that git tracks or would add, and the user's options for Bazel."""
    listing = subprocess.run(["git", "-C", str(top), "ls-files", "-z", "--cached", "--others",
                              "--exclude-standard"], stdout=subprocess.PIPE, check=True)
    names = set(listing.stdout.decode().split("\0")) | {".bazelrc.user"}
    return sorted(name for name in names if name and (top / name).is_file())


def _walk(path):
    for directory, folders, names in os.walk(path):
        folders[:] = [name for name in folders if name != ".bazel"]
        for name in names:
            yield os.path.relpath(os.path.join(directory, name), path)


def sources_of(test, text):
    """The sources of a test, whether its rule names it, makes it from a list of names, or takes all of its folder.
    `text` is the content of a file by its name, or ""."""
    package, name = test[2:].split(":")
    build = text(f"{package}/BUILD")
    listed = next((name for name in (name, name.removesuffix("_test")) if f'"{name}"' in build), None)
    if not listed and "verbena_tests(" not in build:
        return []
    rule = re.search(rf'name = "{name}",\n(.*?)\n *\)', build, re.DOTALL)
    row = re.search(rf'\(\s*"{listed}",(.*?)\),?\n', build, re.DOTALL) if listed and not rule else None
    sources = {f"{name}.cc"}
    for named in re.findall(r"\[(.*?)\]", (rule or row).group(1) if rule or row else "", re.DOTALL):
        words = re.findall(r'"(\w+(?:\.cc)?)"', named)
        sources |= {word if word.endswith(".cc") else f"{word}.cc" for word in words}
    if not rule and not row:  # one of a list, and further sources of all of them
        for named in re.findall(r"srcs = \[(.*?)\]", build, re.DOTALL):
            words = set(re.findall(r'"([^"]+)"', named))
            sources |= words if f"{name}.cc" in words else set()
    paths = [f"{package}/{source}" for source in sorted(sources)]
    return [path for path in paths if text(path)]


class Verdicts:
    """The faults that were caught before: a line for each, with its file and its test's sources as
    they were. All trees of a user share them."""

    def __init__(self, top, path=None):
        self._top = pathlib.Path(top)
        self._path = pathlib.Path(path or cache() / "caught")
        known = self._path.read_text(encoding="utf-8").split() if self._path.exists() else []
        self._known = set(known)
        self._keys = {}

    def _text(self, name):
        path = self._top / name
        return path.read_text() if path.is_file() else ""

    def read(self, faults):
        """Reads the files of `faults` now: those that are tested, whatever becomes of them."""
        self._keys = {fault.name: self._key(fault) for fault in faults}

    def _key(self, fault):
        if fault.name in self._keys:
            return self._keys[fault.name]
        code = [fault.text, fault.replacement, fault.test, fault.case, fault.file,
                self._text(fault.file)]
        code += [self._text(name) for name in sources_of(fault.test, self._text)]
        return hashlib.sha256(repr(code).encode()).hexdigest()

    def caught(self, fault):
        return self._key(fault) in self._known

    def note_caught(self, fault):
        key = self._key(fault)
        if key not in self._known:
            self._known.add(key)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(f"{key}\n")
