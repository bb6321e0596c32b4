"""Leases from real daemons: over their sockets, by netcat, by dthrottlectl, through a reload, an upgrade and a restart."""

import signal
import socket
import subprocess
import threading
import time
import unittest

from common import ParallelTest, SystemTest, report
from daemon import (BUILD, DTHROTTLECTL, FIGURES, PATIENCE, SANITIZED, clean_environment, receive_all, rule, run,
                    wait_until)
from leases import LeaseDaemon, LeaseSession, resource

READY = resource("calls", learning_mode_duration="0s")    # nothing to learn: a test's daemon has no past


def lease_of(answer):
    """capacity, seconds, refresh, safe, token"""
    word, *numbers = answer.partition(" learning ")[0].split()
    if word != "lease":
        raise AssertionError(answer)
    return [float(n) for n in numbers]


def leased(daemon):
    """What is leased out of all resources."""
    return sum(row["has"] for row in daemon.leases()["resources"])


def ctl(*words, **options):
    return run(DTHROTTLECTL, "lease", *words, **options)


class Lease(ParallelTest):
    def test_netcat_takes_a_lease_and_gives_it_back(self):
        with LeaseDaemon(READY) as daemon:
            asked = run("nc", "-N", "-U", daemon.lease_path, stdin=b"get sh:1 calls 30\nrelease sh:1 calls\n").stdout
            first, second = asked.splitlines()
            self.assertEqual((lease_of(first)[:3], second), ([30, 60, 16], "released"))
            self.assertEqual(leased(daemon), 0)

    def test_leases_are_shown(self):
        with LeaseDaemon(READY) as daemon:
            daemon.lease("get a calls 80", "get b calls 90", "get a calls 80 80 7", "get b calls 90 20 0")
            shown = daemon.leases()
            self.assertEqual((shown["elector"], shown["here"], shown["master"], shown["note"]),
                             ("none", True, daemon.lease_address, None))
            (row,) = shown["resources"]
            self.assertEqual({k: row[k] for k in ("resource", "algorithm", "capacity", "has", "wants", "clients")},
                             {"resource": "calls", "algorithm": "fair_share", "capacity": 100, "has": 100, "wants": 170,
                              "clients": 2})
            clients = {c["client"]: c for c in daemon.leases("calls")["clients"]}
            self.assertEqual((clients["a"]["has"], clients["a"]["wants"], clients["a"]["priority"]), (50, 80, 7))
            self.assertTrue(0 < clients["b"]["expires_in_s"] <= 60)
            self.assertIn("calls     fair_share", daemon.admin("leases"))
            stats = daemon.stats()
            self.assertEqual((stats["lease_requests"], stats["lease_master"], stats["lease_terms"]), (4, 1, 1))

    def test_a_new_master_learns_what_is_out(self):
        with LeaseDaemon(resource("calls", lease_length="3s", refresh_interval="1s", safe_capacity=10)) as daemon:
            token = int(daemon.lease("discover").split()[2])
            answers = daemon.lease(f"get old calls 50 40 0 {token} 2", "get new calls 50", "get odd calls 50 40")
            self.assertEqual([lease_of(a)[0] for a in answers], [40, 0, 10])
            self.assertGreater(daemon.leases()["resources"][0]["learning_s"], 0)
            wait_until(lambda: lease_of(daemon.lease("get new calls 50"))[0] == 50, "it has learned")

    def test_a_restart_has_a_greater_token(self):
        with LeaseDaemon(READY) as daemon:
            before = lease_of(daemon.lease("get a calls 1"))[4]
            daemon.kill()
            daemon.start()
            self.assertGreater(lease_of(daemon.lease("get a calls 1"))[4], before)

    def test_over_tcp_with_its_address(self):
        with LeaseDaemon(READY, lease={"tcp": "127.0.0.1:0"}) as daemon, \
                socket.create_connection(("127.0.0.1", daemon.lease_port)) as sock:
            sock.settimeout(PATIENCE)
            sock.sendall(b"discover\nget a calls 5\n")
            sock.shutdown(socket.SHUT_WR)
            here, lease = receive_all(sock).decode().splitlines()
            self.assertTrue(here.startswith(f"here tcp:127.0.0.1:{daemon.lease_port} "), here)
            self.assertEqual(lease_of(lease)[0], 5)

    def test_static_mastership(self):
        address = "tcp:127.0.0.1:7"
        with LeaseDaemon(READY, lease={"elector": "static", "master": address, "address": address}) as master, \
                LeaseDaemon(READY, lease={"elector": "static", "master": master.lease_address}) as other:
            self.assertEqual(lease_of(master.lease("get a calls 5"))[0], 5)
            self.assertEqual(master.lease("discover").split()[:2], ["here", address])
            self.assertEqual(other.lease("get a calls 5", "release a calls", "discover"),
                             [f"elsewhere {master.lease_address}"] * 3)
            self.assertFalse(other.leases()["here"])
            # A client of the other one ends up at the master.
            self.assertEqual(ctl("-S", other.lease_address, "calls", "5").returncode, 0)
            self.assertEqual(leased(master), 10)

    def test_other_settings_reach_clients_at_their_next_request(self):
        with LeaseDaemon(READY) as daemon:
            self.assertEqual(lease_of(daemon.lease("get a calls 80"))[0], 80)
            daemon.write_settings(resource("calls", capacity=30, learning_mode_duration="0s"), rule())
            daemon.hang_up()
            self.assertEqual(lease_of(daemon.lease("get a calls 80 80"))[0], 30)
            daemon.write_settings(rule())
            daemon.hang_up()
            self.assertEqual(daemon.lease("get a calls 80 30"), "error no [[resource]] is for calls")

    def test_a_resource_that_leaves_the_settings_and_comes_back_is_not_leased_out_twice(self):
        with LeaseDaemon(READY) as daemon:
            self.assertEqual(lease_of(daemon.lease("get a calls 100"))[0], 100)
            for limits in ([rule()], [READY, rule()]):
                daemon.write_settings(*limits)
                daemon.hang_up()
            self.assertEqual(leased(daemon), 100)
            self.assertEqual(lease_of(daemon.lease("get b calls 100"))[0], 0)

    def test_longer_leases_and_new_resources_put_no_master_back_into_learning_mode(self):
        short = {"lease_length": "2s", "refresh_interval": "1s"}
        with LeaseDaemon(resource("calls", **short)) as daemon:
            wait_until(lambda: lease_of(daemon.lease("get a calls 60"))[0] == 60, "it has learned")
            daemon.write_settings(resource("calls", **{**short, "lease_length": "1h"}),
                                  resource("fresh", lease_length="1h"), rule())
            daemon.hang_up()
            for answer in daemon.lease("get a calls 80", "get a fresh 30"):
                self.assertNotIn("learning", answer)
                self.assertGreater(lease_of(answer)[0], 0)

    def goes_on(self, change):
        """Leases, mastership and what was learned stay."""
        with LeaseDaemon(resource("calls", learning_mode_duration="1s")) as daemon:
            daemon.lease("get a calls 80")
            wait_until(lambda: daemon.leases()["resources"][0]["learning_s"] is None, "it has learned")
            before = lease_of(daemon.lease("get a calls 80"))
            self.assertEqual(before[0], 80)
            change(daemon)
            (row,) = daemon.leases()["resources"]
            self.assertEqual((row["has"], row["clients"], row["learning_s"]), (80, 1, None))
            self.assertEqual(lease_of(daemon.lease("get b calls 80"))[0], 20)    # what is left
            after = lease_of(daemon.lease(f"get a calls 80 80 0 {before[4]:.0f} 50"))
            self.assertEqual((after[0], after[4]), (50, before[4]))

    def test_after_an_upgrade_leases_go_on(self):
        def upgrade(daemon):
            daemon.signal(signal.SIGUSR2)
            wait_until(lambda: daemon.log.count(" ready: ") == 2, "the other program is there")
        self.goes_on(upgrade)

    def test_after_an_orderly_restart_leases_go_on(self):
        def restart(daemon):
            daemon.stop()
            daemon.start()
        self.goes_on(restart)

    def test_bounds_are_kept_and_counted(self):
        with LeaseDaemon(READY, lease={"max_connections": 2, "max_clients": 3}) as daemon:
            with LeaseSession(daemon.lease_path) as one, LeaseSession(daemon.lease_path) as two, \
                    LeaseSession(daemon.lease_path) as three:
                two.ask("discover")
                with self.assertRaises(OSError):
                    three.ask("discover")
                answers = one.ask(*(f"get c{i} calls 1" for i in range(4)))
                self.assertEqual([a.split()[0] for a in answers], ["lease"] * 3 + ["error"])
                self.assertIn("holds as many", answers[3])
            stats = daemon.stats()
            self.assertEqual((stats["lease_connections_rejected"], stats["lease_full"]), (1, 1))

    def test_who_is_idle_is_hung_up_on_and_keeps_his_lease(self):
        with LeaseDaemon(READY, lease={"idle_timeout": "3s"}) as daemon:
            with LeaseSession(daemon.lease_path) as session:
                session.ask("get a calls 5")
                self.assertEqual(session.sock.recv(1), b"")
            self.assertEqual(leased(daemon), 5)

    def test_who_does_not_read_is_not_read_from(self):
        with LeaseDaemon(READY) as daemon, socket.socket(socket.AF_UNIX) as sock:
            sock.connect(daemon.lease_path)
            sock.setblocking(False)
            sent = 0
            for _ in range(100_000):
                try:
                    sent += sock.send(b"discover\n" * 1000)
                except BlockingIOError:
                    if daemon.stats()["connections_stalled"] > 0:
                        break
                    time.sleep(0.01)
            self.assertGreater(daemon.stats()["connections_stalled"], 0)
            self.assertLess(sent, 4 << 20)
            self.assertEqual(lease_of(daemon.lease("get a calls 1"))[0], 1)    # others are served

    def test_ctl_prints_a_lease_that_goes_on_and_can_be_renewed(self):
        with LeaseDaemon(READY) as daemon:
            for wants in ("12.5", "20"):
                done = ctl("-S", daemon.lease_address, "-c", "job", "calls", wants)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                facts = dict(line.split() for line in done.stdout.splitlines())
                self.assertEqual((facts["capacity"], facts["refresh_s"]), (wants, "16.000"))
                self.assertEqual(int(facts["token"]), daemon.leases()["token"])
            (client,) = daemon.leases("calls")["clients"]
            self.assertEqual((client["client"], client["has"]), ("job", 20))

    def test_ctl_finds_the_lease_socket_beside_the_admin_socket(self):
        with LeaseDaemon(READY) as daemon:
            done = run(DTHROTTLECTL, "-s", daemon.admin_path, "lease", "calls", "3")
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_ctl_says_what_is_wrong(self):
        with LeaseDaemon(READY) as daemon:
            address = daemon.lease_address
            for words, code, text in ((("-S", address, "-t", "5", "nothing", "3"), 69, "no [[resource]] is for"),
                                      (("-S", "unix:/nonexistent", "-t", "0.3", "calls", "3"), 69, "cannot be reached"),
                                      (("-S", "nowhere", "calls", "3"), 64, "nowhere"),
                                      (("-S", address, "calls", "much"), 64, "much"),
                                      (("-S", address, "calls"), 64, "WANTS"),
                                      (("-S", address, "a b", "3"), 64, "a b"),
                                      (("-S", address, "-c", "a b", "calls", "3"), 64, "--client: \"a b\""),
                                      (("-S", address, "-c", "a\tb", "calls", "3"), 64, "--client: "),
                                      (("-S", address, "-c", 256 * "x", "calls", "3"), 64, "255 bytes")):
                done = ctl(*words)
                self.assertEqual(done.returncode, code, done)
                self.assertIn(text, done.stderr)

    def test_ctl_passes_lines_at_the_leased_rate_and_releases_it(self):
        with LeaseDaemon(READY) as daemon:
            began = time.monotonic()
            done = ctl("-S", daemon.lease_address, "calls", "50", "--", "sh", "-c", "cat; exit 3",
                       stdin=b"".join(b"line %d\n" % i for i in range(60)) + b"the last without LF")
            took = time.monotonic() - began
            self.assertEqual(done.returncode, 3, done.stderr)
            lines = done.stdout.splitlines()
            self.assertEqual((len(lines), lines[0], lines[-1]), (61, "line 0", "the last without LF"))
            self.assertGreater(took, (61 - 6) / 50)
            wait_until(lambda: leased(daemon) == 0, "it is released")

    def test_ctl_says_for_how_long_a_new_master_learns(self):
        with LeaseDaemon(resource("calls")) as daemon:
            self.assertRegex(daemon.lease("get a calls 5"), r"^lease 0 .* learning [0-9]+\.[0-9]{3}$")
            self.assertRegex(ctl("-S", daemon.lease_address, "calls", "5").stdout, r"(?m)^learning_s +[0-9]+\.[0-9]{3}$")
            with subprocess.Popen([str(DTHROTTLECTL), "lease", "-S", daemon.lease_address, "calls", "5", "--", "cat"],
                                  stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment()) as waiting:
                waiting.stdin.write("x\n")
                waiting.stdin.flush()
                self.assertRegex(waiting.stderr.readline(), "the lease server is new.*: it learns for another [0-9]+ s\n")
                waiting.send_signal(signal.SIGTERM)

    def test_ctl_ends_with_its_command_and_its_command_with_it(self):
        with LeaseDaemon(READY) as daemon:
            # The command goes away first.
            done = ctl("-S", daemon.lease_address, "calls", "100", "--", "head", "-n", "2", stdin=b"x\n" * 20)
            self.assertEqual((done.returncode, done.stdout), (0, "x\nx\n"))
            self.assertEqual(ctl("-S", daemon.lease_address, "calls", "5", "--", "/nonexistent").returncode, 127)
            # It is told to end.
            process = subprocess.Popen(
                [str(DTHROTTLECTL), "lease", "-S", daemon.lease_address, "calls", "5", "--", "sleep", "1000"],
                stdin=subprocess.PIPE, env=clean_environment())
            with process:
                wait_until(lambda: daemon.leases()["resources"], "it has a lease")
                process.send_signal(signal.SIGTERM)
                self.assertEqual(process.wait(PATIENCE), 128 + signal.SIGTERM)
            wait_until(lambda: leased(daemon) == 0, "it is released")


class Holder:
    """A process that takes places of a gauge: how many it has now, the most at once, and when it had the first."""

    def __init__(self, daemon, wants):
        self.now = self.most = self.taken = 0
        self.first = None
        self.process = subprocess.Popen([str(BUILD / "test/hold_places"), daemon.lease_address, "places", str(wants)],
                                        stdout=subprocess.PIPE, bufsize=0, env=clean_environment())
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        while data := self.process.stdout.read(1):
            self.now += 1 if data == b"+" else -1
            self.taken += data == b"+"
            self.most = max(self.most, self.now)
            self.first = self.first or time.monotonic()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.returncode is None:
            self.kill()


class Gauge(SystemTest):
    def test_no_more_places_are_taken_than_leased_also_when_holders_die(self):
        """Six places, two for each of three. Whatever a dead holder had begun may still go on somewhere, so its places
        count as taken until its lease is over. Who has to give back a place does so when its work there is done."""
        places = resource("places", capacity=6, lease_length="3s", refresh_interval="1s", learning_mode_duration="0s")
        with LeaseDaemon(places) as daemon, Holder(daemon, 2) as one, Holder(daemon, 2) as two, \
                Holder(daemon, 2) as three:
            for holder in (one, two, three):
                wait_until(lambda h=holder: h.most == 2 and h.taken > 50, "both of its places are in use")
            one.kill()
            (dead,) = [c for c in daemon.leases("places")["clients"] if f":{one.process.pid}:" in c["client"]]
            over = time.monotonic() + dead["expires_in_s"]
            with Holder(daemon, 2) as heir:
                too_many_since = None
                until = over + 8
                while (now := time.monotonic()) < until:
                    taken = two.now + three.now + heir.now + (2 if now < over else 0)
                    too_many_since = (too_many_since or now) if taken > 6 else None
                    # Who has to give back a place does it when it next runs. A place that was granted twice stays so.
                    self.assertLess(now - (too_many_since or now), 5, f"{taken} places are taken")
                    self.assertLessEqual(daemon.leases("places")["resources"][0]["has"], 6)
                    time.sleep(0.01)
                wait_until(lambda: heir.most == 2, "the heir has both places")
                self.assertEqual([h.most for h in (one, two, three, heir)], [2, 2, 2, 2])


class ManyLeases(SystemTest):
    def test_many_clients_are_held_and_refreshed(self):
        """The figures: 100,000 clients held, at least 50,000 gets a second of the daemon's CPU."""
        clients, rounds = (5_000, 1) if SANITIZED else (100_000, 3 if FIGURES else 1)
        with LeaseDaemon(resource("calls", capacity=clients, learning_mode_duration="0s")) as daemon, \
                LeaseSession(daemon.lease_path) as session:

            def refresh(wants):
                answered = 0
                for first in range(0, clients, 500):
                    answers = session.ask(*(f"get batch-{i}.example.org:{i} calls {wants}"
                                            for i in range(first, min(first + 500, clients))))
                    answered += sum(a.startswith("lease ") for a in answers)
                self.assertEqual(answered, clients)

            memory = daemon.resident_bytes()
            refresh(0.5)
            per_client = (daemon.resident_bytes() - memory) / clients
            before = daemon.stats()["cpu"]
            for i in range(rounds):
                refresh(0.5 + i / 4)
            gets = rounds * clients / (daemon.stats()["cpu"] - before)
            (row,) = daemon.leases()["resources"]
            self.assertEqual(row["clients"], clients)
            report(f"{clients} clients held in {per_client:.0f} bytes each; {gets:.0f} gets a second of CPU")
            if FIGURES:
                self.assertGreater(gets, 50_000)


if __name__ == "__main__":
    unittest.main()
