"""What every system test begins with."""

import concurrent.futures
import pathlib
import subprocess
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


class Unsanitized:
    """Mixed into tests that load the library into a program without a sanitizer."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if _support.SANITIZED:
            raise unittest.SkipTest("the library is built with a sanitizer")


class LineProcess:
    """A process that answers lines, for a `with` block. It leaves by itself behind the last one."""

    def __init__(self, command, **options):
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)

    def _told(self, line):
        """What it answers to the line, both as the pipes have them."""
        self._process.stdin.write(line)
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def __enter__(self):
        return self

    def __exit__(self, _type, error, _traceback):
        self._process.stdin.close()
        self._process.stdout.close()
        left_with = self._process.wait(_support.PATIENCE)
        if error is None and left_with != 0:
            raise AssertionError(f"{type(self).__name__} left with {left_with}")


def report(text):
    """A measurement, for people who read the output of the tests."""
    print(f"\n    {text}", file=sys.stderr, flush=True)
