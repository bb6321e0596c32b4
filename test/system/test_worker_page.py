"""Pages of workers against the daemon itself: what they decide without asking, and what a worker can do to it."""

import array
import contextlib
import ctypes
import ctypes.util
import fcntl
import mmap
import os
import pathlib
import random
import re
import signal
import socket
import struct
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

from common import SystemTest
from daemon import PATIENCE, SANITIZED, AskDaemon, Daemon, rule, wait_until
from fleet import Fleet, wait_settled
from test_client import Asking

PAGES = {"entries": 64}
HELLO = struct.Struct("<QqII")
MAGIC = 0x3345474150485444
HEAD_BYTES = 64


class PageWorker:
    """A worker that has fetched its page by hand."""

    def __init__(self, daemon):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(daemon.query_path + ".page")
        hello, control, _, _ = self.sock.recvmsg(HELLO.size, socket.CMSG_SPACE(8))
        self.magic, self.now_ns, self.entries, _ = HELLO.unpack(hello)
        self.page_fd, self.counts_fd = array.array("i", control[0][2])
        self.page = mmap.mmap(self.page_fd, HEAD_BYTES + 16 * self.entries, prot=mmap.PROT_READ)
        self.counts = mmap.mmap(self.counts_fd, 16 * self.entries)

    def note(self, tag):
        self.sock.send(tag)

    def said(self):
        """Of each entry: the name of the tag, what is allowed, `due` and `next` in ns."""
        entries = [(word & ~0xffff, word & 0xffff, times) for word, times in
                   struct.iter_unpack("<QQ", self.page[HEAD_BYTES:]) if word != 0]
        return [(name, allowed, ((times ^ name) >> 20) * 1024, ((times ^ name) >> 20) * 1024 +
                 ((times ^ name) & 0xfffff) * 1024) for name, allowed, times in entries]

    def live(self):
        """The instants until which tags are refused, in ns."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        return [then for _, _, _, then in self.said() if then > now]

    def taken(self):
        """Tickets and refusals of each entry."""
        return [(taken, refused) for taken, refused, _, _ in struct.iter_unpack("<4I", self.counts[:])]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.page.close()
        self.counts.close()
        for fd in (self.page_fd, self.counts_fd):
            os.close(fd)
        self.sock.close()


def spend(daemon, tag):
    """Asks until the tag is refused."""
    wait_until(lambda: daemon.ask([tag]) == ["NO"], "the tag is refused")


class WorkerPages(Asking):
    """By libdthrottle; test_node_pages.py has another program."""

    def worker(self, daemon):
        return self.application(f"unix:{daemon.query_path}")

    def fetch(self, daemon, application, tag=b"C"):
        """Is refused until the application does that by itself."""
        def local():
            self.assertEqual(application.ask(tag)[0], "throttle")
            return daemon.stats()["page_refused"] > 0
        wait_until(local, "the application has a page")

    def test_who_is_refused_again_is_refused_without_asking_and_counted_like_others(self):
        with Daemon(rule(burst=2), page=PAGES) as daemon, self.worker(daemon) as application:
            self.assertEqual(application.verdicts(b"C", 3), ["serve", "serve", "throttle"])
            self.fetch(daemon, application)
            refused = daemon.stats()["throttled"]
            self.assertEqual(set(application.verdicts(b"C", 2000)), {"throttle"})
            self.assertEqual(application.verdicts(b"D", 3), ["serve", "serve", "throttle"])
            wait_until(lambda: daemon.stats()["throttled"] >= refused + 2001, "all are counted")
            stats = daemon.stats()
            self.assertGreater(stats["page_refused"], 1000)
            self.assertEqual(stats["served"], 4)
            self.assertEqual(stats["page_clamped"], 0)
            self.assertIn("C", daemon.admin("top"))

    def test_a_tag_is_told_of_when_it_is_refused_once(self):
        with Daemon(rule(burst=1, rate=0.001), page=PAGES) as daemon, self.worker(daemon) as application:
            application.ask(b"C")
            self.fetch(daemon, application)
            notes, tags = daemon.stats()["page_notes"], ["D", "E", "F", "G"]
            for tag in tags:
                spend(daemon, tag)
                self.assertEqual(application.ask(tag.encode())[0], "throttle")
            wait_until(lambda: daemon.stats()["page_notes"] == notes + len(tags), "each is told of")

    def test_forgive_and_a_reload_are_followed(self):
        with Daemon(rule(name="all", burst=1), page=PAGES) as daemon, self.worker(daemon) as application:
            application.ask(b"C")
            self.fetch(daemon, application)
            daemon.admin("forgive C")
            wait_until(lambda: application.ask(b"C")[0] == "serve", "the tag is served")
            self.fetch(daemon, application)
            daemon.write_settings(rule(name="all", burst=1, mode="off"))
            daemon.hang_up()
            wait_until(lambda: application.ask(b"C")[0] == "serve", "the tag is served")

    def test_a_token_that_comes_back_is_served_to_the_instant(self):
        with Daemon(rule(burst=1, rate=20), page=PAGES) as daemon, self.worker(daemon) as application:
            begin = time.monotonic()
            served, asked = 0, 0
            while time.monotonic() < begin + 1.5:
                served += application.ask(b"C")[0] == "serve"
                asked += 1
            lasted = time.monotonic() - begin
            self.assertLessEqual(served, 1 + 20 * lasted)
            wait_until(lambda: daemon.stats()["served"] + daemon.stats()["throttled"] >= asked, "all are counted")
            self.assertIn(daemon.stats()["served"] - served, range(4))    # as below

    def test_an_application_outlives_a_kill_an_upgrade_and_a_stop_of_the_daemon(self):
        with Daemon(rule(burst=2), page=PAGES) as daemon, self.worker(daemon) as application:
            for end in (daemon.kill, daemon.stop):
                application.verdicts(b"C", 3)
                self.fetch(daemon, application)
                end()
                wait_until(lambda: application.ask(b"C")[0] in ("unreachable", "backing off"), "it asks again")
                daemon.start()
                wait_until(lambda: application.ask(b"C")[0] == "throttle", "the daemon answers")
                self.fetch(daemon, application)
            before = daemon.stats()["page_connections_accepted"]
            daemon.signal(signal.SIGUSR2)
            daemon.wait_log("took over")
            self.fetch(daemon, application)
            self.assertEqual(application.ask(b"fresh")[0], "serve")
            self.assertGreater(before, 0)

    def test_without_the_setting_there_is_no_socket(self):
        with Daemon(rule(burst=1)) as daemon, self.worker(daemon) as application:
            self.assertFalse(os.path.exists(daemon.query_path + ".page"))
            self.assertEqual(application.verdicts(b"C", 5), ["serve"] + ["throttle"] * 4)

    def test_workers_that_are_killed_leave_nothing_and_those_too_many_ask_as_ever(self):
        with Daemon(rule(burst=1), page={**PAGES, "max_connections": 8}) as daemon:
            self.assertEqual(daemon.ask(["C"]), ["OK"])
            for _ in range(20):
                with self.worker(daemon) as application:
                    self.fetch(daemon, application)
                    application._process.send_signal(signal.SIGKILL)
                    self.assertEqual(application._process.wait(PATIENCE), -signal.SIGKILL)
                    application._process.wait = lambda *_: 0
            wait_until(lambda: daemon.stats()["page_connections"] == 0, "their pages are gone")
            self.assertEqual(daemon.stats()["page_entries"], 0)
            workers = [PageWorker(daemon) for _ in range(8)]
            with self.worker(daemon) as application:
                self.assertEqual(set(application.verdicts(b"C", 20)), {"throttle"})
                wait_until(lambda: daemon.stats()["page_connections_rejected"] > 0, "one is turned away")
            for worker in workers:
                worker.__exit__()

    def test_where_descriptors_or_memory_files_are_short_all_is_asked(self):
        with Daemon(rule(burst=1), page=PAGES, open_files=64) as daemon, self.worker(daemon) as application:
            self.assertEqual(application.verdicts(b"C", 50), ["serve"] + ["throttle"] * 49)

    def test_who_asks_again_is_served_without_asking_and_counted_like_others(self):
        with Daemon(rule(burst=10_000, rate=10_000), page=PAGES) as daemon, self.worker(daemon) as application:
            served = 0
            def local():
                nonlocal served
                served += application.verdicts(b"C", 50).count("serve")
                return daemon.stats()["page_served"] > 500
            wait_until(local, "the application serves by its page")
            self.assertRegex(daemon.admin("why C"), r"Workers have \d+ of its tokens on loan")
            counted = lambda: daemon.stats()["served"]
            wait_until(lambda: counted() >= served, lambda: f"{served} were served, and {counted()} are counted")
            # A ticket that is taken while the daemon lowers `allowed` is counted, and its worker asks (protocol/page.md).
            self.assertLessEqual(counted(), served + 3)
            self.assertEqual(daemon.stats()["page_clamped"], 0)
            self.assertIn("C", daemon.admin("top"))

    def test_workers_of_hosts_that_divide_a_limit_serve_no_more_than_it(self):
        rate = burst = 600
        with contextlib.ExitStack() as stack:
            names = ["a", "b", "c"]
            hosts = stack.enter_context(Fleet(rule(burst=burst, rate=rate, share="capacity"), hosts=3, names=names,
                                              period="500ms", capacity={"members": names}, page=PAGES))
            wait_settled(hosts)
            applications = [stack.enter_context(self.worker(host)) for host in hosts]
            served, begin = [0, 0, 0], time.monotonic()

            def ask(i):
                while time.monotonic() < begin + 6:
                    served[i] += applications[i].verdicts(b"api", 50 // (i + 1)).count("serve")
                    time.sleep(0.02)
            with ThreadPoolExecutor(3) as pool:
                list(pool.map(ask, range(3)))
            self.assertLessEqual(sum(served), burst + rate * (time.monotonic() - begin) + 3)
            self.assertGreater(sum(served), 0.8 * rate * 6)
            for host in hosts:
                self.assertGreater(host.stats()["page_served"], 0)
                self.assertEqual(host.stats()["page_clamped"], 0)
            counted = lambda: sum(host.stats()["served"] for host in hosts)
            wait_until(lambda: counted() >= sum(served), lambda: f"{served} were served, and {counted()} are counted")
            self.assertLessEqual(counted(), sum(served) + 9)

    def test_workers_and_a_daemon_that_are_killed_serve_no_token_twice(self):
        """A burst that does not refill: all that applications serve of it is at most the burst, whoever is killed."""
        burst, tags, served = 400, [b"a", b"b", b"c"], dict.fromkeys((b"a", b"b", b"c"), 0)
        with Daemon(rule(burst=burst, rate=0.0001), page=PAGES) as daemon:
            for turn in range(12):
                with self.worker(daemon) as application:
                    for tag in tags:
                        served[tag] += application.verdicts(tag, 23).count("serve")
                    if turn == 6:
                        daemon.kill()
                        served[b"a"] += sum(application.ask(b"a")[0] == "serve" for _ in range(3))
                        daemon.start()
                    application._process.send_signal(signal.SIGKILL)
                    self.assertEqual(application._process.wait(PATIENCE), -signal.SIGKILL)
                    application._process.wait = lambda *_: 0
            wait_until(lambda: daemon.stats()["page_connections"] == 0, "their pages are gone")
            self.assertGreater(daemon.stats()["page_served"], 0)
            for tag in tags:
                left = 0
                while daemon.ask([tag.decode()]) == ["OK"]:
                    left += 1
                self.assertLessEqual(served[tag] + left, burst)
                self.assertGreater(served[tag] + left, burst - 250)    # what was lent when the daemon was killed

    def test_a_worker_that_was_stopped_for_long_serves_no_token_that_was_taken_back(self):
        with Daemon(rule(burst=100, rate=0.0001), page=PAGES) as daemon, self.worker(daemon) as application:
            served = application.verdicts(b"C", 10).count("serve")
            application._process.send_signal(signal.SIGSTOP)
            left = 0
            def spent():
                nonlocal left
                left += daemon.ask(["C"]) == ["OK"]
                return daemon.stats()["served"] >= 100
            wait_until(spent, lambda: f"all is spent: {served} by the worker, then {left}")
            application._process.send_signal(signal.SIGCONT)
            self.assertIn(100 - served - left, range(4))    # lost tickets, as above
            self.assertEqual(set(application.verdicts(b"C", 100)), {"throttle"})


class QuestionPages(Asking):
    RULES = rule(name="user", match="user:*", burst=400) + rule(name="network", match="network:*", burst=1600)

    def test_a_question_is_decided_without_asking_and_what_is_refused_pays_nothing(self):
        """Three users of one network, and no bucket refills: what is left of each is its burst less what was served."""
        users = ["user:a", "user:b", "user:c"]
        with AskDaemon(self.RULES, page=PAGES) as daemon:
            with self.application(f"unix:{daemon.ask_path}", 30_000, "by-page") as application:
                served = [application.verdicts(f"1 {user} 1 network:n".encode(), 1000).count("serve") for user in users]
                asked = 3000 - sum(served)
                wait_until(lambda: daemon.stats()["throttled"] >= asked, "all refusals are counted")
            stats = wait_until(lambda: (its := daemon.stats())["page_connections"] == 0 and its, "its page is gone")
            self.assertGreater(stats["page_served"], sum(served))    # each is two tags
            self.assertGreater(stats["page_refused"], asked / 2)
            self.assertEqual((stats["throttled"], stats["page_clamped"]), (asked, 0))
            left = {tag: daemon.ask([tag] * 1600).count("OK") for tag in [*users, "network:n"]}
            # A ticket that is taken while the daemon lowers `allowed` is lost (protocol/page.md).
            self.assertIn(1600 - sum(served) - left["network:n"], range(4))
            for user, times in zip(users, served):
                self.assertIn(400 - times - left[user], range(4))

    def test_tags_of_a_question_pay_what_they_cost_and_it_counts_once(self):
        with AskDaemon(self.RULES, page=PAGES) as daemon:
            with self.application(f"unix:{daemon.ask_path}", 30_000, "by-page") as application:
                served = application.verdicts(b"3 user:a 2 network:n", 300).count("serve")
            stats = wait_until(lambda: (its := daemon.stats())["page_connections"] == 0 and its, "its page is gone")
            self.assertIn(served, range(130, 134))
            self.assertGreater(stats["page_served"], served)    # each is two tags
            # A question whose tickets are lost is asked then (protocol/page.md).
            self.assertIn(stats["served"] - 2 * served, range(4))
            left = {tag: daemon.ask([tag] * 1600).count("OK") for tag in ("user:a", "network:n")}
            self.assertIn(400 - 3 * served - left["user:a"], range(0, 10, 3))
            self.assertIn(1600 - 2 * served - left["network:n"], range(0, 7, 2))


class Pages(SystemTest):
    def test_a_daemon_that_stands_still_is_asked_again_within_a_second_or_so(self):
        with Daemon(rule(burst=1), page=PAGES) as daemon, PageWorker(daemon) as worker:
            spend(daemon, "C")
            worker.note(b"C")
            wait_until(worker.live, "the page says so")
            daemon.signal(signal.SIGSTOP)
            try:
                latest = max(worker.live())
                self.assertLess(latest, time.clock_gettime_ns(time.CLOCK_MONOTONIC) + 1_000_000_000)
                wait_until(lambda: not worker.live(), "the page says nothing any more")
            finally:
                daemon.signal(signal.SIGCONT)

    def test_a_page_says_nothing_of_tags_that_its_worker_has_not_told_of(self):
        with Daemon(rule(burst=1), page=PAGES) as daemon, PageWorker(daemon) as one, PageWorker(daemon) as other:
            self.assertEqual(one.magic, MAGIC)
            spend(daemon, "C")
            one.note(b"C")
            one.note(b"never refused")
            one.note(b"a\nb")
            wait_until(one.live, "the page says so")
            wait_until(lambda: daemon.stats()["page_strange"] == 1, "the last one is heard")
            self.assertEqual(len(one.live()), 1)
            self.assertEqual(other.live(), [])
            self.assertNotEqual(one.page[:16], other.page[:16])    # keys

    def test_a_worker_can_neither_write_nor_shrink_its_page(self):
        libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
        with Daemon(rule(burst=1), page=PAGES) as daemon, PageWorker(daemon) as worker:
            for fd in (worker.page_fd, worker.counts_fd):
                for change in (lambda: os.ftruncate(fd, 0), lambda: os.ftruncate(fd, 1 << 20),
                               lambda: fcntl.fcntl(fd, 1033, 1)):    # F_ADD_SEALS
                    self.assertRaises(OSError, change)
            self.assertRaises(OSError, os.write, worker.page_fd, b"x")
            again = os.open(f"/proc/self/fd/{worker.page_fd}", os.O_RDWR)
            try:
                self.assertRaises(OSError, os.write, again, b"x")
                self.assertRaises(OSError, mmap.mmap, again, 64)
            finally:
                os.close(again)
            punch = 0x02 | 0x01    # FALLOC_FL_PUNCH_HOLE, KEEP_SIZE
            self.assertEqual(libc.fallocate(worker.page_fd, punch, ctypes.c_long(0), ctypes.c_long(4096)), -1)
            libc.fallocate(worker.counts_fd, punch, ctypes.c_long(0), ctypes.c_long(4096))
            spend(daemon, "C")
            worker.note(b"C")
            wait_until(worker.live, "the daemon works on")

    def test_a_scribbler_gets_no_token_and_takes_none_from_others(self):
        chance = random.Random(8)
        with Daemon(rule(burst=1), page=PAGES) as daemon, PageWorker(daemon) as worker:
            tags = [f"t{i}" for i in range(40)]
            for tag in tags:
                spend(daemon, tag)
                worker.note(tag.encode())
            wait_until(worker.live, "the page says so")
            begin = time.monotonic()
            while time.monotonic() < begin + 1:
                worker.counts[:] = chance.randbytes(len(worker.counts))
                self.assertEqual(daemon.ask([chance.choice(tags)]), ["NO"])
            worker.counts[:] = chance.randbytes(len(worker.counts))
            wait_until(lambda: daemon.stats()["page_clamped"] > 0, "claims are seen through")
            self.assertLess(daemon.stats()["page_refused"], 1e7 * (2 + time.monotonic() - begin))
            self.assertEqual(daemon.ask(["fresh"]), ["OK"])

    def test_workers_that_ask_nothing_wake_nobody_and_take_little_memory(self):
        def of_daemon(daemon, *keys):
            status = (pathlib.Path("/proc") / str(daemon.pid) / "status").read_text()
            return sum(int(re.search(rf"^{key}:\s+(\d+)", status, re.M)[1]) for key in keys)

        def woken(daemon, seconds=2):
            before = of_daemon(daemon, "voluntary_ctxt_switches")
            time.sleep(seconds)
            return of_daemon(daemon, "voluntary_ctxt_switches") - before

        workers = 800    # sockets, of which many systems give a process 1,024
        with Daemon(rule(burst=1), page={"entries": 2048, "max_connections": 2 * workers}) as daemon, \
                contextlib.ExitStack() as stack:
            alone, kib = woken(daemon), of_daemon(daemon, "RssAnon", "RssShmem")
            for _ in range(workers):
                sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                sock.connect(daemon.query_path + ".page")
            wait_until(lambda: daemon.stats()["page_connections"] == workers, "all have a page")
            self.assertLess(woken(daemon), 1.5 * alone + 20)
            if not SANITIZED:
                self.assertLess(of_daemon(daemon, "RssAnon", "RssShmem") - kib, workers * 128)

    def test_the_memory_of_a_large_page_is_that_of_the_tags_in_it(self):
        def anonymous_kib(daemon):
            status = (pathlib.Path("/proc") / str(daemon.pid) / "status").read_text()
            return int(re.search(r"^RssAnon:\s+(\d+)", status, re.M)[1])

        workers = 20
        with Daemon(rule(burst=100), page={"entries": 65536}) as daemon, contextlib.ExitStack() as stack:
            pages = [stack.enter_context(PageWorker(daemon)) for _ in range(workers)]
            wait_until(lambda: daemon.stats()["page_connections"] == workers, "all have a page")
            kib = anonymous_kib(daemon)
            for page in pages:
                page.note(b"C")
            wait_until(lambda: daemon.stats()["page_entries"] > 0, "it is in a page")
            time.sleep(0.3)
            if not SANITIZED:
                self.assertLess(anonymous_kib(daemon) - kib, workers * 1024)

    def test_a_worker_that_claims_to_have_spent_all_takes_no_more_than_it_was_lent(self):
        with Daemon(rule(burst=1000, rate=0.0001), page=PAGES) as daemon, PageWorker(daemon) as worker:
            self.assertEqual(daemon.ask(["C"]), ["OK"])
            worker.note(b"C")
            wait_until(lambda: worker.said(), "it is lent something")
            (_, allowed, _, _), = worker.said()
            self.assertEqual(allowed, 16)
            worker.counts[:] = b"\xff" * len(worker.counts)
            wait_until(lambda: daemon.stats()["page_served"] == 16, "it is believed")
            worker.counts[:] = b"\0" * len(worker.counts)
            time.sleep(0.3)
            self.assertLessEqual(daemon.stats()["page_served"], 16 + 500)
            self.assertEqual(daemon.ask(["D"]), ["OK"])

    def test_idle_workers_wake_nobody(self):
        with Daemon(rule(burst=1), page=PAGES) as daemon:
            workers = [PageWorker(daemon) for _ in range(200)]
            wait_until(lambda: daemon.stats()["page_connections"] == 200, "all have a page")
            for worker in workers:
                self.assertEqual(worker.live(), [])
            self.assertEqual(daemon.stats()["page_entries"], 0)
            for worker in workers:
                worker.__exit__()


if __name__ == "__main__":
    unittest.main()
