"""The source tree that a test was built from, as files to read."""

import functools
import os
import pathlib
import subprocess


@functools.lru_cache(maxsize=None)
def top():
    """The workspace: where the WORKSPACE that this test was given really lies."""
    return pathlib.Path(os.path.realpath("WORKSPACE")).parent


@functools.lru_cache(maxsize=None)
def files():
    """Every file that git tracks; without git, every file outside build output. Sorted."""
    listing = subprocess.run(["git", "-C", str(top()), "ls-files", "-z"], stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, check=False) if _has_git() else None
    if listing and listing.returncode == 0:
        names = [name for name in listing.stdout.decode().split("\0") if name]
    else:
        names = [str(path.relative_to(top())) for path in top().rglob("*")]
        names = [name for name in names if not name.startswith((".git/", ".bazel/"))]
    return sorted(name for name in names if (top() / name).is_file())


def has(name):
    """Whether the file `name` is there, known to git or not yet."""
    return (top() / name).is_file()


def _has_git():
    return any(os.access(os.path.join(directory, "git"), os.X_OK)
               for directory in os.environ.get("PATH", "").split(":"))


@functools.lru_cache(maxsize=None)
def text(name):
    """The content of `name`, or "" if it is not text."""
    try:
        return (top() / name).read_text()
    except UnicodeDecodeError:
        return ""
