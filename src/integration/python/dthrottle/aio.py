"""Asking from coroutines: all questions of an event loop share one connection to each socket of the daemon."""

import asyncio
import collections
import contextlib
import math
import time

from . import _endpoint
from ._answers import (NO_QUESTION, Question, Verdict, absence, indication, read_absence, read_settlement, read_taken, refund,
                       refund_all, settlement, tag_line, tags_of)
from ._pause import Pause
from .throttle import _VERDICTS, BadAnswer, Call, Spoken


# Calls on a line that nobody waits for any more. Callers may give up as soon as they like, and a daemon that hangs would
# have them all kept until the deadline.
_GIVEN_UP_MAX = 1024


class _Line(asyncio.Protocol):
    """A connection. Answers come in the order of the questions; a call that was given up leaves its place in the queue,
    so the answers to it are dropped when they come."""

    def __init__(self):
        self.calls = collections.deque()    # (Call, future) each; where nobody waits the future is cancelled
        self.given_up = 0    # of the calls
        self.transport = None
        self.proven = self.ended = False
        self._begun = b""

    def connection_made(self, transport):
        self.transport = transport

    def ask(self, call, data):
        """A future that is done when all is answered: None, or why not."""
        future = asyncio.get_running_loop().create_future()
        if self.ended:
            future.set_result(Verdict.UNREACHABLE)
        else:
            self.calls.append((call, future))
            self.transport.write(data)
        return future

    def data_received(self, data):
        try:
            *lines, self._begun = (self._begun + data).split(b"\n")
            for line in lines:
                self._hear(line + b"\n")
        except BadAnswer:
            self.end(Verdict.BAD_ANSWER)

    def _hear(self, line):
        if not self.calls:
            raise BadAnswer
        call, future = self.calls[0]
        if call.hear(line):
            self.proven = True
            self.calls.popleft()
            if future.done():
                self.given_up -= 1
            else:
                future.set_result(None)

    def give_up(self, future):
        if not future.done():
            future.cancel()
            self.given_up += 1

    def connection_lost(self, _error):
        self.end(Verdict.UNREACHABLE)

    def end(self, why):
        self.ended = True
        if self.transport is not None:
            self.transport.abort()
        for _, future in self.calls:
            if not future.done():
                future.set_result(why)
        self.calls.clear()


class _Crowded(Exception):
    """Too many calls that were given up wait for their answers."""


class _Channel:
    """One socket of the daemon."""

    def __init__(self, address, backoff):
        self._endpoint = _endpoint.parse(address)
        self._pause = Pause(*backoff)
        self._loop = self._opening = None    # the task that connects, and once it is done has the _Line
        self._opened_at = 0.0

    async def exchange(self, data, readers, deadline):
        call, deadline = Call(readers), min(deadline, _endpoint.DEADLINE_MAX)
        if deadline <= 0:
            return [], Verdict.TIMED_OUT
        call.began = time.monotonic()
        if not self._pause.begin(call, call.began):
            return [], Verdict.BACKING_OFF
        try:
            failure = await self._attempt(call, data, call.began + deadline)
        except _Crowded:
            self._cancelled(call, deadline)
            return [], Verdict.TIMED_OUT
        except asyncio.CancelledError:
            self._cancelled(call, deadline)
            raise
        except BaseException:    # nothing is known of the daemon
            self._pause.given_up(call)
            raise
        if failure is None:
            self._pause.answered(call)
        else:
            self._failed(call, failure)
        return list(call.read), failure

    def _failed(self, call, why):
        self._pause.failed(call, call.began, time.monotonic())
        if why is Verdict.TIMED_OUT and self._pause.failures > 1:
            self.close(why)

    def _cancelled(self, call, deadline):
        """A caller may give up sooner than any daemon answers. It is the daemon's failure only where this call or one before
        it has waited for the deadline."""
        if time.monotonic() - self._owes_since() < deadline:
            self._pause.given_up(call)
        else:
            self._failed(call, Verdict.TIMED_OUT)

    def _owes_since(self):
        """Since when the daemon owes a connection, or an answer on it; math.inf: it owes nothing."""
        if self._opening is None or self._opening.done() and self._is_over(self._opening):
            return math.inf
        if not self._opening.done():
            return self._opened_at
        calls = self._opening.result().calls
        return calls[0][0].began if calls else math.inf

    async def _attempt(self, call, data, deadline):
        """A connection that has worked may have ended with a daemon that was restarted: then a fresh one is tried."""
        for _ in range(2):
            try:
                line = await self._within(self._open(), deadline)
            except OSError as error:
                return Verdict.TIMED_OUT if isinstance(error, TimeoutError) else Verdict.UNREACHABLE
            if line.given_up >= _GIVEN_UP_MAX:
                raise _Crowded
            was_proven = line.proven
            asked = line.ask(call, data)
            try:
                failure = await self._within(asked, deadline)
            except TimeoutError:
                line.give_up(asked)
                return Verdict.TIMED_OUT
            except BaseException:
                line.give_up(asked)
                raise
            if failure is not Verdict.UNREACHABLE or not was_proven or call.read:
                return failure
        return failure

    @staticmethod
    async def _within(future, deadline):
        """The future's result. It goes on beyond the deadline, for others."""
        done, _ = await asyncio.wait([future], timeout=max(0, deadline - time.monotonic()))
        if not done:
            raise TimeoutError
        if future.cancelled():    # others have given up the connection while it was made
            raise ConnectionAbortedError
        return future.result()

    def _open(self):
        loop = asyncio.get_running_loop()
        if self._loop is not loop:    # another one was closed, with all that it had
            self._loop, self._opening = loop, None
        if self._opening is None or (self._opening.done() and self._is_over(self._opening)):
            self._opening = loop.create_task(self._connect(loop))
            self._opened_at = time.monotonic()
        return self._opening

    @staticmethod
    def _is_over(opening):
        return opening.cancelled() or opening.exception() is not None or opening.result().ended

    async def _connect(self, loop):
        family, address, _ = self._endpoint
        if isinstance(address, str):
            return (await loop.create_unix_connection(_Line, address))[1]
        return (await loop.create_connection(_Line, *address, family=family))[1]

    def close(self, why=Verdict.UNREACHABLE):
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
        elif self._opening is not None and not self._is_over(self._opening):
            with contextlib.suppress(RuntimeError):    # its loop is closed
                self._opening.result().end(why)
        self._opening = None


class AsyncThrottle:
    """As Throttle, to be awaited. It belongs to the event loop that uses it."""

    def __init__(self, query=_endpoint.DEFAULT_QUERY, questions=_endpoint.DEFAULT_ASK, *, deadline=0.02, fail_open=True,
                 backoff_min=0.01, backoff_max=5.0):
        self.deadline = deadline
        self._spoken = Spoken(fail_open)
        self._query, self._questions = (_Channel(address, (backoff_min, backoff_max)) for address in (query, questions))

    async def ask(self, tag, deadline=None):
        return (await self.ask_batch([tag], deadline))[0]

    async def ask_batch(self, tags, deadline=None):
        tags = tags_of(tags)
        if not tags:
            return []
        read, failure = await self._query.exchange(b"".join(map(tag_line, tags)), [_VERDICTS.get] * len(tags),
                                                   self.deadline if deadline is None else deadline)
        return self._spoken.tags(len(tags), read, failure)

    async def ask_question(self, tags, deadline=None, wait=0.0):
        return await self._question(b"take", tags, deadline, wait=wait)

    async def peek(self, tags, deadline=None, wait=0.0):
        return await self._question(b"peek", tags, deadline, wait=wait)

    async def hold(self, tags, ttl, deadline=None):
        return await self._question(b"hold", tags, deadline, ttl)

    async def commit(self, hold, *actual, deadline=None):
        if hold is None:
            return Verdict.SERVE
        return (await self._exchange(settlement(hold, actual), read_settlement, deadline)).verdict

    async def release(self, hold, deadline=None):
        return await self.commit(hold, deadline=deadline)

    async def refund(self, tags, deadline=None):
        return await self._tell(refund(tags), deadline)

    async def refund_all(self, tags, deadline=None):
        return await self._tell(refund_all(tags), deadline)

    async def indicate(self, tag, value, deadline=None):
        return await self._tell(indication(tag, value), deadline)

    async def learn(self, *tags, deadline=None):
        line = absence(tags)
        if line is None:
            return Verdict.BAD_QUESTION
        deadline = self.deadline if deadline is None else deadline
        return self._spoken.learn(*await self._questions.exchange(line, [read_absence], deadline))

    async def _question(self, verb, tags, deadline, ttl=None, wait=0.0):
        question = Question(verb, tags, ttl, wait)
        if question.line is None:
            return self._spoken.question([NO_QUESTION], None)
        return await self._exchange(question.line, question.read, deadline)

    async def _tell(self, line, deadline):
        return Verdict.BAD_QUESTION if line is None else (await self._exchange(line, read_taken, deadline)).verdict

    async def _exchange(self, line, read, deadline):
        return self._spoken.question(*await self._questions.exchange(
            line, [read], self.deadline if deadline is None else deadline))

    def close(self):
        self._query.close()
        self._questions.close()
