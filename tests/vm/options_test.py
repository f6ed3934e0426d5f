#!/usr/bin/env python3
"""./dev vm refuses options that cannot work, and boots what a kernel package holds. Boots none."""

import contextlib
import io
import lzma
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

sys.path[:0] = [os.path.abspath("tests/repository"), os.path.abspath("tools/vm")]
import archive
import case_report
import kernel
import root
import siw
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

    def test_bookworms_kernel_boots_unless_another_is_named(self):
        self.assertEqual("bookworm", vm.arguments(["true"]).kernel)
        self.assertEqual("trixie", vm.arguments(["--kernel", "trixie", "true"]).kernel)

    def test_an_unknown_kernel_is_refused_and_those_that_exist_are_named(self):
        self.assertIn("'sid' (choose from 'bookworm', 'trixie')", self.refusal("--kernel", "sid", "true"))

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

    def test_modules_that_are_compressed_or_built_in_have_their_place_in_the_order(self):
        order = kernel.load_order_of(
            "kernel/a/rdma_rxe.ko.xz: kernel/b/ib_core.ko.xz\nkernel/b/ib_core.ko.xz:\n"
            "kernel/c/dm-mod.ko.xz:\n", ["virtio_pci", "rdma_rxe", "dm_mod"])
        self.assertEqual(["kernel/b/ib_core.ko.xz", "kernel/a/rdma_rxe.ko.xz", "kernel/c/dm-mod.ko.xz"],
                         order)

    def test_a_module_is_given_to_the_guest_as_it_was_before_compression(self):
        with tempfile.TemporaryDirectory() as directory:
            for name, content in (("a.ko.xz", lzma.compress(b"module")), ("b.ko", b"module")):
                path = pathlib.Path(directory) / name
                path.write_bytes(content)
                self.assertEqual(b"module", kernel.plain_module(path), name)

    ELF = b"\x7fELF" + bytes(1000)

    def image(self, payload):
        """A bzImage that holds `payload`: a boot sector, one sector of setup, and 16 bytes of code."""
        head = bytearray(1024)
        head[0x1f1] = 1
        head[0x248:0x250] = struct.pack("<II", 16, len(payload))
        return bytes(head) + bytes(16) + payload + b"more"

    def compressed(self):
        """The ELF as it is in each Debian's image."""
        if not shutil.which("zstd"):
            self.skipTest("there is no zstd")
        zstd = subprocess.run(["zstd", "-c"], input=self.ELF, stdout=subprocess.PIPE, check=True)
        return {"bookworm": lzma.compress(self.ELF), "trixie": zstd.stdout}

    def test_an_image_of_either_debian_is_unpacked(self):
        for name, packed in self.compressed().items():
            image = self.image(packed + struct.pack("<I", len(self.ELF)))
            self.assertEqual(self.ELF, kernel.decompress_image(image), name)

    def test_an_image_of_another_size_than_it_says_is_refused(self):
        for name, packed in self.compressed().items():
            image = self.image(packed + struct.pack("<I", len(self.ELF) + 1))
            with self.assertRaisesRegex(archive.Unavailable, "1004 bytes, not to 1005", msg=name):
                kernel.decompress_image(image)

    def test_an_image_of_another_compression_is_refused(self):
        with self.assertRaisesRegex(archive.Unavailable, "neither with xz nor with zstd"):
            kernel.decompress_image(self.image(b"\x1f\x8bgzip" + bytes(4)))

    def test_an_archive_entry_is_padded_to_four_bytes_twice(self):
        for name in ("a", "ab", "abc", "abcd"):
            entry = kernel.cpio_entry(1, name, b"12345", 0o100644, 0)
            self.assertEqual(0, len(entry) % 4)
            self.assertEqual(b"12345\0\0\0", entry[-8:])
            self.assertEqual(b"070701", entry[:6])
            self.assertEqual(len(name) + 1, int(entry[94:102], 16))


class ArchiveTest(unittest.TestCase):
    """Reads the lists of packages by a fake apt, whose answers are files, and which notes its calls."""

    MACHINE = "Debian\tbookworm\tdeb http://archive.example/debian/ bookworm main"

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = pathlib.Path(directory.name)
        self.cache = self.path / "cache"
        self.calls = self.path / "calls"
        bin_ = self.path / "bin"
        bin_.mkdir()
        for name, body in (("apt-get", f'case " $* " in *indextargets*) cat {self.path}/sources ;; '
                            f'*) echo "$*" >>{self.calls}; cat {self.path}/said; '
                            f'exit $(cat {self.path}/status) ;; esac'),
                           ("apt-cache", 'echo "  Depends: linux-image-6.12-amd64"')):
            (bin_ / name).write_text(f"#!/bin/sh\n{body}\n")
            (bin_ / name).chmod(0o755)
        for name, text in (("sources", self.MACHINE + "\n"), ("said", ""), ("status", "0")):
            (self.path / name).write_text(text)
        for patch in (mock.patch.dict(os.environ, PATH=f"{bin_}:{os.environ['PATH']}"),
                      mock.patch.object(archive, "CACHE", self.cache),
                      contextlib.redirect_stderr(io.StringIO())):
            patch.__enter__()
            self.addCleanup(patch.__exit__, None, None, None)

    def named(self, suite):
        return archive.Archive(suite).dependency("linux-image-amd64", r"linux-image-\S+")

    def called(self):
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def test_this_machines_debian_is_read_from_its_own_lists(self):
        self.assertEqual("linux-image-6.12-amd64", self.named("bookworm"))
        self.assertEqual([], self.called())

    def test_the_lists_of_another_debian_are_fetched_once_from_this_machines_archive(self):
        for _ in range(2):
            self.assertEqual("linux-image-6.12-amd64", self.named("trixie"))
        self.assertEqual(1, len(self.called()))
        self.assertIn(" update ", self.called()[0] + " ")
        self.assertEqual("deb http://archive.example/debian/ trixie main\n",
                         (self.cache / "trixie/apt/sources.list").read_text())

    def test_apt_keeps_its_state_away_from_this_machines(self):
        settings = archive.apt_settings(pathlib.Path("/own"))
        for name in ("Dir::Etc::sourcelist", "Dir::State", "Dir::State::lists", "Dir::Cache"):
            self.assertTrue(any(word.startswith(f"{name}=/own") for word in settings), name)

    def test_without_a_network_the_reason_is_told_and_no_list_is_kept(self):
        (self.path / "said").write_text("E: Could not resolve 'archive.example'\n")
        (self.path / "status").write_text("100")
        with self.assertRaisesRegex(archive.Unavailable, "(?s)lists of trixie:.*not resolve.*reachable"):
            self.named("trixie")
        self.assertEqual([], os.listdir(self.cache / "trixie"))

    def test_a_machine_whose_apt_has_no_debian_is_told_what_to_run(self):
        (self.path / "sources").write_text("")
        with self.assertRaisesRegex(archive.Unavailable, "apt-get update"):
            self.named("trixie")

    def test_a_package_that_the_archive_has_no_more_is_named_with_what_mends_it(self):
        (self.path / "status").write_text("0")
        self.named("trixie")
        (self.path / "status").write_text("100")
        for suite, remedy in (("bookworm", "Run apt-get update"), ("trixie", f"Remove {self.cache}/trixie")):
            with self.assertRaisesRegex(archive.Unavailable, f"(?s)cannot download a=1:.*{remedy}"):
                archive.Archive(suite).download(["a=1"], self.path)

    def make_root(self, mmdebstrap):
        (self.path / "bin/mmdebstrap").write_text(f"#!/bin/sh\n{mmdebstrap}\n")
        (self.path / "bin/mmdebstrap").chmod(0o755)
        self.cache.mkdir(exist_ok=True)
        with mock.patch.object(root.debian_archive, "settings", lambda: ""):
            return root.trixie_root(self.cache)

    def test_a_root_that_cannot_be_made_leaves_nothing_and_is_made_anew(self):
        with self.assertRaisesRegex(archive.Unavailable, "(?s)mmdebstrap fails.*no space"):
            self.make_root("echo no space; exit 1")
        self.assertEqual([], [name for name in os.listdir(self.cache) if not name.endswith(".lock")])
        # The archive is its last word but one.
        files = f"mkdir {self.path}/etc; touch {self.path}/etc/debian_version; cd {self.path}; "
        made = self.make_root(files + 'while [ $# -gt 2 ]; do shift; done; tar -cf "$1" ./etc')
        self.assertEqual(["etc"], os.listdir(made))
        self.assertEqual(made, self.make_root("exit 1"))

    def test_without_mmdebstrap_the_command_that_installs_it_is_named(self):
        with mock.patch.dict(os.environ, PATH="/nonexistent"), mock.patch.object(root, "source", str):
            self.cache.mkdir()
            with (mock.patch.object(root.debian_archive, "settings", lambda: ""),
                  self.assertRaisesRegex(archive.Unavailable, "no mmdebstrap: run ./dev install-deps --vm")):
                root.trixie_root(self.cache)


class SiwTest(unittest.TestCase):
    def test_it_is_built_here_or_where_its_kernels_compiler_is(self):
        def ran(suite):
            with tempfile.TemporaryDirectory() as directory:
                top = pathlib.Path(directory)
                (top / "headers").mkdir()
                (top / "headers/Makefile").write_text("include /usr/src/common/Makefile\n")
                image = types.SimpleNamespace(archive=archive.Archive(suite))
                with (mock.patch.object(siw.subprocess, "run") as run,
                      mock.patch.object(root, "trixie_root", lambda cache: cache / "root")):
                    siw.run_make(image, top, "headers", "siw")
                included = (top / "headers/Makefile").read_text().split()[1]
                return [str(word).replace(directory, "TOP") for word in (*run.call_args.args[0], included)]
        here, inside = ran("bookworm"), ran("trixie")
        self.assertEqual(["make", "-C", "TOP/headers", "M=TOP/siw"], here[:4])
        self.assertEqual("TOP/usr/src/common/Makefile", here[-1])
        self.assertEqual("unshare", inside[0])
        self.assertEqual(["make", "-C", f"{root.SEEN_AS}/headers", f"M={root.SEEN_AS}/siw"],
                         inside[inside.index("make"):][:4])
        self.assertEqual(f"{root.SEEN_AS}/usr/src/common/Makefile", inside[-1])


class MissingTest(unittest.TestCase):
    def test_the_packages_of_missing_programs_are_named(self):
        path, os.environ["PATH"] = os.environ["PATH"], "/nonexistent"
        try:
            self.assertIn("qemu-system-x86", vm.missing_packages())
        finally:
            os.environ["PATH"] = path


if __name__ == "__main__":
    case_report.main()
