"""Daemons whose frames go over a real nats-server: two of them own all tags, and none has the address of another."""

import contextlib
import secrets
import shutil
import signal
import time
import unittest

from authority import Authority
from common import ParallelTest, report
from daemon import DTHROTTLED, PATIENCE, fresh_directory, rule, run, settings_text, wait_until
from fleet import Ledger, Traffic, free_port_pair, settle_owners, wait_owners_hear
from nats import AVAILABLE, PREFIX, WHY_NOT, NatsFleet, Server, Wire, make_nkey, permissions, secret, token
from test_upgrade import upgrade

HOSTS = 5
OWNERS = 2
BURST = 40
LIMIT = rule(burst=BURST, rate=0.01, share="forecast")
PLENTY = rule(burst=20_000, share="debit")
NAMES = [f"{'owner' if i < OWNERS else 'web'}-{i}.test" for i in range(HOSTS)]


def wait_up(hosts, owners=OWNERS):
    wait_owners_hear(hosts, owners)


def notes(host):
    return [row["note"] or "" for row in host.admin_json("peers")]


def stat(host, name):
    return host.admin_json("stats")[name]


@contextlib.contextmanager
def directory_of_its_own():
    directory = fresh_directory()
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def settings_file(directory, **peers):
    """Of one host, which owns all tags."""
    path = directory / "settings.toml"
    path.write_text(settings_text(directory, LIMIT, peers={
        "transport": "nats", "nats": ["nats://127.0.0.1:1"], "spread": "owners", "owners": ["a"], **peers}))
    return path


@contextlib.contextmanager
def with_users(password=lambda name: f"pass-{name}", names=NAMES):
    """A server that binds each host to its name by a password, and where hosts have theirs."""
    users = [{"user": name, "password": f"pass-{name}", "permissions": permissions(name, i < OWNERS)}
             for i, name in enumerate(names)]
    with directory_of_its_own() as directory, Server(users=users) as server:
        yield server, lambda name: secret(directory, name, f"{name}:{password(name)}")


@unittest.skipUnless(AVAILABLE, WHY_NOT)
class Nats(ParallelTest):
    def _check_one_bucket(self, hosts, tags=3):
        for tag in (f"client-{n}" for n in range(tags)):
            served = 0
            for host in hosts:
                served += host.served(tag, BURST // 2)
                time.sleep(0.3)    # up to the owner, and down again
            self.assertGreaterEqual(served, BURST)
            self.assertLessEqual(served, BURST * 1.2)

    def test_hosts_have_one_bucket_and_open_no_port(self):
        with with_users() as (server, credentials):
            with NatsFleet(LIMIT, urls=[server.url()], names=NAMES, credentials=credentials) as hosts:
                wait_up(hosts)
                self._check_one_bucket(hosts)
                self.assertEqual({row["address"] for row in hosts[-1].admin_json("peers")},
                                 {f"nats:{name}" for name in NAMES[:OWNERS]})
                self.assertEqual([stat(host, "nats_errors") for host in hosts], [0] * HOSTS)

    def test_a_server_that_takes_no_long_frames_is_named_and_what_it_does_not_take_is_counted(self):
        with Server(settings={"max_payload": 8192}) as server:
            with NatsFleet(PLENTY, urls=[server.url()], hosts=2, owners=1) as (owner, host):
                wait_up([owner, host], 1)
                self.assertTrue(any("max_payload is 8192" in note for note in notes(host)), notes(host))
                self.assertIn("max_payload is 8192", host.log)

                def has_lost():    # however many periods the questions take
                    host.ask([secrets.token_hex(16) for _ in range(2_000)])
                    return stat(host, "peer_unsent") > 0
                wait_until(has_lost, "a long frame is lost", PATIENCE)

    def test_a_frame_in_the_name_of_another_is_refused_and_counted(self):
        fleet = contextlib.ExitStack()
        with fleet, Server() as server, Wire(server) as wire:
            owner, other, host, forger = NAMES[0], NAMES[1], NAMES[2], NAMES[3]
            wire.subscribe(f"{PREFIX}.>")
            hosts = fleet.enter_context(NatsFleet(LIMIT, urls=[server.url()], names=NAMES))
            wait_up(hosts)
            hosts[2].served("client", 5)

            def heard(verb, sender, receiver, kind):
                while True:
                    subject, body = wire.message()
                    if subject == f"{PREFIX}.{verb}.{token(sender)}.{token(receiver)}" and kind in body:
                        return body
            asked, answered = heard("ask", host, owner, b"hello"), heard("answer", owner, host, b"levels")
            before = stat(hosts[0], "peer_strangers"), stat(hosts[2], "peer_forged")
            wire.publish(f"{PREFIX}.ask.{token(forger)}.{token(owner)}", asked)
            wire.publish(f"{PREFIX}.answer.{token(other)}.{token(host)}", answered)
            wait_until(lambda: stat(hosts[0], "peer_strangers") == before[0] + 1, "a request in another's name", PATIENCE)
            wait_until(lambda: stat(hosts[2], "peer_forged") == before[1] + 1, "an answer in another's name", PATIENCE)
            junk = stat(hosts[2], "peer_junk")
            wire.publish(f"{PREFIX}.answer.{token(forger)}.{token(host)}", answered)    # no owner
            wire.publish(f"{PREFIX}.answer.{token(owner)}.{token(host)}", b"x" * 100_000)
            wait_until(lambda: stat(hosts[2], "peer_junk") >= junk + 2, "frames of no owner, or too long", PATIENCE)
            self._check_one_bucket(hosts, tags=1)

    def test_the_server_lets_nobody_publish_or_hear_for_another(self):
        with with_users() as (server, credentials):
            with NatsFleet(LIMIT, urls=[server.url()], names=NAMES, credentials=credentials) as hosts:
                wait_up(hosts)
                before = stat(hosts[0], "peer_strangers")
                with Wire(server, NAMES[3], f"pass-{NAMES[3]}") as wire:
                    said = wire.publish(f"{PREFIX}.ask.{token(NAMES[2])}.{token(NAMES[0])}", b"x")
                    self.assertIn("Permissions Violation for Publish", str(said))
                    self.assertIn("Permissions Violation for Publish",
                                  str(wire.publish(f"{PREFIX}.answer.{token(NAMES[3])}.{token(NAMES[2])}", b"x")))
                    wire.subscribe(f"{PREFIX}.>")
                    time.sleep(1)
                    wire.sock.sendall(b"PING\r\n")
                    wire.flush()
                    self.assertEqual(wire.said, [])
                self.assertEqual(stat(hosts[0], "peer_strangers"), before)

    def test_a_server_that_is_killed_costs_no_hit(self):
        with Server() as server, NatsFleet(PLENTY, urls=[server.url()], names=NAMES) as hosts:
            wait_up(hosts)
            ledger = Ledger()
            with Traffic(ledger, hosts):
                time.sleep(1)
                server.kill()
                wait_until(lambda: any("ended" in note or "refused" in note.lower() for note in notes(hosts[-1])),
                           "the host says that the server is gone", PATIENCE)
                time.sleep(2)
                self.assertGreater(hosts[-1].served("meanwhile", 10), 0)
                server.start()
                began = time.monotonic()
                wait_up(hosts)
                report(f"all hosts hear each other {time.monotonic() - began:.1f} s after the server is back")
                time.sleep(1)
            settle_owners(ledger, hosts[:OWNERS])
            for host in hosts:
                self.assertEqual([stat(host, name) for name in ("reports_lost", "nats_connects")], [0, 2])
            self.assertIn("is lost", hosts[-1].log)

    def test_a_server_that_comes_after_its_hosts_is_no_trouble(self):
        server = Server()
        with contextlib.closing(contextlib.ExitStack()) as closing:
            hosts = closing.enter_context(NatsFleet(LIMIT, urls=[server.url()], names=NAMES))
            wait_until(lambda: all("No server" in " ".join(notes(host)) for host in hosts), "it is not there", PATIENCE)
            closing.enter_context(server)
            wait_up(hosts)
            for host in hosts:
                rows = [(row["address"], row["note"]) for row in host.admin_json("peers") if row["address"] == server.url()]
                self.assertEqual(rows, [])

    def test_a_server_that_stands_still_holds_nobody_up(self):
        with Server() as server, NatsFleet(PLENTY, urls=[server.url()], names=NAMES) as hosts:
            wait_up(hosts)
            ledger = Ledger()
            with Traffic(ledger, hosts) as traffic:
                time.sleep(1)
                server.process.send_signal(signal.SIGSTOP)
                time.sleep(2)
                for host in hosts:
                    began = time.monotonic()
                    self.assertEqual(host.served("meanwhile", 100), 100)
                    self.assertLess(time.monotonic() - began, 1)
                with traffic.pause(hosts[-1]):
                    began = time.monotonic()
                    hosts[-1].stop()
                    self.assertLess(time.monotonic() - began, 5)
                    server.process.send_signal(signal.SIGCONT)
                    hosts[-1].start()
                time.sleep(1)
            wait_up(hosts)
            settle_owners(ledger, hosts[:OWNERS])

    def test_who_is_turned_away_says_so_and_goes_on(self):
        with with_users(password=lambda name: "wrong" if name == NAMES[-1] else f"pass-{name}") as (server, credentials):
            with NatsFleet(LIMIT, urls=[server.url()], names=NAMES, credentials=credentials) as hosts:
                away = hosts[-1]
                wait_until(lambda: any("Authorization Violation" in note for note in notes(away)), "it says why", PATIENCE)
                self.assertEqual(away.served("client", 100), BURST)    # by itself
                self.assertIn("Authorization Violation", away.log)
                self.assertGreater(stat(away, "nats_errors"), 0)
                for user in server.settings["authorization"]["users"]:
                    if user["user"] == NAMES[-1]:
                        user["password"] = "wrong"
                server.give(server.settings["authorization"]["users"])
                server.process.send_signal(signal.SIGHUP)
                wait_up(hosts)

    def test_what_the_server_does_not_allow_is_counted_and_shown(self):
        with with_users() as (server, credentials):
            mute = server.settings["authorization"]["users"][-1]
            mute["permissions"]["publish"] = ["nothing"]
            server.give(server.settings["authorization"]["users"])
            server.process.send_signal(signal.SIGHUP)
            with NatsFleet(LIMIT, urls=[server.url()], names=NAMES, credentials=credentials) as hosts:
                wait_until(lambda: any("Permissions Violation for Publish" in note for note in notes(hosts[-1])),
                           "it says what is not allowed", PATIENCE)
                row, = (row for row in hosts[-1].admin_json("peers") if "Permissions Violation" in (row["note"] or ""))
                self.assertEqual((row["address"], row["state"]), (server.url(), "up"))
                self.assertGreater(stat(hosts[-1], "nats_errors"), 0)

    def test_an_owner_that_is_allowed_to_subscribe_later_is_heard_then(self):
        with with_users() as (server, credentials):
            users = server.settings["authorization"]["users"]
            users[0]["permissions"] = permissions(NAMES[0], False)
            server.give(users)
            server.process.send_signal(signal.SIGHUP)
            with NatsFleet(LIMIT, urls=[server.url()], names=NAMES, credentials=credentials) as hosts:
                wait_until(lambda: any("Violation for Subscription" in note for note in notes(hosts[0])),
                           "it says what is not allowed", PATIENCE)
                users[0]["permissions"] = permissions(NAMES[0], True)
                server.give(users)
                server.process.send_signal(signal.SIGHUP)
                wait_up(hosts)
                self.assertEqual(stat(hosts[0], "nats_connects"), 1)

    def test_an_upgrade_and_a_restart_go_on_where_they_left_off(self):
        with Server() as server, NatsFleet(PLENTY, urls=[server.url()], names=NAMES) as hosts:
            wait_up(hosts)
            ledger = Ledger()
            with Traffic(ledger, hosts) as traffic:
                for host in (hosts[0], hosts[-1]):
                    with traffic.pause(host):
                        upgrade(host)
                    with traffic.pause(host):
                        host.stop()
                        host.start()
                time.sleep(1)
            wait_up(hosts)
            settle_owners(ledger, hosts[:OWNERS])

    def test_a_reload_of_one_owner_puts_other_owners_in_force_and_costs_no_hit(self):
        leaves, stays, joins = range(3)
        names = [NAMES[stays], NAMES[joins]]
        with with_users() as (server, credentials):
            with NatsFleet(PLENTY, urls=[server.url()], names=NAMES, credentials=credentials) as hosts:
                wait_up(hosts)
                server.settings["authorization"]["users"][joins]["permissions"] = permissions(NAMES[joins], True)
                server.give(server.settings["authorization"]["users"])
                server.process.send_signal(signal.SIGHUP)
                wait_until(lambda: "Reloaded server configuration" in server.log(), "it has the permissions", PATIENCE)
                wait_up(hosts)
                ledger = Ledger()
                with Traffic(ledger, hosts):
                    time.sleep(1)
                    hosts[stays].reload(owners=names)
                    wait_until(lambda: all(stat(host, "owners_list") == 2 for host in hosts), "all have it", PATIENCE)
                    time.sleep(2)
                settle_owners(ledger, [hosts[stays], hosts[joins]])
                for host in hosts:
                    self.assertEqual([stat(host, name) for name in ("owners_missed", "owners_dropped", "nats_errors")],
                                     [0, 0, 0])
                self.assertEqual([stat(host, "owners_differ") for host in hosts], [1, 0, 1, 1, 1])
                for host in hosts[:stays] + hosts[joins:]:
                    host.reload(owners=names)
                wait_until(lambda: not any(stat(host, "owners_differ") for host in hosts), "all name them", PATIENCE)
                wait_until(lambda: {row["address"] for row in hosts[-1].admin_json("peers")} ==
                           {f"nats:{name}" for name in names}, "the host calls the new owners alone", PATIENCE)

    def test_tls_with_certificates_of_hosts(self):
        with Authority() as authority:
            authority.sign("server")
            users = []
            for i, name in enumerate(NAMES):
                authority.sign(name)
                users.append({"user": f"CN={name}", "permissions": permissions(name, i < OWNERS)})
            root = str(authority.certificate)
            tls = {"cert_file": f"{authority.folder}/server.pem", "key_file": f"{authority.folder}/server.key",
                   "ca_file": root, "verify_and_map": True}
            with Server(users=users, tls=tls) as server:
                hosts = NatsFleet(LIMIT, urls=[server.url("tls")], names=NAMES, peers={"nats_ca": root})
                for host in hosts.hosts:
                    host.peers.update(nats_certificate=f"{authority.folder}/{host.name}.pem",
                                      nats_key=f"{authority.folder}/{host.name}.key")
                    host.write_settings(*host.limits)
                with hosts as daemons:
                    wait_up(daemons)
                    self._check_one_bucket(daemons, tags=1)

    def test_a_server_with_another_s_certificate_is_not_believed(self):
        with Authority() as authority, Authority() as other:
            authority.sign("server")
            tls = {"cert_file": f"{authority.folder}/server.pem", "key_file": f"{authority.folder}/server.key"}
            with Server(tls=tls) as server:
                for ca, host, says in ((other, "127.0.0.1", "SSL"), (authority, "localhost", "SSL")):
                    with self.subTest(host=host), NatsFleet(
                            LIMIT, urls=[f"tls://{host}:{server.port}"], names=["owner", "web"], hosts=2, owners=1,
                            peers={"nats_ca": str(ca.certificate)}) as hosts:
                        wait_until(lambda: any(says in note for note in notes(hosts[1])), "it says why", PATIENCE)
                        self.assertEqual(stat(hosts[1], "nats_connects"), 0)

    def test_nkeys(self):
        with directory_of_its_own() as directory:
            made = {name: make_nkey(directory, name) for name in NAMES}
            users = [{"nkey": made[name][0], "permissions": permissions(name, i < OWNERS)} for i, name in enumerate(NAMES)]
            with Server(users=users) as server, NatsFleet(
                    LIMIT, urls=[server.url()], names=NAMES, credentials=lambda name: made[name][1]) as hosts:
                wait_up(hosts)
                self._check_one_bucket(hosts, tags=1)

    def test_one_of_two_servers_is_killed(self):
        ports = [free_port_pair(), free_port_pair()]
        with Server(cluster=ports[0], routes=[ports[1]]) as first, Server(cluster=ports[1], routes=[ports[0]]) as second:
            with NatsFleet(PLENTY, urls=[first.url()], names=NAMES) as hosts:    # they learn of the second
                wait_up(hosts)
                ledger = Ledger()
                with Traffic(ledger, hosts):
                    time.sleep(1)
                    first.kill()
                    wait_until(lambda: all(stat(host, "nats_connects") == 2 for host in hosts), "all are at the second",
                               PATIENCE)
                    time.sleep(1)
                wait_up(hosts)
                settle_owners(ledger, hosts[:OWNERS])
                self.assertIn(str(second.port), hosts[-1].log)

    def test_credentials_that_are_open_or_no_credentials_are_refused(self):
        with directory_of_its_own() as directory:
            for text, mode, says in (("a:b", 0o644, "is open to others"), ("neither", 0o600, "is not the seed of an nkey"),
                                     ("a\nb", 0o600, "must be one line"), (":b", 0o600, "is empty")):
                path = secret(directory, "odd", text)
                path.chmod(mode)
                with self.subTest(says=says):
                    done = run(DTHROTTLED, "--config", settings_file(directory, nats_credentials=str(path)))
                    self.assertIn(f"peers.nats_credentials: {path}: ", done.stderr)
                    self.assertIn(says, done.stderr)
                    self.assertNotEqual(done.returncode, 0)

    def test_a_program_without_the_module_says_what_is_missing(self):
        with directory_of_its_own() as directory:
            alone = directory / "dthrottled"
            run("cp", DTHROTTLED, alone)    # not by this process, whose children of other tests would hold it open
            for words in ("--check", "--config"):
                done = run(alone, words, settings_file(directory))
                self.assertIn("dthrottle-nats.so is not there: install the package dthrottle-nats",
                              done.stdout + done.stderr)
                self.assertNotEqual(done.returncode, 0)
