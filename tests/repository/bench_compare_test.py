#!/usr/bin/env python3
"""./dev bench --compare tells a change from noise, and compares only rows that belong together."""

import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
import unittest

sys.path[:0] = [os.path.abspath("tests/repository"), os.path.abspath("tools/dev")]
import bench_compare
import bench_runs
import case_report


def row(calls_per_s, p99_us=10.0, outstanding=64):
    return json.dumps({"bench": "rpc", "device": "shm", "mode": "busy", "size": 32, "outstanding": outstanding,
                       "p99_us": p99_us, "calls_per_s": calls_per_s, "floor_p50_us": 0.2, "calls": 12345})


def compared(old, new):
    return bench_compare.compare(bench_compare.read_rows(old, "old"), bench_compare.read_rows(new, "new"))


class CompareTest(unittest.TestCase):
    def test_a_rate_that_fell_in_every_pair_is_worse(self):
        changes = compared([row(rate) for rate in (100, 110, 90, 105, 95)], [row(rate) for rate in (80, 88, 72, 84, 76)])
        rate = next(change for change in changes if change.figure == "calls_per_s")
        self.assertEqual(("worse", 5), (rate.verdict, rate.pairs))
        self.assertAlmostEqual(0.8, rate.ratio)
        self.assertEqual((100, 80), (rate.old, rate.new))
        self.assertEqual(1, bench_compare.exit_status(changes))

    def test_a_rate_that_rose_is_better_and_a_latency_that_rose_is_worse(self):
        changes = compared([row(100, 10)] * 5, [row(150, 11)] * 5)
        self.assertEqual({"calls_per_s": "better", "p99_us": "worse"},
                         {change.figure: change.verdict for change in changes})

    def test_one_pair_of_five_that_disagrees_is_noise(self):
        changes = compared([row(100)] * 5, [row(rate) for rate in (150, 150, 150, 150, 99)])
        self.assertEqual(["same", "same"], [change.verdict for change in changes])
        self.assertEqual(0, bench_compare.exit_status(changes))

    def test_drift_of_the_machine_that_both_sides_share_is_no_change_of_the_code(self):
        # Twice as fast by the end; NEW is 5% better in each pair.
        drift = (100, 120, 140, 170, 200)
        changes = compared([row(rate) for rate in drift], [row(rate * 1.05) for rate in drift])
        rate = next(change for change in changes if change.figure == "calls_per_s")
        self.assertEqual("better", rate.verdict)
        self.assertAlmostEqual(1.05, rate.low)
        self.assertAlmostEqual(1.05, rate.high)

    def test_fewer_than_five_runs_tell_nothing(self):
        changes = compared([row(100)] * 4, [row(50)] * 4)
        self.assertEqual({"too few runs"}, {change.verdict for change in changes})
        self.assertEqual(0, bench_compare.exit_status(changes))
        self.assertIn("too few", next(bench_compare.report(changes)))

    def test_rows_are_told_apart_by_what_was_asked_for(self):
        old = [row(100, outstanding=1), row(200, outstanding=64)] * 5
        new = [row(100, outstanding=1), row(100, outstanding=64)] * 5
        verdicts = {(change.row, change.figure): change.verdict for change in compared(old, new)}
        by_outstanding = {key[0].split("outstanding=")[1]: verdict for key, verdict in verdicts.items()
                          if key[1] == "calls_per_s"}
        self.assertEqual({"1": "same", "64": "worse"}, by_outstanding)

    def test_the_floor_and_what_was_counted_are_no_figures(self):
        figures = {change.figure for change in compared([row(1)] * 5, [row(1)] * 5)}
        self.assertEqual({"calls_per_s", "p99_us"}, figures)

    def test_processor_time_and_a_latency_to_itself_alone_are_worse_if_higher(self):
        for figure in ("client_cpu_s_per_gib", "echo_p99_to_alone", "failed_handshakes_per_link", "p99_us"):
            self.assertIs(True, bench_compare.higher_is_worse(figure), figure)
        for figure in ("bandwidth_to_alone", "calls_per_s"):
            self.assertIs(False, bench_compare.higher_is_worse(figure), figure)

    def test_rows_of_two_different_benchmarks_cannot_be_compared(self):
        with self.assertRaisesRegex(bench_compare.CompareError, "no row in common"):
            compared([row(1, outstanding=1)], [row(1, outstanding=2)])

    def test_a_line_that_is_no_json_is_named(self):
        with self.assertRaisesRegex(bench_compare.CompareError, "old, line 2: not JSON"):
            compared([row(1), "calls"], [row(1)])


class IntervalTest(unittest.TestCase):
    def test_the_interval_of_five_is_the_smallest_to_the_largest(self):
        low, high, confidence = bench_compare.interval([3, 1, 2, 5, 4])
        self.assertEqual((1, 5, 0.9375), (low, high, confidence))

    def test_the_interval_of_more_narrows_while_the_confidence_lasts(self):
        low, high, confidence = bench_compare.interval(range(1, 12))
        self.assertEqual((3, 9), (low, high))
        self.assertGreaterEqual(confidence, bench_compare.CONFIDENCE)


class RunsTest(unittest.TestCase):
    def test_runs_alternate_and_so_does_who_begins(self):
        order = []

        def run(program, words):
            order.append(program)
            return [f"{program} {words[0]}"]

        with contextlib.redirect_stdout(io.StringIO()):
            lines = bench_runs.alternate((["old"], ["new"]), ["--size"], 3, run)
        self.assertEqual(["old", "new", "new", "old", "old", "new"], order)
        self.assertEqual((["old --size"] * 3, ["new --size"] * 3), lines)

    def compare_files(self, old, new):
        with tempfile.TemporaryDirectory() as directory:
            names = []
            for name, lines in (("old", old), ("new", new)):
                path = pathlib.Path(directory) / f"{name}.json"
                path.write_text("\n".join(lines))
                names.append(str(path))
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                status = bench_runs.compare(names[0], names[1], [], [], 5)
            return status, out.getvalue()

    def test_two_files_are_compared_as_they_are(self):
        status, text = self.compare_files([row(100)] * 5, [row(90)] * 5)
        self.assertEqual(1, status)
        self.assertIn("worse", text)
        self.assertIn("93.8% by order statistics", text)
        self.assertIn("calls_per_s: 100 -> 90, x 0.900 [0.900, 0.900]", text)

    def test_nothing_to_compare_has_a_status_of_its_own(self):
        self.assertEqual(2, self.compare_files([row(1, outstanding=1)], [row(1, outstanding=2)])[0])

    def test_a_name_that_is_neither_a_file_nor_a_commit_is_refused(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status = bench_runs.compare("no-such-commit", "no-such-file.json", [], [], 5)
        self.assertEqual(2, status)
        self.assertIn("'no-such-commit' is no commit; --compare takes two files of JSON lines", out.getvalue())


if __name__ == "__main__":
    case_report.main()
