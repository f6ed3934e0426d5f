"""Debian packages for the guest, as apt has them: downloaded and unpacked, never installed."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "dev"))
import debian_archive

# The suites whose kernels a guest can boot. The first is this machine's Debian.
SUITES = ("bookworm", "trixie")
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / (
    "verbena-vm")


class Unavailable(Exception):
    """The guest cannot run; the text says what is missing and what mends it."""


def output_of(*command):
    """The output of a command, or "" if it fails or is not there."""
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                              check=False).stdout
    except FileNotFoundError:
        return ""


def source(suite):
    """The line of a sources.list for `suite`, at the archive that this machine's Debian is from."""
    try:
        return f"deb {debian_archive.uri(debian_archive.sources())} {suite} main"
    except (debian_archive.Failed, OSError, subprocess.CalledProcessError) as problem:
        raise Unavailable(str(problem)) from problem


class Archive:
    """The packages of one suite.

    `cache` is where to keep what comes from them. For this machine's own Debian apt's lists count.
    Another suite has lists of its own in `cache`: they are fetched once, so that each run boots the
    same kernel, until somebody removes `cache`.
    """

    def __init__(self, suite):
        self.suite = suite
        self.is_this_machines = suite == SUITES[0]
        self.cache = CACHE if self.is_this_machines else CACHE / suite
        self._lists = self.cache / "apt"

    def dependency(self, package, pattern):
        """The package that `package` depends on and whose name matches, or "" if apt knows none."""
        found = re.search(rf"Depends: ({pattern})$", self._ask("depends", package), re.MULTILINE)
        return found[1] if found else ""

    def version(self, package):
        shown = self._ask("show", "--no-all-versions", package)
        return re.search(r"^Version: (\S+)", shown, re.MULTILINE)[1]

    def download(self, packages, directory):
        """Downloads packages ("name=version") and unpacks them below `directory`."""
        with tempfile.TemporaryDirectory(dir=directory) as into:
            result = subprocess.run(["apt-get", *self._settings(), "download", *packages], cwd=into,
                                    text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                    check=False)
            if result.returncode != 0:
                mend = ("Run apt-get update (as root) and try again." if self.is_this_machines else
                        f"Remove {self.cache} and try again: then the newest kernel is taken.")
                raise Unavailable(
                    f"cannot download {' '.join(packages)}:\n{result.stdout.strip()}\n{mend}")
            for package in pathlib.Path(into).glob("*.deb"):
                subprocess.run(["dpkg", "-x", package, directory], check=True)

    def _ask(self, *words):
        return output_of("apt-cache", *self._settings(), *words)

    def _settings(self):
        """The options that have apt read this suite's lists."""
        if self.is_this_machines:
            return []
        if not self._lists.exists():
            self._fetch_lists()
        return apt_settings(self._lists)

    def _fetch_lists(self):
        print(f"vm: fetching the package lists of {self.suite} (once)", file=sys.stderr, flush=True)
        line = source(self.suite)
        self.cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.cache, prefix="apt-") as temporary:
            made = pathlib.Path(temporary) / "apt"
            for name in ("lists/partial", "archives/partial"):
                (made / name).mkdir(parents=True)
            (made / "sources.list").write_text(f"{line}\n")
            result = subprocess.run(["apt-get", *apt_settings(made), "update", "--error-on=any"],
                                    text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                    check=False)
            if result.returncode != 0:
                errors = [line for line in result.stdout.splitlines() if line.startswith("E: ")]
                raise Unavailable(f"cannot fetch the package lists of {self.suite}:\n"
                                  f"{errors[0] if errors else result.stdout.strip()}\n"
                                  f"The archive must be reachable, and must have {self.suite}.")
            rename_unless_there(made, self._lists)


def apt_settings(state):
    """Has apt keep its state in the directory `state`, apart from this machine's, and read only the
    sources there. Keys and proxies are this machine's."""
    settings = {"Dir::Etc::sourcelist": state / "sources.list",
                "Dir::Etc::sourceparts": "/dev/null",
                "Dir::State": state, "Dir::State::lists": state / "lists",
                "Dir::State::status": "/dev/null", "Dir::Cache": state,
                # Below a home directory that apt's own user cannot read.
                "APT::Sandbox::User": ""}
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def rename_unless_there(made, path):
    """Gives what is complete its name, unless another process was faster."""
    try:
        made.rename(path)
    except OSError:
        if not path.exists():
            raise
