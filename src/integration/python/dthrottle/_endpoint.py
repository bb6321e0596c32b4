"""Addresses, and sockets that keep a deadline (seconds of the monotonic clock)."""

import errno
import os
import re
import select
import socket
import ssl
import time
import typing

DEFAULT_QUERY = "unix:/run/dthrottle/query.sock"
DEFAULT_ASK = "unix:/run/dthrottle/ask.sock"
DEFAULT_LEASE = "unix:/run/dthrottle/lease.sock"
DEADLINE_MAX = 2e6    # seconds; poll takes little more
_BLOCKED = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_CONNECTING = (errno.EINPROGRESS, errno.EINTR)


class Endpoint(typing.NamedTuple):
    family: int
    address: object
    tls: typing.Optional[ssl.SSLContext] = None


def parse(address, tls=None):
    """The endpoint of "unix:/path", "tcp:ADDRESS:PORT", or with a context for TLS "tls:ADDRESS:PORT". A name would have to
    be looked up, which takes as long as it takes; so ADDRESS is numeric. ValueError if it is none."""
    if address.startswith("unix:") and len(address) > 5:
        if len(os.fsencode(address)) - 5 > 107:
            raise ValueError(f"{address}: the path is longer than that of a Unix socket can be")
        return Endpoint(socket.AF_UNIX, address[5:])
    if address.startswith("tls:") and tls is None:
        raise ValueError(f"{address}: there is no context for TLS")
    found = re.fullmatch(r"(?:tcp|tls):(?:\[([^\]]*)\]|([^:]*)):(\d{1,5})", address)
    if found and 0 < int(found[3]) < 65536:
        family, host = (socket.AF_INET6, found[1]) if found[1] is not None else (socket.AF_INET, found[2])
        try:
            socket.inet_pton(family, host)
            return Endpoint(family, (host, int(found[3])), tls if address.startswith("tls:") else None)
        except OSError:
            pass
    raise ValueError(f'{address!r} is not "unix:/path", "tcp:ADDRESS:PORT" or "tls:ADDRESS:PORT" with a numeric address')


def wait_for(sock, events, deadline):
    """TimeoutError: nothing has happened in time. It looks behind the deadline too: a thread that had to wait for others
    may find its answer."""
    poll = select.poll()
    poll.register(sock, events)
    if not poll.poll(max(0, deadline - time.monotonic()) * 1000):
        raise TimeoutError


def connect(endpoint, deadline):
    """A socket that does not block. OSError, a TimeoutError among them."""
    family, address, tls = endpoint
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        if family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        error = sock.connect_ex(address)
        if error in _CONNECTING:
            wait_for(sock, select.POLLOUT, deadline)
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        if tls is not None:
            sock = tls.wrap_socket(sock, server_hostname=address[0], do_handshake_on_connect=False)
            _shake_hands(sock, deadline)
        return sock
    except BaseException:
        sock.close()
        raise


def _shake_hands(sock, deadline):
    while True:
        try:
            return sock.do_handshake()
        except ssl.SSLWantReadError:
            wait_for(sock, select.POLLIN, deadline)
        except ssl.SSLWantWriteError:
            wait_for(sock, select.POLLOUT, deadline)


def talk(sock, data, hear, deadline):
    """Sends the bytes and gives what comes to hear(), until that returns True. OSError: the connection is of no use any
    more; ConnectionError: because the other end has ended it."""
    unsent = memoryview(data)
    while True:
        if unsent:
            try:
                unsent = unsent[sock.send(unsent):]
            except _BLOCKED:
                pass
        wait_for(sock, select.POLLIN | select.POLLOUT if unsent else select.POLLIN, deadline)
        try:
            received = sock.recv(65536)
        except _BLOCKED:
            continue
        if not received:
            raise ConnectionResetError
        if hear(received):
            return
