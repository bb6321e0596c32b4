"""Requests that the Apache module holds until it is their turn, in Debian's apache2: without a thread under the event MPM,
by a thread that sleeps wherever that cannot be."""

import base64
import contextlib
import subprocess
import time
import unittest

from daemon import rule, wait_until
from test_apache import MPMS, ApacheTest
from webserver import APACHE_MODULE, Apache, Response, metrics, open_ask_daemon, stopped

HELD_FOR_GOOD = rule(burst=1, rate=0.02, delay="1m")    # 50 s, if nobody leaves
THREADS = 4
PASSWORD = f"Authorization: Basic {base64.b64encode(b'guest:a@b').decode()}\r\n"


def settings(daemon, more=""):
    return (f"LoadModule dthrottle_module {APACHE_MODULE}\nDthrottle On\nDthrottleAsk unix:{daemon.ask_path}\n"
            f'DthrottleTimeout 30000\nDthrottleTag "%{{QUERY_STRING}}"\nDthrottleDelay 60000ms\n'
            f"<IfModule !mpm_prefork_module>\nThreadsPerChild {THREADS}\n</IfModule>\nMaxRequestWorkers {THREADS}\n{more}\n")


@contextlib.contextmanager
def serving_behind_a_password(more=""):
    """A server whose page /private only PASSWORD opens, and its daemon."""
    private = f"""
      <Location /private>
        {more}
        AuthType Basic
        AuthName private
        AuthBasicProvider anon
        Anonymous guest
        Require valid-user
      </Location>"""
    with open_ask_daemon(rule(burst=1, rate=1, delay="60s")) as daemon, \
            Apache(settings(daemon, private), modules=("auth_basic", "authn_core", "authn_anon", "authz_user")) as server:
        server.path("root").joinpath("private").write_text("private\n")
        yield daemon, server


def get(tag, path="/"):
    return f"GET {path}?{tag} HTTP/1.1\r\nHost: a\r\n\r\n".encode()


def receive(client, count):
    """So many responses of one connection, and when each was there."""
    found, times, data = [], [], b""
    while len(found) < count:
        piece = client.recv(1 << 16)
        if not piece:
            raise AssertionError(f"the connection ended behind {found} and {data!r}")
        data += piece
        while b"\r\n\r\n" in data:
            head, rest = data.split(b"\r\n\r\n", 1)
            length = int(dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:])[b"content-length"])
            if len(rest) < length:
                break
            found.append(Response(head + b"\r\n\r\n" + rest[:length], 0))
            times.append(time.monotonic())
            data = rest[length:]
    return found, times


class HoldTest(ApacheTest):
    def hold(self, server, daemon, stack, tags):
        """Connections whose requests are held: each tag's first request has taken its bucket's only token."""
        clients = []
        for tag in tags:
            before = daemon.stats()["ask_waits"]
            self.assertEqual(server.statuses(1, f"/?{tag}"), [200])
            client = stack.enter_context(server.connect())
            client.sendall(get(tag))
            wait_until(lambda: daemon.stats()["ask_waits"] == before + 1, "the request is held")
            clients.append(client)
        return clients


class Counts(HoldTest):
    def test_what_a_client_leaves_while_it_is_held_is_counted_so(self):
        """Without a thread and with one."""
        more = "<Location /metrics>\nDthrottle Off\nSetHandler dthrottle-metrics\n</Location>"
        for mpm in ("event", "worker"):
            with self.subTest(mpm), open_ask_daemon(rule(match="soon", burst=1, rate=2, delay="1m"), HELD_FOR_GOOD) as daemon, \
                    Apache(settings(daemon, more), mpm) as server:
                self.assertEqual(server.statuses(2, "/?soon"), [200, 200])
                with contextlib.ExitStack() as leave:
                    self.hold(server, daemon, leave, ["a"])
                self.assertEqual([line[:2] for line in server.access(4)],
                                 [["200", "SERVED"], ["200", "DELAYED"], ["200", "SERVED"], ["408", "LEFT"]])

                def counted(server=server):
                    return {name.split('"')[3]: count for name, count in metrics(server.get("/metrics").body).items()
                            if "requests_total" in name and count}
                # The log is written a moment before the request is over.
                wait_until(lambda: counted() == {"SERVED": 2, "DELAYED": 1, "LEFT": 1}, "all are counted")


class WithoutThread(HoldTest):
    def test_ten_times_as_many_held_requests_as_threads_keep_nobody_from_being_served(self):
        with open_ask_daemon(HELD_FOR_GOOD) as daemon, \
                Apache(settings(daemon, "<IfModule mpm_event_module>\nAsyncRequestWorkerFactor 30\n</IfModule>")) as server:
            with contextlib.ExitStack() as leave:
                self.hold(server, daemon, leave, [f"a{i}" for i in range(10 * THREADS)])
                self.assertEqual([server.get(f"/?b{i}").status for i in range(100)], [200] * 100)
                self.assertEqual(daemon.stats()["ask_waits_given_up"], 0)    # all are held still
            wait_until(lambda: daemon.stats()["ask_waits_given_up"] == 10 * THREADS, "the slots are others'")
            self.assertEqual([line[0] for line in server.access(180)].count("408"), 10 * THREADS)

    def test_half_of_the_connections_that_a_process_accepts_are_held_at_most(self):
        """AsyncRequestWorkerFactor is 2, unless it is set: 12 connections with 4 threads."""
        with open_ask_daemon(HELD_FOR_GOOD) as daemon, Apache(settings(daemon)) as server, contextlib.ExitStack() as leave:
            self.hold(server, daemon, leave, [f"a{i}" for i in range(6)])
            self.assertEqual(server.statuses(2, "/?b"), [200, 429])

    def test_a_connection_goes_on_behind_a_held_request(self):
        """What a client has sent ahead is answered in turn, and the connection is kept. The server's timeout is no bound."""
        with open_ask_daemon(rule(burst=1, rate=1, delay="60s")) as daemon, \
                Apache(settings(daemon, "Timeout 1\nKeepAlive On\nKeepAliveTimeout 60")) as server, \
                server.connect() as client:
            begin = time.monotonic()
            client.sendall(get("a") * 3)
            responses, times = receive(client, 3)
            client.sendall(get("a"))
            last, last_times = receive(client, 1)
            self.assertEqual([response.status for response in responses + last], [200] * 4)
            self.assertEqual({response.body for response in responses + last}, {b"served\n"})
            for turn, at in enumerate(times + last_times):
                self.assertGreaterEqual(at - begin, turn)
            self.assertEqual([line[1] for line in server.access(4)], ["SERVED"] + ["DELAYED"] * 3)

    def test_a_body_is_read_behind_the_wait_even_if_it_comes_during_it(self):
        more = "<Location />\nSetHandler reflector\n</Location>"
        with open_ask_daemon(rule(burst=1, rate=0.5, delay="60s")) as daemon, \
                Apache(settings(daemon, more), modules=("reflector",)) as server, server.connect() as client:
            body = b"word " * 10_000
            head = f"POST /?a HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            for turn in range(3):
                client.sendall(head + body[:100])
                wait_until(lambda held=turn: daemon.stats()["ask_waits"] >= held, "the request is held")
                client.sendall(body[100:])
                data = b""
                while b"\r\n\r\n" not in data or len(data.split(b"\r\n\r\n", 1)[1]) < len(body):
                    data += client.recv(1 << 16)
                response = Response(data, 0)
                self.assertEqual((response.status, response.body), (200, body))

    def test_held_requests_keep_their_turns_when_another_one_finds_that_the_daemon_hangs(self):
        """That ends the connection on which the turns were granted. The requests still go on at them, so nobody else
        may have them; and when their clients leave, they are given up on another connection."""
        more = "<Location /soon>\nDthrottleTimeout 100\n</Location>"
        with open_ask_daemon(rule(match="free*", burst=1), HELD_FOR_GOOD) as daemon, \
                Apache(settings(daemon, more)) as server:
            with contextlib.ExitStack() as leave:
                self.hold(server, daemon, leave, "abc")
                with stopped(daemon):
                    wait_until(lambda: server.get("/soon?free") and "timed out" in server.log, "a connection has ended")
                wait_until(lambda: server.get("/?free").status == 429, "the daemon is asked again")
                self.assertEqual(daemon.stats()["ask_waits_given_up"], 0)
                self.assertEqual([daemon.admin_json(f"show {tag}")["level"] < -0.5 for tag in "abc"], [True] * 3)
            wait_until(lambda: daemon.stats()["ask_waits_given_up"] == 3, "the slots are others'")

    def test_what_another_module_refuses_leaves_its_place(self):
        more = "<Location /denied>\nRequire all denied\n</Location>"
        with open_ask_daemon(rule(match="free*", burst=100), rule(burst=1, rate=0.2, delay="60s")) as daemon, \
                Apache(settings(daemon, more)) as server:
            self.assertEqual(server.statuses(10, "/denied?a"), [403] * 10)    # more than may be held
            self.assertEqual(daemon.stats()["ask_waits"], 9)
            begin = time.monotonic()
            self.assertEqual(server.statuses(2, "/?b"), [200, 200])
            self.assertGreater(time.monotonic() - begin, 4)

    def test_the_server_tells_whom_it_waits_for(self):
        more = ("Timeout 2\nKeepAliveTimeout 1\n"
                "<Location /server-status>\nDthrottle Off\nSetHandler server-status\n</Location>")
        with open_ask_daemon(HELD_FOR_GOOD) as daemon, Apache(settings(daemon, more), modules=("status",)) as server, \
                contextlib.ExitStack() as leave:
            self.hold(server, daemon, leave, ["a0", "a1"])
            # The question is out a moment before the thread that asked it is free.
            free = f"\nBusyWorkers: 1\nGracefulWorkers: 0\nIdleWorkers: {THREADS - 1}\n"
            wait_until(lambda: free in server.get("/server-status?auto").body.decode(), "no thread waits")
            # The server counts anew when the time of some connection is over, such as of one that is kept and asks no more.
            kept = leave.enter_context(server.connect())
            kept.sendall(get("", "/server-status"))
            receive(kept, 1)
            wait_until(lambda: "\nConnsAsyncWaitIO: 2\n" in server.get("/server-status?auto").body.decode(), "both show")


class Restarts(HoldTest):
    def test_a_graceful_restart_serves_what_is_held_at_its_turn(self):
        with open_ask_daemon(rule(burst=1, rate=0.2, delay="60s")) as daemon, Apache(settings(daemon)) as server, \
                contextlib.ExitStack() as stack:
            clients = self.hold(server, daemon, stack, [f"a{i}" for i in range(6)])
            old = server.reload()
            self.assertEqual([server.get(f"/?b{i}").status for i in range(10)], [200] * 10)
            for client in clients:
                (response,), _ = receive(client, 1)
                self.assertEqual((response.status, response.fields["Connection"]), (200, "close"))
            wait_until(lambda: not old & server.children(), "the old process has left")
            self.assertEqual(daemon.stats()["ask_waits_given_up"], 0)
            self.assertNotIn("exit signal", server.log)

    def test_the_slots_of_what_is_held_at_the_end_are_others(self):
        with open_ask_daemon(HELD_FOR_GOOD) as daemon, contextlib.ExitStack() as stack:
            with Apache(settings(daemon)) as server:
                clients = self.hold(server, daemon, stack, [f"a{i}" for i in range(6)])
                server.process.terminate()
                server.process.wait()
                self.assertEqual([client.recv(1) for client in clients], [b""] * 6)
                self.assertNotIn("exit signal", server.log)
            wait_until(lambda: daemon.stats()["ask_waits_given_up"] == 6, "the slots are others'")


class ByThread(HoldTest):
    """What cannot be held without one."""

    def test_requests_are_spaced_at_the_rate_whatever_the_mpm(self):
        for mpm in MPMS:
            with self.subTest(mpm), open_ask_daemon(rule(burst=1, rate=4, delay="60s")) as daemon, \
                    Apache(settings(daemon), mpm) as server:
                begin = time.monotonic()
                self.assertEqual(server.statuses(4, "/?a"), [200] * 4)
                self.assertGreaterEqual(time.monotonic() - begin, 0.75)
                self.assertIn("DELAYED", {line[1] for line in server.access(4)})

    def test_half_of_the_threads_hold_requests_at_most_and_their_clients_may_leave(self):
        with open_ask_daemon(HELD_FOR_GOOD) as daemon, Apache(settings(daemon), "worker") as server:
            with contextlib.ExitStack() as leave:
                self.hold(server, daemon, leave, [f"a{i}" for i in range(THREADS // 2)])
                self.assertEqual(server.statuses(2, "/?b"), [200, 429])
            wait_until(lambda: daemon.stats()["ask_waits_given_up"] == THREADS // 2, "the slots are others'")

    def test_a_stream_of_http_2_waits_too(self):
        with open_ask_daemon(rule(burst=1, rate=1, delay="60s")) as daemon, \
                Apache(settings(daemon, "Protocols h2c http/1.1"), modules=("http2",)) as server:
            begin = time.monotonic()
            for _ in range(3):
                said = subprocess.run(["curl", "-sS", "--http2-prior-knowledge", "-w", "%{http_version} %{http_code}",
                                       f"http://127.0.0.1:{server.port}/?a"], capture_output=True, check=True, text=True)
                self.assertEqual(said.stdout, "served\n2 200")
            self.assertGreaterEqual(time.monotonic() - begin, 2)

    def test_what_an_internal_redirect_leads_to_waits_too(self):
        """One that makes a new request (RewriteRule), and one that does not (DirectoryIndex)."""
        more = ("Dthrottle Off\n<Location /index.html>\nDthrottle On\n</Location>\n<Directory />\nRewriteEngine On\n"
                "RewriteRule nothing$ /index.html [L]\n</Directory>")
        for path in ("/nothing?a", "/?a"):
            with self.subTest(path), open_ask_daemon(rule(burst=1, rate=4, delay="60s")) as daemon, \
                    Apache(settings(daemon, more), modules=("rewrite",)) as server:
                begin = time.monotonic()
                self.assertEqual([server.get(path).body for _ in range(4)], [b"served\n"] * 4)
                self.assertGreaterEqual(time.monotonic() - begin, 0.75)

    def test_a_password_is_asked_for_at_the_turn(self):
        """Apache asks before the handler runs, so such a request is held before."""
        with serving_behind_a_password() as (_, server):
            begin = time.monotonic()
            self.assertEqual([server.get("/private?a", fields=PASSWORD).status, *server.statuses(2, "/private?a")],
                             [200, 401, 401])
            self.assertGreaterEqual(time.monotonic() - begin, 2)

    def test_a_request_is_held_behind_the_password_where_a_tag_names_the_user(self):
        with serving_behind_a_password('DthrottleTag "user:%{REMOTE_USER}"') as (daemon, server):
            begin = time.monotonic()
            said = [server.get("/private", fields=PASSWORD).status for _ in range(3)]
            self.assertEqual(said + server.statuses(3, "/private"), [200] * 3 + [401] * 3)
            self.assertGreaterEqual(time.monotonic() - begin, 2)
            self.assertEqual(daemon.stats()["ask_waits"], 2)


if __name__ == "__main__":
    unittest.main()
