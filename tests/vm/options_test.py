#!/usr/bin/env python3
"""./dev vm refuses options that cannot work, and boots what a kernel package holds. Boots none."""

import contextlib
import io
import os
import sys
import unittest

sys.path[:0] = [os.path.abspath("tests/repository"), os.path.abspath("tools/vm")]
import case_report
import kernel
import vm


class OptionsTest(unittest.TestCase):
    def refusal(self, *words):
        """The last line of what a wrong command line is told; it must exit with 2."""
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), self.assertRaises(SystemExit) as end:
            vm.arguments(words)
        self.assertEqual(2, end.exception.code)
        return errors.getvalue().splitlines()[-1]

    def test_one_rxe_device_in_one_guest_unless_told_otherwise(self):
        options = vm.arguments(["--", "ibv_devinfo", "-v"])
        self.assertEqual(("rxe", 1, 1), (options.device, options.devices, options.hosts))
        self.assertEqual("ibv_devinfo -v", vm.shell_command(options.command))

    def test_the_options_of_the_command_are_left_to_it(self):
        options = vm.arguments(["--timeout", "5", "--", "sleep", "--timeout", "7"])
        self.assertEqual(5, options.timeout)
        self.assertEqual(["sleep", "--timeout", "7"], options.command)

    def test_one_word_is_a_shell_command_and_several_keep_their_spaces(self):
        self.assertEqual("a && b", vm.shell_command(["a && b"]))
        self.assertEqual("echo 'a && b'", vm.shell_command(["echo", "a && b"]))

    def test_no_command_is_refused(self):
        self.assertIn("COMMAND", self.refusal("--device", "rxe"))

    def test_loss_on_one_device_is_refused_since_no_packet_leaves_it(self):
        self.assertIn("--devices 2", self.refusal("--loss", "1", "true"))
        self.assertIn("--devices 2", self.refusal("--delay", "1", "true"))
        self.assertEqual(1.5, vm.arguments(["--devices", "2", "--loss", "1.5", "true"]).loss)

    def test_loss_beyond_all_packets_is_refused(self):
        self.assertIn("101 is not in [0, 100]", self.refusal("--devices", "2", "--loss", "101", "x"))

    def test_a_command_for_a_peer_that_is_not_there_is_refused(self):
        self.assertIn("--hosts 2", self.refusal("--peer", "true", "true"))

    def test_two_devices_on_two_hosts_are_refused(self):
        self.assertIn("exclude", self.refusal("--devices", "2", "--hosts", "2", "true"))

    def test_a_writable_directory_must_exist(self):
        self.assertIn("no directory", self.refusal("--writable", "/no/such/directory", "true"))

    def test_a_disk_has_a_size_unless_it_is_told_one(self):
        self.assertIsNone(vm.arguments(["true"]).disk)
        self.assertEqual((64, ["true"]), (lambda o: (o.disk, o.command))(
            vm.arguments(["--disk", "--", "true"])))
        options = vm.arguments(["--disk", "128", "--raw-disk", "8", "--raw-disk", "9", "true"])
        self.assertEqual((128, [8, 9]), (options.disk, options.raw_disk))

    def test_disks_on_two_hosts_are_refused(self):
        for words in (["--disk", "8"], ["--raw-disk", "8"], ["--disk-image", "x"]):
            self.assertIn("--hosts 2", self.refusal("--hosts", "2", *words, "true"))

    def test_only_what_concerns_the_command_is_passed_on(self):
        passed = vm.environment(["MINE"], {"MINE": "1", "VERBENA_DEVICE": "x", "GTEST_FILTER": "y",
                                           "SECRET": "z", "PATH": "p"})
        self.assertEqual({"MINE": "1", "VERBENA_DEVICE": "x", "GTEST_FILTER": "y", "PATH": "p:/usr/sbin"},
                         passed)


class KernelTest(unittest.TestCase):
    def test_a_module_is_loaded_after_what_it_needs_and_once(self):
        # modules.dep lists what a module needs with the deepest last.
        order = kernel.load_order_of(
            "kernel/a/rdma_rxe.ko: kernel/b/ib_uverbs.ko kernel/b/ib_core.ko\n"
            "kernel/b/ib_uverbs.ko: kernel/b/ib_core.ko\nkernel/b/ib_core.ko:\nkernel/c/other.ko:\n",
            ["rdma_rxe", "built_in"])
        self.assertEqual(["kernel/b/ib_core.ko", "kernel/b/ib_uverbs.ko", "kernel/a/rdma_rxe.ko"],
                         order)

    def test_an_archive_entry_is_padded_to_four_bytes_twice(self):
        for name in ("a", "ab", "abc", "abcd"):
            entry = kernel.cpio_entry(1, name, b"12345", 0o100644, 0)
            self.assertEqual(0, len(entry) % 4)
            self.assertEqual(b"12345\0\0\0", entry[-8:])
            self.assertEqual(b"070701", entry[:6])
            self.assertEqual(len(name) + 1, int(entry[94:102], 16))


class MissingTest(unittest.TestCase):
    def test_the_packages_of_missing_programs_are_named(self):
        path, os.environ["PATH"] = os.environ["PATH"], "/nonexistent"
        try:
            self.assertIn("qemu-system-x86", vm.missing_packages())
        finally:
            os.environ["PATH"] = path


if __name__ == "__main__":
    case_report.main()
