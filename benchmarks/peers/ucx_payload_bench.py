#!/usr/bin/env python3
"""Payloads as UCX active messages over shared memory, by ucx_perftest on two cores.

One in flight is a ping-pong (ucp_am_lat), of which a row tells one way; more in flight is a stream
(ucp_am_bw), nothing of which is answered. The floor, one memcpy into memory that both processes have
mapped, is measured before and after each. Both sides poll: each uses its core all the time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import shutil
import tempfile

import bench_script
import ucx_bench

FIRST_RUN_BYTES = 64 << 20


def arguments():
    numbers = lambda text: [int(word) for word in text.split(",")]
    parser = argparse.ArgumentParser(prog="ucx_payload_bench", description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="append one JSON object a line to FILE")
    parser.add_argument("--seconds", type=float, default=2, help="per point (default 2)")
    parser.add_argument("--size", type=numbers, default=[4096, 65536, 1 << 20, 16 << 20])
    parser.add_argument("--outstanding", type=numbers, default=[1, 4, 16])
    parser.add_argument("--payload-bench", metavar="PROGRAM", required=True)
    return parser.parse_known_args()[0]


def floor(program, size, outstanding, seconds):
    """The row of payload_bench for the floor of a payload that is written."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "floor.json")
        subprocess.run([program, "--floor-only", "--direction", "write", "--json", path,
                        "--size", str(size), "--outstanding", str(outstanding),
                        "--seconds", str(seconds)], stdout=subprocess.DEVNULL, check=True)
        with open(path, encoding="utf-8") as file:
            return json.loads(file.readline())


def run(test, size, cores, extra, seconds):
    """The figures of a run of about `seconds`. A short run before it tells how many messages that is."""
    first = max(20, min(20_000, FIRST_RUN_BYTES // size))
    rate = ucx_bench.perftest(test, size, first, cores, extra)[-1]
    return ucx_bench.perftest(test, size, max(first, int(rate * seconds)), cores, extra)


def row_of(size, outstanding, floors, figures, p99=None):
    """A row in payload_bench's terms. `figures` are ucx_perftest's: p50, …, messages a second."""
    rate = figures[-1]
    floor_p50 = statistics.median(each["p50_us"] for each in floors)
    floor_rate = statistics.median(each["gb_per_s"] for each in floors)
    ping_pong = outstanding == 1
    p50 = figures[1] if ping_pong else None
    return {"bench": "ucx_write", "device": "shm", "mode": "busy", "size": size,
            "outstanding": outstanding, "p50_us": p50, "p99_us": p99, "calls_per_s": rate,
            "floor_p50_us": floor_p50,
            "ratio_to_floor": p50 / floor_p50 if ping_pong else None,
            "gb_per_s": rate * size / 1e9, "floor_gb_per_s": floor_rate,
            "bandwidth_to_floor": rate * size / 1e9 / floor_rate}


def measure(options, size, outstanding, cores):
    floors = [floor(options.payload_bench, size, outstanding, options.seconds / 4)]
    if outstanding == 1:
        figures = run("ucp_am_lat", size, cores, ["-R", "50"], options.seconds / 2)
        p99 = run("ucp_am_lat", size, cores, ["-R", "99"], options.seconds / 2)[1]
    else:
        figures = run("ucp_am_bw", size, cores, ["-O", str(outstanding)], options.seconds)
        p99 = None
    floors.append(floor(options.payload_bench, size, outstanding, options.seconds / 4))
    return row_of(size, outstanding, floors, figures, p99)


def print_row(row):
    def cell(name, precision):
        return "-" if row[name] is None else f"{row[name]:.{precision}f}"
    print(f"{row['bench']:<22} {row['device']:<6} {row['mode']:<8} {row['size']:>9} "
          f"{row['outstanding']:>6} {cell('p50_us', 2):>10} {cell('p99_us', 2):>10} "
          f"{cell('ratio_to_floor', 2):>8} {cell('gb_per_s', 3):>9} "
          f"{cell('floor_gb_per_s', 2):>8} {cell('bandwidth_to_floor', 2):>7}", flush=True)


def main():
    options = arguments()
    if not shutil.which("ucx_perftest"):
        print("ucx_payload_bench: ucx_perftest is not installed", file=sys.stderr)
        return 3
    cores = ucx_bench.two_cores()
    for size in options.size:
        for outstanding in options.outstanding:
            row = measure(options, size, outstanding, cores)
            print_row(row)
            bench_script.append_json(options.json, [row])
    return 0


if __name__ == "__main__":
    bench_script.run("ucx_payload_bench", main)
