"""scripts/demo tells a story, and it comes true."""

import contextlib
import pathlib
import re
import signal
import subprocess
import tempfile
import time

from common import ParallelTest, report
from daemon import BUILD, FIGURES, ROOT, clean_environment


class Demo(ParallelTest):
    def demo(self):
        begin = time.monotonic()
        done = subprocess.run([ROOT / "scripts/demo"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=300, env=clean_environment(DTHROTTLE_BUILD=str(BUILD)))
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return done.stdout, time.monotonic() - begin

    @staticmethod
    def levels(text):
        """(seconds, levels of all three) of each line that tells them."""
        found = re.findall(r"([\d.]+) s +tokens left: +a +([-\d.]+) +b +([-\d.]+) +c +([-\d.]+)", text)
        return [(float(at), [float(level) for level in told]) for at, *told in found]

    def test_the_story_comes_true(self):
        text, took = self.demo()
        report(f"scripts/demo took {took:.1f} s")
        if FIGURES:
            self.assertLess(took, 30)
        self.assertLessEqual(max(map(len, text.splitlines())), 120)
        answers = re.findall(r"C asks (\w): ((?: (?:OK|NO))+)", text)
        self.assertEqual([(host, said.split()) for host, said in answers],
                         [(host, ["OK"] * 6) for host in "abc"] + [(host, ["NO"]) for host in "abc"] + [("b", ["OK"])])
        before, crossed, after = text.partition("They have crossed.")
        self.assertTrue(crossed)
        debt, again, end = after.partition("There is a token again")
        self.assertTrue(again)
        asked = max(float(at) for at in re.findall(r"([\d.]+) s  C asks \w: (?: OK){6}", text))    # since the first of them
        self.assertGreater(len(self.levels(debt)), 1)
        for at, told in self.levels(debt):
            for level in told:
                self.assertGreater(level, 10 - 18 + at - asked - 0.5)
                self.assertLess(level, 10 - 18 + at + 0.5)
        last = self.levels(end)[-1][1]
        self.assertLess(max(last) - min(last), 0.5, "the hosts end up with different levels")

    def test_a_second_one_at_the_same_time(self):
        self.demo()


class Interrupted(ParallelTest):
    def test_one_that_is_interrupted_leaves_no_daemon_and_no_file(self):
        with tempfile.TemporaryDirectory(prefix="dt-") as temporary:
            self.interrupt(pathlib.Path(temporary))

    def interrupt(self, temporary):
        process = subprocess.Popen([ROOT / "scripts/demo"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT,
                                   env=clean_environment(DTHROTTLE_BUILD=str(BUILD), TMPDIR=str(temporary)))
        with process:
            while b"C asks a" not in (line := process.stdout.readline()):
                self.assertTrue(line, "it ended by itself")
            settings = [str(path) for path in temporary.glob("*/*/toml")]
            self.assertEqual(len(settings), 3)
            process.terminate()
            process.stdout.read()
        self.assertEqual(process.returncode, -signal.SIGTERM)
        self.assertEqual(list(temporary.iterdir()), [])
        self.assertEqual([path for path in settings if self.runs_with(path)], [])

    @staticmethod
    def runs_with(argument):
        """Whether some process has that among its arguments."""
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if argument.encode() in path.read_bytes():
                    return True
        return False
