#!/usr/bin/env python3
"""Builds the benchmarks, optimised, and runs them one after the other."""

import argparse
import itertools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import bazel_events
import bench_runs

TOP = bazel_events.TOP
PEERS = TOP / "benchmarks/peers"
PLOTS = TOP / ".bazel/plots"
NOT_INSTALLED = 3
SOFT_LIBRARY = "//transport/preload:libverbena_soft.so"
# Benchmarks without a target of their own that need the floor's program beside them.
BESIDE_FLOOR = ("ucx", "soft_verbs")
# Options that every benchmark knows; peers know no more.
COMMON_OPTIONS = ("--size", "--outstanding", "--seconds", "--json")

# Name -> (what it measures, its Bazel target or None).
BENCHMARKS = {
    "rpc": ("unary echo through generated stubs, its floor beside it; over TCP the same by gRPC",
            "//benchmarks/rpc:rpc_bench"),
    "rpc_instructions": ("instructions of a call, per side, against their budget",
                         "//benchmarks/rpc:rpc_instructions"),
    "stream": ("messages read from 1 and from 100 streams, unary calls beside them; the same by gRPC",
               "//benchmarks/rpc:stream_bench"),
    "overload": ("calls served, and their latency, under more load than a server can serve, and of callers that give up",
                 "//benchmarks/overload:overload_bench"),
    "kv": ("puts and gets of examples/kv on RocksDB by calls, the same in one process beside them",
           "//benchmarks/kv:kv_bench"),
    "payload": ("payloads read and written, one memcpy or a TCP stream beside them; the same by gRPC and UCX",
                "//benchmarks/payload:payload_bench"),
    "interference": ("small calls beside payloads on one link, and payloads beside small calls",
                     "//benchmarks/payload:interference_bench"),
    "links": ("echo calls over 1 to 4,000 links of one executor; storms, restarts, and clients that are frozen",
              "//benchmarks/links:links_bench"),
    "link_loss": ("the longest gap of an echo whose endpoint loses a thousand other links",
                  "//benchmarks/link_loss:link_loss_bench"),
    "floor": ("two processes that only copy bytes and watch a word", "//benchmarks/floor:floor_bench"),
    "parameters": ("the comparisons by which verbs' parameters are chosen",
                   "//benchmarks/parameters:parameters_bench"),
    "soft_verbs": ("perftest on the preloaded soft device, bare shared memory beside it; over Soft-RoCE: --vm", None),
    "grpc": ("the same echo through gRPC C++, where that is installed", None),
    "ucx": ("UCX active messages by ucx_perftest, where that is installed", None),
}
# Run only if named: their figures do not tell how fast calls are.
ON_REQUEST = ("parameters",)
# Run over the device that --device names; the others choose their own.
TAKE_DEVICE = ("rpc", "rpc_instructions", "payload", "interference", "parameters")
GUEST_DEVICES = ("rxe", "siw")
# Measure calls with RuntimeOptions::metrics on and off; the others have them on.
TAKE_METRICS = ("rpc", "rpc_instructions")


def arguments(words=None):
    """The options among `words`, by default the program's arguments; what it passes on is in `rest`."""
    parser = argparse.ArgumentParser(
        prog="./dev bench", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Runs the benchmarks. Two cores that are otherwise idle give true figures.",
        epilog="benchmarks:\n" +
               "".join(f"  {name:16} {what}\n" for name, (what, _) in BENCHMARKS.items()) +
               "\nThe benchmarks get all other options: --size 32, --outstanding 1,64, …; gRPC and UCX get\n"
               "only those that every benchmark knows: --size, --outstanding. With --device soft:tcp, rpc and\n"
               "payload take --floor-only: TCP by itself, by system calls and through io_uring.\n"
               "\n--compare prints which figures changed beyond noise: medians of ratios, with intervals by\n"
               "order statistics. Its status is 0 if no figure is worse, 1 if one is, and 2 if there is\n"
               "nothing to compare. A file holds the rows of at least 5 runs, as --json writes them: join\n"
               "the files of the runs. Commits are built below ~/.cache/verbena-compare and run\n"
               "alternately; '.' is this tree. Without --only, --compare runs calls (rpc). It prints its\n"
               "result, and takes neither --json nor --vm.\n\n"
               "./dev install-deps --peers installs gRPC and UCX.")
    parser.add_argument("--json", metavar="FILE", help="write each row to FILE, one JSON object a line")
    parser.add_argument("--only", metavar="NAME[,NAME]", default="",
                        help="run only these benchmarks (default all but " + ", ".join(ON_REQUEST) + "; with "
                             "--vm or --compare rpc)")
    parser.add_argument("--compare", nargs=2, metavar=("OLD", "NEW"),
                        help="print which figures changed beyond noise from OLD to NEW: two files of JSON "
                             "lines, or two commits")
    parser.add_argument("--plot", nargs="?", const="", metavar="FILE",
                        help="draw the figures as SVG files in .bazel/plots; with FILE, which --json wrote, run "
                             "nothing and draw its rows")
    parser.add_argument("--rounds", type=int, default=5, metavar="N",
                        help="with --compare: run each commit N times (default 5; fewer give no intervals)")
    parser.add_argument("--parameters", action="store_true",
                        help="the same as --only parameters --plot, but without matplotlib it only measures")
    parser.add_argument("--vm", action="store_true",
                        help="run one benchmark in a guest, over Soft-RoCE (rxe): rpc (the default), beside "
                             "perftest and ibv_rc_pingpong; --only payload, beside ib_write_bw; "
                             "--only interference; or --only parameters")
    parser.add_argument("--device", metavar="DEVICE",
                        help="run over DEVICE: soft, soft:tcp, or rdma:NAME; only " + ", ".join(TAKE_DEVICE) + " take it. With "
                             "--vm: the guest's RDMA device, rxe (default) or siw")
    parser.add_argument("--metrics", choices=("on", "off", "both"),
                        help="whether a runtime counts its calls (default on). both: also compare calls that are "
                             "counted with calls that are not, and time a scrape; only " + " and ".join(TAKE_METRICS) +
                             " take it")
    parser.add_argument("--installed", metavar="DIR",
                        help="with --only rpc_instructions: compare with the Verbena that cmake --install put "
                             "below DIR")
    parser.add_argument("--seconds", type=float, metavar="N",
                        help="measure each point for N seconds (default 2; for calls in a guest 4)")
    options, rest = parser.parse_known_args(words)
    options.rest = rest
    if options.compare and options.vm:
        parser.error("--compare cannot run in a guest: compare two files that --vm --json FILE wrote")
    if options.compare and options.plot is not None:
        parser.error("--plot draws one run: it does not go with --compare")
    if options.compare and options.json:
        parser.error("--compare writes no rows: --json is for runs without it")
    options.only = [name for name in options.only.split(",") if name]
    # A benchmark's program may be named as well: rpc_bench is rpc.
    options.only = [name[:-len("_bench")] if name.endswith("_bench") else name
                    for name in options.only]
    if options.parameters:
        options.only.append("parameters")
        if not options.compare:
            options.plot = options.plot or ""
    if (options.vm or options.compare) and not options.only:
        options.only = ["rpc"]
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}, but must be at least 1")
    options.only = options.only or [name for name in BENCHMARKS if name not in ON_REQUEST]
    for name in options.only:
        if name not in BENCHMARKS:
            parser.error(f"there is no benchmark '{name}'; benchmarks: {', '.join(BENCHMARKS)}")
    check_device(parser, options)
    if options.metrics:
        if options.vm or options.compare:
            parser.error("--metrics does not go with --vm or --compare")
        if not set(options.only) & set(TAKE_METRICS):
            parser.error(f"--metrics is not taken by {', '.join(options.only)}; run --only "
                         f"{' or '.join(TAKE_METRICS)} with it")
    if options.installed:
        if options.only != ["rpc_instructions"] or options.device:
            parser.error("--installed is for --only rpc_instructions, without --device")
        if not list(pathlib.Path(options.installed).glob("lib*/**/VerbenaConfig.cmake")):
            parser.error(f"--installed: '{options.installed}' has no VerbenaConfig.cmake below lib: "
                         "run cmake --install BUILD --prefix DIR")
    return options


def check_device(parser, options):
    """Ends the program if a benchmark cannot run over options.device. Otherwise passes the device on."""
    if options.vm:
        options.device = options.device or GUEST_DEVICES[0]
        if options.device not in GUEST_DEVICES:
            parser.error(f"--device is '{options.device}', but with --vm must be one of: {', '.join(GUEST_DEVICES)}")
        return
    if options.device is None:
        return
    unfit = [name for name in options.only if name not in TAKE_DEVICE]
    if unfit:
        parser.error(f"--device is not taken by {', '.join(unfit)}; run --only {' or '.join(TAKE_DEVICE)} with it")
    # Known before anything is built.
    if options.device not in ("soft", "rdma") and not options.device.startswith(("soft:", "rdma:")):
        parser.error(f"--device is '{options.device}', but must be soft, soft:tcp or rdma:NAME")
    options.rest += ["--device", options.device]


def build(targets):
    """Builds `targets` optimised. Returns the directory of the binaries."""
    if subprocess.run([bazel_events.BAZEL, "build", "--config=opt", *targets], cwd=TOP,
                      check=False).returncode != 0:
        raise SystemExit(1)
    # Resolved, because .bazel/bin points elsewhere after a build of another configuration.
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


def build_against(installed):
    """Builds rpc_instructions against the Verbena below directory `installed`. Returns the program."""
    directory = TOP / ".cache/installed_instructions"
    shutil.rmtree(directory, ignore_errors=True)  # what CMake has found is remembered there
    for command in (["cmake", "-S", str(TOP / "benchmarks/rpc/installed"), "-B", str(directory), "-G", "Ninja",
                     "-DCMAKE_CXX_COMPILER=clang++-19", "-DCMAKE_BUILD_TYPE=Release",
                     f"-DCMAKE_PREFIX_PATH={os.path.abspath(installed)}"],
                    ["cmake", "--build", str(directory)]):
        if subprocess.run(command, check=False).returncode != 0:
            raise SystemExit(1)
    return str(directory / "rpc_instructions")


def commands_of(name, directory, device=None):
    """(name, program) of each part of `name` over `device`. The program is None if it is not installed."""
    yield name, command_of(name, directory)
    if name == "rpc" and device and device.startswith("soft:tcp"):
        yield "rpc by gRPC", build_with_grpc("grpc_bench")
    if name == "stream":
        yield "stream by gRPC", build_with_grpc("grpc_stream_bench")
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
    if name == "soft_verbs":
        return [str(TOP / "benchmarks/verbs/soft_verbs_bench.py"), "--floor-bench", binary(directory, "floor"),
                "--library", str(directory / SOFT_LIBRARY.removeprefix("//").replace(":", "/"))]
    if name == "rpc_instructions":
        return [str(TOP / "benchmarks/rpc/instructions.py"), "--binary", binary(directory, name)]
    return [binary(directory, name)]


def plot(rows, directory=PLOTS):
    """Draws the rows of file `rows` into `directory`. Returns the status of bench_plot.py."""
    subprocess.run([TOP / "tools/dev/install_deps.sh", "--quiet", "plots"], check=False)
    # Debian's interpreter has Debian's matplotlib.
    return subprocess.run(["/usr/bin/python3", TOP / "tools/dev/bench_plot.py", "--out", directory, rows],
                          check=False).returncode


def common_options(words):
    """The options among `words` that peers know; each has one value."""
    return [word for name, value in zip(words, words[1:]) if name in COMMON_OPTIONS
            for word in (name, value)]


def words_of(name, is_peer, passed_on, options):
    """The options of benchmark `name`, or of its peer, if all benchmarks get `passed_on`."""
    if is_peer:
        return common_options(passed_on)
    return [*passed_on, *(["--metrics", options.metrics] if options.metrics and name in TAKE_METRICS else [])]


def guest_command(options, results):
    """The guest's command, which leaves its rows in `results`/rows.json."""
    target = next((name for name in ("parameters", "payload", "interference")
                   if name in options.only), "rpc")
    program = binary(build([BENCHMARKS[target][1]]), target)
    if target == "rpc":
        words = [TOP / "benchmarks/verbs/verbs_bench.py", "--rpc-bench", program]
    elif target == "payload":
        words = [TOP / "benchmarks/verbs/payload_verbs_bench.py", "--payload-bench", program,
                 "--device", f"{options.device}0"]
        if options.device == "siw":  # connects only by rdma_cm, which does not know the loopback address
            words += ["--rdma-cm", "--address", "10.0.0.1"]
    elif target == "interference":
        # An emulated guest moves 0.1 GB/s. So payloads are fewer and smaller, and echoes so few that
        # each ends before the next is due.
        words = [program, "--device", f"rdma:{options.device}0", "--echoes", "100", "--size",
                 "65536,1048576", "--seconds", "6"]
    else:
        words = [program, "--device", "rdma"]
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
        if status == 0 and options.plot is not None:
            drawn = plot(f"{results}/rows.json", PLOTS / "guest")
            status = 0 if options.parameters and drawn == NOT_INSTALLED else drawn
    return status


def compare(options):
    """Compares two files or commits. Returns the status that --help tells."""
    unfit = [name for name in options.only if BENCHMARKS[name][1] is None or name == "rpc_instructions"]
    if unfit:
        print(f"bench: --compare does not run {', '.join(unfit)}; it compares their files of JSON lines")
        return 2
    words = [*options.rest, *(["--seconds", str(options.seconds)] if options.seconds else [])]
    targets = [BENCHMARKS[name][1] for name in options.only]
    return bench_runs.compare(*options.compare, targets, words, options.rounds)


def main():
    options = arguments()
    if options.compare:
        return compare(options)
    if options.plot:
        return plot(options.plot)
    if options.vm:
        return bench_in_guest(options)
    needed = set(options.only) | ({"floor"} if set(BESIDE_FLOOR) & set(options.only) else set())
    targets = sorted(BENCHMARKS[name][1] for name in needed if BENCHMARKS[name][1])
    directory = build(targets + ([SOFT_LIBRARY] if "soft_verbs" in options.only else []))
    passed_on = options.rest
    if options.installed:
        passed_on = [*passed_on, "--installed", build_against(options.installed)]
    if options.seconds:
        passed_on = [*passed_on, "--seconds", str(options.seconds)]
    if options.json:
        path = os.path.abspath(options.json)
        open(path, "w", encoding="utf-8").close()  # each benchmark appends
        passed_on = [*passed_on, "--json", path]
    if options.plot is not None and not options.json:
        with tempfile.NamedTemporaryFile(prefix="verbena-bench-", suffix=".json") as rows:
            return run(options, directory, [*passed_on, "--json", rows.name], rows.name)
    return run(options, directory, passed_on, options.json)


def run(options, directory, passed_on, rows):
    """Runs the benchmarks, which get `passed_on`, and draws file `rows` if asked to. Returns the exit status."""
    failed = []
    for name in options.only:
        print(f"== {name}: {BENCHMARKS[name][0]}", flush=True)
        # Peers come behind the benchmark itself, and have no floor of their own.
        parts = itertools.islice(commands_of(name, directory, options.device),
                                 1 if "--floor-only" in passed_on else None)
        for part, command in parts:
            is_peer = part != name or BENCHMARKS[name][1] is None
            words = words_of(name, is_peer, passed_on, options)
            status = subprocess.run([*command, *words], check=False).returncode \
                if command else NOT_INSTALLED
            if status == NOT_INSTALLED and is_peer:
                print(f"{part} is left out: not installed (./dev install-deps --{'soft' if part == 'soft_verbs' else 'peers'})")
            elif status != 0:
                failed.append(part)
    if options.plot is not None:
        status = plot(rows)
        if status != 0 and not (options.parameters and status == NOT_INSTALLED):
            failed.append("plots")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
