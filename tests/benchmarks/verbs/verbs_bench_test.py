#!/usr/bin/env python3
"""verbs_bench reads perftest's figures, and compares each call with two SENDs of its size."""

import argparse
import os
import sys
import unittest

sys.path[:0] = [os.path.abspath("tests/repository"), os.path.abspath("benchmarks/verbs"),
                os.path.abspath("benchmarks/peers")]
import case_report
import verbs_bench

LATENCY = """
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]
 32      1000          10.50          8805.23      11.40    	       474.40      	1310.04
---------------------------------------------------------------------------------------
"""


class FiguresTest(unittest.TestCase):
    def test_the_line_of_figures_is_found_below_its_heading(self):
        figures = verbs_bench.perftest_figures(LATENCY)
        self.assertEqual([32, 1000, 10.5, 8805.23, 11.4], figures[:5])

    def test_output_without_figures_is_an_error_that_shows_it(self):
        with self.assertRaisesRegex(RuntimeError, "Couldn't listen"):
            verbs_bench.perftest_figures("Couldn't listen to port 18515\n")


class RowsTest(unittest.TestCase):
    options = argparse.Namespace(device="rxe0")

    def test_a_calls_floor_is_two_sends_of_its_size_and_medians_are_compared(self):
        rows = [{"p50_us": p50, "p99_us": 90, "calls_per_s": 1000} for p50 in (30, 36, 500)]
        floor = {("ib_send_lat", 32): [9, 12, 80], ("ib_send_lat", 64): [1]}
        row, = verbs_bench.call_rows(self.options, {("busy", 32, 1): rows}, floor)
        self.assertEqual((36, 24, 1.5), (row["p50_us"], row["floor_p50_us"], row["ratio_to_floor"]))

    def test_bandwidths_and_latencies_have_their_own_columns(self):
        floor = {("ib_write_bw", 65536): [80, 90, 100], ("ib_write_lat", 32): [11]}
        bandwidth, latency = verbs_bench.floor_rows(self.options, floor)
        self.assertEqual(90, bandwidth["mb_per_s"])
        self.assertNotIn("p50_us", bandwidth)
        self.assertEqual(11, latency["p50_us"])


if __name__ == "__main__":
    case_report.main()
