"""The guest phase of ./dev test: what needs real verbs, in virtual machines whose kernel has them.

A test runs in the guests of each of its tags. All tests with a tag share the boots of its guests:
  rdma         a guest with an rxe device
  rdma_cm      the same, with queue pairs connected by rdma_cm
  two_devices  a guest with two rxe devices, between them
  lossy        the same, once with 1% of the packets lost and once with 5%
  two_hosts    a guest, with a server in a second guest
  disk         a guest with three disks
  smoke        the smoke phase, in every run: a guest with an rxe device, and these tests alone
With --all, tests tagged two_networks run in a guest, whose kernel has netem, tests tagged iwarp also
run over siw, two_hosts also over siw and by rdma_cm, and disk checks more. Tests tagged guest boot
guests of their own, unless they also have one of the tags above: then they only run inside its
guests. All guests boot the kernel that --kernel names; tests that boot their own find it in
VERBENA_GUEST_KERNEL.
"""

import concurrent.futures
import dataclasses
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree

import bazel_events
import test_log

sys.path.append(str(bazel_events.TOP / "tools/vm"))
import archive

TOP = bazel_events.TOP
VM = TOP / "tools/vm/vm.py"
KERNELS = archive.SUITES  # the first is the default
CANNOT_RUN = 69  # the exit status of ./dev vm if something that it needs is missing
BOOT_TIMEOUT_S = 1800
# Emulated processors, busy host: several times what bazel gives a test of that size.
TIMEOUTS_S = {"small": 240, "medium": 600, "large": 900}
GUEST_MB = 4096
# Guests wait much, so two runs share the processors well.
RUNS_AT_ONCE = 2


SERVER = "10.0.0.2:4000"  # in the second guest


@dataclasses.dataclass
class Boot:
    """One guest: how it is started, and which tests it runs. {binaries} stands for their directory.

    It runs each test with its tag, or the `part`-th of each `parts` of them.
    """

    name: str
    tag: str
    options: list
    environment: dict
    part: int = 0
    parts: int = 1

    def tests_among(self, tests):
        return tests[self.part::self.parts]

    @staticmethod
    def two_devices(name, tag, *options):
        return Boot(name, tag, ["--devices", "2", *options],
                    {"VERBENA_DEVICE": "rdma:rxe0", "VERBENA_PEER_DEVICE": "rdma:rxe1"})

    @staticmethod
    def two_hosts(name, device, more=None):
        peer = f"{{binaries}}/tests/rpc/testing_server {SERVER}"
        return Boot(name, "two_hosts", ["--hosts", "2", "--device", device, "--peer", peer],
                    {"VERBENA_DEVICE": f"rdma:{device}0", "VERBENA_SERVER_ADDRESS": SERVER,
                     **(more or {})})

    @staticmethod
    def disks(name, more=None):
        return Boot(name, "disk", ["--device", "none", "--raw-disk", "24", "--raw-disk", "96",
                                   "--raw-disk", "24"],
                    {"VERBENA_DISKS": "/dev/vda /dev/vdb /dev/vdc", **(more or {})})


RDMA_CM = {"VERBENA_CONNECT": "rdma_cm"}
# Most tests run over one rxe device: two guests share them, so that neither is left running alone.
BOOTS = [*(Boot(f"rxe, half {part + 1}", "rdma", [], {"VERBENA_DEVICE": "rdma:rxe0"}, part, 2)
           for part in range(2)),
         Boot("rxe, rdma_cm", "rdma_cm", [], {"VERBENA_DEVICE": "rdma:rxe0", **RDMA_CM}),
         Boot.two_devices("two rxe", "two_devices"),
         Boot.two_devices("two rxe, 1% loss", "lossy", "--loss", "1"),
         Boot.two_devices("two rxe, 5% loss", "lossy", "--loss", "5"),
         Boot.two_hosts("two hosts", "rxe", {"VERBENA_DEVICE": "auto"}),
         Boot.disks("disks")]
MORE_BOOTS = [Boot("siw", "iwarp", ["--device", "siw"], {"VERBENA_DEVICE": "rdma:siw0"}),
              Boot("two networks", "two_networks", ["--device", "none"], {}),
              Boot.disks("disks, every flush point", {"VERBENA_POWER_LOSS": "all"}),
              Boot.two_hosts("two hosts, rdma_cm", "rxe", RDMA_CM),
              Boot.two_hosts("two hosts, siw", "siw")]


# These cases tell at once whether calls and payloads work over an RDMA device. The guest phase runs all of the same
# tests. Not payload_test's cases named auto: over rxe they do what those named checked do.
SMOKE_CASES = ("UnaryTest.TheReplyIsTheRequests", "UnaryTest.ManyCallsInFlightDoNotMixUpTheirReplies",
               "UnaryTest.MessagesAroundTheSizeOfAFrameAndFarBeyondItGoThrough",
               "Ways/PayloadTest.ARequestsPayloadArrivesWhole/strict",
               "Ways/PayloadTest.ARequestsPayloadArrivesWhole/region",
               "Ways/PayloadTest.AResponsesPayloadArrivesInTheCallersBuffer/region",
               "Ways/PayloadTest.AResponsesPayloadArrivesInTheCallersBuffer/checked",
               "Ways/PayloadTest.PayloadsBothWaysInOneCall/checked",
               "Ways/PayloadTest.ManyCallsAtOnceWaitForMemoryAndWindowsAndMixNothingUp/region",
               "Ways/PayloadTest.AFailedCallGivesTheBuffersBack/checked")
SMOKE = Boot("rxe, smoke", "smoke", [], {"VERBENA_DEVICE": "rdma:rxe0", "GTEST_FILTER": ":".join(SMOKE_CASES)})


@dataclasses.dataclass
class Test:
    """One test binary, as the guest runs it."""

    label: str
    arguments: list
    timeout_s: int

    def path(self):
        package, name = self.label[2:].split(":")
        return f"{package}/{name}"

    def command(self, binaries, results, number):
        """Runs it as Bazel would: in its runfiles, with a report, and a limit."""
        binary = binaries / self.path()
        words = ["timeout", "-k", "5", str(self.timeout_s), str(binary), *self.arguments]
        return (f"cd {shlex.quote(f'{binary}.runfiles/verbena')}\n"
                f"echo \"$(cut -d. -f1 /proc/uptime) s  {self.label}\" >&2\n"
                f"GTEST_OUTPUT=xml:{results}/{number}.xml {shlex.join(words)} "
                f">{results}/{number}.log 2>&1\n"
                f"echo $? >{results}/{number}.status\n")


def tests_with(tag, targets):
    """The tests among `targets` that have that tag, or None if Bazel cannot tell."""
    query = f"attr(tags, '\\b{tag}\\b', tests({' + '.join(targets)}))"
    result = subprocess.run(
        [bazel_events.BAZEL, "query", "--noshow_progress", "--output=xml", query], cwd=TOP,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    if result.returncode != 0:
        return None
    return [test_of(rule) for rule in ElementTree.fromstring(result.stdout).iter("rule")]


def test_of(rule):
    """The Test that a rule of `bazel query --output=xml` describes."""
    arguments = [string.get("value") for words in rule.findall("list[@name='args']")
                 for string in words.findall("string")]
    size = rule.find("string[@name='size']")
    size = size.get("value") if size is not None else "medium"
    return Test(rule.get("name"), arguments, TIMEOUTS_S.get(size, TIMEOUTS_S["large"]))


def outcome_of(label, status, results, number, written):
    """The outcome of one test, from what it left in `results`; writes of its log if it failed."""
    cases = bazel_events.cases_of(label, results / f"{number}.xml")
    if status == 0:
        if not (results / f"{number}.xml").exists():  # a script
            cases.passed += 1
        return cases
    log = (results / f"{number}.log").read_text(errors="replace")
    written.append(f"== {label} in the guest:\n{test_log.excerpt(log)}\n")
    if not cases.failures:
        reason = "timeout" if status in (124, 137) else f"exit status {status}"
        cases.failures.append(f"{label}: {reason}")
    return cases


def runs_at_once():
    """How many runs the free memory allows; a run may be two guests."""
    with open("/proc/meminfo", encoding="utf-8") as file:
        free_kb = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))
    return max(1, min(RUNS_AT_ONCE, free_kb // 1024 // (2 * GUEST_MB)))


def build(tests, outcome):
    """Builds `tests`; returns those that were built. Those that were not are failures."""
    status, events = bazel_events.run(
        "build", ["--keep_going", "--"] + sorted({test.label for test in tests}))
    unbuilt = bazel_events.unbuilt_targets(events)
    outcome.failures += [f"{label}: does not build" for label in unbuilt]
    if status not in (0, 1):
        outcome.failures.append(f"bazel build: exit status {status}")
        return []
    return [test for test in tests if test.label not in unbuilt]


def run_inside(boot, tests, options):
    """The outcome of `tests` in one guest, and what the guest wrote."""
    outcome = bazel_events.Outcome()
    binaries = pathlib.Path(os.path.realpath(TOP / ".bazel/bin"))
    with tempfile.TemporaryDirectory(prefix="verbena-guest-") as directory:
        results = pathlib.Path(directory)
        script = results / "tests.sh"
        script.write_text("export TEST_TMPDIR=/tmp\n" + "".join(
            test.command(binaries, results, number) for number, test in enumerate(tests)))
        environment = dict(os.environ, **boot.environment)
        if options.filter:
            environment["GTEST_FILTER"] = options.filter
        result = subprocess.run(
            [VM, "--kernel", options.kernel, "--timeout", str(BOOT_TIMEOUT_S),
             "--memory", str(GUEST_MB), "--writable", results,
             *[word.format(binaries=binaries) for word in boot.options], "--", "bash", script],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", check=False)
        written = [result.stdout]
        if result.returncode == CANNOT_RUN:
            outcome.skips.append("what the guest needs is missing (see above)")
            return outcome, written
        for number, test in enumerate(tests):
            ended = results / f"{number}.status"
            text = ended.read_text().strip() if ended.exists() else ""
            if text.isdigit():
                outcome.add(outcome_of(test.label, int(text), results, number, written))
            else:
                outcome.failures.append(
                    f"{test.label}: did not end; the guest ended with {result.returncode}")
    return outcome, written


def missing(kernel):
    """Why no guest with that kernel can run here, or "". Installs what can be installed."""
    installed = subprocess.run([TOP / "tools/dev/install_deps.sh", "--quiet", "vm"],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               check=False)
    if installed.returncode != 0:
        return installed.stdout.strip().splitlines()[-1]
    boot = subprocess.run([VM, "--kernel", kernel, "--timeout", "120", "true"],
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    sys.stderr.write(boot.stderr)
    return boot.stderr.strip().splitlines()[-1] if boot.returncode == CANNOT_RUN else ""


def run(options, smoke=False):
    """The outcome of the guest phase, or of the smoke phase."""
    outcome = bazel_events.Outcome()
    reason = missing(options.kernel)
    if reason:
        outcome.skips.append(f"all tests over real verbs: {reason}")
        return outcome
    targets = options.targets or ["//..."]
    boots = [SMOKE] if smoke else BOOTS + (MORE_BOOTS if options.all else [])
    tests = {tag: tests_with(tag, targets) for tag in {boot.tag for boot in boots}}
    if None in tests.values():
        outcome.failures.append(f"bazel query cannot read {' '.join(targets)}")
        return outcome
    if smoke and not options.targets and not tests[SMOKE.tag]:
        outcome.failures.append("no test is tagged smoke")
    whole_smoke = smoke and not options.targets and not options.filter
    start = time.monotonic()
    built = build([test for some in tests.values() for test in some], outcome)
    outcome.build_s = time.monotonic() - start
    start = time.monotonic()

    def run_one(boot):
        print(f"-- {boot.name}: starts", flush=True)
        some = boot.tests_among([test for test in tests[boot.tag] if test in built])
        return run_inside(boot, some, options) if some else (bazel_events.Outcome(), [])

    with concurrent.futures.ThreadPoolExecutor(runs_at_once()) as threads:
        runs = {threads.submit(run_one, boot): boot for boot in boots if tests[boot.tag]}
        for ended in concurrent.futures.as_completed(runs):
            boot, (inside, written) = runs[ended], ended.result()
            print(f"-- {boot.name}: {inside.passed} passed, {len(inside.failures)} failed, "
                  f"ended after {time.monotonic() - start:.0f} s")
            print("".join(written), flush=True)
            inside.failures = [f"{boot.name}: {line}" for line in inside.failures]
            inside.skips = [f"{boot.name}: {line}" for line in inside.skips]
            outcome.add(inside)
    ran = outcome.passed + len(outcome.skips)
    if whole_smoke and not outcome.failures and ran != len(SMOKE_CASES):
        outcome.failures.append(f"{ran} cases ran, and SMOKE_CASES has {len(SMOKE_CASES)}: one is gone")
    if not smoke:
        outcome.add(run_those_that_boot_guests(options, targets))
    return outcome


def run_those_that_boot_guests(options, targets):
    flags = ["--keep_going", "--test_output=summary", "--test_summary=terse", "--build_tests_only",
             f"--test_env=VERBENA_GUEST_KERNEL={options.kernel}",
             "--test_tag_filters=" + ",".join(
                 ["guest", *([] if options.all else ["-long"]),
                  *sorted({f"-{boot.tag}" for boot in BOOTS + MORE_BOOTS})])]
    if options.filter:
        flags.append(f"--test_filter={options.filter}")
    status, events = bazel_events.run("test", flags + ["--"] + targets)
    bazel_events.show_failures(events)
    own = bazel_events.count_cases(events)
    if status not in (0, 3, 4) and not own.failures:
        own.failures.append(f"bazel test: exit status {status}")
    return own
