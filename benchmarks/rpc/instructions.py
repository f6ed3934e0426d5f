#!/usr/bin/env python3
"""Counts the instructions of a call, per side and by function, and compares them with a budget.

callgrind counts rather than times, so the figure is the same on a busy machine: it repeats within 0.1%. The budget
beside this file is checked in; a run that exceeds it by 0.5% fails.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
BUDGET = HERE / "instructions_budget.json"
ALLOWED = 1.005
# What an installed library, into which no program is inlined, may take of what Bazel's program takes.
INSTALLED_ALLOWED = 1.03
SIDES = {"client": "verbena::benchmarks::ClientTurns*", "server": "verbena::benchmarks::ServerTurns*"}
TOP = 12
# The points that are counted: the kind of calls, and how many are in flight. A message of a stream
# counts as a call.
POINTS = (("echo", 1), ("echo", 64), ("deadline", 64), ("metadata", 64), ("interceptors", 64), ("retry", 64),
          ("payload", 64), ("stream", 1))
# The most that counting calls may add to a call of either side with 64 in flight (RuntimeOptions::metrics).
COUNTING_LIMIT = 45
# What a call of either side took with 64 in flight before there were metrics. This program counted it at the last commit
# without rpc/metrics.h. A change of the call's path that has nothing to do with metrics moves these figures, as it
# moves the budget: add what it adds with metrics off.
WITHOUT_METRICS = {"client": 1220.5, "server": 1336.3}
# The most that a call may take beyond that with metrics off.
UNCOUNTED_LIMIT = 4
# The most that choosing among a set of servers may add to a call in flight alone, by policy; the sets to count.
# The floor is the same calls over a channel to each server, of which the caller takes one for each call: several
# links cost more than one whoever chooses.
CHOICE_LIMITS = {"pick_first": 60, "round_robin": 60, "weighted": 60, "least_in_flight": 60, "route_key": 100}
SETS = (("pick_first", 3), ("round_robin", 1), ("round_robin", 3), ("round_robin", 100), ("weighted", 100),
        ("least_in_flight", 3), ("least_in_flight", 100), ("route_key", 3), ("route_key", 100))


def arguments():
    parser = argparse.ArgumentParser(prog="rpc_instructions", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, help="the rpc_instructions program, optimised")
    parser.add_argument("--calls", type=int, default=4000)
    parser.add_argument("--device", metavar="NAME",
                        help="an RDMA device (rdma:rxe0) instead of the soft one; it has no budget")
    parser.add_argument("--json", metavar="FILE", help="append one JSON object a line to FILE")
    parser.add_argument("--metrics", choices=("on", "off", "both"), default="on",
                        help="off: calls are not counted. both: also print what counting them takes, and fail if it "
                             f"is more than {COUNTING_LIMIT} instructions a side, or if calls that are not counted "
                             f"take more than {UNCOUNTED_LIMIT} more than before there were metrics")
    parser.add_argument("--update", action="store_true", help="write the figures as the new budget")
    parser.add_argument("--installed", metavar="PROGRAM",
                        help="the same program against an installed Verbena: print both, and fail if it takes "
                             f"{(INSTALLED_ALLOWED - 1) * 100:.0f}%% more")
    options = parser.parse_known_args()[0]
    if options.update and options.metrics == "off":
        parser.error("--update writes the budget of calls that are counted: leave out --metrics off")
    return options


def key_of(side, kind, outstanding):
    return f"{side}_{outstanding}" + ("" if kind == "echo" else f"_{kind}")


def floor_of(policy, servers):
    """The calls with which calls that choose are compared: as many servers, taken in a similar order."""
    if policy == "pick_first":
        return ("turns", 1)
    orders = {"least_in_flight": "random", "route_key": "random_keyed"}
    return (orders.get(policy, "turns"), servers)


def count(binary, side, kind, outstanding, options, directory, servers=("", 1), metrics=None):
    """Instructions per call of one side, and those of its costliest functions. `servers`: one of SETS. `metrics`:
    whether calls are counted, if not as the options say."""
    counted = options.metrics != "off" if metrics is None else metrics
    out = directory / key_of(side, kind, outstanding)
    run = subprocess.run(
        ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}",
         f"--toggle-collect={SIDES[side]}", str(binary), str(outstanding), str(options.calls), kind,
         options.device or "", *map(str, servers), "counted" if counted else "uncounted"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    total = re.search(r"Collected : (\d+)", run.stderr)
    done = re.search(r"^(\d+) calls", run.stdout, re.M)
    if run.returncode != 0 or not total or not done:
        raise SystemExit(f"rpc_instructions: {run.stderr.strip()[-2000:]}")
    per_call = int(done.group(1))
    text = subprocess.run(["callgrind_annotate", str(out)], stdout=subprocess.PIPE, text=True,
                          check=True).stdout
    rows = re.findall(r"^ *([\d,]+) \([ \d.]+%\)  [^:]*:(.*?)(?: \[[^\]]*\])?$", text, re.M)
    functions = [(int(n.replace(",", "")) / per_call, name) for n, name in rows
                 if name.strip() not in ("PROGRAM TOTALS", "function")]
    return int(total.group(1)) / per_call, functions[:TOP]


def counting_choices(side, counted, uncounted):
    """{point: (instructions, limit)}: what counting adds to a call, and what metrics add to it when they are off."""
    return {f"counting_{side}_64": (round(counted - uncounted, 1), COUNTING_LIMIT),
            f"uncounted_{side}_64": (round(uncounted - WITHOUT_METRICS[side], 1), UNCOUNTED_LIMIT)}


def stripped(program, directory, name):
    """A copy of `program` in `directory`. Debian's valgrind does not read the debug information of newer
    compilers; symbols are enough."""
    copy = directory / name
    shutil.copyfile(program, copy)
    os.chmod(copy, 0o755)
    subprocess.run(["strip", "--strip-debug", str(copy)], check=True)
    return copy


def compare_installed(options):
    """Prints what calls take in Bazel's program and in that of an installed library. Returns the exit status."""
    over = []
    print(f"{'point':26} {'Bazel':>9} {'installed':>9}")
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        ours = stripped(options.binary, directory, "bazel")
        installed = stripped(options.installed, directory, "installed")
        for kind, outstanding in POINTS:
            for side in SIDES:
                key = key_of(side, kind, outstanding)
                floor, _ = count(ours, side, kind, outstanding, options, directory)
                value, _ = count(installed, side, kind, outstanding, options, directory)
                print(f"{key:26} {floor:9.1f} {value:9.1f}  {(value / floor - 1) * 100:+.1f}%", flush=True)
                if value > floor * INSTALLED_ALLOWED:
                    over.append(key)
                if options.json:
                    with open(options.json, "a", encoding="utf-8") as file:
                        json.dump({"bench": "rpc_instructions", "device": "inprocess", "point": f"{key}_installed",
                                   "instructions_per_call": round(value, 1), "budget": round(floor, 1)}, file)
                        file.write("\n")
    if over:
        print(f"the installed library takes more than {(INSTALLED_ALLOWED - 1) * 100:.0f}% more: {', '.join(over)}",
              file=sys.stderr)
        return 1
    return 0


def main():
    options = arguments()
    if shutil.which("valgrind") is None:
        raise SystemExit("rpc_instructions: valgrind is not installed; run: ./dev install-deps")
    if options.installed:
        return compare_installed(options)
    has_budget = BUDGET.exists() and not options.device
    budget = json.loads(BUDGET.read_text()) if has_budget else {}
    figures = {}
    choices = {}
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        binary = stripped(options.binary, directory, "program")
        for kind, outstanding in POINTS:
            for side in SIDES:
                per_call, functions = count(binary, side, kind, outstanding, options, directory)
                figures[key_of(side, kind, outstanding)] = round(per_call, 1)
                print(f"\n{side}, {kind}, {outstanding} in flight: "
                      f"{per_call:.0f} instructions a call")
                for instructions, function in functions:
                    print(f"  {instructions:8.1f}  {function[:100]}")
        if not options.device:
            floors = {}
            for policy, servers in SETS:
                floor = floor_of(policy, servers)
                if floor not in floors:
                    floors[floor], _ = count(binary, "client", "echo", 1, options, directory, floor)
                per_call, _ = count(binary, "client", "echo", 1, options, directory, (policy, servers))
                choices[f"choice_{policy}_{servers}"] = (round(per_call - floors[floor], 1),
                                                         CHOICE_LIMITS[policy])
            if options.metrics == "both":
                for side in SIDES:
                    without, _ = count(binary, side, "echo", 64, options, directory, metrics=False)
                    choices.update(counting_choices(side, figures[key_of(side, "echo", 64)], without))
    over = [key for key, value in figures.items() if key in budget and value > budget[key] * ALLOWED]
    over += [key for key, (value, limit) in choices.items() if value > limit]
    print()
    rows = [(key, value, budget.get(key)) for key, value in figures.items()]
    rows += [(key, value, limit) for key, (value, limit) in choices.items()]
    for key, value, allowed in rows:
        print(f"{key:26} {value:9.1f}   budget {allowed or 'none'}")
        if options.json:
            with open(options.json, "a", encoding="utf-8") as file:
                json.dump({"bench": "rpc_instructions", "device": options.device or "inprocess",
                           "point": key, "instructions_per_call": value,
                           "budget": allowed}, file)
                file.write("\n")
    if options.update and not options.device:
        BUDGET.write_text(json.dumps(figures, indent=2) + "\n")
    elif over:
        print(f"over the budget, of calls by more than {(ALLOWED - 1) * 100:.1f}%: {', '.join(over)}",
              file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
