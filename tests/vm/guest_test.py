#!/usr/bin/env python3
"""A guest that boots runs its command: status, output and files come back, and failures differ."""

import os
import pathlib
import pwd
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [os.path.abspath("tests/repository")]
import case_report
import tree


def environment():
    # The user's own cache has the kernel; Bazel's HOME for tests has not.
    return dict(os.environ, HOME=pwd.getpwuid(os.getuid()).pw_dir)


def command(words):
    """./dev vm, with the kernel that ./dev test --kernel names."""
    return [str(tree.top() / "tools/vm/vm.py"), "--kernel",
            os.environ.get("VERBENA_GUEST_KERNEL", "bookworm"), *words]


def vm(*words):
    return subprocess.run(command(words), env=environment(),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)


def start_vm(*words):
    return subprocess.Popen(command(words), env=environment(),
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


class OneGuestTest(unittest.TestCase):
    def test_output_errors_and_status_come_back_apart(self):
        result = vm("echo to output; echo to errors >&2; exit 7")
        self.assertEqual((7, "to output\n"), (result.returncode, result.stdout))
        self.assertTrue(result.stderr.endswith("to errors\n"), result.stderr)

    def test_large_output_is_complete(self):
        result = vm("seq 1 200000")
        self.assertEqual("".join(f"{n}\n" for n in range(1, 200001)), result.stdout)

    def test_the_device_is_there_and_its_port_active(self):
        result = vm("ibv_devinfo", "-d", "rxe0")
        self.assertEqual(0, result.returncode, result.stderr)
        self.assertIn("PORT_ACTIVE", result.stdout)

    def test_the_command_is_stopped_when_the_time_is_over(self):
        result = vm("--timeout", "1", "sleep inf")
        self.assertEqual(124, result.returncode)
        self.assertIn("not done after 1 s", result.stderr)

    def test_a_guest_that_dies_is_told_from_a_command_that_fails(self):
        result = vm("echo b >/proc/sysrq-trigger; sleep inf")
        self.assertEqual(125, result.returncode)
        self.assertIn("without an exit status", result.stderr)

    def test_the_host_is_changed_only_in_what_is_writable(self):
        with tempfile.TemporaryDirectory() as directory:
            open_to, closed = pathlib.Path(directory) / "open", pathlib.Path(directory) / "closed"
            open_to.mkdir()
            closed.mkdir()
            result = vm("--writable", str(open_to), f"touch {open_to}/a {closed}/b")
            self.assertEqual(0, result.returncode, result.stderr)
            self.assertEqual(["a"], os.listdir(open_to))
            self.assertEqual([], os.listdir(closed))


class DiskTest(unittest.TestCase):
    def test_a_disk_is_mounted_and_raw_ones_follow(self):
        result = vm("--device", "none", "--disk", "32", "--raw-disk", "8",
                    "stat -f -c %T /disk && blockdev --getsize64 /dev/vda /dev/vdb")
        self.assertEqual(0, result.returncode, result.stderr)
        self.assertEqual(["ext2/ext3", str(32 << 20), str(8 << 20)], result.stdout.split())

    def test_a_power_cut_loses_the_page_cache_and_keeps_what_was_synced(self):
        with tempfile.TemporaryDirectory() as directory:
            disk = ("--device", "none", "--disk-image", f"{directory}/disk")
            before = start_vm(*disk, "echo synced >/disk/a; sync /disk/a /disk; "
                              "echo lost >/disk/b; cat /disk/b; sleep inf")
            self.assertEqual("lost\n", before.stdout.readline())
            # QEMU goes with it, and so does the guest's memory.
            before.kill()
            before.wait()
            before.stdout.close()
            after = vm(*disk, "cat /disk/a; test -s /disk/b || echo nothing")
            self.assertEqual(0, after.returncode, after.stderr)
            self.assertEqual("synced\nnothing\n", after.stdout)


class TwoDevicesTest(unittest.TestCase):
    # With lost packets, about one ping-pong over rxe in forty never ends. This test is about the
    # guest's network, so it tries again.
    PINGPONG = ("for attempt in 1 2 3 4; do "
                "timeout 20 ibv_rc_pingpong -d rxe0 -g 1 -n 50 >/dev/null & server=$!; "
                "until grep -q :4853 /proc/net/tcp /proc/net/tcp6 || ! kill -0 $server; "  # 18515
                "do sleep 0.1; done; "
                "timeout 20 ibv_rc_pingpong -d rxe1 -g 1 -n 50 10.0.0.1 && break; "
                "kill $server; wait $server; done; ")

    def test_packets_cross_and_some_are_lost(self):
        result = vm("--devices", "2", "--loss", "5", "--timeout", "180",
                    self.PINGPONG + "tc -s qdisc show dev eth0")
        self.assertEqual(0, result.returncode, result.stderr)
        self.assertIn("50 iters", result.stdout)
        self.assertRegex(result.stdout, r"dropped [1-9]")


class TwoHostsTest(unittest.TestCase):
    def test_the_peer_runs_its_command_and_is_reached(self):
        result = vm("--hosts", "2", "--peer", "ibv_rc_pingpong -g 1 -n 100 >&2; sleep inf",
                    "until ibv_rc_pingpong -g 1 -n 100 10.0.0.2 2>/dev/null; do :; done")
        self.assertEqual(0, result.returncode, result.stderr)
        self.assertIn("100 iters", result.stdout)
        self.assertIn("GID ::ffff:10.0.0.2", result.stderr)


if __name__ == "__main__":
    case_report.main()
