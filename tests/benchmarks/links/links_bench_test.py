#!/usr/bin/env python3
"""links_bench runs, at points that are small and short, and has a row for each."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [os.path.abspath("tests/repository")]
import case_report

PROGRAM = os.path.abspath("benchmarks/links/links_bench")


def run(*words):
    """The rows of a run."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "rows.json")
        result = subprocess.run([PROGRAM, "--seconds", "0.01", "--json", path, *words],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if result.returncode != 0:
            raise AssertionError(f"exit status {result.returncode}:\n{result.stdout}")
        with open(path, encoding="utf-8") as rows:
            return [json.loads(line) for line in rows]


class ComingAndGoingTest(unittest.TestCase):
    def test_a_storm_and_the_one_after_a_kill_count_what_their_links_cost(self):
        rows = run("--part", "storm", "--clients", "1,3")
        self.assertEqual([(bench, device, links) for device in ("shm", "tcp") for links in (4, 12)
                          for bench in ("storm", "comeback")],
                         [(row["bench"], row["device"], row["links"]) for row in rows])
        for row in rows:
            for figure in ("p50_us", "last_call_ms", "floor_p50_us", "ratio_to_floor", "last_to_floor"):
                self.assertGreater(row[figure], 0, figure)
            # So few clients are within all bounds.
            for figure in ("failed_calls", "failed_handshakes", "evicted_handshakes", "links_refused", "failed_handshakes_per_link"):
                self.assertEqual(0, row[figure], figure)

    def test_a_shutdown_has_its_floor_with_one_client(self):
        rows = run("--part", "shutdown", "--frozen", "2")
        self.assertEqual([("shutdown", "shm", 2), ("shutdown", "tcp", 2)],
                         [(row["bench"], row["device"], row["clients"]) for row in rows])
        for row in rows:
            self.assertEqual(0.01, row["grace_s"])
            self.assertGreater(row["floor_p50_us"], 0)

    def test_a_restart_has_its_floor_when_the_new_process_listens(self):
        rows = run("--part", "restart", "--restarts", "2")
        self.assertEqual([("restart", "shm", 2), ("restart", "tcp", 2)],
                         [(row["bench"], row["device"], row["restarts"]) for row in rows])
        for row in rows:
            self.assertGreater(row["ratio_to_floor"], 0)


@unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "two cores are needed")
class CallsTest(unittest.TestCase):
    def test_each_number_of_links_has_a_row(self):
        rows = run("--part", "calls", "--links", "1,2", "--per-link", "1,3")
        self.assertEqual([(1, 1), (1, 3), (2, 1), (2, 3)],
                         [(row["links"], row["outstanding_per_link"]) for row in rows])
        for row in rows:
            self.assertEqual(("links", "shm"), (row["bench"], row["device"]))
            self.assertGreater(row["calls_per_s"], 0)


class ArgumentsTest(unittest.TestCase):
    def test_an_argument_that_is_not_understood_is_named(self):
        for words, named in ((("--part", "calls,flood"), "'flood'"), (("--links", "0"), "'0'"),
                             (("--clients", "101"), "1 to 100"), (("--restarts", "x"), "--restarts"),
                             (("--frozen",), "--frozen"), (("--speed", "9"), "--speed")):
            result = subprocess.run([PROGRAM, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                    text=True, check=False)
            self.assertEqual(2, result.returncode)
            self.assertIn(named, result.stderr)


if __name__ == "__main__":
    case_report.main()
