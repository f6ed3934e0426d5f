#!/usr/bin/env python3
"""Runs the fuzz targets of tests/fuzz by libFuzzer, for a time, over their corpus."""

import argparse
import pathlib
import subprocess
import sys

import bazel_events

CONFIG = "--config=fuzz"
PACKAGE = "tests/fuzz"
# Inputs that a run adds, and those that fail: below here, outside of git.
KEPT = bazel_events.TOP / ".bazel" / "fuzz"


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
    parser.add_argument("targets", nargs="*", metavar="target",
                        help="of these (default: all): " + ", ".join(targets()))
    options = parser.parse_args()
    for target in options.targets:
        if target not in targets():
            parser.error(f"there is no target '{target}'; targets: {', '.join(targets())}")
    if options.seconds is None:
        options.seconds = round((1 if options.minutes is None else options.minutes) * 60)
    if options.seconds < 1:
        parser.error("a run takes one second at least")
    return options


def build(names):
    labels = [f"//{PACKAGE}:{name}_fuzz" for name in names]
    subprocess.run([bazel_events.BAZEL, "build", CONFIG, *labels], cwd=bazel_events.TOP, check=True)
    query = subprocess.run([bazel_events.BAZEL, "cquery", CONFIG, "--output=starlark",
                            "--starlark:expr=target.files_to_run.executable.path",
                            "set(" + " ".join(labels) + ")"],
                           cwd=bazel_events.TOP, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                           text=True, check=True)
    root = subprocess.run([bazel_events.BAZEL, "info", "execution_root"], cwd=bazel_events.TOP,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    programs = [pathlib.Path(root.stdout.strip()) / line for line in query.stdout.split()]
    return {program.name.removesuffix("_fuzz"): program for program in programs}


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
