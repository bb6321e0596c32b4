"""HTTP: decisions and what there is to see, on TCP and on a Unix socket, to whoever asks well and whoever does not."""

import contextlib
import http.client
import itertools
import json
import os
import re
import shutil
import signal
import socket
import stat
import sys
import time
import urllib.parse

from common import SystemTest
from daemon import (DTHROTTLED, PATIENCE, ROOT, SANITIZED, Daemon, Stream, override, pump, receive_all, rule, run,
                    settings_text, wait_until)
from test_shortage import cpu_seconds
from test_sockets import EX_UNAVAILABLE, PASS_SOCKETS
from test_upgrade import upgrade

QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
EVERY_BYTE = bytes(range(256))


def quoted(tag):
    return urllib.parse.quote(tag, safe="")


class HttpDaemon(Daemon):
    """A daemon that answers HTTP on a free port and at a Unix socket."""

    def __init__(self, *limits, admin=None, **options):
        super().__init__(*limits, **options)
        self.http_path = f"{self.directory}/http.sock"
        self._sections["admin"] = {"http": "127.0.0.1:0", "http_unix": self.http_path, **(admin or {})}
        self.write_settings(*limits)

    def connect_http(self, tcp=True):
        sock = socket.socket(socket.AF_INET if tcp else socket.AF_UNIX)
        sock.settimeout(PATIENCE)
        sock.connect(("127.0.0.1", self.http_port) if tcp else self.http_path)
        return sock

    def session(self, tcp=True):
        """A connection that is kept alive."""
        session = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=PATIENCE)
        if not tcp:
            session.sock = self.connect_http(tcp=False)
        return contextlib.closing(session)

    def get(self, target, tcp=True, method="GET", **fields):
        """Status, fields and body of an answer."""
        with self.session(tcp) as session:
            return get(session, target, method, **fields)

    def get_json(self, target, **options):
        return json.loads(self.get(target, **options)[2])

    def raw(self, data, tcp=True):
        """Everything that comes back to these bytes, up to the end."""
        with self.connect_http(tcp) as sock:
            with contextlib.suppress(OSError):    # it may have read enough and hung up
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
            return receive_all(sock)


def get(session, target, method="GET", **fields):
    session.request(method, target, headers={name.replace("_", "-"): value for name, value in fields.items()})
    answer = session.getresponse()
    return answer.status, answer.headers, answer.read()


class Decisions(SystemTest):
    """/check and /auth."""

    def limits(self, headers):
        return {name: value for name, value in headers.items()
                if name.startswith(("RateLimit", "X-RateLimit", "Retry-After"))}

    def test_check_serves_the_burst_and_then_says_429_with_everything_a_client_wants_to_know(self):
        for tcp in (True, False):
            with self.subTest(tcp=tcp), HttpDaemon(rule(name="default", burst=3, rate=0.001)) as daemon:
                for left in (2, 1, 0):
                    status, headers, body = daemon.get("/check?tag=C", tcp)
                    self.assertEqual((status, headers["Content-Type"]), (200, "application/json"))
                    self.assertEqual(headers["Cache-Control"], "no-store")
                    self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
                    limits = self.limits(headers)
                    self.assertEqual(limits.pop("RateLimit-Policy"), '"default";q=3;w=3000')
                    self.assertRegex(limits.pop("RateLimit"), rf'^"default";r={left};t=(9\d\d|1000)$')
                    self.assertEqual(limits, {})
                    answer = json.loads(body)
                    self.assertAlmostEqual(answer.pop("reset_after"), 1000 * (3 - left), delta=100)
                    self.assertEqual(answer, {"allowed": True, "limit": 3, "remaining": left, "retry_after": 0})

                status, headers, body = daemon.get("/check?tag=C", tcp)
                self.assertEqual((status, headers["Content-Type"]), (429, "application/problem+json"))
                answer = json.loads(body)
                retry_after = answer.pop("retry_after")
                self.assertTrue(900 < retry_after <= 1000, retry_after)
                limits = self.limits(headers)
                self.assertEqual(int(limits.pop("Retry-After")), int(-(-retry_after // 1)))
                self.assertEqual(limits["RateLimit-Policy"], '"default";q=3;w=3000')
                self.assertRegex(limits["RateLimit"], r'^"default";r=0;t=(9\d\d|1000)$')
                self.assertAlmostEqual(answer.pop("reset_after"), 3000, delta=100)
                self.assertEqual(answer, {
                    "type": QUOTA_EXCEEDED, "title": "The tag has spent its quota", "status": 429,
                    "violated-policies": ["default"], "allowed": False, "limit": 3, "remaining": 0})
                self.assertEqual(daemon.get("/check?tag=D", tcp)[0], 200, "another tag has a bucket of its own")

    def test_auth_says_204_and_403_and_never_anything_else_about_a_tag(self):
        with HttpDaemon(rule(name="default", burst=2, rate=0.001)) as daemon:
            for tcp in (True, False):
                tag = f"tcp-{tcp}"
                for _ in range(2):
                    status, headers, body = daemon.get(f"/auth?tag={tag}", tcp)
                    self.assertEqual((status, body), (204, b""))
                    self.assertIn("RateLimit", headers)
                    self.assertNotIn("Content-Type", headers)
                status, headers, body = daemon.get(f"/auth?tag={tag}", tcp)
                self.assertEqual((status, headers["Content-Type"], body), (403, None, b""))
                self.assertTrue(900 < int(headers["Retry-After"]) <= 1000)

    def test_one_bucket_is_behind_all_protocols(self):
        with HttpDaemon(rule(burst=3)) as daemon:
            self.assertEqual(daemon.get("/check?tag=C")[0], 200)
            self.assertEqual(daemon.get("/auth?tag=C", tcp=False)[0], 204)
            self.assertEqual(daemon.ask(["C", "C"]), ["OK", "NO"])
            self.assertEqual([daemon.get("/check?tag=C")[0], daemon.get("/auth?tag=C")[0]], [429, 403])
            stats = daemon.stats()
            self.assertEqual((stats["served"], stats["throttled"]), (3, 3))

    def test_cost_is_what_is_spent_and_nothing_asks_without_spending(self):
        with HttpDaemon(rule(burst=10)) as daemon:
            ask = lambda cost: (lambda a: (a[0], json.loads(a[2])["remaining"]))(daemon.get(f"/check?tag=C&cost={cost}"))
            self.assertEqual([ask(0), ask(4), ask(0), ask(7), ask(6), ask(0), ask(1)],
                             [(200, 10), (200, 6), (200, 6), (429, 6), (200, 0), (200, 0), (429, 0)])
            status, headers, body = daemon.get("/check?cost=11&tag=fresh")
            answer = json.loads(body)
            self.assertEqual((status, answer["retry_after"], answer["remaining"]), (429, None, 10))
            self.assertEqual(answer["title"], "The cost is more than the quota")
            self.assertNotIn("Retry-After", headers)

    def test_where_the_host_sheds_load_nobody_knows_for_how_long(self):
        hot = {"signal": "reported", "low": 1, "high": 2}
        with HttpDaemon(rule(burst=5, shed=True), shed=hot) as daemon:
            daemon.get("/check?tag=C")
            daemon.admin("shed 3")
            status, headers, body = daemon.get("/check?tag=C")
            answer = json.loads(body)
            self.assertEqual((status, answer["retry_after"], answer["remaining"]), (503, None, 4))
            self.assertEqual(headers["Retry-After"], "1")
            status, _, body = daemon.get("/check?tag=C&peek=1")
            self.assertEqual((status, json.loads(body)["retry_after"]), (200, 0))

    def test_an_answer_that_waits_is_held_and_others_are_not(self):
        with HttpDaemon(rule(burst=1, rate=4, delay="1m")) as daemon:
            begin = time.monotonic()
            statuses = [daemon.get("/auth?tag=a&wait=60000")[0] for _ in range(3)]
            self.assertEqual(statuses, [204] * 3)
            self.assertGreaterEqual(time.monotonic() - begin, 0.5)
            with daemon.connect_http() as session:    # pipelined: the one behind waits too, in order
                session.sendall(b"".join(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for target in (
                    "/check?tag=b&wait=60000", "/check?tag=b&wait=60000", "/healthz", "/auth?tag=b")))
                heard = b""
                while b"403 Forbidden" not in heard and b"204 No" not in heard:
                    heard += session.recv(1 << 16)
            self.assertEqual(re.findall(rb"HTTP/1.1 (\d+)", heard)[:3], [b"200", b"200", b"200"])
            self.assertGreater(json.loads(heard.split(b"\r\n\r\n")[2].split(b"\n")[0])["delay"], 0)

    def test_of_answers_that_wait_on_one_connection_each_goes_out_in_its_own_turn(self):
        with HttpDaemon(rule(name="slow", match="slow", burst=1, rate=0.02, delay="1m"),
                        rule(burst=1, rate=4, delay="1m")) as daemon:
            with daemon.connect_http() as session:
                session.sendall(b"".join(f"GET /auth?tag={tag}&wait=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
                                         for tag in ("a", "a", "slow", "a", "slow", "a")))
                heard = b""
                while heard.count(b"204 No") < 4:
                    heard += session.recv(1 << 16)
                self.assertEqual(heard.count(b"204 No"), 4, "the fifth waits for 50 s, and the sixth behind it")
                self.assertLess(daemon.admin_json("show slow")["level"], -0.5)
            wait_until(lambda: daemon.admin_json("show slow")["level"] > -0.5, "it has been given back")

    def test_a_client_that_hangs_up_gives_back_what_its_answer_waits_for(self):
        with HttpDaemon(rule(burst=1, rate=0.02, delay="1m")) as daemon:
            self.assertEqual(daemon.get("/auth?tag=a")[0], 204)
            for end in ("", "Connection: close\r\n"):
                with daemon.connect_http() as session:
                    session.sendall(f"GET /auth?tag=a&wait=60000 HTTP/1.1\r\nHost: localhost\r\n{end}\r\n".encode())
                    wait_until(lambda: daemon.admin_json("show a")["level"] < -0.5, "it waits")
                    self.assertEqual(daemon.get("/auth?tag=a&wait=60000")[0], 403)    # 100 s are too long
                    self.assertEqual(daemon.get(f"/auth?tag=b{len(end)}")[0], 204)
                wait_until(lambda: daemon.admin_json("show a")["level"] > -0.5, "it has been given back")

    def test_a_hang_up_is_noticed_whatever_stands_behind_the_request_that_waits(self):
        another = b"GET /check?tag=b HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with HttpDaemon(rule(burst=1, rate=0.02, delay="1m")) as daemon:
            self.assertEqual(daemon.get("/auth?tag=a")[0], 204)
            for behind in (b"\r\n", another, 100 * another):
                with daemon.connect_http() as session:
                    session.sendall(b"GET /auth?tag=a&wait=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    wait_until(lambda: daemon.admin_json("show a")["level"] < -0.5, "it waits")
                    for _ in range(2):
                        session.sendall(behind)
                        time.sleep(0.05)
                    self.assertLess(daemon.admin_json("show a")["level"], -0.5)
                wait_until(lambda: daemon.admin_json("show a")["level"] > -0.5, "it has been given back", 15)

    def test_what_was_asked_behind_an_answer_that_waits_is_answered_after_it(self):
        with HttpDaemon(rule(burst=1, rate=2, delay="1m"), rule(name="z", match="z", mode="off")) as daemon:
            self.assertEqual(daemon.get("/auth?tag=a")[0], 204)
            with daemon.connect_http() as session:
                session.sendall(b"GET /auth?tag=a&wait=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
                time.sleep(0.05)
                for _ in range(20):    # more than is kept while the first one waits
                    session.sendall(100 * b"GET /auth?tag=z HTTP/1.1\r\nHost: localhost\r\n\r\n")
                heard = b""
                while heard.count(b"204 No") < 2001:
                    self.assertTrue(received := session.recv(1 << 16))
                    heard += received

    def test_answers_that_wait_go_out_before_the_daemon_leaves_and_over_an_upgrade(self):
        with HttpDaemon(rule(burst=1, rate=0.02, delay="1m")) as daemon:
            self.assertEqual(daemon.get("/auth?tag=a")[0], 204)
            with daemon.connect_http() as session:
                session.sendall(b"GET /auth?tag=a&wait=60000 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                wait_until(lambda: daemon.admin_json("show a")["level"] < -0.5, "it waits")
                upgrade(daemon)
                self.assertLess(daemon.admin_json("show a")["level"], -0.5)
                daemon.signal(signal.SIGTERM)
                self.assertIn(b" 204 ", receive_all(session))

    def test_modes_and_what_has_no_limit(self):
        limits = (rule(name="off", match="off*", burst=1, mode="off"),
                  rule(name="shadow", match="shadow*", burst=1, mode="shadow"),
                  rule(name="half", match="half*", burst=1.5, rate=1e-6), override("vip", burst=2))
        with HttpDaemon(*limits) as daemon:
            for tag in ("off", "nobody"):
                for _ in range(3):
                    status, headers, body = daemon.get(f"/check?tag={tag}")
                    self.assertEqual((status, json.loads(body)), (200, {"allowed": True}))
                    self.assertEqual(self.limits(headers), {})
            for remaining in (0, 0, 0):
                status, headers, body = daemon.get("/check?tag=shadow")
                answer = json.loads(body)
                self.assertEqual((status, answer["allowed"], answer["remaining"]), (200, True, remaining))
                self.assertEqual((answer["retry_after"], headers["Retry-After"]), (0, None))
            self.assertEqual(daemon.admin_json("rules")[1]["shadowed"], 2)
            answer = daemon.get_json("/check?tag=half&cost=0")
            self.assertEqual((answer["limit"], answer["remaining"]), (1.5, 1))
            _, headers, body = daemon.get("/check?tag=vip")
            self.assertRegex(headers["RateLimit-Policy"], '^"override";q=2;w=')
            self.assertEqual(json.loads(body)["remaining"], 1)

    def test_the_settings_say_in_which_form_the_limit_is_stated(self):
        old = {"X-RateLimit-Limit": "4", "X-RateLimit-Remaining": "3"}
        for style, names in (("draft-10", {"RateLimit", "RateLimit-Policy"}), ("draft-03", {*old, "X-RateLimit-Reset"}),
                             ("both", {"RateLimit", "RateLimit-Policy", *old, "X-RateLimit-Reset"}), ("off", set())):
            with self.subTest(style), HttpDaemon(rule(name="r", burst=4, rate=1e-3),
                                                 admin={"http_headers": style}) as daemon:
                headers = daemon.get("/check?tag=C")[1]
                self.assertEqual(set(self.limits(headers)), names)
                if "RateLimit" in names and style == "both":
                    self.assertEqual(headers["RateLimit"].split(";")[1:],
                                     [f"r={headers['X-RateLimit-Remaining']}", f"t={headers['X-RateLimit-Reset']}"])
                if names & set(old):
                    self.assertEqual({name: headers[name] for name in old}, old)
                daemon.get("/check?tag=C&cost=3")
                self.assertIn("Retry-After", daemon.get("/check?tag=C")[1])

    def test_a_tag_is_any_bytes(self):
        tags = [bytes([byte]) for byte in EVERY_BYTE] + [b"", EVERY_BYTE[:255], b"<script>alert(1)</script>",
                                                         "löwe".encode(), b"a\0b", b"a\0c", b"a+b", b"a b", b"%41"]
        with HttpDaemon(rule(burst=1)) as daemon, daemon.session() as session:
            for tag in tags:
                answers = [get(session, f"/check?tag={quoted(tag)}")[0] for _ in range(2)]
                self.assertEqual(answers, [200, 429], tag)
            self.assertEqual(daemon.stats()["table_tags"], len(set(tags)))
            spoken = [tag for tag in tags if b"\n" not in tag and not tag.endswith(b"\r")]
            self.assertEqual(set(daemon.ask(spoken)), {"NO"}, "the query socket knows the same tags")

    def test_a_tag_in_a_field_needs_no_encoding_and_cannot_become_a_parameter(self):
        with HttpDaemon(rule(burst=2)) as daemon:
            tag = "key&cost=0 %zz+\xe9"
            answers = [daemon.get("/auth", Dthrottle_Tag=tag)[0] for _ in range(3)]
            self.assertEqual(answers, [204, 204, 403])
            self.assertEqual(daemon.get("/auth?cost=0", Dthrottle_Tag=tag)[0], 204)
            self.assertEqual(daemon.ask([tag.encode("latin-1")]), ["NO"])

    def test_a_tag_that_is_too_long_has_a_bucket_of_its_own(self):
        with HttpDaemon(rule(burst=2)) as daemon:
            long, other = "x" * 4000, "x" * 3999 + "y"
            self.assertEqual([daemon.get(f"/check?tag={long}")[0] for _ in range(3)], [200, 200, 429])
            self.assertEqual(daemon.get(f"/check?tag={other}")[0], 200)
            self.assertEqual(daemon.ask([long, other, other]), ["NO", "OK", "NO"])
            self.assertEqual(daemon.stats()["over_long_tags"], 7)

    def test_what_makes_no_sense_is_answered_400_and_spends_nothing(self):
        with HttpDaemon(rule(burst=1)) as daemon:
            for target in ("/check", "/check?cost=1", "/check?tag=C&cost=1&cost=1", "/check?tag=C&cost=-1",
                           "/check?tag=C&cost=4294967296", "/check?tag=C&cost=", "/check?tag=C&cost=1.5",
                           "/check?tag=C&cost=99999999999999999999", "/check?tag=%", "/check?tag=%4", "/check?tag=%zz",
                           "/check?tag=C%4g", "/check?tag=C&price=1", "/auth", "/auth?tag=C&cost=x", "/top?n=0",
                           "/top?n=257", "/top?n=1%0Aforgive%20C", "/top?m=1", "/why?tag=C&x=1", "/why?tag=C&tag=D",
                           "/stats?n=1"):
                with self.subTest(target):
                    status, headers, body = daemon.get(target)
                    self.assertEqual((status, headers["Content-Type"]), (400, "application/problem+json"))
                    problem = json.loads(body)
                    self.assertEqual((problem["status"], problem["type"]), (400, "about:blank"))
                    self.assertTrue(problem["detail"])
            self.assertEqual(daemon.get("/check?tag=C", Dthrottle_Tag="C")[0], 400)
            self.assertEqual(daemon.stats()["queries"], 0)


class Looking(SystemTest):
    def test_the_same_is_seen_as_on_the_admin_socket(self):
        with HttpDaemon(rule(name="a", match="a*", burst=1), rule(name="b", burst=9)) as daemon:
            daemon.ask(["a", "a", "b", "<b>"])
            for target, command in (("/top", "top"), ("/top?n=1", "top 1"), ("/peers", "peers"), ("/rules", "rules")):
                status, headers, body = daemon.get(target)
                self.assertEqual((status, headers["Content-Type"]), (200, "application/json"))
                self.assertEqual(json.loads(body), daemon.admin_json(command))
            live = daemon.get_json("/live")
            self.assertEqual(live["top"], daemon.admin_json("top"))
            self.assertEqual(live["rules"], daemon.admin_json("rules"))
            self.assertEqual((live["stats"]["served"], live["stats"]["throttled"]), (3, 1))
            self.assertEqual(set(daemon.get_json("/stats")), set(daemon.stats()))

    def test_metrics_are_what_a_scraper_expects(self):
        with HttpDaemon(rule(burst=1)) as daemon:
            status, headers, body = daemon.get("/metrics")
            self.assertEqual((status, headers["Content-Type"]), (200, "text/plain; version=0.0.4; charset=utf-8"))
            self.assertRegex(body.decode(), r"(?m)^dthrottled_\w+(\{.*\})? [0-9.e+-]+$")

    def test_the_page_brings_everything_with_it(self):
        with HttpDaemon(rule(burst=1)) as daemon:
            status, headers, body = daemon.get("/")
            self.assertEqual((status, headers["Content-Type"]), (200, "text/html; charset=utf-8"))
            policy = headers["Content-Security-Policy"]
            self.assertTrue(policy.startswith("default-src 'none'; script-src 'sha256-"), policy)
            self.assertNotIn("unsafe", policy)
            self.assertEqual(re.findall(r'(?:src|href)="(?!data:|#)[^"]*"|url\((?!data:)', body.decode()), [])

    def test_health_is_ok_until_the_daemon_leaves(self):
        with HttpDaemon(rule(burst=10)) as daemon, daemon.session() as session, daemon.connect() as stuck:
            self.assertEqual(get(session, "/healthz")[::2], (200, b"ok\n"))
            stuck.setblocking(False)    # does not read its answers, which keeps the daemon for a while
            with contextlib.suppress(BlockingIOError):
                while True:
                    stuck.send(b"C\n" * 10_000)
            daemon.process.terminate()
            wait_until(lambda: "answering what has been asked" in daemon.log, "it has noticed")
            status, headers, body = get(session, "/healthz")
            self.assertEqual((status, body, headers["Connection"]), (503, b"stopping\n", "close"))
            daemon.wait_exit()


class Protocol(SystemTest):
    """Requests as they should be, and as they should not."""

    def test_a_connection_is_kept_and_head_is_get_without_a_body(self):
        with HttpDaemon(rule(burst=1000)) as daemon:
            for tcp in (True, False):
                with daemon.session(tcp) as session:
                    for turn in range(50):
                        sock = session.sock
                        self.assertEqual(get(session, "/check?tag=C")[0], 200)
                        _, headers, body = get(session, "/healthz", "HEAD")
                        self.assertEqual((headers["Content-Length"], body), ("3", b""))
                        self.assertEqual(get(session, "/nothing")[0], 404)
                        self.assertEqual(get(session, "/check")[0], 400)
                        self.assertTrue(sock is None or session.sock is sock, "it was closed in between")
            self.assertEqual(daemon.stats()["http_connections_accepted"], 2)
            self.assertEqual(daemon.stats()["http_requests"], 400)

    def test_a_proxy_asks_by_the_method_of_its_client_and_nobody_looks_inside_by_another_than_get(self):
        with HttpDaemon(rule(burst=100)) as daemon:
            for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "get", "FORGIVE"):
                self.assertEqual(daemon.get("/check?tag=C", method=method)[0], 200, method)
                status, headers, body = daemon.get("/stats", method=method)
                self.assertEqual((status, headers["Allow"], json.loads(body)["status"]), (405, "GET, HEAD", 405), method)
            self.assertEqual(daemon.stats()["queries"], 8)

    def test_a_tag_is_made_of_the_fields_that_the_settings_name(self):
        admin = {"http_fields": ["x-forwarded-for"], "http_trusted_hops": 2}
        with HttpDaemon(rule(burst=1), admin=admin) as daemon:
            for forged in ("", "6.6.6.6, ", "7.7.7.7, "):
                fields = {"X-Forwarded-For": f"{forged}192.0.2.7, 10.0.0.1", "X-Tenant": "a"}
                status = daemon.get("/check?tag=ip:{x-forwarded-for}:{x-tenant}", **fields)[0]
                self.assertEqual(status, 429 if forged else 200)
            self.assertEqual(daemon.admin_json("show ip:192.0.2.7:{x-tenant}")["verdict"], "NO")

    def test_a_report_is_posted_with_a_number_above_0_where_decisions_are_open(self):
        with HttpDaemon(rule(burst=1)) as daemon:
            self.assertEqual(daemon.get("/indicate?value=1&tag=a")[0], 405)
            for wrong in ("", "?tag=a", "?value=1", "?value=0&tag=a", "?value=1x&tag=a", "?value=1e13&tag=a"):
                self.assertEqual(daemon.get(f"/indicate{wrong}", method="POST")[0], 400)
            status, _, body = daemon.get("/indicate?value=1&tag=a", method="POST")
            self.assertEqual(status, 400)
            self.assertIn("capacity.indicator is", json.loads(body)["detail"])
            self.assertEqual(daemon.get("/indicate?value=1&tag=a", method="POST", Origin="http://evil.example")[0], 400)
        with HttpDaemon(rule(burst=1), admin={"http_decides": False}) as daemon:
            self.assertEqual(daemon.get("/indicate?value=1&tag=a", method="POST")[0], 404)
            self.assertEqual(daemon.get("/indicate?value=1&tag=a", method="POST", tcp=False)[0], 400)

    def test_a_tag_is_forgiven_by_post_where_that_is_allowed_and_not_for_another_site(self):
        with HttpDaemon(rule(burst=1, rate=0.001), admin={"http_forgives": True, "audit": True}) as daemon:
            daemon.ask(["a b"] * 2)
            self.assertEqual(daemon.get("/forgive?tag=a+b")[0], 405)
            for fields in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
                self.assertEqual(daemon.get("/forgive?tag=a+b", method="POST", **fields)[0], 400)
            self.assertEqual(daemon.get("/forgive", method="POST")[0], 400)
            self.assertEqual(daemon.ask(["a b"]), ["NO"])
            status, _, body = daemon.get("/forgive?tag=a+b", method="POST", Origin=f"http://127.0.0.1:{daemon.http_port}",
                                         Host=f"127.0.0.1:{daemon.http_port}")
            self.assertEqual((status, json.loads(body)["forgiven"]), (200, True))
            self.assertIn("audit: HTTP: forgive a b", daemon.log)
            self.assertEqual(daemon.ask(["a b"]), ["OK"])
            self.assertIn("burst 1", daemon.get("/why?tag=a+b")[2].decode())

    def test_unknown_paths_are_not_found(self):
        with HttpDaemon(rule()) as daemon:
            for target in ("/nothing", "/check/", "//check", "/Check", "/check%3Ftag=C", "/../check", "*", "/config",
                           "/%"):
                self.assertEqual(daemon.get(target)[0], 404, target)

    def test_a_blank_that_nobody_encoded_is_part_of_the_tag(self):
        with HttpDaemon(rule(burst=1)) as daemon:
            answer = daemon.raw(b"GET /check?tag=a b HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self.assertTrue(answer.startswith(b"HTTP/1.1 200 "), answer)
            self.assertEqual(daemon.ask(["a b", "a"]), ["NO", "OK"])

    def test_a_body_is_not_read_and_what_follows_it_is_no_request(self):
        inner = b"GET /check?tag=C HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with HttpDaemon(rule(burst=5)) as daemon:
            for fields in (b"Content-Length: %d\r\n\r\n" % len(inner), b"Transfer-Encoding: chunked\r\n\r\n",
                           b"Content-Length: 99999999999\r\n\r\n"):
                for method in (b"GET", b"POST"):
                    answer = daemon.raw(method + b" /auth?tag=C HTTP/1.1\r\nHost: localhost\r\n" + fields + inner)
                    self.assertRegex(answer, rb"^HTTP/1.1 4(13|05) ")
                    self.assertIn(b"Connection: close", answer)
                    self.assertEqual(answer.count(b"HTTP/1.1 "), 1)
            self.assertEqual(daemon.stats()["queries"], 0)

    def test_pipelined_requests_are_answered_in_order_however_they_are_cut(self):
        one = b"GET /check?tag=C&cost=%d HTTP/1.1\r\nHost: localhost\r\n\r\n"
        data = b"".join(one % (i % 3) for i in range(20)) + b"GET /healthz HTTP/1.0\r\n\r\n"
        for size in (len(data), 1000, 7, 1):
            with self.subTest(size=size), HttpDaemon(rule(burst=1000)) as daemon, daemon.connect_http() as sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for at in range(0, len(data), size):
                    sock.sendall(data[at:at + size])
                received = receive_all(sock)
                left = [int(n) for n in re.findall(rb'"remaining":(\d+)', received)]
                self.assertEqual(left, [1000 - sum(k % 3 for k in range(i + 1)) for i in range(20)])
                self.assertTrue(received.endswith(b"\r\n\r\nok\n"))

    def test_one_who_will_send_no_more_gets_his_answers_and_the_end(self):
        with HttpDaemon(rule(burst=5)) as daemon:
            for tcp in (True, False):
                for count in (1, 2, 50):
                    received = daemon.raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * count, tcp)
                    self.assertEqual(received.count(b"\r\n\r\nok\n"), count)

    def test_the_absolute_form_of_a_target_is_understood(self):
        with HttpDaemon(rule(burst=1)) as daemon:
            self.assertTrue(daemon.raw(b"GET http://localhost:1/check?tag=C HTTP/1.1\r\nHost: localhost\r\n\r\n")
                            .startswith(b"HTTP/1.1 200 "))
            self.assertTrue(daemon.raw(b"GET http://evil.example/check?tag=C HTTP/1.1\r\nHost: localhost\r\n\r\n")
                            .startswith(b"HTTP/1.1 421 "))

    def test_nonsense_is_refused_and_harms_nobody(self):
        nonsense = [b"\0" * 100, b"C\n" * 50, b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(200), b"GET\r\n\r\n",
                    b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\nHost\r\n\r\n", b"\r\n" * 10_000, EVERY_BYTE * 8,
                    b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n"]
        # An unfinished request is waited for until the timeout, even after the end of the stream.
        with HttpDaemon(rule(burst=5), admin={"http_timeout": "1s"}) as daemon:
            for data in nonsense:
                for tcp in (True, False):
                    self.assertNotIn(b" 200 ", daemon.raw(data, tcp))
            self.assertEqual(daemon.get("/check?tag=C")[0], 200)
            self.assertEqual(daemon.stats()["queries"], 1)

    def test_a_request_that_is_too_large_is_refused_before_it_takes_memory(self):
        with HttpDaemon(rule(burst=5)) as daemon:
            before = daemon.resident_bytes()
            large = [b"GET /check?tag=" + b"x" * (1 << 20), b"GET / HTTP/1.1\r\nX: " + b"x" * (1 << 20),
                     b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * (1 << 17), b"G" * (1 << 20)]
            for data in large * 5:
                self.assertRegex(daemon.raw(data), rb"^(HTTP/1.\d (400|413|414|431) |$)")
            self.assertEqual(daemon.get("/check?tag=C")[0], 200)
            if not SANITIZED:
                self.assertLess(daemon.resident_bytes() - before, 8 << 20)
            self.assertEqual(daemon.stats()["queries"], 1)

    def test_a_request_is_answered_whatever_number_of_fields_it_has(self):
        """128 fields, 16 KiB, 64 parameters."""
        beginning = b"GET /check?tag=C%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        with HttpDaemon(rule(burst=10_000)) as daemon:
            for field, counts in ((b"X: y\r\n", range(120, 135)), (b"A-name: " + b"v" * 50 + b"\r\n", range(120, 135)),
                                  (b"X: " + b"v" * 200 + b"\r\n", range(70, 90))):
                with self.subTest(field):
                    answers = [daemon.raw(beginning % b"" + field * n + b"\r\n")[:12] for n in counts]
                    kinds = [kind for kind, _ in itertools.groupby(answers)]
                    self.assertEqual(kinds, [b"HTTP/1.1 200", b"HTTP/1.1 431"])
            for count in (62, 63, 64, 120, 200, 240, 4000):    # of parameters, beside the tag
                answer = daemon.raw(beginning % (b"&a" * count) + b"\r\n")
                self.assertEqual(answer[:12], b"HTTP/1.1 400" if count < 64 else b"HTTP/1.1 414", count)
            for size, status in ((8000, b"200"), (16_000, b"200"), (16_384, b"431"), (20_000, b"431")):
                answer = daemon.raw(beginning % b"" + b"Cookie: " + b"a=b; " * (size // 5) + b"\r\n\r\n")
                self.assertEqual(answer.split()[1], status, size)

    def test_curl_understands_it(self):
        self.assertIsNotNone(shutil.which("curl"), "curl is not installed")
        with HttpDaemon(rule(burst=1)) as daemon:
            written = []
            for _ in range(2):
                done = run("curl", "--silent", "--get", "--write-out", "%{http_code} %{content_type}", "--output",
                           "/dev/null", "--unix-socket", daemon.http_path, "--data-urlencode", "tag=a&b=\xe4 c",
                           "http://localhost/check")
                self.assertEqual(done.returncode, 0, done.stderr)
                written.append(done.stdout)
            self.assertEqual(written, ["200 application/json", "429 application/problem+json"])
            self.assertEqual(daemon.ask(["a&b=\xe4 c"]), ["NO"])


class Browsers(SystemTest):
    """A browser on this host must not lend a stranger its hands."""

    def test_a_name_that_is_not_this_hosts_is_turned_down_on_tcp_and_counted(self):
        with HttpDaemon(rule(burst=100)) as daemon:
            bad = ("evil.example", "evil.example:7313", "127.0.0.1.evil.example", "localhost.evil.example", "1.2.3",
                   "127.0.0.1@evil.example", "[::1", "[::1.evil.example]", "xn--localhost", " ")
            for host in bad[:-1]:
                for target in ("/check?tag=C", "/", "/top", "/metrics"):
                    self.assertEqual(daemon.get(target, Host=host)[0], 421, host)
                self.assertEqual(daemon.get("/check?tag=C", tcp=False, Host=host)[0], 200, "it came by the socket file")
            self.assertEqual(daemon.stats()["http_misdirected"], 4 * (len(bad) - 1))
            for host in ("127.0.0.1", "127.0.0.1:1", "localhost", "LOCALHOST:80", "[::1]", "[::1]:7313", "10.0.0.1",
                         socket.gethostname(), socket.gethostname().upper() + ":7313"):
                self.assertEqual(daemon.get("/check?tag=C", Host=host)[0], 200, host)
            self.assertTrue(daemon.raw(b"GET /healthz HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 "))

    def test_another_site_cannot_make_a_browser_ask(self):
        with HttpDaemon(rule(burst=100)) as daemon:
            for site, status in (("cross-site", 400), ("same-site", 400), ("same-origin", 200), ("none", 200)):
                self.assertEqual(daemon.get("/check?tag=C", Sec_Fetch_Site=site)[0], status, site)
            self.assertEqual(daemon.get("/check?tag=C", tcp=False, Sec_Fetch_Site="cross-site")[0], 200,
                             "a web server in front may pass on what its clients send")
            self.assertEqual(daemon.get("/healthz", Sec_Fetch_Site="cross-site")[0], 200, "it changes nothing")
            self.assertEqual(daemon.stats()["http_misdirected"], 2)


class Shortage(SystemTest):
    """More of everything than fits."""

    REQUEST = b"GET /check?tag=C HTTP/1.1\r\nHost: localhost\r\n\r\n"

    def open_and_ask(self, daemon, stack, count, tcp=None):
        """Half over each socket, unless `tcp` says which."""
        streams = [stack.enter_context(Stream(daemon.connect_http(tcp=i % 2 == 0 if tcp is None else tcp)))
                   for i in range(count)]
        for stream in streams:
            stream.send(self.REQUEST)
        self.assertTrue(pump(streams, lambda: all(s.ended or s.received for s in streams)),
                        "a connection is neither answered nor closed")
        return [s for s in streams if s.received], [s for s in streams if not s.received]

    def test_connections_beyond_the_limit_are_closed_at_once_and_counted(self):
        with HttpDaemon(rule(burst=1000), admin={"http_connections": 10}) as daemon, contextlib.ExitStack() as stack:
            answered, refused = self.open_and_ask(daemon, stack, 25, tcp=False)
            self.assertEqual((len(answered), len(refused)), (10, 15))
            stats = daemon.stats()
            self.assertEqual([stats[f"http_connections{what}"] for what in ("", "_accepted", "_rejected")], [10, 10, 15])
            for stream in answered[:4]:
                stream.close()
            wait_until(lambda: daemon.stats()["http_connections"] == 6, "the daemon sees four leave")
            answered, refused = self.open_and_ask(daemon, stack, 6, tcp=False)
            self.assertEqual((len(answered), len(refused)), (4, 2))
            answered, refused = self.open_and_ask(daemon, stack, 12, tcp=True)
            self.assertEqual((len(answered), len(refused)), (10, 2), "the other socket has places of its own")

    def test_thousands_who_connect_neither_take_memory_nor_keep_applications_waiting(self):
        count = 300 if SANITIZED else 900
        with HttpDaemon(rule(burst=1000)) as daemon, contextlib.ExitStack() as stack:
            before = daemon.resident_bytes()
            for turn in range(4):
                answered, refused = self.open_and_ask(daemon, stack, count)
                places = min(count // 2, 192)    # of one source at each socket: three quarters of 256
                self.assertEqual(len(answered), 2 * places if turn == 0 else 2 * (192 - places) if turn == 1 else 0)
            self.assertEqual(daemon.ask(["D"]), ["OK"])
            self.assertEqual(daemon.stats()["http_connections"], 2 * 192)
            if not SANITIZED:
                self.assertLess(daemon.resident_bytes() - before, 12 << 20)

    def test_where_open_files_are_few_a_crowd_is_closed_at_once_and_keeps_nobody_busy(self):
        with HttpDaemon(rule(burst=1000), open_files=200) as daemon, contextlib.ExitStack() as stack:
            admin = stack.enter_context(daemon.admin_session())
            admin.ask("help")
            answered, refused = self.open_and_ask(daemon, stack, 160)
            self.assertGreater(len(answered), 6)
            stats = admin.ask_json("stats")
            self.assertEqual((stats["http_connections"], stats["accept_failures"]), (len(answered), 0))
            self.assertEqual(stats["http_connections_rejected"] + stats["connections_crowded"], len(refused))
            before, begin = cpu_seconds(daemon.pid), time.monotonic()
            time.sleep(0.5)
            if not SANITIZED:
                passed = time.monotonic() - begin
                self.assertLess(cpu_seconds(daemon.pid) - before, 0.4 * passed, "it is busy with nothing")
            self.assertEqual(daemon.ask(["D"]), ["OK"])
            for stream in answered:
                stream.close()
            wait_until(lambda: admin.ask_json("stats")["http_connections"] == 0, "all have left")
            self.assertEqual(len(self.open_and_ask(daemon, stack, 6)[0]), 6)

    def test_one_who_drips_is_cut_off_and_one_who_asks_is_not(self):
        # So long that a machine that holds this process up does not make it one of those who are cut off.
        with HttpDaemon(rule(burst=1000), admin={"http_timeout": "5s"}) as daemon, contextlib.ExitStack() as stack:
            dripping = [stack.enter_context(Stream(daemon.connect_http(tcp=i % 2 == 0))) for i in range(20)]
            silent = stack.enter_context(Stream(daemon.connect_http()))
            session = stack.enter_context(daemon.session())
            begin = time.monotonic()
            letters = iter(self.REQUEST * 1000)
            while not all(stream.ended for stream in [*dripping, silent]):
                self.assertLess(time.monotonic() - begin, PATIENCE, "somebody is still connected")
                letter = bytes([next(letters)])
                for stream in dripping:
                    if len(letter) and not stream.ended:
                        stream.send(letter if letter != b"\n" else b"x")
                self.assertEqual(get(session, "/check?tag=D")[0], 200)
                pump([*dripping, silent], lambda: all(s.ended for s in [*dripping, silent]), seconds=0.1)
            self.assertGreater(time.monotonic() - begin, 4.99)
            self.assertEqual(daemon.stats()["http_connections_timed_out"], 21)
            self.assertEqual(get(session, "/check?tag=D")[0], 200)

    def test_one_who_does_not_read_takes_no_memory_and_is_cut_off(self):
        with HttpDaemon(rule(burst=1), admin={"http_timeout": "1s"}) as daemon, daemon.connect_http() as sock:
            before = daemon.resident_bytes()
            sock.setblocking(False)
            wait_until(lambda: self.send_until_refused(sock, b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000),
                       "it is cut off")
            self.assertEqual(daemon.stats()["http_connections_timed_out"], 1)
            if not SANITIZED:
                self.assertLess(daemon.resident_bytes() - before, 4 << 20)

    def send_until_refused(self, sock, data):
        try:
            sock.send(data)
        except BlockingIOError:
            time.sleep(0.05)
        except (BrokenPipeError, ConnectionResetError):
            return True
        return False


class Sockets(SystemTest):
    def test_the_socket_file_has_the_permissions_that_the_settings_give_and_leaves_with_the_daemon(self):
        for mode in (None, "0600"):
            with HttpDaemon(rule(), admin={"http_unix_mode": mode}) as daemon:
                self.assertEqual(oct(stat.S_IMODE(os.stat(daemon.http_path).st_mode)), f"0o{int(mode or '0660', 8):o}")
                daemon.stop()
                self.assertFalse(os.path.exists(daemon.http_path))

    def test_a_port_that_is_taken_is_a_reason_not_to_start(self):
        with HttpDaemon(rule()) as daemon:
            second = daemon.directory / "second"
            second.mkdir()
            file = second / "dthrottled.toml"
            for key, value, message in (("http", f"127.0.0.1:{daemon.http_port}", "Address already in use"),
                                        ("http_unix", daemon.http_path, "another process listens there")):
                file.write_text(settings_text(second, rule(), admin={key: value}))
                left = run(DTHROTTLED, "--config", file)
                self.assertEqual(left.returncode, EX_UNAVAILABLE, left.stderr)
                self.assertIn(message, left.stderr)
            self.assertEqual(daemon.get("/healthz", tcp=False)[0], 200)

    def test_sockets_of_the_service_manager_take_the_place_of_those_in_the_settings(self):
        with socket.socket(socket.AF_UNIX) as unix, socket.create_server(("127.0.0.1", 0)) as tcp:
            unix.bind(f"\0dthrottle-http-{os.getpid()}")
            unix.listen()
            fds = [unix.fileno(), tcp.fileno()]
            what = ",".join(["dthrottled-http.socket:http-tcp", *map(str, fds)])
            with HttpDaemon(rule(burst=5), wrapper=[sys.executable, "-c", PASS_SOCKETS, what], pass_fds=fds) as daemon:
                self.assertFalse(os.path.exists(daemon.http_path))
                self.assertEqual(daemon.http_port, tcp.getsockname()[1])
                for listener, fields, status in ((tcp, b"Host: evil.example", b"421"), (unix, b"Host: evil.example", b"200"),
                                                 (tcp, b"Host: localhost", b"200")):
                    with socket.socket(listener.family) as sock:
                        sock.settimeout(PATIENCE)
                        sock.connect(listener.getsockname())
                        sock.sendall(b"GET /check?tag=C HTTP/1.0\r\n" + fields + b"\r\n\r\n")
                        self.assertEqual(receive_all(sock).split()[1], status)

    def test_what_was_asked_before_sigterm_is_answered(self):
        with HttpDaemon(rule(burst=100)) as daemon, contextlib.ExitStack() as stack:
            daemon.process.send_signal(19)    # SIGSTOP: all of it happens before the daemon looks
            socks = [stack.enter_context(daemon.connect_http(tcp=i % 2 == 0)) for i in range(50)]
            for sock in socks:
                sock.sendall(b"GET /check?tag=C HTTP/1.1\r\nHost: localhost\r\n\r\n")
            daemon.process.terminate()
            daemon.process.send_signal(18)    # SIGCONT
            for sock in socks:
                received = receive_all(sock)
                self.assertTrue(received.startswith(b"HTTP/1.1 200 "), received)
            daemon.wait_exit()


class WorkedExample(SystemTest):
    """protocol/http.md, as it stands there."""

    def test_the_example_of_the_protocol_page_comes_true(self):
        text = (ROOT / "protocol/http.md").read_text().partition("## Worked example")[2]
        settings, requests = re.findall(r"```(?:toml)?\n(.*?)```", text, re.S)[:2]
        exchanges = [exchange.splitlines() for exchange in requests.strip().split("\n\n")]
        self.assertEqual(len(exchanges), 7)
        for tcp in (True, False):
            with HttpDaemon(settings) as daemon, daemon.connect_http(tcp) as sock, sock.makefile("rb") as answers:
                for lines in exchanges:
                    sent = [line[2:] for line in lines if line.startswith(">")]
                    wanted = [line[2:] for line in lines if line.startswith("<")]
                    sock.sendall("".join(line + "\r\n" for line in sent).encode())
                    self.assert_alike(self.answer(answers), wanted)

    def answer(self, stream):
        lines = []
        while (line := stream.readline().decode().removesuffix("\r\n")) or not lines:
            if not line.startswith("Date: "):
                lines.append(line)
        size = next((int(line.split()[1]) for line in lines if line.startswith("Content-Length: ")), 0)
        return lines + [""] + stream.read(size).decode().splitlines()

    def assert_alike(self, said, wanted):
        """Equal but for the moments that have passed, and how many digits it takes to tell."""
        number = re.compile(r"(?<=_after\":)[\d.]+")
        for lines in (said, wanted):
            self.assertNotIn(None, lines)
        moments = [[float(n) for line in lines for n in number.findall(line)] for lines in (said, wanted)]
        self.assertEqual(len(moments[0]), len(moments[1]))
        for a, b in zip(*moments):
            self.assertTrue(b - PATIENCE < a <= b if b else a == 0, (said, wanted))

        def stable(lines):
            return [re.sub(r"(Content-Length: 2?)\d+$|(t=|Retry-After: )\d+", r"\1\2N", number.sub("N", line))
                    for line in lines]
        self.assertEqual(stable(said), stable(wanted))
