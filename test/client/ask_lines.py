"""What ask_lines.c does, with the Python package; "async" as the last word: in an event loop; "library" and its path: one
tag by libdthrottle, and with "by-page" all of several."""

import asyncio
import functools
import math
import pathlib
import sys
import time
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "src/integration/python"))

from dthrottle import AsyncThrottle, Throttle    # noqa: E402  found on the path that was added above
from dthrottle.library import LibraryThrottle    # noqa: E402

REASONS = [None, "limit", "never", "shed", "busy"]


def question_of(line):
    words = line.split()
    return {urllib.parse.unquote_to_bytes(tag): int(cost) for cost, tag in zip(words[::2], words[1::2])}


def said(answer, tags):
    left = [-1 if n == math.inf else n or 0 for n in answer.left or [0] * len(tags)]
    return [REASONS.index(answer.reason), list(tags).index(answer.refused) if answer.refused is not None else 0,
            round(1000 * answer.wait), answer.rule or "-", *left]


def open_throttle(modes):
    if "library" in modes:
        return functools.partial(LibraryThrottle, library=modes[-1])
    return AsyncThrottle if "async" in modes else Throttle


def main(address, deadline_ms, *modes):
    throttle = open_throttle(modes)(address, address, deadline=int(deadline_ms) / 1000)
    call = asyncio.new_event_loop().run_until_complete if "async" in modes else lambda answer: answer
    for line in sys.stdin.buffer:
        begin = time.monotonic()
        verb, _, rest = line.decode("latin-1").partition(" ")
        if verb in ("commit", "release"):
            hold, *actual = rest.split()
            verdict = call(throttle.commit(hold, *map(int, actual)) if verb == "commit" else throttle.release(hold))
            print(f"{verdict.value}/0/-", flush=True)
            continue
        if verb == "learn":
            verdict = call(throttle.learn(*map(urllib.parse.unquote_to_bytes, rest.split())))
            print(f"{verdict.value}/0/{'serve' if call(throttle.ask('C', 0)) else 'refuse'}", flush=True)
            continue
        if verb == "indicate":
            value, tag = rest.split()
            print(f"{call(throttle.indicate(urllib.parse.unquote_to_bytes(tag), float(value))).value}/0/-", flush=True)
            continue
        if verb == "one":
            tag = urllib.parse.unquote_to_bytes(rest.strip())
            answers = [call(throttle.ask_question(text)) for text in (tag.decode(), tag)]
            batch = call(throttle.ask_batch(tag))
            left = " ".join(str(answer.left[0]) for answer in answers)
            print(f"{answers[-1].verdict.value}/0/{left} {len(batch)}", flush=True)
            continue
        if verb == "refund":
            verdict = call(throttle.refund(question_of(rest.encode("latin-1"))))
            print(f"{verdict.value}/0/-", flush=True)
            continue
        if verb == "wait":
            wait_ms, _, rest = rest.partition(" ")
            tags = question_of(rest.encode("latin-1"))
            answer = call(throttle.ask_question(tags, wait=int(wait_ms) / 1000))
        elif verb == "hold":
            ttl_ms, _, rest = rest.partition(" ")
            tags = question_of(rest.encode("latin-1"))
            answer = call(throttle.hold(tags, int(ttl_ms) / 1000))
        elif "by-page" in modes:
            answer = throttle.ask_all(question_of(line))
        elif "questions" in modes:
            tags = question_of(line)
            answer = call(throttle.ask_question(tags))
        else:
            answer = call(throttle.ask(line[:-1]))
        words = [f"{answer.verdict.value}/{1e6 * (time.monotonic() - begin):.0f}"]
        if "questions" in modes:
            more = {"hold": [answer.hold or "-"], "wait": [round(1000 * answer.delay), answer.hold or "-"]}
            words.append("/" + " ".join(map(str, said(answer, tags) + more.get(verb, []))))
        print("".join(words), flush=True)


main(*sys.argv[1:])
