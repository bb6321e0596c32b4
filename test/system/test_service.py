"""What the daemon tells the service manager, and what it says on standard error."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import sys
import threading
import time
import unittest

from common import SystemTest, report
from daemon import FIGURES, PATIENCE, SANITIZED, Daemon, fresh_directory, override, rule, run, wait_until

EX_OSERR = 71


class Manager:
    """Stands in for systemd: receives what is sent to NOTIFY_SOCKET."""

    def __init__(self):
        self.directory = fresh_directory()
        self.path = f"{self.directory}/notify"
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(self.path)
        self._sock.setblocking(False)
        self.messages = []    # a dictionary each

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._sock.close()
        shutil.rmtree(self.directory)

    def receive(self):
        with contextlib.suppress(BlockingIOError):
            while True:
                lines = self._sock.recv(4096).decode().splitlines()
                self.messages.append(dict(line.split("=", 1) for line in lines))
        return self.messages

    def wait_for(self, **fields):
        """Waits for a message with these fields, forgets what came before it, and returns it."""
        def found():
            for i, message in enumerate(self.receive()):
                if fields.items() <= message.items():
                    self.messages = self.messages[i + 1:]
                    return message
            return None
        return wait_until(found, f"the service manager is told {fields}")


class Notification(SystemTest):
    def test_the_service_manager_hears_of_start_reload_and_stop(self):
        with Manager() as manager, Daemon(rule(), env={"NOTIFY_SOCKET": manager.path}) as daemon:
            ready = manager.wait_for(READY="1")
            self.assertIn(daemon.query_path, ready["STATUS"])

            before = time.monotonic_ns() // 1000
            daemon.signal(signal.SIGHUP)
            reloading = manager.wait_for(RELOADING="1")
            self.assertTrue(before <= int(reloading["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000, reloading)
            manager.wait_for(READY="1")

            daemon.settings_path.write_text("nonsense")
            daemon.signal(signal.SIGHUP)
            manager.wait_for(RELOADING="1")
            self.assertIn("refused", manager.wait_for(READY="1")["STATUS"])

            daemon.signal(signal.SIGTERM)
            manager.wait_for(STOPPING="1")
            daemon.wait_exit(0)
            self.assertEqual(manager.receive(), [], "something came after STOPPING")

    def test_ready_means_that_a_query_is_answered(self):
        with Manager() as manager, Daemon(rule(), env={"NOTIFY_SOCKET": manager.path}) as daemon:
            manager.wait_for(READY="1")
            self.assertEqual(daemon.ask(["C"]), ["OK"])

    def test_the_watchdog_is_fed_while_the_daemon_answers_and_reloads(self):
        interval = 1.0
        environment = {"WATCHDOG_USEC": str(round(interval * 1e6))}
        with Manager() as manager, \
                Daemon(rule(), env={"NOTIFY_SOCKET": manager.path, **environment}, query={"threads": 2}) as daemon:
            daemon.write_settings(rule(), *(override(f"o{i}") for i in range(1000 if SANITIZED else 30_000)))
            daemon.signal(signal.SIGHUP)
            # Twice the interval that the watchdog allows must pass without a gap of that length, on a machine that does
            # nothing else. On any other it must go on being fed.
            last, end = time.monotonic(), time.monotonic() + 2 * interval
            fed, longest = 0, 0.0
            while time.monotonic() < end or (fed < 3 and time.monotonic() < end + PATIENCE):
                daemon.ask(["C"] * 100)
                now = sum(message.get("WATCHDOG") == "1" for message in manager.receive())
                longest = max(longest, time.monotonic() - last)
                if now > fed:
                    fed, last = now, time.monotonic()
            self.assertGreaterEqual(fed, 3)
            report(f"the longest time without food for a watchdog that allows {interval:g} s: {longest:.2f} s")
            if FIGURES:
                self.assertLess(longest, interval)

    def test_a_manager_that_does_not_listen_holds_nobody_up(self):
        with Manager() as manager, \
                Daemon(rule(), env={"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "4000"}) as daemon:
            def full():
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                    sock.setblocking(False)
                    try:
                        sock.sendto(b"WATCHDOG=1", manager.path)
                    except BlockingIOError:
                        return True
                return False
            wait_until(full, "the manager's queue is full")
            for _ in range(3):
                daemon.signal(signal.SIGHUP)
                self.assertEqual(daemon.ask(["C"]), ["OK"])
            wait_until(lambda: daemon.stats()["reloads"] >= 1, "it reloads")

    def test_without_a_watchdog_nothing_is_fed(self):
        with Manager() as manager, Daemon(rule(), env={"NOTIFY_SOCKET": manager.path}) as daemon:
            manager.wait_for(READY="1")
            daemon.ask(["C"])
            time.sleep(0.1)
            self.assertEqual(manager.receive(), [])


class EarlyOrders(SystemTest):
    def test_a_reload_or_an_upgrade_that_is_asked_for_while_the_daemon_starts_comes_after_the_start(self):
        overrides = [override(f"o{i}") for i in range(1000 if SANITIZED else 30_000)]    # which take a while
        orders = {signal.SIGHUP: lambda daemon: daemon.stats()["reloads"] == 1,
                  signal.SIGUSR2: lambda daemon: daemon.log.count(" ready: ") == 2}
        for number, followed in orders.items():
            daemon = Daemon(rule(), *overrides)
            early = threading.Thread(target=self.send_early, args=(daemon, number))
            early.start()
            with self.subTest(number.name), daemon:
                early.join()
                wait_until(lambda f=followed, d=daemon: f(d), "it is followed")

    def test_a_stop_that_is_asked_for_while_the_daemon_starts_ends_it_at_once(self):
        self.is_stopped_early()

    def test_the_same_where_the_daemon_is_process_1(self):
        wrapper = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")
        if run(*wrapper, "true").returncode != 0:
            self.skipTest("no user namespaces here")
        self.is_stopped_early(wrapper)

    def is_stopped_early(self, wrapper=()):
        overrides = [override(f"o{i}") for i in range(1000 if SANITIZED else 30_000)]
        for number in (signal.SIGTERM, signal.SIGINT):
            daemon = Daemon(rule(), *overrides, wrapper=wrapper)
            early = threading.Thread(target=self.send_early, args=(daemon, number))
            early.start()
            with self.subTest(number.name), \
                    self.assertRaisesRegex(AssertionError, "the daemon left with 0 before it said ' ready: '"):
                with daemon:
                    pass
            early.join()

    def send_early(self, daemon, number):
        """Once the program ignores SIGXFSZ, which it begins with."""
        def begun():
            pid = self.innermost(daemon.pid) if daemon.process else None
            status = pathlib.Path(f"/proc/{pid}/status").read_text() if pid else ""
            ignored = re.search(r"(?m)^SigIgn:\s+(\w+)", status)
            return ignored and int(ignored[1], 16) >> signal.SIGXFSZ - 1 & 1 and pid
        os.kill(wait_until(begun, "the program has begun"), number)

    def innermost(self, pid):
        """The daemon, where the process is a wrapper that waits for it."""
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return self.innermost(int(children[0])) if children else pid


class Mask(SystemTest):
    # In front of a command: every signal is blocked.
    BLOCKED = (sys.executable, "-c",
               "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); "
               "os.execv(sys.argv[1], sys.argv[1:])")

    def test_a_daemon_that_inherits_a_mask_that_blocks_everything_reloads_upgrades_and_stops(self):
        with Daemon(rule(), wrapper=self.BLOCKED) as daemon:
            daemon.hang_up()
            daemon.signal(signal.SIGUSR2)
            wait_until(lambda: daemon.log.count(" ready: ") == 2, "the upgrade is over")
            daemon.stop()


@unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "NOT TESTED: takes root and setpriv")
@unittest.skipIf(SANITIZED, "a sanitizer has threads of its own")
class FewThreads(SystemTest):
    USER = 64999    # whom nothing else belongs to: threads are counted by user

    def test_a_start_has_the_threads_that_a_reload_needs_or_fails_with_a_message(self):
        codes = [self.code_with(threads) for threads in range(1, 10)]
        self.assertEqual((codes[0], codes[-1]), (EX_OSERR, 0))
        self.assertEqual(codes, sorted(codes, reverse=True))

    def code_with(self, threads):
        become = ("setpriv", f"--reuid={self.USER}", f"--regid={self.USER}", "--clear-groups")
        daemon = Daemon(rule(), wrapper=(*become, "prlimit", f"--nproc={threads}"), query={"threads": 3})
        os.chown(daemon.directory, self.USER, self.USER)
        try:
            with daemon:
                daemon.hang_up()
                self.assertEqual(daemon.stats()["reloads"], 1)
        except AssertionError as problem:
            if f"the daemon left with {EX_OSERR} before" not in str(problem):
                raise
            self.assertIn(" error: the system has no further thread", "".join(problem.__notes__))
            return EX_OSERR
        return 0


class Log(SystemTest):
    # In front of a command: what it writes to standard error goes to the journal, as far as it can see.
    JOURNAL = ("sh", "-c", 'JOURNAL_STREAM=$(stat -L -c %d:%i /dev/stderr) exec "$@"', "sh")

    def test_every_line_has_a_time_or_in_the_journal_a_priority(self):
        for env in ({}, {"JOURNAL_STREAM": "1:1"}):    # the latter is of a service whose child has a log of its own
            with Daemon(rule(burst=1, rate=9), env=env) as daemon:
                for line in daemon.log.splitlines():
                    self.assertRegex(line, r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4} (error|warning|notice): \S")
                daemon.wait_log(" warning: ")
        with Daemon(rule(burst=1, rate=9), wrapper=self.JOURNAL) as daemon:
            for line in daemon.log.splitlines():
                self.assertRegex(line, r"^<[345]>\S")
            daemon.wait_log("<4>")

    def test_a_storm_of_the_same_message_is_held_back_and_counted(self):
        with Daemon(rule(burst=1000), query={"max_connections": 1}) as daemon, daemon.connect():
            self.assertEqual(wait_until(lambda: daemon.stats()["connections"], "one is connected"), 1)
            begin = time.monotonic()
            for _ in range(200):
                daemon.connect().close()
            stats = wait_until(lambda: (s := daemon.stats())["connections_rejected"] == 200 and s, "all turned away")
            said = daemon.log.count("one more turned away")
            self.assertGreaterEqual(said, 10)
            self.assertLessEqual(said, 10 + (time.monotonic() - begin), "ten at once, and one a second")
            self.assertEqual(stats["log_suppressed"], 200 - said)

    def test_queries_write_nothing_to_the_log(self):
        with Daemon(rule(burst=10)) as daemon:
            before = daemon.log
            daemon.ask(["C", "", "x" * 100_000] * 100)
            self.assertEqual(daemon.log, before)
