#!/usr/bin/env python3
"""Three servers and their client, watched by a Prometheus: what it says of the one that is slow."""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import pathlib
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

TOP = pathlib.Path(__file__).resolve().parents[2]
RULES = TOP / "docs/prometheus/verbena.rules.yml"

SERVERS = 3
# How long a stop of the slow server takes, and how long it runs in between.
STOPPED_S = (0.05, 0.2)
RUNS_S = (0.05, 0.25)
# How long programs have to start, and to end.
START_S = 20
END_S = 5
# Rates look at so much of the time before PromQL is asked.
WINDOW_S = 10
# How long Prometheus has after the demo's time until it has scraped all, on a busy machine.
SETTLE_S = 120
# Exit status: PromQL names another server than the one that was made slow; there is no Prometheus.
WRONG_SERVER = 3
NO_PROMETHEUS = 77

ADVICE = "./dev install-deps --observe, or as root on Debian 12: apt-get install --no-install-recommends prometheus"

READS = 'rpc_method="kv.v1.KeyValue/Get"'
# The p99 of what a client waits, by server. kv_load counts it from when a read was due.
WAITS = f"histogram_quantile(0.99, sum by (server, le) (rate(kv_load_read_seconds_bucket[{WINDOW_S}s])))"


class Failure(Exception):
    """What went wrong, for the user."""


def config(servers, client):
    """What Prometheus is to scrape, as JSON, which is YAML, too. `servers`, `client`: hosts and ports. The label
    `server` is the address that clients call: kv_load's own metrics have it, too."""
    return json.dumps({
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["alerts.yml", str(RULES)],
        "scrape_configs": [
            {"job_name": "kv", "static_configs": [
                {"targets": [admin], "labels": {"server": server}} for server, admin in servers]},
            {"job_name": "kv_load", "static_configs": [{"targets": [client]}]}]}, indent=1) + "\n"


def alerts():
    """Rules that fire within the demo. Those of docs/prometheus wait for minutes."""
    return json.dumps({"groups": [{"name": "observed", "rules": [
        {"alert": "ReadsWait", "expr": f"{WAITS} > 0.025", "for": "3s",
         "annotations": {"summary": "1 of 100 reads from {{ $labels.server }} waits {{ $value | humanizeDuration }}"}},
        {"alert": "ReadsFail", "expr": f"sum by (server) (rate(kv_load_failed_reads_total[{WINDOW_S}s])) > 0",
         "annotations": {"summary": "{{ $labels.server }}: reads fail"}}]}]}, indent=1) + "\n"


def free_port():
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return each.getsockname()[1]


def get(url, timeout=5):
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return answer.read().decode()


class Program:
    """A child process with its log in a file. It ends with this process, whatever becomes of that."""

    def __init__(self, directory, name, *words):
        self.name = name
        self.log = pathlib.Path(directory, f"{name}.log")
        # In a session of its own, Ctrl-C does not reach it: the demo ends it.
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *map(str, words)], stderr=log,
                                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
        self._lines = b""

    def failure(self, what):
        last = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
        return Failure("\n".join([f"{self.name} {what}", *(f"  {line}" for line in last)]))

    def check(self):
        if self.process.poll() is not None:
            raise self.failure(f"has ended with exit status {self.process.returncode}")

    def address_after(self, prefix, deadline):
        """The host and port on the line of its output that begins so. Reads up to that line."""
        while True:
            line, end, rest = self._lines.partition(b"\n")
            if end:
                self._lines = rest
                text = line.decode(errors="replace")
                if text.startswith(prefix):
                    return text[len(prefix):].split("/")[0]
                continue
            if not select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))[0]:
                raise self.failure(f"has not said '{prefix}…' within {START_S} s")
            more = os.read(self.process.stdout.fileno(), 4096)
            if not more:
                self.process.wait()
                raise self.failure(f"has ended with exit status {self.process.returncode}")
            self._lines += more

    def end(self):
        """Ends it, and waits until it has ended."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_S)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


class Stops(threading.Thread):
    """Stops a program and lets it go on, again and again, at random. So its process stands still as if the kernel
    did not run it; nothing in the program knows of it."""

    def __init__(self, program, chance):
        super().__init__(daemon=True)
        self._program = program
        self._chance = chance
        self._ends = threading.Event()
        self.count = 0

    def run(self):
        while not self._ends.wait(self._chance.uniform(*RUNS_S)):
            self._program.process.send_signal(signal.SIGSTOP)
            self.count += 1
            self._ends.wait(self._chance.uniform(*STOPPED_S))
            self._program.process.send_signal(signal.SIGCONT)

    def end(self):
        self._ends.set()
        self.join()


class Prometheus:
    """A Prometheus with configuration and data in `directory`, at a free port of loopback."""

    def __init__(self, path, directory, words):
        self._directory = pathlib.Path(directory)
        (self._directory / "prometheus.yml").write_text(words, encoding="utf-8")
        (self._directory / "alerts.yml").write_text(alerts(), encoding="utf-8")
        # Somebody else may take the port before it does: three attempts.
        for attempt in range(3):
            port = free_port()
            self.url = f"http://127.0.0.1:{port}"
            self.program = Program(directory, "prometheus", path,
                                   f"--config.file={self._directory}/prometheus.yml",
                                   f"--storage.tsdb.path={self._directory}/data-{attempt}",
                                   f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn")
            try:
                self._await_ready()
                return
            except Failure:
                self.program.end()
                if attempt == 2 or "address already in use" not in self.program.log.read_text(encoding="utf-8"):
                    raise

    def _await_ready(self):
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            self.program.check()
            with contextlib.suppress(OSError):
                get(f"{self.url}/-/ready", timeout=1)
                return
            time.sleep(0.1)
        raise self.program.failure(f"is not ready after {START_S} s")

    def _ask(self, path):
        self.program.check()
        try:
            answer = json.loads(get(f"{self.url}/api/v1/{path}"))
        except urllib.error.HTTPError as error:
            raise Failure(f"Prometheus refuses {path}: {error.read().decode(errors='replace')}") from error
        except OSError as error:
            raise Failure(f"Prometheus does not answer: {error}") from error
        return answer["data"]

    def query(self, words):
        """The value for each value of the label `server`. NaN, of no reads at all, is left out."""
        samples = self._ask("query?" + urllib.parse.urlencode({"query": words}))["result"]
        values = {sample["metric"].get("server", ""): float(sample["value"][1]) for sample in samples}
        return {server: value for server, value in values.items() if not math.isnan(value)}

    def alerts(self):
        """The alerts that are pending or fire: (name, state, summary)."""
        return sorted((each["labels"]["alertname"], each["state"], each["annotations"].get("summary", ""))
                      for each in self._ask("alerts")["alerts"])

    def targets_down(self):
        return [f"{each['scrapeUrl']}: {each['lastError'] or each['health']}"
                for each in self._ask("targets?state=active")["activeTargets"] if each["health"] != "up"]


@dataclasses.dataclass
class Server:
    program: Program
    address: str
    admin: str


def check_metrics(name, admin):
    """Fails if there are no metrics at `admin`."""
    url = f"http://{admin}/metrics"
    try:
        text = get(url)
    except OSError as error:
        raise Failure(f"{name} does not give its metrics at {url}: {error}") from error
    if "verbena_build_info{" not in text:
        raise Failure(f"{name} gives no metrics of Verbena at {url}, but: {text[:60]!r}")


def start_servers(stack, options, directory):
    programs = []
    for number in range(1, SERVERS + 1):
        programs.append(Program(directory, f"server-{number}", options.server, "--address=127.0.0.1:0",
                                "--admin=127.0.0.1:0", "--mode=event"))
        stack.callback(programs[-1].end)
    deadline = time.monotonic() + START_S
    servers = []
    for program in programs:
        address = program.address_after("listening on ", deadline)
        servers.append(Server(program, address, program.address_after("status at http://", deadline)))
        check_metrics(program.name, servers[-1].admin)
    return servers


def start_client(stack, options, directory, servers):
    client = Program(directory, "kv_load", options.client, "--admin=127.0.0.1:0",
                     "--servers=" + ",".join(server.address for server in servers))
    stack.callback(client.end)
    admin = client.address_after("status at http://", time.monotonic() + START_S)
    check_metrics(client.name, admin)
    return client, admin


def say(line=""):
    print(line, flush=True)


# Of each server: a title, PromQL, and how its value is written.
ROWS = (("served calls/s", f"sum by (server) (rate(rpc_server_call_duration_seconds_count{{{READS}}}[{WINDOW_S}s]))",
         lambda value: f"{value:,.0f}"),
        ("p99 in the server, ms",
         "histogram_quantile(0.99, sum by (server, le) "
         f"(rate(rpc_server_call_duration_seconds_bucket{{{READS}}}[{WINDOW_S}s])))",
         lambda value: f"{value * 1e3:,.2f}"),
        ("p99 that the client waits, ms", WAITS, lambda value: f"{value * 1e3:,.2f}"),
        ("longest scrape, ms",
         f"max by (server) (max_over_time(scrape_duration_seconds{{job=\"kv\"}}[{WINDOW_S}s]))",
         lambda value: f"{value * 1e3:,.1f}"))


def lack(prometheus, servers):
    """What Prometheus does not know yet, in words, or "". A busy machine scrapes late."""
    down = prometheus.targets_down()
    if down:
        return "Prometheus cannot scrape " + "; ".join(down)
    for title, words, _ in ROWS:
        values = prometheus.query(words)
        missing = [server.program.name for server in servers if server.address not in values]
        if missing:
            return f"PromQL has no '{title}' of {', '.join(missing)}"
    return ""


def await_figures(prometheus, servers, programs):
    """Until Prometheus lacks nothing. Failure says what it lacks after SETTLE_S."""
    deadline = time.monotonic() + SETTLE_S
    while why := lack(prometheus, servers):
        if time.monotonic() > deadline:
            raise Failure(f"{why} after {SETTLE_S} s more: is the machine busy?")
        time.sleep(0.5)
        for program in programs:
            program.check()


def print_table(prometheus, servers):
    """Prints what PromQL says of each server, and returns the server with the longest waits, or None."""
    waits = prometheus.query(WAITS)
    say(f"{'of the last ' + str(WINDOW_S) + ' s':30}" + "".join(f"{server.program.name:>12}" for server in servers))
    for title, words, text in ROWS:
        values = prometheus.query(words)
        say(f"{title:30}" + "".join(f"{text(values[server.address]) if server.address in values else '-':>12}"
                                    for server in servers))
    say("\nPromQL:")
    for title, words, _ in ROWS:
        say(f"  {title}\n    {words}")
    return max(servers, key=lambda server: waits.get(server.address, 0)) if waits else None


def print_alerts(prometheus, servers):
    say("\nalerts:")
    found = prometheus.alerts()
    for name, state, summary in found:
        for server in servers:
            summary = summary.replace(server.address, server.program.name)
        say(f"  {state:8} {name}: {summary}")
    if not found:
        say("  none")


def watch(stack, options, prometheus_path, directory):
    say(f"Starting {SERVERS} servers, a client and Prometheus ...")
    servers = start_servers(stack, options, directory)
    client, client_admin = start_client(stack, options, directory, servers)
    prometheus = Prometheus(prometheus_path, directory,
                            config([(server.address, server.admin) for server in servers], client_admin))
    stack.callback(prometheus.program.end)
    say(f"Prometheus is at {prometheus.url} for {options.seconds} s.")

    chance = random.Random(options.seed)
    slow = chance.choice(servers)
    stops = Stops(slow.program, chance)
    stack.callback(stops.end)  # before the programs end
    stops.start()
    say("One server, chosen at random, is stopped for "
        f"{STOPPED_S[0] * 1e3:.0f} to {STOPPED_S[1] * 1e3:.0f} ms again and again.")
    programs = [server.program for server in servers] + [client, prometheus.program]
    end = time.monotonic() + options.seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(5, left))
        for program in programs:
            program.check()
        if left > 5:
            say(f"  {left - 5:.0f} s left")

    await_figures(prometheus, servers, programs)
    say()
    named = print_table(prometheus, servers)
    print_alerts(prometheus, servers)
    if named is None:
        raise Failure("PromQL knows of no reads: let the demo run for longer, by --seconds")
    say(f"\nPromQL names {named.program.name} as the slow one. "
        f"{slow.program.name} was stopped {stops.count} times.")
    return 0 if named is slow else WRONG_SERVER


def arguments():
    parser = argparse.ArgumentParser(
        prog="./dev demo observed", description="Three servers of examples/kv under the load of a client, and a "
        "Prometheus of its own that scrapes them. One server, chosen at random, is stopped and continued again and "
        "again; PromQL tells which.",
        epilog=f"Exits with {WRONG_SERVER} if PromQL names another server, which a busy machine may cause, and with "
        f"{NO_PROMETHEUS} if there is no Prometheus.")
    parser.add_argument("--seconds", type=int, default=20, help="how long the load runs, 5 to 600 (default 20)")
    parser.add_argument("--seed", type=int, help="choose the server and the stops by this number")
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--server", help=argparse.SUPPRESS)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not 5 <= options.seconds <= 600:
        parser.error(f"--seconds is {options.seconds}, but must be 5 to 600")
    if not (options.check or (options.server and options.client)):
        parser.error("--server and --client, the programs, are missing")
    return options


def main():
    options = arguments()
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        print(f"demo observed: there is no prometheus. Run {ADVICE}", file=sys.stderr)
        return NO_PROMETHEUS
    if options.check:
        return 0
    # As Ctrl-C does: what was started must end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with tempfile.TemporaryDirectory(prefix="verbena-observed.") as directory, contextlib.ExitStack() as stack:
            return watch(stack, options, prometheus, directory)
    except Failure as failure:
        print(f"demo observed: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
