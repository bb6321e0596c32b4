"""Asking from threads and processes."""

import os
import threading
import time
import warnings
import weakref

from . import _endpoint
from ._answers import (ANSWER_LINE_BYTES, NO_QUESTION, Answer, Question, Verdict, absence, indication, read_absence,
                       read_settlement, read_taken, refund, refund_all, settlement, tag_line, tags_of)
from ._pause import Pause

_VERDICTS = {b"OK": Verdict.SERVE, b"NO": Verdict.THROTTLE}
_channels = weakref.WeakSet()    # all of this process, for fork


class BadAnswer(Exception):
    """What answers is not dthrottled."""


class Call:
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
        self._sockets = weakref.WeakSet()    # idle or in a call
        self._begin_without_connections()
        _channels.add(self)

    def _begin_without_connections(self):
        """Also what a child does after fork: only the thread that forked lives on, and connections are the parent's."""
        self._freed = threading.Condition(threading.Lock())    # guards what follows and the pause
        self._idle = []
        self._calls = 0
        self._pause.probe = None

    def after_fork(self):
        self._begin_without_connections()
        for sock in list(self._sockets):
            sock.close()

    def close(self):
        with self._freed:
            kept, self._idle = self._idle, []
        for sock in kept:
            sock.close()

    def exchange(self, data, readers, deadline):
        """What has been answered, in the order of the questions, and the verdict on the others."""
        call, freed = Call(readers), self._freed
        until = time.monotonic() + min(deadline, _endpoint.DEADLINE_MAX)
        with freed:
            failure = self._begin(call, until)
            if failure is not None:
                return [], failure
            self._calls += 1
            kept = self._idle.pop() if self._idle else None
        try:
            sock, failure = self._ask(kept, call, data, until)
        except BaseException:    # a greenlet's time-out, say: nothing is known of the daemon
            with freed:
                self._calls -= 1
                self._pause.given_up(call)
                freed.notify()
            raise
        with freed:
            self._calls -= 1
            if failure is None:
                self._idle.append(sock)
                self._pause.answered(call)
                freed.notify()
            else:
                self._pause.failed(call, call.began, time.monotonic())
                freed.notify_all()
        return call.read, failure

    def _begin(self, call, until):
        """Waits for its turn where all connections are in use. None: it has come."""
        call.began = time.monotonic()
        while self._calls == self._connections_max and not self._pause.backs_off(call.began) and call.began < until:
            self._freed.wait(until - call.began)
            call.began = time.monotonic()
        if call.began >= until:
            return Verdict.TIMED_OUT
        return None if self._pause.begin(call, call.began) else Verdict.BACKING_OFF

    def _ask(self, kept, call, data, until):
        """The connection, and the verdict if it failed. One that was kept may have ended with a daemon that was restarted:
        then a fresh one is tried."""
        if kept is not None and _is_quiet(kept):
            outcome = self._on(kept, call, data, until)
            if outcome[1] is not Verdict.UNREACHABLE or call.read:
                return outcome
        elif kept is not None:
            kept.close()
        return self._on(None, call, data, until)

    def _on(self, sock, call, data, until):
        try:
            if sock is None:
                sock = _endpoint.connect(self._endpoint, until)
                self._sockets.add(sock)
            _endpoint.talk(sock, data, call.hear, until)
            return sock, None
        except TimeoutError:
            failure = Verdict.TIMED_OUT
        except OSError:
            failure = Verdict.UNREACHABLE
        except BadAnswer:
            failure = Verdict.BAD_ANSWER
        if sock is not None:
            sock.close()
        return None, failure


def _is_quiet(sock):
    """Whether a connection that was kept is still there, with nothing on it that was not asked for."""
    try:
        sock.recv(1)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


class Spoken:
    """What the answers of a Throttle and an AsyncThrottle say."""

    def __init__(self, fail_open):
        self._fail(fail_open)
        self._warned = False

    def _fail(self, is_open):
        self._without = {verdict: Answer(verdict, verdict is Verdict.SERVE or
                                         (is_open and verdict is not Verdict.THROTTLE)) for verdict in Verdict}

    def learn(self, read, failure):
        verdict, fail_open = read[0] if read else (failure, None)
        if fail_open is not None:
            self._fail(fail_open)
        return verdict

    def tags(self, count, read, failure):
        return [self._without[verdict] for verdict in read + [failure] * (count - len(read))]

    def question(self, read, failure):
        verdict, fields = read[0] if read else (failure, None)
        answer = self._without[verdict]
        if fields and "error" in fields and not self._warned:
            self._warned = True
            warnings.warn(f"dthrottle was asked what is no question: {fields['error']}", RuntimeWarning, stacklevel=5)
        return Answer(verdict, answer.serve, **fields) if fields else answer


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
        tags = tags_of(tags)
        if not tags:
            return []
        read, failure = self._query.exchange(b"".join(map(tag_line, tags)), [_VERDICTS.get] * len(tags),
                                             self.deadline if deadline is None else deadline)
        return self._spoken.tags(len(tags), read, failure)

    def ask_question(self, tags, deadline=None, wait=0.0):
        """Either every tag has what it costs and pays, or no tag pays. `tags` are 1 to 16 tags that cost 1 each, or one
        such tag, or a mapping of tags to costs. Under rules with `delay` it rather waits for up to `wait` seconds than
        being refused: it is served, and the caller goes on after `delay` seconds of the answer. Until then
        release(answer.hold) gives it up."""
        return self._question(b"take", tags, deadline, wait=wait)

    def peek(self, tags, deadline=None, wait=0.0):
        """What ask_question would be told now. Nothing is spent."""
        return self._question(b"peek", tags, deadline, wait=wait)

    def hold(self, tags, ttl, deadline=None):
        """As ask_question, for as long as it takes to know what the tags cost in the end; `ttl` seconds after it all comes
        back that nobody has settled. `hold` of the answer says what to settle; None where nobody has held anything."""
        return self._question(b"hold", tags, deadline, ttl)

    def commit(self, hold, *actual, deadline=None):
        """Settles a hold: each of its tags has cost `actual`, or the tags in order. Less than was held comes back, more is
        charged and may make debt. Only the first settlement counts, so a call that has failed may be repeated. Verdict.SERVE:
        it is settled; BAD_QUESTION: the daemon does not know it."""
        if hold is None:
            return Verdict.SERVE
        return self._exchange(settlement(hold, actual), read_settlement, deadline).verdict

    def release(self, hold, deadline=None):
        """Settles a hold of which nothing was used, or gives up a wait."""
        return self.commit(hold, deadline=deadline)

    def refund(self, tags, deadline=None):
        """Gives back what tags have cost that turned out not to count; a bucket is never more than full. Not to be repeated:
        it would be given back twice."""
        return self._tell(refund(tags), deadline)

    def refund_all(self, tags, deadline=None):
        """Gives back all that tags have spent since their buckets were full, also to what is charged with them."""
        return self._tell(refund_all(tags), deadline)

    def indicate(self, tag, value, deadline=None):
        """Reports how this application does with its host's part of a divided tag: a number above 0, at most 1e12, that
        falls when the part grows, such as its mean response time. Once a second or so; a report counts for 10 s.
        Verdict.SERVE: it is taken; BAD_QUESTION: `value` is no such number, the daemon does not go by reports
        (`capacity.indicator`), or it divides no such tag."""
        return self._tell(indication(tag, value), deadline)

    def learn(self, *tags, deadline=None):
        """Asks what the rules of these tags want while nobody answers (`fail_closed`), and does so from now on in place of
        `fail_open`. Verdict.SERVE: the daemon has said it; else nothing has changed."""
        line = absence(tags)
        if line is None:
            return Verdict.BAD_QUESTION
        deadline = self.deadline if deadline is None else deadline
        return self._spoken.learn(*self._questions.exchange(line, [read_absence], deadline))

    def _question(self, verb, tags, deadline, ttl=None, wait=0.0):
        question = Question(verb, tags, ttl, wait)
        if question.line is None:
            return self._spoken.question([NO_QUESTION], None)
        return self._exchange(question.line, question.read, deadline)

    def _tell(self, line, deadline):
        return Verdict.BAD_QUESTION if line is None else self._exchange(line, read_taken, deadline).verdict

    def _exchange(self, line, read, deadline):
        return self._spoken.question(*self._questions.exchange(line, [read], self.deadline if deadline is None else deadline))

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
