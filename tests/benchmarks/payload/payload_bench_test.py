#!/usr/bin/env python3
"""payload_bench runs, at points that are small and short, and reports each in its terms."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [os.path.abspath("tests/repository")]
import case_report

PROGRAM = os.path.abspath("benchmarks/payload/payload_bench")


def run(*words):
    """The rows of a run, and what it printed."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "rows.json")
        result = subprocess.run([PROGRAM, "--seconds", "0.01", "--json", path, *words],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                check=False)
        if result.returncode != 0:
            raise AssertionError(f"exit status {result.returncode}:\n{result.stdout}")
        with open(path, encoding="utf-8") as rows:
            return [json.loads(line) for line in rows], result.stdout


def refusal(*words):
    result = subprocess.run([PROGRAM, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                            text=True, check=False)
    return result.returncode, result.stderr


@unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "two cores are needed")
class FloorTest(unittest.TestCase):
    def test_each_point_has_a_row_with_its_bandwidth(self):
        rows, said = run("--floor-only", "--size", "8,4096", "--outstanding", "1,3")
        points = [(row["bench"], row["size"], row["outstanding"]) for row in rows]
        self.assertEqual([(f"memcpy_{direction}", size, outstanding)
                          for direction in ("read", "write")
                          for size in (8, 4096) for outstanding in (1, 3)], points)
        for row in rows:
            self.assertGreater(row["p50_us"], 0)
            self.assertAlmostEqual(row["calls_per_s"] * row["size"] / 1e9, row["gb_per_s"],
                                   delta=1e-4 * row["gb_per_s"])
        self.assertEqual(1 + len(rows), len(said.splitlines()))


@unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "two cores are needed")
class CallsTest(unittest.TestCase):
    def test_every_variant_moves_payloads_both_ways_beside_the_floor(self):
        rows, _ = run("--size", "8,12296", "--outstanding", "1,3")
        variants = {(row["bench"], row["mode"]) for row in rows}
        expected = {(f"payload_{direction}_{variant}", mode)
                    for direction in ("read", "write")
                    for variant, mode in (("strict", "busy"), ("strict", "adaptive"),
                                          ("region", "busy"), ("crc", "busy"),
                                          ("one_sided", "busy"))}
        # By landings granted ahead only writes differ.
        expected |= {("payload_write_granted", "busy"), ("payload_write_ungranted", "busy")}
        self.assertEqual(expected, variants)
        self.assertEqual(4 * len(variants), len(rows))
        for row in rows:
            self.assertEqual("shm", row["device"])
            for figure in ("p50_us", "gb_per_s", "floor_p50_us", "floor_gb_per_s",
                           "client_cpu_s_per_gib", "server_cpu_s_per_gib"):
                self.assertGreater(row[figure], 0, figure)

    def test_the_floor_can_be_left_out(self):
        row, = run("--size", "4096", "--outstanding", "2", "--direction", "read",
                   "--variant", "auto:event", "--no-floor")[0]
        self.assertEqual(("payload_read_auto", "event"), (row["bench"], row["mode"]))
        self.assertIsNone(row["floor_p50_us"])


class ArgumentsTest(unittest.TestCase):
    def test_an_argument_that_is_not_understood_is_named(self):
        for words, named in ((("--size", "12"), "12"), (("--direction", "up"), "up"),
                             (("--speed", "9"), "--speed"), (("--variant", "safe"), "safe"),
                             (("--variant", "auto:often"), "auto:often")):
            status, said = refusal(*words)
            self.assertEqual(2, status)
            self.assertIn(named, said)


if __name__ == "__main__":
    case_report.main()
