"""What the Python package does beside answering as libdthrottle does (test_bindings.py): threads, fork, one connection for
all coroutines, and leases."""

import asyncio
import concurrent.futures
import contextlib
import itertools
import math
import os
import signal
import socket
import sys
import threading
import time
import unittest
from unittest import mock

from common import SystemTest
from daemon import BUILD, ROOT, SANITIZED, Daemon, rule, wait_until
from leases import LeaseDaemon, resource
from test_ask import AskDaemon

sys.path.insert(0, str(ROOT / "src/integration/python"))

import dthrottle    # noqa: E402  found on the path that was added above
from dthrottle import _endpoint    # noqa: E402
from dthrottle._holding import Holding, Lease    # noqa: E402
from dthrottle.library import LibraryThrottle    # noqa: E402
from dthrottle.throttle import Call    # noqa: E402

PATIENT = 30.0    # a deadline where the daemon does not hang


def ready(glob="calls", **keys):
    """A resource that is leased from the first moment on."""
    return resource(glob, learning_mode_duration="0s", **keys)


class Threads(SystemTest):
    def test_threads_share_connections_and_each_gets_its_own_answer(self):
        with Daemon(rule(burst=1)) as daemon, dthrottle.Throttle(
                f"unix:{daemon.query_path}", deadline=PATIENT, connections_max=4) as throttle:
            with concurrent.futures.ThreadPoolExecutor(16) as threads:
                tags = [f"tag:{i}" for i in range(400)]
                self.assertEqual({bool(answer) for answer in threads.map(throttle.ask, tags)}, {True})
                self.assertEqual({bool(answer) for answer in threads.map(throttle.ask, tags)}, {False})
            self.assertLessEqual(daemon.stats()["connections"], 4)

    def test_a_batch_is_answered_in_order(self):
        with Daemon(rule(burst=1)) as daemon, dthrottle.Throttle(f"unix:{daemon.query_path}", deadline=PATIENT) as throttle:
            said = [bool(answer) for answer in throttle.ask_batch(["a", "b", "a", b"c", "b"] * 1000)]
            self.assertEqual(said, [True, True, False, True, False] + 4995 * [False])
            self.assertEqual(throttle.ask_batch([]), [])

    def test_one_tag_is_a_tag_whether_it_is_text_or_bytes(self):
        with AskDaemon(rule(burst=100, rate=0.001)) as daemon, dthrottle.Throttle(
                f"unix:{daemon.query_path}", f"unix:{daemon.ask_path}", deadline=PATIENT) as throttle:
            tag = "login:a-name-of-more-than-16-letters"
            forms = (tag, tag.encode(), bytearray(tag.encode()), memoryview(tag.encode()))
            for spent, form in enumerate(forms):
                self.assertEqual(throttle.ask_question(form).left, (99 - spent,))
                self.assertEqual(throttle.peek(form).left, (99 - spent,))
            self.assertEqual(throttle.refund(tag), dthrottle.Verdict.SERVE)
            self.assertEqual(throttle.hold(tag, ttl=60).left, (96,))
            self.assertEqual(len(throttle.ask_batch(tag)), 1)
            self.assertEqual(throttle.peek(tag).left, (95,))

    def test_what_is_neither_text_nor_bytes_is_no_tag(self):
        with AskDaemon(rule(burst=100)) as daemon, dthrottle.Throttle(
                f"unix:{daemon.query_path}", f"unix:{daemon.ask_path}", deadline=PATIENT) as throttle:
            for wrong in (42, None, 1.5, ("a",)):
                for ask in (throttle.ask, throttle.learn, lambda tag: throttle.ask_batch(["a", tag]),
                            lambda tag: throttle.ask_question([tag]), lambda tag: throttle.ask_question({tag: 1})):
                    with self.assertRaisesRegex(TypeError, "a tag is str or bytes, not"):
                        ask(wrong)
            self.assertEqual(daemon.stats()["queries"], 0)

    def test_half_a_surrogate_pair_is_a_tag_too(self):
        """JSON may have one, from a client."""
        with AskDaemon(rule(burst=3, rate=0.001)) as daemon, dthrottle.Throttle(
                f"unix:{daemon.query_path}", f"unix:{daemon.ask_path}", deadline=PATIENT) as throttle:
            tag = "user:\ud800"
            self.assertTrue(throttle.ask(tag))
            self.assertEqual(throttle.ask_question([tag, "other"]).left, (1, 2))
            self.assertEqual(throttle.ask_question(b"user:\xed\xa0\x80").left, (0,), "the same bytes")
            self.assertEqual(throttle.ask_question(tag).refused, tag)
            self.assertEqual(throttle.ask_question("\udcff").left, (2,))
            self.assertEqual(throttle.ask_question(b"\xff").left, (1,), "what was no UTF-8 on its way into Python")

    @unittest.skipIf(SANITIZED, "the library is built with a sanitizer")
    def test_a_deadline_below_a_millisecond_is_one(self):
        with Daemon(rule(burst=1, rate=0.001)) as daemon, LibraryThrottle(
                f"unix:{daemon.query_path}", deadline=PATIENT, library=BUILD / "src/client/libdthrottle.so") as throttle:
            self.assertTrue(throttle.ask("C"))
            self.assertIs(throttle.ask("C", deadline=0).verdict, dthrottle.Verdict.TIMED_OUT)
            wait_until(lambda: throttle.ask("C", deadline=0.0005).verdict is dthrottle.Verdict.THROTTLE, "it is asked")

    TIMES = (2.0**31, 1e300, math.inf)

    def test_times_may_be_without_end(self):
        with AskDaemon(rule(burst=100)) as daemon, \
                dthrottle.Throttle(f"unix:{daemon.query_path}", f"unix:{daemon.ask_path}") as throttle:
            for time_s in self.TIMES:
                self.assertIs(throttle.ask("C", time_s).verdict, dthrottle.Verdict.SERVE)
                self.assertIs(throttle.ask_question("C", time_s).verdict, dthrottle.Verdict.SERVE)
            with self.assertWarnsRegex(RuntimeWarning, "hold.max_ttl"):
                throttle.hold("C", math.inf, PATIENT)

    @unittest.skipIf(SANITIZED, "the library is built with a sanitizer")
    def test_a_deadline_of_the_library_may_be_without_end(self):
        with Daemon(rule(burst=100)) as daemon, \
                LibraryThrottle(f"unix:{daemon.query_path}", library=BUILD / "src/client/libdthrottle.so") as throttle:
            self.assertEqual([throttle.ask("C", time_s).verdict for time_s in self.TIMES], 3 * [dthrottle.Verdict.SERVE])

    @unittest.skipIf(SANITIZED, "the library is built with a sanitizer")
    def test_one_tag_is_a_tag_to_the_library_too(self):
        with AskDaemon(rule(burst=100, rate=0.001)) as daemon, LibraryThrottle(
                f"unix:{daemon.query_path}", f"unix:{daemon.ask_path}", deadline=PATIENT,
                library=BUILD / "src/client/libdthrottle.so") as throttle:
            self.assertTrue(throttle.ask_all("login:bob"))
            self.assertTrue(throttle.ask_all(b"login:bob"))
            self.assertEqual(len(throttle.ask_batch("login:bob")), 1)
            self.assertEqual(throttle.peek("login:bob").left, (97,))

    def test_an_answer_that_is_there_is_heard_however_late_its_thread_looks(self):
        ours, daemon = socket.socketpair()
        with ours, daemon:
            ours.setblocking(False)
            call, long_ago = Call([lambda line: line]), time.monotonic() - 1
            with self.assertRaises(TimeoutError):
                _endpoint.talk(ours, b"C\n", call.hear, long_ago)
            daemon.sendall(b"NO\n")
            _endpoint.talk(ours, b"", call.hear, long_ago)
            self.assertEqual(call.read, [b"NO"])

    def test_a_child_after_fork_has_connections_of_its_own(self):
        with Daemon(rule(burst=100)) as daemon, dthrottle.Throttle(f"unix:{daemon.query_path}", deadline=PATIENT) as throttle:
            self.assertTrue(throttle.ask("C"))
            child = os.fork()
            if child == 0:
                os._exit(0 if all(throttle.ask("C") for _ in range(50)) else 1)
            said = [bool(throttle.ask("C")) for _ in range(49)]
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
            self.assertEqual(said, 49 * [True])
            self.assertFalse(throttle.ask("C"))

    def test_a_child_does_not_keep_the_connection_of_a_call_that_is_under_way(self):
        with socket.create_server(("127.0.0.1", 0)) as listener, \
                dthrottle.Throttle(f"tcp:127.0.0.1:{listener.getsockname()[1]}", deadline=PATIENT) as throttle:
            asking = threading.Thread(target=throttle.ask, args=("C",))
            asking.start()
            ours, _ = listener.accept()
            with ours:
                self.assertEqual(ours.recv(64), b"C\n")
                read, write = os.pipe()
                child = os.fork()
                if child == 0:
                    os.close(write)
                    os.read(read, 1)    # until the parent lets it end
                    os._exit(0)
                os.close(read)
                ours.sendall(b"nonsense\n")    # so the caller closes its own end
                asking.join()
                ours.settimeout(PATIENT)
                self.assertEqual(ours.recv(64), b"")
                os.close(write)
                os.waitpid(child, 0)

    def test_questions_say_which_tag_refuses(self):
        limits = (rule(name="user", match="user:*", burst=10, rate=0.001), rule(name="net", match="net:*", burst=2, rate=0.001))
        with AskDaemon(*limits) as daemon, dthrottle.Throttle(questions=f"unix:{daemon.ask_path}", deadline=PATIENT) as throttle:
            self.assertEqual(throttle.ask_question({"user:a": 3, "net:1": 2}).left, (7, 0))
            answer = throttle.ask_question(["user:a", "net:1"])
            self.assertEqual((bool(answer), answer.refused, answer.rule, answer.reason), (False, "net:1", "net", "limit"))
            self.assertEqual(throttle.peek({"user:a": 0}).left, (7,))

    def test_a_bad_question_says_what_is_wrong_and_the_first_is_a_warning(self):
        with AskDaemon(rule(burst=10)) as daemon, \
                dthrottle.Throttle(questions=f"unix:{daemon.ask_path}", deadline=PATIENT) as throttle:
            with self.assertWarnsRegex(RuntimeWarning, "hold.max_ttl") as warned:
                self.assertIn("hold.max_ttl", throttle.hold("a", ttl=3600).error)
                self.assertIn("whole numbers", throttle.ask_question({"a": 0.5}).error)
            self.assertEqual(len(warned.warnings), 1)
            self.assertEqual(warned.filename, __file__)
            self.assertIsNone(throttle.ask_question("a").error)

    def test_a_question_may_wait_and_be_given_up(self):
        with AskDaemon(rule(burst=1, rate=0.1, delay="1m")) as daemon, \
                dthrottle.Throttle(questions=f"unix:{daemon.ask_path}", deadline=PATIENT) as throttle:
            self.assertEqual(throttle.ask_question(["a"], wait=20).delay, 0)
            waits = throttle.ask_question(["a"], wait=20)
            self.assertTrue(waits.serve and 0 < waits.delay <= 10, waits)
            self.assertFalse(throttle.ask_question(["a"], wait=5.5))
            self.assertGreater(throttle.peek(["a"], wait=30).delay, waits.delay)
            self.assertIs(throttle.release(waits.hold), dthrottle.Verdict.SERVE)
            self.assertIs(throttle.release(waits.hold), dthrottle.Verdict.BAD_QUESTION)
            self.assertLessEqual(throttle.peek(["a"], wait=30).delay, 10)

    def test_a_client_that_asked_once_does_what_the_rule_wants_when_the_daemon_is_gone(self):
        limits = (rule(name="login", match="login:*", fail_closed=True), rule(name="page", match="page:*"))
        with AskDaemon(*limits) as daemon:
            def learned(*tags):
                throttle = dthrottle.Throttle(f"unix:{daemon.query_path}", f"unix:{daemon.ask_path}", deadline=PATIENT)
                self.assertEqual(throttle.learn(*tags), dthrottle.Verdict.SERVE)
                return throttle
            logins, pages, both = learned("login:x"), learned("page:x"), learned("page:x", "login:x")
            self.assertTrue(logins.ask("login:a"))
            daemon.kill()
            self.assertEqual([bool(t.ask("login:a")) for t in (logins, pages, both)], [False, True, False])
            self.assertFalse(logins.ask_question(["login:a"]))
            self.assertNotEqual(pages.learn("login:x"), dthrottle.Verdict.SERVE)
            self.assertTrue(pages.ask("page:a"), "nothing was learned")
            daemon.start()

    def test_nobody_who_answers_is_refused_where_that_was_chosen(self):
        nowhere = dthrottle.Throttle("unix:/nonexistent", "unix:/nonexistent", fail_open=False)
        self.assertFalse(nowhere.ask("C"))
        self.assertFalse(nowhere.ask_question({"C": 1}))
        with self.assertRaises(ValueError):
            dthrottle.Throttle("tcp:localhost:1")


class Coroutines(SystemTest):
    def test_coroutines_share_one_connection(self):
        async def ask(throttle):
            return [bool(answer) for answer in await asyncio.gather(*(throttle.ask(f"tag:{i % 100}") for i in range(200)))]
        with Daemon(rule(burst=1)) as daemon:
            throttle = dthrottle.AsyncThrottle(f"unix:{daemon.query_path}", deadline=PATIENT)
            self.assertEqual(asyncio.run(ask(throttle)), 100 * [True] + 100 * [False])
            self.assertEqual(daemon.stats()["connections_accepted"], 1)

    def test_a_coroutine_that_is_cancelled_leaves_the_others_their_answers(self):
        async def ask(daemon, throttle):
            await throttle.ask("first")
            daemon.signal(signal.SIGSTOP)
            given_up = asyncio.ensure_future(throttle.ask("given up"))
            others = [asyncio.ensure_future(throttle.ask(tag)) for tag in ("C", "C")]
            await asyncio.sleep(0)
            given_up.cancel()
            await asyncio.gather(given_up, return_exceptions=True)
            daemon.signal(signal.SIGCONT)
            return [bool(answer) for answer in await asyncio.gather(*others)]
        with Daemon(rule(burst=1)) as daemon:
            throttle = dthrottle.AsyncThrottle(f"unix:{daemon.query_path}", deadline=PATIENT)
            self.assertEqual(asyncio.run(ask(daemon, throttle)), [True, False])


    def test_callers_that_give_up_before_the_deadline_find_out_that_a_daemon_hangs(self):
        async def ask(listener, throttle, connections, said):
            ending = time.monotonic() + PATIENT
            while len(connections) < 2 and time.monotonic() < ending:
                calls = [asyncio.wait_for(throttle.ask("C"), 0.01) for _ in range(10)]
                said += await asyncio.gather(*calls, return_exceptions=True)
                with contextlib.suppress(BlockingIOError):
                    connections.append(listener.accept()[0])
        connections, said = [], []
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            throttle = dthrottle.AsyncThrottle(f"tcp:127.0.0.1:{listener.getsockname()[1]}", deadline=0.05)
            asyncio.run(ask(listener, throttle, connections, said))
        self.assertEqual(len(connections), 2, "the one on which nobody answers is left")
        for connection in connections:
            connection.close()
        verdicts = [answer.verdict for answer in said if isinstance(answer, dthrottle.Answer)]
        self.assertEqual(set(verdicts), {dthrottle.Verdict.BACKING_OFF})

    def test_a_connection_that_is_given_up_while_it_is_made_cancels_nobody(self):
        async def ask(throttle):
            patient, said = asyncio.ensure_future(throttle.ask("C", deadline=PATIENT)), []
            while not patient.done():
                said.append((await throttle.ask("C")).verdict)
                await asyncio.sleep(0.001)
            return said, (await patient).verdict
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
            for _ in range(4):    # which nobody accepts, so a further one hangs
                crowd = stack.enter_context(socket.socket())
                crowd.setblocking(False)
                crowd.connect_ex(listener.getsockname())
            throttle = dthrottle.AsyncThrottle(f"tcp:127.0.0.1:{listener.getsockname()[1]}", deadline=0.02)
            said, verdict = asyncio.run(ask(throttle))
        self.assertIn(dthrottle.Verdict.TIMED_OUT, said)
        self.assertIs(verdict, dthrottle.Verdict.UNREACHABLE)

    def test_callers_that_give_up_before_the_deadline_blame_nobody(self):
        async def ask(daemon, throttle):
            await throttle.ask("C")
            daemon.signal(signal.SIGSTOP)
            for _ in range(20):
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(throttle.ask("C"), 0.005)
            daemon.signal(signal.SIGCONT)
            return (await throttle.ask("C")).verdict
        with Daemon(rule(burst=1, rate=0.001)) as daemon:
            throttle = dthrottle.AsyncThrottle(f"unix:{daemon.query_path}", deadline=PATIENT)
            self.assertIs(asyncio.run(ask(daemon, throttle)), dthrottle.Verdict.THROTTLE)

    def test_calls_that_are_given_up_while_a_daemon_hangs_are_not_kept_without_bound(self):
        async def ask(daemon, throttle):
            await throttle.ask("C")
            daemon.signal(signal.SIGSTOP)
            for _ in range(30):
                calls = [asyncio.wait_for(throttle.ask("C"), 0.005) for _ in range(100)]
                for answer in await asyncio.gather(*calls, return_exceptions=True):
                    self.assertIs(getattr(answer, "verdict", dthrottle.Verdict.TIMED_OUT), dthrottle.Verdict.TIMED_OUT)
            daemon.signal(signal.SIGCONT)
            while (await throttle.ask("C")).verdict is dthrottle.Verdict.TIMED_OUT:
                await asyncio.sleep(0.01)
        with Daemon(rule(burst=10_000)) as daemon:
            throttle = dthrottle.AsyncThrottle(f"unix:{daemon.query_path}", deadline=PATIENT)
            asyncio.run(ask(daemon, throttle))
            self.assertLess(daemon.stats()["queries"], 1024 + 200)


class WhatIsHeld(SystemTest):
    """The numbers of test/client/holding_test.cc."""

    def holding(self, gauge=False, mode="pessimistic", wants=0.0, wants_max=0.0):
        return Holding(gauge, mode, wants, wants_max, 0.0, 100.0)

    def test_a_rate_comes_evenly_and_a_tenth_of_a_second_at_once(self):
        held = self.holding()
        self.assertTrue(held.grant(Lease(100, 60, 16, -1, 1), 100.0, 100.0))
        self.assertAlmostEqual(held.take(100.0), 100.01, 6)
        self.assertEqual([held.take(101.0) is None for _ in range(11)], 10 * [True] + [False])

    def test_a_gauge_has_as_many_places_as_its_capacity_holds(self):
        held = self.holding(gauge=True)
        held.grant(Lease(2.9, 60, 16, -1, 1), 100.0, 100.0)
        self.assertEqual([held.take(100.0) for _ in range(3)], [None, None, 160.0])

    def test_the_mode_says_what_is_used_when_a_lease_has_expired(self):
        for mode, expected in (("pessimistic", 0), ("optimistic", 7), ("safe", 3)):
            held = self.holding(mode=mode, wants=7.0)
            held.grant(Lease(10, 60, 16, 3, 1), 100.0, 100.0)
            self.assertEqual((held.capacity(159.9)[0], held.capacity(160.0)[0]), (10, expected))

    def test_a_master_of_the_past_grants_nothing_while_a_later_lease_holds(self):
        held = self.holding()
        held.grant(Lease(10, 60, 16, 3, 8), 100.0, 100.0)
        self.assertFalse(held.grant(Lease(99, 60, 16, 3, 7), 101.0, 101.0))
        self.assertTrue(held.grant(Lease(20, 60, 16, 3, 7), 161.0, 161.0))

    def test_what_is_no_lease_is_none(self):
        self.assertEqual(Lease.read("20 60.000 16.000 -1 7".split()), Lease(20, 60, 16, -1, 7))
        self.assertEqual(Lease.read("0 60 16 5 7 learning 41.500".split()), Lease(0, 60, 16, 5, 7, 41.5))
        for words in ("0 60 16 5 7 learning", "0 60 16 5 7 learning x", "0 60 16 5 7 learning 86401", "0 60 16 5 7 learning 1 2",
                      "20 60 16 10", "20 60 16 10 -1", "-1 60 16 10 1", "20 86401 16 10 1", "20 60 0 10 1", "1e3 60 16 10 1",
                      "nan 60 16 10 1", "20 60 16 10 9223372036854775808"):
            self.assertIsNone(Lease.read(words.split()), words)


class Leases(SystemTest):
    def test_a_rate_is_kept_and_released_at_the_end(self):
        with LeaseDaemon(ready(capacity=50)) as daemon:
            with dthrottle.Leases(daemon.lease_address) as leases:
                calls = leases.rate("calls", wants=50)
                self.assertTrue(calls.take(PATIENT))
                begin, taken = time.monotonic(), 0
                while taken < 50:
                    taken += calls.take(PATIENT)
                took = time.monotonic() - begin
                self.assertGreater(took, 0.8, "50 a second, 5 of them at once")
                self.assertEqual((calls.capacity, calls.lease.capacity, calls.trouble), (50, 50, ""))
            self.assertEqual(daemon.leases("calls")["clients"], [])

    def test_a_client_without_a_name_is_no_other_one_of_the_same_host_process_and_number(self):
        with LeaseDaemon(ready(capacity=50)) as daemon:
            with mock.patch("os.getpid", return_value=1), mock.patch("dthrottle.leases._numbers", itertools.repeat(1)), \
                    dthrottle.Leases(daemon.lease_address) as one, dthrottle.Leases(daemon.lease_address) as two:
                for leases in (one, two):
                    leases.rate("calls", wants=50)
                wait_until(lambda: len(daemon.leases("calls")["clients"]) == 2, "each has its own lease")
                for client in daemon.leases("calls")["clients"]:
                    self.assertRegex(client["client"], r":1:1:[0-9a-f]{8}$")

    def test_places_are_no_more_than_leased(self):
        with LeaseDaemon(ready("places", capacity=3)) as daemon, dthrottle.Leases(daemon.lease_address) as leases:
            places = leases.gauge("places", wants=3)
            now, most, lock = 0, 0, threading.Lock()

            def work():
                nonlocal now, most
                for _ in range(20):
                    with places.place(PATIENT):
                        with lock:
                            now += 1
                            most = max(most, now)
                        time.sleep(0.001)
                        with lock:
                            now -= 1
            threads = [threading.Thread(target=work) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual((most, places.outstanding), (3, 0))
            with self.assertRaises(ValueError):
                leases.rate("places")

    def test_nobody_waits_for_what_is_closed(self):
        with LeaseDaemon(ready("places", capacity=1)) as daemon, concurrent.futures.ThreadPoolExecutor(4) as threads:
            for close_all in (False, True):
                leases = dthrottle.Leases(daemon.lease_address)
                self.addCleanup(leases.close)
                places = leases.gauge("places", wants=1)
                self.assertTrue(places.take(PATIENT))
                waiting = [threads.submit(places.take, PATIENT) for _ in range(2)]
                wait_until(lambda: places._holding.waiting == 2, "both wait")
                (leases if close_all else places).close()
                self.assertEqual([taken.result(PATIENT / 2) for taken in waiting], [False, False])
                self.assertFalse(places.take())
                with self.assertRaisesRegex(ValueError, "places is closed"), places.place():
                    pass
                if close_all:
                    with self.assertRaisesRegex(ValueError, "these leases are closed"):
                        leases.gauge("places")
                else:
                    places.release()
                    self.assertTrue(leases.gauge("places", wants=1).take(PATIENT), "opened again")
                    leases.close()

    def test_a_lease_lasts_until_it_expires_and_is_taken_again_when_the_server_is_back(self):
        short = ready(capacity=1000, lease_length="2s", refresh_interval="1s")
        with LeaseDaemon(short) as daemon, dthrottle.Leases(daemon.lease_address, retry=0.1) as leases:
            calls = leases.rate("calls", wants=1000)
            self.assertTrue(calls.take(PATIENT))
            daemon.kill()
            self.assertTrue(calls.take(0.5), "the lease goes on")
            wait_until(lambda: calls.lease is None, "it expires")
            self.assertFalse(calls.take(0))
            self.assertEqual(calls.trouble, "the server cannot be reached")
            daemon.start()
            self.assertTrue(calls.take(PATIENT))

    def test_the_master_is_found_where_another_server_says_it_is(self):
        with LeaseDaemon(ready()) as master:
            with LeaseDaemon(ready(), lease={"elector": "static", "master": master.lease_address}) as other, dthrottle.Leases(other.lease_address) as leases:
                self.assertTrue(leases.rate("calls").take(PATIENT))
                self.assertEqual(len(master.leases("calls")["clients"]), 1)
