"""Other times for a daemon: monotonic clocks that began earlier or run faster, and a date that jumps."""

import glob
import shutil
import signal
import struct
import subprocess
import time
import unittest

from daemon import BUILD, SANITIZED, fresh_directory


class OtherClocks:
    """A namespace where monotonic time began so many seconds earlier, as on a host that has been up for longer."""

    def __init__(self, seconds):
        offsets = f"--monotonic={seconds}", f"--boottime={seconds}"
        self._holder = subprocess.Popen(["unshare", "--time", *offsets, "--fork", "--kill-child", "cat"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._holder.stdin.write(b"here\n")
        self._holder.stdin.flush()
        if self._holder.stdout.readline() != b"here\n":
            error = self.close()
            raise unittest.SkipTest(f"NOT TESTED: no time namespaces here: {error}")

    def wrapper(self):
        """Words in front of a command that is to run there."""
        return "nsenter", f"--time=/proc/{self._holder.pid}/ns/time_for_children"

    def close(self):
        return self._holder.communicate()[1].decode().strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def drifting(ppm):
    """Words in front of a command whose monotonic clocks are fast by so many millionths."""
    if SANITIZED:
        raise unittest.SkipTest("NOT TESTED: a sanitizer wants to be loaded first")
    return "env", f"LD_PRELOAD={BUILD}/test/libdrifting_clock.so", f"DRIFT_PPM={ppm}"


class Suspension:
    """One daemon whose host can be suspended: it does nothing, and its CLOCK_MONOTONIC stands still meanwhile."""

    def __init__(self):
        if SANITIZED:
            raise unittest.SkipTest("NOT TESTED: a sanitizer wants to be loaded first")
        self._directory = fresh_directory()
        self._file = self._directory / "suspended"
        self._seconds = 0
        self._write()

    def _write(self):
        with open(self._file, "r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("q", self._seconds))

    def wrapper(self):
        """Words in front of the command of the daemon."""
        return "env", f"LD_PRELOAD={BUILD}/test/libsuspended_clock.so", f"SUSPENDED={self._file}"

    def begin(self, daemon):
        daemon.signal(signal.SIGSTOP)
        self._began = time.monotonic()

    def end(self, daemon):
        self._seconds += int(time.monotonic() - self._began)
        self._write()
        daemon.signal(signal.SIGCONT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self._directory, ignore_errors=True)


class Date:
    """The date as one daemon sees it; its monotonic clock is not touched."""

    def __init__(self):
        libraries = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
        if not libraries:
            raise unittest.SkipTest("NOT TESTED: no libfaketime here")
        self._library = libraries[0]
        self._directory = fresh_directory()
        self._file = self._directory / "date"
        self.jump("+0")

    def jump(self, to):
        """To the true date and so much, such as "-400d"."""
        self._file.write_text(to)

    def wrapper(self):
        """Words in front of a command."""
        return ("env", f"LD_PRELOAD={self._library}", f"FAKETIME_TIMESTAMP_FILE={self._file}", "FAKETIME_NO_CACHE=1",
                "FAKETIME_DONT_FAKE_MONOTONIC=1", "DONT_FAKE_MONOTONIC=1")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self._directory)
