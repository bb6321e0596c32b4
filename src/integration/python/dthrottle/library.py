"""A Throttle that asks for one tag by libdthrottle, and so decides hot tags and repeated refusals in the worker itself, by the
page of its process (protocol/page.md): some 1 us in place of 20 or more.

    from dthrottle.library import LibraryThrottle
    throttle = LibraryThrottle()

It needs the package libdthrottle0 and no compiler. A call holds up its thread until the daemon answers, and in a program with
greenlets all of them; other threads go on. Questions, and all else, are a Throttle's own.
"""

import ctypes
import os

from . import _endpoint
from ._answers import Verdict, to_bytes
from .throttle import Throttle

_VERDICTS = list(Verdict)    # as dthrottle.h numbers them


class _Options(ctypes.Structure):
    _fields_ = [("connections_max", ctypes.c_uint), ("backoff_min_ms", ctypes.c_uint), ("backoff_max_ms", ctypes.c_uint),
                ("reserved", ctypes.c_uint * 5)]


def _load(name):
    library = ctypes.CDLL(name, use_errno=True)
    library.dthrottle_open.restype = ctypes.c_void_p
    library.dthrottle_open.argtypes = [ctypes.c_char_p, ctypes.POINTER(_Options)]
    library.dthrottle_ask.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int]
    library.dthrottle_ask_batch.restype = ctypes.c_size_t
    library.dthrottle_ask_batch.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_char_p),
                                            ctypes.POINTER(ctypes.c_size_t), ctypes.c_size_t,
                                            ctypes.POINTER(ctypes.c_int), ctypes.c_int]
    library.dthrottle_close.argtypes = [ctypes.c_void_p]
    return library


class LibraryThrottle(Throttle):
    """As Throttle. `library` is the name or the path of libdthrottle. OSError if it cannot be loaded."""

    def __init__(self, query=_endpoint.DEFAULT_QUERY, questions=_endpoint.DEFAULT_ASK, *, library="libdthrottle.so.0",
                 connections_max=16, backoff_min=0.01, backoff_max=5.0, **options):
        self._handle = None
        super().__init__(query, questions, connections_max=connections_max, backoff_min=backoff_min,
                         backoff_max=backoff_max, **options)
        self._library = _load(library)
        given = _Options(connections_max, max(1, int(1000 * backoff_min)), max(1, int(1000 * backoff_max)))
        self._handle = self._library.dthrottle_open(query.encode(), given)
        if self._handle is None:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), query)

    def ask(self, tag, deadline=None):
        text = to_bytes(tag)
        verdict = self._library.dthrottle_ask(self._open(), text, len(text), self._ms(deadline))
        return self._spoken.tags(1, [_VERDICTS[verdict]], None)[0]

    def ask_batch(self, tags, deadline=None):
        texts = [to_bytes(tag) for tag in tags]
        count = len(texts)
        verdicts = (ctypes.c_int * count)()
        self._library.dthrottle_ask_batch(self._open(), (ctypes.c_char_p * count)(*texts),
                                          (ctypes.c_size_t * count)(*map(len, texts)), count, verdicts, self._ms(deadline))
        return self._spoken.tags(count, [_VERDICTS[verdict] for verdict in verdicts], None)

    def _ms(self, deadline):
        return int(1000 * (self.deadline if deadline is None else deadline))

    def _open(self):
        if self._handle is None:
            raise ValueError("this throttle is closed")
        return self._handle

    def close(self):
        """No other thread may be asking, nor ask later."""
        super().close()
        if self._handle is not None:
            self._library.dthrottle_close(self._handle)
        self._handle = None

    def __del__(self):
        if self._handle is not None:
            self._library.dthrottle_close(self._handle)
