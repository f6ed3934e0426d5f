#!/usr/bin/env python3
"""./dev demo observed says in words what is missing or has ended, and leaves no program behind.

Small programs stand in for the servers and the client. tests/examples/observed runs the real ones.
"""

import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import types
import unittest
from unittest import mock

sys.path[:0] = [os.path.abspath("tests/repository"), os.path.abspath("tools/dev")]
import case_report
import observed
import tree

HAS_PROMTOOL = shutil.which("promtool")


class ObservedTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def script(self, body):
        path = self.directory / "program"
        path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def start(self, body):
        program = observed.Program(self.directory, "server-1", self.script(body))
        self.addCleanup(program.end)
        return program


class ProgramTest(ObservedTest):
    def address(self, program, prefix="listening on "):
        return program.address_after(prefix, time.monotonic() + 60)

    def test_addresses_are_those_behind_the_words_of_its_lines(self):
        program = self.start("echo starting; echo listening on 127.0.0.1:4000; echo status at http://127.0.0.1:80/status\n"
                             "exec sleep 600")
        self.assertEqual("127.0.0.1:4000", self.address(program))
        self.assertEqual("127.0.0.1:80", self.address(program, "status at http://"))

    def test_one_that_ends_instead_is_told_with_its_last_words(self):
        program = self.start("echo no device >&2; exit 4")
        with self.assertRaisesRegex(observed.Failure, "server-1 has ended with exit status 4\n  no device"):
            self.address(program)
        with self.assertRaisesRegex(observed.Failure, "has ended"):
            program.check()

    def test_one_that_says_nothing_is_not_waited_for_without_end(self):
        program = self.start("exec sleep 600")
        with self.assertRaisesRegex(observed.Failure, "has not said 'listening on …'"):
            program.address_after("listening on ", time.monotonic())

    def test_one_that_is_stopped_ends_and_so_does_one_that_ignores_it(self):
        for body in ("exec sleep 600", "trap '' TERM; echo listening on x; while :; do sleep 1; done"):
            program = self.start(body)
            if "echo" in body:
                self.address(program)
            program.process.send_signal(signal.SIGSTOP)
            with mock.patch.object(observed, "END_S", 0.1):
                program.end()
            self.assertIsNotNone(program.process.returncode)


class StopsTest(unittest.TestCase):
    def test_each_stop_is_followed_by_a_continuation(self):
        told = []
        process = types.SimpleNamespace(send_signal=told.append)
        stops = observed.Stops(types.SimpleNamespace(process=process), random.Random(1))
        waits = iter([False, False, False, False, True])
        stops._ends = types.SimpleNamespace(wait=lambda seconds: next(waits))  # pylint: disable=protected-access
        stops.run()
        self.assertEqual([signal.SIGSTOP, signal.SIGCONT] * 2, told)
        self.assertEqual(2, stops.count)


class ServerTest(ObservedTest):
    def test_a_server_without_metrics_is_named(self):
        with mock.patch.object(observed, "get", lambda url: "<html>"), \
                self.assertRaisesRegex(observed.Failure, "server-1 gives no metrics of Verbena at http://a:1/metrics"):
            observed.check_metrics("server-1", "a:1")

        def refuse(url):
            raise OSError("404")
        with mock.patch.object(observed, "get", refuse), \
                self.assertRaisesRegex(observed.Failure, "server-1 does not give its metrics at http://a:1/metrics: 404"):
            observed.check_metrics("server-1", "a:1")


class TableTest(unittest.TestCase):
    SERVERS = [observed.Server(types.SimpleNamespace(name=f"server-{i}"), f"a:{i}", f"b:{i}") for i in (1, 2, 3)]

    def named(self, waits):
        prometheus = types.SimpleNamespace(query=lambda words: waits if words == observed.WAITS else {"a:1": 5})
        with contextlib.redirect_stdout(None):
            found = observed.print_table(prometheus, self.SERVERS)
        return found and found.program.name

    def test_the_server_with_the_longest_waits_is_named(self):
        self.assertEqual("server-2", self.named({"a:1": 0.001, "a:2": 0.2, "a:3": 0.1}))
        self.assertEqual("server-3", self.named({"a:3": 0.1}))

    def test_without_reads_none_is(self):
        self.assertIsNone(self.named({}))

    def lack(self, down=(), missing=()):
        values = {server.address: 1 for server in self.SERVERS if server.program.name not in missing}
        prometheus = types.SimpleNamespace(targets_down=lambda: list(down), query=lambda words: values)
        return observed.lack(prometheus, self.SERVERS)

    def test_figures_are_awaited_until_each_server_has_all(self):
        self.assertEqual("", self.lack())
        self.assertIn("cannot scrape b:2: unknown", self.lack(down=["b:2: unknown"]))
        self.assertIn("PromQL has no 'served calls/s' of server-2, server-3",
                      self.lack(missing=("server-2", "server-3")))


class WordsTest(unittest.TestCase):
    CONFIG = observed.config([("a:1", "b:1"), ("a:2", "b:2")], "c:1")

    def test_all_programs_are_scraped_and_servers_have_the_addresses_that_clients_call(self):
        jobs = json.loads(self.CONFIG)["scrape_configs"]
        self.assertEqual([[({"server": "a:1"}, ["b:1"]), ({"server": "a:2"}, ["b:2"])], [(None, ["c:1"])]],
                         [[(each.get("labels"), each["targets"]) for each in job["static_configs"]] for job in jobs])

    def test_metrics_that_it_asks_for_are_those_of_the_client(self):
        source = tree.text("examples/observed/kv_load.cc")
        for name in ("kv_load_read_seconds", "kv_load_failed_reads_total"):
            self.assertIn(f'"{name}"', source)
            self.assertIn(name, tree.text("tools/dev/observed.py"))

    @unittest.skipUnless(HAS_PROMTOOL, "needs promtool, of the Debian package prometheus")
    def test_prometheus_takes_configuration_and_rules(self):
        with tempfile.TemporaryDirectory() as directory:
            pathlib.Path(directory, "prometheus.yml").write_text(self.CONFIG, encoding="utf-8")
            pathlib.Path(directory, "alerts.yml").write_text(observed.alerts(), encoding="utf-8")
            done = subprocess.run(["promtool", "check", "config", f"{directory}/prometheus.yml"],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            self.assertEqual(0, done.returncode, done.stdout)
            self.assertIn("2 rule files found", done.stdout)


class CommandTest(unittest.TestCase):
    def run_script(self, *words, path=os.environ["PATH"]):
        return subprocess.run([sys.executable, os.path.abspath("tools/dev/observed.py"), *words], env={"PATH": path},
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)

    def test_without_prometheus_it_says_what_to_run(self):
        done = self.run_script("--check", path="/nonexistent")
        self.assertEqual(observed.NO_PROMETHEUS, done.returncode)
        self.assertIn("./dev install-deps --observe", done.stderr)

    def test_seconds_out_of_range_are_refused(self):
        done = self.run_script("--check", "--seconds=4")
        self.assertEqual(2, done.returncode)
        self.assertIn("--seconds is 4, but must be 5 to 600", done.stderr)


if __name__ == "__main__":
    case_report.main()
