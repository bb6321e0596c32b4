"""The transcripts of protocol/query against the live daemon, cut at every byte boundary.

test/wire replays the same files without sockets; the format is described in protocol/query.md.
"""

import json
import pathlib
import re
import socket
import unittest

from common import SystemTest
from daemon import PATIENCE, SANITIZED, AdminSession, Daemon, await_read, override, receive_all, rule

TRANSCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "protocol/query"
EVERY = 23 if SANITIZED else 1    # cuts tried: each so many bytes


def unescape(text):
    def one(match):
        kind = match.group(1)
        if kind.startswith("{"):
            count, inner = kind[1:-1].split("*", 1)
            return unescape(inner) * int(count)
        return {"n": b"\n", "r": b"\r", "\\": b"\\"}.get(kind) or bytes([int(kind[1:], 16)])

    out, at = b"", 0
    for match in re.finditer(r"\\(\{\d+\*[^}]*\}|x[0-9a-f]{2}|.)", text):
        out += text[at:match.start()].encode() + one(match)
        at = match.end()
    return out + text[at:].encode()


class Transcript:
    def __init__(self, path):
        self.limits, self.query, self.resp, self.sent, self.expected = [], {}, {}, b"", b""
        for line in path.read_text().splitlines():
            what, _, rest = line.partition(" ")
            if what == ">":
                self.sent += unescape(rest)
            elif what == "<":
                self.expected += unescape(rest)
            elif what in ("rule", "override"):
                keys = dict(word.split("=", 1) for word in rest.split())
                read = {"burst": float, "rate": float, "in_flight": int, "penalty.after": int, "also": json.loads,
                        "fail_closed": json.loads}
                keys = {k: read.get(k, lambda v: unescape(v).decode())(v) for k, v in keys.items()}
                self.limits.append(rule(**keys) if what == "rule" else override(**keys))
            elif what == "max_tag_bytes":
                self.query["max_tag_bytes"] = int(rest)
            elif what == "accept_limits":
                self.resp["accept_limits"] = True
            elif line and what not in ("#", "close", "end") and not line.startswith("#"):
                raise AssertionError(f"{path.name}: {line}")

    def tags(self):
        return {line.removesuffix(b"\r") for line in self.sent.split(b"\n")[:-1]}


def escaped(tag):
    return "".join(chr(b) if 0x20 <= b < 0x7f and b != 0x5c else f"\\x{b:02x}" for b in tag)


class Transcripts(SystemTest):
    def replay(self, daemon, pieces):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(PATIENCE)
            sock.connect(daemon.query_path)
            for piece in pieces:
                sock.sendall(piece)
                await_read(sock)
            sock.shutdown(socket.SHUT_WR)
            return receive_all(sock)

    def test_every_transcript_is_answered_as_written_however_it_is_cut(self):
        paths = sorted(TRANSCRIPTS.glob("*.txt"))
        self.assertGreater(len(paths), 10)
        for path in paths:
            transcript = Transcript(path)
            with self.subTest(path.name), Daemon(*transcript.limits, query=transcript.query) as daemon, \
                    AdminSession(daemon.admin_path) as admin:
                sent = transcript.sent
                ways = [[sent]] + [[sent[:i], sent[i:]] for i in range(1, len(sent), EVERY)]
                if len(sent) < 500:
                    ways.append([sent[i:i + 1] for i in range(len(sent))])
                for way in ways:
                    self.assertEqual(self.replay(daemon, way), transcript.expected, [len(piece) for piece in way][:5])
                    admin.send(b"".join(b"forgive " + escaped(tag).encode() + b"\n" for tag in transcript.tags()))
                    for _ in transcript.tags():
                        self.assertNotIn("error", admin.answer())


if __name__ == "__main__":
    unittest.main()
