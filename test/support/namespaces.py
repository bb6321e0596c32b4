"""Hosts in network namespaces of their own, with a bad network between them.

Each namespace has one TUN device, and a switch in a thread of this process carries packets from one to another: late,
now and then, or not at all, as the test says, each way by itself. That takes root, ip(8) and TUN, and no module that a
kernel may lack for netem.
"""

import contextlib
import fcntl
import heapq
import itertools
import os
import random
import select
import socket
import struct
import subprocess
import threading
import time
import unittest

_TUNSETIFF = 0x400454CA
_IFF_TUN_WITHOUT_HEADER = 0x1001
_PACKET_BYTES_MAX = 1 << 16

_networks = itertools.count()


def _ip(*words):
    done = subprocess.run(["ip", *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.decode(errors='replace').strip()}")


class Network:
    """So many namespaces, for a `with` block. A test that cannot have them is skipped, and says why.

    `loss` is the share of packets lost, `delay` and `jitter` are seconds each way. `cut` has the pairs (from, to) of
    hosts between which nothing passes; all may be changed at any time.
    """

    def __init__(self, hosts=2, seed=1):
        self.loss = self.delay = self.jitter = 0.0
        self.cut = set()
        self.carried = self.dropped = 0
        prefix = f"dt-{os.getpid()}-{next(_networks)}"
        self.names = [f"{prefix}-{i}" for i in range(hosts)]
        self.addresses = [f"10.99.0.{i + 1}" for i in range(hosts)]
        self._host_at = {socket.inet_aton(ip): i for i, ip in enumerate(self.addresses)}
        self._chance = random.Random(seed)
        self._stack = contextlib.ExitStack()
        self._stopping = False

    def wrapper(self, host):
        """Words in front of a command that is to run on that host."""
        return "ip", "netns", "exec", self.names[host]

    def part(self, sender, receiver):
        """From now on nothing passes from one to the other; the way back is another."""
        self.cut = self.cut | {(sender, receiver)}

    def heal(self):
        self.cut = set()
        self.loss = self.delay = self.jitter = 0.0

    def reset_connections(self, host):
        """Ends the TCP connections of a host with resets; how many there were."""
        listed = subprocess.run([*self.wrapper(host), "ss", "-HtnK", "state", "established"], capture_output=True,
                                stdin=subprocess.DEVNULL, timeout=30)
        return len(listed.stdout.splitlines())

    # ---- Inside ----

    def __enter__(self):
        try:
            self._devices = [self._add(i) for i in range(len(self.names))]
        except OSError as error:
            self._stack.close()
            raise unittest.SkipTest(f"NOT TESTED: no network namespaces here: {error}") from None
        except BaseException:
            self._stack.close()
            raise
        self._thread = threading.Thread(target=self._carry)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stopping = True
        self._thread.join()
        self._stack.close()

    def _add(self, host):
        name = self.names[host]
        if os.geteuid() != 0:
            raise OSError("takes root")
        _ip("netns", "add", name)
        self._stack.callback(_ip, "netns", "delete", name)
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._stack.callback(os.close, device)
        made = fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"dt%d", _IFF_TUN_WITHOUT_HEADER))
        interface = made[:16].rstrip(b"\0").decode()
        _ip("link", "set", interface, "netns", name)
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "addr", "add", f"{self.addresses[host]}/24", "dev", interface)
        _ip("-n", name, "link", "set", interface, "up")
        return device

    def _carry(self):
        poll = select.poll()
        for device in self._devices:
            poll.register(device, select.POLLIN)
        under_way, numbers = [], itertools.count()
        while not self._stopping:
            wait = min(0.05, max(0.0, under_way[0][0] - time.monotonic())) if under_way else 0.05
            for device, _ in poll.poll(wait * 1000):
                sender = self._devices.index(device)
                with contextlib.suppress(BlockingIOError):
                    for _ in range(64):
                        packet = os.read(device, _PACKET_BYTES_MAX)
                        receiver = self._host_at.get(packet[16:20])
                        if receiver is None:
                            continue
                        if (sender, receiver) in self.cut or self._chance.random() < self.loss:
                            self.dropped += 1
                            continue
                        due = time.monotonic() + self.delay + self.jitter * self._chance.random()
                        heapq.heappush(under_way, (due, next(numbers), receiver, packet))
            while under_way and under_way[0][0] <= time.monotonic():
                _, _, receiver, packet = heapq.heappop(under_way)
                self.carried += 1
                with contextlib.suppress(OSError):    # no room, or not up yet: lost, as packets are
                    os.write(self._devices[receiver], packet)
