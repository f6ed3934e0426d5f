#!/usr/bin/env python3
"""The Debian packages are of Verbena's version, and take all that CMake installs and the build needs."""

import os
import re
import subprocess
import sys
import unittest

sys.path[:0] = [os.path.abspath("tests/repository"), os.path.abspath("tools/dev")]
import case_report
import deb
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


class SettingsTest(unittest.TestCase):
    def test_only_what_says_how_archives_are_reached_is_handed_on(self):
        for line in ('Acquire::http::Proxy "x";', 'Acquire::https::CaInfo "x";', 'Acquire::http "";',
                     'Acquire::Check-Valid-Until "false";', 'Acquire::Retries "3";'):
            self.assertTrue(deb.REACHES.match(line), line)
        for line in ('Acquire::Languages "none";', 'Dir::Cache "x";', 'DPkg::Post-Invoke:: "x";'):
            self.assertFalse(deb.REACHES.match(line), line)


if __name__ == "__main__":
    case_report.main()
