"""More of everything than fits: connections, descriptors, answers that nobody reads."""

import contextlib
import random
import resource
import time

from common import SystemTest
from daemon import FIGURES, PATIENCE, SANITIZED, Daemon, lines_of, pump, rule, verdicts, wait_until

MEBIBYTE = 1 << 20


class Connections(SystemTest):
    """Whoever does not fit is turned away at once, and can carry on without an answer."""

    def open_and_ask(self, daemon, stack, count):
        """Opens connections, asks on each, and returns those that are answered and those that are closed."""
        streams = [stack.enter_context(daemon.stream()) for _ in range(count)]
        for stream in streams:
            stream.send(b"C\n")
        self.assertTrue(pump(streams, lambda: all(s.ended or s.answers() for s in streams)),
                        "a connection is neither answered nor closed")
        return [s for s in streams if s.answers()], [s for s in streams if not s.answers()]

    def test_connections_beyond_max_connections_are_closed_at_once_and_counted(self):
        with Daemon(rule(burst=1000), query={"max_connections": 10}) as daemon, contextlib.ExitStack() as stack:
            answered, refused = self.open_and_ask(daemon, stack, 25)
            self.assertEqual((len(answered), len(refused)), (10, 15))
            stats = daemon.stats()
            self.assertEqual([stats[name] for name in ("connections", "connections_accepted", "connections_rejected")],
                             [10, 10, 15])
            for stream in answered[:4]:
                stream.close()
            wait_until(lambda: daemon.stats()["connections"] == 6, "the daemon sees four leave")
            answered, refused = self.open_and_ask(daemon, stack, 6)
            self.assertEqual((len(answered), len(refused)), (4, 2))

    def test_a_reload_changes_max_connections(self):
        with Daemon(rule(burst=1000), query={"max_connections": 2}) as daemon, contextlib.ExitStack() as stack:
            self.assertEqual(len(self.open_and_ask(daemon, stack, 5)[0]), 2)
            text = daemon.settings_path.read_text()
            daemon.settings_path.write_text(text.replace("max_connections = 2", "max_connections = 4"))
            self.assertIn("reloaded  true", daemon.admin("reload"))
            self.assertEqual(len(self.open_and_ask(daemon, stack, 5)[0]), 2)

    def test_a_low_limit_of_open_files_is_divided_and_commands_keep_their_part(self):
        open_files = 80
        with Daemon(rule(burst=1000), open_files=open_files, process={"source_share": 1.0}) as daemon, \
                contextlib.ExitStack() as stack:
            self.assertRegex(daemon.log, f"the limit of open files, {open_files}, is too low")
            begin = time.monotonic()
            answered, refused = self.open_and_ask(daemon, stack, 2 * open_files)
            self.assertGreater(len(answered), open_files // 4)
            self.assertGreater(len(refused), open_files)
            stats = daemon.stats()    # on a connection of its own
            self.assertEqual((stats["connections"], stats["connections_rejected"], stats["accept_failures"]),
                             (len(answered), len(refused), 0))
            said = daemon.log.count("one more turned away")
            self.assertLessEqual(said, 10 + (time.monotonic() - begin), "the log repeats itself: ten at once, and one a second")

            answered[0].send(b"C\n")
            self.assertTrue(pump(answered[:1], lambda: answered[0].answers() == 2), "an open connection suffers")

            for stream in answered[:10]:
                stream.close()
            wait_until(lambda: daemon.stats()["connections"] == len(answered) - 10, "ten have left")
            again, _ = self.open_and_ask(daemon, stack, 10)
            self.assertEqual(len(again), 10, "there is room for ten")

    def test_the_log_names_each_socket_that_a_low_limit_of_open_files_leaves_too_few_places(self):
        with Daemon(rule(burst=1000), open_files=300, query={"max_connections": 20},
                    resp={"tcp": "127.0.0.1:0", "max_connections": 3000}) as daemon:
            self.assertRegex(daemon.log, r"settings allow: resp has \d+ of 3000, admin has \d+ of 64; raise LimitNOFILE")

    def test_one_user_gets_a_part_of_the_connections_and_no_more(self):
        with Daemon(rule(burst=1000), query={"max_connections": 40}, process={"source_share": 0.5}) as daemon, \
                contextlib.ExitStack() as stack:
            answered, refused = self.open_and_ask(daemon, stack, 30)
            self.assertEqual((len(answered), len(refused)), (20, 10))
            self.assertEqual(daemon.stats()["connections_crowded"], 10)
            with daemon.connect(tcp=True) as sock:    # another socket has places of its own
                sock.sendall(b"C\n")
                self.assertEqual(sock.recv(10), b"OK\n")

    def test_a_shortage_of_descriptors_does_not_keep_the_daemon_busy(self):
        with Daemon(rule(burst=1000), open_files=64) as daemon, contextlib.ExitStack() as stack:
            self.open_and_ask(daemon, stack, 100)
            before, begin = cpu_seconds(daemon.pid), time.monotonic()
            time.sleep(0.5)
            self.assertLess(cpu_seconds(daemon.pid) - before, 0.4 * (time.monotonic() - begin))

    def test_thousands_of_connections_are_served_at_once(self):
        count = 1000 if SANITIZED else 5000
        needed = count + 500
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and hard < needed:
            self.skipTest(f"NOT TESTED: {count} connections need {needed} open files, and the hard limit is {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))

        with Daemon(rule(burst=3)) as daemon, contextlib.ExitStack() as stack:
            streams = [stack.enter_context(daemon.stream(tcp=i % 2 == 0)) for i in range(count)]
            for turn in range(2):
                for i, stream in enumerate(streams):
                    stream.send(lines_of([f"own-{i}", f"own-{i}", "shared"]))
                answers = 3 * (turn + 1)
                self.assertTrue(pump(streams, lambda: all(s.answers() >= answers for s in streams)))
            received = [verdicts(stream.received) for stream in streams]
            own = {tuple(answers[0:2] + answers[3:5]) for answers in received}
            self.assertEqual(own, {("OK", "OK", "OK", "NO")})
            self.assertEqual(sum(answers[2::3].count("OK") for answers in received), 3)
            self.assertEqual(daemon.stats()["connections"], count)

    def test_an_idle_connection_is_closed_and_counted_and_a_busy_one_is_not(self):
        with Daemon(rule(burst=1000), query={"idle_timeout": "5s"}) as daemon, contextlib.ExitStack() as stack:
            idle = [stack.enter_context(daemon.stream(tcp=i % 2 == 0)) for i in range(10)]
            idle[0].send(b"asked once\n")
            idle[1].send(b"half a tag")
            busy = stack.enter_context(daemon.stream())
            begin = time.monotonic()

            def ask_now_and_then():
                if not busy.outgoing and time.monotonic() - begin > 0.5 * busy.answers():
                    busy.send(b"busy\n")
                return all(stream.ended for stream in idle)
            while not pump([busy, *idle], ask_now_and_then, seconds=0.2):
                self.assertLess(time.monotonic() - begin, PATIENCE)
            self.assertGreater(time.monotonic() - begin, 4.99)
            if FIGURES:
                self.assertLess(time.monotonic() - begin, 6)
            self.assertFalse(busy.ended)
            self.assertGreater(busy.answers(), 3)
            stats = daemon.stats()
            self.assertEqual((stats["connections_idle_closed"], stats["connections"]), (10, 1))


def cpu_seconds(pid):
    """The processor time that a process has used."""
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[0]) / 1e9


class SlowReaders(SystemTest):
    """An application that does not read its answers harms nobody but itself."""

    # What twenty of them may cost. A sanitizer keeps freed memory for long.
    MEMORY = (200 if SANITIZED else 2) * MEBIBYTE

    def test_answers_that_are_not_read_cost_little_memory_and_are_all_there_in_the_end(self):
        chance = random.Random(11)
        with Daemon(rule(match="ok*", mode="off"), rule(burst=1)) as daemon, contextlib.ExitStack() as stack:
            daemon.ask(["no"])
            before = daemon.resident_bytes()
            unix = [stack.enter_context(daemon.stream()) for _ in range(16)]
            slow = unix + [stack.enter_context(daemon.stream(tcp=True)) for _ in range(4)]
            for stream in slow:
                stream.tags = chance.choices(["ok", "no"], k=200_000)
                stream.send(lines_of(stream.tags))
                stream.reading = False
            self.send_until_stuck(slow)
            # The kernel may hold all of it in the buffers of a TCP connection.
            self.assertTrue(all(stream.outgoing for stream in unix), "the daemon has read on for nothing")
            self.assertLess(daemon.resident_bytes() - before, self.MEMORY)
            wait_until(lambda: daemon.stats()["connections_stalled"] >= len(unix), "each of them is known to be slow")

            begin = time.monotonic()
            self.assertEqual(daemon.ask(["ok", "no"] * 1000), ["OK", "NO"] * 1000)
            if FIGURES:    # otherwise it is enough that others do not wait for ever
                self.assertLess(time.monotonic() - begin, 1, "others wait for the slow ones")

            for stream in slow:
                stream.reading = True
            self.assertTrue(pump(slow, lambda: all(s.answers() >= len(s.tags) for s in slow), 4 * PATIENCE))
            for stream in slow:
                expected = b"".join(tag.upper().encode() + b"\n" for tag in stream.tags)
                self.assertTrue(bytes(stream.received) == expected, "answers are missing or out of order")
            self.assertLess(daemon.resident_bytes() - before, self.MEMORY)

    def test_one_who_half_closes_before_reading_gets_every_answer(self):
        with Daemon(rule(match="ok*", mode="off"), rule(burst=1)) as daemon:
            for tcp in (False, True):
                with daemon.stream(tcp) as stream:
                    stream.reading = False
                    stream.send(b"ok\n" * 200_000)
                    self.send_until_stuck([stream])
                    whole_lines = (200_000 * 3 - len(stream.outgoing)) // 3
                    stream.outgoing = memoryview(b"")
                    stream.sock.shutdown(1)
                    time.sleep(0.05)
                    stream.reading = True
                    self.assertTrue(pump([stream], lambda: stream.ended))
                    self.assertEqual(stream.answers(), whole_lines)

    def test_one_who_leaves_without_reading_is_forgotten(self):
        with Daemon(rule(mode="off")) as daemon:
            for i in range(20):
                with daemon.stream(tcp=i % 2 == 0) as stream:
                    stream.reading = False
                    stream.send(b"C\n" * 500_000)
                    self.send_until_stuck([stream], 0.02)
            wait_until(lambda: daemon.stats()["connections"] == 0, "all of them are gone")

    def test_one_who_never_reads_again_is_closed_after_the_idle_timeout(self):
        with Daemon(rule(mode="off"), query={"idle_timeout": "1s"}) as daemon, daemon.stream() as stream:
            stream.reading = False
            stream.send(b"C\n" * 1_000_000)
            self.send_until_stuck([stream])
            wait_until(lambda: daemon.stats()["connections_idle_closed"] == 1, "it is closed")

    def send_until_stuck(self, streams, quiet=0.3):
        """Sends for as long as any of the streams takes more bytes."""
        def left():
            return sum(len(stream.outgoing) for stream in streams)
        before = None
        while before != left():
            before = left()
            pump(streams, lambda: False, seconds=quiet)
