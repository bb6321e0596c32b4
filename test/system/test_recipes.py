"""The recipes of conf/examples in the servers that they are for: nothing in them is changed but paths and ports."""

import contextlib
import re
import time
import tomllib
import unittest

from common import SystemTest, report
from daemon import rule, wait_until
from envoy import EnvoyDaemon, built_with_grpc
from fleet import free_port_pair
from test_http import HttpDaemon
from webserver import EXAMPLES, SLACK, Apache, Caddy, Envoy, Haproxy, Load, Nginx, adapted, open_daemon, stopped

TIMEOUT_S = 0.02    # of the recipes; where the daemon does not hang it has all the time it takes on a busy machine
TAG = "ip:127.0.0.1"


def script(name, daemon, patient):
    """The recipe's script, in the directory of that daemon, which it asks."""
    text = adapted((EXAMPLES / name / "dthrottle.lua").read_text(), ("/run/dthrottle/query.sock", daemon.query_path))
    if patient:
        text, changes = re.subn(r"(TIMEOUT = |timeout_ms = )([\d.]+)", r"\g<1>1000 * \2", text)
        if changes != 1:
            raise AssertionError("the recipe has no timeout any more")
    path = daemon.directory / "dthrottle.lua"
    path.write_text(text)
    return path


def block(text, name):
    """What stands between the braces of a block of nginx."""
    begin = re.search(rf"^{name} {{$", text, re.M)
    return text[:begin.start()], text[begin.end():text.rindex("}")]


@contextlib.contextmanager
def nginx(daemon, tag=None, patient=True):
    settings = (EXAMPLES / "nginx-lua/nginx.conf").read_text()
    script("nginx-lua", daemon, patient)
    settings = adapted(settings, ("/etc/nginx/dthrottle", str(daemon.directory)), ("  listen 80;\n", ""),
                       ("  root /var/www/html;\n", ""))
    if tag is not None:
        settings = adapted(settings, ('"ip:" .. ngx.var.remote_addr', "ngx.var.uri"),
                           ("  location / {", "  error_page 404 =200 /index.html;\n  location / {"))
    http, server = block(settings, "server")
    modules = "".join(f"load_module /usr/lib/nginx/modules/{name}.so;\n"
                      for name in ("ndk_http_module", "ngx_http_lua_module"))
    with Nginx(server, http=http, main=modules, shown="$status $uri") as running:
        yield running


@contextlib.contextmanager
def apache(daemon, tag=None, patient=True):
    path = script("apache-lua", daemon, patient)
    if tag is not None:
        path.write_text(adapted(path.read_text(), ('"ip:" .. r.useragent_ip', "r.uri")))
    settings = adapted((EXAMPLES / "apache-lua/apache.conf").read_text(), ("/etc/apache2/dthrottle.lua", str(path)))
    with Apache("FallbackResource /index.html\n" + settings, modules=("lua",)) as running:
        yield running


@contextlib.contextmanager
def haproxy(daemon, tag=None, patient=True):
    path = script("haproxy-lua", daemon, patient)
    server = Haproxy()
    settings = adapted((EXAMPLES / "haproxy-lua/haproxy.cfg").read_text(),
                       ("/etc/haproxy/dthrottle.lua", str(path)), ("bind :80", f"bind 127.0.0.1:{server.port}"),
                       ("  server local 127.0.0.1:8080",
                        "  http-request return status 200 content-type text/plain string served"))
    if tag is not None:
        settings = adapted(settings, ("ip:%[src]", "%[path,url_dec]"))
    server.write_settings(settings)
    with server:
        yield server


def without_hurry(text, timeouts):
    """The text with so many timeouts a thousand times as long."""
    text, changes = re.subn(r"(_timeout 20)ms", r"\1s", text)
    if changes != timeouts:
        raise AssertionError(f"the recipe has {changes} timeouts")
    return text


@contextlib.contextmanager
def nginx_http(daemon, tag=None, patient=True, replacements=()):
    settings = (EXAMPLES / "nginx-auth-request/nginx.conf").read_text()
    settings = adapted(settings, ("/run/dthrottle/http.sock", daemon.http_path), ("  listen 80;\n", ""),
                       ("proxy_pass http://127.0.0.1:8080;", "try_files /index.html =404;"), *replacements)
    if tag is not None:
        settings = adapted(settings, ('"ip:$remote_addr"', "$path"),
                           ("  location / {", "  location / {\n  set $path $uri;"))
    if patient:
        settings = without_hurry(settings, 3)
    http, server = block(settings, "server")
    with Nginx(server, http=http, main="", shown="$status $uri") as running:
        yield running


@contextlib.contextmanager
def caddy(daemon, tag=None, patient=True, replacements=()):
    server = Caddy()
    server.other_ports = (free_port_pair(),)
    settings = adapted("{\n\tadmin off\n\tauto_https off\n}\n" + (EXAMPLES / "caddy/Caddyfile").read_text(),
                       ("/run/dthrottle/http.sock", daemon.http_path), (":7319", f":{server.other_ports[0]}"),
                       (":80 {\n", f":{server.port} {{\n\tbind 127.0.0.1\n"),
                       ("reverse_proxy 127.0.0.1:8080", "respond served"), *replacements)
    if tag is not None:
        settings = adapted(settings, ("ip:{remote_host}", "{path}"))
    if patient:
        settings = without_hurry(settings, 2)
    server.write_settings(settings)
    with server:
        yield server


@contextlib.contextmanager
def envoy_by(recipe, daemon_address, patient):
    server = Envoy()
    with Nginx('location / { return 200 "served\\n"; }', main="", shown="$status") as pages:
        settings = adapted((EXAMPLES / recipe / "envoy.yaml").read_text(), daemon_address,
                           ("0.0.0.0, port_value: 80}", f"127.0.0.1, port_value: {server.port}}}"),
                           ("port_value: 8080", f"port_value: {pages.port}"))
        server.write_settings(adapted(settings, ("0.02s", "20s")) if patient else settings)
        with server:
            yield server


def envoy(daemon, patient=True):
    return envoy_by("envoy", ("/run/dthrottle/http.sock", daemon.http_path), patient)


def envoy_over_grpc(daemon, recipe="envoy-ratelimit", patient=False):
    return envoy_by(recipe, ("port_value: 7317", f"port_value: {daemon.envoy_port}"), patient)


OVER_HTTP = {"nginx with auth_request": nginx_http, "Caddy": caddy}
# After a failure these do not ask for a while.
PAUSING = {"nginx with Lua": nginx, "Apache with mod_lua": apache, "HAProxy with Lua": haproxy, "Caddy": caddy}
SERVERS = {**PAUSING, **OVER_HTTP}


def open_http_daemon(*limits):
    return open_daemon(*limits, kind=HttpDaemon, admin={"http_unix_mode": "0666"})


class Recipes(SystemTest):
    def wait_throttled(self, server):
        wait_until(lambda: server.get().status == 429, "the daemon is asked again")

    def test_a_request_is_served_or_refused_as_the_daemon_says(self):
        for name, recipe in SERVERS.items():
            with self.subTest(name), open_http_daemon(rule(burst=3)) as daemon, recipe(daemon) as server:
                self.assertEqual(server.statuses(5), [200, 200, 200, 429, 429])
                self.assertEqual(daemon.stats()["served"], 3)
                self.assertEqual(daemon.admin_json(f"show {TAG}")["verdict"], "NO")

    def test_without_a_daemon_everything_is_served(self):
        for name, recipe in SERVERS.items():
            with self.subTest(name), open_http_daemon(rule(burst=1)) as daemon, recipe(daemon) as server:
                self.assertEqual(server.statuses(2), [200, 429])
                daemon.kill()
                responses = [server.get() for _ in range(50)]
                self.assertEqual({response.status for response in responses}, {200})
                self.assertLess(max(response.seconds for response in responses), TIMEOUT_S + SLACK)
                daemon.start()
                self.wait_throttled(server)

    def test_a_daemon_that_hangs_costs_a_few_requests_their_timeout(self):
        for name, recipe in PAUSING.items():
            with self.subTest(name), open_http_daemon(rule(burst=1)) as daemon, recipe(daemon, patient=False) as server:
                self.wait_throttled(server)
                before = daemon.stats()["queries"]
                with stopped(daemon):
                    responses = [server.get() for _ in range(200)]
                self.assertEqual({response.status for response in responses}, {200})
                self.assertLess(max(response.seconds for response in responses), TIMEOUT_S + SLACK)
                self.wait_throttled(server)    # the daemon has heard what it was asked meanwhile
                self.assertLess(daemon.stats()["queries"] - before, 100)

    def test_one_answer_that_comes_too_late_opens_no_limit_for_long(self):
        for name, recipe in PAUSING.items():
            with self.subTest(name), open_http_daemon(rule(burst=1)) as daemon, recipe(daemon, patient=False) as server:
                opened = []
                for _ in range(5):    # a busy machine makes other answers late, too
                    self.wait_throttled(server)
                    with stopped(daemon):
                        self.assertEqual(server.get().status, 200)
                    begin = time.monotonic()
                    self.wait_throttled(server)
                    opened.append(time.monotonic() - begin)
                report(f"{name}: one late answer opens a limit for {1000 * min(opened):.0f} ms")
                self.assertLess(min(opened), 0.8)

    def test_a_restart_goes_unnoticed(self):
        for name, recipe in SERVERS.items():
            with self.subTest(name), open_http_daemon(rule(burst=1)) as daemon, recipe(daemon) as server:
                self.assertEqual(server.statuses(2), [200, 429])
                daemon.restart()
                self.assertEqual(server.statuses(1), [429])

    def test_a_newline_in_the_tag_is_no_second_query(self):
        for name, recipe in SERVERS.items():
            with self.subTest(name), open_http_daemon(rule(burst=2)) as daemon, recipe(daemon, tag="path") as server:
                self.assertEqual(server.statuses(3, "/a%0ab%0dc%20d%7f"), [200, 200, 429])
                tag = "/a" if recipe is nginx_http else "/a_b_c_d_"    # nginx can only cut it
                self.assertEqual(daemon.admin_json(f"show {tag}")["verdict"], "NO")
                self.assertEqual(daemon.stats()["served"], 2)
                self.assertEqual(server.statuses(3, "/other"), [200, 200, 429])


class Proxies(SystemTest):
    """Proxies that Debian does not have."""

    @unittest.skipIf(Envoy.PROGRAM is None, "no envoy in PATH")
    def test_envoy_asks_by_the_method_of_the_client_and_for_its_address(self):
        with open_http_daemon(rule(burst=10, rate=0.001)) as daemon, envoy(daemon) as server:
            for method, source in (("GET", "127.0.0.2"), ("POST", "127.0.0.3")):
                body = "Content-Length: 4\r\nConnection: close\r\n\r\nbody" if method == "POST" else ""
                forged = "X-Forwarded-For: 9.9.9.9\r\nDthrottle-Tag: other\r\n" + body
                statuses = [server.get("/a?tag=evil&cost=0", "site.example", forged, method, source).status
                            for _ in range(12)]
                self.assertEqual(statuses, 10 * [200] + 2 * [429], method)
                self.assertEqual(daemon.admin_json(f"show ip:{source}")["verdict"], "NO")
            refused = server.get(source="127.0.0.2")
            self.assertTrue(900 <= int(refused.fields["retry-after"]) <= 1000, refused.head)
            self.assertIn("r=9", server.get(source="127.0.0.4").fields["ratelimit"])
            self.assertEqual(daemon.stats()["table_tags"], 3)
            self.assertLessEqual(daemon.stats()["http_connections_accepted"], 4)    # of two workers, kept

    def serves_without(self, daemon, server, proxy):
        with stopped(daemon):
            hung = [server.get() for _ in range(10)]
        daemon.kill()
        gone = [server.get() for _ in range(10)]
        self.assertEqual({response.status for response in hung + gone}, {200})
        for what, responses in (("hangs", hung), ("is gone", gone)):
            worst = max(response.seconds for response in responses)
            report(f"{proxy}, the daemon {what}: a request takes at most {1000 * worst:.0f} ms")

    @unittest.skipIf(Envoy.PROGRAM is None, "no envoy in PATH")
    def test_envoy_serves_without_a_daemon_and_waits_no_longer_than_it_is_told(self):
        with open_http_daemon(rule(burst=1)) as daemon, envoy(daemon, patient=False) as server:
            wait_until(lambda: server.get().status == 429, "the daemon is asked")
            self.serves_without(daemon, server, "Envoy")
            daemon.start()
            wait_until(lambda: server.get().status == 429, "the daemon is asked again")

    @unittest.skipIf(Envoy.PROGRAM is None or not built_with_grpc(), "no envoy in PATH, or built without gRPC")
    def test_envoy_asks_about_method_and_address_together(self):
        limits = rule(name="posts", match="edge|method=POST|*", burst=3, rate=0.001), rule(burst=10, rate=0.001)
        with EnvoyDaemon(*limits) as daemon, envoy_over_grpc(daemon, patient=True) as server:
            def statuses(method, source, count):
                body = "Content-Length: 4\r\nConnection: close\r\n\r\nbody" if method == "POST" else ""
                forged = "X-Forwarded-For: 9.9.9.9\r\n" + body
                return [server.get("/", "site.example", forged, method, source).status for _ in range(count)]
            self.assertEqual(statuses("GET", "127.0.0.2", 12), 10 * [200] + 2 * [429])
            self.assertEqual(statuses("POST", "127.0.0.3", 5), 3 * [200] + 2 * [429])
            self.assertEqual(statuses("GET", "127.0.0.3", 8), 7 * [200] + [429])    # what was refused took nothing
            refused = server.get(source="127.0.0.2")
            self.assertTrue(900 <= int(refused.fields["retry-after"]) <= 1000, refused.head)
            self.assertIn("r=9", server.get(source="127.0.0.4").fields["ratelimit"])
            self.assertLessEqual(daemon.stats()["envoy_connections_accepted"], 4)    # of two workers, kept

    @unittest.skipIf(Envoy.PROGRAM is None or not built_with_grpc(), "no envoy in PATH, or built without gRPC")
    def test_envoy_serves_without_the_rate_limit_service_and_waits_no_longer_than_it_is_told(self):
        with EnvoyDaemon(rule(burst=1)) as daemon, envoy_over_grpc(daemon) as server:
            wait_until(lambda: server.get().status == 429, "the daemon is asked")
            self.serves_without(daemon, server, "Envoy by its filter ratelimit")

    @unittest.skipIf(Envoy.PROGRAM is None or not built_with_grpc(), "no envoy in PATH, or built without gRPC")
    def test_envoy_keeps_to_the_quota_that_it_is_assigned(self):
        recipe = (EXAMPLES / "envoy-quota/envoy.yaml").read_text()
        text = "\n".join(re.findall(r"^#   (.*)$", recipe, re.M)).replace("1000", "3")
        with EnvoyDaemon(text + '\nlearning_mode_duration = "0s"\n') as daemon, \
                envoy_over_grpc(daemon, "envoy-quota") as server:
            server.get()    # reported at once, and decided without an assignment
            wait_until(lambda: daemon.stats()["envoy_reports"] == 1, "it has reported")
            wait_until(lambda: server.get().status == 429, "it has its assignment")
            began, served = time.monotonic(), 0
            while (spent := time.monotonic() - began) < 12:    # more than two reports
                served += server.get().status == 200
            self.assertTrue(3 * spent - 4 <= served <= 3 * spent + 4, (served, spent))
            (row,) = daemon.admin_json("leases edge|rule=web")["clients"]
            self.assertEqual((row["client"], row["has"]), ("edge-1#0", 3))

    def test_what_traefik_asks_is_about_the_address_that_it_saw(self):
        # Its forwardAuth sends a GET for the address of the recipe, and as X-Forwarded-For what it saw itself.
        recipe = (EXAMPLES / "traefik/dynamic.yml").read_text()
        target = re.search(r'address: "http://127.0.0.1:7313(/\S+)"', recipe)[1]
        settings = tomllib.loads("\n".join(re.findall(r"^#   (.*)$", recipe, re.M)))["admin"]
        with open_daemon(rule(burst=10, rate=0.001), kind=HttpDaemon, admin=settings) as daemon:
            for source in ("192.0.2.1", "192.0.2.2"):
                fields = {"X-Forwarded-For": source, "X-Forwarded-Method": "POST", "X-Forwarded-Uri": "/login"}
                statuses = [daemon.get(target, **fields)[0] for _ in range(12)]
                self.assertEqual(statuses, 10 * [200] + 2 * [429])


class OverHttp(SystemTest):
    """What only the recipes that speak HTTP have to get right."""

    def test_without_a_pause_a_daemon_that_hangs_costs_each_request_its_timeout(self):
        with open_http_daemon(rule(burst=1)) as daemon, nginx_http(daemon, patient=False) as server:
            wait_until(lambda: server.get().status == 429, "the daemon is asked")
            with stopped(daemon):
                for _ in range(20):
                    response = server.get()
                    self.assertEqual(response.status, 200)
                    self.assertLess(response.seconds, TIMEOUT_S + SLACK)
            wait_until(lambda: server.get().status == 429, "the daemon is asked again")

    def test_the_daemon_gets_no_fields_of_the_client(self):
        with open_http_daemon(rule(burst=1)) as daemon:
            for name, recipe in OVER_HTTP.items():
                with self.subTest(name), recipe(daemon, tag="path") as server:
                    path = f"/{name.split()[0]}"
                    many, long = "".join(f"X-{n}:\r\n" for n in range(800)), f"X: {7500 * 'x'}\r\n"
                    self.assertEqual([server.get(path, fields=fields).status for fields in (many, long)], [200, 429])

    def test_another_forbidden_page_is_not_called_throttled(self):
        forbids = ("    auth_request /_throttle;", "    auth_request /_throttle;\n    deny all;")
        with open_http_daemon(rule(burst=1)) as daemon, nginx_http(daemon, replacements=[forbids]) as server:
            self.assertEqual(server.get().status, 403)

    def test_a_request_with_a_body_is_asked_about_without_it(self):
        for name, recipe in OVER_HTTP.items():
            with self.subTest(name), open_http_daemon(rule(burst=2)) as daemon, recipe(daemon) as server:
                body = "Content-Length: 4\r\nConnection: close\r\n\r\nbody"
                self.assertEqual([server.get(fields=body).status for _ in range(3)], [200, 200, 429])
                self.assertEqual(daemon.stats()["served"], 2)

    def test_a_refusal_says_when_to_come_back(self):
        for name, recipe in OVER_HTTP.items():
            with self.subTest(name), open_http_daemon(rule(burst=1, rate=0.001)) as daemon, recipe(daemon) as server:
                self.assertNotIn("Retry-After", server.get().head)
                refusal = server.get()
                self.assertEqual(refusal.status, 429)
                self.assertRegex(refusal.head, r"\r\nRetry-After: (9\d\d|1000)(\r\n|$)")

    def test_what_a_client_writes_changes_neither_cost_nor_tag(self):
        for name, recipe in OVER_HTTP.items():
            with self.subTest(name), open_http_daemon(rule(burst=2)) as daemon, recipe(daemon, tag="path") as server:
                statuses = [server.get("/x&cost=0?cost=0&tag=other", fields="Dthrottle-Tag: other\r\n").status
                            for _ in range(3)]
                self.assertEqual(statuses, [200, 200, 429])
                self.assertEqual(daemon.admin_json("show /x&cost=0")["verdict"], "NO")
                self.assertEqual(daemon.stats()["table_tags"], 1)


    def test_many_requests_share_a_connection(self):
        for name, recipe in OVER_HTTP.items():
            with self.subTest(name), open_http_daemon(rule(burst=50)) as daemon, recipe(daemon) as server:
                self.assertEqual(server.statuses(100), 50 * [200] + 50 * [429])
                self.assertLessEqual(daemon.stats()["http_connections_accepted"], 3)

    def test_requests_at_once_use_connections_again(self):
        for name, recipe in OVER_HTTP.items():
            with self.subTest(name), open_http_daemon(rule(burst=50)) as daemon, recipe(daemon) as server:
                with Load(server, threads=8) as load:
                    wait_until(lambda: len(load.responses) > 500, "there are answers")
                stats = daemon.stats()
                self.assertLess(stats["http_connections_accepted"], stats["http_requests"] / 10)

    def test_what_is_no_verdict_serves(self):
        asked = {nginx_http: ("/auth;", "/auth?cost=many;"), caddy: ("cost=1", "cost=many")}
        for name, recipe in OVER_HTTP.items():
            with self.subTest(name), open_http_daemon(rule(burst=1)) as daemon, \
                    recipe(daemon, replacements=[asked[recipe]]) as server:
                self.assertEqual(server.statuses(3), 3 * [200])
                self.assertGreaterEqual(daemon.stats()["http_connections_accepted"], 1)
