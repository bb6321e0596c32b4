"""A Throttle that asks by libdthrottle, and so decides hot tags and repeated refusals in the worker itself, by the page of its
process (protocol/page.md): some 1 us in place of 20 or more. It asks so for one tag, and for all of several by ask_all.

    from dthrottle.library import LibraryThrottle
    throttle = LibraryThrottle()

It needs the package libdthrottle0 and no compiler. A call holds up its thread until the daemon answers, and in a program with
greenlets all of them; other threads go on. Questions whose answer says more than a verdict, and all else, are a Throttle's
own.
"""

import ctypes
import math
import os

from . import _endpoint
from ._answers import Verdict, costs_of, tags_of, to_bytes
from .throttle import Throttle

_VERDICTS = list(Verdict)    # as dthrottle.h numbers them


class _Options(ctypes.Structure):
    _fields_ = [("connections_max", ctypes.c_uint), ("backoff_min_ms", ctypes.c_uint), ("backoff_max_ms", ctypes.c_uint),
                ("reserved", ctypes.c_uint * 5)]


class _Tag(ctypes.Structure):
    _fields_ = [("text", ctypes.c_char_p), ("bytes", ctypes.c_size_t), ("cost", ctypes.c_uint32), ("reserved", ctypes.c_uint32)]


class _Question(ctypes.Structure):
    _fields_ = [("verb", ctypes.c_int), ("tags", ctypes.POINTER(_Tag)), ("count", ctypes.c_size_t),
                ("tell_limit", ctypes.c_uint), ("ttl_ms", ctypes.c_uint), ("wait_ms", ctypes.c_uint), ("sleeps", ctypes.c_uint),
                ("by_page", ctypes.c_uint), ("reserved", ctypes.c_uint64 * 2)]


def _load(name):
    library = ctypes.CDLL(name, use_errno=True)
    for opens in (library.dthrottle_open, library.dthrottle_open_ask):
        opens.restype = ctypes.c_void_p
        opens.argtypes = [ctypes.c_char_p, ctypes.POINTER(_Options)]
    library.dthrottle_ask_question.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Question), ctypes.c_void_p, ctypes.c_int]
    library.dthrottle_ask.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int]
    library.dthrottle_ask_batch.restype = ctypes.c_size_t
    library.dthrottle_ask_batch.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_char_p),
                                            ctypes.POINTER(ctypes.c_size_t), ctypes.c_size_t,
                                            ctypes.POINTER(ctypes.c_int), ctypes.c_int]
    library.dthrottle_close.argtypes = [ctypes.c_void_p]
    return library


class LibraryThrottle(Throttle):
    """As Throttle. `library` is the name or the path of libdthrottle. OSError if it cannot be loaded. What it decides has a
    deadline of whole milliseconds, rounded up."""

    def __init__(self, query=_endpoint.DEFAULT_QUERY, questions=_endpoint.DEFAULT_ASK, *, library="libdthrottle.so.0",
                 connections_max=16, backoff_min=0.01, backoff_max=5.0, **options):
        self._handles = []
        super().__init__(query, questions, connections_max=connections_max, backoff_min=backoff_min,
                         backoff_max=backoff_max, **options)
        self._library = _load(library)
        given = _Options(connections_max, max(1, int(1000 * backoff_min)), max(1, int(1000 * backoff_max)))
        for opens, address in ((self._library.dthrottle_open, query), (self._library.dthrottle_open_ask, questions)):
            handle = opens(address.encode(), given)
            if handle is None:
                error = ctypes.get_errno()
                self.close()
                raise OSError(error, os.strerror(error), address)
            self._handles.append(handle)

    def ask(self, tag, deadline=None):
        text = to_bytes(tag)
        verdict = self._library.dthrottle_ask(self._open(0), text, len(text), self._ms(deadline))
        return self._spoken.tags(1, [_VERDICTS[verdict]], None)[0]

    def ask_batch(self, tags, deadline=None):
        texts = [to_bytes(tag) for tag in tags_of(tags)]
        count = len(texts)
        verdicts = (ctypes.c_int * count)()
        self._library.dthrottle_ask_batch(self._open(0), (ctypes.c_char_p * count)(*texts),
                                          (ctypes.c_size_t * count)(*map(len, texts)), count, verdicts, self._ms(deadline))
        return self._spoken.tags(count, [_VERDICTS[verdict] for verdict in verdicts], None)

    def ask_all(self, tags, deadline=None):
        """As ask_question for who wants only the verdict: the answer says nothing but `verdict` and `serve`."""
        texts = [to_bytes(tag) for tag in tags_of(tags)]
        costs = costs_of(tags, len(texts))
        if costs is None:
            return self._spoken.tags(1, [Verdict.BAD_QUESTION], None)[0]
        named = (_Tag * len(texts))(*(_Tag(text, len(text), cost) for text, cost in zip(texts, costs)))
        question = _Question(tags=named, count=len(texts))
        verdict = self._library.dthrottle_ask_question(self._open(1), question, None, self._ms(deadline))
        return self._spoken.tags(1, [_VERDICTS[verdict]], None)[0]

    def _ms(self, deadline):
        return math.ceil(1000 * min(self.deadline if deadline is None else deadline, _endpoint.DEADLINE_MAX))

    def _open(self, place):
        if not self._handles:
            raise ValueError("this throttle is closed")
        return self._handles[place]

    def close(self):
        """No other thread may be asking, nor ask later."""
        super().close()
        self._close_handles()

    def _close_handles(self):
        while self._handles:
            self._library.dthrottle_close(self._handles.pop())

    def __del__(self):
        self._close_handles()
