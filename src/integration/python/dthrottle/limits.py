"""A storage for the package limits, and so for Flask-Limiter and slowapi:

    import dthrottle.limits
    limiter = Limiter(get_remote_address, app=app, storage_uri="dthrottle://", strategy="moving-window",
                      default_limits=["100/minute"])

A hit asks the daemon about one tag, the key of limits: LIMITER/127.0.0.1/index/100/1/minute, behind LIMITS: or another
prefix of the application. The daemon's rules decide; the limit that the application writes finds its rule, because the
key ends in it, and is used for headers:

    [[rule]]
    name = "100-per-minute"
    match = "*/100/1/minute"
    burst = 100
    rate = "100/m"

A key of some thousand bytes that a question has no room for is asked about with a digest in place of its middle: it has
the rule of its limit, and a bucket of its own.

What differs from a storage that counts: tokens come back one by one, not all at the end of a window; a request that is
refused costs nothing; fixed and moving windows are the same bucket; clear() gives back what a key has spent since its
bucket was full, and nothing resets all of them. A tag that no rule limits is served, and said once in a warning.

"dthrottle:///path" is another socket for questions, "dthrottle://127.0.0.1:7316" a TCP address. Options, behind "?" or as
storage_options: `deadline` in seconds (0.02) and `on_failure`, when nobody answers in time: "serve" (the default),
"refuse", or "raise", which leaves it to the framework. "async+dthrottle://" is for limits.aio.

`library=libdthrottle.so.0` decides hits by that library, and so hot keys and repeated refusals in the worker itself
(dthrottle.library says what that needs). incr() says then only whether a hit is within the limit.
"""

import hashlib
import logging
import math
import time
from urllib.parse import parse_qsl, urlsplit

import limits
from limits.storage import MovingWindowSupport, Storage

from ._answers import Verdict, is_whole, to_bytes
from ._endpoint import DEFAULT_ASK
from .aio import AsyncThrottle
from .library import LibraryThrottle
from .throttle import Throttle

_log = logging.getLogger("dthrottle")
_SECONDS = {cls.GRANULARITY.name: cls.GRANULARITY.seconds for cls in limits.limits.RateLimitItem.__subclasses__()}
_END_BYTES = 255    # that rules look at, of a tag that is longer than these


def _tag(key):
    """The tag of a key. One that a question has no room for would be cut, and lose the limit that it ends in with its
    rule: there a digest stands for the middle."""
    if is_whole(key):
        return key
    text = to_bytes(key)
    return text[:_END_BYTES] + hashlib.sha256(text).hexdigest().encode() + text[-_END_BYTES:]


class Unanswered(ConnectionError):
    """Nobody has decided in time, and on_failure is "raise"."""


class _Questions:
    """What both storages ask, and what they make of the answers."""

    def _open(self, throttle_type, uri, options):
        """`options` are those that there are, with their values by default."""
        parts = urlsplit(uri)
        given = {**options, **dict(parse_qsl(parts.query))}
        if given["on_failure"] not in ("serve", "refuse", "raise") or set(given) != set(options):
            raise ValueError(f'{uri}: there are {", ".join(options)}; on_failure is "serve", "refuse" or "raise"')
        address = f"tcp:{parts.netloc}" if parts.netloc else f"unix:{parts.path}" if parts.path else DEFAULT_ASK
        self._raises = given["on_failure"] == "raise"
        self._warned = False
        more = {"library": given["library"]} if given.get("library") else {}
        self._by_library = bool(more)
        self.throttle = (LibraryThrottle if more else throttle_type)(
            questions=address, deadline=float(given["deadline"]), fail_open=given["on_failure"] == "serve", **more)

    @property
    def base_exceptions(self):
        return Unanswered

    def _decided(self, answer):
        if self._raises and not answer.left:
            raise Unanswered(f"dthrottled: {answer.verdict.value}")
        if math.inf in answer.left and not self._warned:
            self._warned = True
            _log.warning("dthrottled has no rule for a key of limits, so nothing limits it")
        return answer

    @staticmethod
    def _count(answer, limit):
        """Hits in the window, for a framework that serves while they are no more than its limit."""
        if not answer.serve:
            return limit + 1
        return max(1, limit - answer.left[0]) if answer.left and answer.left[0] != math.inf else 1

    @staticmethod
    def _standing(answer, limit, expiry):
        """(when a request will be served, or all tokens are back; hits in the window), from a peek for one token."""
        if not answer.left or answer.left[0] == math.inf:
            return math.ceil(time.time()), 0 if answer.serve else limit
        hits = max(0 if answer.serve else limit, limit - answer.left[0])    # a penalty refuses beside a full bucket, too
        return math.ceil(time.time() + (hits * expiry / limit if answer.serve else answer.wait)), hits

    def reset(self):
        raise NotImplementedError("dthrottlectl forgive TAG fills a bucket")

    def _given(self, verdict, decided=(Verdict.SERVE,)):
        if self._raises and verdict not in decided:
            raise Unanswered(f"dthrottled: {verdict.value}")

    @staticmethod
    def _limit_of(key):
        """(hits, seconds) that the key of limits ends in: /100/1/minute."""
        try:
            amount, multiples, granularity = key.rsplit("/", 3)[1:]
            return int(amount), int(multiples) * _SECONDS[granularity]
        except (KeyError, ValueError):
            raise ValueError(f"{key} does not end in a limit, such as /100/1/minute") from None


class DthrottleStorage(_Questions, Storage, MovingWindowSupport):
    STORAGE_SCHEME = ["dthrottle"]

    def __init__(self, uri, wrap_exceptions=False, deadline="0.02", on_failure="serve", library="", **options):
        super().__init__(uri, **({"wrap_exceptions": wrap_exceptions} if wrap_exceptions else {}), **options)
        self._open(Throttle, uri, {"deadline": deadline, "on_failure": on_failure, "library": library})
        self._asked = False

    def acquire_entry(self, key, limit, expiry, amount=1):
        if self._by_library and self._asked:
            answer = self.throttle.ask_all({_tag(key): amount})
            self._given(answer.verdict, (Verdict.SERVE, Verdict.THROTTLE))
            return answer.serve
        self._asked = True    # whether a rule limits the key, the first answer says
        return self._decided(self.throttle.ask_question({_tag(key): amount})).serve

    def get_moving_window(self, key, limit, expiry):
        until, hits = self._standing(self._decided(self.throttle.peek([_tag(key)])), limit, expiry)
        return until - expiry, hits

    def incr(self, key, expiry, elastic_expiry=False, amount=1):
        limit, _ = self._limit_of(key)
        if self._by_library:
            return 1 if self.acquire_entry(key, limit, expiry, amount) else limit + 1
        return self._count(self._decided(self.throttle.ask_question({_tag(key): amount})), limit)

    def get(self, key):
        return self._standing(self._decided(self.throttle.peek([_tag(key)])), *self._limit_of(key))[1]

    def get_expiry(self, key):
        return self._standing(self._decided(self.throttle.peek([_tag(key)])), *self._limit_of(key))[0]

    def clear(self, key):
        self._given(self.throttle.refund_all([_tag(key)]))

    def check(self):
        return bool(self.throttle.peek({"check": 0}).left)


class AsyncDthrottleStorage(_Questions, limits.aio.storage.Storage, limits.aio.storage.MovingWindowSupport):
    STORAGE_SCHEME = ["async+dthrottle"]

    def __init__(self, uri, wrap_exceptions=False, deadline="0.02", on_failure="serve", **options):
        super().__init__(uri, **({"wrap_exceptions": wrap_exceptions} if wrap_exceptions else {}), **options)
        self._open(AsyncThrottle, uri, {"deadline": deadline, "on_failure": on_failure})

    async def acquire_entry(self, key, limit, expiry, amount=1):
        return self._decided(await self.throttle.ask_question({_tag(key): amount})).serve

    async def get_moving_window(self, key, limit, expiry):
        until, hits = self._standing(self._decided(await self.throttle.peek([_tag(key)])), limit, expiry)
        return until - expiry, hits

    async def incr(self, key, expiry, elastic_expiry=False, amount=1):
        return self._count(self._decided(await self.throttle.ask_question({_tag(key): amount})), self._limit_of(key)[0])

    async def get(self, key):
        return self._standing(self._decided(await self.throttle.peek([_tag(key)])), *self._limit_of(key))[1]

    async def get_expiry(self, key):
        return self._standing(self._decided(await self.throttle.peek([_tag(key)])), *self._limit_of(key))[0]

    async def clear(self, key):
        self._given(await self.throttle.refund_all([_tag(key)]))

    async def check(self):
        return bool((await self.throttle.peek({"check": 0})).left)
