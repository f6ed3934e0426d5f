#!/usr/bin/env python3
"""payload_verbs_bench measures ib_write_bw with as much in flight, and compares equal points."""

import argparse
import os
import sys
import unittest
from unittest import mock

sys.path[:0] = [os.path.abspath("tests/repository"), os.path.abspath("benchmarks/verbs"),
                os.path.abspath("benchmarks/peers")]
import case_report
import payload_verbs_bench
import verbs_bench


def row(gb_per_s):
    return {"p50_us": 100, "p99_us": 200, "calls_per_s": 10, "gb_per_s": gb_per_s,
            "client_cpu_s_per_gib": 1, "server_cpu_s_per_gib": 2}


class RowsTest(unittest.TestCase):
    options = argparse.Namespace(device="rxe0", gid_index=1, rdma_cm=False)

    def test_medians_of_bandwidth_are_compared_at_the_same_point(self):
        payloads = {("payload_read", "busy", 1 << 20, 4): [row(0.05), row(0.09), row(9)]}
        floor = {(1 << 20, 4): [0.01, 0.1, 0.7], (1 << 20, 1): [5]}
        compared, = payload_verbs_bench.payload_rows(self.options, payloads, floor)
        self.assertEqual((0.09, 0.1), (compared["gb_per_s"], compared["floor_gb_per_s"]))
        self.assertAlmostEqual(0.9, compared["bandwidth_to_floor"])

    def test_the_floor_has_a_row_of_its_own(self):
        floor, = payload_verbs_bench.floor_rows(self.options, {(4096, 1): [3, 1, 2]})
        self.assertEqual(("ib_write_bw", 2), (floor["bench"], floor["gb_per_s"]))

    def test_large_messages_are_few_and_as_many_are_in_flight_as_calls(self):
        command = payload_verbs_bench.floor_command(self.options, 16 << 20, 4)
        self.assertEqual(["-s", str(16 << 20), "-t", "4", "-n", "20", "-x", "1"], command[4:])

    def test_iwarp_is_connected_through_rdma_cm(self):
        options = argparse.Namespace(device="siw0", gid_index=1, rdma_cm=True)
        command = payload_verbs_bench.floor_command(options, 4096, 1)
        self.assertIn("-R", command)
        self.assertNotIn("-x", command)

    def test_a_floor_of_nothing_is_measured_again_and_refused_in_the_end(self):
        said = " #bytes\n 4096       1000           {0}              {0}\t\t     0.1\n"
        def bandwidth(*figures):
            answers = [said.format(figure) for figure in figures]
            with mock.patch.object(verbs_bench, "between_two_processes", side_effect=answers):
                return payload_verbs_bench.write_bandwidth(
                    argparse.Namespace(**vars(self.options), address="127.0.0.1"), (0, 1), 4096, 1)
        self.assertAlmostEqual(0.065536, bandwidth("0.00", "62.50"))
        with self.assertRaisesRegex(RuntimeError, "measures nothing"):
            bandwidth("0.00", "0.00", "0.00")


if __name__ == "__main__":
    case_report.main()
