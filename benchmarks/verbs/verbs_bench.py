#!/usr/bin/env python3
"""Unary echo over an RDMA device, beside what perftest and ibv_rc_pingpong measure on it.

Runs on a machine that has the device, or in a guest (./dev bench --vm). Floor and calls alternate,
round by round, and their medians are compared: a call is two SENDs, so its floor is twice what
ib_send_lat calls typical. An emulated guest may run at half its speed for a tenth of a second or a
minute, floor and calls alike. So rounds are many and short, and the fastest rounds are reported too.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))
import bench_script
import ucx_bench

PATIENCE_S = 120
PORT = 18515  # of every program below, unless it is told another

LATENCIES = ("ib_send_lat", "ib_write_lat")
BANDWIDTHS = ("ib_write_bw", "ib_read_bw")
BANDWIDTH_BYTES = 65536
BANDWIDTH_ROUNDS = 3


def arguments():
    numbers = lambda text: [int(word) for word in text.split(",")]
    parser = argparse.ArgumentParser(prog="verbs_bench", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="rxe0", help="of this machine (default rxe0)")
    parser.add_argument("--gid-index", type=int, default=1, help="of the device (default 1)")
    parser.add_argument("--json", metavar="FILE", help="append one JSON object a line to FILE")
    parser.add_argument("--rounds", type=int, default=9, help="of floor and calls (default 9)")
    parser.add_argument("--seconds", type=float, default=4, help="of calls, per point (default 4)")
    parser.add_argument("--size", type=numbers, default=[32], help="bytes (default 32)")
    parser.add_argument("--outstanding", type=numbers, default=[1, 8, 64],
                        help="calls in flight (default 1,8,64)")
    parser.add_argument("--mode", default="busy,adaptive", help="default busy,adaptive")
    parser.add_argument("--rpc-bench", metavar="PROGRAM", required=True)
    return parser.parse_args()


def between_two_processes(command, cores, address="127.0.0.1"):
    """The output of `command` as a client on one core, with itself as the server on the other."""
    server = subprocess.Popen(["taskset", "-c", str(cores[1]), *command],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        ucx_bench.wait_until_listening(PORT, server)
        return subprocess.run(["taskset", "-c", str(cores[0]), *command, address],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=PATIENCE_S, check=True).stdout
    finally:
        server.kill()
        server.wait()


def perftest_figures(text):
    """The last line of figures that perftest prints, as numbers."""
    lines = [line.split() for line in text.splitlines() if re.match(r"\s*\d+\s+\d+\s+[\d.]+", line)]
    if not lines:
        raise RuntimeError(f"no figures in what perftest says:\n{text}")
    return [float(word) for word in lines[-1]]


def floor_round(options, cores, floor, with_bandwidths):
    """Runs each program of the floor once, and adds its figure to `floor`."""
    device = ["-d", options.device, "-x", str(options.gid_index), "-F"]
    for name in LATENCIES:
        for size in options.size:
            figures = perftest_figures(between_two_processes(
                [name, *device, "-s", str(size), "-n", "1000"], cores))
            floor.setdefault((name, size), []).append(figures[4])  # t_typical
    for name in BANDWIDTHS if with_bandwidths else ():
        figures = perftest_figures(between_two_processes(
            [name, *device, "-s", str(BANDWIDTH_BYTES), "-n", "500"], cores))
        floor.setdefault((name, BANDWIDTH_BYTES), []).append(figures[3])  # average
    for size in options.size:
        said = between_two_processes(
            ["ibv_rc_pingpong", "-d", options.device, "-g", str(options.gid_index), "-s", str(size),
             "-n", "1000"], cores)
        figure = float(re.search(r"= ([\d.]+) usec/iter", said)[1])
        floor.setdefault(("ibv_rc_pingpong", size), []).append(figure)


def calls_round(options, calls):
    """Runs rpc_bench once, and adds each of its rows to `calls`."""
    words = ["--mode", options.mode, "--seconds", str(options.seconds / options.rounds),
             "--size", ",".join(map(str, options.size)),
             "--outstanding", ",".join(map(str, options.outstanding))]
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "rows.json")
        subprocess.run([options.rpc_bench, "--points-only", *words, "--json", path], check=True,
                       stdout=subprocess.DEVNULL,
                       env=dict(os.environ, VERBENA_DEVICE=f"rdma:{options.device}"))
        with open(path, encoding="utf-8") as rows:
            for row in map(json.loads, rows):
                calls.setdefault((row["mode"], row["size"], row["outstanding"]), []).append(row)


def floor_rows(options, floor):
    for (name, size), figures in floor.items():
        row = {"bench": name, "device": options.device, "mode": "busy", "size": size,
               "outstanding": None}
        if name in BANDWIDTHS:
            row["mb_per_s"] = statistics.median(figures)
        else:
            add_p50(row, figures)
        yield row


def add_p50(row, figures):
    row["p50_us"] = statistics.median(figures)
    row["p50_lowest_us"], row["p50_highest_us"] = min(figures), max(figures)


def call_rows(options, calls, floor):
    for (mode, size, outstanding), rows in calls.items():
        row = {"bench": "rpc", "device": options.device, "mode": mode, "size": size,
               "outstanding": outstanding}
        add_p50(row, [each["p50_us"] for each in rows])
        for name in ("p99_us", "calls_per_s"):
            row[name] = statistics.median(each[name] for each in rows)
        row["floor_p50_us"] = 2 * statistics.median(floor["ib_send_lat", size])
        row["ratio_to_floor"] = row["p50_us"] / row["floor_p50_us"]
        row["ratio_of_lowest"] = row["p50_lowest_us"] / (2 * min(floor["ib_send_lat", size]))
        yield row


def print_rows(rows):
    columns = ("p50_us", "p50_lowest_us", "p50_highest_us", "p99_us", "calls_per_s", "mb_per_s",
               "floor_p50_us", "ratio_to_floor", "ratio_of_lowest")
    print(f"{'bench':<16} {'mode':<9} {'bytes':>6} {'flying':>6}" +
          "".join(f" {name:>15}" for name in columns))
    for row in rows:
        cells = "".join(f" {row[name]:>15.2f}" if row.get(name) is not None else f" {'-':>15}"
                        for name in columns)
        flying = "-" if row["outstanding"] is None else row["outstanding"]
        print(f"{row['bench']:<16} {row['mode']:<9} {row['size']:>6} {flying:>6}{cells}")


def main():
    options = arguments()
    cores = ucx_bench.two_cores()
    floor, calls = {}, {}
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        floor_round(options, cores, floor, with_bandwidths=number < BANDWIDTH_ROUNDS)
        calls_round(options, calls)
    rows = [*floor_rows(options, floor), *call_rows(options, calls, floor)]
    print_rows(rows)
    bench_script.append_json(options.json, rows)
    return 0


if __name__ == "__main__":
    bench_script.run("verbs_bench", main)
