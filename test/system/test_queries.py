"""The query protocol, as an application or a person with netcat meets it."""

import collections
import contextlib
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import time
import unittest

from common import SystemTest
from daemon import PATIENCE, SANITIZED, Daemon, await_read, lines_of, pump, receive_all, rule, verdicts


class Newcomer(SystemTest):
    """What somebody tries in the first five minutes."""

    @unittest.skipIf(shutil.which("nc") is None, "netcat is not installed")
    def test_netcat_gets_an_answer_for_every_line_and_then_the_end(self):
        with Daemon(rule(burst=10)) as daemon:
            nc = subprocess.run(["nc", "-N", "-U", daemon.query_path], input=b"C\nC\n", capture_output=True,
                                timeout=PATIENCE)
            self.assertEqual((nc.returncode, nc.stdout), (0, b"OK\nOK\n"), nc.stderr)
            nc = subprocess.run(["nc", "-N", "127.0.0.1", str(daemon.tcp_port)], input=b"C\r\n" * 9,
                                capture_output=True, timeout=PATIENCE)
            self.assertEqual((nc.returncode, nc.stdout), (0, b"OK\n" * 8 + b"NO\n"), nc.stderr)

    def test_a_tag_is_served_as_often_as_its_burst_and_then_throttled(self):
        for tcp in (False, True):
            with self.subTest(tcp=tcp), Daemon(rule(burst=10)) as daemon:
                self.assertEqual(daemon.ask(["C"] * 12, tcp), ["OK"] * 10 + ["NO"] * 2)
                self.assertEqual(daemon.ask(["another"], tcp), ["OK"])

    def test_unix_and_tcp_sockets_spend_from_the_same_buckets(self):
        with Daemon(rule(burst=10)) as daemon:
            self.assertEqual(daemon.served("C", 6), 6)
            self.assertEqual(daemon.served("C", 6, tcp=True), 4)

    def test_a_bucket_refills_at_its_rate(self):
        with Daemon(rule(burst=2, rate=4)) as daemon:
            begin = time.monotonic()
            served = daemon.served("C", 3)
            time.sleep(0.3)
            served += daemon.served("C", 9)
            passed = time.monotonic() - begin
            self.assertGreaterEqual(served, 3, "a token comes back in a quarter of a second")
            self.assertLessEqual(served, 2 + 4 * passed, "3 unless this process was held up")

    def test_without_any_rule_every_query_is_answered_ok(self):
        with Daemon() as daemon:
            self.assertEqual(daemon.served("C", 1000), 1000)
            daemon.wait_log("there is no [[rule]]")
            self.assertEqual(daemon.stats()["unmatched"], 1000)


class Lines(SystemTest):
    """Which bytes are a tag."""

    def test_a_carriage_return_before_the_line_feed_is_not_part_of_the_tag(self):
        with Daemon(rule(burst=2)) as daemon:
            self.assertEqual(daemon.ask([b"C\r", b"C", b"C\r", b"C"]), ["OK", "OK", "NO", "NO"])
            self.assertEqual(daemon.ask([b"C\r\r"]), ["OK"], "only the last one is not part of it")

    def test_an_empty_line_is_the_tag_of_no_bytes(self):
        with Daemon(rule(burst=2)) as daemon:
            self.assertEqual(daemon.ask(["", "\r", "", "x"]), ["OK", "OK", "NO", "OK"])

    def test_a_last_tag_without_line_feed_is_not_a_query_and_the_others_are_answered(self):
        for tcp in (False, True):
            with self.subTest(tcp=tcp), Daemon(rule(burst=2)) as daemon:
                with daemon.connect(tcp) as sock:
                    sock.sendall(b"a\nb\nunfinished")
                    sock.shutdown(socket.SHUT_WR)
                    self.assertEqual(receive_all(sock), b"OK\nOK\n")
                self.assertEqual(daemon.admin_json("show unfinished")["level"], 2)
                self.assertEqual(daemon.stats()["queries"], 2)

    def test_pipelined_answers_come_in_the_order_of_the_queries(self):
        order = random.Random(1)
        with Daemon(rule(name="exempt", match="ok*", mode="off"), rule(burst=1)) as daemon:
            daemon.ask(["drained"])
            tags = [order.choice(["drained", f"ok{i}"]) for i in range(50_000)]
            expected = ["NO" if tag == "drained" else "OK" for tag in tags]
            for tcp in (False, True):
                self.assertTrue(daemon.ask(tags, tcp) == expected, "answers are out of order")

    def test_every_byte_but_the_line_feed_may_be_part_of_a_tag(self):
        with Daemon(rule(burst=1)) as daemon:
            tags = [form % bytes([byte]) for byte in range(256) if byte != 0x0a for form in (b"%b", b"a%bz", b"%bz")]
            # At its end, a carriage return is not part of the tag, which is then that of no bytes.
            distinct = [tag for tag in tags if tag != b"\r"] + [b""]
            self.assertEqual(daemon.ask(distinct), ["OK"] * len(distinct), "two of the tags share a bucket")
            self.assertEqual(daemon.ask(tags), ["NO"] * len(tags), "one of the tags was not the same again")

    def test_a_tag_may_be_cut_at_any_byte(self):
        limit = 40
        with Daemon(rule(burst=1), query={"max_tag_bytes": limit}) as daemon:
            for tcp in (False, True):
                for length in (0, 1, 17, limit - 1, limit, limit + 1, limit + 2, limit + 20):
                    for ending in (b"\n", b"\r\n"):
                        tag = b"%02d" % length + b"\rx" * length
                        self.ask_cut_everywhere(daemon, tcp, tag[:length] + ending)

    def ask_cut_everywhere(self, daemon, tcp, line):
        with daemon.connect(tcp) as sock:
            def answer(pieces):
                for piece in pieces[:-1]:
                    sock.sendall(piece)
                    if not tcp:    # where pieces may arrive together, as they do in life
                        await_read(sock)
                sock.sendall(pieces[-1])
                return sock.recv(100)
            answer([line])    # empties the bucket of this tag, and no other
            self.assertEqual(answer([line]), b"NO\n")
            for cut in range(1, len(line)):
                self.assertEqual(answer([line[:cut], line[cut:]]), b"NO\n", (line, cut))
            self.assertEqual(answer([line[i:i + 1] for i in range(len(line))]), b"NO\n", line)


class OverLongTags(SystemTest):
    """A tag longer than max_tag_bytes can neither exhaust memory nor evade its limit."""

    def test_a_long_tag_has_a_bucket_of_its_own(self):
        with Daemon(rule(burst=3)) as daemon:
            for length in (255, 256, 300, 4096, 100_000):
                with self.subTest(length=length):
                    tag = b"%d" % length + b"x" * (length - len(str(length)))
                    self.assertEqual(daemon.ask([tag] * 4), ["OK"] * 3 + ["NO"])
                    self.assertEqual(daemon.ask([tag[:-1], tag + b"x"]), ["OK"] * 2, "a neighbour in length")
            self.assertEqual(daemon.stats()["over_long_tags"], 2 + 4 * 4 + 3 * 2)

    def test_long_tags_that_differ_in_one_byte_in_the_middle_are_different(self):
        with Daemon(rule(burst=1)) as daemon:
            for length in (300, 100_000):
                for place in (0, 254, 255, length // 2, length - 256, length - 1):
                    tag = bytearray(b"%08d" % length + b"a" * (length - 8))
                    other = bytearray(tag)
                    other[place] = ord("b")
                    daemon.ask([bytes(tag)])
                    self.assertEqual(daemon.ask([bytes(tag), bytes(other)]), ["NO", "OK"], (length, place))

    def test_a_carriage_return_ends_a_long_tag_as_it_does_a_short_one(self):
        with Daemon(rule(burst=1)) as daemon:
            for length in (254, 255, 256, 300, 4095, 4096, 8191):
                tag = b"c" * length
                self.assertEqual(daemon.ask([tag, tag + b"\r", tag + b"\r\r"]), ["OK", "NO", "OK"], length)

    def test_a_rule_by_prefix_applies_to_a_long_tag(self):
        with Daemon(rule(name="login", match="login:*", burst=2), rule(burst=5)) as daemon:
            for length in (300, 100_000):
                tag = b"login:" + b"x" * length
                self.assertEqual(daemon.served(tag, 9), 2)
                self.assertEqual(daemon.served(tag[1:], 9), 5)
                self.assertEqual(daemon.admin_json(b"show " + tag[:60_000])["rule"], "login")

    def test_a_rule_by_suffix_applies_to_a_long_tag(self):
        with Daemon(rule(name="test", match="*@test", burst=2), rule(burst=5)) as daemon:
            for length in (300, 100_000):
                self.assertEqual(daemon.served(b"x" * length + b"@test", 9), 2)

    def test_long_tags_cost_no_memory_while_they_arrive(self):
        with Daemon(rule(burst=1)) as daemon:
            daemon.ask(["warm"])
            before = daemon.resident_bytes()
            streams = [daemon.stream() for _ in range(20)]
            for stream in streams:
                stream.send(b"x" * 1_000_000)
            self.assertTrue(pump(streams, lambda: not any(stream.outgoing for stream in streams)))
            self.assertEqual(daemon.ask(["other"]), ["OK"])
            self.assertLess(daemon.resident_bytes() - before, 4 << 20)
            for stream in streams:
                stream.send(b"\n")
            self.assertTrue(pump(streams, lambda: all(stream.answers() for stream in streams)))
            answers = [verdicts(stream.received) for stream in streams]
            self.assertEqual(sorted(answers), [["NO"]] * 19 + [["OK"]], "twenty times the same tag")
            for stream in streams:
                stream.close()


class Sharing(SystemTest):
    """Many connections, one limit."""

    def test_the_connections_of_several_query_threads_share_one_limit(self):
        burst, tags = 1000, [b"shared", b"a second tag that takes more than one cell of the table", b"x" * 300]
        with Daemon(rule(burst=burst), query={"threads": 2}) as daemon:
            streams = [daemon.stream(tcp=i % 2 == 0) for i in range(32)]
            queries = [tag for tag in tags for _ in range(100)]
            for i, stream in enumerate(streams):
                random.Random(i).shuffle(queries)
                stream.send(lines_of(queries))
                stream.queries = list(queries)
            self.assertTrue(pump(streams, lambda: all(s.answers() >= len(queries) for s in streams)))
            served = collections.Counter()
            for stream in streams:
                answered = zip(stream.queries, verdicts(stream.received), strict=True)
                served.update(tag for tag, verdict in answered if verdict == "OK")
                stream.close()
            self.assertEqual(served, {tag: burst for tag in tags})
            stats = daemon.stats()
            self.assertEqual((stats["served"], stats["queries"]), (burst * len(tags), 32 * len(queries)))

    def test_query_threads_limit_together_while_tags_come_and_rules_change(self):
        burst, chance = 5, random.Random(23)
        pool = [b"%d-" % i + b"x" * chance.choice([0, 0, 0, 30, 100, 300]) for i in range(2000)]
        with Daemon(rule(burst=burst), query={"threads": 2}) as daemon, contextlib.ExitStack() as stack:
            streams = [stack.enter_context(daemon.stream(tcp=i % 2 == 0)) for i in range(16)]
            for stream in streams:
                stream.queries = chance.choices(pool, k=3_000 if SANITIZED else 10_000)
                stream.send(lines_of(stream.queries))

            def answered():
                return all(stream.answers() >= len(stream.queries) for stream in streams)
            for i in range(5):
                # Slower each time, so that every bucket is rewritten; nobody has more tokens for it.
                daemon.write_settings(rule(burst=burst, rate=(10 - i) * 1e-6))
                daemon.signal(signal.SIGHUP)
                pump(streams, answered, 0.01)
            self.assertTrue(pump(streams, answered))
            asked, served = collections.Counter(), collections.Counter()
            for stream in streams:
                asked.update(stream.queries)
                given = zip(stream.queries, verdicts(stream.received), strict=True)
                served.update(tag for tag, verdict in given if verdict == "OK")
            self.assertEqual(served, {tag: min(burst, count) for tag, count in asked.items()})

    def test_connections_are_spread_over_the_query_threads(self):
        with Daemon(rule(burst=10), query={"threads": 2}) as daemon, contextlib.ExitStack() as stack:
            socks = [stack.enter_context(daemon.connect()) for _ in range(8)]
            before = waits_of_threads(daemon)
            for _ in range(300):
                for sock in socks:    # a thread waits for each of these queries, but for some on a busy machine
                    sock.sendall(b"C\n")
                    self.assertEqual(len(sock.recv(100)), 3)
            after = waits_of_threads(daemon)
            busy = [thread for thread in after if after[thread] - before.get(thread, 0) >= 100]
            self.assertEqual(len(busy), 2)


def waits_of_threads(daemon):
    """How often each thread of the daemon has waited for something to happen."""
    tasks = pathlib.Path(f"/proc/{daemon.pid}/task").iterdir()
    return {task.name: int(re.search(r"\nvoluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text())[1])
            for task in tasks}
