"""Quotas by calendar: over two hosts, over kills, a lost file and midnight."""

import contextlib
import pathlib
import re
import select
import shutil
import signal
import socket
import subprocess
import time
import unittest

from clocks import Date
from common import SystemTest
from daemon import DTHROTTLED, PATIENCE, SANITIZED, Daemon, clean_environment, fresh_directory, rule, run, wait_until
from fleet import Fleet, wait_all_hear, wait_owners_hear
from test_ask import Asker, ask_port
from test_upgrade import make_blind, upgrade

QUOTA = 50


def used(host, tag="api:x"):
    return host.admin_json(f"show {tag}")["quota_used"]


def quota_file(host):
    return host.directory / "quotas"


def counting(quota=QUOTA, **options):
    """A fleet that shares a quota."""
    fleet = Fleet(rule(name="api", match="api:*", burst=1000, quota=quota), **options)
    for host in fleet.hosts:
        host._sections["quota"] = {"file": str(quota_file(host)), "memory": "1MiB"}
        host.write_settings(*host.limits)
    return fleet


@contextlib.contextmanager
def two_hosts():
    """Hosts that share a quota, and the dates that they see."""
    with contextlib.ExitStack() as stack:
        dates = [stack.enter_context(Date()) for _ in range(2)]
        hosts = stack.enter_context(
            counting(period="1s", wrappers={i: date.wrapper() for i, date in enumerate(dates)}))
        wait_all_hear(hosts)
        yield hosts, dates


@unittest.skipIf(SANITIZED, "a sanitizer does not let another library come first")
class Quotas(SystemTest):
    def test_hosts_serve_a_quota_together_over_kills_a_lost_file_and_midnight(self):
        with two_hosts() as ((a, b), dates):
            self.assertEqual(a.served("api:x", 30), 30)
            wait_until(lambda: used(b) == 30, "b knows what a has served")
            self.assertEqual(b.served("api:x", 30), 20)
            wait_until(lambda: used(a) == QUOTA, "a knows what b has served")
            self.assertEqual(a.ask(["api:x"]), ["NO"])
            steps = "".join(a.admin_json("why api:x")["steps"])
            self.assertIn("the answer is NO", steps)
            self.assertNotIn("the next query is answered OK", steps)
            shown = a.admin_json("show api:x")
            self.assertEqual(shown["verdict"], "NO")
            self.assertEqual(shown["served_again_in_s"], shown["quota_ends_in_s"])
            self.assertEqual(a.stats()["over_quota"], 1)

            a.kill()
            a.start()
            self.assertEqual(used(a), QUOTA)
            self.assertEqual(a.ask(["api:x"]), ["NO"])
            a.restart()
            self.assertEqual(used(a), QUOTA)

            b.crash(keep_table=False)
            quota_file(b).unlink()
            b.start()
            wait_until(lambda: used(b) == QUOTA, "a host that has lost its file hears the sum, its own part too")
            self.assertEqual(b.ask(["api:x"]), ["NO"])

            for date in dates:
                date.jump("+1d")
            wait_until(lambda: used(a) == used(b) == 0, "the next day has begun")
            self.assertEqual(a.served("api:x", 40), 40)
            wait_until(lambda: used(b) == 40, "b knows")
            self.assertEqual(b.served("api:x", 40), 10)
            wait_until(lambda: used(a) == QUOTA, "a knows")
            dates[0].jump("+0")
            wait_until(lambda: a.admin_json("show api:x")["quota_ends_in_s"] > 86400, "the clock of a has been set back")
            self.assertEqual(a.ask(["api:x"]), ["NO"])

    def test_another_size_keeps_what_there_is_room_for_over_restarts_and_upgrades(self):
        tags = [f"api:{i}" for i in range(60)]

        def resize(memory):
            daemon._sections["quota"]["memory"] = memory
            daemon.write_settings(api)

        api = rule(name="api", match="api:*", burst=1000, quota=10, per="month")
        for kept in ("file", "memory"):
            with self.subTest(kept), Daemon(api, quota={"memory": "2MiB"}) as daemon:
                if kept == "file":
                    daemon._sections["quota"]["file"] = str(quota_file(daemon))
                    resize("2MiB")
                    daemon.restart()
                daemon.ask(tags * 3)
                for memory in ("4MiB", "1MiB", "1025KiB"):
                    for restarts in (True, False) if kept == "file" else (False,):
                        resize(memory)
                        daemon.restart() if restarts else upgrade(daemon)
                        self.assertEqual({used(daemon, tag) for tag in tags}, {3}, memory)
                        self.assertEqual(daemon.stats()["quota_tags"], 60)
                    self.assertIn("60 tags kept, 0 had no room", daemon.log)
                many = [f"api:many{i}" for i in range(1000)]
                resize("4MiB")
                upgrade(daemon)
                daemon.ask(many)
                known = daemon.stats()["quota_tags"]
                resize("1MiB")
                upgrade(daemon)
                said = re.search(r"warning: quotas: 1MiB .*: (\d+) tags kept, (\d+) had no room", daemon.log)
                tags_left, left_out = said.groups()
                self.assertEqual(int(tags_left) + int(left_out), known)
                self.assertEqual(daemon.stats()["quota_tags"], int(tags_left))

    def test_counts_without_a_file_outlive_an_orderly_restart_beside_the_table(self):
        with Fleet(rule(name="api", match="api:*", burst=1000, quota=QUOTA), period="1s") as (a, b):
            wait_all_hear([a, b])
            self.assertEqual(a.served("api:x", 10), 10)
            wait_until(lambda: used(b) == 10, "b knows what a has served")
            self.assertEqual(b.served("api:x", 15), 15)
            wait_until(lambda: used(a) == 25, "a knows what b has served")
            b.restart()
            self.assertEqual(used(b), 25)
            self.assertEqual(b.served("api:x", 5), 5)
            wait_until(lambda: used(a) == 30, "b goes on under its number")
            a.stop()
            b.restart()
            self.assertEqual(used(b), 30)

    def test_an_orderly_stop_that_cannot_leave_the_counts_says_so(self):
        """A folder stands where their file would."""
        in_memory = Fleet(rule(name="api", match="api:*", burst=1000, quota=QUOTA), period="1s")
        for fleet, lost in ((in_memory, "error: {}: .*; the next start begins anew with quotas, its peers\n"),
                            (counting(period="1s"), "warning: {}: .*; the next start begins anew with its peers\n")):
            with self.subTest(lost), fleet as (a, b):
                wait_all_hear([a, b])
                self.assertEqual(a.served("api:x", 10), 10)
                state = a.directory / "table.state"
                state.mkdir()
                a.stop()
                self.assertRegex(a.log, lost.format(state))
                state.rmdir()
                a.start()

    def test_another_file_or_none_takes_over_what_was_counted(self):
        limit = rule(name="api", match="api:*", burst=1000, quota=QUOTA)
        for begin_next in (upgrade, Daemon.restart):
            with self.subTest(begin_next.__name__), Daemon(limit, quota={"file": "", "memory": "1MiB"}) as daemon:
                def next_with(file):
                    daemon._sections["quota"]["file"] = f"{daemon.directory}/{file}" if file else ""
                    daemon.write_settings(limit)
                    begin_next(daemon)

                self.assertEqual(daemon.served("api:x", 30), 30)
                for file, said in (("one", r"what was counted in memory goes on in /\S+/one: 1 tags kept, 0 had no"),
                                   ("two", r"what was counted in /\S+/one goes on in /\S+/two: 1 tags kept"),
                                   ("", r"what was counted in /\S+/two goes on in memory: 1 tags kept"),
                                   ("three", r"what was counted in memory goes on in /\S+/three: 1 tags kept")):
                    before = used(daemon)
                    next_with(file)
                    self.assertRegex(daemon.log, "quotas: " + said)
                    self.assertEqual(used(daemon), before)
                    self.assertEqual(daemon.served("api:x", 5), 5)
                self.assertEqual(daemon.served("api:x", 5), 0)
                daemon.kill()
                daemon.start()
                self.assertEqual(used(daemon), QUOTA)
                self.assertNotIn("quotas: ", daemon.log)

                next_with("two")
                self.assertRegex(daemon.log, r"warning: quotas: /\S+/two has counts of its own; what was counted in "
                                             r"/\S+/three is not added")
                (daemon.directory / "two").unlink()
                next_with("four")
                self.assertRegex(daemon.log, r"warning: quotas: what was counted in /\S+/two begins anew: ")
                self.assertEqual(used(daemon), 0)

    def test_hosts_hear_of_a_quota_by_the_owner_of_the_tag(self):
        with counting(hosts=6, owners=2, period="500ms") as hosts:
            wait_owners_hear(hosts, 2)
            one, other, late = hosts[3:]
            for tag in ("api:x", "api:y", "api:z"):
                self.assertEqual(one.served(tag, 30), 30)
                for host in hosts:
                    wait_until(lambda: used(host, tag) == 30, "a host that has not been asked knows", PATIENCE)
                self.assertEqual(other.served(tag, 30), 20)
                wait_until(lambda: all(used(host, tag) == QUOTA for host in hosts), "all know", PATIENCE)
                self.assertEqual(late.ask([tag]), ["NO"])

            for owner in hosts[:2]:
                owner.crash(keep_table=False)
                owner.start()
            late.crash(keep_table=False)
            quota_file(late).unlink()
            late.start()
            wait_owners_hear(hosts, 2)
            for tag in ("api:x", "api:y", "api:z"):
                wait_until(lambda: used(late, tag) == QUOTA, "a host that has lost its file hears the sum", PATIENCE)

    def test_what_comes_back_is_believed_by_a_peer_or_an_owner_that_was_upgraded_or_restarted_since(self):
        for owners, count in ((0, 2), (1, 3)):
            with counting(quota=1000, hosts=count, owners=owners, period="250ms", ask={"tcp": "127.0.0.1:0"}) as hosts:
                if owners:
                    wait_owners_hear(hosts, owners)
                else:
                    wait_all_hear(hosts)
                for tag, changes in (("api:u", lambda: upgrade(hosts[0])), ("api:r", hosts[0].restart)):
                    with Asker(("127.0.0.1", ask_port(hosts[1]))) as asker:
                        number = asker.ask(f"hold 600000 600 {tag}").split()[1]
                        wait_until(lambda: [used(host, tag) for host in hosts[:2]] == [600, 600], "both know", PATIENCE)
                        changes()
                        self.assertEqual(asker.ask(f"commit {number} 10"), "OK committed 10")
                        wait_until(lambda: [used(host, tag) for host in hosts[:2]] == [10, 10],
                                   lambda: f"both know what came back: {[used(host, tag) for host in hosts]}", PATIENCE)

    def test_a_file_that_is_another_programs_stops_the_start_and_stays_as_it_was(self):
        with two_hosts() as ((a, _), _dates):
            a.stop()
            quota_file(a).write_text("dear diary\n")
            started = subprocess.run([DTHROTTLED, "--config", a.settings_path], capture_output=True, text=True,
                                     env=clean_environment(), timeout=20)
            self.assertNotEqual(started.returncode, 0)
            self.assertIn("quota.file", started.stderr)
            self.assertIn(str(quota_file(a)), started.stderr)
            self.assertEqual(quota_file(a).read_text(), "dear diary\n")
            quota_file(a).unlink()
            a.start()


EX_UNAVAILABLE, EX_CONFIG = 69, 78


class FirstQuota(SystemTest):
    """A reload that brings it."""

    def test_it_is_refused_where_the_file_cannot_be_used(self):
        with Daemon(rule(burst=100)) as daemon:
            daemon._sections["quota"] = {"file": str(quota_file(daemon)), "memory": "1MiB"}
            daemon.write_settings(rule(burst=100))
            daemon.restart()
            daemon.write_settings(rule(burst=50, quota=3))
            for make in (lambda path: path.mkdir(), lambda path: path.write_text("dear diary\n")):
                make(quota_file(daemon))
                check = run(DTHROTTLED, "--check", daemon.settings_path)
                self.assertEqual(check.returncode, EX_CONFIG, check.stdout)
                self.assertIn("quota.file", check.stdout)
                answer = daemon.admin_json("reload")
                self.assertFalse(answer["reloaded"])
                self.assertIn(f"quota.file: {quota_file(daemon)}", answer["problems"][0])
                self.assertEqual(daemon.served("x", 60), 60, "the settings of before are in force")
                daemon.admin("forgive x")
                subprocess.run(["rm", "-r", quota_file(daemon)], check=True)
            self.assertEqual(run(DTHROTTLED, "--check", daemon.settings_path).returncode, 0)
            self.assertFalse(quota_file(daemon).exists(), "a check makes no file")
            self.assertTrue(daemon.admin_json("reload")["reloaded"])
            self.assertEqual(daemon.served("x", 20), 3)

    def test_queries_are_answered_while_its_memory_is_taken(self):
        many = rule(burst=1_000_000, rate=1_000_000)
        with Daemon(many, quota={"memory": "256MiB"}) as daemon:
            daemon.write_settings(many + "quota = 1000000\n")
            with daemon.connect() as queries, daemon.admin_session() as admin:
                begun = before = time.monotonic()
                longest = 0
                admin.send(b"reload\n")
                while not select.select([admin.sock], [], [], 0)[0]:
                    queries.sendall(b"x\n")
                    self.assertEqual(queries.recv(16), b"OK\n")
                    now = time.monotonic()
                    longest, before = max(longest, now - before), now
                self.assertIn("reloaded", admin.answer())
                self.assertLess(longest, (before - begun) / 2, "no query waits for most of the reload")


class Failing(SystemTest):
    """A start that fails leaves what it has found to the next one."""

    def test_a_start_or_an_upgrade_that_fails_costs_no_counts_and_no_place_among_peers(self):
        directory = fresh_directory()
        self.addCleanup(shutil.rmtree, directory)
        program = pathlib.Path(shutil.copy(DTHROTTLED, directory / "dthrottled"))
        with Fleet(rule(name="api", match="api:*", burst=1000, quota=QUOTA), period="1s", program=program) as (a, b), \
                socket.socket() as busy:
            busy.bind(("127.0.0.1", 0))
            busy.listen()
            wait_all_hear([a, b])
            self.assertEqual(a.served("api:x", 15), 15)
            self.assertEqual(b.served("api:x", 10), 10)
            wait_until(lambda: used(b) == 25, "b knows what a has served")
            b.stop()
            taken = f"127.0.0.1:{busy.getsockname()[1]}"
            good = b.settings_path.read_text()
            for bad in (good.replace('http = ""', f'http = "{taken}"'),
                        good.replace(b.address, f"tcp://{taken}")):
                self.assertNotEqual(bad, good)
                b.settings_path.write_text(bad)
                failed = run(DTHROTTLED, "--config", b.settings_path)
                self.assertEqual(failed.returncode, EX_UNAVAILABLE, failed.stderr)
            b.settings_path.write_text(good)
            b.start()
            self.assertIn("where it left off", b.log)
            self.assertEqual(used(b), 25)
            self.assertFalse((b.directory / "table.state").exists(), "it is used once")

            b.settings_path.write_text(good.replace('http = ""', f'http = "{taken}"'))
            make_blind(program)
            b.signal(signal.SIGUSR2)
            b.wait_exit(EX_UNAVAILABLE)
            b.settings_path.write_text(good)
            a.stop()
            b.start()
            self.assertIn("where it left off", b.log)
            self.assertEqual(used(b), 25)


if __name__ == "__main__":
    unittest.main()
