#!/usr/bin/env python3
"""UCX active messages over shared memory, by ucx_perftest between two processes on two cores.

One message in flight is a ping-pong (ucp_am_lat), and its row a round trip: twice what ucx_perftest
prints. More in flight is a stream one way (ucp_am_bw), which nothing answers: such a row has a rate
alone. The floor is measured before and after each ping-pong.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import bench_script

PATIENCE_S = 20


def arguments():
    numbers = lambda text: [int(word) for word in text.split(",")]
    parser = argparse.ArgumentParser(prog="ucx_bench", description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="append one JSON object a line to FILE")
    parser.add_argument("--seconds", type=float, default=2, help="per point (default 2)")
    parser.add_argument("--size", type=numbers, default=[32, 1024])
    parser.add_argument("--outstanding", type=numbers, default=[1, 8, 64, 512])
    parser.add_argument("--floor-bench", metavar="PROGRAM", required=True)
    return parser.parse_args()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_listening(port, server):
    """Connecting would use up the server's one client, so the kernel's table is read instead."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and server.poll() is None:
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            if not os.path.exists(table):
                continue
            with open(table, encoding="utf-8") as lines:
                for line in list(lines)[1:]:
                    words = line.split()
                    if words[3] == "0A" and int(words[1].rsplit(":", 1)[1], 16) == port:
                        return
        time.sleep(0.01)
    raise RuntimeError("ucx_perftest does not listen")


def perftest(test, size, iterations, cores, extra):
    """The figures of one run: the last line of ucx_perftest's CSV, as numbers."""
    environment = dict(os.environ, UCX_TLS="sm,self", UCX_WARN_UNUSED_ENV_VARS="n")
    port = free_port()
    server = subprocess.Popen(["ucx_perftest", "-c", str(cores[1]), "-p", str(port)],
                              env=environment, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    try:
        wait_until_listening(port, server)
        client = subprocess.run(
            ["ucx_perftest", "-c", str(cores[0]), "-p", str(port), "127.0.0.1", "-t", test,
             "-s", str(size), "-n", str(iterations), "-f", "-v", *extra],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=60 + PATIENCE_S, check=False)
    finally:
        server.terminate()
        server.wait()
    lines = client.stdout.strip().splitlines()
    if client.returncode != 0 or len(lines) < 2:
        raise RuntimeError("ucx_perftest: " + (lines[-1] if lines else "no output"))
    return [float(word) for word in lines[-1].split(",")]


def calibrated(test, size, seconds, cores, extra):
    """How many messages one way take about `seconds`. The first run is short."""
    rate = perftest(test, size, 20_000, cores, extra)[-1]
    return max(20_000, int(rate * seconds))


def floor_p50_us(program, size, seconds):
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "floor.json")
        subprocess.run([program, "--json", path, "--size", str(size), "--outstanding", "1",
                        "--seconds", str(seconds)], stdout=subprocess.DEVNULL, check=True)
        with open(path, encoding="utf-8") as file:
            return json.loads(file.readline())["p50_us"]


def ping_pong(options, size, cores):
    iterations = calibrated("ucp_am_lat", size, options.seconds / 2, cores, []) // 2  # there and back
    floors = [floor_p50_us(options.floor_bench, size, options.seconds / 4)]
    p50 = perftest("ucp_am_lat", size, iterations, cores, ["-R", "50"])
    p99 = perftest("ucp_am_lat", size, iterations, cores, ["-R", "99"])
    floors.append(floor_p50_us(options.floor_bench, size, options.seconds / 4))
    floor = statistics.median(floors)
    return {"p50_us": 2 * p50[1], "p99_us": 2 * p99[1], "calls_per_s": p50[-1] / 2,
            "floor_p50_us": floor, "ratio_to_floor": 2 * p50[1] / floor}


def stream(options, size, outstanding, cores):
    extra = ["-O", str(outstanding)]
    iterations = calibrated("ucp_am_bw", size, options.seconds, cores, extra)
    rate = perftest("ucp_am_bw", size, iterations, cores, extra)[-1]
    return {"p50_us": None, "p99_us": None, "calls_per_s": rate, "floor_p50_us": None,
            "ratio_to_floor": None}


def two_cores():
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise RuntimeError("two cores are needed")
    return cores[:2]


def print_row(row):
    def cell(value, precision):
        return "-" if value is None else f"{value:.{precision}f}"
    print(f"{row['bench']:<10} {row['device']:<6} {row['mode']:<9} {row['size']:>6} "
          f"{row['outstanding']:>7} {cell(row['p50_us'], 3):>9} {cell(row['p99_us'], 3):>9} "
          f"{cell(row['calls_per_s'], 0):>12} {cell(row['floor_p50_us'], 3):>9} "
          f"{cell(row['ratio_to_floor'], 2):>7}", flush=True)


def main():
    options = arguments()
    if not shutil.which("ucx_perftest"):
        print("ucx_bench: ucx_perftest is not installed", file=sys.stderr)
        return 3
    cores = two_cores()
    for size in options.size:
        for outstanding in options.outstanding:
            row = {"bench": "ucx" if outstanding == 1 else "ucx_oneway", "device": "shm",
                   "mode": "busy", "size": size, "outstanding": outstanding}
            row.update(ping_pong(options, size, cores) if outstanding == 1 else
                       stream(options, size, outstanding, cores))
            print_row(row)
            bench_script.append_json(options.json, [row])
    return 0


if __name__ == "__main__":
    bench_script.run("ucx_bench", main)
