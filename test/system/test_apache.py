"""The Apache module in Debian's apache2: what the daemon says, and what comes of one that does not say anything."""

import base64
import os
import time

from common import SystemTest
from daemon import PATIENCE, rule, wait_until
from webserver import (APACHE_MODULE, SLACK, TIMEOUT_S, Apache, Load, ModuleTest, full_backlog, metrics,
                       open_ask_daemon, open_daemon, stopped, wait_refused_by_page, waited)

MPMS = ("event", "worker", "prefork")


def module_settings(daemon, more="", path=None, timeout_ms=30_000):
    return f"""\
LoadModule dthrottle_module {APACHE_MODULE}
Dthrottle On
DthrottleServer unix:{path or daemon.query_path}
DthrottleTimeout {timeout_ms}ms
DthrottleTag "%{{QUERY_STRING}}"
{more}"""


def serving_pages(daemon, locations):
    """A server of a directory with one page, {root} in what is said of its locations."""
    root = daemon.directory / "root"
    root.mkdir()
    (root / "index.html").write_text("served\n")
    granted = f"<Directory {root}>\nRequire all granted\n</Directory>\n"
    return Apache(module_settings(daemon, granted + locations.format(root=root)), modules=("alias",))


# Tags are query strings, and two pages show the counts.
COUNTS = """
  DthrottleTag "%{QUERY_STRING}"
  <Location /metrics>
    Dthrottle Off
    SetHandler dthrottle-metrics
  </Location>
  <Location /server-status>
    Dthrottle Off
    SetHandler server-status
  </Location>"""


class ApacheTest(ModuleTest, SystemTest):
    module, package = APACHE_MODULE, "apache2-dev"


class Verdicts(ApacheTest):
    def test_a_request_is_served_or_refused_as_the_daemon_says(self):
        for mpm in MPMS:
            with self.subTest(mpm), open_daemon(rule(burst=2)) as daemon:
                with Apache(module_settings(daemon), mpm) as server:
                    self.assertEqual(server.statuses(4, "/?a"), [200, 200, 429, 429])
                    self.assertEqual(server.statuses(1, "/?b"), [200])
                    lines = server.access(5)
                    self.assertEqual([line[1] for line in lines],
                                     ["SERVED"] * 2 + ["THROTTLED"] * 2 + ["SERVED"])
                    for line in lines:
                        self.assertTrue(0 <= int(line[2]) < SLACK * 1e6, line)

    def test_settings_of_a_location_go_before_those_around_it(self):
        locations = """
          Alias /other {root}
          Alias /off {root}
          Alias /shadow {root}
          Alias /empty {root}
          <Location /other>
            DthrottleStatus 503
            DthrottleTag "other:%{{QUERY_STRING}}"
          </Location>
          <Location /off>
            Dthrottle Off
          </Location>
          <Location /shadow>
            DthrottleShadow On
          </Location>
          <Location /empty>
            DthrottleTag "%{{HTTP:X-Nothing}}"
          </Location>"""
        with open_daemon(rule(burst=1)) as daemon:
            with serving_pages(daemon, locations) as server:
                self.assertEqual(server.statuses(2, "/?a"), [200, 429])
                self.assertEqual(server.statuses(2, "/other/?a"), [200, 503])
                self.assertEqual(server.statuses(2, "/off/?a"), [200, 200])
                self.assertEqual(server.statuses(2, "/shadow/?a"), [200, 200])
                self.assertEqual(server.statuses(2, "/empty/?a"), [200, 200])
                self.assertEqual([line[1] for line in server.access(10)],
                                 ["SERVED", "THROTTLED", "SERVED", "THROTTLED", "-", "-", "SHADOWED", "SHADOWED",
                                  "-", "-"])
                self.assertEqual(daemon.stats()["served"] + daemon.stats()["throttled"], 6)
                self.assertIn('would be throttled, tag "a"', server.log)

    def test_the_tag_is_the_address_unless_it_is_set(self):
        with open_daemon(rule(burst=1)) as daemon:
            settings = "\n".join(line for line in module_settings(daemon).splitlines() if "Tag" not in line)
            with Apache(settings) as server:
                self.assertEqual(server.statuses(2), [200, 429])
            self.assertEqual(daemon.admin_json("show 127.0.0.1")["verdict"], "NO")

    def test_a_newline_in_the_tag_is_no_second_query(self):
        with open_daemon(rule(burst=2)) as daemon:
            settings = module_settings(daemon).replace("%{QUERY_STRING}", "%{unescape:%{QUERY_STRING}}")
            with Apache(settings) as server:
                self.assertEqual(server.statuses(3, "/?a%0ab%0dc%20d%7f"), [200, 200, 429])
                self.assertEqual(daemon.admin_json("show a_b_c_d_")["verdict"], "NO")
                self.assertEqual(daemon.stats()["served"], 2)
                self.assertEqual(server.statuses(3, "/?other"), [200, 200, 429])

    def test_one_request_asks_once_whatever_becomes_of_it(self):
        more = """
          ErrorDocument 429 /limited.html
          ErrorDocument 404 /missing.html
          RewriteEngine On
          RewriteRule ^/rewritten$ /index.html [PT]
          FallbackResource /index.html
          TypesConfig /dev/null
          AddType text/html .shtml .html
          AddOutputFilter INCLUDES .shtml
          <Directory />
            Options +Includes
          </Directory>"""
        with open_daemon(rule(burst=10)) as daemon:
            with Apache(module_settings(daemon, more), modules=("rewrite", "include", "mime")) as server:
                root = server.path("root")
                (root / "limited.html").write_text("limited\n")
                (root / "part.html").write_text("part\n")
                (root / "page.shtml").write_text('<!--#include virtual="/part.html?a" -->\n')
                asked = 0
                for path in ("/", "/rewritten", "/nothing", "/page.shtml"):
                    asked += 1
                    body = server.get(f"{path}?a").body
                    self.assertIn(b"part" if path == "/page.shtml" else b"served", body, path)
                    self.assertEqual(daemon.stats()["served"], asked, path)
                server.statuses(10 - asked, "/?a")
                response = server.get("/?a")
                self.assertEqual((response.status, response.body), (429, b"limited\n"))
                self.assertEqual(daemon.stats()["throttled"], 1)

    def test_what_an_internal_redirect_leads_to_is_asked_for(self):
        """Only the page is throttled, and each of these gets there its own way."""
        page = '<Location "/index.html">\nDthrottle On\n</Location>\n'
        files = '<Files "index.html">\nDthrottle On\n</Files>\n'
        missing = ("<Directory />\nRewriteEngine On\nRewriteCond %{REQUEST_FILENAME} !-f\n"
                   "RewriteRule ^ /index.html [L]\n</Directory>")
        chosen = "AddType text/html .html\n<Directory />\nOptions +MultiViews\n</Directory>"
        for name, more, path in (("DirectoryIndex, a location", page, "/?a"), ("DirectoryIndex, a file", files, "/?a"),
                                 ("RewriteRule", page + missing, "/nothing?a"),
                                 ("FallbackResource", page + "FallbackResource /index.html", "/nothing?a"),
                                 ("MultiViews", page + chosen, "/index?a"),
                                 ("ErrorDocument", page + "ErrorDocument 404 /index.html?a", "/nothing")):
            with self.subTest(name), open_daemon(rule(burst=2)) as daemon:
                settings = module_settings(daemon, f"TypesConfig /dev/null\n{more}").replace("Dthrottle On\n", "", 1)
                with Apache(settings, modules=("rewrite", "negotiation", "mime")) as server:
                    self.assertEqual([server.get(path).body == b"served\n" for _ in range(4)], [True, True, False, False])
                    self.assertEqual([line[1] for line in server.access(4)], ["SERVED"] * 2 + ["THROTTLED"] * 2)
                    self.assertEqual((daemon.stats()["served"], daemon.stats()["throttled"]), (2, 2))
                    # An error that leads to the page stays the status.
                    self.assertEqual(server.get(path).status, 404 if name == "ErrorDocument" else 429)

    def test_a_tag_may_be_the_user_whom_a_password_tells(self):
        more = """
          <Location />
            DthrottleTag "%{REMOTE_USER}"
            AuthType Basic
            AuthName private
            AuthBasicProvider anon
            Anonymous ann bob
            Require valid-user
          </Location>"""
        with open_daemon(rule(burst=2)) as daemon:
            with Apache(module_settings(daemon, more),
                        modules=("auth_basic", "authn_core", "authn_anon", "authz_user")) as server:
                said = [server.get(fields=f"Authorization: Basic {base64.b64encode(user + b':a@b').decode()}\r\n").status
                        for user in (b"ann", b"ann", b"ann", b"bob")]
                self.assertEqual(said + server.statuses(3), [200, 200, 429, 200, 401, 401, 401])
                self.assertEqual((daemon.stats()["served"], daemon.stats()["throttled"]), (3, 1))

    def test_a_tag_that_names_the_user_is_asked_for_when_the_password_is_checked(self):
        """Even if its text is never empty, or another tag is not. A request without the password costs nothing."""
        for tags in ('DthrottleTag "user:%{REMOTE_USER}"', 'DthrottleTag "%{tolower:%{AUTH_TYPE}-%{remote_user}}"',
                     'DthrottleTag "net:%{REMOTE_ADDR}"\nDthrottleTag "%{REMOTE_USER}"'):
            more = f"""
              <Location />
                {tags}
                AuthType Basic
                AuthName private
                AuthBasicProvider anon
                Anonymous ann bob
                Require valid-user
              </Location>"""
            with self.subTest(tags), open_ask_daemon(rule(match="net:*", burst=100), rule(burst=2),
                                                     page={"entries": 64}) as daemon:
                settings = module_settings(daemon, f"DthrottleAsk unix:{daemon.ask_path}\nDthrottleHeaders none\n{more}")
                with Apache(settings, modules=("auth_basic", "authn_core", "authn_anon", "authz_user")) as server:
                    def status(user, server=server):
                        password = base64.b64encode(user + b":a@b").decode()
                        return server.get(fields=f"Authorization: Basic {password}\r\n").status
                    self.assertEqual(server.statuses(3), [401] * 3)
                    self.assertEqual([status(user) for user in (b"ann", b"ann", b"ann", b"bob")], [200, 200, 429, 200])
                    wait_until(lambda: status(b"ann") == 429 and daemon.stats()["page_refused"], "a child has a page")
                    self.assertEqual((server.statuses(1), status(b"bob"), status(b"bob")), ([401], 200, 429))

    def test_satisfy_any_passes_over_no_refusal(self):
        more = 'DthrottleFailClosed On\n<Location "/">\nSatisfy Any\n</Location>'
        with open_daemon(rule(burst=2)) as daemon:
            with Apache(module_settings(daemon, more), modules=("access_compat",)) as server:
                self.assertEqual(server.statuses(4, "/?a"), [200, 200, 429, 429])
                daemon.kill()
                self.assertEqual(server.statuses(2, "/?a"), [503, 503])

    def test_threads_share_connections_and_get_their_own_answers(self):
        with open_daemon(rule(burst=1, match="no*"), rule(burst=1_000_000)) as daemon:
            with Apache(module_settings(daemon)) as server:
                self.assert_answers_reach_their_own_requests(server, refused="/?no", served="/?yes")
                self.assertLessEqual(daemon.stats()["connections"], server.THREADS)

    def test_a_condition_chooses_by_method(self):
        more = "<If \"%{REQUEST_METHOD} == 'POST'\">\nDthrottle On\n</If>"
        with open_daemon(rule(burst=1)) as daemon:
            with Apache(module_settings(daemon, more).replace("Dthrottle On\n", "", 1)) as server:
                self.assertEqual([server.get("/?a", method=method).status for method in ("POST", "POST", "GET")],
                                 [200, 429, 200])

    def test_a_section_for_some_methods_has_no_settings_as_they_would_be_for_all(self):
        for setting in ("Dthrottle On", "DthrottleShadow On", "DthrottleFailClosed On", "DthrottleTag a",
                        "DthrottleServer unix:/run/x", "DthrottleAsk unix:/run/x", "DthrottleHeaders off",
                        "DthrottleStatus 429", "DthrottleTimeout 20", "DthrottleDelay 20"):
            text = f"LoadModule dthrottle_module {APACHE_MODULE}\n<Location />\n<Limit POST>\n{setting}\n</Limit>\n</Location>"
            with self.subTest(setting), self.assertRaisesRegex(AssertionError, "cannot occur within"), Apache(text):
                pass

    def test_bad_settings_are_refused(self):
        load = f"LoadModule dthrottle_module {APACHE_MODULE}\n"
        for wrong in ("Dthrottle Maybe", "DthrottleStatus 200", "DthrottleStatus 429x", "DthrottleTimeout 0",
                      "DthrottleTimeout 2s", "DthrottleServer /run/x", "DthrottleServer tcp:localhost:1",
                      'DthrottleTag "%{NOTHING"', "DthrottleTag a price=1", "DthrottleTag a cost=-1",
                      "DthrottleDelay 60001", "DthrottleDelay 1s", "DthrottleAsk /run/x", "DthrottleHeaders draft-11"):
            with self.subTest(wrong), self.assertRaisesRegex(AssertionError, "left with 1"), Apache(load + wrong):
                pass

    def test_a_query_socket_that_is_named_is_not_passed_over_for_another_daemon(self):
        load = f"LoadModule dthrottle_module {APACHE_MODULE}\nDthrottle On\n"
        named = "DthrottleServer unix:/x\n"
        for asks in ("DthrottleTag a cost=2\n", "DthrottleTag a\nDthrottleTag b\n", "DthrottleDelay 100\n"):
            for text in (named + asks, f"{named}<Location /a>\n{asks}</Location>", f"<Location /a>\n{named}{asks}</Location>",
                         f'{named}<Directory />\n<Files "a">\n{asks}</Files>\n</Directory>',
                         f"{named}<If true>\n{asks}</If>", f"{named}<VirtualHost *:1>\n{asks}</VirtualHost>",
                         f"DthrottleAsk unix:/y\n{asks}<Location /a>\n{named}</Location>"):
                said = f'"{"/a" if "Location" in text else ""}.*" asks about .*name the ask socket there by DthrottleAsk'
                with self.subTest(text), self.assertRaisesRegex(AssertionError, said):
                    with Apache(load + text):
                        pass
            for text in (f"{named}Dthrottle Off\n{asks}",
                         f"{named}<Location /a>\nDthrottleAsk unix:/y\n</Location>\n<Location /a/b>\n{asks}</Location>",
                         f"{named}<VirtualHost *:1>\nDthrottleAsk unix:/y\n<Location /a>\n{asks}</Location>\n</VirtualHost>"):
                with self.subTest(text), Apache(load + text):
                    pass


class Questions(ApacheTest):
    """Over the ask socket, where an answer says more than OK and NO."""

    def settings(self, daemon, more='DthrottleTag "%{QUERY_STRING}"'):
        return (f"LoadModule dthrottle_module {APACHE_MODULE}\nDthrottle On\nDthrottleAsk unix:{daemon.ask_path}\n"
                f"DthrottleTimeout 30000\n{more}\n")

    def test_clients_are_told_their_limit_and_when_to_come_back(self):
        with open_ask_daemon(rule(name="login", burst=2, rate=0.01)) as daemon:
            with Apache(self.settings(daemon)) as server:
                served, _, refused = (server.get("/?a") for _ in range(3))
                self.assertEqual(served.fields["RateLimit-Policy"], '"login";q=2;w=200')
                self.assertEqual(served.fields["RateLimit"], '"login";r=1;t=100')
                self.assertNotIn("Retry-After", served.fields)
                self.assertEqual(refused.status, 429)
                self.assertRegex(refused.fields["RateLimit"], r'^"login";r=0;t=\d+$')
                self.assertTrue(100 - PATIENCE <= int(refused.fields["Retry-After"]) <= 100, refused.head)

    def test_a_child_decides_questions_by_its_page_where_no_fields_are_wanted(self):
        more = 'DthrottleTag "user:%{QUERY_STRING}"\nDthrottleTag "net:n"\nDthrottleHeaders none'
        with open_ask_daemon(rule(name="users", match="user:*", burst=2), rule(name="nets", match="net:*", burst=1000),
                             page={"entries": 64}) as daemon:
            with Apache(self.settings(daemon, more)) as server:
                self.assertEqual(server.statuses(2, "/?a"), [200, 200])
                wait_refused_by_page(daemon, server, "/?a")
                self.assertNotIn("Retry-After", server.get("/?a").fields)
                self.assertIn('throttled, tag "user:a"', server.log)
            wait_until(lambda: daemon.stats()["page_connections"] == 0, "its pages are gone")
            self.assertEqual(daemon.ask(["net:n"] * 1000).count("OK"), 998)

    def test_the_body_is_made_by_apache_and_the_fields_stay(self):
        more = r"""
          DthrottleTag "%{QUERY_STRING}"
          ErrorDocument 429 "wait %{reqenv:DTHROTTLE_RETRY_AFTER} s, %{reqenv:DTHROTTLE_RULE} allows %{reqenv:DTHROTTLE_LIMIT}"
          TypesConfig /dev/null
          AddType application/json .json
          <Location /index.html>
            ErrorDocument 429 /limited.json
            DthrottleHeaders draft-03
          </Location>"""
        with open_ask_daemon(rule(name="login", burst=1, rate=0.01)) as daemon:
            with Apache(self.settings(daemon, more), modules=("mime",)) as server:
                server.path("root").joinpath("limited.json").write_text('{"error":"limited"}\n')
                self.assertEqual(server.get("/?a").status, 200)
                text, page = server.get("/?a"), server.get("/index.html?a")
                self.assertEqual((text.status, page.status), (429, 429))
                self.assertEqual(text.body.decode(), f"wait {text.fields['Retry-After']} s, login allows 1")
                self.assertEqual((page.body, page.fields["Content-Type"]), (b'{"error":"limited"}\n', "application/json"))
                self.assertEqual(page.fields["X-RateLimit-Limit"], "1")
                self.assertIn("Retry-After", page.fields)
                self.assertNotIn("RateLimit", page.fields)

    def test_logs_and_error_pages_find_what_was_said_behind_an_internal_redirect(self):
        more = r"""
          DthrottleTag "%{QUERY_STRING}"
          ErrorDocument 429 /limited.shtml
          ErrorDocument 404 /limited.shtml
          TypesConfig /dev/null
          AddType text/html .shtml
          AddOutputFilter INCLUDES .shtml
          <Directory />
            Options +Includes
            RewriteEngine On
            RewriteRule rewritten$ /index.html [L]
          </Directory>
          <Location /limited.shtml>
            Dthrottle Off
          </Location>"""
        with open_ask_daemon(rule(name="login", burst=2, rate=0.01)) as daemon:
            with Apache(self.settings(daemon, more), modules=("rewrite", "include", "mime")) as server:
                page = '<!--#echo var="DTHROTTLE_RULE" --> <!--#echo var="DTHROTTLE_RETRY_AFTER" -->\n'
                server.path("root").joinpath("limited.shtml").write_text(page)
                self.assertEqual([server.get(f"/{path}?a").status for path in ("nothing", "rewritten")], [404, 200])
                refused = server.get("/?a")
                for said in ("login", refused.fields["Retry-After"]):    # in chunks
                    self.assertIn(said, refused.body.decode())
                lines = server.access(3)
                self.assertEqual([line[1] for line in lines], ["SERVED", "SERVED", "THROTTLED"])
                self.assertTrue(all(int(line[2]) >= 0 for line in lines), lines)

    def test_the_tags_of_a_location_are_one_question_with_their_costs(self):
        more = ('DthrottleTag "user:%{QUERY_STRING}"\nDthrottleTag "net:%{REMOTE_ADDR}" cost=2\n'
                'DthrottleTag "%{HTTP:X-More}"')
        with open_ask_daemon(rule(name="users", match="user:*", burst=10, rate=0.001),
                              rule(name="nets", match="net:*", burst=4, rate=0.001)) as daemon:
            with Apache(self.settings(daemon, more)) as server:
                self.assertEqual(server.statuses(3, "/?a"), [200, 200, 429])
                self.assertEqual(int(daemon.admin_json("show user:a")["level"]), 8)    # the refusal paid nothing
                self.assertEqual(int(daemon.admin_json("show net:127.0.0.1")["level"]), 0)

    def test_a_htaccess_says_what_is_asked_where_it_may(self):
        allowed = '<Directory "%s">\nAllowOverride Limit\nRequire all granted\n</Directory>'
        for text, statuses in (('Dthrottle On\nDthrottleTag "%{QUERY_STRING}"\nDthrottleStatus 503\n', [200, 503]),
                               ("DthrottleServer unix:/elsewhere\n", [500, 500])):
            with self.subTest(text), open_ask_daemon(rule(burst=1)) as daemon:
                root = daemon.directory / "site"
                root.mkdir()
                (root / "index.html").write_text("served\n")
                (root / ".htaccess").write_text(text)
                settings = self.settings(daemon, f"Dthrottle Off\nAlias /site {root}\n" + allowed % root)
                with Apache(settings, modules=("alias",)) as server:
                    self.assertEqual(server.statuses(2), [200, 200])
                    self.assertEqual(server.statuses(2, "/site/?a"), statuses)

    def test_counts_and_mod_status_show_a_socket_without_permission(self):
        with open_ask_daemon(rule(burst=2)) as daemon:
            with Apache(self.settings(daemon, COUNTS), modules=("status",), processes=2) as server:
                self.assertEqual(server.statuses(3, "/?a"), [200, 200, 429])
                name = f'daemon="unix:{daemon.ask_path}"'
                page = server.get("/metrics")
                self.assertEqual(metrics(page.body)[f'dthrottle_apache_requests_total{{{name},status="SERVED"}}'], 2)
                self.assertIn(f"Dthrottle unix:{daemon.ask_path}: up\n", server.get("/server-status?auto").body.decode())
                os.chmod(daemon.ask_path, 0)
                daemon.restart()
                os.chmod(daemon.ask_path, 0)
                wait_until(lambda: server.get("/?a").status == 200, "a child connects anew")
                wait_until(lambda: server.get("/?a") and metrics(server.get("/metrics").body)[
                    f"dthrottle_apache_up{{{name}}}"] == 0, "the failure shows")
                counts = metrics(server.get("/metrics").body)
                self.assertGreater(counts[f'dthrottle_apache_failures_total{{{name},why="permission"}}'], 0)
                self.assertIn(f"<dt>unix:{daemon.ask_path}: permission</dt>", server.get("/server-status").body.decode())

    def test_a_daemon_that_the_settings_do_not_name_any_more_is_neither_up_nor_down(self):
        with open_ask_daemon(rule(burst=2)) as daemon:
            settings = self.settings(daemon, COUNTS)
            with Apache(settings.replace(str(daemon.ask_path), "/nowhere/typo.sock"), modules=("status",)) as server:
                conf = server.path("apache.conf")
                wrong = conf.read_text()
                self.assertEqual(server.get("/?a").status, 200)
                typo = 'daemon="unix:/nowhere/typo.sock"'
                self.assertEqual(metrics(server.get("/metrics").body)[f"dthrottle_apache_up{{{typo}}}"], 0)
                conf.write_text(wrong.replace("/nowhere/typo.sock", str(daemon.ask_path)))
                old = server.reload()
                wait_until(lambda: not old & server.children(), "the old processes have left")
                self.assertEqual(server.get("/?a").status, 200)
                counts = metrics(server.get("/metrics").body)
                self.assertEqual({value for name, value in counts.items() if "_up{" in name}, {1})
                self.assertNotIn(f"dthrottle_apache_up{{{typo}}}", counts)
                self.assertIn(f'dthrottle_apache_requests_total{{{typo},status="SERVED"}}', counts)
                self.assertIn("<dt>unix:/nowhere/typo.sock</dt>", server.get("/server-status").body.decode())
                self.assertNotIn("typo.sock: ", server.get("/server-status?auto").body.decode())

    def test_daemons_of_other_settings_take_the_places_of_those_before_them(self):
        def naming(name):
            return "\n".join(f"<Location /{name}{i}>\nDthrottleServer unix:/nowhere/{name}{i}.sock\n</Location>"
                             for i in range(20))
        with open_ask_daemon(rule(burst=2)) as daemon:
            with Apache(self.settings(daemon, f"{COUNTS}\n{naming('old')}"), modules=("status",)) as server:
                self.assertEqual(server.get("/?a").status, 200)
                conf = server.path("apache.conf")
                for name in ("new", "old", "new"):
                    conf.write_text(conf.read_text().replace("/new", f"/{name}").replace("/old", f"/{name}"))
                    old = server.reload()
                    wait_until(lambda old=old: not old & server.children(), "the old processes have left")
                    self.assertEqual(server.get(f"/{name}7?x").status, 404)
                    counts = metrics(server.get("/metrics").body)
                    served = f'dthrottle_apache_requests_total{{daemon="unix:/nowhere/{name}7.sock",status="OPEN_ERROR"}}'
                    self.assertGreaterEqual(counts[served], 1)
                    named = {label for label in counts if "_up{" in label and "/nowhere/" in label}
                    self.assertEqual(named, {f'dthrottle_apache_up{{daemon="unix:/nowhere/{name}{i}.sock"}}'
                                             for i in range(20)})
                served = f'dthrottle_apache_requests_total{{daemon="unix:{daemon.ask_path}",status="SERVED"}}'
                self.assertEqual(counts[served], 1, "it has been named all the time")
                self.assertNotIn("others", "".join(counts))

    def test_more_daemons_than_there_are_counts_share_some(self):
        more = "\n".join(f"<Location /{i}>\nDthrottleServer unix:/nowhere/{i}.sock\n</Location>" for i in range(40))
        with open_ask_daemon(rule(burst=2)) as daemon:
            with Apache(self.settings(daemon, f"{COUNTS}\n{more}"), modules=("status",)) as server:
                for i in (0, 38, 39):
                    self.assertEqual(server.get(f"/{i}?x").status, 404)
                counts = metrics(server.get("/metrics").body)
                self.assertEqual(counts['dthrottle_apache_requests_total{daemon="others",status="OPEN_ERROR"}'], 2)
                self.assertEqual(len([label for label in counts if "_up{" in label]), 32 + 1)
                self.assertIn('11 of them are counted together, as "others"', server.log)

    def test_a_default_daemon_that_has_failed_is_up_until_it_is_asked_under_new_settings(self):
        default = "/run/dthrottle/ask.sock"
        if os.path.exists(default):
            self.skipTest("a daemon of this machine listens there")
        more = ('DthrottleTag "%{QUERY_STRING}" cost=2\n'
                "<Location /metrics>\nDthrottle Off\nSetHandler dthrottle-metrics\n</Location>")
        with open_ask_daemon(rule(burst=2)) as daemon:
            name = f'dthrottle_apache_up{{daemon="unix:{default}"}}'
            settings = self.settings(daemon, more)
            with Apache(settings.replace("DthrottleAsk", "#DthrottleAsk")) as server:
                conf = server.path("apache.conf")
                self.assertEqual(server.get("/?a").status, 200)
                self.assertEqual(metrics(server.get("/metrics").body)[name], 0)
                conf.write_text(conf.read_text().replace("#DthrottleAsk", "DthrottleAsk"))
                old = server.reload()
                wait_until(lambda: not old & server.children(), "the old processes have left")
                self.assertEqual(server.statuses(2, "/?a"), [200, 429])
                self.assertEqual(metrics(server.get("/metrics").body)[name], 1)


class Failures(ApacheTest):
    """All of them are served, and none of them waits longer than the timeout."""

    def test_without_a_daemon_everything_is_served_and_the_log_is_short(self):
        for mpm in ("event", "prefork"):
            with self.subTest(mpm), open_daemon(rule(burst=1)) as daemon:
                with Apache(module_settings(daemon), mpm) as server:
                    self.assertEqual(server.statuses(2, "/?a"), [200, 429])
                    daemon.kill()
                    responses = [server.get("/?a") for _ in range(200)]
                    self.assert_all_served_in_time(responses)
                    self.assertLessEqual({line[1] for line in server.access(202)[2:]},
                                         {"OPEN_ERROR", "OPEN_BACKOFF"})
                    self.assertLess(server.log.count("unreachable"), 100)
                    daemon.start()
                    self.wait_throttled(server, "/?a")

    def test_a_location_that_fails_closed_refuses_what_is_not_answered(self):
        locations = """
          Alias /closed {root}
          Alias /shadow {root}
          <Location /closed>
            DthrottleFailClosed On
          </Location>
          <Location /shadow>
            DthrottleFailClosed On
            DthrottleShadow On
          </Location>"""
        paths = ["/closed/?a", "/?a", "/shadow/?a"]
        with open_daemon(rule(burst=1000)) as daemon:
            with serving_pages(daemon, locations) as server:
                self.assertEqual([server.get(path).status for path in paths], [200, 200, 200])
                daemon.kill()
                self.assertEqual([server.get(path).status for path in paths], [503, 200, 200])
                self.assertEqual(server.access(6)[3][1], "CLOSED")
                self.assertIn("requests are refused unasked", server.log)
                daemon.start()
                wait_until(lambda: server.get(paths[0]).status == 200, "the daemon is asked again")

    def test_a_daemon_that_hangs_costs_a_few_requests_their_timeout(self):
        for mpm in ("event", "prefork"):
            with self.subTest(mpm), open_daemon(rule(burst=1)) as daemon:
                with Apache(module_settings(daemon, timeout_ms=100), mpm) as server:
                    self.wait_throttled(server, "/?a")
                    with stopped(daemon):
                        responses = [server.get("/?a") for _ in range(300)]
                        with Load(server, server.THREADS, "/?a") as load:
                            time.sleep(1)
                    self.assertEqual(load.failures, [])
                    self.assert_all_served_in_time(responses + load.responses)
                    self.assertGreater(waited(responses, TIMEOUT_S), 0)
                    if mpm == "event":    # each process of prefork has to find out for itself
                        self.assertLess(waited(responses, TIMEOUT_S), 150)
                    self.wait_throttled(server, "/?a")

    def test_a_restart_goes_unnoticed(self):
        with open_daemon(rule(burst=1)) as daemon, Apache(module_settings(daemon)) as server:
            self.assertEqual(server.statuses(2, "/?a"), [200, 429])
            for _ in range(3):
                daemon.restart()
                self.assertEqual(server.get("/?a").status, 429)
            self.assertNotIn("served unasked", server.log)

    def test_a_full_backlog_is_like_no_daemon(self):
        with full_backlog() as path, Apache(module_settings(None, path=path)) as server:
            self.assert_all_served_in_time([server.get("/?a") for _ in range(20)])

    def test_a_client_that_leaves_while_it_waits_does_no_harm(self):
        with open_daemon(rule(burst=1, match="no"), rule(burst=1000)) as daemon:
            with Apache(module_settings(daemon, timeout_ms=100)) as server:
                self.wait_throttled(server, "/?no")
                with stopped(daemon):
                    for _ in range(5):
                        with server.connect() as client:
                            client.sendall(b"GET /?no HTTP/1.1\r\nHost: a\r\n\r\n")
                for _ in range(30):
                    self.assertEqual(server.get("/?yes").status, 200)
                self.wait_throttled(server, "/?no")


class Reload(ApacheTest):
    def test_a_reload_under_load_fails_no_request_and_the_old_processes_leave(self):
        with open_daemon(rule(burst=1_000_000)) as daemon:
            with Apache(module_settings(daemon), processes=2) as server:
                self.assert_reloads_go_unnoticed(server, 2, Load(server, 4, "/?a"))
                self.assertNotIn("exit signal", server.log)
