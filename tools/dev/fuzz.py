#!/usr/bin/env python3
"""Runs the fuzz targets of tests/fuzz by libFuzzer, for a time, over their corpus."""

import argparse
import json
import os
import pathlib
import subprocess
import sys

import bazel_events

CONFIG = "--config=fuzz"
PACKAGE = "tests/fuzz"
# Inputs that a run adds, and those that fail: below here, outside of git.
KEPT = bazel_events.TOP / ".bazel" / "fuzz"
# With --coverage: to a target the source of its parser, and the least percentage of its branches that the corpus reaches.
PARSERS = {"request": ("rpc/server/request.cc", 95)}
# Branches of these macros do not count: no input fails a check.
CHECKS = ("VERBENA_CHECK", "VERBENA_DCHECK")


def targets():
    """The folders of the corpus: one for each target."""
    return sorted(path.name for path in (bazel_events.TOP / PACKAGE / "corpus").iterdir())


def arguments():
    parser = argparse.ArgumentParser(
        prog="./dev fuzz",
        description="Feeds bytes that libFuzzer makes up to the parsers of what peers send, under "
                    "address and undefined behaviour sanitizers. Targets run side by side. "
                    f"Inputs that reach new code are kept in {KEPT.relative_to(bazel_events.TOP)}, "
                    "beside those that fail. Exit status: 0 if none fails, otherwise 1.",
        epilog="example: ./dev fuzz --minutes 2 send")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, metavar="M", help="run each target so long (default 1)")
    length.add_argument("--seconds", type=int, metavar="S", help="the same in seconds")
    length.add_argument("--coverage", action="store_true",
                        help="run the checked-in corpus alone, and say which branches of the parser it reaches: exit "
                             f"status 1 if they are fewer than {PARSERS['request'][1]}%% (targets: "
                             f"{', '.join(PARSERS)})")
    parser.add_argument("targets", nargs="*", metavar="target",
                        help="of these (default: all): " + ", ".join(targets()))
    options = parser.parse_args()
    for target in options.targets:
        if target not in targets():
            parser.error(f"there is no target '{target}'; targets: {', '.join(targets())}")
    if options.coverage:
        unfit = [target for target in options.targets if target not in PARSERS]
        if unfit:
            parser.error(f"--coverage knows no parser of {', '.join(unfit)}; targets: {', '.join(PARSERS)}")
    if options.seconds is None:
        options.seconds = round((1 if options.minutes is None else options.minutes) * 60)
    if options.seconds < 1:
        parser.error("a run takes one second at least")
    return options


def build(names, config=CONFIG, suffix="_fuzz"):
    labels = [f"//{PACKAGE}:{name}{suffix}" for name in names]
    subprocess.run([bazel_events.BAZEL, "build", config, *labels], cwd=bazel_events.TOP, check=True)
    query = subprocess.run([bazel_events.BAZEL, "cquery", config, "--output=starlark",
                            "--starlark:expr=target.files_to_run.executable.path",
                            "set(" + " ".join(labels) + ")"],
                           cwd=bazel_events.TOP, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                           text=True, check=True)
    root = subprocess.run([bazel_events.BAZEL, "info", "execution_root"], cwd=bazel_events.TOP,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    programs = [pathlib.Path(root.stdout.strip()) / line for line in query.stdout.split()]
    return {program.name.removesuffix(suffix): program for program in programs}


def branches(exported, source):
    """(line, column, which of the two ways, how often it was taken) of each branch of `source` in what llvm-cov
    exported. Those of a macro lie where it is used."""
    found = []
    for file in exported["data"][0]["files"]:
        if not file["filename"].endswith("/" + source):
            continue
        taken = [(branch, branch[0], branch[1]) for branch in file["branches"]]
        for use in file["expansions"]:
            line, column = use["source_region"][:2]
            taken += [(branch, line, column) for branch in use["branches"]]
        for branch, line, column in taken:
            found += [(line, column, "true", branch[4]), (line, column, "false", branch[5])]
    return found


def without_checks(found, text):
    """`found` without the branches on lines of `text` that begin a check."""
    lines = text.splitlines()
    return [each for each in found if not lines[each[0] - 1].lstrip().startswith(CHECKS)]


def cover(name, program):
    """Replays the corpus of a target, prints what it does not reach, and returns whether that is little enough."""
    source, least = PARSERS[name]
    folder = KEPT / name
    folder.mkdir(parents=True, exist_ok=True)
    raw, profile = folder / "raw", folder / "profile"
    subprocess.run([program], cwd=bazel_events.TOP, check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, "LLVM_PROFILE_FILE": str(raw)})
    subprocess.run(["llvm-profdata-19", "merge", "-o", profile, raw], check=True)
    exported = subprocess.run(["llvm-cov-19", "export", program, f"-instr-profile={profile}"],
                              stdout=subprocess.PIPE, check=True)
    found = without_checks(branches(json.loads(exported.stdout), source), (bazel_events.TOP / source).read_text())
    if not found:
        raise SystemExit(f"fuzz: llvm-cov tells of no branch of {source}")
    missed = [each for each in found if each[3] == 0]
    for line, column, way, _ in missed:
        print(f"{source}:{line}:{column}: never {way}")
    percent = 100 * (len(found) - len(missed)) / len(found)
    print(f"{name:12} reaches {len(found) - len(missed)} of {len(found)} branches of {source}, {percent:.1f}% "
          f"(at least {least}%)")
    return percent >= least


def start(name, program, seconds):
    """A run, whose output goes to a file."""
    folder = KEPT / name
    for part in ("corpus", "found"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    command = [program, f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=2048",
               "-print_final_stats=1", f"-artifact_prefix={folder}/found/", folder / "corpus",
               bazel_events.TOP / PACKAGE / "corpus" / name]
    with open(folder / "log", "w", encoding="utf-8") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)


def report(name, status):
    log = (KEPT / name / "log").read_text(errors="replace")
    stats = dict(line.removeprefix("stat::").split(":", 1)
                 for line in log.splitlines() if line.startswith("stat::"))
    runs = stats.get("number_of_executed_units", "?").strip()
    if status == 0:
        print(f"{name:12} {runs} inputs, none fails", flush=True)
        return
    print("\n".join(log.splitlines()[-60:]))
    print(f"{name:12} FAILED. The input is the newest file in {KEPT / name}/found, the whole log "
          f"{KEPT / name}/log. To run it again, name the file: {name}_fuzz FILE. Then put it into "
          f"{PACKAGE}/corpus/{name}, which tests replay.", flush=True)


def main():
    options = arguments()
    if options.coverage:
        programs = build(options.targets or list(PARSERS), "--config=covered", "_corpus_test")
        failed = [name for name, program in programs.items() if not cover(name, program)]
        return 1 if failed else 0
    names = options.targets or targets()
    programs = build(names)
    print(f"{len(names)} targets, {options.seconds} s", flush=True)
    runs = {name: start(name, programs[name], options.seconds) for name in names}
    failed = 0
    try:
        for name, run in runs.items():
            status = run.wait()
            report(name, status)
            failed += status != 0
    finally:
        for run in runs.values():
            if run.poll() is None:
                run.kill()
    print(f"{len(names) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except subprocess.CalledProcessError as error:
        sys.exit(f"fuzz: {' '.join(map(str, error.cmd[:2]))} failed; see above")
