"""A dthrottled for tests to do as they like with: its settings, its process and both of its sockets.

Environment: DTHROTTLE_BUILD is the build directory (default: build), DTHROTTLE_THREADS the query threads of every
daemon (default: 1), and DTHROTTLE_SANITIZED=1 says that the programs were built with sanitizers, which are slow and
take much memory: tests then do less, and wait longer. DTHROTTLE_FIGURES=1 runs what takes minutes at the size that the
project promises a figure for.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import termios
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("DTHROTTLE_BUILD", "build")
DTHROTTLED = BUILD / "dthrottled"
DTHROTTLECTL = BUILD / "dthrottlectl"
SANITIZED = os.environ.get("DTHROTTLE_SANITIZED") == "1"
FIGURES = os.environ.get("DTHROTTLE_FIGURES") == "1"
THREADS = int(os.environ.get("DTHROTTLE_THREADS", "1"))

# Seconds after which something that takes no time to speak of has failed.
PATIENCE = 60.0

ANSWER_BYTES = 3    # "OK\n" or "NO\n"

# What the tests may inherit from a service manager or a user, and no daemon of theirs should.
_PRIVATE_VARIABLES = (
    "DTHROTTLED_CONFIG", "DTHROTTLECTL_SOCKET", "JOURNAL_STREAM", "LISTEN_FDNAMES", "LISTEN_FDS", "LISTEN_PID",
    "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "XDG_RUNTIME_DIR")

_SANITIZER_REPORT = re.compile(r"(?:ERROR|WARNING): \w+Sanitizer|runtime error: ")


# ---- Settings ----


def slowest_rate(burst):
    """The least rate that goes with a burst: while a test runs, no token comes back."""
    return max(1e-6, burst / (365 * 86400))


def rule(*, burst=10, rate=None, **keys):
    """A [[rule]], refilled as slowly as possible unless the test says how fast."""
    return _table("[[rule]]", {"burst": burst, "rate": slowest_rate(burst) if rate is None else rate, **keys})


def override(tag, *, burst=10, rate=None, **keys):
    rate = slowest_rate(burst) if rate is None else rate
    return _table("[[override]]", {"tag": tag, "burst": burst, "rate": rate, **keys})


def _table(header, keys):
    # Strings, numbers and lists of them are written alike in JSON and in TOML.
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in keys.items() if value is not None]
    return "\n".join([header, *lines]) + "\n"


def settings_text(directory, *limits, **sections):
    """A settings file whose paths are all in `directory`; a key that is None keeps its built-in default."""
    whole = {
        "query": {"unix": f"{directory}/query.sock", "tcp": "127.0.0.1:0", "threads": THREADS},
        "admin": {"unix": f"{directory}/admin.sock", "http": "", "http_decides": True},
        "table": {"file": f"{directory}/table", "memory": "4MiB"},
    }
    for name, keys in sections.items():
        whole.setdefault(name, {}).update(keys)
    return "\n".join([_table(f"[{name}]", keys) for name, keys in whole.items()] + list(limits))


# ---- Connections ----


def to_bytes(text):
    return text.encode() if isinstance(text, str) else text


def lines_of(tags):
    return b"".join(to_bytes(tag) + b"\n" for tag in tags)


def verdicts(received):
    """Answers as a list of "OK" and "NO". Whatever is neither is an AssertionError."""
    lines = bytes(received).split(b"\n")
    if lines.pop() != b"" or not set(lines) <= {b"OK", b"NO"}:
        raise AssertionError(f"not a sequence of answers: {bytes(received[:200])!r}")
    return [line.decode() for line in lines]


class Stream:
    """One end of a connection that pump() drives: bytes to send, bytes received, whether the other end has ended it."""

    def __init__(self, sock):
        sock.setblocking(False)
        self.sock = sock
        self.outgoing = memoryview(b"")
        self.received = bytearray()
        self.reading = True
        self.ended = False

    def send(self, data):
        self.outgoing = memoryview(bytes(self.outgoing) + data)

    def answers(self):
        return len(self.received) // ANSWER_BYTES

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def events(self):
        return (select.POLLIN if self.reading and not self.ended else 0) | (select.POLLOUT if self.outgoing else 0)

    def move(self, events):
        if self.outgoing and events & (select.POLLOUT | select.POLLERR | select.POLLHUP):
            try:
                self.outgoing = self.outgoing[self.sock.send(self.outgoing[:1 << 18]):]
            except BlockingIOError:
                pass
            except (BrokenPipeError, ConnectionResetError):
                self.outgoing = memoryview(b"")    # it will read no more; what it wrote before is still to come
        if self.reading and not self.ended and events & (select.POLLIN | select.POLLERR | select.POLLHUP):
            try:
                data = self.sock.recv(1 << 18)
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            self.received += data
            self.ended = data == b""


def pump(streams, until, seconds=PATIENCE):
    """Sends and receives on all streams until `until()` is true. False: it is not, in time or when all ended."""
    deadline = time.monotonic() + seconds
    poll = select.poll()
    registered = {}

    def register(stream):
        events = stream.events()
        if events:
            poll.register(stream.sock, events)
            registered[stream.sock.fileno()] = stream
        elif registered.pop(stream.sock.fileno(), None) is not None:
            poll.unregister(stream.sock)

    for stream in streams:
        register(stream)
    while not until():
        if not registered or time.monotonic() > deadline:
            return until()
        for fd, events in poll.poll(20):
            stream = registered[fd]
            before = stream.events()
            stream.move(events)
            if stream.events() != before:
                register(stream)
    return True


def receive_all(sock):
    """Everything until the other end closes. socket.timeout after PATIENCE seconds of silence."""
    received = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while data := sock.recv(1 << 16):
            received += data
    return bytes(received)


def await_read(sock):
    """Waits until the other end of a Unix socket has read everything that was sent: what is sent next comes apart."""
    def unread():
        return struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))[0]
    deadline = time.monotonic() + PATIENCE
    while unread() > 0:
        if time.monotonic() > deadline:
            raise AssertionError("the daemon does not read")


def wait_until(condition, what, seconds=PATIENCE):
    """Looks every few milliseconds until condition() is true, and returns it. `what` may be a function that says it late."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {seconds:g} s still not: {what() if callable(what) else what}")
        time.sleep(0.003)
    return value


class AdminSession:
    """Commands over one admin connection."""

    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(path)
        self._received = b""

    def send(self, data):
        self.sock.sendall(data)

    def answer(self):
        """The next answer, without the empty line that ends it."""
        while b"\n\n" not in self._received:
            data = self.sock.recv(1 << 16)
            if not data:
                raise AssertionError(f"hung up within an answer: {self._received!r}")
            self._received += data
        answer, self._received = self._received.split(b"\n\n", 1)
        return answer.decode() + "\n"

    def ask(self, command):
        self.send(to_bytes(command) + b"\n")
        return self.answer()

    def ask_json(self, command):
        return json.loads(self.ask(b"json " + to_bytes(command)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()


# ---- Processes ----


def clean_environment(**extra):
    kept = {name: value for name, value in os.environ.items() if name not in _PRIVATE_VARIABLES}
    return {**kept, **extra}


def run(*command, env=None, stdin=b"", **options):
    """Runs a program to its end and returns it with its output as text."""
    done = subprocess.run([str(word) for word in command], input=stdin, capture_output=True, timeout=PATIENCE,
                          env=clean_environment(**(env or {})), **options)
    done.stdout, done.stderr = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    return done


def fresh_directory():
    # The table belongs on a tmpfs, and paths of Unix sockets have to be short.
    shm = pathlib.Path("/dev/shm")
    parent = shm if shm.is_dir() and os.access(shm, os.W_OK) else None
    return pathlib.Path(tempfile.mkdtemp(prefix="dthrottle-test-", dir=parent))


class Daemon:
    """dthrottled in a directory of its own, for a `with` block.

    Takes the settings as rule(...) and override(...), and sections as dictionaries: query={"max_connections": 4}.
    Leaving the block ends it with SIGTERM, and it is an AssertionError if it does not leave with 0 then, had died
    before, or if a sanitizer had something to say.

    `wrapper` are words in front of the command, which becomes the daemon by exec; `open_files` is how many descriptors
    it may have.
    """

    def __init__(self, *limits, env=None, program=DTHROTTLED, wrapper=(), pass_fds=(), open_files=None,
                 **sections):
        self.directory = fresh_directory()
        self.query_path = f"{self.directory}/query.sock"
        self.admin_path = f"{self.directory}/admin.sock"
        self.settings_path = self.directory / "dthrottled.toml"
        self.process = None
        self.lives = 0
        self._sections = sections
        self._env = env or {}
        self._command = [str(word) for word in (*wrapper, program, "--config", self.settings_path)]
        self._pass_fds = pass_fds
        self._open_files = open_files
        self.write_settings(*limits)

    def __enter__(self):
        try:
            self.start()
        except BaseException as error:
            self._leave(error)
            raise
        return self

    def __exit__(self, _type, error, _traceback):
        self._leave(error)

    def _leave(self, error):
        try:
            if self.process is not None:
                self.stop()
        except AssertionError as problem:
            if error is None:
                problem.add_note("The daemon said:\n" + self.log)
                raise
            error.add_note(f"Besides: {problem}")
        finally:
            if error is not None:
                error.add_note("The daemon said:\n" + self.log)
            shutil.rmtree(self.directory, ignore_errors=True)

    # ---- Life ----

    @property
    def pid(self):
        return self.process.pid

    def start(self):
        self.lives += 1
        environment = clean_environment(**self._env)
        if self._open_files is not None and SANITIZED:    # see _sanitizer_reports
            environment["UBSAN_OPTIONS"] = environment.get("UBSAN_OPTIONS", "") + ":halt_on_error=0"
        with open(self._log_path, "wb") as log:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                pass_fds=self._pass_fds, preexec_fn=self._limit_files if self._open_files is not None else None)
        self.wait_log(" ready: ")

    def _limit_files(self):
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._open_files, self._open_files))

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self):
        """Ends the daemon as a service manager does, and checks that it leaves as it should."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        self.wait_exit()

    def wait_exit(self, code=0):
        """Waits for the daemon to leave by itself."""
        process, self.process = self.process, None
        try:
            left_with = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the daemon did not leave within {PATIENCE:g} s") from None
        if reports := self._sanitizer_reports():
            raise AssertionError(f"a sanitizer reported: {reports[0]}")
        if left_with != code:
            raise AssertionError(f"the daemon left with {left_with}, not {code}")

    def _sanitizer_reports(self):
        reports = [line for line in self.log.splitlines() if _SANITIZER_REPORT.search(line)]
        if self._open_files is not None:
            # The sanitizer opens a pipe to look at an object, and finds none where there is no descriptor for it.
            reports = [line for line in reports if "which does not point to an object of type" not in line]
        return reports

    def kill(self):
        """kill -9."""
        process, self.process = self.process, None
        process.kill()
        process.wait()
        if process.returncode != -signal.SIGKILL:
            raise AssertionError(f"the daemon had died with {process.returncode}")

    def restart(self):
        self.stop()
        self.start()

    # ---- Settings ----

    def write_settings(self, *limits):
        self.settings_path.write_text(settings_text(self.directory, *limits, **self._sections))

    def hang_up(self):
        """Reloads by SIGHUP, and waits until that is over."""
        def reloads():
            stats = self.stats()
            return stats["reloads"] + stats["reload_failures"]
        before = reloads()
        self.signal(signal.SIGHUP)
        wait_until(lambda: reloads() > before, "the reload is over")

    # ---- What it says ----

    @property
    def _log_path(self):
        return self.directory / f"stderr.{self.lives}"

    @property
    def log(self):
        """What this life of the daemon has written to standard error."""
        return self._log_path.read_text(errors="replace") if self._log_path.exists() else ""

    def wait_log(self, text):
        def said():
            left = self.process is not None and self.process.poll() is not None    # asked first: its last words count
            if text in self.log:
                return True
            if left:
                raise AssertionError(f"the daemon left with {self.process.returncode} before it said {text!r}")
            return False
        wait_until(said, f"the log says {text!r}")

    @property
    def tcp_port(self):
        return int(re.search(r"answering queries on tcp:\S*:(\d+)", self.log)[1])

    @property
    def http_port(self):
        """Of admin.http, which only listens if the test says so."""
        return int(re.search(r"answering HTTP on tcp:\S*:(\d+)", self.log)[1])

    def resident_bytes(self):
        status = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024

    # ---- Asking ----

    def connect(self, tcp=False):
        sock = socket.socket(socket.AF_INET if tcp else socket.AF_UNIX)
        sock.settimeout(PATIENCE)
        sock.connect(("127.0.0.1", self.tcp_port) if tcp else self.query_path)
        if tcp:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def stream(self, tcp=False):
        return Stream(self.connect(tcp))

    def ask(self, tags, tcp=False):
        """The verdicts on all tags, which go out pipelined over one connection."""
        tags = list(tags)
        with self.stream(tcp) as stream:
            stream.send(lines_of(tags))
            if not pump([stream], lambda: stream.answers() >= len(tags)):
                raise AssertionError(f"{stream.answers()} answers to {len(tags)} queries")
            return verdicts(stream.received)

    def served(self, tag, queries, tcp=False):
        """How many of so many queries for one tag are answered OK."""
        return self.ask([tag] * queries, tcp).count("OK")

    def connect_admin(self):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(PATIENCE)
        sock.connect(self.admin_path)
        return sock

    def admin_session(self):
        return AdminSession(self.admin_path)

    def admin(self, command):
        with self.admin_session() as session:
            return session.ask(command)

    def admin_json(self, command):
        with self.admin_session() as session:
            return session.ask_json(command)

    def stats(self):
        return self.admin_json("stats")


class AskDaemon(Daemon):
    """A daemon that is asked questions on a Unix socket."""

    def __init__(self, *limits, ask=None, **sections):
        super().__init__(*limits, ask=ask or {}, **sections)

    def write_settings(self, *limits):
        self.ask_path = f"{self.directory}/ask.sock"
        self._sections["ask"]["unix"] = self.ask_path
        super().write_settings(*limits)
