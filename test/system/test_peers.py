"""Daemons on one host that share limits: whatever one of them serves, all of them charge, once."""

import concurrent.futures
import contextlib
import os
import random
import shutil
import signal
import socket
import struct
import time

from common import ParallelTest, SystemTest, report
from daemon import (
    DTHROTTLECTL, DTHROTTLED, PATIENCE, SANITIZED, Daemon, override, rule, run, settings_text, wait_until)
from fleet import BURST, Fleet, Host, Ledger, all_hear, free_port_pair, make_keys, wait_all_hear

MEBIBYTE = 1 << 20
EX_USAGE, EX_UNAVAILABLE, EX_CANTCREAT, EX_CONFIG = 64, 69, 73, 78
SLOW = 10 if SANITIZED else 1


def nobody():
    """An address of loopback where nobody listens."""
    return f"tcp://127.0.0.1:{free_port_pair()}"


class Story(ParallelTest):
    """Two hosts serve ten and eight queries of a client that may have ten, and both know it."""

    def test_two_hosts_as_in_the_first_description(self):
        with Fleet(rule(burst=10, rate=1.0), period="5s") as (a, b):
            for tag in ("C", "D", "E", "F"):    # another one if a report crossed between the two hosts just then
                asked = time.monotonic()
                served = a.served(tag, 10), b.served(tag, 8)
                took = time.monotonic() - asked    # a token may have come back where a machine holds somebody up
                if served == (10, 8) and took < 0.5:
                    break
            self.assertEqual(served, (10, 8))

            def since():
                return time.monotonic() - asked

            def check_level(host):
                """8 below none when they were asked, and a token a second since then, whenever the answer was made."""
                before = since()
                level = host.level(tag)
                self.assertGreater(level, 10 - 18 + before - took - 0.1)
                self.assertLess(level, 10 - 18 + since() + 0.1)

            def knows(host):
                """Whether it is in the debt of all 18 hits, and not of its own 10 or 8."""
                return host.level(tag) < 10 - 18 + since() + 4
            wait_until(lambda: knows(a) and knows(b), "both know of all hits")
            heard = since()
            for host in (a, b):
                check_level(host)
            refused, again = {}, {}    # when the last question was sent that was refused, and the first served came back

            def served_again():
                for host in (a, b):
                    before = since()
                    if host not in again and host.ask([tag]) == ["OK"]:
                        again[host] = since()
                    elif host not in again:
                        refused[host] = before
                return len(again) == 2
            wait_until(served_again, "both serve again")
            report(f"both knew of 18 hits {heard:.2f} s after them; served again {again[a]:.2f} and "
                   f"{again[b]:.2f} s after them, 9 s foretold")
            for host in (a, b):
                self.assertGreater(again[host], 9 - 0.1)
                self.assertLess(refused.get(host, 0), 9 + took + 0.1)

    def test_three_hosts_with_tags_of_all_kinds(self):
        long_tag = "long-" + "x" * 1000
        limits = (rule(name="here", match="here:*", burst=BURST, share="local"),
                  rule(name="shadow", match="shadow:*", burst=12, mode="shadow"),
                  rule(name="off", match="off:*", burst=5, mode="off"),
                  rule(burst=BURST), override("special", burst=BURST + 1))
        with Fleet(*limits, hosts=3, query={"max_tag_bytes": 100}) as hosts:
            wait_all_hear(hosts)
            ledger = Ledger()
            for i, host in enumerate(hosts):
                for tag in ("C", long_tag, "with space", f"own-{i}"):
                    ledger.serve(host, tag, 10 ** i + len(tag))
                self.assertEqual(host.served("here:C", 10 + i), 10 + i)
                self.assertEqual(host.served("shadow:C", 4), 4)
                self.assertEqual(host.served("off:C", 9), 9)
                self.assertEqual(host.served("special", 3), 3)
            ledger.settle(hosts)
            wait_until(lambda: all(host.level("special") < BURST + 1 - 8.5 for host in hosts), "the last hits are known")
            for i, host in enumerate(hosts):
                self.assertAlmostEqual(host.level("here:C"), BURST - 10 - i, delta=0.2)
                self.assertAlmostEqual(host.level("shadow:C"), 12 - 12, delta=0.2)
                self.assertEqual(host.served("shadow:C", 1), 1)
                self.assertAlmostEqual(host.level("special"), BURST + 1 - 9, delta=0.2)
                self.assertEqual(host.level("off:C"), 5)
                self.assertEqual(host.stats()["reports_lost"], 0)

    def test_hits_of_both_before_either_has_heard_of_the_other(self):
        in_time = turns = 0
        while in_time < 3 and turns < 12:    # the phase of the first report is random
            turns += 1
            with self.subTest(turns), Fleet(rule(burst=BURST), period="2s") as hosts:
                ledger = Ledger()
                for _ in range(4):
                    for i, host in enumerate(hosts):
                        ledger.serve(host, "C", 10 + i)
                    time.sleep(0.1)
                in_time += not all_hear(hosts)    # a busy machine may be too slow for the story
                ledger.settle(hosts)
        self.assertGreater(in_time, 0)

    def test_the_last_hits_before_sigterm_are_heard(self):
        with Fleet(rule(burst=BURST), period="5s") as (a, b):
            wait_all_hear((a, b))
            ledger = Ledger()
            ledger.serve(a, "C", 17)
            time.sleep(0.01)
            a.stop()
            took = ledger.settle([b])    # of whom has left, so that no report of a later period can have told it
            report(f"hits of 10 ms before SIGTERM were known {took:.2f} s later; the period is 5 s")


class Restarts(ParallelTest):
    """A host that comes back has what it had, what the others did meanwhile, and nothing twice."""

    def restart(self, end, keep_table):
        with Fleet(rule(burst=BURST), period="1s") as (a, b):
            wait_all_hear((a, b))
            ledger = Ledger()
            ledger.serve(a, "C", 100)
            ledger.serve(a, "of-a", 11)
            ledger.serve(b, "C", 50)
            ledger.settle((a, b), quiet=0.3)
            for host, other in ((a, b), (b, a)):
                if keep_table or end == "stop":
                    # What has just been collected for a report is in no table, and on no wire for a moment.
                    sent = host.stats()["reports_sent"]
                    wait_until(lambda: host.stats()["reports_sent"] > sent, "a report goes out")
                    ledger.serve(host, "last", 7)    # no report of it has gone out by itself
                if end == "stop":
                    host.stop()
                else:
                    host.kill()
                if not keep_table:
                    host.forget()
                ledger.serve(other, "C", 30)
                ledger.serve(other, "meanwhile", 5)
                host.start()
                ledger.serve(host, "C", 9)    # at once
                ledger.settle((a, b))
                if end == "stop" and keep_table:    # it went on as the host that it was
                    self.assertEqual(host.stats()["snapshots_taken"], 0)
                else:
                    self.assertGreaterEqual(host.stats()["snapshots_taken"], 1)
                    self.assertGreaterEqual(other.stats()["snapshots_given"], 1)
                ledger.serve(host, "C", 4)
                ledger.serve(other, "C", 3)
                ledger.settle((a, b), quiet=0.3)

    def test_sigterm_and_the_table_is_kept(self):
        self.restart("stop", keep_table=True)

    def test_sigterm_and_the_table_is_lost(self):
        self.restart("stop", keep_table=False)

    def test_kill_and_the_table_is_kept(self):
        self.restart("kill", keep_table=True)

    def test_kill_and_the_table_is_lost(self):
        self.restart("kill", keep_table=False)

    def test_an_incarnation_file_with_any_number_in_it(self):
        # Of two each, the second is that of a clock which has gone back, or of a file that has been mended.
        pairs = ((b"18446744073709551615\n", b"1\n"), (b"9" * 20, b"0"), (b"%d\n" % 2 ** 62, b""),
                 (b"%d\n" % (2 ** 62 - 1), b"1\n"))

        def restart_twice(contents):
            with Fleet(rule(burst=BURST)) as (a, b):
                wait_all_hear((a, b))
                ledger = Ledger()
                for content in contents:
                    a.stop()
                    (a.directory / "table.incarnation").write_bytes(content)
                    a.start()
                    ledger.serve(a, "C", 3)
                    ledger.serve(b, "C", 4)
                    try:
                        ledger.settle((a, b), quiet=0.3)
                    except AssertionError as error:
                        error.add_note(f"after {content!r} in the file")
                        raise
        with concurrent.futures.ThreadPoolExecutor(len(pairs)) as pool:
            list(pool.map(restart_twice, pairs))


class Peers(ParallelTest):
    """What `peers` says, and who is heard."""

    def state(self, host, address):
        link = host.links().get(address)
        return link and link["state"]

    def wait_state(self, host, address, state):
        wait_until(lambda: self.state(host, address) == state, f"{address} is {state} at {host.name}")

    def test_up_and_silent_and_up_again(self):
        with Fleet(rule(burst=BURST)) as (a, b):
            wait_all_hear((a, b))
            link = wait_until(lambda: (link := a.link_to(b))["state"] == "up" and link, "b is up")
            self.assertEqual((link["name"], link["state"], link["note"]), ("b", "up", None))
            self.assertRegex(a.admin("peers"), rf"(?m){b.address}.*\b(up|silent)\b")
            self.assertLess(link["heard_s_ago"], PATIENCE)
            self.assertEqual(a.stats()["peers"], 1)
            wait_until(lambda: a.stats()["peers_up"] == 1, "one is up")
            b.signal(signal.SIGSTOP)
            self.wait_state(a, b.address, "silent")
            b.signal(signal.SIGCONT)
            self.wait_state(a, b.address, "up")
            b.stop()
            self.wait_state(a, b.address, "silent")
            self.assertEqual(a.stats()["peers_up"], 0)
            b.start()
            self.wait_state(a, b.address, "up")

    def test_an_address_where_nobody_listens_is_connecting(self):
        nowhere = nobody()
        with Fleet(rule(burst=BURST), hosts=1, connect={0: [nowhere]}) as (a,):
            time.sleep(0.5)
            self.assertEqual(self.state(a, nowhere), "connecting")
            self.assertIsNone(a.links()[nowhere]["heard_s_ago"])

    def test_ones_own_address_is_self(self):
        fleet = Fleet(rule(burst=BURST))
        a, b = fleet.hosts
        for host in (a, b):    # one list for all hosts, as in a fleet that is set up by a program
            host.peers["connect"] = [a.address, b.address]
            host.write_settings(*host.limits)
        with fleet:
            wait_all_hear((a, b))
            self.wait_state(a, a.address, "self")
            self.assertEqual(a.stats()["peers"], 1)
            ledger = Ledger()
            ledger.serve(a, "C", 10)
            ledger.settle((a, b))

    def test_two_hosts_of_one_name_refuse_each_other(self):
        with Fleet(rule(burst=BURST), names=["twin", "twin"]) as (a, b):
            for host, other in ((a, b), (b, a)):
                self.wait_state(host, other.address, "refused")
                self.assertRegex(host.link_to(other)["note"], "name is also (ours|mine)")
                wait_until(lambda: "name is also" in host.log, "the log says why")
            a.served("C", 5)
            time.sleep(1)
            self.assertAlmostEqual(b.level("C"), BURST, delta=0.1)

    def test_who_is_not_configured_is_not_heard_and_counted(self):
        with Fleet(rule(burst=BURST), connect={1: [nobody()]}) as (a, b):
            wait_until(lambda: a.hears(b), "a hears b")
            wait_until(lambda: b.stats()["peer_strangers"] > 0, "b counts a stranger")
            a.served("C", 10)
            b.served("C", 5)
            wait_until(lambda: abs(a.level("C") - (BURST - 15)) < 0.1, "a charges what b served")
            time.sleep(1)
            self.assertAlmostEqual(b.level("C"), BURST - 5, delta=0.1)
            self.assertIsNone(b.link_to(a))

    def test_a_reload_adds_a_peer_and_removes_one(self):
        nowhere = nobody()
        with Fleet(rule(burst=BURST), hosts=3, connect={0: [nowhere], 1: [nowhere], 2: [nowhere]}) as (a, b, c):
            a.reload(connect=[b.address])
            b.reload(connect=[a.address])
            wait_all_hear((a, b))
            wait_until(lambda: nowhere not in a.links(), "the old address is gone")
            ledger = Ledger()
            ledger.serve(a, "C", 10)
            ledger.settle((a, b), quiet=0)
            a.reload(connect=[b.address, c.address])
            b.reload(connect=[a.address, c.address])
            c.reload(connect=[a.address, b.address])
            wait_all_hear((a, b, c))
            ledger.serve(c, "D", 5)
            ledger.serve(b, "D", 6)
            ledger.settle((a, b), quiet=0)
            wait_until(lambda: not Ledger.missing(only(ledger, "D"), (c,)), "c knows of D")
            a.reload(connect=[c.address])
            b.reload(connect=[c.address])
            wait_until(lambda: b.address not in a.links(), "b is gone")
            before = a.level("E")
            b.served("E", 9)
            wait_until(lambda: abs(c.level("E") - (BURST - 9)) < 0.1, "c still hears b")
            time.sleep(0.6)
            self.assertEqual(a.level("E"), before, "a hears b although it was told not to")


def only(ledger, tag):
    one = Ledger(ledger.burst)
    one.hits = {tag: ledger.hits[tag]}
    return one


class Keys(ParallelTest):
    """With keys, who has none that is known is not heard."""

    def deaf(self, host, other, seconds=1.5):
        """Nothing that `other` serves gets to `host`."""
        tag = f"of-{other.name}"
        self.assertEqual(other.served(tag, 5), 5)
        time.sleep(seconds)
        self.assertAlmostEqual(host.level(tag), BURST, delta=0.1)

    def test_hosts_with_keys_share(self):
        with Fleet(rule(burst=BURST), hosts=3, keys=True) as hosts:
            wait_all_hear(hosts)
            ledger = Ledger()
            for i, host in enumerate(hosts):
                ledger.serve(host, "C", 5 + i)
            ledger.settle(hosts)
            self.assertEqual([host.stats()["peer_keys_denied"] for host in hosts], [0, 0, 0])

    def test_a_copy_of_a_host_with_its_key_and_name_is_refused(self):
        with Fleet(rule(burst=BURST), keys=True) as hosts:
            wait_all_hear(hosts)
            a, b = hosts
            address = f"tcp://127.0.0.1:{free_port_pair()}"
            peers = {**a.peers, "bind": address, "connect": [b.address]}
            with Host(a.name, address, rule(burst=BURST), peers=peers) as copy:
                wait_until(lambda: b.link_to(a)["note"] == "two hosts have its name", "the other host knows")
                refused = "refuse each other: another host has your name"
                wait_until(lambda: refused in copy.log, "the copy knows by its second hello", 60)
                self.assertEqual(b.link_to(a)["state"], "up")
                ledger = Ledger()
                ledger.serve(a, "shared", 10)
                ledger.settle(hosts)

    def test_a_stranger_with_a_key_of_its_own_is_denied_and_counted(self):
        fleet = Fleet(rule(burst=BURST), keys=True)
        a, b = fleet.hosts
        (fleet.keys / "authorized-by-b" / "a.pub").unlink()
        with fleet:
            wait_until(lambda: b.stats()["peer_keys_denied"] > 0, "the key is denied")
            self.deaf(b, a)
            self.assertEqual(a.link_to(b)["state"], "connecting")
            self.assertEqual(b.link_to(a)["state"], "refused")
            self.assertIn("no key is known", b.link_to(a)["note"])
            b.wait_log("not authorized")

    def test_a_peer_with_another_key_than_the_one_that_is_known_is_not_heard(self):
        fleet = Fleet(rule(burst=BURST), keys=True)
        a, b = fleet.hosts
        known = fleet.keys / "authorized-by-b" / "a.pub"
        known.unlink()
        other = fleet.keys / "other"
        other.mkdir()
        make_keys(other, "a", a.address)
        shutil.copy(other / "a.pub", known)
        with fleet:
            wait_until(lambda: b.stats()["peer_keys_denied"] > 0, "the key is denied")
            self.deaf(b, a)
            self.deaf(a, b)

    def test_a_host_without_keys_is_not_heard_by_one_with(self):
        fleet = Fleet(rule(burst=BURST), keys=True)
        a, b = fleet.hosts
        for name in ("key_file", "authorized_keys"):
            del a.peers[name]
        a.write_settings(*a.limits)
        with fleet:
            self.deaf(b, a)
            self.deaf(a, b)
            self.assertEqual((a.link_to(b)["state"], b.link_to(a)["state"]), ("connecting", "connecting"))

    def test_a_key_that_is_removed_is_not_heard_any_more_after_a_reload(self):
        fleet = Fleet(rule(burst=BURST), hosts=3, keys=True)
        with fleet as (a, b, c):
            wait_all_hear((a, b, c))
            ledger = Ledger()
            ledger.serve(c, "before", 5)
            ledger.settle((a, b, c), quiet=0)
            for name in "ab":
                (fleet.keys / f"authorized-by-{name}" / "c.pub").unlink()
            a.hang_up()
            b.hang_up()
            wait_until(lambda: a.link_to(c)["state"] == "refused", "c is refused")
            self.deaf(a, c)
            self.deaf(b, c, 0)
            # Those who stay have not lost anything by it.
            ledger.serve(a, "after", 3)
            ledger.serve(b, "after", 4)
            ledger.settle((a, b))
            # And back again.
            for name in "ab":
                shutil.copy(fleet.keys / "c.pub", fleet.keys / f"authorized-by-{name}")
            a.hang_up()
            b.hang_up()
            wait_until(lambda: a.hears(c) and b.hears(c), "c is heard again")
            ledger.serve(c, "again", 3)
            ledger.settle((a, b), quiet=0)

    def test_a_secret_that_others_may_read_is_not_used(self):
        fleet = Fleet(rule(burst=BURST), keys=True)
        with contextlib.closing(fleet):
            a = fleet.hosts[0]
            key = fleet.keys / "a.key"
            self.assertEqual(key.stat().st_mode & 0o777, 0o600)
            for mode in (0o640, 0o604, 0o660):
                key.chmod(mode)
                done = run(DTHROTTLED, "--config", a.settings_path)
                self.assertEqual(done.returncode, EX_UNAVAILABLE, done.stderr)
                self.assertRegex(done.stderr, rf"error: peers\.key_file: {key}: .*open to others.*{mode:04o}")
                self.assertRegex(self.check(a, EX_CONFIG), rf"error: peers\.key_file: {key}: .*open to others.*{mode:04o}")
            key.chmod(0o600)
            self.assertIn(": ok, ", self.check(a, 0))
            if os.geteuid() == 0:    # who checks for the daemon's user
                os.chown(key, 65534, -1)
                self.assertIn(": ok, ", self.check(a, 0))
            key.unlink()
            done = run(DTHROTTLED, "--config", a.settings_path)
            self.assertEqual(done.returncode, EX_UNAVAILABLE)
            self.assertRegex(done.stderr, rf"error: peers\.key_file: {key}: No such file")
            self.assertRegex(self.check(a, EX_CONFIG), rf"error: peers\.key_file: {key}: No such file")

    def check(self, host, code):
        done = run(DTHROTTLED, "--check", host.settings_path)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def test_a_port_in_use_is_a_failure_to_start_that_names_it(self):
        with Fleet(rule(burst=BURST)) as (a, b):
            a.stop()
            a.peers["bind"] = b.address
            a.peers["connect"] = [nobody()]
            a.write_settings(*a.limits)
            done = run(DTHROTTLED, "--config", a.settings_path)
            self.assertEqual(done.returncode, EX_UNAVAILABLE)
            self.assertRegex(done.stderr, rf"peers\.bind: {b.address}: cannot listen: Address already in use")
            a.peers.update(bind=a.address, connect=[b.address])
            a.write_settings(*a.limits)
            a.start()


class WithoutKeys(SystemTest):
    def test_anything_but_loopback_takes_keys(self):
        with Daemon(rule(burst=5)) as scratch:
            path = scratch.directory / "peers.toml"
            for peers, what in (({"bind": "tcp://0.0.0.0:7314", "connect": ["tcp://127.0.0.1:9000"]}, "peers.bind"),
                                ({"connect": ["tcp://10.9.9.9:7314"]}, "peers.connect"),
                                ({"connect": ["tcp://peers.example:7314"]}, "peers.connect")):
                with self.subTest(what):
                    path.write_text(settings_text(scratch.directory, rule(burst=5), peers=peers))
                    for command in (("--check", path), ("--config", path)):
                        done = run(DTHROTTLED, *command)
                        self.assertEqual(done.returncode, EX_CONFIG, done.stderr)
                        self.assertRegex(done.stdout + done.stderr, f"{what}.*must have peers.key_file")


class Keygen(SystemTest):
    def test_it_makes_two_files_and_never_over_others(self):
        with Daemon(rule(burst=5)) as scratch:
            keys = scratch.directory / "keys"
            keys.mkdir()
            command = (DTHROTTLECTL, "keygen", "web-1", "-d", keys, "-a", "tcp://127.0.0.1:7314")
            done = run(*command)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(sorted(path.name for path in keys.iterdir()), ["web-1.key", "web-1.pub"])
            self.assertEqual((keys / "web-1.key").stat().st_mode & 0o777, 0o600)
            public = (keys / "web-1.pub").read_text()
            self.assertRegex(public, r"(?m)^public \S{40}$")
            self.assertIn("address tcp://127.0.0.1:7314", public)
            self.assertNotIn("secret", public)
            secret = (keys / "web-1.key").read_text()

            self.assertEqual(run(*command).returncode, EX_CANTCREAT)
            (keys / "web-1.pub").unlink()
            done = run(*command)
            self.assertEqual(done.returncode, EX_CANTCREAT)
            self.assertIn("web-1.key", done.stderr)
            self.assertEqual((keys / "web-1.key").read_text(), secret)
            self.assertFalse((keys / "web-1.pub").exists(), "half of a pair that does not fit")

            for wrong in (("two words",), ("../up",), ("",), (), ("ok", "-a", "nowhere"), ("ok", "--frob"),
                          ("x" * 65,)):
                with self.subTest(wrong):
                    done = run(DTHROTTLECTL, "keygen", *wrong, "-d", keys)
                    self.assertEqual(done.returncode, EX_USAGE, done.stdout + done.stderr)
            self.assertEqual(run(DTHROTTLECTL, "keygen", "ok", "-d", keys / "none").returncode, EX_CANTCREAT)
            self.assertEqual([path.name for path in keys.iterdir()], ["web-1.key"])


# What a socket of ZMTP 3.0 without keys sends first, and then says.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
CURVE_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)


def ready(kind):
    body = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
    return b"\x04" + bytes([len(body)]) + body


class Hostile(ParallelTest):
    """Whoever can connect to the port of the peers can send anything, and changes nothing but counters."""

    MEMORY = (300 if SANITIZED else 12) * MEBIBYTE

    def test_noise_on_both_ports(self):
        self.attack(keys=False)

    def test_noise_on_both_ports_with_keys(self):
        self.attack(keys=True)

    def test_a_message_of_many_parts_is_one_piece_of_junk(self):
        part = b"\x01\x04part"
        with Fleet(rule(burst=BURST)) as (a, b):
            wait_all_hear((a, b))
            before = a.stats()["peer_junk"]
            with contextlib.closing(self.shake_hands(a.port, b"DEALER")) as sock:
                sock.sendall(part * 50_000 + b"\0\x04last")
                wait_until(lambda: a.stats()["peer_junk"] > before, "it is counted")
                sock.sendall(part * 50_000)    # and no last one
            ledger = Ledger()
            ledger.serve(a, "C", 7)
            ledger.serve(b, "C", 5)
            ledger.settle((a, b), quiet=0.3)
            self.assertEqual(a.stats()["peer_junk"], before + 1)

    def test_an_endless_message_is_cut_and_its_memory_returned(self):
        with Fleet(rule(burst=BURST)) as (a, b):
            wait_all_hear((a, b))
            with contextlib.closing(self.shake_hands(a.port, b"DEALER")) as sock:
                self.check_endless(a, sock, 1)
            # The same by somebody in a hurry: small parts, each of which libzmq reads by itself.
            with contextlib.closing(self.shake_hands(a.port, b"DEALER")) as sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.check_endless(a, sock, 2, b"\x01\x28" + bytes(40))
            ledger = Ledger()
            ledger.serve(a, "C", 7)
            ledger.serve(b, "C", 5)
            ledger.settle((a, b), quiet=0.3)
            self.assertEqual((a.stats()["peer_junk"], b.stats()["peer_endless"]), (0, 0))

    def test_an_endless_message_of_a_host_that_is_connected_to_is_cut(self):
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
            liar = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
            with Fleet(rule(burst=BURST), hosts=1, connect={0: [liar]}) as (a,):
                listener.settimeout(PATIENCE)
                before = a.resident_bytes()
                for _ in range(10):    # the host also hangs up and dials again by itself while nothing sensible comes
                    with contextlib.closing(listener.accept()[0]) as sock, contextlib.suppress(OSError):
                        self.send_endless(a, self.greet(sock, b"ROUTER"))
                    time.sleep(0.3)
                    if a.stats()["peer_endless"] > 0:
                        break
                # Two, if the first was counted later than that.
                self.assertIn(a.stats()["peer_endless"], (1, 2))
                self.check_memory_returned(a, before)

    def check_endless(self, host, sock, count, parts=b"\x01\x00" * 4096):
        """Sends parts without an end; the connection is cut, and the host is as large as before."""
        before = self.peak = host.resident_bytes()
        with self.assertRaises(OSError, msg="64 MiB without an end were taken"):
            self.send_endless(host, sock, parts)
        wait_until(lambda: host.stats()["peer_endless"] == count, "it is counted")
        self.check_memory_returned(host, before)
        report(f"endless message cut: resident memory grew by at most {(self.peak - before) // MEBIBYTE} MiB, "
               f"afterwards {(host.resident_bytes() - before) // 1024} KiB")
        host.wait_log("without a whole message")

    def check_memory_returned(self, host, before):
        if SANITIZED:    # their allocators return nothing to the system
            return
        self.assertLess(self.peak - before, 100 * MEBIBYTE)
        wait_until(lambda: host.resident_bytes() - before < self.MEMORY, "the memory is returned")

    def send_endless(self, host, sock, parts=b"\x01\x00" * 4096):
        self.peak = 0
        for i in range(64 * MEBIBYTE // len(parts)):
            sock.sendall(parts)
            if i % 64 == 63:
                self.peak = max(self.peak, host.resident_bytes())

    def attack(self, keys):
        noise = random.Random(19)
        with Fleet(rule(burst=BURST), keys=keys) as (a, b):
            wait_all_hear((a, b))
            ledger = Ledger()
            self.noise(a, noise, 200 // SLOW, keys)
            before, sent = a.resident_bytes(), a.stats()["reports_sent"]
            for _ in range(5):
                self.noise(a, noise, 400 // SLOW, keys)
                ledger.serve(a, "C", 7)
                ledger.serve(b, "C", 5)
            self.huge(a)
            self.requests(a, noise)
            ledger.settle((a, b), quiet=0.3)
            if not keys:
                wait_until(lambda: a.stats()["peer_junk"] > 1000, "junk is counted")
            stats = a.stats()
            grown = a.resident_bytes() - before
            report(f"hostile connections{' with keys' if keys else ''}: resident memory grew by {grown // 1024} KiB, "
                   f"{stats['peer_junk']} junk frames")
            self.assertLess(grown, self.MEMORY)
            self.assertGreater(stats["reports_sent"], sent)
            self.assertEqual((stats["reports_lost"], b.stats()["reports_lost"]), (0, 0))
            self.assertLess(len(a.log), 100_000, "strangers fill the log")

    @staticmethod
    def connect(port):
        return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)

    def noise(self, host, noise, count, keys):
        """Connects, says something, leaves."""
        beginnings = (b"", b"", GREETING[:11], GREETING[:20], GREETING[:64], GREETING, CURVE_GREETING,
                      GREETING + ready(b"SUB"), GREETING + ready(b"DEALER"), GREETING + ready(b"nonsense"))
        for i in range(count):
            with contextlib.suppress(OSError), contextlib.closing(self.connect(host.port)) as sock:
                sock.sendall(noise.choice(beginnings) + noise.randbytes(noise.choice([0, 1, 9, 100, 5000])))
                if i % 5 == 0:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def shake_hands(self, port, kind):
        """A connection of somebody who speaks the protocol, if there are no keys; then who has none is cut off."""
        return self.greet(self.connect(port), kind)

    @staticmethod
    def greet(sock, kind):
        sock.sendall(GREETING + ready(kind))
        with contextlib.suppress(OSError):
            said = b""
            while len(said) < 66 or len(said) < 66 + said[65]:    # a greeting, and a command with its length
                if not (data := sock.recv(1000)):
                    break
                said += data
        return sock

    def huge(self, host):
        """Frames of 2^40 bytes, of which a little comes."""
        with contextlib.ExitStack() as stack:
            socks = [stack.enter_context(contextlib.closing(self.connect(host.port))) for i in range(50)]
            for i, sock in enumerate(socks):
                with contextlib.suppress(OSError):
                    sock.sendall(GREETING + ready((b"SUB", b"DEALER")[i % 2]) + b"\x02" + struct.pack(">Q", 1 << 40))
                    sock.sendall(bytes(50_000))
            time.sleep(0.2)

    def requests(self, host, noise):
        """Requests, in frames, that mean nothing."""
        with contextlib.suppress(OSError), contextlib.closing(self.shake_hands(host.port, b"DEALER")) as sock:
            for _ in range(2000):
                body = noise.choice([b"", b"F\x01\0\0\0", b"F\x01"]) + noise.randbytes(noise.randrange(200))
                sock.sendall(b"\0" + bytes([len(body)]) + body)
            time.sleep(0.3)
