#!/usr/bin/env python3
"""Builds and runs every test, phase by phase. The last line is "N passed, N failed"."""

import argparse
import dataclasses
import hashlib
import subprocess
import sys
import time

import arm64
import bazel_events
import guest_phase
import left_out
import passed_phases
import racy
import upgrade_phase

# Tests that run Bazel themselves.
SCRIPTS = ("tests/consumer/run.sh", "tests/new_service/run.sh", "tests/compdb/run.sh")
CMAKE_SCRIPT = "tests/cmake/consumers.py"

# Per phase: its budget in minutes on two idle cores with everything built, as --all runs it.
PHASES = {"asan": 7, "plain": 10, "consumer": 13, "smoke": 2,
          "tsan": 14, "tcp": 8, "profiles": 8, "upgrade": 2, "arm64": 7,
          "guest": 26, "fuzz": 3, "mutants": 8, "lint": 7, "deb": 5}
# The phases that a newcomer and CI run, with their budgets of a first run. The smoke phase is a part of the guest
# phase.
SHORT = {"asan": 11, "plain": 3, "consumer": 8, "smoke": 3}
GUEST_PHASES = {"guest", "smoke"}
FUZZ_SECONDS = 10

# The tests of the profiles phase: those whose subject is a device that links and calls run on.
PROFILED_TESTS = ("//tests/transport/link/...", "//tests/rpc/...")


@dataclasses.dataclass(frozen=True)
class Configuration:
    """A way of building, for one phase."""

    flags: tuple
    # Tests with this tag never run in the phase.
    without: str = ""
    # The only tests of a short run: those with this tag. Most of the time of a run is compiling, so
    # a short run builds a test in the one configuration that finds most.
    short: str = ""


CONFIGURATIONS = {
    "asan": Configuration(("--config=asan",), without="noasan"),
    "plain": Configuration((), short="noasan"),
    "tsan": Configuration(("--config=tsan",), without="notsan"),
}

# Tests with this tag are about files on a disk. What others write may lie in memory.
ON_DISK = "on_disk"

TCP_TARGETS = "//tests/rpc/..."
TCP_WITHOUT = "notcp"

# --all plants at most so many of the faults that have changed since they were caught, taken at random.
MUTANTS = 40


def arguments():
    parser = argparse.ArgumentParser(
        prog="./dev test", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Builds and runs every test, once in the configuration that finds most.",
        epilog="phases of every run:\n"
               "  asan      address and undefined behaviour sanitizers: every test that is not tagged noasan. What\n"
               "            no test needs, as benchmarks, ./dev lint --only build builds\n"
               "  plain     debug build: tests tagged noasan, with --only, --all or targets every test\n"
               "  consumer  separate workspaces build services against this one; CMake builds libverbena.so\n"
               "            and a program that uses it; clangd reads this workspace\n"
               "  smoke     calls and payloads over an RDMA device in a virtual machine: tests tagged smoke\n"
               "phases of --all:\n"
               "  tsan      thread sanitizer; not tests tagged notsan\n"
               "  tcp       tests of //tests/rpc once more, over the soft device's TCP wire; not tests tagged\n"
               "            notcp. asan has built them\n"
               "  profiles  tests of links and calls as if on poorer devices, once for each of\n"
               "            tests/profiles; not tests tagged noprofile. plain has built them\n"
               "  upgrade   clients of this version against servers of the one before, and the other way round;\n"
               "            servers restarted from one to the other under load; abidiff compares libverbena.so.\n"
               "            It builds both\n"
               "  arm64     tests of the CMake build as an arm64 machine would run them, by QEMU\n"
               "  guest     instead of smoke, in virtual machines: tests tagged rdma, rdma_cm, two_devices,\n"
               "            lossy, two_hosts, disk or guest; with --all iwarp and two_networks\n"
               "  consumer  also a static libverbena, make, add_subdirectory(), mistakes that are answered, and CMake's\n"
               "            tests and examples\n"
               "  fuzz      ./dev fuzz, ten seconds for each target\n"
               "  mutants   ./dev mutants of at most 40 faults that have changed\n"
               "  lint      ./dev lint; what is known to be clean is not looked at again\n"
               "  deb       ./dev deb --test: Debian packages, built, checked, installed and purged\n\n"
               "A test tagged manual runs only when it is named, one tagged long only with --all.\n"
               "N counts test cases; a target that fails to build, times out or crashes is one failure.\n"
               f"{left_out.LIST} names what a run may leave out: with --all, anything else that was left out\n"
               "is a failure.\n\n"
               "example: ./dev test --only asan //tests/transport/... --filter 'TaskTest.*'")
    parser.add_argument("--only", metavar="PHASE[,PHASE]", default="",
                        help="run these phases alone: " + ", ".join(PHASES))
    parser.add_argument("--all", action="store_true",
                        help="all phases; every test in each of plain, asan and tsan, tests tagged long, "
                             "too; the guest phase also over Soft-iWARP, whose module is built first")
    parser.add_argument("--resume", action="store_true",
                        help="leave out phases that have passed with just these files and options. Documents "
                             "count in phases that read them: " + ", ".join(sorted(passed_phases.READ_DOCUMENTS)))
    parser.add_argument("--budgets", action="store_true",
                        help="fail if a phase takes longer than its budget, which is for two idle cores; otherwise "
                             "the last lines say so")
    parser.add_argument("--filter", metavar="PATTERN",
                        help="run the GoogleTest cases that match; the others are not counted")
    parser.add_argument("--kernel", choices=guest_phase.KERNELS,
                        help="the Debian whose kernel the guests of guest and smoke boot, as for ./dev vm "
                             f"(default {guest_phase.KERNELS[0]})")
    parser.add_argument("--runs", type=int, default=1, metavar="N",
                        help="run each test N times in plain, asan, tsan and tcp, and with --racy; the "
                             "other phases run once (default 1)")
    racy.add_arguments(parser)
    parser.add_argument("targets", nargs="*", metavar="target",
                        help="Bazel targets (default //..., and the consumer phase); with --racy cases, too, "
                             "such as QueueTest.Closes or QueueTest.*")
    options = parser.parse_args()
    options.only = [phase for phase in options.only.split(",") if phase]
    for phase in options.only:
        if phase not in PHASES:
            parser.error(f"there is no phase '{phase}'; phases: {', '.join(PHASES)}")
    for option in ("loaded", "changed"):
        if getattr(options, option) and not options.racy:
            parser.error(f"--{option} is for --racy")
    cases = [name for name in options.targets if racy.is_case(name)]
    if cases and not options.racy:
        parser.error(f"{cases[0]} is a case: name it by --filter, or with --racy")
    if cases and options.filter:
        parser.error("--racy takes cases or --filter, not both")
    if options.racy and (options.only or options.all or options.resume):
        parser.error("--racy runs no phases: leave out --only, --all and --resume")
    if options.kernel and not GUEST_PHASES.intersection(phases_of(options)):
        parser.error("--kernel is for the phases guest and smoke, and neither runs")
    options.kernel = options.kernel or guest_phase.KERNELS[0]
    options.short = not (options.only or options.all or options.targets)
    return options


def tag_filter(configuration, options):
    """Which tests run in it, as --test_tag_filters says it."""
    kept_out = [configuration.without, "guest", "" if options.all else "long"]
    only = [configuration.short] if options.short and configuration.short else []
    return ",".join(only + [f"-{tag}" for tag in kept_out if tag])


def run_bazel_phase(phase, options):
    """Builds, then tests: tests that run beside compilers would be slow and miss their deadlines."""
    configuration = CONFIGURATIONS[phase]
    targets = ["--"] + (options.targets or ["//..."])
    flags = [*configuration.flags, "--keep_going", "--build_tests_only",
             f"--test_tag_filters={tag_filter(configuration, options)}"]
    start = time.monotonic()
    # Tests that do not build are counted by the test command, which tries again.
    bazel_events.run("build", flags + targets)
    build_s = time.monotonic() - start
    status, outcome = run_tests(flags, targets, options)
    outcome.build_s = build_s
    if configuration.without and not options.short and status in (0, 3):
        outcome.skips += [f"{test.label}: tagged {configuration.without}" for test in
                          guest_phase.tests_with(configuration.without, targets[1:]) or []]
    return outcome


def run_tests(flags, targets, options):
    """Runs the tests among `targets` that `flags` select, those tagged ON_DISK by themselves: the others' files lie in
    memory. Returns Bazel's status and the outcome."""
    on_disk = guest_phase.tests_with(ON_DISK, targets[1:])
    if not on_disk:
        return run_tests_once(flags, targets, options, in_memory=on_disk is not None)
    status, outcome = run_tests_once([f"{flag},-{ON_DISK}" if flag.startswith("--test_tag_filters=") else flag
                                      for flag in flags], targets, options, in_memory=True)
    if status in (0, 3, 4):
        second, more = run_tests_once(flags, ["--", *(test.label for test in on_disk)], options, in_memory=False)
        outcome.add(more)
        # 4 of one: only the other had tests.
        status = next((each for each in (status, second) if each not in (0, 4)), min(status, second))
    return status, outcome


def run_tests_once(flags, targets, options, in_memory):
    """The same in one run of Bazel. `in_memory`: where tests write."""
    flags = [*flags, "--test_output=summary", "--test_summary=terse"]
    if options.filter:
        flags.append(f"--test_filter={options.filter}")
    if options.runs > 1:
        flags.append(f"--runs_per_test={options.runs}")
    status, events = bazel_events.run("test", flags + targets, in_memory=in_memory)
    bazel_events.show_failures(events)
    outcome = bazel_events.count_cases(events)
    # 3: tests failed; 4: no tests among the targets.
    if status not in (0, 3, 4) and not outcome.failures:
        outcome.failures.append(f"bazel test: exit status {status}")
    return status, outcome


def tcp_flags(options):
    """How the tcp phase selects its tests, in the configuration that has built them."""
    configuration = CONFIGURATIONS["asan"]
    kept_out = [TCP_WITHOUT, configuration.without, "guest", "" if options.all else "long"]
    tags = ",".join(f"-{tag}" for tag in kept_out if tag)
    return [*configuration.flags, "--keep_going", "--build_tests_only", f"--test_tag_filters={tags}",
            "--test_env=VERBENA_DEVICE=soft:tcp"]


def run_tcp_phase(options):
    targets = ["--"] + (options.targets or [TCP_TARGETS])
    return run_tests(tcp_flags(options), targets, options)[1]


def run_consumer_phase(options):
    outcome = bazel_events.Outcome()
    cmake = [CMAKE_SCRIPT, "--all"] if options.all else [CMAKE_SCRIPT]
    for script, *flags in [[script] for script in SCRIPTS] + [cmake]:
        if subprocess.run([bazel_events.TOP / script, *flags], check=False).returncode == 0:
            outcome.passed += 1
        else:
            outcome.failures.append(f"{script}: failed")
    return outcome


def run_fuzz_phase():
    outcome = bazel_events.Outcome()
    fuzz = bazel_events.TOP / "tools" / "dev" / "fuzz.py"
    for target in sorted((bazel_events.TOP / "tests" / "fuzz" / "corpus").iterdir()):
        command = [fuzz, "--seconds", str(FUZZ_SECONDS), target.name]
        if subprocess.run(command, check=False).returncode == 0:
            outcome.passed += 1
        else:
            outcome.failures.append(f"./dev fuzz {target.name}: failed")
    return outcome


def run_profiles_phase(options):
    """Runs what the plain phase has built on soft devices that withhold features."""
    total = bazel_events.Outcome()
    targets = ["--"] + (options.targets or list(PROFILED_TESTS))
    for profile in sorted((bazel_events.TOP / "tests" / "profiles").glob("*.profile")):
        print(f"== profiles: {profile.stem}", flush=True)
        digest = hashlib.sha256(profile.read_bytes()).hexdigest()
        # Bazel knows results by the environment: the digest has it forget those of another text.
        flags = ["--keep_going", "--build_tests_only", "--test_output=summary",
                 "--test_summary=terse", "--test_tag_filters=-noprofile,-guest,-long",
                 f"--test_env=VERBENA_SOFT_PROFILE={profile}",
                 f"--test_env=VERBENA_SOFT_PROFILE_DIGEST={digest}"]
        if options.filter:
            flags.append(f"--test_filter={options.filter}")
        status, events = bazel_events.run("test", flags + targets, in_memory=True)
        bazel_events.show_failures(events)
        outcome = bazel_events.count_cases(events)
        if status not in (0, 3, 4) and not outcome.failures:
            outcome.failures.append(f"bazel test: exit status {status}")
        outcome.failures = [f"{profile.stem}: {line}" for line in outcome.failures]
        outcome.skips = [f"{profile.stem}: {line}" for line in outcome.skips]
        total.add(outcome)
    return total


def run_command(*words):
    """A command of ./dev, which counts as one case."""
    outcome = bazel_events.Outcome()
    name, *rest = words
    program = bazel_events.TOP / "tools" / "dev" / f"{name}.py"
    if subprocess.run([program, *rest], check=False).returncode == 0:
        outcome.passed += 1
    else:
        outcome.failures.append(f"./dev {' '.join(words)}: failed")
    return outcome


def run_phase(phase, options):
    if phase == "racy":
        return racy.run(options, run_tests)
    if phase == "profiles":
        return run_profiles_phase(options)
    if phase == "upgrade":
        return upgrade_phase.run()
    if phase == "fuzz":
        return run_fuzz_phase()
    if phase == "mutants":
        return run_command("mutants", "--changed", "--sample", str(MUTANTS))
    if phase == "lint":
        return run_command("lint")
    if phase == "deb":
        return run_command("deb", "--test")
    if phase == "tcp":
        return run_tcp_phase(options)
    if phase == "arm64":
        return arm64.run()
    if phase == "consumer":
        return run_consumer_phase(options)
    if phase in GUEST_PHASES:
        return guest_phase.run(options, smoke=phase == "smoke")
    return run_bazel_phase(phase, options)


def phases_of(options):
    """The phases of a run, in their order."""
    if options.racy:
        return ["racy"]
    if options.only:
        return options.only
    chosen = [phase for phase in PHASES if phase != "smoke"] if options.all else list(SHORT)
    if options.targets:  # without those that look at everything
        chosen = [phase for phase in chosen if phase not in (
            "consumer", "upgrade", "arm64", "fuzz", "mutants", "lint", "deb")]
    return chosen


def lateness(phase, seconds, whole):
    """That a phase of a `whole` run, or of a short one, took longer than its budget, in words, or ""."""
    budget_s = (PHASES if whole else {**PHASES, **SHORT}).get(phase, 0) * 60
    return f"over its budget of {budget_s} s" if 0 < budget_s < seconds else ""


def phase_line(phase, seconds, build_s, whole):
    """A line of the last table: how long a phase took, of which building, and over its budget."""
    built = f" (building {build_s:.0f} s, running {seconds - build_s:.0f} s)" if build_s else ""
    late = lateness(phase, seconds, whole)
    return f"{phase:9} {seconds:5.0f} s{built}{', ' if late else ''}{late}"


def main():
    options = arguments()
    total = bazel_events.Outcome()
    lines, more_skips = [], []
    passed = passed_phases.PassedPhases(options)
    for phase in phases_of(options):
        if options.resume and passed.has(phase):
            lines.append(f"{phase:9} passed before, with the same files")
            total.passed += passed.count(phase)
            continue
        print(f"== {phase}", flush=True)
        start = time.monotonic()
        outcome = run_phase(phase, options)
        seconds = time.monotonic() - start
        lines.append(phase_line(phase, seconds, outcome.build_s, options.all))
        outcome.skips = [f"{phase}: {line}" for line in outcome.skips]
        new_skips = left_out.unexpected(outcome.skips)
        if options.all:
            outcome.failures += [f"left out, and {left_out.LIST} does not name it: {line}" for line in new_skips]
        more_skips += new_skips
        # A phase that could not run, as one without guests, has proven nothing.
        if not outcome.failures and outcome.passed:
            passed.add(phase, outcome.passed)
        if options.budgets and lateness(phase, seconds, options.all):
            outcome.failures.append(f"{seconds:.0f} s, {lateness(phase, seconds, options.all)}")
        outcome.failures = [f"{phase}: {line}" for line in outcome.failures]
        total.add(outcome)
        print(f"== {phase}: {outcome.passed} passed, {len(outcome.failures)} failed, "
              f"{seconds:.0f} s", flush=True)

    for line in total.skips:
        print(f"skipped  {line}")
    if more_skips:
        print(f"{len(more_skips)} of these are not in {left_out.LIST}:\n" +
              "\n".join(f"new skip {line}" for line in more_skips))
    for line in total.failures:
        print(f"FAILED   {line}")
    print("\n".join(lines))
    if options.filter and not total.passed and not total.failures:
        print(f"no case matches --filter '{options.filter}'")
    print(f"{total.passed} passed, {len(total.failures)} failed", flush=True)
    return 1 if total.failures or not total.passed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
