#!/usr/bin/env python3
"""Runs one module of pyverbs' tests, and writes a JSON line at the start and at the end of each case.

usage: soft_pyverbs_cases.py TESTS MODULE LINES DONE

TESTS is the directory of the tests; cases whose names are lines of the file DONE are left out. Run it with the soft
device preloaded (./dev soft).
"""

import json
import pathlib
import sys
import unittest

import soft_pyverbs

ADDRESS = "127.0.0.1"


def cases_of(suite):
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from cases_of(each)
        else:
            yield each


class LineResult(unittest.TestResult):
    """Writes each outcome at once: the next case may end the process."""

    def __init__(self, lines):
        super().__init__()
        self._lines = lines
        self._told = False

    def write(self, name, outcome, reason=""):
        self._lines.write(json.dumps({"name": name, "outcome": outcome, "reason": reason}) + "\n")
        self._lines.flush()

    def startTest(self, test):
        super().startTest(test)
        self._told = False
        self.write(test.id(), "started")

    def stopTest(self, test):
        super().stopTest(test)
        if not self._told:
            self.write(test.id(), "passed")

    def _tell(self, test, outcome, reason):
        if not self._told:
            self._told = True
            self.write(test.id(), outcome, str(reason).strip().splitlines()[-1][:300] if str(reason).strip() else "")

    def addError(self, test, err):
        self._tell(test, "failed", f"{err[0].__name__}: {err[1]}")

    def addFailure(self, test, err):
        self._tell(test, "failed", f"{err[0].__name__}: {err[1]}")

    def addSkip(self, test, reason):
        self._tell(test, "skipped", reason)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self._tell(test, "failed", f"{err[0].__name__}: {err[1]}")


def main():
    tests, module, lines, done = sys.argv[1:]
    directory = pathlib.Path(tests)
    sys.path[:0] = [str(directory), str(directory.parent)]
    sys.argv[1:] = ["--dev", "soft0", "--port", "1", "--gid", "0"]
    # A module of the tests, which exists only there.
    from args_parser import parser  # pylint: disable=import-outside-toplevel,import-error
    parser.parse_args()
    # The tests look for a device's network interface in sysfs, where the soft device is not.
    from tests import base  # pylint: disable=import-outside-toplevel,import-error
    base.RDMATestCase._get_ip_mac = lambda case, device, port, gid: case.args.append(
        [device, port, gid, ADDRESS, None])
    left_out = set(pathlib.Path(done).read_text(encoding="utf-8").splitlines())
    suite = unittest.defaultTestLoader.loadTestsFromName(f"tests.{module}")
    with open(lines, "w", encoding="utf-8") as output:
        result = LineResult(output)
        for case in cases_of(suite):
            if case.id() in left_out:
                continue
            if not soft_pyverbs.applies(case.id()):
                result.write(case.id(), "not applicable")
            else:
                case(result)


if __name__ == "__main__":
    main()
