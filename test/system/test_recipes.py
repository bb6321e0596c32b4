"""The recipes of conf/examples in the servers that they are for: nothing in them is changed but paths and ports."""

import contextlib
import re
import time

from common import SystemTest
from daemon import rule, wait_until
from webserver import EXAMPLES, SLACK, Apache, Haproxy, Nginx, open_daemon, stopped

TIMEOUT_S = 0.02    # of the recipes; where the daemon does not hang it has all the time it takes on a busy machine
TAG = "ip:127.0.0.1"


def adapted(text, *replacements):
    """The text with every part replaced, all of which have to be there."""
    for old, new in replacements:
        if old not in text:
            raise AssertionError(f"{old!r} is not in the recipe any more")
        text = text.replace(old, new)
    return text


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


SERVERS = {"nginx with Lua": nginx, "Apache with mod_lua": apache, "HAProxy with Lua": haproxy}


class Recipes(SystemTest):
    def wait_throttled(self, server):
        wait_until(lambda: server.get().status == 429, "the daemon is asked again")

    def test_a_request_is_served_or_refused_as_the_daemon_says(self):
        for name, recipe in SERVERS.items():
            with self.subTest(name), open_daemon(rule(burst=3)) as daemon, recipe(daemon) as server:
                self.assertEqual(server.statuses(5), [200, 200, 200, 429, 429])
                self.assertEqual(daemon.stats()["served"], 3)
                self.assertEqual(daemon.admin_json(f"show {TAG}")["verdict"], "NO")

    def test_without_a_daemon_everything_is_served(self):
        for name, recipe in SERVERS.items():
            with self.subTest(name), open_daemon(rule(burst=1)) as daemon, recipe(daemon) as server:
                self.assertEqual(server.statuses(2), [200, 429])
                daemon.kill()
                responses = [server.get() for _ in range(50)]
                self.assertEqual({response.status for response in responses}, {200})
                self.assertLess(max(response.seconds for response in responses), TIMEOUT_S + SLACK)
                daemon.start()
                self.wait_throttled(server)

    def test_a_daemon_that_hangs_costs_a_few_requests_their_timeout(self):
        for name, recipe in SERVERS.items():
            with self.subTest(name), open_daemon(rule(burst=1)) as daemon, recipe(daemon, patient=False) as server:
                self.wait_throttled(server)
                with stopped(daemon):
                    begin = time.monotonic()
                    responses = [server.get() for _ in range(200)]
                    took = time.monotonic() - begin
                self.assertEqual({response.status for response in responses}, {200})
                self.assertLess(max(response.seconds for response in responses), TIMEOUT_S + SLACK)
                self.assertLess(took, 3 * SLACK)
                self.wait_throttled(server)

    def test_a_restart_goes_unnoticed(self):
        for name, recipe in SERVERS.items():
            with self.subTest(name), open_daemon(rule(burst=1)) as daemon, recipe(daemon) as server:
                self.assertEqual(server.statuses(2), [200, 429])
                daemon.restart()
                self.assertEqual(server.statuses(1), [429])

    def test_a_newline_in_the_tag_is_no_second_query(self):
        for name, recipe in SERVERS.items():
            with self.subTest(name), open_daemon(rule(burst=2)) as daemon, recipe(daemon, tag="path") as server:
                self.assertEqual(server.statuses(3, "/a%0ab%0dc%20d%7f"), [200, 200, 429])
                self.assertEqual(daemon.admin_json("show /a_b_c_d_")["verdict"], "NO")
                self.assertEqual(daemon.stats()["served"], 2)
                self.assertEqual(server.statuses(3, "/other"), [200, 200, 429])
