"""Live daemons against one bucket for all, second by second, as dthrottle-sim measures simulated ones."""

import contextlib
import socket
import time


class OneBucket:
    """The ideal: every query goes to it."""

    def __init__(self, now, burst, rate):
        self.burst, self.rate = burst, rate
        self.level, self.at = burst, now

    def serves(self, now, cost=1):
        self.level, self.at = min(self.burst, self.level + self.rate * (now - self.at)), now
        if self.level < cost:
            return False
        self.level -= cost
        return True


def over_and_under(hosts, tag, queries, ideal, seconds, rng):
    """Asks any of the hosts by chance, `queries` times a second in the mean. Returns tokens beyond what the bucket that
    `ideal(now)` makes serves and tokens short of it, both in % of what it serves and summed over windows of a second; and
    how many queries were asked.
    """
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in hosts]
        for sock, host in zip(sockets, hosts):
            sock.connect(host.query_path)
        begin = due = time.monotonic()
        bucket, served, wanted, asked = ideal(begin), [0] * seconds, [0] * seconds, 0
        while True:
            due += rng.expovariate(queries)
            time.sleep(max(due - time.monotonic(), 0))
            now = time.monotonic()
            window = int(now - begin)
            if window >= seconds:
                break
            sock = rng.choice(sockets)
            sock.sendall(tag.encode() + b"\n")
            served[window] += sock.recv(3) == b"OK\n"
            wanted[window] += bucket.serves(now)
            asked += 1
    over = 100 * sum(max(s - w, 0) for s, w in zip(served, wanted)) / sum(wanted)
    under = 100 * sum(max(w - s, 0) for s, w in zip(served, wanted)) / sum(wanted)
    return over, under, asked
