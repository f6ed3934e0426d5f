"""Runs pyverbs' own tests on the soft device, module by module, each case counted.

Debian's python3-pyverbs has no tests. They are in rdma-core's source, of which the upstream archive is downloaded and
its tests are unpacked below ~/.cache/verbena-soft.
"""

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import tarfile
import tempfile

import soft_rows

# The modules about what the soft device has.
MODULES = ("test_device", "test_pd", "test_mr", "test_cq", "test_cq_events", "test_cqex", "test_addr", "test_qp",
           "test_qpex", "test_atomic", "test_parent_domain", "test_relaxed_ordering", "test_rdmacm")
# Cases about other transports and memory: by words of a case's name.
NOT_APPLYING = re.compile(
    r"(^|[._])(ud|udp|uc|raw|xrc|srd|dc|dct|dm|dmabuf|odp|rss|mcast|multicast|mw_type1|tso|tm|ts|lag)($|[._])"
    r"|DmaBuf|DMMR|DeviceMemory|UD[A-Z]?|XRC|Raw|Multicast", re.ASCII)
MODULE_SECONDS = 120
SHARE_THAT_PASSES = 0.9
RUNNER = pathlib.Path(__file__).resolve().with_name("soft_pyverbs_cases.py")
CRASHED = "crashed"


class NoTests(Exception):
    """The tests cannot be had; the text says why."""


@dataclasses.dataclass
class Case:
    name: str
    outcome: str  # passed, failed, skipped, crashed, not applicable
    reason: str = ""


def _cache():
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "verbena-soft"


def _installed_version():
    done = subprocess.run(["dpkg-query", "-W", "-f=${Version}", "python3-pyverbs"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True, check=False)
    if done.returncode != 0 or not done.stdout:
        raise NoTests("python3-pyverbs is not installed")
    return done.stdout


def _download(directory, version):
    """Has apt download the source package into `directory`, by lists of its own: hosts rarely have deb-src lines."""
    sources = directory / "sources.list"
    sources.write_text("deb-src http://deb.debian.org/debian bookworm main\n"
                       "deb-src http://deb.debian.org/debian-security bookworm-security main\n", encoding="ascii")
    (directory / "lists/partial").mkdir(parents=True)
    options = ["-q", "-o", f"Dir::Etc::SourceList={sources}", "-o", "Dir::Etc::SourceParts=/dev/null",
               "-o", f"Dir::State::Lists={directory / 'lists'}", "-o", "Acquire::Languages=none"]
    for words in (["update"], ["source", "--download-only", f"rdma-core={version}"]):
        done = subprocess.run(["apt-get", *options, *words], cwd=directory, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            raise NoTests(f"apt-get {words[0]}: {soft_rows.last_words(done.stdout)}")


def _unpack(archive, target):
    """The folder tests/ of `archive`, as `target`/tests."""
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            path = pathlib.PurePosixPath(member.name)
            if member.isfile() and len(path.parts) == 3 and path.parts[1] == "tests" and path.suffix == ".py":
                (target / "tests").mkdir(parents=True, exist_ok=True)
                (target / "tests" / path.name).write_bytes(tar.extractfile(member).read())


def find_tests():
    """The directory that holds pyverbs' tests/, of the version that is installed."""
    named = os.environ.get("VERBENA_PYVERBS_TESTS")
    version = _installed_version()
    if named:
        return pathlib.Path(named)
    target = _cache() / f"rdma-core-{version}"
    if (target / "tests").is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        fresh = pathlib.Path(name)
        _download(fresh, version)
        archives = list(fresh.glob("rdma-core_*.orig.tar.*"))
        if not archives:
            raise NoTests("the source package has no upstream archive")
        _unpack(archives[0], fresh / "unpacked")
        try:
            os.rename(fresh / "unpacked", target)
        except OSError:  # whoever is first wins; the others' copies are the same
            pass
    return target


def applies(name):
    return not NOT_APPLYING.search(name)


def _run_once(directory, module, done, settings):
    """Runs the module's cases but those in `done`. Returns their lines, and the last words if it did not end well."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as lines, \
            tempfile.NamedTemporaryFile("w", suffix=".txt") as skip:
        skip.write("\n".join(done))
        skip.flush()
        # Debian's interpreter has Debian's pyverbs.
        command = ["/usr/bin/python3", str(RUNNER), str(directory / "tests"), module, lines.name, skip.name]
        try:
            ended = subprocess.run(command, env=settings, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, timeout=MODULE_SECONDS, check=False)
            trouble = "" if ended.returncode == 0 else (
                f"status {ended.returncode}: {soft_rows.last_words(ended.stdout.decode(errors='replace'))}")
        except subprocess.TimeoutExpired:
            trouble = f"still ran after {MODULE_SECONDS} s"
        return [json.loads(line) for line in lines.read().splitlines()], trouble


def run_module(directory, module, library):
    """All cases of one module. One that ends the process is counted, and the others go on without it."""
    settings = soft_rows.environment(library)
    cases = {}
    while True:
        lines, trouble = _run_once(directory, module, list(cases), settings)
        started = ""
        for line in lines:
            if line["outcome"] == "started":
                started = line["name"]
                continue
            started = ""
            cases[line["name"]] = Case(line["name"], line["outcome"], line["reason"])
        if not trouble:
            return list(cases.values())
        if not started:  # outside of any case: it would fail again
            return [*cases.values(), Case(module, CRASHED, trouble)]
        cases[started] = Case(started, CRASHED, trouble)


def summary(module, cases):
    """The row of a module."""
    applying = [case for case in cases if case.outcome != "not applicable"]
    passed = sum(case.outcome == "passed" for case in applying)
    failed = [case for case in applying if case.outcome in ("failed", CRASHED)]
    skipped = sum(case.outcome == "skipped" for case in applying)
    ran = passed + len(failed)
    result = soft_rows.Result("pyverbs", module, soft_rows.PASSED)
    result.figure = f"{passed} pass, {len(failed)} fail, {skipped} skip, {len(cases) - len(applying)} do not apply"
    if not ran or passed < SHARE_THAT_PASSES * ran:
        result.outcome = soft_rows.FAILED if failed else soft_rows.PASSED
        result.reason = f"{failed[0].name}: {failed[0].reason}" if failed else "no case ran"
    return result
