#!/usr/bin/env python3
"""Calls over TCP between two network namespaces, as between two hosts, survive what a network does.

The cable between the two is a veth pair. netem delays, loses, reorders and cuts what goes over it.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
import unittest

sys.path[:0] = [os.path.abspath("tests/repository")]
import case_report

SERVER = pathlib.Path("tests/rpc/testing_server").resolve()
CLIENT = pathlib.Path("tests/rpc/network_client").resolve()
# Set in the run that is inside the client's namespace.
INSIDE = "VERBENA_INSIDE_NAMESPACE"
PORT = 4000
TCP_PORT = 4791
# The longest that anything here may take.
PATIENCE_S = 120
NEEDED = ("unshare", "nsenter", "ip", "tc")
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def tool(name):
    return shutil.which(name, path=PATH)


def run(*words):
    """Runs a command that must succeed."""
    result = subprocess.run([tool(words[0]), *words[1:]], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {result.stdout.strip()}")


def obstacle():
    """Why there can be no namespaces here, or ""."""
    missing = [name for name in NEEDED if tool(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (iproute2, util-linux)"
    result = subprocess.run(inside_command(["true"]), stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, check=False)
    return "" if result.returncode == 0 else f"namespaces are not permitted: {result.stdout.strip()}"


def inside_command(command):
    """`command` in a network namespace, in which it may do what root may."""
    user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    return [tool("unshare"), *user, "--net", "--", *command]


def retransmissions():
    """How many segments TCP has sent again on this host."""
    lines = pathlib.Path("/proc/net/snmp").read_text(encoding="ascii").splitlines()
    names, values = (line.split() for line in lines if line.startswith("Tcp:"))
    return int(values[names.index("RetransSegs")])


class Network:
    """The two hosts. This process is on the client's; a process that sleeps holds the server's."""

    def __init__(self, stack):
        holder = subprocess.Popen([tool("unshare"), "--net", "--", "sh", "-c", "echo up; exec sleep inf"],
                                  stdout=subprocess.PIPE, text=True)
        stack.callback(holder.wait)
        stack.callback(holder.kill)
        holder.stdout.readline()
        self.there = ["nsenter", "--target", str(holder.pid), "--net", "--"]
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "near", "type", "veth", "peer", "name", "far")
        stack.callback(run, "ip", "link", "del", "near")
        run("ip", "link", "set", "far", "netns", str(holder.pid))
        for here, device, number in (([], "near", 1), (self.there, "far", 2)):
            run(*here, "ip", "address", "add", f"10.99.0.{number}/24", "dev", device)
            run(*here, "ip", "address", "add", f"fd99::{number}/64", "dev", device, "nodad")
            run(*here, "ip", "link", "set", device, "up")

    def netem(self, *what):
        """From now on packets in both directions meet with `what`; with nothing, with nothing."""
        for here, device in (([], "near"), (self.there, "far")):
            run(*here, "tc", "qdisc", "replace", "dev", device, "root",
                *(["netem", *what] if what else ["pfifo"]))

    def set_partition(self, parted):
        """Sends what is for the other host to a station that does not exist; netem is not needed."""
        for here, device, number in (([], "near", 2), (self.there, "far", 1)):
            for address in (f"10.99.0.{number}", f"fd99::{number}"):
                if parted:
                    run(*here, "ip", "neighbour", "replace", address, "lladdr", "02:00:00:00:00:99",
                        "dev", device, "nud", "permanent")
                else:
                    run(*here, "ip", "neighbour", "del", address, "dev", device)

    def plug(self, state):
        run("ip", "link", "set", "near", state)
        if state == "up":  # the kernel drops an interface's IPv6 addresses with its link
            run("ip", "address", "replace", "fd99::1/64", "dev", "near", "nodad")


class Process:
    """A program that answers lines. Killed at the end, and when it takes too long."""

    def __init__(self, stack, command, device):
        environment = dict(os.environ, VERBENA_DEVICE=device, VERBENA_LOG="info")
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True)
        stack.callback(self._process.wait)
        stack.callback(self._process.kill)

    def ask(self, line):
        killer = threading.Timer(PATIENCE_S, self._process.kill)
        killer.start()
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            return self._process.stdout.readline().strip()
        finally:
            killer.cancel()


class TwoNetworksTest(unittest.TestCase):
    device = f"soft:{TCP_PORT}"
    address = f"10.99.0.2:{PORT}"

    def setUp(self):
        if INSIDE not in os.environ:
            self.skipTest(obstacle() or "runs inside a namespace")
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.network = Network(self.stack)
        there = [tool(self.network.there[0]), *self.network.there[1:]]
        Process(self.stack, [*there, SERVER, self.address], self.device)
        self.client = Process(self.stack, [CLIENT, self.address], self.device)
        self.expect_calls(1, 10)  # the server is up

    def netem(self, *what):
        try:
            self.network.netem(*what)
        except RuntimeError as refused:
            self.skipTest(f"the kernel has no netem: {refused}")

    def calls(self, count, size, limit_s=PATIENCE_S // 2):
        return self.client.ask(f"calls {count} {size} {limit_s * 1000}")

    def expect_calls(self, count, size):
        self.assertEqual(f"ok {count}", self.calls(count, size))

    def test_links_go_over_tcp(self):
        self.assertEqual("tcp0 (tcp)", self.client.ask("devices"))

    def test_delay_loss_and_reordering_change_no_byte(self):
        self.netem("delay", "3ms", "2ms", "loss", "1%", "reorder", "25%", "50%")
        self.expect_calls(500, 2000)
        self.expect_calls(8, 1 << 20)

    def heal_once_calls_wait(self, before):
        """Ends the partition once TCP has sent three segments again, after about half a second."""
        patience = time.monotonic() + PATIENCE_S
        while retransmissions() < before + 3 and time.monotonic() < patience:
            time.sleep(0.02)
        self.network.set_partition(False)

    def test_calls_wait_while_a_short_partition_lasts(self):
        self.network.set_partition(True)
        heals = threading.Thread(target=self.heal_once_calls_wait, args=(retransmissions(),))
        heals.start()
        self.addCleanup(heals.join)
        self.expect_calls(100, 2000)

    def test_a_cable_that_is_pulled_fails_calls_in_time_and_none_once_it_is_back(self):
        self.network.plug("down")
        # TCP sends again after 1.4 s and 3 s, and then not before the link counts as lost.
        answer = self.calls(10, 100, limit_s=1)
        self.assertTrue(answer.startswith("ok 0 "), answer)
        self.network.plug("up")
        self.expect_calls(100, 2000)
        self.expect_calls(4, 1 << 20)


class AutoTest(TwoNetworksTest):
    """The same if nobody names a device: TCP is opened because nothing else reaches the server."""
    device = "auto"


class Ipv6Test(TwoNetworksTest):
    device = f"soft:tcp:[::]:{TCP_PORT}"
    address = f"[fd99::2]:{PORT}"


def main():
    if INSIDE in os.environ or obstacle():
        case_report.main()
    environment = dict(os.environ, **{INSIDE: "1"})
    child = subprocess.Popen(inside_command([sys.executable, *sys.argv]), env=environment)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    raise SystemExit(child.wait())


if __name__ == "__main__":
    main()
