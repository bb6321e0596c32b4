"""Asking from threads and processes."""

import contextlib
import os
import threading
import time
import weakref

from . import _endpoint
from ._answers import ANSWER_LINE_BYTES, Answer, Question, Verdict, tag_line
from ._pause import Pause

_VERDICTS = {b"OK": Verdict.SERVE, b"NO": Verdict.THROTTLE}
_channels = weakref.WeakSet()    # all of this process, for fork


class BadAnswer(Exception):
    """What answers is not dthrottled."""


class Answers:
    """The lines that answer as many questions as `readers`, as they come in. A reader makes of a line what it says, or
    None: it is no answer."""

    def __init__(self, readers):
        self.readers = readers
        self.read = []
        self._begun = b""

    def hear(self, data):
        """True: all have been answered. BadAnswer: these are no answers to what was asked."""
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            said = self.readers[len(self.read)](line) if len(self.read) < len(self.readers) else None
            if said is None:
                raise BadAnswer
            self.read.append(said)
        if len(self._begun) > ANSWER_LINE_BYTES or (self._begun and len(self.read) == len(self.readers)):
            raise BadAnswer
        return len(self.read) == len(self.readers)


class _Channel:
    """Connections to one socket of the daemon. A call has one of them for itself; one on which anything went wrong is
    closed, so a late answer is never taken for another one."""

    def __init__(self, address, connections_max, backoff):
        self._endpoint = _endpoint.parse(address)
        self._connections_max = connections_max
        self._pause = Pause(*backoff)
        self._begin_without_connections()
        _channels.add(self)

    def _begin_without_connections(self):
        """Also what a child does after fork: only the thread that forked lives on, and connections are the parent's."""
        self._lock = threading.Lock()
        self._places = threading.Semaphore(self._connections_max)
        self._idle = []
        self._pause.probe = None

    def after_fork(self):
        kept = self._idle
        self._begin_without_connections()
        for sock in kept:
            sock.close()

    def close(self):
        with self._lock:
            kept, self._idle = self._idle, []
        for sock in kept:
            sock.close()

    def exchange(self, data, readers, deadline):
        """What has been answered, in the order of the questions, and the verdict on the others."""
        until, places = time.monotonic() + deadline, self._places
        call = Answers(readers)
        refused = self._take_place(places, until)
        if refused is not None:
            return [], refused
        try:
            return call.read, self._ask_now(call, data, until)
        finally:
            places.release()

    def _take_place(self, places, until):
        """Waits for its turn if all connections are in use. None: it has come."""
        left = until - time.monotonic()
        if left <= 0:
            return Verdict.TIMED_OUT
        if places.acquire(blocking=False):
            return None
        if self._pause.backs_off(time.monotonic()):
            return Verdict.BACKING_OFF
        return None if places.acquire(timeout=left) else Verdict.TIMED_OUT

    def _ask_now(self, call, data, until):
        began = time.monotonic()
        with self._lock:
            if not self._pause.begin(call, began):
                return Verdict.BACKING_OFF
        failure = self._attempt(call, data, until)
        with self._lock:
            if failure is None:
                self._pause.answered(call)
            else:
                self._pause.failed(call, began, time.monotonic())
        return failure

    def _attempt(self, call, data, deadline):
        """A connection that was kept may have ended with a daemon that was restarted: then a fresh one is tried."""
        kept = self._take_kept()
        failure = self._on(kept, call, data, deadline) if kept is not None else Verdict.UNREACHABLE
        again = failure is Verdict.UNREACHABLE and not call.read
        return self._on(None, call, data, deadline) if again else failure

    def _take_kept(self):
        """A connection that is still there, with nothing on it that was not asked for."""
        with self._lock:
            sock = self._idle.pop() if self._idle else None
        if sock is None:
            return None
        with contextlib.suppress(OSError):
            try:
                sock.recv(1)
            except BlockingIOError:
                return sock
        sock.close()
        return None

    def _on(self, sock, call, data, deadline):
        try:
            sock = sock or _endpoint.connect(self._endpoint, deadline)
            _endpoint.talk(sock, data, call.hear, deadline)
        except TimeoutError:
            failure = Verdict.TIMED_OUT
        except OSError:
            failure = Verdict.UNREACHABLE
        except BadAnswer:
            failure = Verdict.BAD_ANSWER
        else:
            with self._lock:
                self._idle.append(sock)
            return None
        if sock is not None:
            sock.close()
        return failure


class Spoken:
    """What the answers of a Throttle and an AsyncThrottle say."""

    def __init__(self, fail_open):
        self._without = {verdict: Answer(verdict, verdict is Verdict.SERVE or
                                         (fail_open and verdict is not Verdict.THROTTLE)) for verdict in Verdict}

    def tags(self, count, read, failure):
        return [self._without[verdict] for verdict in read + [failure] * (count - len(read))]

    def question(self, read, failure):
        verdict, fields = read[0] if read else (failure, {})
        return self._without[verdict]._replace(**fields) if fields else self._without[verdict]


class Throttle:
    """Asks at `query` for one tag, and at `questions` for several. Nothing is connected before it is asked. Times are in
    seconds; `deadline` is for each whole call, unless a call names another one."""

    def __init__(self, query=_endpoint.DEFAULT_QUERY, questions=_endpoint.DEFAULT_ASK, *, deadline=0.02, fail_open=True,
                 connections_max=16, backoff_min=0.01, backoff_max=5.0):
        self.deadline = deadline
        self._spoken = Spoken(fail_open)
        self._query, self._questions = (_Channel(address, connections_max, (backoff_min, backoff_max))
                                        for address in (query, questions))

    def ask(self, tag, deadline=None):
        """Spends a token of the tag. LF anywhere in it and CR at its end are sent as "_"."""
        return self.ask_batch([tag], deadline)[0]

    def ask_batch(self, tags, deadline=None):
        """An answer for each tag. They go out at once, which costs little more than one."""
        if not tags:
            return []
        read, failure = self._query.exchange(b"".join(map(tag_line, tags)), [_VERDICTS.get] * len(tags),
                                             self.deadline if deadline is None else deadline)
        return self._spoken.tags(len(tags), read, failure)

    def ask_question(self, tags, deadline=None):
        """Either every tag has what it costs and pays, or no tag pays. `tags` are 1 to 16 tags that cost 1 each, or a
        mapping of tags to costs."""
        return self._question(b"take", tags, deadline)

    def peek(self, tags, deadline=None):
        """What ask_question would be told now. Nothing is spent."""
        return self._question(b"peek", tags, deadline)

    def _question(self, verb, tags, deadline):
        question = Question(verb, tags)
        if question.line is None:
            return self._spoken.question([], Verdict.BAD_QUESTION)
        return self._spoken.question(*self._questions.exchange(
            question.line, [question.read], self.deadline if deadline is None else deadline))

    def close(self):
        self._query.close()
        self._questions.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _after_fork():
    for channel in list(_channels):
        channel.after_fork()


os.register_at_fork(after_in_child=_after_fork)
