#!/usr/bin/env python3
"""rpc_bench measures calls with metrics and without, at points that are small and short, and has a row for each."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [os.path.abspath("tests/repository")]
import case_report

PROGRAM = os.path.abspath("benchmarks/rpc/rpc_bench")


def run(*words):
    """(rows, what the program has said) of a short run."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "rows.json")
        done = subprocess.run([PROGRAM, "--seconds", "0.01", "--size", "32", "--mode", "busy", "--points-only", *words,
                               "--json", path],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            raise AssertionError(done.stdout)
        with open(path, encoding="utf-8") as lines:
            return [json.loads(line) for line in lines], done.stdout


@unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "two cores are needed")
class MetricsTest(unittest.TestCase):
    def test_both_has_rows_of_calls_of_what_counting_them_costs_and_of_scrapes(self):
        rows, said = run("--outstanding", "1,64", "--metrics", "both")
        self.assertEqual([("rpc", 1), ("rpc", 64), ("metrics", 1), ("metrics", 64), ("scrape", 0), ("scrape", 0)],
                         [(row["bench"], row["outstanding"]) for row in rows])
        for row in rows[2:4]:
            for figure in ("p50_us", "calls_per_s", "off_p50_us", "off_calls_per_s", "on_to_off", "ns_per_reading"):
                self.assertGreater(row[figure], 0, figure)
            self.assertAlmostEqual(3 * row["ns_per_reading"] + 10, row["ns_allowed"], places=3)
        self.assertIn("busy, 32 bytes, 1 in flight: p50 is", said)
        self.assertIn("busy, 32 bytes, 64 in flight: ", said)

    def test_a_scrape_has_each_method_and_each_code_in_both_formats(self):
        rows, _ = run("--outstanding", "1", "--metrics", "both")
        scrapes = {row["op"]: row for row in rows if row["bench"] == "scrape"}
        self.assertEqual({"prometheus", "openmetrics"}, set(scrapes))
        for row in scrapes.values():
            self.assertGreater(row["p50_us"], 0)
            # 100 methods, 4 codes, 2 sides, 30 lines for each histogram, each of which names its method.
            self.assertGreater(row["bytes"], 100 * 4 * 2 * 30 * len("verbena.bench.Scraped/Method"))

    def test_off_has_the_rows_of_calls_alone(self):
        rows, said = run("--outstanding", "1", "--metrics", "off")
        self.assertEqual(["rpc"], [row["bench"] for row in rows])
        self.assertNotIn("metrics", said)


class ArgumentsTest(unittest.TestCase):
    def test_a_value_that_metrics_do_not_have_is_named(self):
        done = subprocess.run([PROGRAM, "--metrics", "some"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              text=True, check=False)
        self.assertEqual(2, done.returncode)
        self.assertIn("--metrics is 'some', but must be on, off or both", done.stderr)


if __name__ == "__main__":
    case_report.main()
