"""What has changed since the main branch of origin: files, and folders whose statements have."""

import os
import re
import subprocess

import bazel_events

TOP = bazel_events.TOP


def git(*arguments):
    """The names that a command of git lists with -z."""
    output = subprocess.run(["git", *arguments], cwd=TOP, stdout=subprocess.PIPE, check=True).stdout
    return [name for name in output.decode().split("\0") if name]


def base():
    """The commit that this branch began with; the last commit if there is no origin."""
    found = subprocess.run(["git", "merge-base", "HEAD", "origin/HEAD"], cwd=TOP, text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return found.stdout.strip() or "HEAD"


def changed_files(since):
    """The files that differ from the commit `since`, and those that git does not know yet."""
    return set(git("diff", "-z", "--name-only", since)) | \
        set(git("ls-files", "-z", "--others", "--exclude-standard"))


def statements(text):
    """The lines of C++ without includes and comments, space made equal. A // in a text counts as a comment."""
    lines = (re.sub(r"//.*", "", line) for line in text.splitlines())
    return [" ".join(line.split()) for line in lines if line.strip() and not line.startswith("#include")]


def folders_with_statements():
    """The folders of C++ whose statements differ from those of base()."""
    since = base()
    found = set()
    for name in changed_files(since):
        if name.endswith((".cc", ".h")):
            before = subprocess.run(["git", "show", f"{since}:{name}"], cwd=TOP, text=True, errors="replace",
                                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False).stdout
            path = TOP / name
            now = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
            if statements(before) != statements(now):
                found.add(os.path.dirname(name))
    return found
