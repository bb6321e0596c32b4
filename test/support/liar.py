"""A peer with a key of its own that says what it is told to say, on real connections.

As a program (of Debian's Python, which has msgpack and zmq) it takes a line of JSON for each thing to do. As a module it
starts that program: Liar(directory of keys, name, address) for a `with` block.
"""

import ctypes
import json
import pathlib
import random
import subprocess
import sys
import time

PYTHON = "/usr/bin/python3"
PERIOD = 0.25    # s, between reports without entries
AVAILABLE = subprocess.run([PYTHON, "-c", "import msgpack, zmq; assert zmq.has('curve')"],
                           capture_output=True).returncode == 0
WHY_NOT = "needs python3-msgpack and python3-zmq"


class Liar:
    def __init__(self, keys, name, address):
        self.name = name
        self.address = address
        self._words = [PYTHON, __file__, str(keys), name, address]

    def __enter__(self):
        self._process = subprocess.Popen(self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

    def _do(self, **what):
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def join(self, *hosts):
        """Opens a connection to each."""
        self._do(do="join", hosts=[[host.name, host.address] for host in hosts])

    def say(self, to, kind, *, asked=False, entries=(), demands=(), besides=None, **fields):
        """A frame to that host: as the answer on its link, or as a request on the liar's own connection (`asked`).

        Fields that are not given are true ones. `entries` are (tag, value). `besides` are columns beside them, such as
        {"refusals": [1, 2]}, of numbers for the first entries.
        """
        return self._do(do="say", to=to.name, kind=kind, asked=asked, entries=list(entries), demands=list(demands),
                        besides=besides or {}, fields=fields)

    def flood(self, host, rate, fresh=False):
        """From now on so many entries a second to that host; 0 ends it. `fresh` tags are all different."""
        self._do(do="flood", to=host.name, rate=rate, fresh=fresh)

    def give(self, entries, positions):
        """What the answer to the next hosts that want a snapshot says. `positions` are (name, life or 0 for theirs, next)."""
        self._do(do="give", entries=list(entries), positions=list(positions))

    def counts(self):
        """Of frames by kind that were heard, of entries that were sent, and the lives of the hosts."""
        return self._do(do="counts")


# ---- The program ----


def varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out + bytes([n]))


def columns(entries):
    tags = [tag.encode() for tag, _ in entries]
    return (bytes(map(len, tags)) + bytes(len(tags)) + b"".join(tags)
            + b"".join(varint(value) for _, value in entries))


class Speaker:
    def __init__(self, keys, name, address):
        import msgpack
        import zmq
        self.msgpack, self.zmq = msgpack, zmq
        self.xxh3 = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
        self.xxh3.restype, self.xxh3.argtypes = ctypes.c_uint64, (ctypes.c_char_p, ctypes.c_size_t)
        self.keys, self.name = pathlib.Path(keys), name
        self.context = zmq.Context()
        self.own = self.key(f"{name}.key")
        self.port = self.socket(zmq.ROUTER)
        self.port.curve_server = True
        self.port.bind(address)
        self.out, self.routes, self.lives, self.heard = {}, {}, {}, {}
        self.life, self.seq, self.floods, self.sent = time.time_ns() // 1000, {}, {}, 0
        self.snapshot, self.next_report = ([], []), {}

    def key(self, file):
        words = [line.split() for line in (self.keys / file).read_text().splitlines() if not line.startswith("#")]
        return {word[0]: word[1].encode() for word in words}

    def socket(self, kind):
        socket = self.context.socket(kind)
        socket.linger, socket.sndhwm, socket.rcvhwm = 0, 10_000, 10_000
        socket.curve_publickey, socket.curve_secretkey = self.own["public"], self.own["secret"]
        return socket

    def join(self, name, address):
        socket = self.socket(self.zmq.DEALER)
        socket.curve_serverkey = self.key(f"{name}.pub")["public"]
        socket.connect(address)
        self.out[name] = socket
        socket.send(self.frame(name, "hello", number=random.getrandbits(32)))

    def frame(self, to, kind, entries=(), demands=(), besides=None, **fields):
        seq = self.seq.get(to, 0)
        true = {"kind": kind, "host": self.name, "life": self.life, "at": time.monotonic_ns()}
        if kind in ("report", "hello", "welcome"):
            true.update(seq=seq, period=int(PERIOD * 1e9))
        if kind in ("report", "welcome", "gone"):
            true["ring"] = seq + (kind == "report")
        if kind == "report":
            true.update(seq=seq + 1, ring=seq + 1, span=int(PERIOD * 1e9), last=True)
            self.seq[to] = seq + ("seq" not in fields)
        if kind in ("snapshot", "snapshot-end"):
            true.update(seq=1, number=0)
        if kind == "snapshot-end":
            true["positions"] = []
        if kind == "repeat":
            true["ranges"] = [[1, 100]]
        if kind in ("want", "hello", "welcome"):
            true["number"] = 0
        if kind in ("hello", "welcome", "refusal"):
            true["text"] = "0.1.0"
        if entries:
            true.update(count=len(entries), columns=columns(entries))
        for name, numbers in {"demands": demands, **(besides or {})}.items():
            if numbers:
                true[name] = b"".join(varint(0) + varint(number) for number in numbers)
        true.update(fields)
        body = b"DTR\2" + self.msgpack.packb(true)
        return body + self.xxh3(body, len(body)).to_bytes(8, "little")

    def answer(self, to, frame):
        if to in self.routes:
            self.port.send_multipart([self.routes[to], frame], self.zmq.NOBLOCK)

    def hear(self, parts, link):
        """A frame on a host's link to us, or on our own connection to it."""
        frame = parts[-1]
        if not frame.startswith(b"DTR"):
            return
        fields = self.msgpack.unpackb(frame[4:-8])
        kind, host = fields["kind"], fields["host"]
        self.heard[kind] = self.heard.get(kind, 0) + 1
        self.lives[host] = fields["life"]
        if not link:
            return
        self.routes[host] = parts[0]
        if kind == "hello":
            self.answer(host, self.frame(host, "welcome", number=fields["number"]))
        if kind == "want":
            entries, positions = self.snapshot
            self.answer(host, self.frame(host, "snapshot", number=fields["number"], entries=entries))
            self.answer(host, self.frame(host, "snapshot-end", number=fields["number"], positions=[
                [name, life or self.lives.get(name, 1), position] for name, life, position in positions]))

    def flood(self, now):
        for to, (rate, fresh, since, count) in self.floods.items():
            due = int((now - since) * rate) - count
            while due >= 4000:
                entries = [(f"e{count + i if fresh else i}", 1) for i in range(4000)]
                self.answer(to, self.frame(to, "report", entries=entries))
                count, due = count + 4000, due - 4000
                self.sent += 4000
            self.floods[to] = (rate, fresh, since, count)

    def report(self, now):
        for to in self.routes:
            if now >= self.next_report.get(to, 0) and to not in self.floods:
                self.next_report[to] = now + PERIOD
                self.answer(to, self.frame(to, "report"))

    def do(self, what):
        verb = what["do"]
        if verb == "join":
            for name, address in what["hosts"]:
                self.join(name, address)
        elif verb == "say":
            frame = self.frame(what["to"], what["kind"], entries=what["entries"], demands=what["demands"],
                               besides=what["besides"], **what["fields"])
            if what["asked"]:
                self.out[what["to"]].send(frame)
            else:
                self.answer(what["to"], frame)
        elif verb == "flood":
            self.floods.pop(what["to"], None)
            if what["rate"]:
                self.floods[what["to"]] = (what["rate"], what["fresh"], time.monotonic(), 0)
        elif verb == "give":
            self.snapshot = (what["entries"], what["positions"])
        return {"heard": self.heard, "sent": self.sent, "lives": self.lives, "routes": sorted(self.routes)}

    def run(self):
        zmq = self.zmq
        poller = zmq.Poller()
        poller.register(sys.stdin, zmq.POLLIN)
        poller.register(self.port, zmq.POLLIN)
        known = set()
        while True:
            for socket in set(self.out.values()) - known:
                poller.register(socket, zmq.POLLIN)
                known.add(socket)
            for socket, _ in poller.poll(5):
                if socket == sys.stdin.fileno():
                    line = sys.stdin.readline()
                    if not line:
                        return
                    print(json.dumps(self.do(json.loads(line))), flush=True)
                    continue
                for _ in range(100):
                    try:
                        self.hear(socket.recv_multipart(zmq.NOBLOCK), socket is self.port)
                    except zmq.Again:
                        break
            now = time.monotonic()
            try:
                self.flood(now)
                self.report(now)
            except zmq.Again:    # the host takes no more
                pass


if __name__ == "__main__":
    Speaker(*sys.argv[1:]).run()
