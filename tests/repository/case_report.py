"""Runs unittest cases and, under Bazel, reports each in the XML form that GoogleTest writes."""

import os
import time
import unittest
from xml.sax.saxutils import quoteattr


class _Result(unittest.TextTestResult):
    def __init__(self, *args):
        super().__init__(*args)
        self.cases = []
        self._start = 0.0

    def startTest(self, test):
        super().startTest(test)
        self._start = time.monotonic()

    def stopTest(self, test):
        super().stopTest(test)
        _, suite, name = test.id().rsplit(".", 2)
        problem = [text for each, text in self.failures + self.errors if each is test]
        skip = [reason for each, reason in self.skipped if each is test]
        inner = ""
        if problem:
            inner = f"<failure message={quoteattr(problem[0])}/>"
        elif skip:
            inner = f"<skipped message={quoteattr(skip[0])}/>"
        self.cases.append(
            f"<testcase classname={quoteattr(suite)} name={quoteattr(name)} status=\"run\" "
            f"time=\"{time.monotonic() - self._start:.3f}\">{inner}</testcase>")


def main():
    program = unittest.main(
        exit=False, testRunner=unittest.TextTestRunner(resultclass=_Result, verbosity=2))
    path = os.environ.get("XML_OUTPUT_FILE")
    if path:
        with open(path, "w", encoding="utf-8") as file:
            file.write("<testsuites><testsuite>" + "".join(program.result.cases) +
                       "</testsuite></testsuites>\n")
    raise SystemExit(not program.result.wasSuccessful())
