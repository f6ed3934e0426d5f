#!/usr/bin/env python3
"""The plots of ./dev bench show the rows that they are given, with labels that can be read."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock as mock
import xml.etree.ElementTree as ElementTree

sys.path[:0] = [os.path.abspath("tests/repository"), os.path.abspath("tools/dev")]
import bench
import bench_plot
import case_report

PYTHON = "/usr/bin/python3"  # Debian's, which has Debian's matplotlib
SCRIPT = os.path.abspath("tools/dev/bench_plot.py")


def has_matplotlib():
    return subprocess.run([PYTHON, "-c", "import matplotlib"], stderr=subprocess.DEVNULL, check=False).returncode == 0


def call(outstanding, p50_us, bench="rpc", calls_per_s=1e6):
    return {"bench": bench, "device": "shm", "mode": "busy", "size": 32, "outstanding": outstanding,
            "p50_us": p50_us, "calls_per_s": calls_per_s, "floor_p50_us": p50_us / 4 if bench == "rpc" else None}


def counted(outstanding, p50_us, off_p50_us, calls_per_s=1e6):
    return {**call(outstanding, p50_us, "metrics", calls_per_s), "off_p50_us": off_p50_us,
            "off_calls_per_s": 1.02 * calls_per_s}


def payload(op, size, outstanding, gb_per_s):
    return {"bench": f"payload_{op}_strict", "device": "shm", "mode": "busy", "size": size,
            "outstanding": outstanding, "gb_per_s": gb_per_s, "floor_gb_per_s": 14.0}


def echo(op, size, outstanding, p99_us):
    return {"bench": "interference", "device": "shm", "mode": "busy", "op": op, "size": size,
            "outstanding": outstanding, "echo_alone_p99_us": 5.0, "echo_p99_us": p99_us}


def link(links, outstanding, calls_per_s):
    return {"bench": "links", "device": "shm", "mode": "busy", "size": 32, "links": links,
            "outstanding_per_link": outstanding, "p50_us": 1.0 * links, "calls_per_s": calls_per_s}


def storm(bench, links, last_call_ms, failed_per_link):
    return {"bench": bench, "device": "shm", "mode": "adaptive", "size": 32, "links": links, "last_call_ms": last_call_ms,
            "floor_last_ms": links / 10, "failed_handshakes_per_link": failed_per_link}


def loaded(scenario, offered_per_s, goodput_per_s, **extra):
    return {"bench": "overload", "device": "shm", "mode": "busy", "scenario": scenario,
            "offered_per_s": offered_per_s, "goodput_per_s": goodput_per_s, **extra}


def parameter(curve, x, y):
    return {"bench": "parameters", "device": "soft0", "comparison": "requests", "curve": curve, "x": x, "y": y}


SIZES = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20]
ALL = ([call(n, 0.6 * n) for n in (1, 8, 16, 64, 512)] + [call(n, 9.0 * n, "grpc") for n in (1, 64)] +
       [counted(n, 0.7 * n, 0.6 * n) for n in (1, 64, 512)] +
       [payload(op, size, n, size / 1e6 + n) for op in ("read", "write") for size in SIZES for n in (1, 4, 16)] +
       [echo(op, size, n, 20.0 * n) for op in ("read", "write") for size in SIZES for n in (1, 4, 16)] +
       [link(n, 1, 1e9 / n) for n in (1, 8, 64, 500, 1000, 2000, 4000)] +
       [storm(bench, links, 10.0 * links, failed) for bench, failed in (("storm", 0.6), ("comeback", 0))
        for links in (60, 240)] +
       [loaded("80 percent", 15e3, 15e3), loaded("2 times", 38e3, 19e3), loaded("10 times", 190e3, 18e3),
        loaded("500 impatient, 1000 us", 5e3, 950, floor_per_s=980)] +
       [parameter(curve, x, x / 1e3) for curve in ("granted WRITE", "server's READ") for x in (512, 4096, 1 << 20)])


def texts(picture):
    return [element.text for element in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]


def only(rows):
    (figure,) = bench_plot.figures(rows)
    return figure


class FiguresTest(unittest.TestCase):
    def test_each_benchmark_has_its_figure(self):
        self.assertEqual(["shm-calls", "shm-metrics", "shm-payload-strict-busy", "shm-interference", "shm-links", "shm-storm", "shm-overload", "soft0-requests"],
                         [figure.name for figure in bench_plot.figures(ALL)])

    def test_a_point_is_the_median_of_its_runs(self):
        latency = only([call(1, p50_us) for p50_us in (0.8, 0.4, 0.6)]).panels[0]
        self.assertEqual({1: 0.6}, latency.curves["32 B, busy"])

    def test_the_floor_is_a_curve_of_its_own(self):
        latency = only([call(1, 0.8)]).panels[0]
        self.assertEqual({1: 0.2}, latency.curves["floor: 32 B, busy"])

    def test_a_peer_is_told_apart_by_name(self):
        latency = only([call(1, 0.8), call(1, 20, "grpc")]).panels[0]
        self.assertEqual({1: 20}, latency.curves["grpc, 32 B, busy"])
        self.assertEqual({1: 0.8}, latency.curves["rpc, 32 B, busy"])

    def test_calls_without_metrics_are_the_floor_of_calls_with_metrics(self):
        latency, rate = only([counted(64, 0.8, 0.7)]).panels
        self.assertEqual({"32 B, busy": {64: 0.8}, "floor: 32 B, busy": {64: 0.7}}, latency.curves)
        self.assertEqual({"32 B, busy": {64: 1e6}, "floor: 32 B, busy": {64: 1.02e6}}, rate.curves)

    def test_a_figure_that_was_not_measured_is_no_point(self):
        curves = only([parameter("a", 8, 1.5), parameter("a", 64, None)]).panels[0].curves
        self.assertEqual({"a": {8: 1.5}}, curves)

    def test_reads_and_writes_have_panels_of_their_own(self):
        figure = only([payload("read", 4096, 1, 2.0), payload("write", 4096, 1, 3.0)])
        self.assertEqual([("read", 2.0), ("written", 3.0)],
                         [(panel.title, panel.curves["1 in flight"][4096]) for panel in figure.panels])

    def test_an_echo_is_shown_alone_and_beside_payloads(self):
        curves = only([echo("read", 4096, 4, 80.0)]).panels[0].curves
        self.assertEqual({"alone": {4096: 5.0}, "beside 4 in flight": {4096: 80.0}}, curves)

    def test_a_load_that_is_too_much_is_shown_beside_what_can_be_served(self):
        figure = next(figure for figure in bench_plot.figures(ALL) if figure.name == "shm-overload")
        curves = figure.panels[0].curves
        self.assertEqual({15e3: 15e3, 38e3: 19e3, 190e3: 18e3}, curves["a queue, open load"])
        self.assertEqual({5e3: 950}, curves["500 impatient, 1000 us"])
        self.assertEqual({5e3: 980}, curves["floor: 500 impatient, 1000 us"])

    def test_storms_are_shown_beside_bare_connections_and_with_what_they_cost(self):
        figure = next(figure for figure in bench_plot.figures(ALL) if figure.name == "shm-storm")
        self.assertEqual({60: 600, 240: 2400}, figure.panels[0].curves["first calls"])
        self.assertEqual({60: 6, 240: 24}, figure.panels[0].curves["floor: first calls"])
        self.assertEqual({60: 0, 240: 0}, figure.panels[1].curves["after the server was killed"])

    def test_rows_without_a_plot_give_none(self):
        self.assertEqual([], list(bench_plot.figures([{"bench": "floor", "device": "shm", "size": 1}])))

    def test_every_comparison_of_parameters_has_a_title(self):
        source = (pathlib.Path(os.path.realpath("WORKSPACE")).parent /
                  "benchmarks/parameters/parameters_bench.cc").read_text(encoding="utf-8")
        for name in bench_plot.COMPARISONS:
            self.assertIn(f'{{"{name}", Compare', source)
        self.assertEqual(len(bench_plot.COMPARISONS), source.count(", Compare"))


class LabelsTest(unittest.TestCase):
    def test_sizes_are_written_as_people_say_them(self):
        self.assertEqual(["8 B", "512 B", "4 KiB", "1 MiB", "1.5 MiB", "2 GiB"],
                         [bench_plot.size_label(size)
                          for size in (8, 512, 4096, 1 << 20, 3 << 19, 2 << 30)])

    def test_large_numbers_are_short(self):
        self.assertEqual(["0.15", "5", "20 k", "7.1 M"],
                         [bench_plot.number_label(value) for value in (0.15, 5, 2e4, 7.1e6)])

    def test_an_axis_is_logarithmic_if_its_values_span_a_decade(self):
        self.assertTrue(bench_plot.spans_decades([0, 1, 10]))
        self.assertFalse(bench_plot.spans_decades([2, 10]))
        self.assertFalse(bench_plot.spans_decades([]))


class CommandTest(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.top = pathlib.Path(self.directory.name)
        self.rows = self.top / "rows.json"
        self.rows.write_text("".join(json.dumps(row) + "\n" for row in ALL), encoding="utf-8")

    def run_script(self, *words, **environment):
        return subprocess.run([PYTHON, SCRIPT, "--out", str(self.top), *words], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, check=False, env={**os.environ, **environment})

    def test_without_matplotlib_it_says_what_to_run(self):
        (self.top / "matplotlib.py").write_text("raise ImportError\n", encoding="utf-8")
        done = self.run_script(str(self.rows), PYTHONPATH=str(self.top))
        self.assertEqual(bench_plot.NO_MATPLOTLIB, done.returncode)
        self.assertIn("./dev install-deps --plots", done.stderr)

    @unittest.skipUnless(has_matplotlib(), "needs python3-matplotlib")
    def test_a_file_that_is_no_json_is_named(self):
        self.rows.write_text("calls\n", encoding="utf-8")
        done = self.run_script(str(self.rows))
        self.assertEqual(2, done.returncode)
        self.assertIn("rows.json", done.stderr)

    @unittest.skipUnless(has_matplotlib(), "needs python3-matplotlib")
    def test_pictures_are_documents_for_light_and_dark_viewers(self):
        done = self.run_script(str(self.rows))
        self.assertEqual(0, done.returncode, done.stderr)
        pictures = {path.stem: path.read_text(encoding="utf-8") for path in self.top.glob("*.svg")}
        self.assertEqual(len(list(bench_plot.figures(ALL))), len(pictures))
        for name, picture in pictures.items():
            ElementTree.fromstring(picture)
            self.assertIn("prefers-color-scheme: dark", picture, name)
            self.assertIn(f"fill: {bench_plot.INK}", picture, name)
        for label in ("4 KiB", "1 MiB", "16 in flight", "floor"):
            self.assertIn(f">{label}</text>", pictures["shm-payload-strict-busy"])

    @unittest.skipUnless(has_matplotlib(), "needs python3-matplotlib")
    def test_the_same_rows_give_the_same_bytes(self):
        first, second = [self.run_script(str(self.rows), "--out", str(self.top / name)) for name in ("1", "2")]
        self.assertEqual((0, 0), (first.returncode, second.returncode))
        for path in (self.top / "1").iterdir():
            self.assertEqual(path.read_bytes(), (self.top / "2" / path.name).read_bytes(), path.name)

    @unittest.skipUnless(has_matplotlib(), "needs python3-matplotlib")
    def test_no_label_lies_over_another_or_leaves_its_picture(self):
        with self.rows.open("a", encoding="utf-8") as file:
            for name in bench_plot.COMPARISONS:
                for x in (8, 64, 512, 4096, 16384, 65536):
                    file.write(json.dumps({**parameter("not inline", x, x / 1e3), "comparison": name}) + "\n")
        done = subprocess.run(
            [PYTHON, "-c",
             "import bench_plot, json, sys\n"
             "for figure in bench_plot.figures(bench_plot.read_rows(open(sys.argv[1]))):\n"
             "    print(json.dumps([figure.name, bench_plot.misplaced_labels(bench_plot.draw(figure))]))",
             str(self.rows)],
            stdout=subprocess.PIPE, text=True, check=True,
            env={**os.environ, "PYTHONPATH": os.path.dirname(SCRIPT)})
        results = dict(json.loads(line) for line in done.stdout.splitlines())
        self.assertEqual(len(list(bench_plot.figures(ALL))) - 1 + len(bench_plot.COMPARISONS), len(results))
        self.assertEqual({name: [] for name in results}, results)


class RunTest(unittest.TestCase):
    """./dev bench, with a script in the place of a benchmark and a function in the place of matplotlib."""

    def run_bench(self, *words, drawn=0, benchmark="echo '{}' >> \"$2\""):
        """The exit status, what was printed, and the rows that were to be drawn."""
        plotted = []

        def plot(rows, directory=None):
            plotted.append(pathlib.Path(rows).read_text(encoding="utf-8"))
            return drawn

        out = io.StringIO()
        with mock.patch.object(sys, "argv", ["bench", *words]), mock.patch.object(bench, "plot", plot), \
                mock.patch.object(bench, "build", lambda targets: pathlib.Path("/")), \
                mock.patch.object(bench, "commands_of", lambda name, directory, device=None: [
                    (name, ["sh", "-c", benchmark, "sh"])]), contextlib.redirect_stdout(out):
            return bench.main(), out.getvalue(), plotted

    def test_without_plot_nothing_is_drawn(self):
        self.assertEqual((0, []), self.run_bench("--only", "links", benchmark="true")[::2])

    def test_with_plot_the_rows_of_the_run_are_drawn(self):
        self.assertEqual((0, ["{}\n"]), self.run_bench("--only", "links", "--plot")[::2])

    def test_a_file_is_drawn_and_nothing_runs(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as rows:
            rows.write("kept\n")
            rows.flush()
            self.assertEqual((0, ["kept\n"]), self.run_bench("--plot", rows.name, benchmark="false")[::2])

    def test_a_plot_that_was_asked_for_and_fails_is_a_failure(self):
        status, out, _ = self.run_bench("--only", "links", "--plot", drawn=bench_plot.NO_MATPLOTLIB)
        self.assertEqual((1, True), (status, "failed: plots" in out))

    def test_parameters_are_measured_without_matplotlib(self):
        status, _, plotted = self.run_bench("--parameters", drawn=bench_plot.NO_MATPLOTLIB)
        self.assertEqual((0, ["{}\n"]), (status, plotted))


@unittest.skipUnless(has_matplotlib(), "needs python3-matplotlib")
class DocumentsTest(unittest.TestCase):
    def test_plots_of_documents_are_drawn_from_the_rows_beside_them(self):
        plots = pathlib.Path(os.path.realpath("WORKSPACE")).parent / "docs/plots"
        names = sorted(path.stem for path in plots.glob("*.svg"))
        self.assertIn("shm-calls", names)
        self.assertEqual(names, sorted(path.stem for path in plots.glob("*.json")))
        for name in names:
            with tempfile.TemporaryDirectory() as directory:
                subprocess.run([PYTHON, SCRIPT, "--out", directory, str(plots / f"{name}.json")],
                               stdout=subprocess.DEVNULL, check=True)
                drawn = pathlib.Path(directory, f"{name}.svg").read_text(encoding="utf-8")
            # Another version of matplotlib may draw other paths, but not other labels.
            self.assertEqual(texts((plots / f"{name}.svg").read_text(encoding="utf-8")), texts(drawn), name)


if __name__ == "__main__":
    case_report.main()
