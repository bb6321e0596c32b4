"""The lines of Python in protocol/ read the frames that are shown there, and those of a daemon."""

import contextlib
import json
import re
import socket
import struct
import subprocess
import unittest

from common import SystemTest
from daemon import PATIENCE, ROOT, rule
from fleet import Host, free_port_pair

PYTHON = "/usr/bin/python3"    # the one that Debian's python3-msgpack and python3-zstandard are for
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"


def page(name):
    return (ROOT / "protocol" / name).read_text()


def example(name, heading):
    """The bytes under a heading: indented lines of hex, then two blanks and what it means."""
    section = page(name).split(f"### {heading}\n", 1)[1].split("\n#", 1)[0]
    return bytes.fromhex("".join(line[4:].split("  ")[0] for line in section.splitlines() if line.startswith("    ")))


def read(name, frames):
    """What the page's own lines make of the frames."""
    (lines,) = re.findall(r"```python\n(.*?)```", page(name), re.S)
    script = lines + """
import json, sys
for line in sys.stdin: print(json.dumps(read(bytes.fromhex(line)), default=lambda value: value.hex()))
"""
    done = subprocess.run([PYTHON, "-c", script], input="\n".join(frame.hex() for frame in frames), text=True,
                          capture_output=True, timeout=PATIENCE)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


@unittest.skipIf(subprocess.run([PYTHON, "-c", "import msgpack, zstandard"], capture_output=True).returncode != 0,
                 "needs python3-msgpack and python3-zstandard")
class Frames(SystemTest):
    def test_lines_are_a_dozen(self):
        for name in ("report.md", "capacity.md"):
            (lines,) = re.findall(r"```python\n(.*?)```", page(name), re.S)
            self.assertLessEqual(len(lines.splitlines()), 12, name)

    def test_examples_of_reports(self):
        (report, entries), (hello, none), (repeat, _) = read(
            "report.md", [example("report.md", heading) for heading in ("A report", "A hello", "A request to repeat")])
        self.assertEqual((report["kind"], report["host"], report["at"] - report["span"]), ("report", "web-1", 1_000_000))
        self.assertEqual(entries, [["192.0.2.1", 0, 1], ["alice", 127, 200]])
        self.assertEqual((hello["kind"], hello["text"], none), ("hello", "0.1.0", []))
        self.assertEqual(repeat["ranges"], [[290, 290], [295, 299]])

    def test_examples_of_shares(self):
        (beat, _), (_, gifts) = read("capacity.md", [example("capacity.md", name) for name in ("A beat", "Gifts")])
        self.assertEqual((beat["kind"], beat["generation"], beat["members"]), ("beat", 3, "04"))
        self.assertEqual(list(gifts.values()), [[1 << 20, -0.25]])

    def test_reports_of_a_daemon(self):
        """The page's hello subscribes a connection; what comes back are a welcome and reports."""
        port = free_port_pair()
        with Host("a", f"tcp://127.0.0.1:{port}", rule(burst=1000),
                  peers={"connect": [f"tcp://127.0.0.1:{free_port_pair()}"], "period": "250ms"}) as daemon:
            tags = [f"198.51.100.{i}" for i in range(100)] + ["alice"]
            with contextlib.closing(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)) as sock:
                stream = sock.makefile("rb")
                sock.sendall(GREETING + b"\x04" + bytes([len(READY)]) + READY)
                stream.read(64)
                hello = example("report.md", "A hello")
                sock.sendall(b"\0" + bytes([len(hello)]) + hello)
                daemon.ask(tags + ["alice"] * 4)
                heard, kinds, compressed = {}, set(), False
                while len(heard) < len(tags) or heard["alice"] < 5:
                    flags = stream.read(1)[0]
                    size = struct.unpack(">Q", stream.read(8))[0] if flags & 2 else stream.read(1)[0]
                    frame = stream.read(size)
                    if flags & 4:    # READY
                        continue
                    ((fields, entries),) = read("report.md", [frame])
                    kinds.add(fields["kind"])
                    compressed |= "size" in fields
                    for tag, _, hits in entries:
                        heard[tag] = heard.get(tag, 0) + hits
            self.assertEqual(heard, {**dict.fromkeys(tags, 1), "alice": 5})
            self.assertEqual(kinds, {"welcome", "report"})
            self.assertTrue(compressed, "a report of a hundred entries is compressed")


if __name__ == "__main__":
    unittest.main()
