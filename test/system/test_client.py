"""libdthrottle against the daemon itself: it comes and goes, and hangs, and the application does not notice."""

import signal
import time

from common import LineProcess, SystemTest
from daemon import BUILD, AskDaemon, Daemon, rule, wait_until
from test_ask import Asker, ask_port

DEADLINE_MS = 200    # where the daemon hangs; elsewhere it has all the time it takes on a busy machine
SLACK_S = 20.0    # that a busy machine may take beyond a deadline
LIBRARY = [BUILD / "test/ask_lines"]
UNANSWERED = {"timed out", "unreachable", "backing off"}


class Application(LineProcess):
    """A program that asks over one handle for as long as it lives: test/client/ask_lines.c, or one that does the same."""

    def __init__(self, address, deadline_ms=30_000, *mode, program=LIBRARY):
        super().__init__([*program, address, str(deadline_ms), *mode])

    def ask(self, tag):
        """The verdict and the seconds that it took."""
        verdict, microseconds = self._answer(tag)[:2]
        return verdict, int(microseconds) / 1e6

    def _answer(self, line):
        return self._told(line + b"\n").decode().rstrip("\n").split("/", 2)

    def verdicts(self, tag, count):
        return [self.ask(tag)[0] for _ in range(count)]

    def question(self, line):
        """The verdict on a question and what its answer says: reason, place, wait, rule, what is left of each tag."""
        verdict, _, said = self._answer(line)
        return verdict, said.split(" ")


class Asking(SystemTest):
    program = LIBRARY    # test_bindings.py has others

    def application(self, address, deadline_ms=30_000, *mode):
        return Application(address, deadline_ms, *mode, program=self.program)

    def asking(self, daemon):
        """A program that asks questions about several tags."""
        return self.application(f"unix:{daemon.ask_path}", 30_000, "questions")


class Client(Asking):
    def wait_answered(self, application, expected):
        """Asks until the daemon answers, which it has to do soon."""
        def answered():
            verdict, _ = application.ask(b"C")
            if verdict in UNANSWERED:
                time.sleep(0.005)
                return None
            return verdict
        self.assertEqual(wait_until(answered, "the daemon answers"), expected)

    def test_it_says_what_the_daemon_says(self):
        with Daemon(rule(burst=2)) as daemon:
            for address in (f"unix:{daemon.query_path}", f"tcp:127.0.0.1:{daemon.tcp_port}"):
                with self.application(address) as application:
                    tag = address.encode()
                    self.assertEqual(application.verdicts(tag, 4), ["serve", "serve", "throttle", "throttle"])
                    self.assertEqual(daemon.stats()["connections"], 1)
                wait_until(lambda: daemon.stats()["connections"] == 0, "the application has left")

    def test_a_restart_between_two_calls_goes_unnoticed(self):
        with Daemon(rule(burst=3)) as daemon, self.application(f"unix:{daemon.query_path}") as application:
            for expected in ("serve", "serve", "serve", "throttle"):
                self.assertEqual(application.ask(b"C")[0], expected)
                daemon.restart()

    def test_a_dead_daemon_costs_nothing_and_is_found_again(self):
        with Daemon(rule(burst=1)) as daemon, self.application(f"unix:{daemon.query_path}") as application:
            self.assertEqual(application.verdicts(b"C", 2), ["serve", "throttle"])
            daemon.kill()
            begin = time.monotonic()
            said = application.verdicts(b"C", 500)
            self.assertEqual(set(said), {"unreachable", "backing off"})
            self.assertLess(said.count("unreachable"), 20 + time.monotonic() - begin, "ten, and one in 5 s")
            daemon.start()
            self.wait_answered(application, "throttle")

    def test_a_daemon_that_hangs_costs_a_few_deadlines_and_is_found_again(self):
        with Daemon(rule(burst=1)) as daemon, self.application(f"unix:{daemon.query_path}", DEADLINE_MS) as application:
            wait_until(lambda: application.ask(b"C")[0] == "throttle", "the limit holds")
            daemon.signal(signal.SIGSTOP)
            try:
                begin = time.monotonic()
                asked = [application.ask(b"C") for _ in range(500)]
                took = time.monotonic() - begin
            finally:
                daemon.signal(signal.SIGCONT)
            said = [verdict for verdict, _ in asked]
            self.assertEqual(said[0], "timed out")
            self.assertEqual(set(said), {"timed out", "backing off"})
            self.assertLess(max(seconds for _, seconds in asked), DEADLINE_MS / 1000 + SLACK_S)
            # Each call would wait for its deadline, 100 s together, if it did not back off.
            self.assertLess(took, 6 * DEADLINE_MS / 1000 + SLACK_S)
            self.wait_answered(application, "throttle")

    def test_one_who_is_turned_away_serves(self):
        with Daemon(rule(burst=1), query={"max_connections": 1}) as daemon, daemon.connect() as only:
            only.sendall(b"C\n")
            self.assertEqual(only.recv(3), b"OK\n")
            with self.application(f"unix:{daemon.query_path}") as application:
                self.assertEqual(set(application.verdicts(b"C", 20)) - UNANSWERED, set())
                only.close()
                self.wait_answered(application, "throttle")


class Questions(Asking):
    def test_an_answer_says_what_the_daemon_says(self):
        limits = (rule(name="user", match="user:*", burst=10, rate=0.001), rule(name="net", match="net:*", burst=2, rate=0.001))
        with AskDaemon(*limits, ask={"tcp": "127.0.0.1:0"}) as daemon:
            for left, address in ((9, f"unix:{daemon.ask_path}"), (8, f"tcp:127.0.0.1:{ask_port(daemon)}")):
                with self.application(address, 30_000, "questions") as application:
                    verdict, said = application.question(b"1 user:a 1 net:1 5 other")
                    self.assertEqual((verdict, said), ("serve", ["0", "0", "0", "-", str(left), str(left - 8), "-1"]))
            with self.asking(daemon) as application:
                verdict, said = application.question(b"1 user:a 1 net:1")
                self.assertEqual((verdict, said[:2], said[3:]), ("throttle", ["1", "1"], ["net", "0", "0"]))
                self.assertTrue(990_000 < int(said[2]) <= 1_000_000, said)
                verdict, said = application.question(b"11 user:a")
                self.assertEqual((verdict, said), ("throttle", ["2", "0", "0", "user", "8"]))
                self.assertEqual(application.question(b"8 user:a")[0], "serve", "the refusals cost nothing")

    def test_a_tag_whose_places_are_all_taken_is_busy(self):
        limit = rule(name="jobs", burst=10, rate=0.001, share="local", in_flight=1)
        with AskDaemon(limit) as daemon, Asker(daemon.ask_path) as other, self.asking(daemon) as application:
            self.assertEqual(other.ask("enter 1 C"), "OK 0")
            self.assertEqual(application.question(b"1 C"), ("throttle", ["4", "0", "0", "jobs", "0"]))

    def test_the_longest_tags_pay_and_are_named(self):
        with AskDaemon(rule(burst=10, rate=0.001)) as daemon, self.asking(daemon) as application:
            tags = [b"%d" % i + b"x" * 200 for i in range(16)]
            line = b" ".join(b"1 " + tag for tag in tags)
            self.assertEqual(application.question(line), ("serve", ["0", "0", "0", "-"] + ["9"] * 16))
            line = line.replace(b"1 15", b"10 15")
            verdict, said = application.question(line)
            self.assertEqual((verdict, said[:2]), ("throttle", ["1", "15"]))

    def test_a_restart_between_two_questions_goes_unnoticed(self):
        with AskDaemon(rule(burst=3, rate=0.001)) as daemon, self.asking(daemon) as application:
            for expected in ("serve", "serve", "serve", "throttle"):
                self.assertEqual(application.question(b"1 C 1 D")[0], expected)
                daemon.restart()

    def test_a_dead_daemon_serves_and_is_found_again(self):
        with AskDaemon(rule(burst=1, rate=0.001)) as daemon, self.asking(daemon) as application:
            self.assertEqual([application.question(b"1 C 1 D")[0] for _ in range(2)], ["serve", "throttle"])
            daemon.kill()
            said = {application.question(b"1 C 1 D")[0] for _ in range(100)}
            self.assertEqual(said, {"unreachable", "backing off"})
            daemon.start()

            def answered():
                verdict = application.question(b"1 C 1 D")[0]
                return verdict if verdict not in UNANSWERED else time.sleep(0.005)
            self.assertEqual(wait_until(answered, "the daemon answers"), "throttle")

    def test_questions_at_the_socket_for_tags_are_served_unasked(self):
        with Daemon(rule(burst=1)) as daemon:
            with self.application(f"unix:{daemon.query_path}", 30_000, "questions") as application:
                self.assertEqual(application.question(b"1 C")[0], "bad answer")
