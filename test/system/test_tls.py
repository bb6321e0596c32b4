"""Lease lines by TLS: who is let in, what a certificate that is replaced does, and what becomes of connections."""

import contextlib
import os
import re
import shutil
import signal
import socket
import ssl
import sys
import time

from authority import Authority
from common import SystemTest
from daemon import DTHROTTLED, PATIENCE, ROOT, run, settings_text, wait_until
from leases import LeaseDaemon, LeaseSession, resource
from test_grpc import gateway, upgrade

sys.path.insert(0, str(ROOT / "src/integration/python"))

import dthrottle    # noqa: E402  found on the path that was added above


class TlsSession(LeaseSession):
    """The same by TLS."""

    def __init__(self, port, context):
        super().__init__(port)
        try:
            self.sock = context.wrap_socket(self.sock, server_hostname="127.0.0.1")
        except BaseException:
            self.sock.close()
            raise


class TlsDaemon(LeaseDaemon):
    """`ours` is the authority that signed its certificate, `keys` more of [tls]."""

    def __init__(self, ours, lease=None, **keys):
        super().__init__(resource(learning_mode_duration="0s"), lease={"tls": "127.0.0.1:0", **(lease or {})},
                         tls=ours.settings("host", **keys))

    @property
    def tls_port(self):
        return int(re.search(r"granting leases by TLS on tcp:\S*:(\d+)", self.log)[1])

    @property
    def program(self):
        return gateway(self, "dthrottle-tls")

    def count(self, name):
        return self.stats()[f"lease_tls_{name}"]


def ask(session, client="a", wants=5):
    return session.ask(f"get {client} calls {wants} 0 0 0 0").split()[:2]


class Tls(SystemTest):
    def setUp(self):
        self.ours = self.enterContext(Authority())
        for name in ("host", "job"):
            self.ours.sign(name)

    def test_only_clients_whose_certificate_the_authority_signed_are_served(self):
        with Authority() as other, TlsDaemon(self.ours, client_ca_file="root.pem") as daemon:
            other.sign("job")
            stranger = self.ours.context()
            stranger.load_cert_chain(other.folder / "job.pem", other.folder / "job.key")
            with TlsSession(daemon.tls_port, self.ours.context("job")) as session:
                self.assertEqual(ask(session), ["lease", "5"])
                for context in (self.ours.context(), stranger):
                    # TLS 1.3 refuses a client when the client believes it has begun.
                    with self.assertRaises(OSError), TlsSession(daemon.tls_port, context) as refused:
                        ask(refused)
                with self.assertRaises(OSError), LeaseSession(daemon.tls_port) as plain:
                    ask(plain)
                wait_until(lambda: daemon.count("connections") == 1, "the others are gone")
                self.assertEqual(ask(session), ["lease", "5"])
            self.assertEqual(daemon.count("handshakes"), 1)

    def test_old_versions_of_tls_are_refused(self):
        with TlsDaemon(self.ours) as daemon:
            context = self.ours.context()
            context.set_ciphers("DEFAULT:@SECLEVEL=0")
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
            with self.assertRaises(OSError):
                TlsSession(daemon.tls_port, context)

    def test_all_lines_are_answered_before_the_connection_ends(self):
        lines = [f"get client-{i} calls 0.01 0 0 0 0\n" for i in range(2000)]
        with TlsDaemon(self.ours) as daemon, TlsSession(daemon.tls_port, self.ours.context()) as session:
            session.sock.sendall("".join(lines).encode())
            answers = b""
            while answers.count(b"\n") < len(lines):
                answers += session.sock.recv(1 << 16)
            self.assertEqual(answers.count(b"lease 0.01 "), len(lines))
            session.sock.sendall(b"GET / HTTP/1.1\r\n")    # in the middle it is a line like others
            self.assertIn("error", session.ask(""))

    def test_a_web_page_is_turned_away(self):
        with TlsDaemon(self.ours) as daemon, TlsSession(daemon.tls_port, self.ours.context()) as session:
            session.sock.sendall(b"POST / HTTP/1.1\r\nHost: a\r\n\r\nrelease a calls\n")
            self.assertEqual(session.sock.recv(100), b"")
            self.assertEqual(daemon.stats()["connections_http"], 1)

    def test_a_new_certificate_is_in_force_by_itself_and_a_bad_one_changes_nothing(self):
        with Authority() as next_one, TlsDaemon(self.ours) as daemon:
            next_one.sign("host")

            def believed(authority):
                with contextlib.suppress(OSError), TlsSession(daemon.tls_port, authority.context()) as session:
                    return ask(session) == ["lease", "5"]
                return False
            self.assertTrue(believed(self.ours))
            (self.ours.folder / "host.key").write_text("no key")
            wait_until(lambda: believed(self.ours) and "the certificate stays what it was" in daemon.log, "it is bad")
            for name in ("host.key", "host.pem"):
                shutil.copy(next_one.folder / name, self.ours.folder / name)
            wait_until(lambda: believed(next_one), "the new certificate is in force")

    def test_connections_outlive_an_upgrade(self):
        with TlsDaemon(self.ours) as daemon, TlsSession(daemon.tls_port, self.ours.context()) as session:
            self.assertEqual(ask(session), ["lease", "5"])
            program = daemon.program
            upgrade(daemon)
            self.assertEqual(ask(session), ["lease", "5"])
            self.assertEqual(daemon.program, program)
            with TlsSession(daemon.tls_port, self.ours.context()) as another:
                self.assertEqual(ask(another, "b"), ["lease", "5"])

    def test_what_has_arrived_is_answered_when_the_daemon_stops(self):
        with TlsDaemon(self.ours) as daemon, TlsSession(daemon.tls_port, self.ours.context()) as session:
            session.ask("discover")
            session.sock.sendall(b"discover\n" * 1000)
            daemon.stop()
            answers = b""
            while received := session.sock.recv(1 << 16):
                answers += received
            self.assertEqual(answers.count(b"here "), 1000)

    def test_the_program_is_started_again_and_the_daemon_goes_on(self):
        with TlsDaemon(self.ours) as daemon, TlsSession(daemon.tls_port, self.ours.context()) as session:
            self.assertEqual(ask(session), ["lease", "5"])
            os.kill(daemon.program, signal.SIGKILL)
            with self.assertRaises(OSError):
                ask(session)
            self.assertEqual(daemon.lease("get a calls 5 0 0 0 0").split()[:2], ["lease", "5"])
            with TlsSession(daemon.tls_port, self.ours.context()) as another:
                self.assertEqual(ask(another, "b"), ["lease", "5"])
            self.assertEqual(daemon.count("restarts"), 1)

    def test_the_command_of_the_manual_gets_its_answer_and_ends(self):
        page = (ROOT / "protocol/lease.md").read_text()
        command = re.search(r"\n    \$ (.*\n +openssl s_client.*)\n", page)[1]
        with TlsDaemon(self.ours, client_ca_file="root.pem") as daemon:
            for written, meant in (("10.0.0.1:7318", f"127.0.0.1:{daemon.tls_port}"), ("ca.pem", "root.pem")):
                self.assertIn(written, command)
                command = command.replace(written, meant)
            done = run("timeout", str(PATIENCE / 4), "sh", "-c", f"cd {self.ours.folder}; {command}")
            self.assertEqual((done.returncode, done.stdout.split()[:1]), (0, ["here"]), done.stderr)

    def test_a_half_closed_connection_counts_until_it_ends(self):
        with TlsDaemon(self.ours, lease={"max_connections": 2}) as daemon:
            os.kill(daemon.program, signal.SIGSTOP)    # it notices no end
            for _ in range(2):
                half = self.enterContext(socket.create_connection(("127.0.0.1", daemon.tls_port), PATIENCE))
                half.shutdown(socket.SHUT_WR)
            time.sleep(0.3)
            self.assertEqual(daemon.count("connections"), 2)
            with socket.create_connection(("127.0.0.1", daemon.tls_port), PATIENCE) as another:
                self.assertEqual(another.recv(1), b"")
            os.kill(daemon.program, signal.SIGCONT)
            wait_until(lambda: daemon.count("connections") == 0, "the program has closed them")

    def test_answers_that_are_not_read_hold_a_connection_for_half_a_minute(self):
        with TlsDaemon(self.ours) as daemon, TlsSession(daemon.tls_port, self.ours.context()) as session:
            session.sock.settimeout(1)
            with contextlib.suppress(TimeoutError):
                while True:
                    session.sock.sendall(b"get a calls 5 0 0 0 0\n" * 700)
            begin = time.monotonic()
            self.assertEqual(daemon.count("connections"), 1)
            wait_until(lambda: daemon.count("connections") == 0, "it is closed")
            self.assertGreater(time.monotonic() - begin, 20)

    def test_who_says_nothing_is_closed_and_waits_alone(self):
        with TlsDaemon(self.ours) as daemon:
            with socket.create_connection(("127.0.0.1", daemon.tls_port), PATIENCE) as silent:
                with TlsSession(daemon.tls_port, self.ours.context()) as session:
                    self.assertEqual(ask(session), ["lease", "5"])
                self.assertEqual(silent.recv(1), b"")

    def test_the_python_package_holds_leases_by_tls(self):
        with TlsDaemon(self.ours, client_ca_file="root.pem") as daemon:
            address = f"tls:127.0.0.1:{daemon.tls_port}"
            with dthrottle.Leases(address, tls=self.ours.context("job"), client="job") as leases:
                self.assertTrue(leases.rate("calls", wants=10).take(PATIENCE))
                self.assertEqual([held["client"] for held in daemon.leases("calls")["clients"]], ["job"])
            self.assertEqual(daemon.leases("calls")["clients"], [])
            with dthrottle.Leases(address, tls=self.ours.context(), retry=0.1) as leases:
                calls = leases.rate("calls", wants=10)
                wait_until(lambda: calls.trouble, "the server lets nobody in without a certificate")
                self.assertFalse(calls.take(0))
            with self.assertRaisesRegex(ValueError, "there is no context for TLS"):
                dthrottle.Leases(address)

    def test_files_that_cannot_be_used_are_named_before_the_start(self):
        text = settings_text(self.ours.folder, lease={"tls": "127.0.0.1:0"}, tls=self.ours.settings("host", key_file="job.key"))
        (self.ours.folder / "dthrottled.toml").write_text(text)
        for words in (["--check"], ["--config"]):
            done = run(DTHROTTLED, *words, self.ours.folder / "dthrottled.toml")
            self.assertEqual(done.returncode, 78)
            self.assertIn(f"lease.tls: {self.ours.folder}/job.key: key values mismatch", done.stdout + done.stderr)
