"""Roots of newer Debian releases, with their compilers and libraries, and how a command runs in one.

A root is made once by mmdebstrap, beside its final place, and renamed when it is whole. It never changes afterwards:
commands run in a mount namespace in which it is read-only.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import bazel_events
import debian_archive
import lock

TOP = bazel_events.TOP
ENTER = TOP / "tools/dev/toolchain_enter.sh"
# Written last, into the root: its packages, their versions, and its newest compilers.
STAMP = "verbena-root.json"
# Where commands in a root find this tree, the build directories, ccache's files and another protobuf. The same for all
# clones, because ccache hashes paths.
PLACES = ("verbena", "builds", "ccache", "protobuf")
ROOT_BYTES = 2_500_000_000  # with the archives, while it is made
# Loopback names, which a test looks up. mmdebstrap writes no such file.
HOSTS = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"

COMMON = ("ccache", "cmake", "etcd-server", "git", "iproute2", "libabsl-dev", "libcli11-dev", "libfmt-dev",
          "libgmock-dev", "libgtest-dev", "libibverbs-dev", "libisal-dev", "libprotobuf-dev", "libprotoc-dev",
          "librdmacm-dev", "librocksdb-dev", "libssl-dev", "liburing-dev", "make", "netbase", "ninja-build",
          "pkg-config", "procps", "protobuf-compiler", "python3", "valgrind")
# By suite. '*' in a name stands for the newest version that the suite has.
SUITES = {
    "trixie": ("clang-19", "g++-13", "g++-14", "libboost1.83-dev", "libclang-rt-19-dev", "lld-19"),
    "sid": ("clang-*", "g++-*", "g++-15", "libboost-dev", "libclang-rt-*-dev", "lld-*"),
}
CLANG = ("clang-*", "libclang-rt-*-dev", "lld-*")  # of one version


class Failed(Exception):
    """Why there is no root: a text for whoever runs the command."""


@dataclasses.dataclass(frozen=True)
class Root:
    """A root that is whole."""

    path: pathlib.Path

    def identity(self):
        """Differs between roots with other packages or other versions of them."""
        return hashlib.sha256((self.path / STAMP).read_bytes()).hexdigest()[:12]


def cache():
    """Where roots, build directories and ccache's files are, from run to run."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(base) / "verbena-toolchains"


def listed_packages(suite):
    """The names of a root's packages; those with '*' are still to be found."""
    return sorted((*COMMON, *SUITES[suite]))


def root_path(suite):
    digest = hashlib.sha256(" ".join(listed_packages(suite)).encode()).hexdigest()[:12]
    return cache() / f"root-{suite}-{digest}"


def is_there(suite):
    """Whether the root of `suite` is whole."""
    return (root_path(suite) / STAMP).is_file()


def make(suite):
    """Returns the root of `suite`, which all clones of this user share. Makes it if it is not there."""
    path = root_path(suite)
    with lock.locked(path, wait=True):
        if not is_there(suite):
            fill(suite, path)
    return Root(path)


def remove(path):
    """Removes what was left half-made. What another system has mounted there stays."""
    if path.exists() and subprocess.run(["rm", "-rf", "--one-file-system", path], check=False).returncode != 0:
        raise Failed(f"{path} was left half-made, and cannot be removed: see above")


def fill(suite, path):
    """Makes the root at `path`."""
    aside = path.with_name(path.name + ".new")
    for left in (aside, path, *path.parent.glob(f"apt-{suite}-*")):
        remove(left)
    free = shutil.disk_usage(path.parent).free
    if free < ROOT_BYTES:
        raise Failed(full_disk(path.parent, free))
    try:
        lines = debian_archive.sources()
        source = f"deb {debian_archive.uri(lines)} {suite} main"
    except (debian_archive.Failed, OSError, subprocess.CalledProcessError) as problem:
        raise Failed(f"this machine's apt does not say where Debian's archive is: {problem}") from problem
    print(f"Making a root of Debian {suite} in {path}: a minute, 1.6 GB ...", file=sys.stderr, flush=True)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f"apt-{suite}-") as state:
            packages = listed_packages(suite)
            if any("*" in name for name in packages):
                packages = with_newest(packages, package_names(source, suite, pathlib.Path(state)))
            bootstrap(suite, source, packages, aside, pathlib.Path(state))
        finish(aside, packages)
        aside.rename(path)
    except BaseException:
        remove(aside)
        raise


def full_disk(directory, free=None):
    left = f" ({free / 1e9:.1f} GB are free)" if free is not None else ""
    return f"the disk of {directory} is full{left}: a root takes {ROOT_BYTES / 1e9:.1f} GB while it is made"


# --- Packages.

def package_names(source, suite, state):
    """All names that the suite has, by lists of packages below `state`. This machine's own lists stay as they are."""
    for name in ("lists/partial", "archives/partial"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    (state / "sources.list").write_text(source + "\n", encoding="utf-8")
    configuration = state / "apt.conf"
    configuration.write_text(f'APT::Sandbox::User "root";\nDir::State "{state}";\nDir::State::lists "{state}/lists";\n'
                             f'Dir::State::status "{state}/status";\nDir::Cache "{state}";\n'
                             f'Dir::Etc::sourcelist "{state}/sources.list";\nDir::Etc::sourceparts "/dev/null";\n',
                             encoding="utf-8")
    environment = {**os.environ, "APT_CONFIG": str(configuration), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(["apt-get", "update", "-q", "--error-on=any"], env=environment, check=False, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise Failed(explain(done.stdout, suite, source, state.parent))
    return subprocess.run(["apt-cache", "pkgnames"], env=environment, check=True, text=True,
                          stdout=subprocess.PIPE).stdout.split()


def versions(pattern, names):
    """The versions for which there is a package of that name."""
    expression = re.compile(re.escape(pattern).replace(r"\*", r"(\d+)"))
    return {int(found[1]) for name in names if (found := expression.fullmatch(name))}


def with_newest(packages, names):
    """`packages` with the newest version in the place of each '*'. Those of clang are of one version."""
    clangs = set.intersection(*(versions(pattern, names) for pattern in CLANG))
    chosen = {name for name in packages if "*" not in name}
    for name in set(packages) - chosen:
        found = clangs if name in CLANG else versions(name, names)
        if not found:
            raise Failed(f"the suite has no package {name}")
        chosen.add(name.replace("*", str(max(found))))
    return sorted(chosen)


def compilers(packages):
    """The newest compilers among packages, by kind."""
    return {kind: f"{kind}-{max(versions(pattern, packages))}"
            for kind, pattern in (("g++", "g++-*"), ("clang++", "clang-*"))}


# --- mmdebstrap.

def bootstrap(suite, source, packages, directory, state):
    """Has mmdebstrap make a Debian in `directory`."""
    settings = state / "machine.conf"
    settings.write_text(debian_archive.settings(), encoding="utf-8")
    command = ["mmdebstrap", "--variant=minbase", f"--aptopt={settings}", '--aptopt=APT::Sandbox::User "root"',
               # Nobody misses a root after a crash: syncing each file takes most of the time.
               "--dpkgopt=force-unsafe-io", f"--include={','.join(packages)}", suite, str(directory), "-"]
    # What it mounts leaves with it, also if it is killed.
    done = subprocess.run([*own_namespace(), *command], input=source + "\n", check=False, text=True,
                          env={**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise Failed(explain(done.stdout, suite, source, directory.parent))


# What mmdebstrap or apt says, and what that means. The first that matches counts.
REASONS = (
    (r"No space left on device|enough free space", lambda _, __, directory: full_disk(directory)),
    (r"NO_PUBKEY|is not signed|no keyring|[Kk]eyring .*(?:not|no) ",
     lambda suite, _, __: f"this machine has no key of Debian {suite}'s archive: install a newer "
                          "debian-archive-keyring"),
    (r"does not have a Release file|404  Not Found",
     lambda suite, source, _: f"{source.split()[1]} has no suite {suite} (any more): apt's sources say which archive "
                              "is taken, and Debian keeps old suites in another one"),
    (r"Temporary failure|Could not (?:resolve|connect)|Unable to connect|[Nn]etwork is unreachable|timed out",
     lambda _, source, __: f"{source.split()[1]} cannot be reached: a root is downloaded once, by this machine's "
                           "apt, and needs the network"),
)


def explain(output, suite, source, directory):
    """Why no root was made, by what mmdebstrap or apt printed."""
    for pattern, reason in REASONS:
        if re.search(pattern, output):
            return reason(suite, source, directory)
    lines = [line for line in output.splitlines() if line.startswith(("E:", "W:"))] or output.splitlines()
    return f"making a root of Debian {suite} failed:\n" + "\n".join(lines[-10:])


def finish(directory, packages):
    """What Debian lacks for commands that run there, and last the stamp."""
    (directory / "etc/hosts").write_text(HOSTS, encoding="utf-8")
    for name in PLACES:
        (directory / name).mkdir(exist_ok=True)
    installed = subprocess.run(["dpkg-query", f"--admindir={directory}/var/lib/dpkg", "-W"], check=True, text=True,
                               stdout=subprocess.PIPE).stdout.splitlines()
    (directory / STAMP).write_text(json.dumps({"packages": packages, "compilers": compilers(packages),
                                               "installed": installed}, indent=1), encoding="utf-8")


# --- Commands in a root.

def own_namespace():
    """Runs what follows with mounts and processes of its own, which end with it, and with who starts it."""
    return ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child"]


def enter(root, builds, command, protobuf=None):
    """The command line that runs `command` in `root`, with this tree, the directory `builds`, and ccache's."""
    ccache = cache() / "ccache"
    for directory in (builds, ccache):
        directory.mkdir(parents=True, exist_ok=True)
    return [str(word) for word in (*own_namespace(), ENTER, root.path, TOP, builds, ccache, protobuf or "-", *command)]
