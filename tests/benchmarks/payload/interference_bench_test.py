#!/usr/bin/env python3
"""interference_bench runs, at points that are small and short, and has a row for each."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [os.path.abspath("tests/repository")]
import case_report

PROGRAM = os.path.abspath("benchmarks/payload/interference_bench")


@unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "two cores are needed")
class PointsTest(unittest.TestCase):
    def test_each_point_has_a_row_of_both_beside_each_other(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "rows.json")
            result = subprocess.run(
                [PROGRAM, "--seconds", "0.01", "--size", "8,131080", "--outstanding", "1,3",
                 "--echoes", "1000", "--json", path],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            self.assertEqual(0, result.returncode, result.stdout)
            with open(path, encoding="utf-8") as lines:
                rows = [json.loads(line) for line in lines]
        self.assertEqual([(op, size, outstanding) for op in ("read", "write")
                          for size in (8, 131080) for outstanding in (1, 3)],
                         [(row["op"], row["size"], row["outstanding"]) for row in rows])
        for row in rows:
            self.assertEqual(("interference", "shm"), (row["bench"], row["device"]))
            for figure in ("echo_alone_p50_us", "echo_alone_p99_us", "echo_p50_us", "echo_p99_us",
                           "bandwidth_to_alone"):
                self.assertGreater(row[figure], 0, figure)


class ArgumentsTest(unittest.TestCase):
    def test_an_argument_that_is_not_understood_is_named(self):
        for words, named in ((("--size", "12"), "12"), (("--echoes", "0"), "--echoes"),
                             (("--speed", "9"), "--speed"), (("--variant", "safe"), "safe")):
            result = subprocess.run([PROGRAM, *words], stdout=subprocess.DEVNULL,
                                    stderr=subprocess.PIPE, text=True, check=False)
            self.assertEqual(2, result.returncode)
            self.assertIn(named, result.stderr)


if __name__ == "__main__":
    case_report.main()
