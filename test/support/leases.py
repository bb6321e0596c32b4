"""Lease servers and those who ask them, for tests."""

import contextlib
import json
import re
import socket
import threading
import time

from daemon import PATIENCE, Daemon, rule


def resource(glob="calls", **keys):
    """A [[resource]]."""
    keys = {"identifier_glob": glob, "capacity": 100, **keys}
    return "[[resource]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in keys.items())


class LeaseDaemon(Daemon):
    """A daemon that leases, on a Unix socket unless `lease` says otherwise."""

    def __init__(self, *limits, lease=None, **options):
        super().__init__(*(limits or (resource(),)), rule(), lease={"min_request_interval": "0s"}, **options)
        self.lease_path = f"{self.directory}/lease.sock"
        self._sections["lease"].update({"unix": self.lease_path, **(lease or {})})
        self.limits = (*(limits or (resource(),)), rule())
        self.write_settings(*self.limits)

    @property
    def lease_address(self):
        return f"unix:{self.lease_path}"

    @property
    def lease_port(self):
        return int(re.search(r"granting leases on tcp:\S*:(\d+)", self.log)[1])

    def lease(self, *lines):
        """The answers to the lines, which go out at once over one connection."""
        with LeaseSession(self.lease_path) as session:
            return session.ask(*lines)

    def leases(self, name=""):
        return self.admin_json(f"leases {name}".strip())


class LeaseSession:
    """`path` is a socket's, or a port on loopback."""

    def __init__(self, path, timeout=PATIENCE):
        self.sock = socket.socket(socket.AF_INET if isinstance(path, int) else socket.AF_UNIX)
        self.sock.settimeout(timeout)
        self.sock.connect(("127.0.0.1", path) if isinstance(path, int) else path)
        self._received = b""

    def ask(self, *lines):
        self.sock.sendall("".join(line + "\n" for line in lines).encode())
        while self._received.count(b"\n") < len(lines):
            data = self.sock.recv(1 << 16)
            if not data:
                raise ConnectionResetError(f"hung up after {self._received!r}")
            self._received += data
        *answers, self._received = self._received.split(b"\n", len(lines))
        answers = [answer.decode() for answer in answers]
        return answers if len(lines) > 1 else answers[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()


class Asking:
    """Threads that ask for a `with` block, until _ending. A subclass calls _will(target, arguments) for each."""

    def __init__(self):
        self._ending = False
        self._threads = []

    def _will(self, target, *arguments):
        self._threads.append(threading.Thread(target=target, args=arguments))

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._ending = True
        for thread in self._threads:
            thread.join()


class Lessees(Asking):
    """Clients that ask for leases all the time, for a `with` block, and the most that they held at once. While a client
    asks it may have lost what the answer takes from it, and has not yet what the answer adds; so it counts as the less
    of the two then."""

    def __init__(self, name, wants, every=0.1, often=None):
        super().__init__()
        self.name, self.every, self.often = name, every, often or {}
        self.wants = dict(wants)    # client -> (path, amount)
        self._leases = {client: [] for client in self.wants}    # (asked, answered, amount, until) each
        for client in self.wants:
            self._will(self._ask, client)

    def want(self, client, amount):
        self.wants[client] = (self.wants[client][0], amount)

    def holds(self, *clients):
        """Now."""
        now = time.monotonic()
        last = [leases[-1] for client, leases in self._leases.items() if leases and (not clients or client in clients)]
        return sum(amount for _, _, amount, until in last if until > now)

    def most(self):
        changes = []    # (instant, by how much): losses first
        for leases in self._leases.values():
            for i, (asked, answered, amount, until) in enumerate(leases):
                before = next((a for _, _, a, u in leases[i - 1:i] if u > asked), 0)
                begins = answered if amount > before else asked
                ends = until
                for next_asked, next_answered, next_amount, _ in leases[i + 1:i + 2]:
                    ends = min(until, next_asked if next_amount <= amount else next_answered)
                if begins < ends:
                    changes += [(begins, amount), (ends, -amount)]
        total = most = 0
        for _, change in sorted(changes):
            total += change
            most = max(most, total)
        return most

    def _ask(self, client):
        has, until, token = 0, 0, "0"
        while not self._ending:
            path, wants = self.wants[client]
            with contextlib.suppress(OSError), LeaseSession(path, timeout=2) as session:
                asked = time.monotonic()
                left = max(0, until - asked)
                answer = session.ask(f"get {client} {self.name} {wants} {has if left else 0} 0 {token} {left:.3f}")
                word, *words = answer.split()
                if word == "lease":
                    has, until, token = float(words[0]), asked + float(words[1]), words[4]
                    self._leases[client].append((asked, time.monotonic(), has, until))
            time.sleep(self.often.get(client, self.every))


class Watch(Asking):
    """Asks every host for a lease all the time, and finds two that grant at once: a grant under a smaller token that was
    asked for after one under a greater token had come."""

    def __init__(self, daemons, every=0.02):
        super().__init__()
        self.grants = []    # (asked at, came at, token, host)
        for i, daemon in enumerate(daemons):
            self._will(self._ask, i, daemon.lease_path, every)

    def _ask(self, host, path, every):
        while not self._ending:
            with contextlib.suppress(OSError), LeaseSession(path, timeout=2) as session:
                while not self._ending:
                    asked = time.monotonic()
                    answer = session.ask(f"get watch:{host} calls 0").split()
                    if answer[0] == "lease":
                        self.grants.append((asked, time.monotonic(), int(answer[5]), host))
                    time.sleep(every)
            time.sleep(every)

    def first(self, host_not, since):
        """When another host than that granted first, or None."""
        for asked, came, _, host in self.grants:
            if host != host_not and asked >= since:
                return came
        return None

    def check(self, test):
        grants = sorted(self.grants)
        test.assertGreater(len(grants), 0)
        came = sorted((came, token) for _, came, token, _ in grants)
        greatest, at = 0, 0
        for asked, _, token, host in grants:
            while at < len(came) and came[at][0] < asked:
                greatest = max(greatest, came[at][1])
                at += 1
            test.assertGreaterEqual(token, greatest, f"host {host} grants after another one has begun")
        by_token = {}
        for _, _, token, host in grants:
            by_token.setdefault(token, set()).add(host)
        for token, hosts in by_token.items():
            test.assertEqual(len(hosts), 1, f"token {token} was granted under by several hosts")
