"""An upgrade in place: another program takes over, and nobody who asks can tell but by the wait."""

import contextlib
import os
import pathlib
import re
import resource
import select
import shutil
import signal
import socket
import stat
import subprocess
import time
import unittest

from common import SystemTest, report
from daemon import (DTHROTTLECTL, DTHROTTLED, FIGURES, PATIENCE, ROOT, SANITIZED, AskDaemon, Daemon, await_read,
                    fresh_directory, lines_of, override, pump, rule, run, settings_text, slowest_rate, wait_until)
from fleet import BURST, Fleet, Ledger, wait_all_hear
import leases
from test_ask import Asker
from test_service import Manager

try:
    import test_grpc
except unittest.SkipTest:
    test_grpc = None    # THIS BUILD IS WITHOUT GRPC: its connections are not held over upgrades

EX_UNAVAILABLE, EX_CONFIG = 69, 78
PLENTY = 10_000_000    # a burst that no test spends
REFUSED = "; this program carries on"


def lives(daemon):
    return daemon.log.count(" ready: ")


def upgrade(daemon):
    """By SIGUSR2, to its end; the pid must stay."""
    before, pid = lives(daemon), daemon.pid
    daemon.signal(signal.SIGUSR2)
    wait_until(lambda: lives(daemon) > before, "the program has taken over")
    assert daemon.pid == pid and daemon.process.poll() is None


def make_blind(program):
    """Puts a program there that is the daemon, but for a check that sees nothing."""
    program.unlink()
    program.write_text(f'#!/bin/sh\n[ "$1" = --check ] && exit 0\nexec {DTHROTTLED} "$@"\n')
    program.chmod(0o755)


def waited_ms(daemon):
    """How long nobody was answered, as the daemon knows it, upgrade by upgrade."""
    return [float(ms) for ms in re.findall(r"took over \d+ connections; they waited ([\d.]+) ms", daemon.log)]


class Load:
    """Connections that ask all the time, one query after the other or several at once."""

    def __init__(self, daemon, stack, connections=64):
        self.asked, self.began = 0, time.monotonic()
        self.depth = {}
        for i in range(connections):
            sock = stack.enter_context(contextlib.closing(daemon.connect(tcp=i % 2 == 0)))
            self.depth[sock] = 20 if i % 4 >= 2 else 1

    def check_bucket(self, test, daemon):
        """Every answer took its token, and nothing came back but what the rate gives."""
        given = slowest_rate(PLENTY) * (time.monotonic() - self.began)
        level = daemon.admin_json("show C")["level"]
        test.assertGreaterEqual(level, PLENTY - self.asked - 0.01)
        test.assertLessEqual(level, PLENTY - self.asked + given + 0.01)

    def ask_until(self, done):
        """The longest wait in seconds. Every answer has to be OK, and there has to be one for every query."""
        longest = 0.0
        while not done():
            longest = max(longest, self._round())
            time.sleep(0.001)
        return longest

    def _round(self):
        poll = select.poll()
        waiting, begin, longest = {}, {}, 0.0
        for sock, depth in self.depth.items():
            poll.register(sock, select.POLLIN)
            begin[sock] = time.monotonic()
            sock.sendall(b"C\n" * depth)
            waiting[sock.fileno()] = [sock, b"OK\n" * depth]
            self.asked += depth
        while waiting:
            ready = poll.poll(PATIENCE * 1000)
            if not ready:
                raise AssertionError(f"{len(waiting)} connections have had no answer for {PATIENCE:g} s")
            for fd, _ in ready:
                sock, owed = waiting[fd]
                got = sock.recv(len(owed))
                if not got or not owed.startswith(got):
                    raise AssertionError(f"{got!r} where {owed!r} was owed")
                waiting[fd][1] = owed[len(got):]
                if len(got) == len(owed):
                    del waiting[fd]
                    poll.unregister(fd)
                    longest = max(longest, time.monotonic() - begin[sock])
        return longest


class Warm(SystemTest):
    def upgrades_under_load(self, **sections):
        with Daemon(rule(burst=PLENTY), **sections) as daemon, contextlib.ExitStack() as stack:
            load = Load(daemon, stack)
            end = time.monotonic() + 1
            quiet = load.ask_until(lambda: time.monotonic() > end)
            waits, descriptors = [], set()
            for _ in range(5):
                before = lives(daemon)
                daemon.signal(signal.SIGUSR2)
                waits.append(load.ask_until(lambda: lives(daemon) > before))
                descriptors.add(len(os.listdir(f"/proc/{daemon.pid}/fd")))
            end = time.monotonic() + 0.1
            load.ask_until(lambda: time.monotonic() > end)
            load.check_bucket(self, daemon)
            self.assertEqual(len(descriptors), 1, "descriptors pile up")
            shown = ", ".join(f"{wait * 1e3:.1f}" for wait in waits)
            report(f"5 upgrades under 64 connections {sections}: {load.asked} queries, each answered; longest waits "
                   f"{shown} ms, {quiet * 1e3:.1f} ms without; of it nobody was answered for {waited_ms(daemon)} ms")
            if FIGURES:    # on a machine that does nothing else
                self.assertLess(max(waits), 0.020)

    def test_five_upgrades_under_64_connections_leave_no_query_unanswered_and_no_bucket_refilled(self):
        self.upgrades_under_load()

    def test_the_same_with_two_threads_and_a_table_without_a_file(self):
        self.upgrades_under_load(query={"threads": 2}, table={"file": ""})

    def test_an_upgrade_keeps_every_tag_and_takes_hardly_more_than_the_start_of_a_program(self):
        """By the processor's time of both, in turns. The figure is asserted on a machine that does nothing else."""
        def spent():
            return int(pathlib.Path(f"/proc/{daemon.pid}/schedstat").read_text().split()[0]) / 1e6

        def start():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([DTHROTTLED, "--version"], stdout=subprocess.DEVNULL, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            return 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

        tags = [f"t{i}" for i in range(2_000 if SANITIZED else 400_000)]
        with Daemon(rule(burst=10), table={"memory": "64MiB"}) as daemon, contextlib.ExitStack() as stack:
            daemon.ask(tags)
            for i in range(64):
                stack.enter_context(daemon.connect(tcp=i % 2 == 0))
            took, starts = [], []
            for _ in range(5):
                starts.append(start())
                before = spent()
                upgrade(daemon)
                self.assertEqual(daemon.ask(["C"]), ["OK"])
                took.append(spent() - before)
                self.assertEqual(daemon.stats()["table_tags"], len(tags) + 1)
        shown = [", ".join(f"{ms:.1f}" for ms in all_of) for all_of in (took, starts)]
        report(f"upgrades with {len(tags)} tags and 64 connections took {shown[0]} ms of processor, the check of the "
               f"settings not counted; the start of a program takes {shown[1]}")
        if FIGURES:
            self.assertLess(min(took), 2 * min(starts))
            self.assertLess(min(took), 20)

    def test_many_tags_and_their_counts_stay(self):
        tags = [f"t{i}" for i in range(2_000 if SANITIZED else 30_000)]
        with Daemon(rule(burst=2)) as daemon:
            daemon.ask(tags)
            before = daemon.stats()
            upgrade(daemon)
            after = daemon.stats()
            self.assertEqual([after[name] for name in ("table_tags", "table_fill")],
                             [before[name] for name in ("table_tags", "table_fill")])
            answers = daemon.ask(tags + tags)
            self.assertEqual(set(answers[:len(tags)]), {"OK"})
            self.assertEqual(set(answers[len(tags):]), {"NO"})


class Kind:
    """A protocol to ask the same bucket by: what is sent, and when an answer is whole. Fails on a wrong one."""

    def __init__(self, request, tokens, begin, is_whole):
        self.request, self.tokens, self.begin, self.is_whole = request, tokens, begin, is_whole


def http_is_whole(answer):
    head, blank, body = answer.partition(b"\r\n\r\n")
    return bool(blank) and len(body) == int(re.search(rb"Content-Length: (\d+)", head)[1])


KINDS = {
    "query": Kind(b"C\n", 1, b"OK\n", lambda answer: answer == b"OK\n"),
    "resp": Kind(b"*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nC\r\n$1\r\n1\r\n$1\r\n1\r\n$1\r\n1\r\n", 1, b"*5\r\n:0\r\n",
                 lambda answer: answer.count(b"\r\n") == 6),
    "ask": Kind(b"take 1 C 2 D\n", 1, b"OK ", lambda answer: answer.endswith(b"\n")),
    "lease": Kind(b"discover\n", 0, b"", lambda answer: answer.startswith((b"here", b"elsewhere")) and b"\n" in answer),
    "http": Kind(b"GET /check?tag=C HTTP/1.1\r\nHost: localhost\r\n\r\n", 1, b"HTTP/1.1 200 ", http_is_whole),
}


class AnyLoad:
    """Connections of all kinds that ask all the time. Of every request one half is sent long before the other."""

    def __init__(self, addresses, stack, each=16):
        self.asked, self.waits = 0, {name: [] for name in KINDS}
        self.socks = []
        for name, places in addresses.items():
            for i in range(each):
                place = places[i % len(places)]
                sock = socket.socket(socket.AF_UNIX if isinstance(place, str) else socket.AF_INET)
                stack.enter_context(contextlib.closing(sock))
                sock.connect(place)
                sock.settimeout(PATIENCE)
                if sock.family == socket.AF_INET:    # the halves of a request go out as they are sent
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.socks.append((name, sock))
                self._send_half(name, sock)

    def _half(self, name):
        return len(KINDS[name].request) * 2 // 3

    def _send_half(self, name, sock):
        sock.sendall(KINDS[name].request[:self._half(name)])

    def round(self):
        poll, waiting = select.poll(), {}
        for name, sock in self.socks:
            poll.register(sock, select.POLLIN)
            waiting[sock.fileno()] = [name, sock, b"", time.monotonic()]
            sock.sendall(KINDS[name].request[self._half(name):])
            self.asked += KINDS[name].tokens
        while waiting:
            ready = poll.poll(PATIENCE * 1000)
            if not ready:
                raise AssertionError(f"no answer for {PATIENCE:g} s: {[w[:3] for w in waiting.values()]}")
            for fd, _ in ready:
                name, sock, answer, since = waiting[fd]
                got = sock.recv(65536)
                answer = waiting[fd][2] = answer + got
                if not got or not answer.startswith(KINDS[name].begin[:len(answer)]):
                    raise AssertionError(f"{name}: {'closed after' if not got else 'said'} {answer!r}")
                if KINDS[name].is_whole(answer):
                    self.waits[name].append(time.monotonic() - since)
                    del waiting[fd]
                    poll.unregister(fd)
                    self._send_half(name, sock)


class EveryKind(SystemTest):
    def test_ten_upgrades_close_no_connection_of_any_kind_and_every_request_is_answered_once(self):
        directory = fresh_directory()
        try:
            paths = {name: f"{directory}/{name}.sock" for name in ("resp", "ask", "lease", "http")}
            lease = {"unix": paths["lease"], "tcp": "127.0.0.1:0"}
            if test_grpc is not None:
                lease.update(grpc="127.0.0.1:0", min_request_interval="0s")
            with Daemon(rule(burst=PLENTY), leases.resource("calls", capacity=1e6),
                        resp={"unix": paths["resp"], "tcp": "127.0.0.1:0"}, lease=lease,
                        ask={"unix": paths["ask"]},    # one more socket, and the log passes over the line of the last
                        admin={"http_unix": paths["http"], "http": "127.0.0.1:0"}) as daemon, \
                    contextlib.ExitStack() as stack:
                port = lambda doing: ("127.0.0.1", int(re.search(rf"{doing} on tcp:127.0.0.1:(\d+)", daemon.log)[1]))
                load = AnyLoad({"query": [daemon.query_path, ("127.0.0.1", daemon.tcp_port)],
                                "resp": [paths["resp"], port("answering clients of Redis")],
                                "ask": [paths["ask"]],
                                "lease": [paths["lease"], port("granting leases")],
                                "http": [paths["http"], port("answering HTTP")]}, stack)
                callers = None
                if test_grpc is not None:
                    grpc_port = port("granting leases by gRPC")[1]
                    callers = stack.enter_context(test_grpc.CallersElsewhere(grpc_port, 16, pause=0.02))
                began = time.monotonic()
                for _ in range(10):
                    before = lives(daemon)
                    daemon.signal(signal.SIGUSR2)
                    while lives(daemon) == before:
                        load.round()
                    for _ in range(5):
                        load.round()
                given = slowest_rate(PLENTY) * (time.monotonic() - began)
                level = daemon.admin_json("show C")["level"]
                self.assertGreaterEqual(level, PLENTY - load.asked - 0.01)
                self.assertLessEqual(level, PLENTY - load.asked + given + 0.01)
                stats = daemon.stats()
                self.assertEqual([stats[f"{kind}connections"] for kind in ("", "resp_", "ask_", "http_")], [16] * 4)
                said = "none of gRPC"
                if callers is not None:
                    calls, failures, longest = callers.end()
                    self.assertEqual((failures, stats["lease_grpc_connections"]), ([], 16))
                    self.assertEqual(stats["lease_connections_accepted"], 0)
                    said = f"16 of gRPC beside, {calls} calls, the longest {longest * 1e3:.1f} ms"
                shown = ", ".join(f"{name} {sorted(waits)[len(waits) * 99 // 100] * 1e3:.1f} and {max(waits) * 1e3:.1f}"
                                  for name, waits in load.waits.items())
                report(f"10 upgrades under 80 connections of 5 kinds, {load.asked} decisions: p99 and longest wait in ms "
                       f"{shown}; {said}; nobody was answered for {waited_ms(daemon)} ms")
                if FIGURES:    # on a machine that does nothing else
                    for waits in load.waits.values():
                        self.assertLess(sorted(waits)[len(waits) * 99 // 100], 0.015)
        finally:
            shutil.rmtree(directory)

    def test_what_a_connection_said_of_itself_goes_along(self):
        with Daemon(rule(burst=9), resp={"tcp": "127.0.0.1:0"}) as daemon:
            port = int(re.search(r"answering clients of Redis on tcp:127.0.0.1:(\d+)", daemon.log)[1])
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as sock:
                def ask(line, until):
                    sock.sendall(line)
                    got = b""
                    while not got.endswith(until):
                        more = sock.recv(4096)
                        self.assertTrue(more, got)
                        got += more
                    return got
                ask(b"CLIENT SETNAME me\r\n", b"+OK\r\n")
                ask(b"MULTI\r\n", b"+OK\r\n")
                ask(b"CL.THROTTLE C 8 1 1000000\r\n", b"+QUEUED\r\n")
                upgrade(daemon)
                ask(b"CL.THROTTLE C 8 1 1000000\r\n", b"+QUEUED\r\n")
                answer = ask(b"EXEC\r\nCLIENT GETNAME\r\n", b"me\r\n")
                self.assertTrue(answer.startswith(b"*2\r\n*5\r\n"), answer)

    def test_a_long_answer_that_is_not_read_yet_comes_whole(self):
        directory = fresh_directory()
        try:
            path = f"{directory}/http.sock"
            with Daemon(rule(), admin={"http_unix": path, "http": ""}) as daemon, \
                    socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(PATIENCE)
                sock.connect(path)
                requests = 200
                sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * (requests - 1) +
                             b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                for _ in range(3):
                    upgrade(daemon)
                received = b""
                while more := sock.recv(1 << 20):
                    received += more
                self.assertEqual(received.count(b"HTTP/1.1 200 OK\r\n"), requests)
                self.assertEqual(received.count(b"</body>\n</html>\n"), requests)
        finally:
            shutil.rmtree(directory)


class Connections(SystemTest):
    def test_a_line_that_is_half_sent_is_one_line(self):
        with Daemon(rule(burst=3)) as daemon, daemon.connect() as unix, daemon.connect(tcp=True) as tcp:
            for sock in (unix, tcp):
                sock.sendall(b"before\nhal")
                self.assertEqual(sock.recv(9), b"OK\n")
            upgrade(daemon)
            for sock in (unix, tcp):
                sock.sendall(b"f-sent\n")
                self.assertEqual(sock.recv(9), b"OK\n")
            self.assertEqual(round(daemon.admin_json("show half-sent")["level"]), 1)
            self.assertEqual(round(daemon.admin_json("show f-sent")["level"]), 3)

    def test_an_over_long_tag_that_is_half_sent_is_the_same_tag(self):
        tag = b"x" * 50_000 + b"y" * 50_001
        with Daemon(rule(burst=2)) as daemon, daemon.connect() as sock:
            sock.sendall(tag[:70_000])
            await_read(sock)
            upgrade(daemon)
            sock.sendall(tag[70_000:] + b"\n")
            self.assertEqual(sock.recv(9), b"OK\n")
            self.assertEqual(daemon.ask([tag, tag]), ["OK", "NO"])

    def test_one_who_does_not_read_gets_every_answer_in_order(self):
        for threads in (1, 2):
            with self.subTest(threads=threads), \
                    Daemon(rule(burst=1, match="once"), rule(burst=PLENTY), query={"threads": threads}) as daemon, \
                    daemon.connect() as sock:
                self.assertEqual(daemon.ask(["once"]), ["OK"])
                stream = daemon.stream()
                with stream:
                    queries = 300_000
                    stream.reading = False
                    stream.send(b"C\nonce\nonce\n" * (queries // 3))
                    pump([stream], lambda: daemon.stats()["connections_stalled"] > 0)
                    for _ in range(2):
                        upgrade(daemon)
                        pump([stream], lambda: False, 0.05)
                    stream.reading = True
                    self.assertTrue(pump([stream], lambda: stream.answers() >= queries))
                    self.assertEqual(bytes(stream.received), b"OK\nNO\nNO\n" * (queries // 3))

    def test_one_who_ended_his_half_still_gets_his_answers(self):
        with Daemon(rule(burst=PLENTY)) as daemon, daemon.stream() as stream:
            stream.reading = False
            stream.send(b"C\n" * 200_000)
            pump([stream], lambda: daemon.stats()["connections_stalled"] > 0)
            upgrade(daemon)
            stream.reading = True
            self.assertTrue(pump([stream], lambda: not stream.outgoing))
            stream.sock.shutdown(socket.SHUT_WR)
            upgrade(daemon)
            self.assertTrue(pump([stream], lambda: stream.ended))
            self.assertEqual(stream.answers(), 200_000)

    def test_whoever_connects_meanwhile_is_answered(self):
        with Daemon(rule(burst=PLENTY)) as daemon:
            before, answered = lives(daemon), 0
            daemon.signal(signal.SIGUSR2)
            while lives(daemon) == before:
                self.assertEqual(daemon.ask(["C"], tcp=answered % 2 == 0), ["OK"])
                answered += 1
            self.assertGreater(answered, 0)

    def test_one_who_holds_much_does_not_cost_others_their_connections(self):
        holds, at_once = 140_000, 50
        with AskDaemon(rule(burst=PLENTY), table={"memory": "64MiB"},
                       hold={"max_holds": 150_000, "max_ttl": "1h"}) as daemon, \
                daemon.connect() as query, Asker(daemon.ask_path) as asker:
            for _ in range(holds // at_once):
                asker.sock.sendall(b"hold 3600000 here 0 job\n" * at_once)
                for _ in range(at_once):
                    self.assertTrue(asker.file.readline().startswith(b"OK "))
            upgrade(daemon)
            query.sendall(b"C\n")
            self.assertEqual(query.recv(9), b"OK\n")
            self.assertEqual(asker.ask("take 1 C"), f"OK {PLENTY - 2}")
            self.assertEqual(daemon.stats()["holds"], holds)

    def test_connections_are_counted_and_bounded_as_before(self):
        with Daemon(rule(), query={"max_connections": 3}) as daemon, daemon.connect(), daemon.connect() as second:
            wait_until(lambda: daemon.stats()["connections"] == 2, "two are connected")
            upgrade(daemon)
            self.assertEqual(daemon.stats()["connections"], 2)
            with daemon.connect() as third, daemon.connect() as fourth:
                third.sendall(b"C\n")
                self.assertEqual(third.recv(9), b"OK\n")
                self.assertEqual(fourth.recv(9), b"")
            second.close()
            wait_until(lambda: daemon.stats()["connections"] == 1, "two are gone")


class Sockets(SystemTest):
    def test_the_sockets_are_the_same_and_are_removed_at_the_end(self):
        with Daemon(rule(), page={"entries": 64}) as daemon:
            files = [daemon.query_path, daemon.admin_path, daemon.query_path + ".page"]
            before = [os.stat(file).st_ino for file in files]
            port = daemon.tcp_port
            upgrade(daemon)
            upgrade(daemon)
            self.assertEqual([os.stat(file).st_ino for file in files], before)
            self.assertEqual(daemon.log.count(f"answering queries on tcp:127.0.0.1:{port}\n"), 3)
            daemon.stop()
            self.assertEqual([os.path.exists(file) for file in files], [False, False, False])

    def test_a_socket_that_moves_in_the_settings_moves_and_its_connections_stay(self):
        with Daemon(rule(burst=5)) as daemon, daemon.connect() as sock:
            moved = f"{daemon.directory}/moved.sock"
            daemon.settings_path.write_text(settings_text(
                daemon.directory, rule(burst=5), query={"unix": moved, "tcp": ""}, admin={"unix": daemon.admin_path}))
            upgrade(daemon)
            daemon.wait_log(f"no longer on {daemon.query_path}, which was query.unix")
            daemon.wait_log("which was query.tcp")
            self.assertFalse(os.path.exists(daemon.query_path))
            sock.sendall(b"C\n")
            self.assertEqual(sock.recv(9), b"OK\n")
            daemon.query_path = moved
            self.assertEqual(daemon.ask(["C"]), ["OK"])

    def test_an_address_that_overlaps_with_that_of_before_or_was_another_sockets_is_opened(self):
        def becomes(**sections):
            daemon.settings_path.write_text(settings_text(daemon.directory, rule(burst=PLENTY), **sections))
            upgrade(daemon)
            sock.sendall(b"C\n")
            self.assertEqual(sock.recv(9), b"OK\n")

        with AskDaemon(rule(burst=PLENTY), page={"entries": 64}) as daemon, daemon.connect(tcp=True) as sock:
            query, ask, port = daemon.query_path, daemon.ask_path, daemon.tcp_port
            for address in (f"0.0.0.0:{port}", f"127.0.0.1:{port}"):
                becomes(query={"tcp": address}, ask={"unix": ask})
                self.assertEqual(daemon.ask(["C"], tcp=True), ["OK"])
            becomes(query={"tcp": "", "unix": ask}, ask={"unix": query}, page={"entries": 64},
                    resp={"tcp": f"127.0.0.1:{port}"})
            with Asker(query) as asker, Asker(("127.0.0.1", port)) as redis:
                self.assertEqual(asker.ask("peek 0 D"), f"OK {PLENTY}")
                self.assertEqual(redis.ask("PING"), "+PONG\r")
            becomes(query={"tcp": ""}, peers={"bind": f"tcp://127.0.0.1:{port}"})
            self.assertFalse(os.path.exists(ask))

    def test_a_socket_file_that_somebody_removed_is_made_anew(self):
        with Daemon(rule()) as daemon:
            os.unlink(daemon.query_path)
            upgrade(daemon)
            self.assertEqual(daemon.ask(["C"]), ["OK"])

    def test_permissions_follow_the_settings(self):
        with Daemon(rule(), query={"unix_mode": "0600"}) as daemon:
            daemon._sections["query"]["unix_mode"] = "0666"
            daemon.write_settings(rule())
            upgrade(daemon)
            self.assertEqual(stat.S_IMODE(os.stat(daemon.query_path).st_mode), 0o666)


class Descriptors(SystemTest):
    def uptime(self, directory):
        """None: nobody answers."""
        said = run(DTHROTTLECTL, "-s", f"{directory}/admin", "stats")
        return float(re.search(r"^uptime +(\S+)", said.stdout, re.M)[1]) if said.returncode == 0 else None

    def test_a_daemon_started_without_standard_descriptors_upgrades_and_stops_as_others_do(self):
        for closed in ("0<&-", "2>&-", "0<&- 1>&- 2>&-"):
            with self.subTest(closed=closed):
                directory = fresh_directory()
                self.addCleanup(shutil.rmtree, directory)
                file = directory / "dthrottled.toml"
                file.write_text(settings_text(directory, rule(), query={"unix": f"{directory}/query"},
                                              admin={"unix": f"{directory}/admin"}))
                process = subprocess.Popen(["/bin/sh", "-c", f"exec '{DTHROTTLED}' -c '{file}' {closed}"],
                                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                           stderr=subprocess.DEVNULL)
                try:
                    wait_until(lambda: (self.uptime(directory) or 0) > 0.5, "it has answered for a while")
                    before = self.uptime(directory)
                    self.assertEqual(run(DTHROTTLECTL, "-s", f"{directory}/admin", "upgrade").returncode, 0)
                    wait_until(lambda: (self.uptime(directory) or before) < before, "another program answers")
                    for fd in range(3):
                        self.assertEqual(os.readlink(f"/proc/{process.pid}/fd/{fd}"), "/dev/null")
                    process.terminate()
                    self.assertEqual(process.wait(PATIENCE), 0)
                finally:
                    process.kill()
                    process.wait()


class OtherProgram(SystemTest):
    @contextlib.contextmanager
    def daemon_of(self, *limits, **options):
        """A daemon whose program may be replaced."""
        directory = fresh_directory()
        try:
            program = directory / "dthrottled"
            shutil.copy(DTHROTTLED, program)
            with Daemon(*limits, program=program, **options) as daemon:
                daemon.program = program
                yield daemon
        finally:
            shutil.rmtree(directory)

    def replace(self, daemon, text):
        daemon.program.unlink()
        if text is not None:
            daemon.program.write_text(text)
            daemon.program.chmod(0o755)


class Refused(OtherProgram):
    """What cannot take over does not."""

    def refuses(self, daemon, why):
        with daemon.connect() as sock:
            answer = daemon.admin("upgrade")
            self.assertTrue(answer.startswith("error: "), answer)
            self.assertIn(why, answer)
            daemon.wait_log(REFUSED)
            sock.sendall(b"C\n")
            self.assertEqual(sock.recv(9), b"OK\n")
        self.assertEqual(lives(daemon), 1)

    def test_bad_settings(self):
        with Daemon(rule()) as daemon:
            daemon.settings_path.write_text("[[rule]]\nburst = 0\n")
            self.refuses(daemon, "rule.burst = 0")

    def test_settings_with_several_errors_are_a_line_each_in_the_log_and_the_first_is_the_status(self):
        with Manager() as manager, Daemon(rule(), env={"NOTIFY_SOCKET": manager.path}) as daemon:
            manager.wait_for(READY="1")
            path = daemon.settings_path
            path.write_text('[[rule]]\nburst = 0\nrate = 1\n"x\\nMAINPID=1" = 1\n' + "[[rule]]\nrate = 0\n" * 12)
            self.refuses(daemon, "rule.burst = 0")
            [told] = [message for message in manager.receive() if "STATUS" in message]
            self.assertEqual(set(told), {"READY", "STATUS"})
            self.assertIn(f"{path}:2:9: error: rule.burst = 0", told["STATUS"])
            lines = daemon.log.splitlines()
            at = next(i for i, line in enumerate(lines) if "upgrade: checking" in line)
            for line in lines[at:]:
                self.assertRegex(line, r"^\S+T\S+ (error|notice): upgrade: ")
            self.assertIn(r'error: unknown key rule."x\u000AMAINPID=1"; must be one of', daemon.log)

    def test_a_directory_that_is_not_there(self):
        with Daemon(rule()) as daemon:
            for section, key in (("query", "unix"), ("admin", "http_unix"), ("table", "file")):
                missing = f"{daemon.directory}/missing/file"
                daemon.settings_path.write_text(settings_text(daemon.directory, rule(), **{section: {key: missing}}))
                self.refuses(daemon, f'{section}.{key} = "{missing}": {daemon.directory}/missing/: No such file')
                self.assertEqual(run(DTHROTTLED, "--check", daemon.settings_path).returncode, 0)

    def test_settings_that_a_start_would_fail_over(self):
        with Daemon(rule(burst=100)) as daemon, socket.create_server(("127.0.0.1", 0)) as other:
            diary = str(daemon.directory / "diary")
            (daemon.directory / "diary").write_text("dear diary\n")
            resp = {"unix": f"{daemon.directory}/resp.sock", "accept_limits": True, "memory": "1TiB"}
            taken = f"127.0.0.1:{other.getsockname()[1]}"
            for named, words, sections in (
                    ("operator.limits_file", "not written by dthrottle", {"operator": {"limits_file": diary}}),
                    ("operator.limits_file", "a directory", {"operator": {"limits_file": str(daemon.directory)}}),
                    ("table.file", "not written by dthrottle", {"table": {"file": diary}}),
                    ("table.memory", "No space left on device", {"table": {"memory": "1TiB"}}),
                    ("resp.memory", "No space left on device", {"resp": resp}),
                    ("resp.unix", "is not a socket", {"resp": {"unix": diary}}),
                    ("ask.tcp", "Cannot assign requested address", {"ask": {"tcp": "192.0.2.77:7311"}}),
                    ("ask.tcp", "Address already in use", {"ask": {"tcp": taken}})):
                with self.subTest(named=named, words=words):
                    daemon.settings_path.write_text(settings_text(daemon.directory, rule(), **sections))
                    self.refuses(daemon, f"error: {named} = ")
                    self.assertIn(words, daemon.log.split("error: ")[-1])
            self.assertFalse((daemon.directory / "table.resp").exists())

    def test_a_file_of_quotas_that_overrides_need_or_a_candidate_that_is_in_force(self):
        with Daemon(rule(burst=100)) as daemon:
            quota = {"file": f"{daemon.directory}/missing/quotas"}
            why = 'error: quota.file = "{0}": {0}: cannot make it'.format(quota["file"])
            limits = (rule(), override("D", quota=50))
            daemon.settings_path.write_text(settings_text(daemon.directory, *limits, quota=quota))
            checked = run(DTHROTTLED, "--check", daemon.settings_path)
            self.assertEqual((checked.returncode, checked.stdout.count(why.replace("error", "warning"))), (0, 1))
            self.refuses(daemon, why)
            daemon.settings_path.write_text(settings_text(daemon.directory, rule(burst=100)))
            candidate = daemon.directory / "candidate.toml"
            candidate.write_text(rule(burst=100, quota=50))
            ctl = (DTHROTTLECTL, "-s", daemon.admin_path, "candidate")
            self.assertEqual(run(*ctl, candidate).returncode, 0)
            self.assertEqual(run(*ctl, "promote").returncode, 0)
            self.assertIn("quota", daemon.admin_json("show C"))
            daemon.settings_path.write_text(settings_text(daemon.directory, rule(burst=100), quota=quota))
            self.refuses(daemon, why)

    def test_files_beside_the_table_that_are_somebody_else_s(self):
        with Daemon(rule(burst=100)) as daemon:
            table = f"{daemon.directory}/other"
            sections = {"table": {"file": table}, "ask": {"unix": f"{daemon.directory}/ask.sock"}}
            daemon.settings_path.write_text(settings_text(daemon.directory, rule(burst=100), **sections))
            for suffix in (".rules", ".holds"):
                with self.subTest(suffix=suffix):
                    diary = pathlib.Path(table + suffix)
                    diary.write_text("dear diary\n")
                    self.refuses(daemon, f'error: table.file = "{table}": {diary}: was not written by dthrottle')
                    diary.unlink()
            upgrade(daemon)

    def test_files_that_have_room_one_by_one_and_not_together(self):
        directory = fresh_directory()
        self.addCleanup(shutil.rmtree, directory)
        room = os.statvfs(directory)
        if room.f_blocks == 0:
            self.skipTest("NOT TESTED: the file system has no size")
        free_mib = room.f_bavail * room.f_frsize >> 20
        some_mib = min(free_mib * 6 // 10, 8192)
        most, some = {"memory": f"{free_mib - some_mib // 2}MiB"}, {"memory": f"{some_mib}MiB"}
        settings = directory / "dthrottled.toml"
        version = re.search(r"kHandoverVersion = (\d+)", (ROOT / "src/io/handover.h").read_text())[1]
        quota = {"file": f"{directory}/quotas", **some}
        resp = {"unix": f"{directory}/resp.sock", "accept_limits": True, **some}
        for named, sections in (("", {"table": most}), ("", {"quota": quota}), ("", {"resp": resp}),
                                ("quota.file", {"table": most, "quota": quota}),
                                ("resp.memory", {"table": most, "resp": resp})):
            with self.subTest(sections=sections):
                settings.write_text(settings_text(directory, rule(quota=50), **sections))
                done = run(DTHROTTLED, "--check", settings, "--handover", version)
                self.assertEqual(done.returncode, EX_CONFIG if named else 0, done.stdout)
                self.assertEqual("No space left on device" in done.stdout, named != "")
                self.assertIn(f"error: {named} = " if named else "ok, 1 rules", done.stdout)

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "NOT TESTED: takes root and setpriv")
    def test_a_unix_socket_where_the_user_of_the_daemon_can_make_none(self):
        elsewhere = fresh_directory()
        self.addCleanup(shutil.rmtree, elsewhere)
        elsewhere.chmod(0o755)
        become = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")
        daemon = Daemon(rule(burst=100), wrapper=become)
        daemon.directory.chmod(0o777)
        with daemon:
            daemon.settings_path.chmod(0o644)
            old = daemon.settings_path.read_text()
            for key in ("query", "ask"):
                daemon.settings_path.write_text(settings_text(
                    daemon.directory, rule(burst=100), **{key: {"unix": f"{elsewhere}/socket"}}))
                self.refuses(daemon, f'error: {key}.unix = "{elsewhere}/socket": {elsewhere}/: Permission denied')
            daemon.settings_path.write_text(old)
            daemon.directory.chmod(0o755)    # what it has it need not make
            upgrade(daemon)

    def test_ports_that_this_daemon_has_may_change_places(self):
        with contextlib.ExitStack() as stack:
            free = [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(2)]
        one, other = (f"127.0.0.1:{port}" for port in free)
        with AskDaemon(rule(), query={"tcp": one}, ask={"tcp": other}) as daemon:
            daemon.settings_path.write_text(settings_text(
                daemon.directory, rule(), query={"tcp": other}, ask={"unix": daemon.ask_path, "tcp": one}))
            upgrade(daemon)
            daemon.settings_path.write_text(settings_text(
                daemon.directory, rule(), query={"tcp": other}, ask={"unix": daemon.ask_path, "tcp": f"0.0.0.0:{free[0]}"}))
            upgrade(daemon)
            self.assertEqual(daemon.ask(["C"]), ["OK"])
        peers = {"name": "a", "bind": f"tcp://{one}", "connect": ["tcp://127.0.0.1:1"]}
        with Daemon(rule(), peers=peers) as daemon:
            daemon.settings_path.write_text(settings_text(
                daemon.directory, rule(), query={"tcp": one}, peers={**peers, "bind": f"tcp://{other}"}))
            upgrade(daemon)
            self.assertEqual(daemon.ask(["C"]), ["OK"])

    def test_a_program_that_is_not_there(self):
        with self.daemon_of(rule()) as daemon:
            self.replace(daemon, None)
            self.refuses(daemon, "no such file or directory")

    def test_a_program_that_is_none(self):
        with self.daemon_of(rule()) as daemon:
            self.replace(daemon, "\x7fELF nonsense")
            self.refuses(daemon, daemon.program.name)

    def test_a_program_that_takes_over_from_other_versions_only(self):
        with self.daemon_of(rule()) as daemon:
            self.replace(daemon, "#!/bin/sh\necho \"not from $4\"\nexit 69\n")
            self.refuses(daemon, "not from 2")
            said = run(DTHROTTLED, "--check", daemon.settings_path, "--handover", "99")
            self.assertEqual((said.returncode, "format" in said.stdout), (EX_UNAVAILABLE, True))

    def test_a_program_that_is_gone_at_the_last_moment_and_here_it_goes_on(self):
        with self.daemon_of(rule(burst=PLENTY), query={"threads": 2}) as daemon, contextlib.ExitStack() as stack:
            load = Load(daemon, stack, connections=8)
            self.replace(daemon, "#!/bin/sh\nrm \"$0\"\n")
            half = stack.enter_context(daemon.connect())
            half.sendall(b"hal")
            daemon.signal(signal.SIGUSR2)
            load.ask_until(lambda: REFUSED in daemon.log)
            load.ask_until(iter([False] * 10 + [True]).__next__)
            half.sendall(b"f\n")
            self.assertEqual(half.recv(9), b"OK\n")
            shutil.copy(DTHROTTLED, daemon.program)
            upgrade(daemon)
            load.ask_until(iter([False] * 10 + [True]).__next__)
            load.check_bucket(self, daemon)

    def test_a_handover_that_is_none_is_said_and_ignored(self):
        with Daemon(rule(), env={"DTHROTTLED_HANDOVER": "7"}) as daemon:
            daemon.wait_log("what the program before has left: ")
            upgrade(daemon)
            self.assertEqual(daemon.ask(["C"]), ["OK"])


class Failed(OtherProgram):
    def test_a_start_that_fails_leaves_what_a_stop_would_have_left_also_where_the_table_was_to_be_another(self):
        limit = rule(burst=5, **{"penalty.after": 3, "penalty.lasts": "1h"})
        with socket.create_server(("127.0.0.1", 0)) as other, self.daemon_of(limit) as daemon:
            make_blind(daemon.program)
            daemon.ask(["C"] * 20)
            self.assertEqual(len(daemon.admin_json("penalties")), 1)
            elsewhere = daemon.directory / "elsewhere"
            elsewhere.mkdir()
            daemon.settings_path.write_text(settings_text(
                daemon.directory, limit, table={"file": f"{elsewhere}/table"},
                query={"tcp": f"127.0.0.1:{other.getsockname()[1]}"}))
            daemon.signal(signal.SIGUSR2)
            daemon.wait_exit(EX_UNAVAILABLE)
            daemon.write_settings(limit)
            daemon.start()
            self.assertEqual(len(daemon.admin_json("penalties")), 1)


class Orders(SystemTest):
    """Signals and commands that meet an upgrade."""

    def test_the_command_says_which_program_it_becomes(self):
        with Daemon(rule()) as daemon:
            self.assertEqual(daemon.admin_json("upgrade"), {"upgrading": True, "program": str(DTHROTTLED)})
            wait_until(lambda: lives(daemon) == 2, "it has taken over")

    def test_of_two_at_once_one_comes_about(self):
        with Daemon(rule()) as daemon, daemon.admin_session() as one, daemon.admin_session() as two:
            one.send(b"upgrade\n")
            two.send(b"upgrade\n")
            answers = sorted([one.answer(), two.answer()])
            self.assertEqual(answers[0], "error: an upgrade is under way\n")
            self.assertIn("upgrading  true", answers[1])
            wait_until(lambda: lives(daemon) == 2, "it has taken over")
            for _ in range(5):
                daemon.signal(signal.SIGUSR2)
            wait_until(lambda: lives(daemon) == 3, "it has taken over again")
            self.assertEqual(daemon.ask(["C"]), ["OK"])

    def test_rules_that_have_changed_are_in_force_and_buckets_are_kept(self):
        with Daemon(rule(burst=10)) as daemon:
            daemon.ask(["C"] * 7)
            daemon.write_settings(rule(burst=20))
            upgrade(daemon)
            self.assertEqual(round(daemon.admin_json("show C")["level"]), 13)

    def test_settings_that_only_the_next_program_can_use_cost_no_bucket(self):
        for table in ({}, {"file": ""}):
            begin = rule(name="all", burst=5, rate=0.001), override("old", burst=8, rate=0.001)
            with self.subTest(table=table), Daemon(*begin, query={"max_tag_bytes": 100}, table=table) as daemon:
                self.assertNotIn("error", daemon.admin("limit set tag 3 0.001 - set"))
                self.assertEqual([daemon.served(tag, 9) for tag in ("C", "old", "set")], [5, 8, 3])
                daemon._sections["query"]["max_tag_bytes"] = 200
                daemon.write_settings(rule(name="all", burst=6, rate=0.001), override("x" * 150, burst=7))
                upgrade(daemon)
                self.assertIn("only the new program can use the settings", daemon.log)
                self.assertEqual([daemon.served(tag, 9) for tag in ("C", "old", "set", "x" * 150)], [1, 0, 0, 7])
                upgrade(daemon)
                self.assertEqual([daemon.served(tag, 9) for tag in ("C", "old", "set", "x" * 150)], [0, 0, 0, 0])

    def test_reloads_and_upgrades_together(self):
        many = [override(f"o{i}") for i in range(300 if SANITIZED else 5_000)]
        with Daemon(rule(burst=100), *many) as daemon:
            daemon.ask(["C"] * 7)
            for number in (signal.SIGHUP, signal.SIGUSR2, signal.SIGHUP):
                daemon.signal(number)
            wait_until(lambda: lives(daemon) == 2, "it has taken over")
            self.assertEqual(round(daemon.admin_json("show C")["level"]), 93)

    def test_a_stop_right_behind_an_upgrade_is_obeyed(self):
        for delay in (0, 0.01, 0.03, 0.05):
            with self.subTest(delay=delay), Daemon(rule()) as daemon, daemon.connect() as sock:
                sock.sendall(b"C\n")
                daemon.signal(signal.SIGUSR2)
                time.sleep(delay)
                daemon.signal(signal.SIGTERM)
                self.assertEqual(sock.recv(9), b"OK\n")
                daemon.wait_exit(0)

    def test_the_service_manager_hears_of_it(self):
        with Manager() as manager, \
                Daemon(rule(), env={"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "400000"}) as daemon:
            manager.wait_for(READY="1")
            daemon.signal(signal.SIGUSR2)
            manager.wait_for(RELOADING="1")
            manager.wait_for(READY="1")
            manager.wait_for(RELOADING="1")
            self.assertIn(daemon.query_path, manager.wait_for(READY="1")["STATUS"])
            manager.wait_for(WATCHDOG="1")
            daemon.settings_path.write_text("nonsense")
            daemon.signal(signal.SIGUSR2)
            wait_until(lambda: any("upgrade was refused" in message.get("STATUS", "") for message in manager.receive()),
                       "the service manager is told why not")


class Peers(SystemTest):
    def test_hits_before_during_and_after_an_upgrade_reach_the_peers_once(self):
        with Fleet(rule(burst=BURST)) as (a, b):
            wait_all_hear((a, b))
            ledger = Ledger()
            ledger.serve(a, "C", 100)
            before = lives(a)
            a.signal(signal.SIGUSR2)
            while lives(a) == before:
                ledger.serve(a, "C", 1)
            ledger.serve(a, "C", 10)
            ledger.serve(b, "C", 5)
            ledger.settle((a, b))
            self.assertEqual(a.ask(["C"]), ["OK"])
