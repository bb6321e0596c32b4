"""Those who can connect and should get nothing by it: web pages in a browser of this host, and crowds of connections."""

import contextlib
import socket
import time

from common import SystemTest, report
from daemon import FIGURES, PATIENCE, SANITIZED, Daemon, rule, wait_until
from fleet import free_port_pair, make_keys
from leases import LeaseDaemon, resource

ORIGIN = b"Origin: http://evil.example\r\n"
STATE = ("queries", "served", "throttled", "lease_lines", "ask_questions", "ask_errors", "resp_limited", "reloads",
         "table_tags")
TAG_LINES = b"C\r\nC\r\nforgive C\nupgrade\nget web calls 10\nCL.THROTTLE C 1 1 60\r\n"


def post(body, kind, port, extra=b""):
    return (b"POST / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n%sContent-Type: %s\r\n%sContent-Length: %d\r\n\r\n%s"
            % (port, ORIGIN, kind, extra, len(body), body))


def get(target, host, extra=b""):
    return b"GET %s HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (target, host, extra)


def payloads(port):
    """What a page can make a browser send to a port of its own host: the request line and most fields are the browser's."""
    here = b"127.0.0.1:%d" % port
    check = b"/check?tag=C"
    return [
        post(TAG_LINES, b"text/plain", port),                                     # a form of type text/plain
        post(b"tag=C&x=%0AC%0A", b"application/x-www-form-urlencoded", port),     # a form
        post(b"--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n" + TAG_LINES + b"--b--\r\n",
             b"multipart/form-data; boundary=b", port),
        post(TAG_LINES, b"text/plain;charset=UTF-8", port, b"Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n"),
        post(b"\n".join([b"C"] * 500), b"text/plain", port, b"Connection: keep-alive\r\n"),
        post(b"{}", b"text/plain", port).replace(b"POST / ", b"POST /auth?tag=C "),
        b"POST /C HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nC\nC\n\r\n0\r\n\r\n",
        get(check, here, b"Sec-Fetch-Site: cross-site\r\nSec-Fetch-Dest: image\r\n"),    # <img>
        get(check, here, ORIGIN + b"Sec-Fetch-Site: cross-site\r\n"),                     # fetch, no-cors
        get(check, here, b"Referer: http://evil.example/\r\n"),                           # an old browser
        get(check, b"evil.example", b"Sec-Fetch-Site: same-origin\r\n"),                  # its name made to mean us
        get(check, b"evil.example:%d" % port),
        get(b"http://evil.example/check?tag=C", here),
        get(b"/auth?tag=C", b"localhost", ORIGIN),
        get(b"/", here, b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n" + ORIGIN),
        b"HEAD /check?tag=C HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"OPTIONS /check?tag=C HTTP/1.1\r\nHost: " + here + b"\r\n" + ORIGIN
        + b"Access-Control-Request-Method: GET\r\n\r\n",
        get(b"/C%0AC%0A", here),
        get(b"/" + b"x" * 2000, here) + TAG_LINES,    # a request line longer than any tag
        get(b"/check?tag=C&x=" + b"y" * 300, here, b"Cookie: a=C\r\n"),
    ]


class Browser(SystemTest):
    def test_twenty_payloads_of_web_pages_change_nothing_at_any_port(self):
        sections = {"query": {"tcp": "127.0.0.1:0"}, "admin": {"http": "127.0.0.1:0", "http_decides": False},
                    "resp": {"tcp": "127.0.0.1:0"}, "ask": {"tcp": "127.0.0.1:0"}}
        with LeaseDaemon(resource(), lease={"tcp": "127.0.0.1:0"}, **sections) as daemon:
            resp_port = int(daemon.log.split("clients of Redis on tcp:127.0.0.1:")[1].split()[0])
            ask_port = int(daemon.log.split("answering questions on tcp:127.0.0.1:")[1].split()[0])
            ports = {"query": daemon.tcp_port, "http": daemon.http_port, "resp": resp_port, "ask": ask_port,
                     "lease": daemon.lease_port}
            daemon.ask(["C"])
            before = {name: daemon.stats()[name] for name in STATE}
            for name, port in ports.items():
                sent = payloads(port)
                self.assertEqual(len(sent), 20)
                for number, payload in enumerate(sent):
                    for cuts in (1, 3):
                        with self.subTest(port=name, payload=number, cuts=cuts):
                            self.send(port, payload, cuts)
                            after = {key: daemon.stats()[key] for key in STATE}
                            self.assertEqual(after, before)
            self.assertEqual(daemon.stats()["connections_http"], 120, "each at the query, the ask and the lease port, twice")

    def test_a_tag_that_reads_like_a_request_line_is_limited_as_any_other(self):
        with Daemon(rule(burst=1)) as daemon:
            for tag in (b"GET / HTTP/1.1", b"GET /" + b"x" * 9000 + b" HTTP/1.1", b"GET /" + b"y" * 9000):
                with self.subTest(tag[:20]), socket.create_connection(("127.0.0.1", daemon.tcp_port), PATIENCE) as sock:
                    sock.sendall(tag + b"\n" + tag + b"\n")
                    sock.shutdown(socket.SHUT_WR)
                    self.assertEqual(sock.makefile("rb").read(), b"OK\nNO\n")
            self.assertEqual(daemon.stats()["connections_http"], 0)

    def send(self, port, payload, cuts):
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as sock, contextlib.suppress(OSError):
            step = len(payload) // cuts + 1
            for at in range(0, len(payload), step):
                sock.sendall(payload[at:at + step])
                time.sleep(0.003 if cuts > 1 else 0)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 16):
                pass

    def test_nobody_decides_over_tcp_unless_the_settings_say_so(self):
        with Daemon(rule(burst=5), query={"tcp": None}, admin={"http": "127.0.0.1:0", "http_decides": None}) as daemon:
            self.assertNotIn("answering queries on tcp:", daemon.log)
            for path in ("/check?tag=C", "/auth?tag=C"):
                with socket.create_connection(("127.0.0.1", daemon.http_port), PATIENCE) as sock:
                    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                    answer = sock.recv(1 << 16)
                    self.assertTrue(answer.startswith(b"HTTP/1.1 404"), answer)
                    self.assertIn(b"admin.http_decides", answer)
            self.assertEqual(daemon.stats()["queries"], 0)


class Crowd(SystemTest):
    def crowd(self, stack, count, family, address):
        """So many connections, for as long as the stack lives."""
        socks = []
        for _ in range(count):
            sock = stack.enter_context(socket.socket(family))
            sock.settimeout(PATIENCE)
            with contextlib.suppress(OSError):
                sock.connect(address)
                socks.append(sock)
        return socks

    def ask_http(self, path):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(PATIENCE)
            sock.connect(path)
            sock.sendall(b"GET /auth?tag=C HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            return sock.recv(1 << 16)

    def test_a_crowd_at_the_http_port_leaves_the_unix_socket_to_the_web_server(self):
        directory_socket = "http.sock"
        with contextlib.ExitStack() as stack:
            daemon = stack.enter_context(Daemon(rule(burst=1000), admin={"http": "127.0.0.1:0"}))
            path = f"{daemon.directory}/{directory_socket}"
            daemon.stop()
            daemon._sections["admin"]["http_unix"] = path
            daemon.write_settings(rule(burst=1000))
            daemon.start()
            self.crowd(stack, 400, socket.AF_INET, ("127.0.0.1", daemon.http_port))
            for _ in range(20):
                self.assertTrue(self.ask_http(path).startswith(b"HTTP/1.1 204"))
            wait_until(lambda: daemon.stats()["connections_crowded"] > 100, "a part of the crowd is turned away")

    def test_a_crowd_that_an_upgrade_takes_over_is_still_of_the_port_that_it_came_to(self):
        with contextlib.ExitStack() as stack:
            daemon = stack.enter_context(Daemon(rule(burst=1000), admin={"http": "127.0.0.1:0", "http_connections": 20}))
            path = f"{daemon.directory}/http.sock"
            daemon.stop()
            daemon._sections["admin"]["http_unix"] = path
            daemon.write_settings(rule(burst=1000))
            daemon.start()
            for lives in (2, 3):
                self.crowd(stack, 40, socket.AF_INET, ("127.0.0.1", daemon.http_port))
                wait_until(lambda: daemon.stats()["connections_crowded"] >= 20, "a part of the crowd is turned away")
                daemon.admin("upgrade")
                wait_until(lambda: daemon.log.count(" ready: ") == lives, "the program has taken over")
                for _ in range(20):
                    self.assertTrue(self.ask_http(path).startswith(b"HTTP/1.1 204"))

    def test_strangers_at_the_port_between_hosts_leave_queries_and_commands_their_descriptors(self):
        with contextlib.ExitStack() as stack:
            keys = stack.enter_context(Daemon(rule())).directory
            make_keys(keys, "own")
            make_keys(keys, "peer")
            port = free_port_pair()
            peers = {"name": "own", "bind": f"tcp://127.0.0.1:{port}",
                     "connect": [f"tcp://127.0.0.1:{port + 2}#peer"],
                     "key_file": f"{keys}/own.key", "authorized_keys": str(keys)}
            daemon = stack.enter_context(Daemon(rule(burst=1000), open_files=300, peers=peers))
            for i in range(600):
                self.crowd(stack, 1, socket.AF_INET, ("127.0.0.1", port))
            wait_until(lambda: daemon.stats()["connections_strangers"] > 300, "most of the strangers are turned away")
            before = cpu_seconds(daemon.pid)
            began = time.monotonic()
            for _ in range(24):
                self.assertEqual(daemon.ask(["C"]), ["OK"])
                self.assertIn("uptime", daemon.admin("stats"))
                time.sleep(0.05)
            used = (cpu_seconds(daemon.pid) - before) / (time.monotonic() - began)
            report(f"questions beside strangers took {used:.3f} of a core")
            if FIGURES:
                self.assertLess(used, 0.15, "of a core, with the questions above")
            if not SANITIZED:
                self.assertLess(used, 0.7, "it spins")


def cpu_seconds(pid):
    total = 0.0
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    total = (int(fields[11]) + int(fields[12])) / 100
    return total
