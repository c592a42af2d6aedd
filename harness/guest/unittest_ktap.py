"""Runs modules of rdma-core's own tests, and prints what a kernel selftest does.

usage: unittest_ktap.py MODULE... [OPTION OF THE TESTS...], e.g. test_odp --dev rxe0

The tests are in PYTHONPATH: as package `tests`, and its directory for the parser
of their options. Each test is named by its module, class and method: the report must
not change with the words in somebody's doc string. The plan comes first, so that a
crash in the middle is seen. One Python runs all modules: `tests` imports every test
there is, which takes longer in an emulated machine than most modules do.

Some tests draw lots, and skip by them: the seed is the same each time.
"""

import random
import sys
import unittest

from tap import tracker
from tap.runner import TAPTestResult, TAPTestRunner

from args_parser import parser


class Tracker(tracker.Tracker):
    """Puts what a test has to tell before its result, where a kernel's tests do."""

    def add_not_ok(self, class_name, description, directive="", diagnostics=None):
        print(diagnostics or "", end="", file=self.stream)
        super().add_not_ok(class_name, description, directive)


class Result(TAPTestResult):
    """Names tests."""

    def _description(self, test):
        return ".".join(test.id().split(".")[-3:])


class Runner(TAPTestRunner):
    """Reports to the standard output while tests run."""

    resultclass = Result

    def run(self, test):
        print("TAP version 13")
        self.set_stream(False)
        self.tracker = Tracker(streaming=True, stream=sys.stdout, header=False,
                               plan=test.countTestCases())
        return super().run(test)

    def _makeResult(self):
        result = super()._makeResult()
        result.tracker = self.tracker
        return result


def main():
    """Runs the modules that the arguments name."""
    sys.stdout.reconfigure(line_buffering=True)
    # Takes its options out of sys.argv.
    parser.parse_args()
    modules = [f"tests.{module}" for module in sys.argv[1:]]
    random.seed(1)
    unittest.main(module=None, argv=[sys.argv[0], *modules], testRunner=Runner())


main()
