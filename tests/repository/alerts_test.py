#!/usr/bin/env python3
"""Alert rules and dashboard name metrics that there are, fire when they must, and lead to what is to be done.

promtool, of the Debian package prometheus, runs the tests of the rules: tests/docs/prometheus.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [os.path.abspath("tests/repository")]
import case_report
import tree

RULES = "docs/prometheus/verbena.rules.yml"
TESTS = "tests/docs/prometheus/verbena.rules_test.yml"
DASHBOARD = "docs/prometheus/dashboard.json"
OPERATIONS = "docs/operations.md"
# What writes the metrics, and the values of their labels.
SOURCES = ("rpc/shard/metrics.cc", "rpc/shard/call_counts.cc", "rpc/shard/report.cc", "rpc/status.h")

NAME = re.compile(r"\b(?:verbena|rpc)_[a-z_]*[a-z]\b")
LABELS_IN_SELECTOR = re.compile(r'(\w+)(=~|!=|=)"([^"]*)"')
# Prometheus gives these to each sample, or to each bucket.
LABELS_OF_PROMETHEUS = {"job", "instance", "le"}
CODES = {"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
         "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
         "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"}


def sources():
    return "\n".join(tree.text(name) for name in SOURCES)


def metric_names():
    """The names that samples of a scrape have."""
    text = tree.text("rpc/shard/metrics.cc")
    names = set(re.findall(r'"((?:verbena|rpc)_[a-z_]*[a-z])"', text)) - {"rpc_method", "rpc_response_status_code"}
    histograms = set(re.findall(r'WriteDurations\(text, \w+, "(\w+)"', text))
    assert histograms and histograms < names
    return (names - histograms) | {name + suffix for name in histograms for suffix in ("_bucket", "_sum", "_count")}


def families():
    """The same without the parts of histograms."""
    return {re.sub(r"_seconds_(?:bucket|sum|count)$", "_seconds", name) for name in metric_names()}


def label_names():
    text = sources()
    return LABELS_OF_PROMETHEUS | {label for label in re.findall(r'"(\w+)"', text) + re.findall(r'\b(\w+)=\\"', text)}


def expressions():
    """The PromQL of each alert by its name."""
    found = {}
    for block in re.split(r"\n      - alert: ", tree.text(RULES))[1:]:
        name, rest = block.split("\n", 1)
        expression = re.search(r"^        expr: (?:\|\n((?: {10}.*\n)+)|(.*)\n)", rest, re.MULTILINE)
        found[name] = " ".join((expression[1] or expression[2]).split())
    return found


def panels():
    return [panel for panel in json.loads(tree.text(DASHBOARD))["panels"] if panel["type"] != "row"]


def queries():
    """The PromQL of the dashboard."""
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def anchors(name):
    """The headings of a document, as links name them."""
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")
            for title in re.findall(r"^#+ (.*)$", tree.text(name), re.MULTILINE)}


def problems_of(expression):
    """Names and values that no scrape has."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    wrong = [name for name in NAME.findall(bare) if name not in metric_names() | label_names()]
    labels = [label for group in re.findall(r"\b(?:by|on|group_left) \(([^)]*)\)", bare) for label in group.split(",")]
    for label, operator, values in LABELS_IN_SELECTOR.findall(expression):
        labels.append(label)
        if "$" in values:
            continue
        for value in values.split("|") if operator == "=~" else [values]:
            if value not in CODES and f'"{value}"' not in sources():
                wrong.append(f"{label}={value}")
    return wrong + [label.strip() for label in labels if label.strip() and label.strip() not in label_names()]


class NamesTest(unittest.TestCase):
    def test_metrics_labels_and_values_of_alerts_are_there(self):
        self.assertGreater(len(expressions()), 10)
        self.assertEqual({}, {name: problems_of(each) for name, each in expressions().items() if problems_of(each)})

    def test_metrics_labels_and_values_of_the_dashboard_are_there(self):
        self.assertGreater(len(queries()), 30)
        self.assertEqual([], [(each, problems_of(each)) for each in queries() if problems_of(each)])

    def test_the_dashboard_shows_every_metric(self):
        shown = {name for each in queries() for name in NAME.findall(each)}
        self.assertEqual(set(), {name for name in families() if not shown & {name, name + "_bucket"}})

    def test_series_of_the_tests_of_alerts_are_there(self):
        series = re.findall(r"series: '(\w+)\{(.*?)\}'", tree.text(TESTS))
        self.assertGreater(len(series), 30)
        self.assertEqual(set(), {name for name, _ in series} - metric_names() - {"up"})
        self.assertEqual(set(), {label for _, labels in series for label in re.findall(r'(\w+)="', labels)} - label_names())

    def test_what_is_not_there_is_found(self):
        for wrong in ("rate(verbena_server_calls_total[5m])", "sum by (peer) (verbena_links)", 'verbena_links{peer="a"}',
                      'verbena_server_refusals_total{bound=~"queue|length"}'):
            self.assertNotEqual([], problems_of(wrong), wrong)


class RunbookTest(unittest.TestCase):
    def test_each_alert_leads_to_its_chapter(self):
        runbooks = re.findall(r"^          runbook: (.*)$", tree.text(RULES), re.MULTILINE)
        self.assertEqual([f"{OPERATIONS}#{name.lower()}" for name in expressions()], runbooks)
        self.assertEqual(set(), {name.lower() for name in expressions()} - anchors(OPERATIONS))

    def test_each_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not(self):
        text = tree.text(TESTS)
        for name in expressions():
            self.assertIn(f"alertname: {name}\n        exp_alerts:\n", text)
            self.assertIn(f"alertname: {name}, exp_alerts: []", text)

    def test_panels_lead_to_chapters_that_are_there(self):
        links = [link for panel in panels() for link in re.findall(r"docs/operations\.md#(\S+)", panel["description"])]
        self.assertNotEqual([], links)
        self.assertEqual(set(), set(links) - anchors(OPERATIONS))


class DashboardTest(unittest.TestCase):
    def test_panels_have_their_own_numbers_and_places(self):
        board = json.loads(tree.text(DASHBOARD))
        numbers = [panel["id"] for panel in board["panels"]]
        self.assertEqual(len(numbers), len(set(numbers)))
        taken = set()
        for panel in board["panels"]:
            place = panel["gridPos"]
            cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                     for y in range(place["y"], place["y"] + place["h"])}
            self.assertLessEqual(place["x"] + place["w"], 24, panel["title"])
            self.assertFalse(cells & taken, panel["title"])
            taken |= cells

    def test_variables_that_queries_use_are_there(self):
        names = {each["name"] for each in json.loads(tree.text(DASHBOARD))["templating"]["list"]}
        used = set(re.findall(r"\$\{?(\w+)", tree.text(DASHBOARD))) - {"__rate_interval", "__all"}
        self.assertEqual(names, used)


@unittest.skipUnless(shutil.which("promtool"), "needs promtool, of the Debian package prometheus")
class PromtoolTest(unittest.TestCase):
    def promtool(self, *words):
        done = subprocess.run(["promtool", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        self.assertEqual(0, done.returncode, done.stdout)

    def test_the_rules_are_valid_and_fire_as_their_tests_say(self):
        self.promtool("check", "rules", str(tree.top() / RULES))
        self.promtool("test", "rules", str(tree.top() / TESTS))

    def test_the_queries_of_the_dashboard_are_valid(self):
        rules = [{"record": f"panel:{number}", "expr": each.replace("$__rate_interval", "5m")}
                 for number, each in enumerate(queries())]
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory, "dashboard.yml")
            path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}), encoding="utf-8")
            self.promtool("check", "rules", str(path))

    def test_the_tests_notice_rules_that_are_wrong(self):
        rules = tree.text(RULES)
        for right, wrong in (("> 0.01\n        for: 5m", "> 0.5\n        for: 5m"), ("> 45\n", "> 10\n"),
                             ('{kind="retry"}', ""), ("rpc_method, le)", "le)"), ("[1d]", "[1h]"),
                             ('"UNKNOWN|INTERNAL', '"UNKNOWN|UNIMPLEMENTED|INTERNAL'),
                             ('"UNKNOWN|INTERNAL', '"UNKNOWN|DEADLINE_EXCEEDED|INTERNAL'),
                             ("- sum by (job, instance, rpc_method) (rpc_client", "- 0 * sum by (job, instance, rpc_method) (rpc_client"),
                             ("> 5 + 2 * sum by (job, instance, rpc_method) (rate(rpc_server", "> 5 + 0 * sum by (job, instance, rpc_method) (rate(rpc_server"),
                             ("> 5 + 2 *", "> 4 + 2 *"), ("> 5 + 2 *", "> 250 + 2 *")):
            self.assertIn(right, rules)
            with tempfile.TemporaryDirectory() as directory:
                for name, text in ((RULES, rules.replace(right, wrong)), (TESTS, tree.text(TESTS))):
                    path = pathlib.Path(directory, name)
                    path.parent.mkdir(parents=True)
                    path.write_text(text, encoding="utf-8")
                done = subprocess.run(["promtool", "test", "rules", pathlib.Path(directory, TESTS)],
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
                self.assertNotEqual(0, done.returncode, wrong)


if __name__ == "__main__":
    case_report.main()
