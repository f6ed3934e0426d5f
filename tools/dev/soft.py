#!/usr/bin/env python3
"""Runs programs that others wrote on the soft device, without RDMA hardware or a kernel module."""

import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys

import bazel_events
import soft_programs
import soft_pyverbs
import soft_rows

TOP = bazel_events.TOP
LIBRARY = "//transport/preload:libverbena_soft.so"
DOCUMENT = TOP / "docs/soft_device.md"
BEGIN = "<!-- soft report: begin; written by ./dev soft --report --write -->"
END = "<!-- soft report: end -->"


def arguments():
    parser = argparse.ArgumentParser(
        prog="./dev soft", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Runs COMMAND on soft devices: an unmodified program that uses libibverbs or librdmacm.",
        epilog="environment:\n"
               "  VERBENA_SOFT_DEVICES  number of devices, soft0 and so on (default 2)\n"
               "  VERBENA_SOFT_ADDRESS  an IP address of this host, or auto: reaches other hosts over TCP\n"
               "  VERBENA_SOFT_VERBOSE  1: if the device refuses a call, its reason is printed\n"
               "  VERBENA_SOFT_LIBRARY  a libverbena_soft.so to use instead of building one\n"
               "  VERBENA_PYVERBS_TESTS directory that holds pyverbs' tests/, instead of downloading them\n"
               "docs/soft_device.md has the others, and what soft devices refuse.\n\n"
               "The report's last line is \"N passed, N failed\". What is not installed counts as neither.\n"
               "Its packages: ./dev install-deps --soft\n\n"
               "example, in two terminals: ./dev soft -- ibv_rc_pingpong -d soft0\n"
               "                           ./dev soft -- ibv_rc_pingpong -d soft1 127.0.0.1")
    parser.add_argument("--report", action="store_true", help="run the table of programs, and print it")
    parser.add_argument("--short", action="store_true", help="with --report: the rows of ./dev test alone")
    parser.add_argument("--only", metavar="TEXT", help="with --report: rows whose program and arguments hold TEXT")
    parser.add_argument("--write", action="store_true", help="with --report: write the tables of docs/soft_device.md")
    parser.add_argument("--json", metavar="FILE", help="with --report: write each row to FILE, a JSON object a line")
    parser.add_argument("--verbose", action="store_true", help="with --report: print what failed rows printed")
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="the command, after --")
    options = parser.parse_args()
    if options.report == bool(options.command):
        parser.error("either --report, or -- and a COMMAND")
    if options.write and (options.short or options.only):
        parser.error("--write takes the whole table: not with --short or --only")
    return options


def library():
    """The path of the library, built unless the environment names one."""
    named = os.environ.get("VERBENA_SOFT_LIBRARY")
    if named:
        path = pathlib.Path(named).resolve()
        if not path.exists():
            sys.exit(f"dev soft: VERBENA_SOFT_LIBRARY: there is no {path}")
        return path
    command = [bazel_events.BAZEL, "build", "--config=opt", "--noshow_progress", "--ui_event_filters=-info", LIBRARY]
    if subprocess.run(command, cwd=TOP, stdout=sys.stderr, check=False).returncode != 0:
        sys.exit(1)
    package, name = LIBRARY[2:].split(":")
    # Resolved, because .bazel/bin points elsewhere after a build of another configuration.
    return pathlib.Path(os.path.realpath(TOP / ".bazel/bin")) / package / name


def pyverbs_rows(options, path):
    """Yields a row for each module, and fills in their cases."""
    modules = [module for module in soft_pyverbs.MODULES
               if not options.only or options.only in f"pyverbs {module}"]
    if options.short or not modules:
        return
    try:
        directory = soft_pyverbs.find_tests()
    except soft_pyverbs.NoTests as trouble:
        yield soft_rows.Result("pyverbs", "all modules", soft_rows.NOT_INSTALLED, str(trouble)), []
        return
    for module in modules:
        cases = soft_pyverbs.run_module(directory, module, path)
        yield soft_pyverbs.summary(module, cases), cases


def program_rows(options, path):
    for row in soft_programs.ROWS:
        if options.short and not row.short:
            continue
        if options.only and options.only not in f"{row.program} {row.arguments}":
            continue
        yield soft_rows.run(row, path), []


def show(result, verbose):
    what = f"{result.program} {result.arguments}".strip()
    tail = " ".join(part for part in (result.figure, result.reason) if part)
    print(f"{result.outcome:13} {what:58} {tail}", flush=True)
    if verbose and result.outcome == soft_rows.FAILED and result.output:
        print("    " + result.output.strip().replace("\n", "\n    "), flush=True)


def totals(cases):
    """One line about the pyverbs cases that apply."""
    ran = [case for case in cases if case.outcome in ("passed", "failed", soft_pyverbs.CRASHED)]
    passed = sum(case.outcome == "passed" for case in ran)
    return f"pyverbs: {passed} of {len(ran)} cases that apply pass ({100 * passed / len(ran):.0f}%)" if ran else ""


def tables(results, cases):
    """The tables of docs/soft_device.md."""
    kernel = ".".join(platform.release().split(".")[:2])
    lines = [BEGIN, "", f"Linux {kernel}, {os.cpu_count()} cores, two processes of one host.", "",
             "| program | arguments | result | figures |", "| --- | --- | --- | --- |"]
    for result in results:
        outcome = result.outcome + (f": {result.reason}" if result.reason else "")
        told = f"`{result.arguments}`" if result.arguments else ""
        lines.append(f"| {result.program} | {told} | {outcome} | {result.figure} |")
    line = totals(cases)
    if line:
        lines += ["", line + ". Those that do not:", "", "| case | result |", "| --- | --- |"]
        lines += [f"| {case.name.removeprefix('tests.')} | {case.outcome}: {case.reason.replace('|', '/')} |"
                  for case in cases if case.outcome not in ("passed", "not applicable")]
    return "\n".join([*lines, "", END])


def write_document(text):
    before, found, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        sys.exit(f"dev soft: {DOCUMENT} lacks the lines '{BEGIN}' and '{END}'")
    DOCUMENT.write_text(before + text + after, encoding="utf-8")


def report(options):
    path = library()
    results, cases = [], []
    for rows in (program_rows, pyverbs_rows):
        for result, its_cases in rows(options, path):
            show(result, options.verbose)
            results.append(result)
            cases += its_cases
    if options.json:
        with open(options.json, "w", encoding="utf-8") as output:
            for result in results:
                output.write(json.dumps({"bench": "soft_verbs", "program": result.program,
                                         "arguments": result.arguments, "outcome": result.outcome,
                                         "reason": result.reason, "figure": result.figure}) + "\n")
    if options.write:
        write_document(tables(results, cases))
    if cases:
        print(totals(cases))
    passed = sum(result.outcome == soft_rows.PASSED for result in results)
    failed = sum(result.outcome == soft_rows.FAILED for result in results)
    print(f"{passed} passed, {failed} failed", flush=True)
    return 1 if failed or not passed else 0


def main():
    options = arguments()
    if options.report:
        return report(options)
    command = options.command
    try:
        os.execvpe(command[0], command, soft_rows.environment(library()))
    except OSError as error:
        sys.exit(f"dev soft: {command[0]}: {error.strerror}; ./dev install-deps --soft installs the report's programs")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
