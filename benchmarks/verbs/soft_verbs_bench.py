#!/usr/bin/env python3
"""perftest on the preloaded soft device, with a bare exchange over shared memory beside it.

The same programs over Soft-RoCE: ./dev bench --vm, whose rows have the same names.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))
import bench_script
import ucx_bench
import verbs_bench

NOT_INSTALLED = 3
ROUNDS = 5
LATENCY_BYTES = 32
BANDWIDTH_BYTES = 65536
DEVICE = ["-d", "soft0", "-F"]


def arguments():
    parser = argparse.ArgumentParser(prog="soft_verbs_bench", description=__doc__.splitlines()[0])
    parser.add_argument("--library", required=True, metavar="FILE", help="libverbena_soft.so")
    parser.add_argument("--floor-bench", required=True, metavar="PROGRAM")
    parser.add_argument("--json", metavar="FILE", help="append one JSON object a line to FILE")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default {ROUNDS}")
    # The rows are about two sizes, one operation at a time; other benchmarks' options are let pass.
    return parser.parse_known_args()[0]


def figures_of(program, size, count, cores):
    return verbs_bench.perftest_figures(verbs_bench.between_two_processes(
        [program, *DEVICE, "-s", str(size), "-n", str(count)], cores))


def floor_p50_us(options):
    """Half a round trip over bare shared memory: perftest counts one way."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "rows.json")
        settings = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        subprocess.run([options.floor_bench, "--size", str(LATENCY_BYTES), "--outstanding", "1", "--seconds", "0.3",
                        "--json", path], check=True, stdout=subprocess.DEVNULL, env=settings)
        with open(path, encoding="utf-8") as rows:
            return json.loads(rows.readline())["p50_us"] / 2


def main():
    options = arguments()
    if not all(shutil.which(name) for name in ("ib_send_lat", "ib_write_bw")):
        return NOT_INSTALLED
    cores = ucx_bench.two_cores()
    # Both processes of each row inherit them.
    os.environ["LD_PRELOAD"] = os.path.abspath(options.library)
    os.environ["VERBENA_SOFT_DEVICES"] = "2"
    latencies, tails, floors, bandwidths = [], [], [], []
    for _ in range(options.rounds):
        figures = figures_of("ib_send_lat", LATENCY_BYTES, 20000, cores)
        latencies.append(figures[4])  # typical
        tails.append(figures[7])
        floors.append(floor_p50_us(options))
        bandwidths.append(figures_of("ib_write_bw", BANDWIDTH_BYTES, 5000, cores)[3])  # average
    row = {"bench": "ib_send_lat", "device": "soft", "mode": "busy", "size": LATENCY_BYTES, "outstanding": None}
    verbs_bench.add_p50(row, latencies)
    row["p99_us"] = statistics.median(tails)
    row["floor_p50_us"] = statistics.median(floors)
    row["ratio_to_floor"] = row["p50_us"] / row["floor_p50_us"]
    rows = [row, {"bench": "ib_write_bw", "device": "soft", "mode": "busy", "size": BANDWIDTH_BYTES,
                  "outstanding": None, "mb_per_s": statistics.median(bandwidths)}]
    verbs_bench.print_rows(rows)
    bench_script.append_json(options.json, rows)
    return 0


if __name__ == "__main__":
    bench_script.run("soft_verbs_bench", main)
