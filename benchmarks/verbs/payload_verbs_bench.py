#!/usr/bin/env python3
"""Payloads over an RDMA device, beside what ib_write_bw measures on it.

Runs on a machine that has the device, or in a guest (./dev bench --vm --only payload). Floor and
payloads alternate, size by size and round by round, and the medians of their bandwidths are
compared, with as many WRITEs in flight as there are calls.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

import verbs_bench
import bench_script  # verbs_bench knows where these lie
import ucx_bench

MIB = 1 << 20
FLOOR_BYTES = 32 * MIB  # that one run of ib_write_bw moves, if these are enough messages
LEAST_MESSAGES = 20


def arguments():
    numbers = lambda text: [int(word) for word in text.split(",")]
    parser = argparse.ArgumentParser(prog="payload_verbs_bench", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="rxe0", help="of this machine (default rxe0)")
    parser.add_argument("--gid-index", type=int, default=1, help="of the device (default 1)")
    parser.add_argument("--address", default="127.0.0.1",
                        help="of this machine, for ib_write_bw (default 127.0.0.1)")
    parser.add_argument("--rdma-cm", action="store_true",
                        help="connect ib_write_bw through rdma_cm, which iWARP needs")
    parser.add_argument("--json", metavar="FILE", help="append one JSON object a line to FILE")
    parser.add_argument("--rounds", type=int, default=3, help="of floor and payloads (default 3)")
    parser.add_argument("--seconds", type=float, default=2, help="of payloads, per point (default 2)")
    parser.add_argument("--size", type=numbers, default=[4096, 65536, MIB, 16 * MIB])
    parser.add_argument("--outstanding", type=numbers, default=[1, 4, 16])
    parser.add_argument("--variant", default="plain,auto",
                        help="of payload_bench (default plain,auto: without checksums, which "
                        "ib_write_bw has not either, and with what the device gets by default)")
    parser.add_argument("--payload-bench", metavar="PROGRAM", required=True)
    options, rest = parser.parse_known_args()
    options.rest = rest
    return options


def floor_command(options, size, outstanding):
    command = ["ib_write_bw", "-d", options.device, "-F", "-s", str(size), "-t", str(outstanding),
               "-n", str(max(LEAST_MESSAGES, min(1000, FLOOR_BYTES // size)))]
    return command + (["-R"] if options.rdma_cm else ["-x", str(options.gid_index)])


def write_bandwidth(options, cores, size, outstanding):
    """GB/s by ib_write_bw."""
    for _ in range(3):
        said = verbs_bench.between_two_processes(floor_command(options, size, outstanding), cores,
                                                 options.address)
        average = verbs_bench.perftest_figures(said)[3]  # MiB/s
        if average > 0:  # in a guest it was once said to be 0
            return average * MIB / 1e9
    raise RuntimeError(f"ib_write_bw measures nothing:\n{said}")


def floor_round(options, cores, size, floor):
    """Runs ib_write_bw at every point of one size, and adds its GB/s to `floor`."""
    for outstanding in options.outstanding:
        floor.setdefault((size, outstanding), []).append(
            write_bandwidth(options, cores, size, outstanding))


def payload_round(options, size, payloads):
    """Runs payload_bench with one size, and adds each of its rows to `payloads`."""
    words = ["--variant", options.variant, "--seconds", str(options.seconds / options.rounds),
             "--size", str(size), "--outstanding", ",".join(map(str, options.outstanding))]
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "rows.json")
        subprocess.run([options.payload_bench, "--no-floor", *words, *options.rest, "--json", path],
                       check=True, stdout=subprocess.DEVNULL,
                       env=dict(os.environ, VERBENA_DEVICE=f"rdma:{options.device}"))
        with open(path, encoding="utf-8") as rows:
            for row in map(json.loads, rows):
                key = (row["bench"], row["mode"], row["size"], row["outstanding"])
                payloads.setdefault(key, []).append(row)


def floor_rows(options, floor):
    for (size, outstanding), figures in floor.items():
        yield {"bench": "ib_write_bw", "device": options.device, "mode": "busy", "size": size,
               "outstanding": outstanding, "gb_per_s": statistics.median(figures)}


def payload_rows(options, payloads, floor):
    for (bench, mode, size, outstanding), rows in sorted(payloads.items()):
        row = {"bench": bench, "device": options.device, "mode": mode, "size": size,
               "outstanding": outstanding}
        for name in ("p50_us", "p99_us", "calls_per_s", "gb_per_s", "client_cpu_s_per_gib",
                     "server_cpu_s_per_gib"):
            row[name] = statistics.median(each[name] for each in rows)
        row["floor_gb_per_s"] = statistics.median(floor[size, outstanding])
        row["bandwidth_to_floor"] = row["gb_per_s"] / row["floor_gb_per_s"]
        yield row


def print_rows(rows):
    columns = ("p50_us", "p99_us", "gb_per_s", "floor_gb_per_s", "bandwidth_to_floor")
    print(f"{'bench':<26} {'mode':<9} {'bytes':>9} {'flying':>6}" +
          "".join(f" {name:>18}" for name in columns))
    for row in rows:
        cells = "".join(f" {row[name]:>18.3f}" if row.get(name) is not None else f" {'-':>18}"
                        for name in columns)
        print(f"{row['bench']:<26} {row['mode']:<9} {row['size']:>9} {row['outstanding']:>6}{cells}")


def main():
    options = arguments()
    cores = ucx_bench.two_cores()
    floor, payloads = {}, {}
    for number in range(options.rounds):
        for size in options.size:
            print(f"round {number + 1} of {options.rounds}, {size} bytes", file=sys.stderr,
                  flush=True)
            floor_round(options, cores, size, floor)
            payload_round(options, size, payloads)
    rows = [*floor_rows(options, floor), *payload_rows(options, payloads, floor)]
    print_rows(rows)
    bench_script.append_json(options.json, rows)
    return 0


if __name__ == "__main__":
    bench_script.run("payload_verbs_bench", main)
