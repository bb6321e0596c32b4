"""Other settings, without a restart and without anybody noticing but those whose limit has changed."""

import collections
import contextlib
import gc
import os
import pathlib
import shutil
import signal
import threading
import time

from common import SystemTest, report
from daemon import (DTHROTTLED, FIGURES, PATIENCE, SANITIZED, Daemon, override, rule, run, settings_text, slowest_rate,
                    wait_until)
from fleet import Fleet, wait_all_hear


class Reload(SystemTest):
    WAYS = {"SIGHUP": Daemon.hang_up, "admin socket": lambda daemon: daemon.admin("reload")}

    def test_a_reload_keeps_what_every_bucket_has_spent(self):
        for way, reload in self.WAYS.items():
            with self.subTest(way), Daemon(rule(burst=10), override("partner", burst=6)) as daemon:
                long_tag = b"x" * 300
                for tag in ("C", "partner", long_tag):
                    daemon.ask([tag] * 4)
                daemon.write_settings(rule(burst=7), rule(match="other", burst=1), override("partner", burst=5))
                reload(daemon)
                self.assertEqual(daemon.served("C", 9), 7 - 4)
                self.assertEqual(daemon.served("partner", 9), 5 - 4)
                self.assertEqual(daemon.served(long_tag, 9), 7 - 4)
                self.assertEqual(daemon.served("other", 9), 1)
                self.assertEqual(daemon.stats()["reloads"], 1)

    def test_a_reload_that_lowers_the_burst_below_what_was_spent_leaves_an_empty_bucket(self):
        with Daemon(rule(burst=10)) as daemon:
            daemon.ask(["C"] * 8)
            daemon.write_settings(rule(burst=5))
            daemon.admin("reload")
            self.assertEqual(daemon.ask(["C"]), ["NO"])
            self.assertEqual(daemon.admin_json("show C")["debt"], 0)
            daemon.write_settings(rule(burst=10))
            daemon.admin("reload")
            self.assertEqual(daemon.served("C", 9), 5)

    def test_a_bad_file_keeps_the_old_settings_and_says_where_it_is_bad(self):
        for way, reload in self.WAYS.items():
            with self.subTest(way), Daemon(rule(burst=3)) as daemon:
                daemon.ask(["C"])
                bad = "[[rule]]\nburst = 0\nrate = 1\n\n[[rule]]\n  match = 7\nburst = 5\nrate = 1\n"
                daemon.settings_path.write_text(bad)
                answer = reload(daemon)
                for place in (f"{daemon.settings_path}:2:9", f"{daemon.settings_path}:6:11"):
                    daemon.wait_log(place)
                    if answer is not None:
                        self.assertIn(place, answer)
                daemon.wait_log("not put in force")
                self.assertEqual(daemon.served("C", 9), 2)
                stats = daemon.stats()
                self.assertEqual((stats["reloads"], stats["reload_failures"]), (0, 1))

                daemon.write_settings(rule(burst=4))
                reload(daemon)
                self.assertEqual(daemon.served("C", 9), 1, "a good file is taken after a bad one")

    def test_a_missing_file_keeps_the_old_settings(self):
        with Daemon(rule(burst=3)) as daemon:
            daemon.settings_path.unlink()
            self.assertIn("No such file", daemon.admin("reload"))
            self.assertEqual(daemon.served("C", 9), 3)

    def test_what_takes_a_restart_is_named_and_left_as_it_is(self):
        with Daemon(rule(burst=3)) as daemon:
            elsewhere = settings_text(daemon.directory, rule(burst=2), query={"max_tag_bytes": 9, "idle_timeout": "7s"})
            daemon.settings_path.write_text(elsewhere)
            outcome = daemon.admin_json("reload")
            self.assertTrue(outcome["reloaded"])
            self.assertEqual(len(outcome["problems"]), 1)
            self.assertIn("query.max_tag_bytes changes at the next start", outcome["problems"][0])
            config = daemon.admin("config")
            self.assertIn("max_tag_bytes = 255", config)
            self.assertIn('idle_timeout = "7s"', config)
            self.assertEqual(daemon.served("ten bytes.", 9), 2)

    def test_a_host_of_a_mesh_that_reads_the_file_of_owners_goes_on_in_the_mesh(self):
        with Fleet(rule(burst=9, rate=0.001), hosts=3) as hosts:
            wait_all_hear(hosts)
            a, b, c = hosts
            a.reload(spread="owners", owners=["b"], connect=[b.address])
            for key in ("spread", "owners", "connect"):
                a.wait_log(f"peers.{key} changes at the next start")
            self.assertEqual(a.admin("config").count(c.address), 1)
            self.assertEqual(c.served("C", 9), 9)
            wait_until(lambda: a.served("C", 1) == 0, "a still hears c")

    def test_a_file_that_does_not_go_with_what_waits_for_a_start_is_refused(self):
        owned = {"name": "a.test", "spread": "owners", "owners": ["a.test"], "connect": []}
        with Daemon(rule(name="all", burst=3), peers=owned) as daemon:
            daemon.settings_path.write_text(settings_text(daemon.directory, rule(name="all", burst=900, share="capacity")))
            outcome = daemon.admin_json("reload")
            self.assertFalse(outcome["reloaded"])
            self.assertIn("peers.spread changes at the next start", " ".join(outcome["problems"]))
            self.assertIn('until the next start: rule "all": share = "capacity"', " ".join(outcome["problems"]))
            self.assertEqual(daemon.served("C", 9), 3)

    def test_a_file_without_a_rule_is_warned_of_once_by_each_that_reads_it(self):
        said = "there is no [[rule]]: every query will be answered OK"
        with Daemon() as daemon:
            daemon.wait_log(said)
            self.assertEqual(daemon.log.count(said), 1)
            self.assertEqual(daemon.admin("reload").count(said), 1)
            checked = run(DTHROTTLED, "--check", daemon.settings_path)
            self.assertEqual((checked.returncode, checked.stdout.count(said)), (0, 1))

    def test_reloads_that_come_faster_than_they_can_be_done_end_with_the_last_file(self):
        with Daemon(rule(burst=3)) as daemon:
            for burst in range(4, 40):
                daemon.write_settings(rule(burst=burst))
                daemon.signal(signal.SIGHUP)
            self.assertIn("reloaded  true", daemon.admin("reload"))
            self.assertEqual(daemon.served("C", 100), 39)

    def test_every_reload_asked_for_at_once_is_answered(self):
        with Daemon(rule(burst=3)) as daemon, contextlib.ExitStack() as stack:
            sessions = [stack.enter_context(daemon.admin_session()) for _ in range(20)]
            for session in sessions:
                session.send(b"json reload\njson reload\n")
            answers = [session.answer() for session in sessions for _ in range(2)]
            self.assertEqual(set(answers), {'{"reloaded":true,"problems":[]}\n'})

    def test_a_daemon_told_to_stop_in_the_middle_of_a_reload_leaves_cleanly(self):
        many = [override(f"o{i}") for i in range(2_000 if SANITIZED else 30_000)]
        for pause in (0, 0.01, 0.03, 0.1):
            with self.subTest(pause=pause), Daemon(rule(burst=3)) as daemon:
                daemon.write_settings(rule(burst=4), *many)
                daemon.signal(signal.SIGHUP)
                time.sleep(pause)
                daemon.stop()


class ReloadUnderLoad(SystemTest):
    """10^5 overrides go back and forth while an application asks one query after the other."""

    OVERRIDES = 10_000 if SANITIZED else 100_000
    RELOADS = 3    # of one daemon: the first frees what was made at the start, which the next ones do not
    DAEMONS_MIN, DAEMONS_MAX = (2, 6) if FIGURES else (1, 1)
    WAIT_MAX = 0.005    # s; what a reload may make a query wait on a machine that does nothing else

    def test_every_answer_is_right_while_settings_are_reloaded(self):
        quiet, reloading = [], [[] for _ in range(self.RELOADS)]
        for i in range(self.DAEMONS_MAX):
            self.ask_while_reloading(quiet, reloading)
            if i + 1 >= self.DAEMONS_MIN and self.bound_on_waits(quiet, reloading) >= 0:
                break
        waits = [wait for turn in reloading for wait in turn]
        report(f"longest waits of queries in {len(waits)} reloads of {self.OVERRIDES} overrides: "
               f"{in_ms(wait.whole for wait in waits)}\n"
               f"    and as long without a reload:  {in_ms(wait.whole for wait in quiet)}\n"
               f"    not spent waiting for a core:  {in_ms(wait.of_daemon for wait in waits)}")
        if FIGURES:
            self.assertGreaterEqual(self.bound_on_waits(quiet, reloading), 0, "queries wait for a reload")

    def bound_on_waits(self, quiet, reloading):
        """Below zero if queries wait too long for reloads.

        Work on the query loop would show every time, a busy machine does not; so the best of several daemons counts.
        Time in which a thread could run and no core was free is no wait for the reload, unless out of proportion.
        """
        of_daemon = max(min(wait.of_daemon for wait in turn) for turn in reloading)
        whole = max(min(wait.whole for wait in turn) for turn in reloading)
        return min(self.WAIT_MAX - of_daemon, 4 * self.WAIT_MAX + 3 * max(wait.whole for wait in quiet) - whole)

    def ask_while_reloading(self, quiet, reloading):
        table = {"memory": "64MiB"}
        with Daemon(*self.limits(1.0), table=table) as daemon:
            files = [daemon.directory / f"settings.{i}" for i in range(2)]
            for file, slower in zip(files, (1.0, 1.5)):
                file.write_text(settings_text(daemon.directory, *self.limits(slower), table=table))
            self.assertEqual(daemon.ask(["spent", "o77"]), ["OK", "OK"])

            with Asker(daemon, ["spent", "exempt", "o77", "unknown", "counted"]) as asker, \
                    daemon.admin_session() as admin:
                for i in range(self.RELOADS):
                    with asker.window(quiet):
                        time.sleep(0.3)
                    shutil.copy(files[(i + 1) % 2], daemon.settings_path)
                    with asker.window(reloading[i]):
                        self.assertEqual(admin.ask_json("reload"), {"reloaded": True, "problems": []})
                        wait_until(lambda: admin.ask_json("stats")["table_reshaping"] == 0, "buckets are rewritten")
                        time.sleep(0.05)    # the old settings are freed

        served = {tag: answers.count(b"OK\n") for tag, answers in asker.answers.items()}
        asked = {tag: len(answers) for tag, answers in asker.answers.items()}
        self.assertEqual(served, {"spent": 0, "o77": 0, "exempt": asked["exempt"], "unknown": 10,
                                  "counted": min(asked["counted"], 5_000)})
        self.assertEqual({answer for answers in asker.answers.values() for answer in answers}, {b"OK\n", b"NO\n"})

    def limits(self, slower):
        return [rule(name="exempt", match="exempt", mode="off"),
                rule(name="counted", match="counted", burst=5_000, rate=slowest_rate(5_000) * slower),
                rule(name="spent", match="spent", burst=1), rule(name="everyone", burst=10),
                *(override(f"o{i}", burst=1, rate=slower * 1e-5) for i in range(self.OVERRIDES))]


def in_ms(waits):
    return ", ".join(f"{1000 * wait:.2f}" for wait in waits) + " ms"


# The longest waits of queries in a while: from question to answer, and without the time for which the scheduler kept
# the daemon or the application from running.
Longest = collections.namedtuple("Longest", "whole of_daemon")


class Asker(threading.Thread):
    """An application that asks one query after the other, and notes how long each took."""

    NOTED = 0.0002    # seconds; shorter waits are all alike

    def __init__(self, daemon, tags):
        super().__init__()
        self.answers = {tag: [] for tag in tags}
        self._lines = [(tag, tag.encode() + b"\n") for tag in tags]
        self._waits = []    # (when it was asked, how long it took, for how long of that a thread lacked a core)
        self._sock = daemon.connect()
        # Before the first reload, the threads of the daemon are those that answer.
        self._daemon_clocks = self.scheduler_clocks(f"/proc/{daemon.pid}/task")
        self._stopping = False
        self._error = None

    @staticmethod
    def scheduler_clocks(tasks):
        files = pathlib.Path(tasks).glob("*/schedstat")    # none where the kernel does not keep these clocks
        return [os.open(file, os.O_RDONLY) for file in files]

    def run(self):
        own = pathlib.Path("/proc/thread-self/schedstat")
        clocks = self._daemon_clocks + ([os.open(own, os.O_RDONLY)] if self._daemon_clocks else [])

        waited = [0] * len(clocks)    # nanoseconds; of a thread that has ended, what it had last

        def lacking_a_core():
            for i, clock in enumerate(clocks):
                with contextlib.suppress(ProcessLookupError):
                    waited[i] = int(os.pread(clock, 100, 0).split()[1])
            return sum(waited) / 1e9
        try:
            lacked_before = lacking_a_core()
            while not self._stopping:
                for tag, line in self._lines:
                    begin = time.perf_counter()
                    self._sock.sendall(line)
                    answer = self._sock.recv(100)
                    wait = time.perf_counter() - begin
                    lacked = lacking_a_core()
                    self.answers[tag].append(answer)
                    if wait > self.NOTED:
                        self._waits.append((begin, wait, lacked - lacked_before))
                    lacked_before = lacked
        except OSError as error:
            self._error = error
        finally:
            for clock in clocks:
                os.close(clock)

    @contextlib.contextmanager
    def window(self, windows):
        """Adds the longest waits within a `with` block to `windows`."""
        begin = time.perf_counter()
        yield
        end = time.perf_counter()
        within = [(wait, lacked) for at, wait, lacked in self._waits if at + wait >= begin and at <= end]
        windows.append(Longest(max((wait for wait, _ in within), default=self.NOTED),
                               max((max(wait - lacked, 0) for wait, lacked in within), default=self.NOTED)))

    def __enter__(self):
        gc.disable()    # a collection would be measured as a wait
        self.start()
        return self

    def __exit__(self, *_):
        self._stopping = True
        self.join(PATIENCE)
        gc.enable()
        self._sock.close()
        if self._error is not None:
            raise self._error
