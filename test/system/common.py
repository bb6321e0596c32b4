"""What every system test begins with."""

import concurrent.futures
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))

import daemon as _support    # noqa: E402  found on the path that was added above

SANITIZED_AT_ONCE = 8


class SystemTest(unittest.TestCase):
    """Real processes on real sockets."""

    maxDiff = 2000

    @classmethod
    def setUpClass(cls):
        if not _support.DTHROTTLED.exists():
            raise AssertionError(f"{_support.DTHROTTLED} is not there: build it, or set DTHROTTLE_BUILD")


class ParallelTest(SystemTest):
    """Its tests run all at once, each in a thread: they mostly wait. So they share nothing, and clean up by `with`.
    Daemons with a sanitizer compute for seconds before they wait, so that fewer begin at a time."""

    def __init_subclass__(cls, **keys):
        super().__init_subclass__(**keys)
        cls._bodies = {name: body for name, body in vars(cls).items() if name.startswith("test_")}
        for name in cls._bodies:
            setattr(cls, name, cls._outcome_of(name, cls._bodies[name].__doc__))

    @staticmethod
    def _outcome_of(name, doc):
        def outcome(self):
            self._running[name].result()
        outcome.__doc__ = doc
        return outcome

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        at_once = SANITIZED_AT_ONCE if _support.SANITIZED else max(1, len(cls._bodies))
        pool = concurrent.futures.ThreadPoolExecutor(max_workers=at_once)
        cls.addClassCleanup(pool.shutdown)
        cls._running = {name: pool.submit(body, cls(name)) for name, body in cls._bodies.items()}


def report(text):
    """A measurement, for whoever reads the output of the tests."""
    print(f"\n    {text}", file=sys.stderr, flush=True)
