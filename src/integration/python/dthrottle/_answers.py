"""Lines to the daemon and what its answers say (protocol/query.md, protocol/ask.md), without sockets.

Whatever is in a tag, its question is one line that the daemon takes, and the same tag is the same word wherever it is
asked: a client that has a part in choosing a tag can neither ask for others nor get away from its own.
"""

import enum
import math
import re
from collections.abc import Mapping
from typing import NamedTuple, Optional, Union

Tag = Union[str, bytes, bytearray, memoryview]
_BYTES = (bytes, bytearray, memoryview)

QUESTION_LINE_BYTES = 8192
ANSWER_LINE_BYTES = QUESTION_LINE_BYTES + 512
TAGS_MAX = 16
COST_MAX = 2**32 - 1
INDICATED_MAX = 1e12    # as at the daemon
_AROUND_BYTES = 12    # of a cost, and the blanks in front of it and of its tag
_VERB_BYTES = len("refund all")    # of the longest verb that a tag alone is asked about with
_ESCAPES = (b"\\x20", b"\\x5c")


class Verdict(enum.Enum):
    SERVE = "serve"
    THROTTLE = "throttle"
    # Nobody has decided.
    TIMED_OUT = "timed out"
    UNREACHABLE = "unreachable"
    BAD_ANSWER = "bad answer"
    BACKING_OFF = "backing off"
    BAD_QUESTION = "bad question"    # asking again will not help


class Answer(NamedTuple):
    """True where the client is to be served. The fields behind `serve` are told by questions alone."""

    verdict: Verdict
    serve: bool
    # Why a question is refused: "limit", "never" (a tag costs more than its bucket holds), "busy" (all its places are
    # taken) or "shed".
    reason: Optional[str] = None
    refused: Optional[Tag] = None    # the tag that refuses
    rule: Optional[str] = None       # its rule; "-": an override
    wait: float = 0.0                # seconds after which the same question may pass; 0 unless the reason is "limit"
    hold: Optional[str] = None       # what a hold is called that is served, or a wait that can be given up
    left: tuple = ()                 # whole tokens of each tag, math.inf where nothing limits it, None where it is not told
    delay: float = 0.0               # of a question with `wait` that is served: seconds after which to go on
    error: Optional[str] = None      # what is wrong with a bad question

    def __bool__(self):
        return self.serve


NO_QUESTION = (Verdict.BAD_QUESTION, {
    "error": "a question names 1 to 16 tags, at costs that are whole numbers from 0 on"})


def to_bytes(tag: Tag) -> bytes:
    """TypeError: it is no tag, such as a number, of which bytes() makes so many zeros."""
    if isinstance(tag, str):
        try:
            return tag.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:    # half a surrogate pair, which JSON may have
            return tag.encode("utf-8", "surrogatepass")
    if isinstance(tag, _BYTES):
        return bytes(tag)
    raise TypeError(f"a tag is str or bytes, not {type(tag).__name__}")


def tags_of(tags) -> list:
    """The tags that a caller names. One tag stands for a list of it."""
    return [tags] if isinstance(tags, (str, *_BYTES)) else list(tags)


def tag_line(tag: Tag) -> bytes:
    line = to_bytes(tag).replace(b"\n", b"_")
    return (line[:-1] + b"_" if line.endswith(b"\r") else line) + b"\n"


def _escaped(tag: Tag) -> bytes:
    word = to_bytes(tag)
    if b"\\" in word:
        word = re.sub(rb"\\(?=x20|x5c)", rb"\\x5c", word)
    return word.replace(b" ", b"\\x20").replace(b"\n", b"_")


def is_whole(tag: Tag) -> bool:
    """Whether a question about this tag alone has room for all of it."""
    return len(_escaped(tag)) <= QUESTION_LINE_BYTES - _VERB_BYTES - _AROUND_BYTES


def _word(tag: Tag, most: int) -> bytes:
    word = _escaped(tag)
    if len(word) > most:    # an escape is cut as a whole
        end = 0
        while end + (size := 4 if word[end:end + 4] in _ESCAPES else 1) <= most:
            end += size
        word = word[:end]
    return word[:-1] + b"_" if word.endswith(b"\r") else word or b"_"


def costs_of(tags, count):
    """What each of so many tags costs: as a mapping says, else 1. None: a cost is no cost. One that is beyond all that
    can be asked for is as much as no bucket holds."""
    costs = list(tags.values()) if isinstance(tags, Mapping) else [1] * count
    return [min(cost, COST_MAX) for cost in costs] if all(isinstance(cost, int) and cost >= 0 for cost in costs) else None


class Question:
    """One line of the ask protocol. `tags` are one tag or several that cost 1 each, or a mapping of tags to costs.
    `ttl` in seconds is that of a hold; `wait`, for how many seconds it rather waits than being refused, whatever
    becomes of the connection, on which other calls ask too."""

    def __init__(self, verb, tags, ttl=None, wait=0.0):
        self.tags = tags_of(tags)
        costs = costs_of(tags, len(self.tags))
        self.line = None    # it is none
        self.holds = ttl is not None
        if self.holds:
            verb = b"%s %d" % (verb, min(ttl * 1000, COST_MAX))
        elif wait > 0:
            verb = b"%s wait=%d keep" % (verb, min(wait * 1000, COST_MAX))
        if 1 <= len(self.tags) <= TAGS_MAX and costs is not None:
            most = (QUESTION_LINE_BYTES - len(verb)) // len(self.tags) - _AROUND_BYTES
            self.words = [_word(tag, most) for tag in self.tags]
            self.line = b" ".join([verb, *(b"%d %s" % pair for pair in zip(costs, self.words))]) + b"\n"

    def read(self, line: bytes):
        """The verdict and the other fields of an Answer. None: this is no answer to the question."""
        first, *rest = [word for word in line.split(b" ") if word] or [b""]
        if first == b"OK":
            return self._served(rest)
        if first == b"WAIT":
            return self._waiting(rest)
        if first == b"NO":
            return self._refused(rest)
        return (Verdict.BAD_QUESTION, {"error": line[4:].decode(errors="replace")}) if first == b"ERR" else None

    def _waiting(self, words):
        if len(words) < 2 or not re.fullmatch(rb"\d+(\.\d{1,3})?", words[0]):
            return None
        served = self._served(words[2:])
        hold = None if words[1] == b"-" else words[1].decode(errors="replace")
        return served and (served[0], {**served[1], "delay": float(words[0]) / 1000, "hold": hold})

    def _served(self, words):
        """A tag that is named more than once has one number, at its first place."""
        fields = {"hold": words.pop(0).decode(errors="replace")} if self.holds and words else {}
        distinct = dict.fromkeys(self.words)
        numbers = [_left(word) for word in words]
        if len(numbers) != len(distinct) or None in numbers:
            return None
        left = dict(zip(distinct, numbers))
        return Verdict.SERVE, {**fields, "left": tuple(left[word] for word in self.words)}

    def _refused(self, words):
        if len(words) != 5 or words[0] not in (b"limit", b"never", b"busy", b"shed") or words[4] not in self.words:
            return None
        why, wait, left, rule, tag = words
        number = _left(left)
        if number is None or not (wait.isdigit() if why == b"limit" else wait == b"-"):
            return None
        place = self.words.index(tag)
        return Verdict.THROTTLE, {
            "reason": why.decode(), "refused": self.tags[place], "rule": rule.decode(errors="replace"),
            "wait": int(wait) / 1000 if why == b"limit" else 0.0,
            "left": tuple(number if i == place else None for i in range(len(self.words)))}


def settlement(hold: str, actual) -> bytes:
    """The line that commits a hold at what its tags have cost, or releases it without."""
    words = [b"%d" % min(max(0, int(cost)), COST_MAX) for cost in actual]
    return b" ".join([b"commit" if words else b"release", hold.encode(), *words]) + b"\n"


def read_settlement(line: bytes):
    """Settled, by this line or before; or the daemon does not know the hold."""
    if line.startswith(b"OK "):
        return Verdict.SERVE, {}
    return (Verdict.BAD_QUESTION, {}) if line.startswith((b"NO ", b"ERR ")) else None


def refund(tags):
    """The line that gives back what tags have cost. None: they are no question."""
    return Question(b"refund", tags).line


def refund_all(tags):
    """The line that gives back all that tags have spent since their buckets were full. None: they are no question."""
    return _naming(b"refund all", tags)


def indication(tag: Tag, value):
    """The line that reports how the application does with its host's part of a tag. None: `value` is no such number."""
    if not 0 < value <= INDICATED_MAX:
        return None
    begin = b"indicate %a " % float(value)
    return begin + _word(tag, QUESTION_LINE_BYTES - len(begin)) + b"\n"


def read_taken(line: bytes):
    """A refund or a report is taken, or the daemon says why not."""
    if line == b"OK":
        return Verdict.SERVE, {}
    return (Verdict.BAD_QUESTION, {}) if line.startswith(b"ERR ") else None


def absence(tags):
    """The line that asks what to do about the tags while nobody answers. None: they are no question."""
    return _naming(b"absent", tags)


def read_absence(line: bytes):
    """The verdict, and whether to serve meanwhile."""
    if line.startswith(b"ERR "):
        return Verdict.BAD_QUESTION, None
    return {b"OK serve": (Verdict.SERVE, True), b"OK refuse": (Verdict.SERVE, False)}.get(line)


def _naming(verb, tags):
    """A line that names tags without costs."""
    question = Question(verb, tags)
    return question.line and b" ".join([verb, *question.words]) + b"\n"


def _left(word: bytes):
    return math.inf if word == b"-" else int(word) if word.isdigit() else None
