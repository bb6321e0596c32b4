"""libdthrottle against the daemon itself: it comes and goes, and hangs, and the application does not notice."""

import signal
import subprocess
import time

from common import SystemTest
from daemon import BUILD, PATIENCE, Daemon, rule, wait_until

DEADLINE_MS = 200    # where the daemon hangs; elsewhere it has all the time it takes on a busy machine
SLACK_S = 20.0    # that a busy machine may take beyond a deadline
UNANSWERED = {"timed out", "unreachable", "backing off"}


class Application:
    """A program that asks over one handle for as long as it lives."""

    def __init__(self, address, deadline_ms=30_000):
        self._process = subprocess.Popen([BUILD / "test/ask_lines", address, str(deadline_ms)],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, tag):
        """The verdict and the seconds that it took."""
        self._process.stdin.write(tag + b"\n")
        self._process.stdin.flush()
        verdict, _, microseconds = self._process.stdout.readline().decode().partition("/")
        return verdict, int(microseconds) / 1e6

    def verdicts(self, tag, count):
        return [self.ask(tag)[0] for _ in range(count)]

    def __enter__(self):
        return self

    def __exit__(self, _type, error, _traceback):
        self._process.stdin.close()
        self._process.stdout.close()
        left_with = self._process.wait(PATIENCE)
        if error is None and left_with != 0:
            raise AssertionError(f"the application left with {left_with}")


class Client(SystemTest):
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
                with Application(address) as application:
                    tag = address.encode()
                    self.assertEqual(application.verdicts(tag, 4), ["serve", "serve", "throttle", "throttle"])
                    self.assertEqual(daemon.stats()["connections"], 1)
                wait_until(lambda: daemon.stats()["connections"] == 0, "the application has left")

    def test_a_restart_between_two_calls_goes_unnoticed(self):
        with Daemon(rule(burst=3)) as daemon, Application(f"unix:{daemon.query_path}") as application:
            for expected in ("serve", "serve", "serve", "throttle"):
                self.assertEqual(application.ask(b"C")[0], expected)
                daemon.restart()

    def test_a_dead_daemon_costs_nothing_and_is_found_again(self):
        with Daemon(rule(burst=1)) as daemon, Application(f"unix:{daemon.query_path}") as application:
            self.assertEqual(application.verdicts(b"C", 2), ["serve", "throttle"])
            daemon.kill()
            begin = time.monotonic()
            said = application.verdicts(b"C", 500)
            self.assertEqual(set(said), {"unreachable", "backing off"})
            self.assertLess(said.count("unreachable"), 20 + time.monotonic() - begin, "ten, and one in 5 s")
            daemon.start()
            self.wait_answered(application, "throttle")

    def test_a_daemon_that_hangs_costs_a_few_deadlines_and_is_found_again(self):
        with Daemon(rule(burst=1)) as daemon, Application(f"unix:{daemon.query_path}", DEADLINE_MS) as application:
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
            with Application(f"unix:{daemon.query_path}") as application:
                self.assertEqual(set(application.verdicts(b"C", 20)) - UNANSWERED, set())
                only.close()
                self.wait_answered(application, "throttle")
