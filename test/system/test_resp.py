"""Clients of Redis: the real ones that Debian has, and the transcripts of protocol/resp.

What ioredis 6 and node-redis 6 send when they connect is replayed byte by byte, because Debian has older ones only.
"""

import contextlib
import os
import pathlib
import pty
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import unittest

from common import SystemTest
from daemon import PATIENCE, SANITIZED, Daemon, await_read, receive_all, rule, run, wait_until
from test_transcripts import Transcript

TRANSCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "protocol/resp"
PYTHON = "/usr/bin/python3"    # the one that Debian's python3-redis is for
NEEDED = {"redis-cli": "redis-tools", "redis-benchmark": "redis-tools", "node": "nodejs"}


def needs(*programs):
    missing = [NEEDED[p] for p in programs if shutil.which(p) is None]
    return unittest.skipIf(missing, f"not installed: {', '.join(missing)}")


class RespDaemon(Daemon):
    """A daemon that clients of Redis reach on a Unix socket and on TCP."""

    def __init__(self, *limits, resp=None, **sections):
        super().__init__(*limits, resp={"tcp": "127.0.0.1:0", **(resp or {})}, **sections)

    def write_settings(self, *limits):
        self.resp_path = f"{self.directory}/resp.sock"
        self._sections["resp"]["unix"] = self.resp_path
        super().write_settings(*limits)

    @property
    def resp_port(self):
        return int(re.search(r"clients of Redis on tcp:\S*:(\d+)", self.log)[1])

    def redis(self):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(PATIENCE)
        sock.connect(self.resp_path)
        return sock

    def tell(self, data):
        """What comes back until the daemon closes, after these bytes and the end of what we send."""
        with self.redis() as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            return receive_all(sock)

    def cli(self, *words, **options):
        done = run("redis-cli", "-p", self.resp_port, *words, **options)
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        return done.stdout


def command(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in map(str.encode, words))


class Terminal:
    """A program that believes it is used by a person."""

    def __init__(self, *words):
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen([str(w) for w in words], stdin=slave, stdout=slave, stderr=slave,
                                        env={**os.environ, "TERM": "dumb"})
        os.close(slave)
        self.seen = ""
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        try:
            while data := os.read(self.master, 4096):
                self.seen += data.decode(errors="replace")
        except OSError:    # it has left
            pass

    def type(self, text):
        os.write(self.master, text.encode())

    def wait(self, text):
        wait_until(lambda: text in self.seen, f"the terminal shows {text!r}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(PATIENCE)
        self.reader.join(PATIENCE)
        os.close(self.master)


class RealClients(SystemTest):
    """The numbers are those of redis-cell's README: 15, 30, 60."""

    @needs("redis-cli")
    def test_redis_cli(self):
        with RespDaemon(rule(burst=16, rate=0.5)) as daemon:
            self.assertEqual(daemon.cli("CL.THROTTLE", "user123", 15, 30, 60).split(), ["0", "16", "15", "-1", "2"])
            self.assertEqual(daemon.cli("-3", "CL.THROTTLE", "u", 15, 30, 60, 16).split(), ["0", "16", "0", "-1", "32"])
            self.assertEqual(daemon.cli(stdin=b"ping\ncl.throttle p 15 30 60\nget x\n").split("\n")[:7],
                             ["PONG", "0", "16", "15", "-1", "2",
                              "ERR unknown command 'get', with args beginning with: 'x' "])
            unix = run("redis-cli", "-s", daemon.resp_path, "cl.throttle", "s", 15, 30, 60)
            self.assertEqual(unix.stdout.split(), ["0", "16", "15", "-1", "2"])
            self.assertIn("used_memory:", daemon.cli("info"))

    @needs("redis-cli")
    def test_redis_cli_at_a_terminal(self):
        with RespDaemon(rule(burst=16, rate=0.5)) as daemon, Terminal("redis-cli", "-p", daemon.resp_port) as terminal:
            terminal.wait(f"127.0.0.1:{daemon.resp_port}> ")
            terminal.type("cl.throttle user123 15 30 60\n")
            terminal.wait("5) (integer) 2")
            self.assertIn("3) (integer) 15", terminal.seen)
            terminal.type("hello 3\n")
            terminal.wait('"proto" => (integer) 3')

    @needs("redis-cli")
    def test_redis_cli_stat(self):
        with RespDaemon(rule()) as daemon, \
                Terminal("redis-cli", "-p", daemon.resp_port, "--stat", "-i", "0.1") as terminal:
            wait_until(lambda: len(re.findall(r"\(\+\d+\)", terminal.seen)) >= 2, "two lines with differences")
            self.assertNotIn("-9223372036854775808", terminal.seen)

    @needs("redis-benchmark")
    def test_redis_benchmark(self):
        queries = 2000 if SANITIZED else 20000
        burst = 4    # which every one of the 100 keys is asked for
        with RespDaemon(rule(burst=burst, rate=0.5)) as daemon:
            done = run("redis-benchmark", "-p", daemon.resp_port, "-n", queries, "-P", 64, "-c", 8, "-r", 100, "-q",
                       "CL.THROTTLE", "key:__rand_int__", 15, 30, 60)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("requests per second", done.stdout)
            self.assertNotIn("WARNING", done.stdout + done.stderr)
            stats = daemon.stats()
            asked = stats["served"] + stats["throttled"]
            self.assertTrue(queries <= asked <= queries + 8 * 64, asked)    # it does not cut its last pipelines
            self.assertEqual(stats["resp_limited"], stats["throttled"])
            self.assertGreaterEqual(stats["served"], burst * 100)
            self.assertGreater(stats["throttled"], 0)
            self.assertEqual(stats["resp_protocol_errors"], 0)

    @unittest.skipIf(subprocess.run([PYTHON, "-c", "import redis"], capture_output=True).returncode != 0,
                     "python3-redis is not installed")
    def test_redis_py(self):
        script = """
import redis, sys
port, path = int(sys.argv[1]), sys.argv[2]
r = redis.Redis(port=port, client_name="tests", socket_timeout=60)
assert r.ping()
assert r.execute_command("CL.THROTTLE", "user123", 15, 30, 60) == [0, 16, 15, -1, 2]
pipe = r.pipeline(transaction=False)
for _ in range(20):
    pipe.execute_command("CL.THROTTLE", "many", 15, 30, 60)
limited = [reply[0] for reply in pipe.execute()]
assert limited == [0] * 16 + [1] * 4, limited
with r.pipeline() as pipe:    # a transaction
    pipe.execute_command("CL.THROTTLE", "t", 15, 30, 60, 10)
    pipe.execute_command("CL.THROTTLE", "t", 15, 30, 60, 10)
    assert pipe.execute() == [[0, 16, 6, -1, 20], [1, 16, 6, 8, 20]]
    pipe.watch("t")
    assert pipe.execute_command("CL.THROTTLE", "t", 15, 30, 60, 0)[2] == 6
    pipe.multi()
    pipe.execute_command("CL.THROTTLE", "t", 15, 30, 60)
    pipe.get("t")
    try:
        pipe.execute()
        raise SystemExit("not refused")
    except redis.ResponseError as error:
        assert "unknown command" in str(error), error
assert r.execute_command("CL.THROTTLE", "t", 15, 30, 60, 0)[2] == 6, "a transaction that failed spends nothing"
assert r.client_getname() == "tests"
assert r.client_id() > 0
assert r.info()["loading"] == 0
assert r.info("memory")["used_memory"] > 0
assert r.config_get("save") == {"save": ""}
assert r.command_count() == 19
left = r.execute_command("DT.PEEK", "t", 1)[5][0]
assert r.execute_command("DT.TAKE", "t", left, "v", 1)[0] == 0
refused = r.execute_command("DT.TAKE", "v", 1, "t", 1)
assert (refused[0], refused[1], refused[2], refused[5][0]) == (1, b"limit", b"t", r.execute_command("DT.PEEK", "v", 1)[5][0]), refused
assert r.echo("x") == b"x"
try:
    r.execute_command("CL.THROTTLE", "k", 1, 0, 1)
    raise SystemExit("not refused")
except redis.ResponseError as error:
    assert str(error) == "Cell error: Store error: Zero rates are not supported", error
try:
    r.get("k")
    raise SystemExit("not refused")
except redis.ResponseError as error:
    assert "unknown command" in str(error), error
u = redis.Redis(unix_socket_path=path, username="default", password="any", db=0, decode_responses=True)
assert u.execute_command("CL.THROTTLE", "user123", 15, 30, 60) == [0, 16, 14, -1, 4]
print("redis-py", redis.__version__)
"""
        with RespDaemon(rule(burst=16, rate=0.5)) as daemon:
            done = run(PYTHON, "-c", script, daemon.resp_port, daemon.resp_path)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("redis-py", done.stdout)

    @needs("node")
    @unittest.skipUnless(pathlib.Path("/usr/share/nodejs/redis").is_dir(), "node-redis is not installed")
    def test_node_redis(self):
        script = """
const { createClient } = require('redis');
(async () => {
  const client = createClient({ url: `redis://127.0.0.1:${process.argv[1]}`, name: 'tests' });
  client.on('error', error => { console.error(error); process.exit(1); });
  await client.connect();
  const ask = () => client.sendCommand(['CL.THROTTLE', 'user123', '15', '30', '60']);
  const replies = await Promise.all(Array.from({ length: 18 }, ask));
  console.log(JSON.stringify(replies[0]), replies.map(reply => reply[0]).join(''));
  console.log(await client.ping(), await client.clientGetName());
  const both = client.multi().addCommand(['CL.THROTTLE', 'm', '15', '30', '60']).ping();
  console.log(JSON.stringify(await both.exec()));
  await client.quit();
})();
"""
        with RespDaemon(rule(burst=16, rate=0.5)) as daemon:
            done = run("node", "-e", script, daemon.resp_port, env={"NODE_PATH": "/usr/share/nodejs"})
            self.assertEqual((done.returncode, done.stdout),
                             (0, "[0,16,15,-1,2] 000000000000000011\nPONG tests\n[[0,16,15,-1,2],\"PONG\"]\n"), done.stderr)

    def test_what_ioredis_6_sends_first(self):
        with RespDaemon(rule(burst=16, rate=0.5)) as daemon:
            replies = daemon.tell(
                command("hello", "3") + command("client", "SETINFO", "LIB-NAME", "ioredis") +
                command("client", "SETINFO", "LIB-VER", "6.0.0") + command("info") +
                command("cl.throttle", "user123", "15", "30", "60"))
            self.assertTrue(replies.startswith(b"%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n"), replies)
            self.assertIn(b"*0\r\n+OK\r\n+OK\r\n=", replies)
            self.assertIn(b"\r\nloading:0\r\n", replies)
            self.assertTrue(replies.endswith(b"\r\n*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n"), replies)


WAIT = re.compile(rb"(?<=\$5\r\nlimit\r\n)((?:\$\d+\r\n[^\r]*\r\n){2}):(\d+)")    # behind a key and its rule
SECONDS = re.compile(rb"(\*5(?:\r\n:\d+){3}\r\n):(-?\d+)\r\n:(\d+)")    # the last two of CL.THROTTLE


def without_waits(replies):
    """What is compared of replies where time passes, and the waits in them, in milliseconds."""
    waits = [int(wait) for _, wait in WAIT.findall(replies)]
    waits += [1000 * int(wait) for _, *both in SECONDS.findall(replies) for wait in both]
    return SECONDS.sub(rb"\1:WAIT\r\n:WAIT", WAIT.sub(rb"\1:WAIT", replies)), waits


class Transcripts(SystemTest):
    def daemon(self, transcript):
        return RespDaemon(*transcript.limits, query=transcript.query, resp=transcript.resp)

    def test_every_transcript_is_answered_as_written(self):
        paths = sorted(TRANSCRIPTS.glob("*.txt"))
        self.assertGreater(len(paths), 8)
        for path in paths:
            transcript = Transcript(path)
            for name, size in (("whole", len(transcript.sent)), ("in pieces of 7", 7), ("byte by byte", 1)):
                with self.subTest(path.name, sent=name), self.daemon(transcript) as daemon, daemon.redis() as sock:
                    begin = time.monotonic()
                    with contextlib.suppress(BrokenPipeError):    # in some the daemon closes early
                        for at in range(0, len(transcript.sent), size):
                            sock.sendall(transcript.sent[at:at + size])
                            if size < 10:
                                await_read(sock)
                        sock.shutdown(socket.SHUT_WR)
                    got, waits = without_waits(receive_all(sock))
                    expected, longest = without_waits(transcript.expected)
                    passed = (time.monotonic() - begin) * 1000
                    self.assertEqual(got, expected)
                    for wait, most in zip(waits, longest):
                        self.assertTrue(most - passed - 1 <= wait <= most, (wait, most))


class Bounds(SystemTest):
    def test_it_shares_buckets_with_the_query_socket(self):
        with RespDaemon(rule(burst=5)) as daemon:
            self.assertEqual(daemon.served("k", 2), 2)
            reply = daemon.tell(command("CL.THROTTLE", "k", "9", "1", "1", "3"))
            self.assertTrue(reply.startswith(b"*5\r\n:0\r\n:5\r\n:0\r\n"), reply)
            self.assertEqual(daemon.served("k", 2), 0)

    def test_limits_that_clients_bring_survive_kill_and_restart(self):
        with RespDaemon(rule(burst=1), resp={"accept_limits": True, "memory": "1MiB"}) as daemon:
            ask = command("CL.THROTTLE", "k", "4", "1", "100000", "5")
            self.assertTrue(daemon.tell(ask).startswith(b"*5\r\n:0\r\n:5\r\n:0\r\n:-1\r\n"))
            daemon.kill()
            daemon.start()
            self.assertTrue(daemon.tell(ask).startswith(b"*5\r\n:1\r\n:5\r\n:0\r\n"))
            daemon.restart()
            self.assertTrue(daemon.tell(ask).startswith(b"*5\r\n:1\r\n:5\r\n:0\r\n"))
            self.assertEqual(daemon.stats()["resp_tags"], 1)
            self.assertEqual(daemon.served("k", 2), 1, "the rule's bucket is another")

    def test_memory_beyond_the_first_64_mib_is_claimed(self):
        with RespDaemon(rule(), resp={"accept_limits": True, "memory": "72MiB"}) as daemon:
            file = pathlib.Path(f"{daemon.directory}/table.resp")
            wait_until(lambda: file.stat().st_blocks * 512 == 72 << 20, "all of its space is claimed")

    def test_memory_beyond_the_first_64_mib_is_used_like_the_rest(self):
        """As full a table of 64 MiB evicts nothing."""
        mib, step = 68, 500
        keys = mib * 22_500
        with RespDaemon(rule(), resp={"accept_limits": True, "memory": f"{mib}MiB"}) as daemon:
            with daemon.redis() as sock, sock.makefile("rb") as replies:
                for begin in range(0, keys, step):
                    sock.sendall(b"".join(b"CL.THROTTLE k%07d 4 1 6000000 5\r\n" % (begin + k) for k in range(step)))
                    for _ in range(6 * step):
                        replies.readline()
            counts = daemon.stats()
            self.assertEqual((counts["resp_tags"], counts["resp_evicted"]), (keys, 0))

    def test_one_connection_too_many_is_closed_at_once(self):
        with RespDaemon(rule(), resp={"max_connections": 2}) as daemon:
            with daemon.redis() as one, daemon.redis() as two:
                for sock in (one, two):
                    sock.sendall(b"PING\r\n")
                    self.assertEqual(sock.recv(100), b"+PONG\r\n")
                with daemon.redis() as three:
                    self.assertEqual(receive_all(three), b"")
                self.assertEqual(daemon.stats()["resp_connections"], 2)
                self.assertEqual(daemon.stats()["resp_connections_rejected"], 1)
            wait_until(lambda: daemon.stats()["resp_connections"] == 0, "both are gone")
            self.assertEqual(daemon.tell(b"PING\r\n"), b"+PONG\r\n")

    def test_idle_connections_are_closed_if_asked_for_and_a_reload_can_ask(self):
        with RespDaemon(rule()) as daemon, daemon.redis() as sock:
            sock.sendall(b"PING\r\n")
            self.assertEqual(sock.recv(100), b"+PONG\r\n")
            daemon._sections["resp"]["idle_timeout"] = "0.1s"
            daemon.write_settings(rule())
            daemon.hang_up()
            self.assertEqual(receive_all(sock), b"")
            self.assertEqual(daemon.stats()["connections_idle_closed"], 1)

    def test_who_does_not_read_is_not_read_from_and_memory_stays(self):
        with RespDaemon(rule()) as daemon, daemon.redis() as sock:
            before = daemon.resident_bytes()
            sock.setblocking(False)
            ask = command("ECHO", "x" * 8000)
            sent = 0
            deadline = time.monotonic() + PATIENCE
            while daemon.stats()["connections_stalled"] == 0 and time.monotonic() < deadline:
                try:
                    while True:
                        sent += sock.send(ask * 16)    # unfinished ones included
                except BlockingIOError:
                    pass
            self.assertEqual(daemon.stats()["connections_stalled"], 1)
            self.assertLess(sent, 4 << 20)
            if not SANITIZED:
                self.assertLess(daemon.resident_bytes() - before, 4 << 20)
            self.assertEqual(daemon.tell(b"PING\r\n"), b"+PONG\r\n")

    def test_who_asks_for_too_many_replies_at_once_is_told_and_closed(self):
        with RespDaemon(rule()) as daemon, daemon.redis() as sock:
            sock.sendall(b"COMMAND\n" * 1800)
            replies = receive_all(sock)
            self.assertLess(len(replies), 400 * 1024)
            self.assertTrue(replies.endswith(b"-ERR too many replies are asked for at once\r\n"), replies[-100:])
            self.assertEqual(daemon.stats()["resp_protocol_errors"], 1)

    def test_what_was_asked_before_a_stop_is_answered(self):
        with RespDaemon(rule(burst=1000)) as daemon, daemon.redis() as sock:
            sock.sendall(b"PING\r\n")
            self.assertEqual(sock.recv(100), b"+PONG\r\n")
            sock.sendall(command("CL.THROTTLE", "k", "1", "1", "1") * 500)
            daemon.signal(signal.SIGTERM)
            self.assertEqual(receive_all(sock).count(b"*5\r\n:0\r\n"), 500)
            daemon.wait_exit()
            self.assertFalse(pathlib.Path(daemon.resp_path).exists())
            daemon.start()

    def test_there_is_no_password_so_it_stays_on_loopback(self):
        with Daemon(rule()) as daemon:
            path = daemon.directory / "other.toml"
            path.write_text('[resp]\ntcp = "0.0.0.0:6379"\n')
            done = run(daemon._command[0], "--check", path)
            self.assertEqual(done.returncode, 78)
            self.assertIn("resp.tcp = \"0.0.0.0:6379\": must be a loopback address", done.stdout)
            self.assertNotIn("Redis", daemon.log, "nobody listens unless told to")


if __name__ == "__main__":
    unittest.main()
