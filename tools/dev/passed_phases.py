"""Which phases of ./dev test have passed, by the content of the files that they ran on."""

import hashlib
import json
import os
import pathlib
import re
import subprocess

import bazel_events


def default_cache():
    """The directory that remembers, or None if this user has none."""
    try:
        return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / \
            "verbena-test"
    except RuntimeError:  # no HOME, and nobody in /etc/passwd
        return None


# Phases whose tests read documents, or that check or install them.
READ_DOCUMENTS = {"asan", "plain", "consumer", "lint", "deb"}


def is_document(name):
    return name.endswith(".md")


def digest_of_tree(top, without=lambda name: False):
    """A digest of the names, modes and bytes of all files that git knows or could add, `without` some.

    None for a tree outside of git.
    """
    try:
        listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others",
                                 "--exclude-standard"], cwd=top, stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL, check=True).stdout
        digest = hashlib.sha256()
        for name in sorted(set(listed.split(b"\0")) - {b""}):
            path = pathlib.Path(top) / os.fsdecode(name)
            if path.is_file() and not without(os.fsdecode(name)):
                mode = b"x" if os.access(path, os.X_OK) else b"-"
                digest.update(name + b"\0" + mode + hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()
    except (OSError, subprocess.CalledProcessError):
        return None


# Variables that change what is built or what runs: compilers, their flags, CMake's and Verbena's own.
COUNTS = re.compile(r"(?:CC|CXX|CFLAGS|CXXFLAGS|LDFLAGS|CMAKE_.*|VERBENA_.*)")


class PassedPhases:
    """The phases that have passed on the tree as it is, with the same options and environment. For those that
    read no documents, documents may have changed.

    A file below `cache` for each phase holds the number of cases that passed. Without git, or
    without a directory that can be written, nothing is remembered.
    """

    def __init__(self, options, top=bazel_events.TOP, cache=None):
        self._top = top
        self._cache = cache or default_cache()
        self._trees = self._digests()
        # With --all a phase does the same whichever others run with it.
        said = [options.all, options.filter, options.runs, options.targets,
                [] if options.all else options.only, options.kernel,
                sorted(item for item in os.environ.items() if COUNTS.fullmatch(item[0]))]
        self._said = repr(said)

    def _digests(self):
        """Digests of the tree with documents and without, or None outside of git."""
        whole = digest_of_tree(self._top)
        return whole and {True: whole, False: digest_of_tree(self._top, is_document)}

    def _tree(self, phase):
        return self._trees[phase in READ_DOCUMENTS]

    def _path(self, phase):
        key = hashlib.sha256((self._tree(phase) + self._said).encode()).hexdigest()
        return self._cache / f"{key}-{phase}.json"

    def has(self, phase):
        return self.count(phase) > 0

    def count(self, phase):
        """How many cases of the phase passed; 0 if it is not known."""
        if self._trees is None or self._cache is None:
            return 0
        try:
            return json.loads(self._path(phase).read_text())
        except (OSError, ValueError):
            return 0

    def add(self, phase, passed):
        """The phase has passed with that many cases. Of no effect if files changed meanwhile."""
        if self._trees is None or self._cache is None:
            return
        now = self._digests()
        if not now or now[phase in READ_DOCUMENTS] != self._tree(phase):
            return
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            path = self._path(phase)
            aside = path.with_suffix(".new")
            aside.write_text(json.dumps(passed))
            aside.replace(path)
        except OSError:
            pass  # the next run takes longer
