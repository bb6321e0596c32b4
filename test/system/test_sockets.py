"""The places where the daemon listens, and what it does about whoever was there before."""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time

from common import SystemTest
from daemon import (DTHROTTLED, PATIENCE, Daemon, fresh_directory, receive_all, rule, run, settings_text, verdicts,
                    wait_until)

EX_UNAVAILABLE, EX_OSERR, EX_NOPERM, EX_CONFIG = 69, 71, 77, 78


class Files(SystemTest):
    """Unix sockets and the table, as files."""

    def test_sockets_and_table_have_the_permissions_that_the_settings_give(self):
        def modes(daemon):
            paths = (daemon.query_path, daemon.admin_path, f"{daemon.directory}/table")
            return [oct(stat.S_IMODE(os.stat(path).st_mode)) for path in paths]

        with Daemon(rule()) as daemon:
            self.assertEqual(modes(daemon), ["0o660", "0o600", "0o600"])
        with Daemon(rule(), query={"unix_mode": "0777"}, admin={"unix_mode": "0640"}) as daemon:
            self.assertEqual(modes(daemon), ["0o777", "0o640", "0o600"])

    def test_the_sockets_are_gone_when_the_daemon_is_and_the_table_stays(self):
        with Daemon(rule()) as daemon:
            daemon.stop()
            left = {path.name for path in daemon.directory.iterdir()} - {"stderr.1"}
            self.assertEqual(left, {"dthrottled.toml", "table"})

    def test_a_socket_that_a_killed_daemon_left_is_replaced(self):
        with Daemon(rule(burst=5)) as daemon:
            daemon.kill()
            self.assertTrue(stat.S_ISSOCK(os.stat(daemon.query_path).st_mode))
            daemon.start()
            self.assertEqual(daemon.served("C", 9), 5)

    def test_a_second_daemon_on_the_same_sockets_gives_up_and_does_not_disturb_the_first(self):
        with Daemon(rule(burst=5)) as daemon, daemon.connect() as sock:
            sock.sendall(b"C\n")
            self.assertEqual(sock.recv(100), b"OK\n")
            for place, message in (("query", "another process listens there"),
                                   ("admin", "another process listens there")):
                with self.subTest(place):
                    second = daemon.directory / f"second-{place}"
                    sections = {place: {"unix": getattr(daemon, f"{place}_path")}}
                    left = self.fails_to_start(second, **sections)
                    self.assertEqual(left.returncode, EX_UNAVAILABLE, left.stderr)
                    self.assertIn(message, left.stderr)
                    self.assertEqual({path.name for path in second.iterdir()}, {"dthrottled.toml", "table"},
                                     "it left a socket behind that nobody listens on")
            sock.sendall(b"C\n")
            self.assertEqual(sock.recv(100), b"OK\n")
            self.assertEqual(daemon.served("C", 9), 3)

    def test_a_second_daemon_on_the_same_table_gives_up(self):
        with Daemon(rule(burst=5)) as daemon:
            daemon.ask(["C"] * 3)
            second = daemon.directory / "second"
            left = self.fails_to_start(second, table={"file": f"{daemon.directory}/table"})
            self.assertEqual(left.returncode, EX_UNAVAILABLE, left.stderr)
            self.assertIn("table: another daemon holds it", left.stderr)
            self.assertEqual(daemon.served("C", 9), 2)

    def test_a_second_daemon_on_the_same_port_gives_up(self):
        with Daemon(rule()) as daemon:
            second = daemon.directory / "second"
            for threads in (1, 2):
                with self.subTest(threads=threads):
                    query = {"tcp": f"127.0.0.1:{daemon.tcp_port}", "threads": threads}
                    left = self.fails_to_start(second, query=query)
                    self.assertEqual(left.returncode, EX_UNAVAILABLE, left.stderr)
                    self.assertIn("Address already in use", left.stderr)

    def test_a_file_in_the_place_of_a_socket_is_not_removed(self):
        with Daemon(rule()) as daemon:
            daemon.stop()
            for path in (daemon.query_path, daemon.admin_path):
                file = pathlib.Path(path)
                file.write_text("precious")
                left = run(DTHROTTLED, "--config", daemon.settings_path)
                self.assertEqual(left.returncode, EX_UNAVAILABLE, left.stderr)
                self.assertIn(f"{path}: is there and is not a socket", left.stderr)
                self.assertEqual(file.read_text(), "precious")
                file.unlink()

    def test_a_socket_that_nobody_listens_on_and_that_cannot_be_removed_is_named(self):
        directory = fresh_directory()
        self.addCleanup(shutil.rmtree, directory)
        directory.chmod(0o777)
        locked = directory / "locked"
        locked.mkdir()
        with socket.socket(socket.AF_UNIX) as left_behind:
            left_behind.bind(f"{locked}/query.sock")
        locked.chmod(0o555)
        self.addCleanup(locked.chmod, 0o755)
        file = directory / "dthrottled.toml"
        file.write_text(settings_text(directory, rule(), query={"unix": f"{locked}/query.sock"}))
        left = run(DTHROTTLED, "--config", file, user="daemon" if os.geteuid() == 0 else None)
        self.assertEqual(left.returncode, EX_NOPERM, left.stderr)
        self.assertIn(f"{locked}/query.sock: nobody listens on the socket there, and it cannot be removed: Permission "
                      "denied", left.stderr)

    def test_a_link_in_the_place_of_the_table_is_not_followed(self):
        with Daemon(rule()) as daemon:
            daemon.stop()
            table, precious = daemon.directory / "table", daemon.directory / "precious"
            table.unlink()
            precious.write_text("precious")
            table.symlink_to(precious)
            left = run(DTHROTTLED, "--config", daemon.settings_path)
            self.assertEqual(left.returncode, EX_OSERR, left.stderr)
            self.assertEqual(precious.read_text(), "precious")

    def test_a_directory_that_is_not_there_is_named(self):
        with Daemon(rule()) as daemon:
            daemon.stop()
            nowhere = f"{daemon.directory}/nowhere/query.sock"
            daemon.settings_path.write_text(settings_text(daemon.directory, rule(), query={"unix": nowhere}))
            left = run(DTHROTTLED, "--config", daemon.settings_path)
            self.assertEqual(left.returncode, EX_OSERR, left.stderr)
            self.assertIn(f"{nowhere}: cannot bind: No such file or directory", left.stderr)

    def test_either_kind_of_socket_may_be_left_out(self):
        with Daemon(rule(burst=2), query={"unix": ""}) as daemon:
            self.assertFalse(os.path.exists(daemon.query_path))
            self.assertEqual(daemon.served("C", 9, tcp=True), 2)
        with Daemon(rule(burst=2), query={"tcp": ""}) as daemon:
            self.assertNotIn("tcp:", daemon.log)
            self.assertEqual(daemon.served("C", 9), 2)

    def fails_to_start(self, directory, **sections):
        directory.mkdir(exist_ok=True)
        file = directory / "dthrottled.toml"
        file.write_text(settings_text(directory, rule(), **sections))
        return run(DTHROTTLED, "--config", file)


# Becomes the program that it is given, with these descriptors from 3 on: what a service manager does.
PASS_SOCKETS = """
import fcntl, os, sys
names, *fds = sys.argv[1].split(",")
high = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 100) for fd in fds]
for i, fd in enumerate(high):
    os.dup2(fd, 3 + i)
os.environ.update(LISTEN_FDS=str(len(fds)), LISTEN_FDNAMES=names, LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])
"""


class Activation(SystemTest):
    """Sockets that the service manager opens take the place of those in the settings."""

    def passing(self, sockets, *limits, **sections):
        fds = [sock.fileno() for sock in sockets.values()]
        what = ",".join([":".join(sockets), *map(str, fds)])
        return Daemon(*limits, wrapper=[sys.executable, "-c", PASS_SOCKETS, what], pass_fds=fds, **sections)

    @contextlib.contextmanager
    def bound(self, family=socket.AF_UNIX, kind=socket.SOCK_STREAM):
        with socket.socket(family, kind) as sock:
            sock.bind("\0dthrottle-test-%d-%d" % (os.getpid(), id(sock)) if family == socket.AF_UNIX
                      else ("127.0.0.1", 0))
            yield sock

    @contextlib.contextmanager
    def listening(self, family=socket.AF_UNIX, kind=socket.SOCK_STREAM):
        with self.bound(family, kind) as sock:
            sock.listen(100)
            yield sock

    def ask(self, listener, tag):
        with socket.socket(listener.family) as sock:
            sock.settimeout(PATIENCE)
            sock.connect(listener.getsockname())
            sock.sendall(tag + b"\n")
            sock.shutdown(socket.SHUT_WR)
            return verdicts(receive_all(sock))

    def test_a_socket_that_was_passed_is_used_and_the_one_in_the_settings_is_not_made(self):
        with self.listening() as query, self.passing({"dthrottled.socket": query}, rule(burst=2)) as daemon:
            self.assertEqual([self.ask(query, b"C") for _ in range(3)], [["OK"], ["OK"], ["NO"]])
            self.assertFalse(os.path.exists(daemon.query_path))
            daemon.wait_log("answering queries on tcp:127.0.0.1:")
            self.assertEqual(daemon.admin_json("show C")["verdict"], "NO")

    def test_sockets_of_every_kind_may_be_passed(self):
        with self.listening() as unix, self.listening(socket.AF_INET) as tcp, self.listening() as admin:
            sockets = {"query": unix, "query-tcp": tcp, "dthrottled-admin.socket": admin}
            with self.passing(sockets, rule(burst=2)) as daemon:
                self.assertEqual([self.ask(unix, b"C"), self.ask(tcp, b"C"), self.ask(unix, b"C")],
                                 [["OK"], ["OK"], ["NO"]])
                self.assertEqual({path.name for path in daemon.directory.iterdir()} & {"query.sock", "admin.sock"},
                                 set())
                with socket.socket(socket.AF_UNIX) as sock:
                    sock.settimeout(PATIENCE)
                    sock.connect(admin.getsockname())
                    sock.sendall(b"show C\n")
                    sock.shutdown(socket.SHUT_WR)
                    self.assertIn(b"verdict            NO", receive_all(sock))

    def test_only_a_whole_word_of_a_name_says_what_a_socket_is_for(self):
        with self.listening() as task, self.listening() as other, \
                self.passing({"task.socket": task, "dthrottled-webpage.socket": other}, rule(burst=2)) as daemon:
            self.assertEqual([self.ask(task, b"C"), self.ask(other, b"C")], [["OK"], ["OK"]])
            self.assertNotIn("pages to workers", daemon.log)

    def test_a_socket_for_pages_is_one_of_packets(self):
        with self.listening(kind=socket.SOCK_SEQPACKET) as page, self.passing({"page": page}, rule()) as daemon:
            daemon.wait_log("pages to workers on unix:")

    def test_what_cannot_serve_is_refused_by_name_with_what_its_unit_takes(self):
        with contextlib.ExitStack() as stack:
            of_streams, of_packets = "ListenStream", "ListenSequentialPacket"
            packets = self.listening(kind=socket.SOCK_SEQPACKET)
            for what, name, key, kind in (
                    (self.bound(kind=socket.SOCK_DGRAM), "dthrottled.socket", "query.unix", of_streams),
                    (self.bound(), "query", "query.unix", of_streams),
                    (self.bound(socket.AF_INET), "query", "query.tcp", of_streams),
                    (packets, "ask", "ask.unix", of_streams), (tempfile.TemporaryFile(), "http", "http.unix", of_streams),
                    (self.listening(), "page", "page.unix", of_packets),
                    (self.listening(socket.AF_INET), "page", "page.tcp", of_packets)):
                passed = stack.enter_context(what)
                with self.subTest(key, passed=passed):
                    daemon = self.passing({name: passed}, rule())
                    with self.assertRaisesRegex(AssertionError, f"the daemon left with {EX_CONFIG} before") as failed:
                        with daemon:
                            pass
                    said = f" error: {name}: is passed for {key}, and is not a socket of {kind}= that listens"
                    self.assertIn(said, "".join(failed.exception.__notes__))

    def test_whoever_connects_between_two_lives_is_answered_by_the_second(self):
        with contextlib.ExitStack() as stack:
            directory = stack.enter_context(Daemon(rule())).directory    # a place for the socket file
            path = f"{directory}/passed.sock"
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(path)
            listener.listen(100)
            daemon = stack.enter_context(self.passing({"query": listener}, rule(burst=2)))
            self.assertEqual(self.ask(listener, b"C"), ["OK"])
            daemon.stop()
            self.assertTrue(os.path.exists(path), "the socket is not the daemon's to remove")
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(PATIENCE)
                sock.connect(path)
                sock.sendall(b"C\nC\n")
                sock.shutdown(socket.SHUT_WR)
                daemon.start()
                self.assertEqual(receive_all(sock), b"OK\nNO\n")


class Stop(SystemTest):
    """SIGTERM: what has been asked is answered."""

    def ask_and_stop(self, daemon, count, tcp, late_reader=False):
        """The answers to what was written before the signal, and how many there should be."""
        sock = daemon.connect(tcp)
        with contextlib.closing(sock):
            data = memoryview(b"C\n" * count)
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while data:
                    data = data[sock.send(data):]
            written = (2 * count - len(data)) // 2
            daemon.signal(signal.SIGTERM)
            sock.settimeout(PATIENCE)
            if late_reader:
                wait_until(lambda: "answering what has been asked" in daemon.log, "it has noticed")
                time.sleep(0.2)    # an application that has something else to do first
            received = receive_all(sock)
            daemon.wait_exit(0)
            return verdicts(received), written

    def test_everything_asked_before_sigterm_is_answered_and_then_comes_the_end(self):
        for tcp in (False, True):
            for count in (1, 1000, 20_000):
                with self.subTest(tcp=tcp, count=count), Daemon(rule(burst=100)) as daemon:
                    answers, written = self.ask_and_stop(daemon, count, tcp)
                    self.assertEqual(written, count)
                    self.assertEqual((len(answers), answers.count("OK")), (count, min(count, 100)))
                    self.assertFalse(os.path.exists(daemon.query_path))
                    self.assertFalse(os.path.exists(daemon.admin_path))

    def test_one_who_asked_more_than_the_socket_holds_answers_for_gets_them_all(self):
        for late_reader in (False, True):
            with self.subTest(late_reader=late_reader), Daemon(rule(burst=100)) as daemon:
                answers, written = self.ask_and_stop(daemon, 1_000_000, False, late_reader)
                self.assertEqual(len(answers), written)

    def test_one_who_connected_and_asked_just_before_sigterm_is_answered(self):
        with Daemon(rule(burst=100)) as daemon, contextlib.ExitStack() as stack:
            daemon.signal(signal.SIGSTOP)    # all of it happens before the daemon looks
            socks = [stack.enter_context(daemon.connect(tcp=i % 2 == 0)) for i in range(50)]
            for sock in socks:
                sock.sendall(b"C\n")
            daemon.signal(signal.SIGTERM)
            daemon.signal(signal.SIGCONT)
            self.assertEqual([receive_all(sock) for sock in socks], [b"OK\n"] * 50)
            daemon.wait_exit(0)

    def test_one_who_never_reads_does_not_keep_the_daemon_from_leaving(self):
        with Daemon(rule(burst=100)) as daemon, daemon.connect() as sock:
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    sock.send(b"C\n" * 10_000)
            daemon.signal(signal.SIGTERM)
            try:
                self.assertEqual(daemon.process.wait(PATIENCE), 0)
            except subprocess.TimeoutExpired:
                self.fail("it does not leave")

    def test_open_connections_that_ask_nothing_do_not_delay_the_end(self):
        with Daemon(rule()) as daemon, daemon.connect(), daemon.connect(tcp=True), daemon.admin_session():
            daemon.signal(signal.SIGINT)    # is as good
            self.assertEqual(daemon.process.wait(PATIENCE), 0)
            daemon.wait_log("SIGINT")
