"""Which phases of ./dev test have passed, by the content of the files that they ran on."""

import hashlib
import json
import os
import pathlib
import subprocess

import bazel_events

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / \
    "verbena-test"


def digest_of_tree(top):
    """A digest of the names and bytes of all files that git knows or could add."""
    names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                           cwd=top, stdout=subprocess.PIPE, check=True).stdout.split(b"\0")
    digest = hashlib.sha256()
    for name in sorted(set(names) - {b""}):
        path = pathlib.Path(top) / os.fsdecode(name)
        if path.is_file():
            digest.update(name + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


class PassedPhases:
    """The phases that have passed on the tree as it is, with the same options.

    A file below `cache` for each phase holds the number of cases that passed. A tree outside of git
    has none, and remembers none.
    """

    def __init__(self, options, top=bazel_events.TOP, cache=CACHE):
        self._cache = cache
        said = [options.all, options.filter, options.runs, options.targets, options.only]
        try:
            tree = digest_of_tree(top)
        except (OSError, subprocess.CalledProcessError):
            tree = None
        self._key = tree and hashlib.sha256((tree + repr(said)).encode()).hexdigest()

    def _path(self, phase):
        return self._cache / f"{self._key}-{phase}.json"

    def has(self, phase):
        return self._key is not None and self._path(phase).exists()

    def count(self, phase):
        return json.loads(self._path(phase).read_text())

    def add(self, phase, passed):
        if self._key is None:
            return
        self._cache.mkdir(parents=True, exist_ok=True)
        self._path(phase).write_text(json.dumps(passed))
