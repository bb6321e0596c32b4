"""Leases of capacity, for programs that would rather go slower than be refused (protocol/lease.md).

    with dthrottle.Leases("tcp:10.0.0.1:7315,tcp:10.0.0.2:7315") as leases:
        calls = leases.rate("backend-calls")
        while work() and calls.take():
            call()

A thread of the handle asks for leases and renews them, finds the master among the servers, and releases what is not used
any more. A call that takes looks only at what the thread has brought, and waits if it has to. A child after fork has no
such thread: it opens its own handle. Each exchange has a connection of its own: they are seconds apart, and a server holds
more clients than connections.
"""

import contextlib
import itertools
import math
import os
import random
import re
import socket
import ssl
import threading
import time

from . import _endpoint
from ._holding import AMOUNT_MAX, Holding, Lease

_EARLY = 1.1         # no more than one request within this many seconds, if not for a refresh
_BATCH_MAX = 32      # requests of one exchange
_REDIRECTS_MAX = 3
_ANSWER_BYTES_MAX = 512
_numbers = itertools.count(1)


def _boot():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _name(text):
    if not 1 <= len(text.encode()) <= 255 or re.search(r"[\x00-\x20\x7f]", text):
        raise ValueError(f"{text!r} is no name: 1 to 255 bytes without blanks")
    return text


def _number(amount):
    return "%d.%06d" % divmod(int(amount * 1000000), 1000000)    # rounded down


class _Resource:
    """One that is open. Opened again under its name it is the same one."""

    gauge = False

    def __init__(self, leases, name, holding, priority):
        self.name = name
        self.trouble = ""    # why the last request failed
        self._leases, self._holding, self._priority = leases, holding, priority
        self._openings = 0    # 0: to be released
        self._changed = threading.Condition(leases._lock)
        self._ask_at = time.monotonic()
        self._asked_at = self._ask_at - _EARLY

    def take(self, timeout=None):
        """Takes one unit: waits for its turn at a rate, for a free place at a gauge, `timeout` seconds at most. False:
        it was not to be had in time, or the resource or its Leases are closed, also while this waits."""
        begin = time.monotonic()
        deadline = math.inf if timeout is None else begin + timeout
        holding = self._holding
        with self._leases._lock:
            holding.begin_wait(begin)
            taken = False
            try:
                while not taken and self._openings > 0:
                    now, boot = time.monotonic(), _boot()
                    due = holding.take(boot)
                    taken = due is None
                    if not taken:
                        until = min(now + due - boot, self._ask_early(now, boot), deadline)
                        if now >= deadline:
                            break
                        self._changed.wait(None if until == math.inf else max(0, until - now))
            finally:
                holding.end_wait(taken, time.monotonic())
        return taken

    def _ask_early(self, now, boot):
        """Asks before it is time where that may bring more. Returns when it could, if that is not now."""
        early = self._asked_at + _EARLY
        if not self._holding.may_gain(boot) or self._ask_at <= early:
            return math.inf
        if now < early:
            return early
        self._ask_at = now
        self._leases._work.notify()
        return math.inf

    def set_wants(self, wants):
        """Asks for so much from now on; 0: by estimate."""
        if not wants >= 0:
            raise ValueError("wants is 0 or more")
        with self._leases._lock:
            self._holding.wants_fixed = min(wants, AMOUNT_MAX)
            self._ask_at = min(self._ask_at, self._asked_at + _EARLY)
            self._leases._work.notify()

    @property
    def capacity(self):
        """Units, or units a second, that may be used now, by the lease or, without one, by the mode. math.inf: unlimited."""
        with self._leases._lock:
            return self._holding.capacity(_boot())[0]

    @property
    def wants(self):
        """Units, or units a second, that are asked for."""
        with self._leases._lock:
            return self._holding.wants

    @property
    def lease(self):
        """The lease that holds now: capacity, seconds it lasts from when it was asked for, refresh, safe, token, and for
        how many seconds a new master learns and gives nobody more than it had. None: there is none."""
        with self._leases._lock:
            return self._holding.lease if _boot() < self._holding.expiry else None

    def close(self):
        """Ends one opening. With the last one the lease is released."""
        with self._leases._lock:
            self._end(1)

    def _end(self, openings):
        self._openings = max(0, self._openings - openings)
        if self._openings == 0:
            self._changed.notify_all()
        self._leases._work.notify()


class RateResource(_Resource):
    """Its capacity is so much a second. Units come evenly, at most as many in a burst as are due in a tenth of a second."""


class GaugeResource(_Resource):
    """Its capacity is so much at a time."""

    gauge = True

    def release(self):
        """Gives back a place that was taken."""
        with self._leases._lock:
            self._holding.outstanding = max(0, self._holding.outstanding - 1)
            self._changed.notify()

    @property
    def outstanding(self):
        """Places that are taken."""
        with self._leases._lock:
            return self._holding.outstanding

    @contextlib.contextmanager
    def place(self, timeout=None):
        """A place until the end of a `with` block. TimeoutError: there was none in time. ValueError: it is closed."""
        if not self.take(timeout):
            if self._openings == 0:
                raise ValueError(f"{self.name} is closed")
            raise TimeoutError(f"no place of {self.name} within {timeout} s")
        try:
            yield self
        finally:
            self.release()


class Leases:
    """`addresses` of lease servers have commas between them. `client` is unique; HOST:PID:NUMBER and random digits unless
    it is given: containers may have the first two in common.
    `timeout` is for one server to answer, `retry` the pause after all of them have failed, give or take a quarter; both
    in seconds. An address "tls:ADDRESS:PORT" takes an ssl.SSLContext as `tls`, which says whom to believe and who we are."""

    def __init__(self, addresses=_endpoint.DEFAULT_LEASE, *, client=None, timeout=1.0, retry=1.0, tls=None):
        self._tls = tls
        self._servers = [_endpoint.parse(address, tls) for address in addresses.split(",")]
        host = re.sub(r"[\x00-\x20\x7f]", "", socket.gethostname()) or "localhost"
        unique = f"{host}:{os.getpid()}:{next(_numbers)}:{os.urandom(4).hex()}"
        self._client = _name(client if client is not None else unique)
        self._timeout, self._retry = timeout, retry
        self._lock = threading.RLock()    # guards what follows, and the resources
        self._work = threading.Condition(self._lock)
        self._resources = {}
        self._closing = False
        self._master = None    # as far as it is known; of the thread alone
        self._thread = threading.Thread(target=self._run, name="dthrottle-leases", daemon=True)
        self._thread.start()

    def rate(self, name, *, mode="pessimistic", wants=0.0, wants_max=0.0, priority=0):
        """Opens a resource whose capacity is so much a second. `mode` says what may be used when a lease has expired and
        no server has renewed it: nothing, as much as is wanted ("optimistic"), or the safe capacity that came with it
        ("safe"). `wants` is what is asked for, 0: what seems to be needed, at most `wants_max` if that is not 0."""
        return self._open(RateResource, name, mode, wants, wants_max, priority)

    def gauge(self, name, *, mode="pessimistic", wants=0.0, wants_max=0.0, priority=0):
        """Opens a resource whose capacity is so much at a time."""
        return self._open(GaugeResource, name, mode, wants, wants_max, priority)

    def _open(self, kind, name, mode, wants, wants_max, priority):
        holding = Holding(kind.gauge, mode, wants, wants_max, time.monotonic(), _boot())
        with self._lock:
            if self._closing:
                raise ValueError("these leases are closed")
            resource = self._resources.get(name)
            if resource is None:
                resource = self._resources[name] = kind(self, _name(name), holding, priority)
            if not isinstance(resource, kind):
                raise ValueError(f"{name} is open as the other kind of resource")
            resource._openings += 1
            self._work.notify()
        return resource

    def close(self):
        """Ends all openings and releases what is still leased, which takes `timeout` for each server at most. Nothing
        can be taken or opened any more."""
        with self._lock:
            self._closing = True
            for resource in self._resources.values():
                resource._end(resource._openings)
            self._work.notify()
        self._thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # ---- The thread ----

    def _run(self):
        while True:
            with self._lock:
                batch, wake_at = self._collect(time.monotonic())
                if not batch:
                    if self._closing:
                        return
                    self._work.wait(None if wake_at == math.inf else max(0, wake_at - time.monotonic()))
                    continue
            sent, answers, trouble = self._ask_master([line for _, _, line in batch])
            with self._lock:
                for (resource, release, _), answer in zip(batch, answers or [None] * len(batch)):
                    self._apply(resource, release, answer, trouble, sent)

    def _collect(self, now):
        """The requests that are due, (resource, whether it is released, line) each, and when the next one will be."""
        batch, wake_at = [], math.inf
        for resource in list(self._resources.values()):
            used, held = resource._openings > 0, resource._holding.expiry != 0
            if not used and not held:
                del self._resources[resource.name]
            elif (not used or resource._ask_at <= now) and len(batch) < _BATCH_MAX:
                batch.append((resource, not used, self._request(resource, now) if used
                              else f"release {self._client} {resource.name}"))
            elif used:
                wake_at = min(wake_at, resource._ask_at)
        return batch, wake_at

    def _request(self, resource, now):
        holding = resource._holding
        holding.estimate(now)
        resource._asked_at = now
        left = max(0.0, holding.expiry - _boot())
        has, token = (holding.lease.capacity if left else 0, holding.lease.token) if holding.lease else (0, 0)
        return (f"get {self._client} {resource.name} {_number(holding.wants)} {_number(has)} {resource._priority} {token} "
                f"{int(left * 1000) / 1000:.3f}")

    def _ask_master(self, lines):
        """Asks the master, wherever it is: first where it was, then where the servers say, each of them once. Returns
        when it was asked and what it said, None if nobody did, and why."""
        servers, redirects = iter(self._servers), 0
        at = self._master or next(servers)
        while at is not None:
            sent = _boot()
            answers, trouble = self._converse(at, lines)
            address = next((answer[10:] for answer in answers or () if answer.startswith("elsewhere ")), None)
            if answers and address is None:
                self._master = at
                return sent, answers, ""
            at = None
            if address is not None:
                trouble = "no server knows who is master"
                with contextlib.suppress(ValueError):
                    at = _endpoint.parse(address, self._tls) if redirects < _REDIRECTS_MAX else None
                redirects += 1
            at = at or next(servers, None)
        self._master = None
        return sent, None, trouble

    def _converse(self, endpoint, lines):
        """The answers, or None and why there are none."""
        heard, deadline = bytearray(), time.monotonic() + self._timeout

        def hear(data):
            heard.extend(data)
            if len(heard) > _ANSWER_BYTES_MAX * len(lines):
                raise OverflowError
            return heard.count(b"\n") >= len(lines)

        sock = None
        try:
            sock = _endpoint.connect(endpoint, deadline)
            _endpoint.talk(sock, "".join(line + "\n" for line in lines).encode(), hear, deadline)
            return heard.decode("ascii", "replace").split("\n")[:len(lines)], ""
        except OverflowError:
            return None, "the server's answer is too long"
        except TimeoutError:
            return None, "the server does not answer in time" if sock else "the server does not accept in time"
        except ssl.SSLError as error:
            return None, f"TLS: {error.reason}"
        except OSError:
            return None, "the server hangs up" if sock else "the server cannot be reached"
        finally:
            if sock is not None:
                sock.close()

    def _apply(self, resource, release, answer, trouble, sent):
        now, boot = time.monotonic(), _boot()
        if release:
            resource._holding.expiry = 0.0
            resource._ask_at = now    # if it has been opened again meanwhile
            return
        resource._ask_at = now + self._retry * (0.75 + 0.5 * random.random())
        word, *words = (answer or "").split(" ")
        lease = Lease.read(words) if word == "lease" else None
        if answer is None:
            resource.trouble = trouble
        elif lease is None:
            resource.trouble = " ".join(words) if word == "error" else "the answer is none"
        elif not resource._holding.grant(lease, sent, boot):
            resource.trouble = "a server that is master no more has answered"
        else:
            resource.trouble = ""
            resource._ask_at = now + lease.refresh - (boot - sent)
        resource.trouble = re.sub(r"[^ -~]", "?", resource.trouble)    # a server's words end up in logs and on terminals
        resource._changed.notify_all()
