"""What every system test begins with."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))

import daemon as _support    # noqa: E402  found on the path that was added above


class SystemTest(unittest.TestCase):
    """Real processes on real sockets."""

    maxDiff = 2000

    @classmethod
    def setUpClass(cls):
        if not _support.DTHROTTLED.exists():
            raise AssertionError(f"{_support.DTHROTTLED} is not there: build it, or set DTHROTTLE_BUILD")


def report(text):
    """A measurement, for whoever reads the output of the tests."""
    print(f"\n    {text}", file=sys.stderr, flush=True)
