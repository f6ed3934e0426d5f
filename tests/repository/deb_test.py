#!/usr/bin/env python3
"""The Debian packages are of Verbena's version, and take all that CMake installs and the build needs."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.path[:0] = [os.path.abspath("tests/repository"), os.path.abspath("tools/dev")]
import case_report
import deb
import debian_archive
import lock
import tree

DEBIAN = "tools/packaging/debian"


def listed(group):
    return re.findall(rf"^{group} (\S+)$", tree.text("tools/dev/packages.txt"), re.MULTILINE)


class DebTest(unittest.TestCase):
    def test_their_version_is_the_headers(self):
        self.assertEqual("1.2.3", deb.version("#define VERBENA_VERSION_MAJOR 1\n#define VERBENA_VERSION_MINOR 2\n"
                                              "#define VERBENA_VERSION_PATCH 3\n"))
        self.assertRegex(deb.version(tree.text("rpc/version.h")), r"^\d+\.\d+\.\d+$")

    def test_the_first_library_package_is_named_after_the_soname(self):
        number = re.search(r"^set\(VERBENA_SOVERSION (\d+)\)", tree.text("CMakeLists.txt"), re.MULTILINE)[1]
        self.assertEqual(f"libverbena{number}", deb.PACKAGES[0])
        self.assertIn(f"readonly packages=({' '.join(deb.PACKAGES)})",
                      tree.text("tools/packaging/test/in_chroot.sh"))

    def test_each_package_says_which_files_it_takes(self):
        names = re.findall(r"^Package: (\S+)$", tree.text(f"{DEBIAN}/control"), re.MULTILINE)
        self.assertEqual(list(deb.PACKAGES), names)
        for name in names:
            self.assertNotEqual("", tree.text(f"{DEBIAN}/{name}.install"))
        of_packages = [pathlib.PurePath(name).stem for name in tree.files() if re.match(rf"{DEBIAN}/lib[^/]*$", name)]
        self.assertEqual(set(), set(of_packages) - set(names))

    def test_what_the_build_needs_is_installed_by_the_command(self):
        needs = re.search(r"^Build-Depends:(.*?)^\S", tree.text(f"{DEBIAN}/control"), re.MULTILINE | re.DOTALL)[1]
        names = {need.split()[0] for need in needs.split(",")} - {"debhelper-compat"}
        self.assertEqual(set(), names - {*listed("build"), *listed("deb")})

    def test_dpkg_can_read_the_changelog(self):
        text = deb.changelog("1.2.3", "abc", "Sun, 29 Nov 2026 03:38:26 +0000", "A Name <a@name.invalid>")
        try:
            done = subprocess.run(["dpkg-parsechangelog", "-l-"], input=text, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, check=False)
        except FileNotFoundError:
            self.skipTest("dpkg-parsechangelog is not installed")
        self.assertEqual(0, done.returncode, done.stdout)
        for line in ("Version: 1.2.3", "Maintainer: A Name <a@name.invalid>", "Timestamp: 1795923506"):
            self.assertIn(line, done.stdout)


class BuildTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.output = pathlib.Path(directory.name)

    def build(self):
        """Of a tree without sources, by programs that do nothing but leave a package."""
        def run(command, *_, **more):
            if command[0] == "dpkg-buildpackage":
                (more["cwd"].parent / "libverbena1_1.2.3_amd64.deb").write_text("new")
        def write_sources(folder):
            folder.mkdir(parents=True)
        with mock.patch.multiple(deb, run=run, write_sources=write_sources):
            deb.build(self.output)

    def test_only_verbenas_own_packages_are_replaced(self):
        kept = ("libverbena1-extra_1_amd64.deb", "other_1_amd64.deb", "work/notes")
        (self.output / "work").mkdir()
        for name in (*kept, "libverbena1_1.2.2_amd64.deb", "libverbena-soft-dbgsym_1.2.2_amd64.deb"):
            (self.output / name).write_text("old")
        self.build()
        self.assertEqual({"libverbena1_1.2.3_amd64.deb", f"{deb.WORK}.lock", *kept},
                         {str(path.relative_to(self.output)) for path in self.output.rglob("*") if path.is_file()})

    def test_a_second_build_in_the_same_folder_is_refused(self):
        with lock.locked(self.output / deb.WORK), self.assertRaisesRegex(SystemExit, "another run works in"):
            self.build()


class SettingsTest(unittest.TestCase):
    def test_only_what_says_how_archives_are_reached_is_handed_on(self):
        for line in ('Acquire::http::Proxy "x";', 'Acquire::https::CaInfo "x";', 'Acquire::http "";',
                     'Acquire::Check-Valid-Until "false";', 'Acquire::Retries "3";'):
            self.assertTrue(debian_archive.REACHES.match(line), line)
        for line in ('Acquire::Languages "none";', 'Dir::Cache "x";', 'DPkg::Post-Invoke:: "x";'):
            self.assertFalse(debian_archive.REACHES.match(line), line)


if __name__ == "__main__":
    case_report.main()
