#!/usr/bin/env python3
"""Builds the benchmarks, optimised, and runs them one after the other."""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import bazel_events

TOP = bazel_events.TOP
PEERS = TOP / "benchmarks/peers"
PLOTS = TOP / ".bazel/plots"
NOT_INSTALLED = 3
# What every benchmark knows; peers know no more.
COMMON_OPTIONS = ("--size", "--outstanding", "--seconds", "--json")

# Name -> (what it measures, its Bazel target or None).
BENCHMARKS = {
    "rpc": ("unary echo through generated stubs, its floor beside it",
            "//benchmarks/rpc:rpc_bench"),
    "rpc_instructions": ("instructions of a call, per side, against their budget",
                         "//benchmarks/rpc:rpc_instructions"),
    "payload": ("payloads read and written, one memcpy beside them; the same by gRPC and UCX",
                "//benchmarks/payload:payload_bench"),
    "floor": ("two processes that only copy bytes and watch a word", "//benchmarks/floor:floor_bench"),
    "parameters": ("the comparisons by which verbs' parameters are chosen, with a plot of each",
                   "//benchmarks/parameters:parameters_bench"),
    "grpc": ("the same echo through gRPC C++, where that is installed", None),
    "ucx": ("UCX active messages by ucx_perftest, where that is installed", None),
}
# Only when asked for: it answers other questions than how fast calls are.
ON_REQUEST = ("parameters",)


def arguments():
    parser = argparse.ArgumentParser(
        prog="./dev bench", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Runs the benchmarks. Two cores that are otherwise idle give true figures.",
        epilog="benchmarks:\n" +
               "".join(f"  {name:16} {what}\n" for name, (what, _) in BENCHMARKS.items()) +
               "\nWhat is not known here is passed on to the benchmarks: --size 32, --outstanding 1,64, …;\n"
               "peers get of it what every benchmark knows: --size, --outstanding.\n"
               "./dev install-deps --peers installs gRPC and UCX.")
    parser.add_argument("--json", metavar="FILE", help="write one JSON object a line to FILE")
    parser.add_argument("--only", metavar="NAME[,NAME]", default="",
                        help="run these alone: " + ", ".join(BENCHMARKS))
    parser.add_argument("--parameters", action="store_true",
                        help="the same as --only parameters; plots go to .bazel/plots")
    parser.add_argument("--vm", action="store_true",
                        help="in a guest, over rxe: calls, with perftest and ibv_rc_pingpong beside "
                             "them; with --only payload payloads, with ib_write_bw beside them; with "
                             "--parameters the comparisons")
    parser.add_argument("--device", choices=("rxe", "siw"), default="rxe",
                        help="of the guest, for --vm --only payload (default rxe)")
    parser.add_argument("--seconds", type=float, metavar="N", help="seconds per point (default 2; for calls in a guest 4)")
    options, options.rest = parser.parse_known_args()
    options.only = [name for name in options.only.split(",") if name]
    # A benchmark's program may be named as well: rpc_bench is rpc.
    options.only = [name[:-len("_bench")] if name.endswith("_bench") else name
                    for name in options.only]
    if options.parameters:
        options.only.append("parameters")
    if options.vm and not options.only:
        options.only = ["rpc"]
    options.only = options.only or [name for name in BENCHMARKS if name not in ON_REQUEST]
    for name in options.only:
        if name not in BENCHMARKS:
            parser.error(f"there is no benchmark '{name}'; benchmarks: {', '.join(BENCHMARKS)}")
    return options


def build(targets):
    """Builds `targets` optimised. Returns the directory of the binaries."""
    if subprocess.run([bazel_events.BAZEL, "build", "--config=opt", *targets], cwd=TOP,
                      check=False).returncode != 0:
        raise SystemExit(1)
    # The link moves with the next build of another configuration.
    return pathlib.Path(os.path.realpath(TOP / ".bazel/bin"))


def binary(directory, name):
    package, target = BENCHMARKS[name][1][2:].split(":")
    return str(directory / package / target)


def build_with_grpc(program):
    """The command for `program` of benchmarks/peers, or None if gRPC is not installed."""
    built = subprocess.run([str(PEERS / "build_grpc.sh"), program], stdout=subprocess.PIPE, text=True,
                           check=False)
    if built.returncode == NOT_INSTALLED:
        return None
    if built.returncode != 0:
        raise SystemExit(1)
    return [built.stdout.strip()]


def commands_of(name, directory):
    """(what it is called, the program) of each part of `name`; None for what is not installed."""
    yield name, command_of(name, directory)
    if name == "payload":
        yield "payload by gRPC", build_with_grpc("grpc_payload_bench")
        yield "payload by UCX", [str(PEERS / "ucx_payload_bench.py"),
                                 "--payload-bench", binary(directory, name)]


def command_of(name, directory):
    """The program that runs `name`, or None if what it needs is not installed."""
    if name == "grpc":
        return build_with_grpc("grpc_bench")
    if name == "ucx":
        return [str(PEERS / "ucx_bench.py"), "--floor-bench", binary(directory, "floor")]
    if name == "parameters":
        PLOTS.mkdir(parents=True, exist_ok=True)
        return [binary(directory, name), "--plots", str(PLOTS)]
    if name == "rpc_instructions":
        return [str(TOP / "benchmarks/rpc/instructions.py"), "--binary", binary(directory, name)]
    return [binary(directory, name)]


def common_options(words):
    """Of `words`, which are options with one value each, those that peers know."""
    return [word for name, value in zip(words, words[1:]) if name in COMMON_OPTIONS
            for word in (name, value)]


def guest_command(options, results):
    """What the guest runs, leaving its rows in `results`/rows.json and its plots beside them."""
    target = next((name for name in ("parameters", "payload") if name in options.only), "rpc")
    program = binary(build([BENCHMARKS[target][1]]), target)
    if target == "rpc":
        words = [TOP / "benchmarks/verbs/verbs_bench.py", "--rpc-bench", program]
    elif target == "payload":
        words = [TOP / "benchmarks/verbs/payload_verbs_bench.py", "--payload-bench", program,
                 "--device", f"{options.device}0"]
        if options.device == "siw":  # through rdma_cm alone, which does not know the loopback address
            words += ["--rdma-cm", "--address", "10.0.0.1"]
    else:
        words = [program, "--device", "rdma", "--plots", results]
    if options.seconds:
        words += ["--seconds", str(options.seconds)]
    return [*words, "--json", f"{results}/rows.json", *options.rest]


def bench_in_guest(options):
    """Runs the benchmark of guest_command in a guest. Returns its status."""
    if subprocess.run([TOP / "tools/dev/install_deps.sh", "--quiet", "vm"],
                      check=False).returncode != 0:
        return 1
    with tempfile.TemporaryDirectory(prefix="verbena-bench-") as results:
        status = subprocess.run(
            [TOP / "tools/vm/vm.py", "--device", options.device, "--pin", "--writable", results,
             "--timeout", "1200", "--",
             *guest_command(options, results)], check=False).returncode
        if status == 0 and options.json:
            shutil.copy(f"{results}/rows.json", options.json)
        plots = sorted(pathlib.Path(results).glob("*.svg"))
        if plots:
            kept = PLOTS / "guest"
            kept.mkdir(parents=True, exist_ok=True)
            for plot in plots:
                shutil.copy(plot, kept)
            print(f"plots: {kept.relative_to(TOP)}")
    return status


def main():
    options = arguments()
    if options.vm:
        return bench_in_guest(options)
    needed = set(options.only) | ({"floor"} if "ucx" in options.only else set())
    directory = build(sorted(BENCHMARKS[name][1] for name in needed if BENCHMARKS[name][1]))
    passed_on = options.rest
    if options.seconds:
        passed_on = [*passed_on, "--seconds", str(options.seconds)]
    if options.json:
        path = os.path.abspath(options.json)
        open(path, "w").close()  # each benchmark appends
        passed_on = [*passed_on, "--json", path]
    failed = []
    for name in options.only:
        print(f"== {name}: {BENCHMARKS[name][0]}", flush=True)
        for part, command in commands_of(name, directory):
            is_peer = part != name or BENCHMARKS[name][1] is None
            words = common_options(passed_on) if is_peer else passed_on
            status = subprocess.run([*command, *words], check=False).returncode \
                if command else NOT_INSTALLED
            if status == NOT_INSTALLED and is_peer:
                print(f"{part} is left out: not installed (./dev install-deps --peers)")
            elif status != 0:
                failed.append(part)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
