"""Whoever can connect can send anything. The daemon stays up, within its memory, and goes on limiting."""

import contextlib
import os
import random
import socket
import struct

from common import SystemTest, report
from daemon import FIGURES, PATIENCE, SANITIZED, AskDaemon, Daemon, pump, rule, wait_until
from fleet import free_port_pair
from test_ask import Asker

MEBIBYTE = 1 << 20
# What a sanitizer keeps back of freed memory says nothing about the daemon.
SOME_MEMORY = (300 if SANITIZED else 4) * MEBIBYTE


class Noise(SystemTest):
    def test_noise_on_the_query_socket_harms_nobody(self):
        noise = random.Random(13)
        with Daemon(rule(burst=5), rule(name="glob", match="*a*b*c*", burst=2)) as daemon:
            self.assertEqual(daemon.served("drained", 9), 5)
            before = daemon.resident_bytes()
            for i in range(20 if SANITIZED else 60):
                with daemon.stream(tcp=i % 2 == 0) as stream:
                    # Mostly lines of noise, sometimes one long line without an end.
                    data = noise.randbytes(noise.randrange(1, 200_000))
                    if i % 5 == 0:
                        data = data.replace(b"\n", b"")
                    stream.send(data)
                    whole = data.count(b"\n")
                    if i % 3 == 0:    # leaves in the middle of it
                        pump([stream], lambda: not stream.outgoing, 0.01)
                        continue
                    self.assertTrue(pump([stream], lambda: not stream.outgoing and stream.answers() == whole))
            wait_until(lambda: daemon.stats()["connections"] == 0, "all of them are gone")
            self.assertEqual(daemon.ask(["drained"]), ["NO"])
            self.assertLess(daemon.resident_bytes() - before, SOME_MEMORY)

    def test_a_peer_that_speaks_http_is_hung_up_on(self):
        # libzmq takes this for its protocol of 2010 otherwise, and aborts now and then.
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(PATIENCE)
            address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
            with Daemon(rule(burst=5), peers={"connect": [address], "bind": f"tcp://127.0.0.1:{free_port_pair()}"}) as daemon:
                for _ in range(3):
                    peer, _ = server.accept()
                    with peer:
                        peer.settimeout(PATIENCE)
                        peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                        said = b""
                        with contextlib.suppress(ConnectionResetError):
                            while more := peer.recv(4096):
                                said += more
                        self.assertNotIn(b"hello", said)
                self.assertEqual(daemon.ask(["client"]), ["OK"])

    def test_noise_on_the_admin_socket_harms_nobody(self):
        noise = random.Random(17)
        words = [b"json ", b"show ", b"why ", b"top ", b"config", b"rules", b"help", b"stats", b"\\x", b" ", b"\r\n"]
        with Daemon(rule(burst=5)) as daemon:
            self.assertEqual(daemon.served("drained", 9), 5)
            before = daemon.resident_bytes()
            for i in range(20 if SANITIZED else 60):
                with contextlib.closing(daemon.connect_admin()) as sock:
                    sock.settimeout(0.02)
                    data = b"".join(noise.choice(words) + noise.randbytes(noise.randrange(30)) for _ in range(300))
                    with contextlib.suppress(OSError):    # it need not hear the end of it
                        sock.sendall(data + b"\n")
                    with contextlib.suppress(OSError):
                        while sock.recv(1 << 16):
                            pass
            self.assertIn("uptime", daemon.admin("stats"))
            self.assertEqual(daemon.ask(["drained"]), ["NO"])
            self.assertLess(daemon.resident_bytes() - before, SOME_MEMORY)

    def test_connections_that_come_and_go_leave_nothing_behind(self):
        count = 500 if SANITIZED else 3000
        with Daemon(rule(burst=1000)) as daemon:
            self.come_and_go(daemon, count // 10)
            files, memory = open_files(daemon), daemon.resident_bytes()
            self.come_and_go(daemon, count)
            # The connection that asked for the counts is closed a moment later.
            wait_until(lambda: open_files(daemon) <= files, "every descriptor is closed")
            self.assertLess(daemon.resident_bytes() - memory, SOME_MEMORY)

    def come_and_go(self, daemon, count):
        """Connects in every way to be rude."""
        def reset(sock):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        for i in range(count):
            with contextlib.suppress(ConnectionResetError, BrokenPipeError), daemon.connect(tcp=i % 2 == 0) as sock:
                if i % 7 == 1:
                    sock.sendall(b"half a t")
                if i % 7 == 2:
                    sock.sendall(b"asked\nand did not wait\n")
                if i % 7 == 3:
                    sock.sendall(b"asked\n")
                    sock.shutdown(socket.SHUT_RD)
                if i % 7 == 4:
                    sock.shutdown(socket.SHUT_WR)
                if i % 7 == 5:
                    sock.sendall(b"x" * 5000)
                if i % 2 == 0 and i % 3 == 0:
                    reset(sock)
        wait_until(lambda: daemon.stats()["connections"] == 0, "all of them are gone")

    def test_half_open_connections_keep_their_place_but_nobody_from_being_served(self):
        with Daemon(rule(burst=1000)) as daemon, contextlib.ExitStack() as stack:
            for i in range(200):
                sock = stack.enter_context(daemon.connect(tcp=i % 2 == 0))
                sock.sendall(b"never finished" if i % 3 else b"\r" * 300)
            self.assertEqual(daemon.served("C", 10), 10)
            wait_until(lambda: daemon.stats()["connections"] == 200, "all are there, and the one who asked has left")


def open_files(daemon):
    return len(os.listdir(f"/proc/{daemon.pid}/fd"))


class Flood(SystemTest):
    """Fresh tags without end through a table that holds a fraction of them."""

    # The size that the project promises takes minutes, so it has to be asked for.
    FRESH, MEMORY = (50_000_000, "64MiB") if FIGURES else (60_000 if SANITIZED else 1_000_000, "1MiB")

    def _owe(self, daemon, tags):
        """Each of the tags spends its burst of 5, and owes 5 more."""
        with Asker(daemon.ask_path) as asker:
            for tag in tags:
                number = asker.ask(f"hold 600000 5 {tag}").split()[1]
                self.assertEqual(asker.ask(f"commit {number} 10"), "OK committed 10")

    def test_a_flood_of_fresh_tags_gives_no_token_to_those_that_are_empty_or_in_debt(self):
        # Most are short; the others take several cells of the table, or go by a digest.
        empty = [f"empty-{i}-" + "x" * (0 if i < 80 else 15 * (i - 79)) for i in range(100)]
        debtors = [f"debtor-{i}-" + "x" * (0 if i < 80 else 15 * (i - 79)) for i in range(100)]
        with AskDaemon(rule(name="debt", match="debtor*", burst=5), rule(burst=5),
                       table={"memory": self.MEMORY}) as daemon:
            daemon.ask(empty * 5)
            self._owe(daemon, debtors)
            before = daemon.resident_bytes()
            wrongly_served, throttled = [], 0
            for begin in range(0, self.FRESH, 20_000):
                # One in a hundred is long, and so takes the cells of several others.
                fresh = [f"fresh-{i}" if i % 100 else f"fresh-{i}-{'y' * 200}" for i in range(begin, begin + 20_000)]
                throttled += daemon.ask(fresh).count("NO")
                answers = daemon.ask(empty + debtors)
                wrongly_served += [tag for tag, verdict in zip(empty + debtors, answers) if verdict == "OK"]
            grown = daemon.resident_bytes() - before
            stats = daemon.stats()
            report(f"{self.FRESH} fresh tags through {self.MEMORY}: resident memory grew by {grown // 1024} KiB, "
                   f"{stats['table_evicted']} buckets evicted, {len(wrongly_served)} tokens given away")
            self.assertEqual((wrongly_served, throttled), ([], 0))
            self.assertGreater(stats["table_evicted"], self.FRESH // 3)
            self.assertLess(grown, SOME_MEMORY)
            debts = [daemon.admin_json(f"show {tag}")["debt"] for tag in debtors]
            self.assertEqual({round(debt, 3) for debt in debts}, {5.0})

    def test_a_flood_of_tags_that_are_empty_themselves_washes_out_nobody_who_was_refused(self):
        debtors = [f"debtor-{i}" for i in range(100)]
        with AskDaemon(rule(burst=5), table={"memory": "1MiB"}) as daemon:
            self._owe(daemon, debtors)
            self.assertEqual(daemon.ask(debtors), ["NO"] * len(debtors))
            for begin in range(0, 48_000 if SANITIZED else 100_000, 4_000):
                daemon.ask(f"fresh-{i}" for i in range(begin, begin + 4_000) for _ in range(5))
            self.assertEqual(daemon.ask(debtors), ["NO"] * len(debtors))
            debts = {round(daemon.admin_json(f"show {tag}")["debt"], 3) for tag in debtors}
            self.assertEqual(debts, {5.0})
            self.assertGreater(daemon.stats()["table_evicted"], 0)
