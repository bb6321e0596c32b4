"""What is taken for a while: holds over kills and clients that die, and places that come back with their connection."""

import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
import unittest

from common import SystemTest, report
from daemon import SANITIZED, rule, settings_text, wait_until
from fleet import Fleet, wait_all_hear, wait_owners_hear
from test_ask import Asker, AskDaemon, ask_port
from test_upgrade import upgrade

# A program that takes places or holds, says so, and waits to be killed.
HOLDER = """
import socket, sys, time
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
lines = sock.makefile("rb")
for begin in range(0, int(sys.argv[3]), 100):
    n = min(100, int(sys.argv[3]) - begin)
    sock.sendall((sys.argv[2] + "\\n").encode() * n)
    for _ in range(n):
        assert lines.readline().startswith(b"OK"), "refused"
print("taken", flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def holder(path, line, count):
    """The process, which has taken all; it is killed at the end if nobody has done so."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, path, line, str(count)], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"taken\n"
        yield process
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def level(daemon, tag):
    return daemon.admin_json(f"show {tag}")["level"]


class Holds(SystemTest):
    def test_no_commit_is_charged_twice_over_kills_of_the_daemon(self):
        """Commits come late, again and in any order, and the daemon is killed between them."""
        chance, kills, spent, known, gone = random.Random(5), 5, 0, [], []
        with AskDaemon(rule(name="all", burst=1_000_000)) as daemon:
            for _ in range(kills):
                with Asker(daemon.ask_path) as asker:
                    for _ in range(100):
                        held, actual = chance.randrange(100), chance.randrange(150)
                        known.append((asker.ask(f"hold 600000 {held} a").split()[1], actual))
                        if chance.randrange(2):
                            number, actual = known.pop(chance.randrange(len(known)))
                            self.assertEqual(asker.ask(f"commit {number} {actual}"), f"OK committed {actual}")
                            spent += actual
                            gone.append((number, actual))
                        number, actual = chance.choice(gone or [("0", 0)])
                        answer = asker.ask(f"commit {number} {actual + 1}")
                        self.assertEqual(answer, f"OK committed {actual}" if gone else "NO unknown")
                daemon.kill()
                daemon.start()
            with Asker(daemon.ask_path) as asker:
                for number, actual in known:
                    self.assertEqual(asker.ask(f"commit {number} {actual}"), f"OK committed {actual}")
                    spent += actual
            self.assertAlmostEqual(level(daemon, "a"), 1_000_000 - spent, delta=0.9)    # 0.03 come back a second
            self.assertEqual(daemon.stats()["holds"], 0)
        report(f"{kills} kills, {len(gone) + len(known)} commits, each repeated or late: charged once")

    def test_a_hold_outlives_its_connection_or_ends_with_it_as_it_was_taken(self):
        with AskDaemon(rule(name="all", burst=1000)) as daemon:
            with holder(daemon.ask_path, "hold 600000 here 10 a", 50) as bound, \
                    holder(daemon.ask_path, "hold 600000 10 b", 50) as free:
                self.assertAlmostEqual(level(daemon, "a"), 500, delta=0.01)
                for process in (bound, free):
                    process.send_signal(signal.SIGKILL)
                began = time.monotonic()
                wait_until(lambda: level(daemon, "a") > 999, "what a killed client held has come back")
                took = time.monotonic() - began
                self.assertAlmostEqual(level(daemon, "b"), 500, delta=0.01)
            report(f"holds of a killed client: back within {took * 1e3:.1f} ms")
            with Asker(daemon.ask_path) as asker:
                self.assertTrue(asker.ask("hold 600000 here 300 a").startswith("OK "))
                daemon.kill()
                daemon.start()
                self.assertAlmostEqual(level(daemon, "a"), 1000, delta=0.01)
                self.assertAlmostEqual(level(daemon, "b"), 500, delta=0.01)
                self.assertEqual(daemon.stats()["holds"], 50)

    def test_a_connection_is_kept_for_what_ends_with_it_and_closed_as_idle_beside_any_other_hold(self):
        with AskDaemon(rule(name="all", burst=1000), ask={"idle_timeout": "1s"}) as daemon, \
                Asker(daemon.ask_path) as free, Asker(daemon.ask_path) as bound:
            self.assertTrue(bound.ask("hold 60000 here 4 b").startswith("OK "))
            self.assertTrue(free.ask("hold 60000 4 a").startswith("OK "))
            self.assertEqual(free.sock.recv(9), b"")
            self.assertEqual(daemon.stats()["holds"], 2)
            self.assertEqual(bound.ask("peek 0 b"), "OK 996")

    def test_a_hold_that_nobody_settles_gives_back_when_its_time_ends(self):
        with AskDaemon(rule(name="all", burst=1000)) as daemon, Asker(daemon.ask_path) as asker:
            number = asker.ask("hold 50 400 a").split()[1]
            wait_until(lambda: level(daemon, "a") > 999, "the hold has run out, though nobody asks")
            self.assertEqual(asker.ask(f"commit {number} 100"), "OK expired")
            self.assertEqual(daemon.stats()["holds_expired"], 1)

    def test_holds_and_places_go_over_to_another_program_and_through_a_reload(self):
        with AskDaemon(rule(name="jobs", match="job:*", burst=1000, in_flight=3), rule(name="all", burst=1000)) as daemon, \
                Asker(daemon.ask_path) as asker:
            number = asker.ask("hold 600000 here 300 a").split()[1]
            self.assertEqual(asker.ask("enter 1 job:x"), "OK 2")
            daemon.hang_up()
            upgrade(daemon)
            self.assertEqual(asker.ask("peek 0 a 0 job:x"), "OK 700 2")
            self.assertEqual(asker.ask(f"commit {number} 100"), "OK committed 100")
            self.assertEqual(asker.ask("give job:x"), "OK 1")

    def test_holds_outlive_another_bound_of_their_number_by_a_restart_and_by_an_upgrade(self):
        def bound(holds):
            daemon._sections["hold"] = {"max_holds": holds}
            daemon.write_settings(rule(name="all", burst=1000))

        for restarts in (True, False):
            with self.subTest(restarts=restarts), AskDaemon(rule(name="all", burst=1000), hold={"max_holds": 64}) as daemon:
                with Asker(daemon.ask_path) as asker:
                    numbers = [asker.ask("hold 600000 5 a").split()[1] for _ in range(50)]
                for holds in (128, 8):
                    bound(holds)
                    daemon.restart() if restarts else upgrade(daemon)
                    self.assertEqual(daemon.stats()["holds"], 50)
                with Asker(daemon.ask_path) as asker:
                    self.assertTrue(asker.ask("hold 600000 5 a").startswith("ERR "))
                    for number in numbers:
                        self.assertEqual(asker.ask(f"release {number}"), "OK released")
                    self.assertEqual(asker.ask("hold 600000 5 a").split()[0], "OK")
                self.assertAlmostEqual(level(daemon, "a"), 995, delta=0.9)

    def test_holds_of_connections_end_where_an_upgrade_takes_questions_or_holds_away(self):
        def becomes(**sections):
            daemon.settings_path.write_text(settings_text(
                daemon.directory, rule(name="all", burst=1000), table=table, **sections))
            upgrade(daemon)

        def nameless():
            links = []
            for link in pathlib.Path(f"/proc/{daemon.pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):    # closed meanwhile
                    links.append(os.readlink(link))
            return sum("memfd:dthrottle-table" in link for link in links)

        for table, lives, memories in (({}, 1, [0, 0]), ({"file": ""}, 0, [2, 1])):
            for asks in (False, True):
                with self.subTest(table=table, asks=asks), \
                        AskDaemon(rule(name="all", burst=1000), table=table) as daemon, Asker(daemon.ask_path) as asker:
                    ask = {"unix": daemon.ask_path}
                    self.assertEqual(asker.ask("hold 600000 here 300 a").split()[0], "OK")
                    number = asker.ask("hold 600000 200 b").split()[1]
                    seen = [nameless()]
                    becomes(**({"ask": ask, "hold": {"max_holds": 0}} if asks else {}))
                    self.assertAlmostEqual(level(daemon, "a"), 1000, delta=0.01)
                    self.assertEqual([*seen, nameless()], memories)
                    becomes(ask=ask)
                    self.assertAlmostEqual(level(daemon, "a"), 1000, delta=0.01)
                    self.assertAlmostEqual(level(daemon, "b"), 1000 - 200 * lives, delta=0.01)
                    with Asker(daemon.ask_path) as other:
                        self.assertEqual(other.ask(f"commit {number} 50"), "OK committed 50" if lives else "NO unknown")

    def test_hosts_together_serve_no_more_than_the_limit_when_estimates_hold(self):
        """Two hosts hold until both are refused; what was not needed does not make them serve more than the limit."""
        with Fleet(rule(name="all", burst=1000, share="debit"), period="200ms", ask={"tcp": "127.0.0.1:0"}) as (a, b):
            wait_all_hear([a, b])
            with Asker(("127.0.0.1", ask_port(a))) as here, Asker(("127.0.0.1", ask_port(b))) as there:
                numbers = [here.ask("hold 600000 10 a").split()[1] for _ in range(50)]
                wait_until(lambda: there.ask("peek 0 a") == "OK 500", "the peer has heard of the holds")
                for number in numbers:
                    self.assertEqual(here.ask(f"commit {number} 4"), "OK committed 4")
                self.assertEqual(here.ask("peek 0 a"), "OK 800")
                wait_until(lambda: there.ask("peek 0 a") == "OK 800", "the peer has heard of what came back")
                self.assertEqual(b.stats()["returns_disbelieved"], 0)

    def test_what_a_hold_gives_back_at_the_start_after_a_kill_stays_given_back(self):
        with Fleet(rule(name="all", burst=1000, rate=0.001, share="debit"), period="200ms",
                   ask={"tcp": "127.0.0.1:0"}) as (a, b):
            wait_all_hear([a, b])
            with Asker(("127.0.0.1", ask_port(a))) as here:
                here.ask("hold 1500 500 expires")
                number = here.ask("hold 600000 500 committed").split()[1]
            for tag in ("expires", "committed"):
                wait_until(lambda tag=tag: level(b, tag) < 501, "the peer has heard of the hold")
            a.kill()
            time.sleep(1.5)
            a.start()
            with Asker(("127.0.0.1", ask_port(a))) as here:
                self.assertEqual(here.ask(f"commit {number} 100"), "OK committed 100")
            wait_all_hear([a, b])
            wait_until(lambda: level(b, "expires") > 999 and 899 < level(b, "committed") < 901,
                       "the peer has heard of both")
            self.assertGreater(level(a, "expires"), 999)
            self.assertAlmostEqual(level(a, "committed"), 900, delta=1)

    def test_what_comes_back_is_believed_by_a_peer_that_was_upgraded_or_restarted_since(self):
        with Fleet(rule(name="all", burst=1000, rate=0.001, share="debit"), period="200ms",
                   ask={"tcp": "127.0.0.1:0"}) as (a, b):
            wait_all_hear([a, b])
            with Asker(("127.0.0.1", ask_port(a))) as here:
                for tag, changes in (("u", lambda: upgrade(b)), ("r", b.restart)):
                    number = here.ask(f"hold 600000 500 {tag}").split()[1]
                    wait_until(lambda tag=tag: level(b, tag) < 501, "the peer has heard of the hold")
                    changes()
                    self.assertEqual(here.ask(f"commit {number} 100"), "OK committed 100")
                    wait_until(lambda tag=tag: level(b, tag) > 899, "the peer has heard of what came back")
            self.assertEqual(b.stats()["returns_disbelieved"], 0)

    def test_peers_hear_of_refunds_from_the_second_of_a_rule_on(self):
        with Fleet(rule(name="all", burst=1000, share="debit"), period="200ms", ask={"tcp": "127.0.0.1:0"}) as (a, b):
            wait_all_hear([a, b])
            with Asker(("127.0.0.1", ask_port(a))) as here, Asker(("127.0.0.1", ask_port(b))) as there:
                here.ask("take 400 a")
                wait_until(lambda: there.ask("peek 0 a") == "OK 600", "the peer has heard of the hits")
                self.assertEqual(here.ask("refund 100 a"), "OK")
                wait_until(lambda: b.stats()["returns_disbelieved"] == 100, "the peer has heard of the refund")
                self.assertEqual((here.ask("peek 0 a"), there.ask("peek 0 a")), ("OK 700", "OK 600"))
                here.ask("take 400 a")
                wait_until(lambda: there.ask("peek 0 a") == "OK 200", "the peer has heard of the other hits")
                self.assertEqual(here.ask("refund 300 a"), "OK")
                wait_until(lambda: there.ask("peek 0 a") == "OK 500", "the peer has heard of the other refund")
                here.ask("take 50 other")
                wait_until(lambda: there.ask("peek 0 other") == "OK 950", "the peer has heard of a fresh tag")
                self.assertEqual(here.ask("refund 20 other"), "OK")
                wait_until(lambda: there.ask("peek 0 other") == "OK 970", "the peer has heard of its first refund")
                self.assertEqual(b.stats()["returns_disbelieved"], 100)


class Places(SystemTest):
    def test_all_places_of_a_killed_holder_are_free_at_once(self):
        with AskDaemon(rule(name="jobs", burst=1e9, rate=1e9, in_flight=10_000)) as daemon, \
                Asker(daemon.ask_path) as asker:
            with holder(daemon.ask_path, "enter 1 job", 10_000) as process:
                self.assertEqual(asker.ask("enter 1 job"), "NO busy - 0 jobs job")
                process.send_signal(signal.SIGKILL)
                began = time.monotonic()
                wait_until(lambda: asker.ask("peek 1 job") == "OK 10000", "all places are free")
                took = time.monotonic() - began
            self.assertEqual(daemon.stats()["places"], 0)
            report(f"10,000 places of a killed holder: free within {took * 1e3:.1f} ms")

    def test_places_of_what_is_charged_with_a_tag_end_with_the_connection_and_go_over(self):
        with AskDaemon(rule(name="tenants", match="acme", burst=1000, in_flight=3),
                       rule(name="users", burst=1000, also=["before /"])) as daemon, Asker(daemon.ask_path) as asker:
            with Asker(daemon.ask_path) as ending:
                self.assertEqual(ending.ask("enter 1 acme/a 1 acme/b"), "OK 1 1")
                self.assertEqual(asker.ask("enter 1 acme/c"), "OK 0")
                self.assertEqual(asker.ask("enter 1 acme/d"), "NO busy - 0 tenants acme/d")
                upgrade(daemon)
                self.assertEqual(asker.ask("enter 1 acme/d"), "NO busy - 0 tenants acme/d")
                self.assertEqual(asker.ask("give acme/d acme/c"), "OK 1")
                self.assertEqual(asker.ask("enter 1 acme/d"), "OK 0")
            wait_until(lambda: asker.ask("peek 0 acme/e") == "OK 2", "the other's places are free")
            self.assertEqual(asker.ask("give acme/d"), "OK 1")
            self.assertEqual(daemon.stats()["places"], 0)

    def test_places_stay_taken_where_an_upgrade_starts_the_table_afresh(self):
        jobs, tags = rule(name="jobs", burst=1000, in_flight=1), ("job", "j" * 300)
        with AskDaemon(jobs) as daemon, Asker(daemon.ask_path) as a, Asker(daemon.ask_path) as b:
            for tag in tags:
                self.assertEqual(a.ask(f"enter 1 {tag}"), "OK 0")
            daemon._sections["table"] = {"memory": "8MiB"}
            daemon.write_settings(jobs)
            upgrade(daemon)
            daemon.wait_log("new because its size was 4MiB")
            for tag in tags:
                self.assertEqual(b.ask(f"enter 1 {tag}").split()[:2], ["NO", "busy"])
                self.assertEqual(a.ask(f"give {tag}"), "OK 1")
                self.assertEqual(b.ask(f"enter 1 {tag}"), "OK 0")

    def test_no_kill_leaks_a_place(self):
        """Connections that end in the middle of whatever they do, by being closed as the kernel closes those of a killed
        process."""
        kills = 100 if SANITIZED else 1000
        with AskDaemon(rule(name="jobs", burst=1e9, rate=1e9, in_flight=7)) as daemon, Asker(daemon.ask_path) as asker:
            chance = random.Random(3)
            for _ in range(kills):
                with Asker(daemon.ask_path) as dying:
                    lines = [f"{chance.choice(('enter 1', 'enter 1', 'give'))} job{chance.randrange(3)}"
                             for _ in range(chance.randrange(1, 30))]
                    dying.sock.sendall("\n".join(lines).encode())
            wait_until(lambda: daemon.stats()["ask_connections"] == 1, "all others have gone")
            self.assertEqual(daemon.stats()["places"], 0)
            self.assertEqual(daemon.stats()["places_tags"], 0)
            self.assertEqual(asker.ask("peek 1 job0 1 job1 1 job2"), "OK 7 7 7")
            report(f"{kills} ends of holders: 0 places leaked, of {daemon.stats()['places_entered']} taken")

    def test_a_query_waits_for_places_too_and_why_says_so(self):
        with AskDaemon(rule(name="jobs", burst=100, in_flight=1)) as daemon, Asker(daemon.ask_path) as asker:
            self.assertEqual(daemon.ask(["job", "job"]), ["OK", "OK"])
            self.assertEqual(asker.ask("enter 1 job"), "OK 0")
            self.assertEqual(daemon.ask(["job"]), ["NO"])
            shown = daemon.admin_json("show job")
            self.assertEqual((shown["verdict"], shown["served_again_in_s"]), ("NO", None))
            self.assertIn("Of 1 places 1 are taken", "\n".join(daemon.admin_json("why job")["steps"]))
            daemon.kill()
            daemon.start()
            self.assertEqual(daemon.ask(["job"]), ["OK"])

    def test_places_are_those_of_all_hosts_and_come_back_from_one_that_dies_after_its_lease(self):
        with self._sharing(hosts=3) as hosts:
            wait_all_hear(hosts)
            self._check_places(*hosts)

    def test_hosts_hear_of_places_by_the_owner_of_the_tag(self):
        with self._sharing(hosts=4, owners=1) as hosts:
            wait_owners_hear(hosts, 1)
            self._check_places(*hosts[1:])

    PERIOD = 0.5    # seconds: a lease is three

    def _sharing(self, **options):
        return Fleet(rule(name="jobs", burst=1e6, rate=1e6, share="debit", in_flight=10), period=f"{self.PERIOD}s",
                     ask={"tcp": "127.0.0.1:0"}, **options)

    def _check_places(self, a, b, c):
        askers = [Asker(("127.0.0.1", ask_port(daemon))) for daemon in (a, b, c)]
        with contextlib.ExitStack() as stack:
            here, there, third = [stack.enter_context(asker) for asker in askers]
            began = time.monotonic()
            for left in range(9, 3, -1):
                self.assertEqual(here.ask("enter 1 job"), f"OK {left}")
            wait_until(lambda: there.ask("peek 1 job") == "OK 4", "a peer has heard of six places")
            heard = time.monotonic() - began
            self.assertEqual(there.ask("give job"), "OK 0")
            for _ in range(4):
                self.assertTrue(there.ask("enter 1 job").startswith("OK "))
            self.assertEqual(there.ask("enter 1 job"), "NO busy - 0 jobs job")
            wait_until(lambda: third.ask("peek 1 job") == "NO busy - 0 jobs job", "all hosts have heard")
            self.assertIn("for other hosts", "\n".join(c.admin_json("why job")["steps"]))
            here.ask("give job job")
            wait_until(lambda: third.ask("peek 1 job") == "OK 2", "two have come back")
            time.sleep(2 * self.PERIOD)    # so what is told again counts for the rest of the lease
            killed = time.monotonic()
            a.kill()
            wait_until(lambda: third.ask("peek 1 job") == "OK 6", "those of the dead host have come back")
            back = time.monotonic() - killed
            self.assertGreater(back, 2 * self.PERIOD - 0.1)
        report(f"places heard of within {heard * 1e3:.0f} ms; of a killed host back after {back:.2f} s, "
               f"with periods of {self.PERIOD} s")

    def test_a_host_that_nobody_hears_takes_back_the_places_that_others_will_have(self):
        with Fleet(rule(name="jobs", burst=1e6, rate=1e6, share="capacity", in_flight=20), period="250ms",
                   ask={"tcp": "127.0.0.1:0"}, capacity={"interval": "250ms", "lease": "3s", "members": ["a", "b"]}) as (a, b):
            with Asker(("127.0.0.1", ask_port(a))) as asker, Asker(("127.0.0.1", ask_port(a))) as other:
                wait_until(lambda: asker.ask("enter 1 job").startswith("OK") and
                           a.admin_json("show job")["places"] >= 5, "places come out of this host's part")
                self.assertLessEqual(a.admin_json("show job")["places"], 20)
                b.kill()
                wait_until(lambda: a.admin_json("show job")["places"] <= 1, "what is beyond the reserve is taken back")
                self.assertEqual(asker.file.readline(), b"")
                self.assertTrue(other.ask("peek 0 job").startswith(("OK", "NO busy")))

    CAPACITY = {"interval": "100ms", "lease": "2s"}

    def _dividing(self, places, names, rate=1e6):
        return rule(name="jobs", burst=1e6, rate=rate, share="capacity", in_flight=places), {
            "hosts": len(names), "names": names, "period": "250ms", "ask": {"tcp": "127.0.0.1:0"},
            "capacity": self.CAPACITY | {"members": names}}

    def test_hosts_with_less_than_a_place_each_have_it_in_turn(self):
        limit, options = self._dividing(1, list("abcd"))
        with Fleet(limit, **options) as hosts, contextlib.ExitStack() as stack:
            askers = [stack.enter_context(Asker(("127.0.0.1", ask_port(host)))) for host in hosts]
            served = [0] * len(askers)

            def all_have_had_it():
                for i, asker in enumerate(askers):
                    if asker.ask("enter 1 job").startswith("OK"):
                        for other in askers:
                            self.assertTrue(other.ask("enter 1 job").startswith("NO busy"))
                        served[i] += 1
                        self.assertEqual(asker.ask("give job"), "OK 1")
                return min(served) > 0

            began = time.monotonic()
            wait_until(all_have_had_it, "each host has had the place", 60)
            report(f"one place among 4 hosts: each has had it after {time.monotonic() - began:.1f} s, {served} times")

    def test_a_change_of_settings_keeps_the_places_that_there_still_are(self):
        limit, options = self._dividing(12, list("abc"))
        with Fleet(limit, **options) as hosts, contextlib.ExitStack() as stack:
            a, b, c = hosts
            first, asker, third = [stack.enter_context(Asker(("127.0.0.1", ask_port(host)))) for host in hosts]
            places = lambda: b.admin_json("show job")["places"]
            wait_until(lambda: asker.ask("enter 0 job").startswith("OK") and places() >= 11, "b has them", 30)

            def for_a_while(what):
                end = time.monotonic() + 9    # longer than places are kept by agreement
                while time.monotonic() < end:
                    had = sum(host.admin_json("show job")["places"] for host in hosts)
                    for other in (first, third):
                        other.ask("enter 0 job")
                    self.assertLessEqual(had, 12, what)
                    self.assertGreaterEqual(places(), 11, what)
                    time.sleep(0.05)

            for host in hosts:
                host.limits = (self._dividing(12, list("abc"), rate=2e6)[0],)
                host.reload()
            for_a_while("another rate")
            for host in hosts:
                host._sections["capacity"]["members"] = list("abcd")
                host.reload()
            for_a_while("another member")
            self.assertEqual(b.stats()["places_taken_back"], 0)
            for host in hosts:
                host.limits = (self._dividing(6, list("abcd"), rate=2e6)[0],)
                host.reload()
            wait_until(lambda: places() == 0, "what is above the new limit is taken back")
            self.assertEqual(asker.file.readline(), b"")
            self.assertGreaterEqual(b.stats()["places_taken_back"], 11)
            self.assertRegex(b.log, "1[12] places of the tag job are taken back")


if __name__ == "__main__":
    unittest.main()
