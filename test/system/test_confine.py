"""What the daemon gives up at its start: root, and system calls that it has no use for."""

import os
import pathlib
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import unittest

from common import SystemTest
from daemon import DTHROTTLED, ROOT, SANITIZED, Daemon, clean_environment, fresh_directory, rule, run, settings_text, wait_until
from fleet import free_port_pair, make_keys

EX_CONFIG, EX_NOPERM = 78, 77
NOBODY = "nobody"

# In front of a command: a /run that nobody else sees.
OWN_RUN = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /run && exec "$@"', "sh")


def upgrade(daemon):
    """Waits until another program, which may be the same, goes on in place of this one."""
    before = daemon.log.count(" ready: ")
    daemon.signal(signal.SIGUSR2)
    wait_until(lambda: daemon.log.count(" ready: ") > before, "the other program is there")


def status_of(daemon):
    lines = pathlib.Path(f"/proc/{daemon.pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


class Handed(Daemon):
    """A daemon that is to become nobody, in a directory that is nobody's."""

    def __init__(self, *limits, **sections):
        sections.setdefault("process", {}).setdefault("user", NOBODY)
        super().__init__(*limits, **sections)
        shutil.chown(self.directory, NOBODY)
        os.chmod(self.directory, 0o755)


def free_low_port():
    for port in range(1023, 512, -1):
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise unittest.SkipTest("every port below 1024 is taken")


@unittest.skipUnless(os.geteuid() == 0, "only root can become another user")
class BecomesUser(SystemTest):
    def assert_is_nobody(self, daemon):
        nobody = pwd.getpwnam(NOBODY)
        status = status_of(daemon)
        self.assertEqual(status["Uid"].split(), [str(nobody.pw_uid)] * 4)
        self.assertEqual(status["Gid"].split(), [str(nobody.pw_gid)] * 4)
        self.assertEqual(status["CapPrm"], "0" * 16)
        self.assertEqual(status["NoNewPrivs"], "1")
        self.assertNotIn("0", status["Groups"].split())

    def test_a_start_as_root_opens_a_low_port_and_becomes_the_user_for_good(self):
        port = free_low_port()
        with Handed(rule(burst=5), query={"tcp": f"127.0.0.1:{port}"}) as daemon:
            self.assert_is_nobody(daemon)
            self.assertEqual(daemon.tcp_port, port)
            for name in ("query.sock", "admin.sock", "table"):
                self.assertEqual((daemon.directory / name).owner(), NOBODY, name)
            self.assertEqual(daemon.ask("aa"), ["OK", "OK"])

            daemon.write_settings(rule(burst=4))
            daemon.hang_up()
            self.assertEqual(daemon.stats()["reload_failures"], 0)

            upgrade(daemon)
            self.assert_is_nobody(daemon)
            self.assertEqual(daemon.tcp_port, port)
            self.assertEqual(daemon.ask("aaa"), ["OK", "OK", "NO"])

            daemon.restart()
            self.assert_is_nobody(daemon)
            self.assertEqual(daemon.ask("ab"), ["NO", "OK"])

    def test_the_runtime_directory_is_given_to_the_user_if_something_is_to_be_in_it(self):
        here = pathlib.Path("/run/dthrottle")
        before = here.owner() if here.exists() else None
        for file, owner in ((None, NOBODY), ("", "root")):    # None: the default, /run/dthrottle/table
            with self.subTest(file=file), Handed(rule(), table={"file": file}, wrapper=OWN_RUN) as daemon:
                run_directory = pathlib.Path(f"/proc/{daemon.pid}/root{here}")
                self.assertEqual(run_directory.owner(), owner)
                self.assertEqual((run_directory / "table").exists(), owner == NOBODY)
        self.assertEqual(here.owner() if here.exists() else None, before)

    def test_the_runtime_directory_is_open_to_those_who_ask_under_any_umask(self):
        wrapper = (*OWN_RUN, "sh", "-c", 'umask 077 && exec "$@"', "sh")
        with Handed(rule(), query={"unix_mode": "0666"}, table={"file": None}, wrapper=wrapper) as daemon:
            made = pathlib.Path(f"/proc/{daemon.pid}/root/run/dthrottle").stat()
            self.assertEqual(stat.S_IMODE(made.st_mode), 0o755)

    def test_keys_are_read_as_the_user(self):
        port = free_port_pair()
        daemon = Handed(rule(), peers={"name": "own", "bind": f"tcp://127.0.0.1:{port}", "period": "1s"})
        make_keys(daemon.directory, "own")
        make_keys(daemon.directory, "peer")
        daemon._sections["peers"].update(connect=[f"tcp://127.0.0.1:{port + 2}#peer"],
                                         key_file=f"{daemon.directory}/own.key", authorized_keys=str(daemon.directory))
        daemon.write_settings(rule())
        refused = subprocess.run([DTHROTTLED, "--config", daemon.settings_path], capture_output=True,
                                 env=clean_environment())
        self.assertNotEqual(refused.returncode, 0)
        self.assertRegex(refused.stderr.decode(), r"own\.key: .*Permission denied.* \(as nobody, process\.user\)")
        shutil.chown(daemon.directory / "own.key", NOBODY)
        with daemon:
            self.assert_is_nobody(daemon)
            upgrade(daemon)

    def test_settings_that_the_user_cannot_read_are_an_error_at_the_start(self):
        daemon = Handed(rule())
        self.addCleanup(shutil.rmtree, daemon.directory)
        os.chmod(daemon.settings_path, 0o600)
        done = run(DTHROTTLED, "--config", daemon.settings_path)
        self.assertEqual(done.returncode, EX_NOPERM, done.stderr)
        self.assertIn(f"{daemon.settings_path}: cannot be read again at a reload", done.stderr)
        self.assertIn("(as nobody, process.user)", done.stderr)

    def test_a_list_of_networks_that_the_user_cannot_read_is_an_error_at_the_start(self):
        daemon = Handed(rule())
        self.addCleanup(shutil.rmtree, daemon.directory, ignore_errors=True)
        networks = daemon.directory / "networks"
        networks.write_text("192.0.2.0/24\n")
        os.chmod(networks, 0o600)
        listed = rule(match_cidrs=str(networks))
        daemon.write_settings(listed)
        done = run(DTHROTTLED, "--config", daemon.settings_path)
        self.assertEqual(done.returncode, EX_NOPERM, done.stderr)
        self.assertIn(f"{networks}: cannot be read again at a reload: Permission denied", done.stderr)
        shutil.chown(networks, NOBODY)
        with daemon:
            daemon.hang_up()
            self.assertEqual(daemon.stats()["reload_failures"], 0)

    def test_an_upgrade_keeps_the_user_that_there_is(self):
        with Daemon(rule()) as daemon:
            daemon._sections["process"] = {"user": NOBODY}
            daemon.write_settings(rule())
            upgrade(daemon)
            self.assertEqual(status_of(daemon)["Uid"].split(), ["0"] * 4)
            daemon.wait_log('process.user = "nobody": takes a restart')

    def test_another_user_can_become_nobody_else(self):
        directory = fresh_directory()
        self.addCleanup(shutil.rmtree, directory)
        os.chmod(directory, 0o755)
        file = directory / "dthrottled.toml"
        file.write_text(settings_text(directory, rule(), process={"user": NOBODY}))
        done = run(DTHROTTLED, "--config", file, user="daemon")
        self.assertEqual(done.returncode, EX_CONFIG, done.stderr)
        self.assertRegex(done.stderr, r'dthrottled\.toml:\d+:8: error: process\.user = "nobody": needs a start as root')


class User(SystemTest):
    def test_a_namespace_without_the_users_of_the_host_is_warned_of(self):
        warning = "in a user namespace, where users of the host outside it count as one user"
        alone = ("unshare", "--user", "--map-root-user", "--")
        if run(*alone, "true").returncode != 0:
            self.skipTest("no user namespaces here")
        for wrapper in ((), alone):
            with self.subTest(wrapper), Daemon(rule(), wrapper=wrapper) as daemon:
                self.assertEqual(warning in daemon.log, bool(wrapper))
        unit = (ROOT / "conf/dthrottled.service").read_text()
        self.assertIn("\nPrivateUsers=no\n", unit)

    def test_a_user_that_is_not_there_is_an_error_with_its_place(self):
        directory = fresh_directory()
        self.addCleanup(shutil.rmtree, directory)
        file = directory / "dthrottled.toml"
        file.write_text(settings_text(directory, rule(), process={"user": "nobdy"}))
        for command in (["--config", file], ["--check", file]):
            done = run(DTHROTTLED, *command)
            self.assertEqual(done.returncode, EX_CONFIG)
            self.assertRegex(done.stdout + done.stderr,
                             r'dthrottled\.toml:\d+:8: error: process\.user = "nobdy": there is no such user')


@unittest.skipIf(SANITIZED, "sanitizers make calls of their own")
class FiltersCalls(SystemTest):
    FILTERED, UNFILTERED = "2", "0"

    def test_the_filter_is_on_unless_the_settings_say_otherwise(self):
        own = pathlib.Path("/proc/self/status").read_text()
        if not re.search(r"^Seccomp:\t0$", own, re.M):
            self.skipTest("the tests run in a filter themselves")
        for value, mode in ((None, self.FILTERED), ("on", self.FILTERED), ("log", self.FILTERED),
                            ("off", self.UNFILTERED)):
            with self.subTest(seccomp=value), Daemon(rule(), process={"seccomp": value}) as daemon:
                self.assertEqual(status_of(daemon)["Seccomp"], mode)
                self.assertEqual(daemon.ask("a"), ["OK"])

    def test_upgrades_stack_no_filters(self):
        with Daemon(rule()) as daemon:
            before = status_of(daemon)["Seccomp_filters"]
            for _ in range(3):
                upgrade(daemon)
            self.assertEqual(status_of(daemon)["Seccomp_filters"], before)

    @unittest.skipUnless(os.geteuid() == 0, "only root can become another user")
    def test_the_user_comes_first_and_then_the_filter(self):
        with Handed(rule(), process={"seccomp": "on"}) as daemon:
            status = status_of(daemon)
            self.assertEqual((status["Seccomp"], status["NoNewPrivs"]), (self.FILTERED, "1"))
            self.assertEqual(status["Uid"].split()[0], str(pwd.getpwnam(NOBODY).pw_uid))

    def test_a_program_that_the_filter_is_too_narrow_for_does_not_take_over(self):
        directory = fresh_directory()
        self.addCleanup(shutil.rmtree, directory)
        file = directory / "dthrottled.toml"
        file.write_text(settings_text(directory, rule()))
        version = re.search(r"kHandoverVersion = (\d+)", (ROOT / "src/io/handover.h").read_text())[1]
        check = [DTHROTTLED, "--check", file, "--handover", version]
        self.assertEqual(run(*check).returncode, 0)
        done = run(*check, env={"DTHROTTLED_CALLS": "refused read write "})
        self.assertEqual(done.returncode, EX_CONFIG)
        self.assertIn('process.seccomp = "on": the filter that is in force refuses what this program needs: access',
                      done.stdout)
