#!/usr/bin/env python3
"""Makes the corpora of fuzz_report and fuzz_capacity: frames without their checksum, which the fuzzers add.

    /usr/bin/python3 test/fuzz/make_frames.py        (python3-msgpack, python3-zstandard)
"""

import struct
from pathlib import Path

import msgpack
import zstandard

CORPUS = Path(__file__).resolve().parent / "corpus"


def frame(prefix, fields):
    return prefix + msgpack.packb(fields, use_bin_type=True)


def report(kind="report", **fields):
    base = {"kind": kind, "host": "web-1", "life": 3, "at": 3_000_000}
    needed = {
        "report": {"seq": 300, "ring": 17, "span": 2_000_000, "period": 2_000_000},
        "hello": {"seq": 300, "period": 2_000_000, "number": 7, "text": "0.1.0"},
        "welcome": {"seq": 300, "ring": 17, "period": 2_000_000, "number": 7, "text": "0.1.0"},
        "refusal": {"text": "you are not a peer of mine"},
        "repeat": {"ranges": [[290, 290], [295, 299]]},
        "gone": {"ring": 17},
        "want": {"number": 7},
        "snapshot": {"seq": 1, "number": 7},
        "snapshot-end": {"seq": 1, "number": 7, "positions": [["web-2", 1, 9], ["web-3", 2, 1]]},
    }
    return frame(b"DTR\2", base | needed[kind] | fields)


def capacity(kind, **fields):
    base = {"kind": kind, "host": "b", "generation": 0, "epoch": 0}
    needed = {
        "beat": {"sent": 1_500_000, "bond": 1, "bound": 1, "digest": 300, "members": b"\4"},
        "grant": {"to_epoch": 0, "sent": 1_500_000, "bond": 1},
        "dead": {"to_epoch": 0, "life": 1},
        "log": {"to_epoch": 0, "seq": 7, "bond": 1, "degree": 0, "lives": [], "items": b""},
        "gifts": {"to_epoch": 0, "seq": 7, "items": b""},
        "settle": {"seq": 2, "member": "c", "life": 5, "degree": 1, "items": b""},
        "have": {"to_epoch": 0, "seq": 1, "answered": 5},
        "fence": {"bond": 0, "member": "c", "life": 5},
        "fenced": {"bond": 1, "member": "c", "life": 5},
        "prepare": {"digest": 300},
        "promise": {"digest": 300, "reserve": 0, "aside": 0, "former": 1},
        "commit": {"digest": 300, "base": 1 << 39, "reserve": 2, "aside": 10},
        "ask": {"seq": 7, "items": b""},
        "share": {"seq": 7, "items": b""},
    }
    return frame(b"DTC\2", base | needed[kind] | fields)


def number(v):
    out = b""
    while v >= 128:
        out += bytes([v & 127 | 128])
        v >>= 7
    return out + bytes([v])


KEY = struct.pack("<QQ", 0x0102030405060708, 0x1112131415161718)
COLUMNS = b"\0" * 200 + b"\1" * 100    # 100 empty tags, one hit each
PACKED = zstandard.ZstdCompressor(level=1).compress(COLUMNS)
BOMB = zstandard.ZstdCompressor(level=1).compress(bytes(61_441))
INF = struct.pack("<d", float("inf"))

REPORTS = {
    "addresses": report(count=2, ipv4=True, columns=b"\0\5\0\x7f\xc0\0\2\1alice\1\xc8\1", last=True),
    "compressed": report(count=100, size=300, columns=PACKED),
    "demands": report(count=2, columns=b"\1\1\0\0ab\5\0", demands=b"\1\7"),
    "empty_report": report(last=True),
    **{kind: report(kind) for kind in ("hello", "welcome", "refusal", "repeat", "gone", "want")},
    "snapshot": report("snapshot", count=1, columns=b"\1\0x\7"),
    "snapshot_end": report("snapshot-end"),
    "two_entries_one_digest": report(count=2, columns=b"\3\x14\5\x85abc" + b"d" * 16 + b"rule\1\2"),
    "interval_wraps": report(at=-(1 << 62), span=(1 << 64) - 1),
    "lengths_beyond_the_tags": report(count=2, columns=b"\xff\xff\0\0abc\1\1"),
    "columns_of_a_hello": report("hello", columns=b"body"),
    "two_zstd_frames": report(count=100, size=300, columns=PACKED + PACKED),
    "zstd_bomb": report(count=100, size=300, columns=BOMB),
    "zstd_legacy_magic": report(count=100, size=300, columns=b"\x27" + PACKED[1:]),
    "overlong_number": report(count=1, columns=b"\1\0x\x87\0"),
    "other_version": b"DTR\1" + report("hello")[4:],
    "field_twice": b"DTR\2\x82\xa4kind\xa5hello\xa4kind\xa5hello",
    "fields_claimed": b"DTR\2\xdf\xff\xff\xff\xff\xa4kind",
    "unknown_fields": report("hello", later=[1, {"kind": [None, 1.5]}, b"bytes"], other=msgpack.ExtType(7, b"abcd")),
    "deep": b"DTR\2" + b"\x91" * 200 + b"\1",
}

CAPACITY = {
    **{kind: capacity(kind) for kind in ("beat", "grant", "dead", "fence", "fenced", "prepare", "commit")},
    "ask": capacity("ask", items=KEY + b"\0"),
    "ask_too_many": capacity("ask", items=(b"\1" * 17) * 33),
    "share": capacity("share", items=KEY + number(1 << 30)),
    "gifts": capacity("gifts", items=KEY + number(1 << 20) + struct.pack("<d", -0.25)),
    "gifts_more_than_everything": capacity("gifts", items=KEY + number((1 << 64) - 1) + INF),
    "gifts_no_indicator": capacity("gifts", items=KEY + number(1) + struct.pack("<d", float("nan"))),
    "have_gifts": capacity("have"),
    "have_unknown": capacity("have", answered=255),
    "log_two_edges": capacity("log", degree=2, lives=[1, 2],
                              items=KEY + number(5) + number(1) + number(2) + number(3) + number(4)),
    "degree_without_lives": capacity("log", degree=2),
    "settle_last": capacity("settle", last=True, items=KEY + number(1) + number(2) + number(3)),
    "settle_nothing": capacity("settle", last=True),
    "promise_former_witnesses": capacity("promise", members=b"\2", witnesses=["a", "b"]),
    "empty_end_of_a_set": capacity("beat", members=b"\1\0"),
    "items_cut_off": capacity("gifts", items=KEY + b"\1"),
    "cut_off": b"DTC\2",
    "other_version": b"DTC\1" + capacity("beat")[4:],
    "unknown_field": capacity("beat", later=1),
}

for folder, frames in (("report", REPORTS), ("capacity", CAPACITY)):
    for old in (CORPUS / folder).iterdir():
        old.unlink()
    for name, content in frames.items():
        (CORPUS / folder / name).write_bytes(content)
