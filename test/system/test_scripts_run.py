"""scripts/run starts one daemon, starts it anew when it is run again, and stops it."""

import contextlib
import ctypes
import os
import pathlib
import shutil
import signal
import subprocess
import time

from common import SystemTest
from daemon import BUILD, ROOT, clean_environment, fresh_directory, rule, settings_text, wait_until

# In place of what the script sources: a build that links the program anew, under the same name.
PACKAGES = f"""\
daemon_packages=() run_packages=()
install_missing() {{ :; }}
build() {{ cp {BUILD}/dthrottled build/new && mv build/new build/dthrottled; }}
"""


PR_SET_CHILD_SUBREAPER = 36


class Run(SystemTest):
    def setUp(self):
        self.tree = fresh_directory()
        self.addCleanup(shutil.rmtree, self.tree)
        for folder in ("scripts", "conf", "build"):
            self.tree.joinpath(folder).mkdir()
        shutil.copy(ROOT / "scripts/run", self.tree / "scripts/run")
        self.tree.joinpath("scripts/packages.sh").write_text(PACKAGES)
        self.tree.joinpath("conf/minimal.toml").write_text(settings_text(self.tree, rule(burst=1)))
        self.tree.joinpath("build/dthrottlectl").symlink_to(BUILD / "dthrottlectl")
        self.addCleanup(self.end_daemons)

    def run_script(self, *words):
        done = subprocess.run([self.tree / "scripts/run", *words], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=120,
                              env=clean_environment(DTHROTTLECTL_SOCKET=f"{self.tree}/admin.sock"))
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)

    def daemons(self):
        """The processes that run the program of this tree, whether it has been replaced since or not."""
        found = set()
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(process / "exe").startswith(f"{self.tree}/build/dthrottled"):
                    found.add(int(process.name))
        return found

    def end_daemons(self):
        for pid in self.daemons():
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.daemons(), "no daemon is left")

    def test_run_again_it_starts_what_was_built_meanwhile_and_stop_ends_it(self):
        self.run_script()
        first = self.daemons()
        self.assertEqual(len(first), 1)
        self.run_script()
        second = self.daemons()
        self.assertEqual((len(second), first & second), (1, set()))
        shutil.copy(BUILD / "dthrottled", self.tree / "build/new")
        self.tree.joinpath("build/new").rename(self.tree / "build/dthrottled")    # built by hand
        self.run_script("stop")
        self.assertEqual(self.daemons(), set())
        self.run_script("stop")

    def test_stop_waits_for_no_daemon_that_has_left_and_that_nobody_reaps(self):
        # As in a container whose first process does not: this process takes over what the script leaves.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.addCleanup(ctypes.CDLL(None).prctl, PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        self.run_script()
        (daemon,) = self.daemons()
        self.addCleanup(os.waitpid, daemon, os.WNOHANG)
        begin = time.monotonic()
        self.run_script("stop")
        self.assertLess(time.monotonic() - begin, 8)
        self.assertEqual(self.daemons(), set())
