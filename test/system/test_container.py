"""A container or chroot that hides what the daemon reads elsewhere: /proc, and the boot that it runs in."""

import os
import unittest

from common import SystemTest
from daemon import DTHROTTLECTL, SANITIZED, Daemon, rule, run
from test_shed import MIB, real_group
from test_upgrade import upgrade

EX_OSERR = 71


def without(directory):
    """Words in front of a command that is to find nothing in that directory."""
    return ("unshare", "--mount", "--propagation=private", "sh", "-c",
            f'mount -t tmpfs none {directory} && exec "$@"', "sh")


@unittest.skipUnless(os.geteuid() == 0, "NOT TESTED: only root hides /proc")
class WithoutProc(SystemTest):
    @unittest.skipIf(SANITIZED, "a sanitizer reads /proc itself")
    def test_an_upgrade_takes_over_connections_and_leaves_nothing_else_open(self):
        with Daemon(rule(burst=3), wrapper=without("/proc")) as daemon, daemon.connect() as old:
            old.sendall(b"C\nC\nh")
            self.assertEqual(old.recv(6, 0x100), b"OK\nOK\n")
            upgrade(daemon)
            old.sendall(b"alf\n")
            self.assertEqual(old.recv(3), b"OK\n")
            self.assertNotIn("what the program before has left", daemon.log)
            self.assertEqual(daemon.ask(["C", "C"]), ["OK", "NO"])
            left = [os.readlink(f"/proc/{daemon.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{daemon.pid}/fd")]
            self.assertFalse([file for file in left if "dthrottle-handover" in file])

    def test_buckets_are_kept_over_kills_stops_and_upgrades_also_where_nobody_tells_boots_apart(self):
        for hidden in ("/proc/sys",) if SANITIZED else ("/proc", "/proc/sys"):    # a sanitizer reads /proc itself
            with self.subTest(hidden=hidden), Daemon(rule(burst=4), wrapper=without(hidden)) as daemon:
                self.assertEqual(daemon.ask(["C"]), ["OK"])
                daemon.kill()
                daemon.start()
                self.assertEqual(daemon.ask(["C"]), ["OK"])
                daemon.stop()
                daemon.start()
                self.assertEqual(daemon.ask(["C"]), ["OK"])
                upgrade(daemon)
                self.assertEqual(daemon.ask(["C", "C"]), ["OK", "NO"])
                self.assertEqual(daemon.log.count("cannot read /proc/sys/kernel/random/boot_id"), 2)
                self.assertNotIn("the host has booted since", daemon.log)


class LimitOfMemory(SystemTest):
    NO_ROOM = "cannot claim its space: the memory limit of a control group leaves "

    def test_a_table_beyond_the_limit_of_the_group_is_refused_at_the_start_and_at_an_upgrade(self):
        group = real_group(self, 100 * MIB)
        inside = "sh", "-c", f'echo $$ >{group}/cgroup.procs && exec "$@"', "sh"
        with Daemon(rule(burst=3), wrapper=inside) as daemon:
            self.assertEqual(daemon.ask(["C"]), ["OK"])
            small = daemon.settings_path.read_text()
            daemon.settings_path.write_text(small.replace("4MiB", "200MiB"))
            refused = run(DTHROTTLECTL, "--socket", daemon.admin_path, "upgrade")
            self.assertNotEqual(refused.returncode, 0)
            daemon.wait_log(self.NO_ROOM)
            self.assertEqual(daemon.ask(["C"]), ["OK"])
            daemon.stop()
            with self.assertRaises(AssertionError):
                daemon.start()
            self.assertIn(self.NO_ROOM, daemon.log)
            daemon.wait_exit(EX_OSERR)
            daemon.settings_path.write_text(small.replace("4MiB", "16MiB"))
            daemon.start()


if __name__ == "__main__":
    unittest.main()
