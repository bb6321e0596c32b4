"""Questions about several tags, as an application with a socket asks them, and the transcripts of protocol/ask."""

import collections
import contextlib
import pathlib
import random
import re
import socket
import subprocess
import tempfile
import time
import unittest

from common import SystemTest, report
from daemon import BUILD, PATIENCE, SANITIZED, AskDaemon, await_read, receive_all, rule, wait_until
from fleet import Fleet, wait_all_hear
from test_transcripts import Transcript

TRANSCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "protocol/ask"


class Asker:
    """A connection for questions."""

    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX if isinstance(path, str) else socket.AF_INET)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(path)
        self.file = self.sock.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()
        self.sock.close()

    def ask(self, line):
        self.sock.sendall(line.encode() + b"\n")
        return self.file.readline().decode().rstrip("\n")


def ask_port(daemon):
    return int(re.search(r"answering questions on tcp:\S*:(\d+)", daemon.log)[1])


def replay_holds(asker, transcript):
    """What is answered to a transcript with holds or waits, whose IDs are the daemon's: sent line by line, with IDs as it has
    answered them. They are put back as the transcript has them."""
    expected = [line for line in transcript.expected.split(b"\n") if line]
    ids, got = {}, b""
    for line, wanted in zip([line for line in transcript.sent.split(b"\n") if line], expected):
        words = line.decode().split(" ")
        answer = asker.ask(" ".join(ids.get(word, word) if words[0] in ("commit", "release") else word for word in words))
        at = 1 if words[0] == "hold" and answer.startswith("OK ") else 2 if answer.startswith("WAIT ") else None
        if at is not None:
            known = wanted.decode().split()[at]
            ids[known] = answer.split()[at]
            answer = answer.replace(ids[known], known, 1)
        got += answer.encode() + b"\n"
    return got


def without_waits(answers):
    """What is compared of answers where time passes, and the waits. With tell=limit a tag's QUOTA, WINDOW and NEXT end
    the line, and NEXT passes too; with tell=all each tag's WINDOW and NEXT do. test/wire has a clock of its own, and
    compares them."""
    waits = [float(wait) for wait in re.findall(rb"^(?:NO limit|WAIT) ([\d.]+) ", answers, flags=re.M)]
    answers = re.sub(rb"^(NO limit|WAIT) [\d.]+ ", rb"\1 MS ", answers, flags=re.M)
    answers = re.sub(rb"( \S+:\S+ \d+ \d+) \d+$", rb"\1 NEXT", answers, flags=re.M)
    return re.sub(rb"( [a-z]+ \d+ \d+) \d+ \d+(?= |$)", rb"\1 WINDOW NEXT", answers, flags=re.M), waits


class Transcripts(SystemTest):
    def test_every_transcript_is_answered_as_written(self):
        paths = sorted(TRANSCRIPTS.glob("*.txt"))
        self.assertGreater(len(paths), 12)
        for path in paths:
            transcript = Transcript(path)
            if re.search(rb"^(hold|commit|take wait=) ?", transcript.sent, flags=re.M):
                with self.subTest(path.name), AskDaemon(*transcript.limits, query=transcript.query) as daemon, \
                        Asker(daemon.ask_path) as asker:
                    self.assertEqual(without_waits(replay_holds(asker, transcript))[0],
                                     without_waits(transcript.expected)[0])
                continue
            for name, size in (("whole", len(transcript.sent)), ("in pieces", len(transcript.sent) // 50 + 1)):
                with self.subTest(path.name, sent=name), \
                        AskDaemon(*transcript.limits, query=transcript.query) as daemon, \
                        Asker(daemon.ask_path) as asker:
                    began = time.monotonic()
                    with contextlib.suppress(OSError):    # the daemon may hang up before all is sent
                        for at in range(0, len(transcript.sent), size):
                            asker.sock.sendall(transcript.sent[at:at + size])
                            await_read(asker.sock)
                        asker.sock.shutdown(socket.SHUT_WR)
                    got, waits = without_waits(receive_all(asker.sock))
                    expected, longest = without_waits(transcript.expected)
                    self.assertEqual(got, expected)
                    passed = (time.monotonic() - began) * 1000
                    for wait, most in zip(waits, longest):
                        self.assertTrue(most - passed - 1 <= wait <= most, (wait, most))


class Questions(SystemTest):
    def test_a_question_that_is_refused_takes_nothing_whatever_else_is_asked(self):
        """Users and addresses are asked for together by several connections, and queries come in between."""
        with AskDaemon(rule(name="users", match="user:*", burst=100), rule(name="nets", match="net:*", burst=10),
                       query={"threads": 2}) as daemon, \
                Asker(daemon.ask_path) as one, Asker(daemon.ask_path) as two:
            chance, paid = random.Random(17), collections.Counter()
            for _ in range(200 if SANITIZED else 1000):
                tags = [f"user:{chance.randrange(5)}", f"net:{chance.randrange(20)}"]
                answer = chance.choice((one, two)).ask(f"take 1 {tags[0]} 2 {tags[1]}")
                self.assertIn(answer.split()[0], ("OK", "NO"))
                if answer.startswith("OK"):
                    paid.update({tags[0]: 1, tags[1]: 2})
                if chance.randrange(4) == 0 and daemon.ask([tags[0]]) == ["OK"]:
                    paid[tags[0]] += 1
            self.assertEqual(one.ask("peek 1 net:0 1 user:0").split()[0], "NO")
            for tag, burst in [(f"user:{i}", 100) for i in range(5)] + [(f"net:{i}", 10) for i in range(20)]:
                self.assertAlmostEqual(daemon.admin_json(f"show {tag}")["level"], burst - paid[tag], delta=0.01)
            stats = daemon.stats()
            self.assertEqual(stats["ask_connections"], 2)
            self.assertGreater(stats["ask_refused"], 0)
            self.assertEqual(stats["ask_errors"], 0)

    def test_no_tag_gains_or_loses_by_kills_between_questions(self):
        kills, questions = (3, 50) if SANITIZED else (10, 200)
        chance, paid, refused = random.Random(3), collections.Counter(), 0
        with AskDaemon(rule(name="users", match="user:*", burst=400), rule(name="nets", match="net:*", burst=25)) \
                as daemon:
            for _ in range(kills):
                with Asker(daemon.ask_path) as asker:
                    for _ in range(questions):
                        costs = {f"user:{chance.randrange(10)}": 1, f"net:{chance.randrange(40)}": 3,
                                 f"net:{chance.randrange(40)}": 2}
                        answer = asker.ask("take " + " ".join(f"{cost} {tag}" for tag, cost in costs.items()))
                        if answer.startswith("OK"):
                            paid.update(costs)
                        else:
                            self.assertTrue(answer.startswith("NO limit "), answer)
                            refused += 1
                daemon.kill()
                daemon.start()
            for tag, tokens in paid.items():
                burst = 400 if tag.startswith("user:") else 25
                self.assertAlmostEqual(daemon.admin_json(f"show {tag}")["level"], burst - tokens, delta=0.01)
        self.assertGreater(refused, 0)
        report(f"{kills} kills, {kills * questions} questions, {refused} of them refused: every tag has what it has not "
               "paid")

    def test_peers_hear_of_what_was_served_and_of_nothing_else(self):
        limits = (rule(name="users", match="user:*", burst=100, share="debit"),
                  rule(name="nets", match="net:*", burst=3, share="debit"))
        with Fleet(*limits, period="200ms", ask={"tcp": "127.0.0.1:0"}) as (a, b):
            wait_all_hear([a, b])
            with Asker(("127.0.0.1", ask_port(a))) as here, Asker(("127.0.0.1", ask_port(b))) as there:
                self.assertEqual(here.ask("take 5 user:x 3 net:x"), "OK 95 0")
                for _ in range(50):    # by the net, and nobody hears of the user
                    self.assertTrue(here.ask("take 1 user:x 1 net:x").startswith("NO limit "))
                wait_until(lambda: there.ask("peek 0 net:x") == "OK 0", "the peer has heard of the net")
                wait_until(lambda: there.ask("peek 0 user:x") == "OK 95", "and of the user")
                self.assertTrue(there.ask("take 1 net:x 7 user:x").startswith("NO limit "))
                self.assertEqual(there.ask("take 2 user:x"), "OK 93")
                wait_until(lambda: here.ask("peek 0 user:x") == "OK 93", "the first host has heard of the second")
                self.assertEqual(here.ask("peek 0 user:x 0 net:x"), "OK 93 0")


class Delays(SystemTest):
    SECONDS = 6

    def test_two_hosts_at_a_delayed_limit_take_turns(self):
        """Callers of both hosts ask again as soon as they may go on: more than the limit is always asked for. Every turn is
        told to the other host at once, so turns are spaced as by one host."""
        for rate in (20, 100):
            with self.subTest(rate):
                served, errors, late = self.spacing(rate, callers=3)
                report(f"two hosts at {rate}/s, delayed: {served:.2f}/s served; spacing is off by "
                       f"{errors[len(errors) // 2]:.2f} ms, p99 {errors[len(errors) * 99 // 100]:.2f} ms; callers go on at most "
                       f"{late[-1]:.2f} ms late, p99 {late[len(late) * 99 // 100]:.2f} ms")
                self.assertLess(abs(served / rate - 1), 0.1)    # 0.03 on a machine with time for it
                self.assertLess(errors[len(errors) // 2], 1000 / rate / 4)    # one after the other, and not both at once

    def test_a_queue_that_is_longer_than_a_burst_and_a_period_is_still_that_of_both_hosts(self):
        served, _, _ = self.spacing(20, callers=20)
        report(f"40 callers of two hosts at 20/s, delayed: {served:.2f}/s served")
        self.assertLess(abs(served / 20 - 1), 0.1)

    def spacing(self, rate, callers):
        """What both hosts together serve a second; by how many ms turns are off their distance, and callers late, sorted."""
        limit = rule(burst=1, rate=rate, share="debit", delay="10s")
        with Fleet(limit, period="100ms", ask={"tcp": "127.0.0.1:0"}) as hosts:
            wait_all_hear(hosts)
            turns, late = [], []
            with contextlib.ExitStack() as ends:
                processes = [ends.enter_context(self.caller(f"tcp:127.0.0.1:{ask_port(host)}", rate))
                             for host in hosts for _ in range(callers)]
                time.sleep(self.SECONDS)    # of load
                for caller in processes:
                    caller.terminate()
                    for line in caller.stdout.read().splitlines():
                        verdict, took, _, said = line.split("/")
                        self.assertEqual(verdict, "serve")
                        delay, at = (float(us) / 1e6 for us in said.split())
                        late.append(float(took) / 1e3 - delay * 1e3)
                        turns.append(at - late[-1] / 1e3)
            turns.sort()
            # What callers that began together were given twice is over with the first queue.
            begin, end = turns[0] + max(1, 2 * callers / rate), turns[0] + self.SECONDS - 1
            turns = [at for at in turns if begin <= at < end]
            served = (len(turns) - 1) / (turns[-1] - turns[0])
            errors = sorted(abs(b - a - 1 / rate) * 1e3 for a, b in zip(turns, turns[1:]))
            return served, errors, sorted(late)

    @contextlib.contextmanager
    def caller(self, address, rate):
        with tempfile.TemporaryFile("w+") as lines:
            lines.write("1 a\n" * rate * self.SECONDS * 10)
            lines.seek(0)
            with subprocess.Popen([BUILD / "test/ask_lines", address, "10000", "waits"], stdin=lines,
                                  stdout=subprocess.PIPE, text=True) as process:
                yield process


if __name__ == "__main__":
    unittest.main()
