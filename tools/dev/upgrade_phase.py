"""The upgrade phase of ./dev test: this version of Verbena and the one before talk to each other.

tests/upgrade/previous names the commit of the version before. A worktree of it lies below the user's
cache directory and stays there, with what Bazel has built in it. Clients of one version run against
servers of the other, and servers restart one by one as the other version while a client works. First, libverbena.so of the two is compared (abi.py).
Nothing waits by a clock: a server says that it listens, a client says that it has worked, and
processes end. A case that takes longer than CASE_S has its processes killed.
"""

import contextlib
import hashlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import abi
import bazel_events
import lock

PREVIOUS = "tests/upgrade/previous"
# The client of the rolling restarts is today's source in both versions: only the library differs.
OVERLAY = ("tests/upgrade/BUILD", "tests/upgrade/upgrade_load.cc")
TARGETS = ("//examples/block_store:block_store_server", "//examples/kv:kv_demo", "//examples/kv:kv_server",
           "//examples/stream:stream_demo", "//tests/upgrade:upgrade_load")
DEVICES = ("soft", "soft:tcp")
SERVERS = 3
# Ten times what the longest case takes.
CASE_S = 300


class UpgradeError(Exception):
    """Why a case has failed, or why the phase cannot run."""


class Programs:
    """The programs that one version's build has left."""

    def __init__(self, version, binaries):
        self.version = version
        self._binaries = pathlib.Path(binaries)

    def path(self, target):
        return str(self._binaries / target[2:].replace(":", "/"))


def git(top, *arguments):
    """What git prints; UpgradeError with its words if it fails."""
    result = subprocess.run(["git", "-C", str(top), *arguments], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        raise UpgradeError(f"git {' '.join(arguments)}: {result.stderr.strip()}")
    return result.stdout.strip()


def previous_commit(top):
    """The commit that PREVIOUS names. UpgradeError if the clone does not have it."""
    commit = (pathlib.Path(top) / PREVIOUS).read_text(encoding="utf-8").strip()
    if not re.fullmatch("[0-9a-f]{40}", commit):
        raise UpgradeError(f"{PREVIOUS} says '{commit}', but must be one commit of 40 hexadecimal digits")
    try:
        git(top, "cat-file", "-e", f"{commit}^{{commit}}")
    except UpgradeError as error:
        raise UpgradeError(f"{PREVIOUS} names the commit {commit}, which this clone does not have. If the clone "
                           f"is shallow, run: git fetch --unshallow. Git says: {error}") from error
    return commit


def default_path(top):
    """Where the worktree of a clone's previous version lies."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    digest = hashlib.sha256(str(top).encode()).hexdigest()[:12]
    return cache / "verbena-upgrade" / f"{pathlib.Path(top).name}-{digest}"


def update_worktree(top, path, commit):
    """Makes `path` a worktree of `commit`, with today's client of the restarts. What is built there
    stays."""
    try:
        own = pathlib.Path(git(path, "rev-parse", "--show-toplevel")).resolve() == path.resolve()
    except UpgradeError:
        own = False
    if own:
        git(path, "checkout", "--quiet", "--force", "--detach", commit)
        git(path, "clean", "--quiet", "--force", "-d")
    else:
        shutil.rmtree(path, ignore_errors=True)
        git(top, "worktree", "prune")
        git(top, "worktree", "add", "--quiet", "--force", "--detach", str(path), commit)
    for name in (*OVERLAY, ".bazelrc.user"):
        if (top / name).is_file():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(top / name, path / name)


def build(version, top, flags=()):
    """Builds TARGETS in the tree at `top`."""
    status, _ = bazel_events.run("build", [*flags, "--", *TARGETS], top=top)
    if status != 0:
        raise UpgradeError(f"the {version} version does not build: bazel build ended with status {status} in {top}")
    info = subprocess.run([bazel_events.BAZEL, "info", "--noshow_progress", "bazel-bin"], cwd=top,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return Programs(version, info.stdout.strip())


def kill_group(process):
    """Kills the process and those that it has started, of which its demo may have left some."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class Processes:
    """The processes of one case, all on one device. None outlives the case, nor does what it started."""

    def __init__(self, device):
        self._environment = dict(os.environ, VERBENA_DEVICE=device)
        self._all = []
        self._late = False
        self._watchdog = threading.Timer(CASE_S, self._give_up)

    def __enter__(self):
        self._watchdog.start()
        return self

    def __exit__(self, *_):
        self._watchdog.cancel()
        for process in self._all:
            kill_group(process)
            process.wait()
            for file in (process.stdin, process.stdout):
                if file is not None:
                    with contextlib.suppress(BrokenPipeError):
                        file.close()

    def _give_up(self):
        self._late = True
        for process in list(self._all):
            kill_group(process)

    def start(self, command):
        process = subprocess.Popen(command, env=self._environment, text=True, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, start_new_session=True)
        self._all.append(process)
        if self._late:  # the watchdog may have missed this one
            kill_group(process)
        return process

    def line(self, process, begins):
        """What the process's next line says after `begins`."""
        line = process.stdout.readline()
        if not line.startswith(begins):
            said = f"said '{line.strip()}'" if line else "ended"
            raise UpgradeError(f"{self._name(process)} {said} instead of saying '{begins}'{self._if_late()}")
        return line[len(begins):].strip()

    def end(self, process):
        """The rest of what the process says, once it has ended well."""
        rest = process.stdout.read()
        status = process.wait()
        if status != 0:
            raise UpgradeError(f"{self._name(process)} ended with status {status}{self._if_late()}\n{rest}".rstrip())
        return rest

    def _if_late(self):
        return f"; the case took longer than {CASE_S} s" if self._late else ""

    @staticmethod
    def _name(process):
        return pathlib.Path(process.args[0]).name


class Server:
    """A block_store_server that restarts at its address, as one version or the other."""

    def __init__(self, processes, programs, directory):
        self._processes = processes
        self._directory = directory
        self._process = None
        self.address = "127.0.0.1:0"
        self.start(programs)

    def start(self, programs):
        self._process = self._processes.start([
            programs.path("//examples/block_store:block_store_server"), f"--address={self.address}",
            f"--directory={self._directory}", "--grace_s=30"])
        self.address = self._processes.line(self._process, "listening on ")

    def stop(self):
        """Ends it in order: running calls and streams end first."""
        self._process.send_signal(signal.SIGTERM)
        self._processes.end(self._process)


def run_streams(client, server, processes, directory):
    """Calls with and without payloads beside streams of each kind; the demo compares all bytes."""
    server_path = server.path("//examples/block_store:block_store_server")
    demo = processes.start([client.path("//examples/stream:stream_demo"), "--megabytes=16", "--readers=4",
                            f"--directory={directory}", f"--server={server_path}"])
    said = processes.end(demo)
    if not said.endswith("errors 0\n"):
        raise UpgradeError(f"stream_demo found other bytes:\n{said}")


def run_kv(client, server, processes, _):
    """Deduplicated calls, payloads of all sizes and paged reads; the demo compares all bytes."""
    texts = [str(bazel_events.TOP / name) for name in ("CHANGELOG.md", "proto/WIRE.md", "docs/guide.md")]
    processes.end(processes.start([client.path("//examples/kv:kv_demo"),
                                   f"--server={server.path('//examples/kv:kv_server')}", *texts]))


def run_restarts(client, rounds, processes, directory):
    """Restarts each of SERVERS servers, one after another, as the versions of `rounds` in turn, while a
    client works. The first of `rounds` is the version that they begin with."""
    servers = []
    for number in range(SERVERS):
        own = pathlib.Path(directory) / str(number)
        own.mkdir()
        servers.append(Server(processes, rounds[0], own))
    load = processes.start([client.path("//tests/upgrade:upgrade_load"),
                            "--servers=" + ",".join(server.address for server in servers)])

    def await_round():
        load.stdin.write("\n")
        load.stdin.flush()
        processes.line(load, "ready")

    await_round()
    for programs in rounds[1:]:
        for server in servers:
            server.stop()
            server.start(programs)
            await_round()
    load.stdin.close()
    print(f"   {processes.end(load).strip()}", flush=True)
    for server in servers:
        server.stop()


def cases(old, new):
    """(name, device, what to run with the case's processes and directory) of each case."""
    found = []
    for device in DEVICES:
        for client, server in ((old, new), (new, old)):
            for what, run_demo in (("streams", run_streams), ("kv", run_kv)):
                found.append((f"{client.version} client, {server.version} server, {what}, {device}", device,
                              lambda *case, demo=run_demo, pair=(client, server): demo(*pair, *case)))
        for client in (old, new):
            found.append((f"{client.version} client, servers restarted from old to new and back, {device}", device,
                          lambda *case, client=client: run_restarts(client, (old, new, old), *case)))
    return found


def judge(name, case):
    """Runs `case`, which may return what to print of it. Returns its Outcome, and prints it."""
    start = time.monotonic()
    try:
        found = case()
    except abi.NothingToCompare as reason:
        print(f"skipped {name}: {reason}", flush=True)
        return bazel_events.Outcome(skips=[f"{name}: {reason}"])
    except (UpgradeError, abi.AbiError, OSError, subprocess.SubprocessError) as error:
        print(f"FAILED  {name}: {error}", flush=True)
        return bazel_events.Outcome(failures=[f"{name}: {error}"])
    print(f"passed  {name}{f': {found}' if found else ''}, {time.monotonic() - start:.0f} s", flush=True)
    return bazel_events.Outcome(passed=1)


def run_cases(listed):
    """Runs the cases one after another. Returns their Outcome."""
    outcome = bazel_events.Outcome()
    for name, device, case in listed:
        def in_its_directory(device=device, case=case):
            # On a disk: block_store_server goes past the page cache.
            with tempfile.TemporaryDirectory(prefix="verbena-upgrade-", dir="/var/tmp") as directory, \
                    Processes(device) as processes:
                case(processes, directory)
        outcome.add(judge(name, in_its_directory))
    return outcome


def run_abi(old_top, top, directory):
    """Compares libverbena.so of both trees, which are built below `directory`. Returns the Outcome."""
    return judge("programs linked with the old libverbena.so run with the new one",
                 lambda: abi.check(old_top, top, directory))


def run(top=bazel_events.TOP, path=None):
    """Builds both versions, and runs all cases between them."""
    outcome = bazel_events.Outcome()
    start = time.monotonic()
    try:
        commit = previous_commit(top)
        path = path or default_path(top)
        with lock.locked(path):
            update_worktree(top, path, commit)
            outcome.add(run_abi(path, top, path.with_name(f"{path.name}-abi")))
            start = time.monotonic()
            # A library that today's client uses may be visible to less in the version before.
            old = build("old", path, ["--nocheck_visibility"])
            new = build("new", top)
            build_s = time.monotonic() - start
            outcome.add(run_cases(cases(old, new)))
            outcome.build_s = build_s
    except (UpgradeError, lock.Held, OSError, subprocess.SubprocessError) as error:
        outcome.failures.append(str(error))
    return outcome
