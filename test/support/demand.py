"""Asks several hosts for one tag, each so many times a second, and counts what each serves."""

import socket
import threading
import time

from daemon import ANSWER_BYTES

TICK = 0.005
BEHIND_MAX = 1.0    # s; what a stall of this process left unasked for longer is not made up for


class _Asked:
    """One host: a connection, answers that are still to come, and counts."""

    def __init__(self, host, rate):
        self.host = host
        self.rate = rate
        self.sock = None
        self.owed = 0.0
        self.pending = 0
        self.asked = self.served = 0
        self._partial = b""

    def close(self):
        if self.sock is not None:
            self.sock.close()
        self.sock, self.pending, self.owed, self._partial = None, 0, 0.0, b""

    def move(self, line, passed):
        self.owed = min(self.owed + self.rate * passed, self.rate * BEHIND_MAX)
        try:
            if self.sock is None:
                self.sock = socket.socket(socket.AF_UNIX)
                self.sock.connect(self.host.query_path)
                self.sock.setblocking(False)
            self._receive()
            # Whoever does not answer is not asked for ever more.
            n = int(min(self.owed, self.rate * BEHIND_MAX - self.pending))
            if n > 0:
                self.owed -= n
                self.pending += n
                self.asked += n
                self.sock.sendall(line * n)
        except OSError:    # it is dead, or comes up
            self.close()

    def _receive(self):
        while True:
            try:
                data = self.sock.recv(1 << 16)
            except BlockingIOError:
                return
            if not data:
                raise ConnectionResetError
            data = self._partial + data
            whole = len(data) // ANSWER_BYTES * ANSWER_BYTES
            self.served += data[:whole].count(b"OK\n")
            self.pending -= whole // ANSWER_BYTES
            self._partial = data[whole:]


class Demand:
    """For a `with` block. `rates` are queries a second, one for each host."""

    def __init__(self, hosts, tag, rates):
        self._line = tag.encode() + b"\n"
        self._asked = [_Asked(host, rate) for host, rate in zip(hosts, rates)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def ask(self, rates):
        """From now on so often."""
        for one, rate in zip(self._asked, rates):
            one.rate = rate

    def served(self):
        """By each host, until now."""
        return [one.served for one in self._asked]

    def _run(self):
        last = time.monotonic()
        while not self._stop.wait(TICK):
            now = time.monotonic()
            for one in self._asked:
                one.move(self._line, now - last)
            last = now

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        for one in self._asked:
            one.close()
