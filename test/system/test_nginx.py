"""The nginx module in Debian's nginx: what the daemon says, and what comes of a daemon that does not say anything."""

import contextlib
import json
import os
import re
import select
import signal
import socket
import time

from common import SystemTest
from daemon import PATIENCE, rule, run, wait_until
from webserver import (NGINX_MODULE, SLACK, TIMEOUT_S, Load, ModuleTest, Nginx, fake_daemon, full_backlog, metrics,
                       open_ask_daemon, open_daemon, stopped, wait_refused_by_page, waited)



def module_settings(daemon, timeout="30s", path=None):
    return (f"dthrottle on; dthrottle_server unix:{path or daemon.query_path}; dthrottle_timeout {timeout};"
            "dthrottle_tag $arg_tag;")


class NginxTest(ModuleTest, SystemTest):
    module, package = NGINX_MODULE, "nginx-dev"


class Verdicts(NginxTest):
    def test_a_request_is_served_or_refused_as_the_daemon_says(self):
        with open_daemon(rule(burst=2)) as daemon, Nginx(module_settings(daemon)) as server:
            self.assertEqual(server.statuses(4, "/?tag=a"), [200, 200, 429, 429])
            self.assertEqual(server.statuses(1, "/?tag=b"), [200])
            self.assertEqual(daemon.stats()["connections"], 1)
            lines = server.access(5)
            self.assertEqual([line[1] for line in lines], ["SERVED"] * 2 + ["THROTTLED"] * 2 + ["SERVED"])
            for line in lines:
                self.assertTrue(0 <= float(line[2]) < SLACK, line)

    def test_workers_refuse_again_without_asking_where_the_daemon_gives_them_pages(self):
        with open_daemon(rule(burst=2), page={"entries": 64}) as daemon, Nginx(module_settings(daemon)) as server:
            self.assertEqual(server.statuses(2, "/?tag=a"), [200, 200])
            wait_refused_by_page(daemon, server, "/?tag=a")
            self.assertEqual(server.statuses(3, "/?tag=b"), [200, 200, 429])
            asked = sum(line[1] == "THROTTLED" for line in server.access(5))
            wait_until(lambda: daemon.stats()["throttled"] >= asked, "all are counted")
            daemon.admin("forgive a")
            wait_until(lambda: server.get("/?tag=a").status == 200, "the tag is served")

    def test_workers_serve_everybody_within_the_limit_by_their_pages(self):
        with open_daemon(rule(burst=10_000, rate=10_000), page={"entries": 64}) as daemon:
            with Nginx(module_settings(daemon)) as server:
                self.assertEqual(server.statuses(1000, "/?tag=a"), [200] * 1000)
                wait_until(lambda: daemon.stats()["page_served"] > 500, "most are served by the page")

    def test_pages_refuse_nobody_within_the_limit_where_nginx_seldom_looks_at_the_clock(self):
        main = f"load_module {NGINX_MODULE}; timer_resolution 1s;"
        with open_daemon(rule(burst=10_000, rate=10_000), page={"entries": 64}) as daemon:
            with Nginx(module_settings(daemon), main=main) as server:
                begin, statuses = time.monotonic(), []
                while time.monotonic() < begin + 3:
                    statuses += server.statuses(1, "/?tag=a")
                    time.sleep(0.01)
                self.assertEqual(set(statuses), {200})
                self.assertGreater(daemon.stats()["page_served"], len(statuses) // 2)    # all but the first few

    def test_settings_of_a_location_go_before_those_around_it(self):
        locations = """
          location /other { dthrottle_status 503; dthrottle_tag "other:$arg_tag"; try_files /index.html =404; }
          location /off { dthrottle off; try_files /index.html =404; }
          location /shadow { dthrottle_shadow on; try_files /index.html =404; }
          location /default { dthrottle_tag $arg_nothing; try_files /index.html =404; }"""
        with open_daemon(rule(burst=1)) as daemon, Nginx(locations, http=module_settings(daemon)) as server:
            self.assertEqual(server.statuses(2, "/?tag=a"), [200, 429])
            self.assertEqual(server.statuses(2, "/other?tag=a"), [200, 503])
            self.assertEqual(server.statuses(2, "/off?tag=a"), [200, 200])
            self.assertEqual(server.statuses(2, "/shadow?tag=a"), [200, 200])
            self.assertEqual(server.statuses(2, "/default?tag=a"), [200, 200])
            self.assertEqual([line[1] for line in server.access(10)],
                             ["SERVED", "THROTTLED", "SERVED", "THROTTLED", "OFF", "OFF", "SHADOWED", "SHADOWED",
                              "OFF", "OFF"])
            self.assertEqual(daemon.stats()["served"] + daemon.stats()["throttled"], 6)
            self.assertIn('would be throttled by dthrottle, tag "a"', server.log)

    def test_the_tag_is_the_address_unless_it_is_set(self):
        with open_daemon(rule(burst=1)) as daemon:
            with Nginx(f"dthrottle on; dthrottle_server unix:{daemon.query_path};") as server:
                self.assertEqual(server.statuses(2), [200, 429])
            self.assertEqual(daemon.admin_json("show 127.0.0.1")["verdict"], "NO")

    def test_over_tcp(self):
        with open_daemon(rule(burst=1)) as daemon:
            settings = module_settings(daemon).replace(f"unix:{daemon.query_path}", f"127.0.0.1:{daemon.tcp_port}")
            with Nginx(settings) as server:
                self.assertEqual(server.statuses(3, "/?tag=a"), [200, 429, 429])
                daemon.restart()    # on another port
                self.assertEqual(server.statuses(3, "/?tag=a"), [200] * 3)

    def test_a_newline_in_the_tag_is_no_second_query(self):
        with open_daemon(rule(burst=2)) as daemon:
            # njs and the like could put a real one into a variable; a map does it as well.
            http = module_settings(daemon) + 'map $arg_tag $evil { default "$arg_tag"; evil "a\\nb\\nc"; }'
            with Nginx('location /map { dthrottle_tag $evil; try_files /index.html =404; }', http=http) as server:
                self.assertEqual(server.statuses(3, "/map?tag=evil"), [200, 200, 429])
                self.assertEqual(daemon.stats()["served"], 2)
                self.assertEqual(daemon.admin_json("show a_b_c")["verdict"], "NO")
                # Answers still belong to their queries.
                self.assertEqual(server.statuses(3, "/?tag=d"), [200, 200, 429])
                self.assertEqual(server.statuses(1, "/?tag=x%0ay"), [200])

    def test_decoded_newlines_are_mapped(self):
        with open_daemon(rule(burst=2)) as daemon:
            with Nginx(module_settings(daemon) + "location / { dthrottle_tag $uri; try_files /index.html =404; }"
                       ) as server:
                self.assertEqual(server.statuses(3, "/a%0ab%0dc%20d%7f"), [200, 200, 429])
                self.assertEqual(daemon.admin_json("show /a_b_c_d_")["verdict"], "NO")
                self.assertEqual(daemon.stats()["served"], 2)
                for place in range(18):    # in a word of eight bytes, between two and behind them; nothing else is mapped
                    paths = [f"/{'x' * place}{byte}{'x' * (17 - place)}" for byte in ("%01", "%20", "%7f", "%21", "%ff")]
                    self.assertEqual([server.statuses(1, path)[0] for path in paths], [200, 200, 429, 200, 200])

    def test_a_long_tag_does_not_evade_its_limit(self):
        with open_daemon(rule(burst=1)) as daemon, Nginx(module_settings(daemon)) as server:
            for tag_bytes in (255, 256, 4000):
                self.assertEqual(server.statuses(2, f"/?tag={'x' * tag_bytes}"), [200, 429])
            # What is longer than 4096 bytes is cut.
            self.assertEqual(server.statuses(1, f"/?tag={'x' * 7000}"), [200])
            self.assertEqual(server.statuses(1, f"/?tag={'x' * 7001}"), [429])

    def test_one_request_asks_once_whatever_becomes_of_it(self):
        locations = """
          error_page 429 /limited.html;
          location /rewritten { rewrite ^ /again last; }
          location /again { try_files /nothing /index.html; }
          location /mirrored { mirror /again; }
          location /unasked { dthrottle off; mirror /again; }
          location /missing { error_page 404 /again?tag=a; return 404; }"""
        with open_daemon(rule(burst=20)) as daemon, Nginx(locations, http=module_settings(daemon)) as server:
            for name in ("mirrored", "unasked"):
                server.path("root").joinpath(name).write_text("served\n")
            server.path("root").joinpath("limited.html").write_text("limited\n")
            asked = 0
            for path in ("/", "/rewritten", "/again", "/mirrored", "/unasked", "/missing"):
                asked += path != "/unasked"    # its subrequest is none of a client
                self.assertEqual(server.get(f"{path}?tag=a").body, b"served\n", path)
                self.assertEqual(daemon.stats()["served"], asked, path)
            server.statuses(20 - asked, "/?tag=a")
            response = server.get("/?tag=a")
            self.assertEqual((response.status, response.body), (429, b"limited\n"))
            self.assertEqual(daemon.stats()["throttled"], 1)
            wait_until(lambda: server.access()[-1][1] == "THROTTLED", "the refusal is in the access log")

    def test_what_an_internal_redirect_leads_to_is_asked_for_if_all_tags_were_empty_before(self):
        """Each path gets to a page with a tag of its own: by try_files, a named location, index and error_page."""
        locations = """
          location /tried { try_files /nothing /page?tag=tried; }
          location /named { try_files /nothing @named; }
          location @named { dthrottle_tag named; try_files /index.html =404; }
          location /wrong { error_page 404 /page?tag=wrong; }
          location = /page { try_files /index.html =404; }
          location = /index.html { dthrottle_tag index; }"""
        with open_daemon(rule(burst=2)) as daemon, Nginx(locations, http=module_settings(daemon)) as server:
            for path in ("/tried", "/named", "/", "/wrong"):
                with self.subTest(path):
                    self.assertEqual([server.get(path).body == b"served\n" for _ in range(4)], [True, True, False, False])
                    self.assertEqual([line[1] for line in server.access(4)[-4:]], ["SERVED"] * 2 + ["THROTTLED"] * 2)

    def test_answers_reach_their_own_requests_under_load(self):
        with open_daemon(rule(burst=1, match="no*"), rule(burst=1_000_000)) as daemon:
            with Nginx(module_settings(daemon), workers=2) as server:
                self.assert_answers_reach_their_own_requests(server, refused="/?tag=no", served="/?tag=yes")
                self.assertLessEqual(daemon.stats()["connections"], 4)

    def test_requests_with_bodies_and_pipelined_ones(self):
        locations = '''
          location /echo { proxy_pass http://127.0.0.1:$server_port/length; }
          location /length { dthrottle off; return 200 "got $http_content_length\\n"; }'''
        with open_daemon(rule(burst=4)) as daemon, Nginx(locations, http=module_settings(daemon)) as server:
            body = b"x" * 300_000
            post = b"POST /echo?tag=a HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
            get = b"GET /?tag=a HTTP/1.1\r\nHost: a\r\n\r\n"
            last = get.replace(b"Host: a", b"Host: a\r\nConnection: close")
            with server.connect() as client:
                client.sendall(post + body + get + post + body + get + last)
                said = b""
                while piece := client.recv(1 << 16):
                    said += piece
            self.assertEqual(re.findall(rb"HTTP/1.1 (\d+)", said), [b"200"] * 4 + [b"429"])
            self.assertEqual(said.count(b"got 300000\n"), 2)

    def test_streams_of_http2_are_requests_like_any_other(self):
        with open_daemon(rule(burst=500)) as daemon, Nginx(module_settings(daemon), listen="http2") as server:
            done = run("h2load", "-n800", "-c3", "-m20", f"http://127.0.0.1:{server.port}/?tag=a")
            self.assertIn("status codes: 500 2xx, 0 3xx, 300 4xx, 0 5xx", done.stdout)

    def test_bad_settings_are_refused(self):
        for wrong in ("dthrottle maybe;", "dthrottle_status 200;", "dthrottle_status 600;", "dthrottle_timeout 0;",
                      "dthrottle_server;", "dthrottle_server unix:/x conns=3;",
                      "dthrottle_server unix:/x connections=0;", "dthrottle_ask unix:/x; dthrottle_ask unix:/y;",
                      "dthrottle_tag a price=1;", "dthrottle_tag a cost=x;", "dthrottle_headers draft-11;",
                      "dthrottle_tag a;" * 17, "dthrottle_delay soon;", "dthrottle_delay 2m;",
                      "dthrottle_server unix:/x; dthrottle_server unix:/y;", "dthrottle_log_level loud;"):
            with self.subTest(wrong), self.assertRaisesRegex(AssertionError, "left with 1"), Nginx(wrong):
                pass

    def test_a_query_socket_that_is_named_is_not_passed_over_for_another_daemon(self):
        named = "dthrottle on; dthrottle_server unix:/x;"
        for asks in ("dthrottle_tag a cost=2;", "dthrottle_tag a; dthrottle_tag b;", "dthrottle_delay 1s;"):
            for server, http in ((named + asks, ""), (f"location / {{ {named} {asks} }}", ""),
                                 (f"location / {{ {asks} }}", named)):
                said = f'"{"/" if "location" in server else "server"}" asks about .*name the ask socket there by "dthrottle_ask"'
                with self.subTest(server), self.assertRaisesRegex(AssertionError, said):
                    with Nginx(server, http=http):
                        pass
            within = "location /in/one { dthrottle_tag a; dthrottle_delay 0; }"
            for server in (f"dthrottle off; {asks}", f"dthrottle_ask unix:/y; {asks} location /in {{ {asks} }}",
                           f"location /in {{ dthrottle_ask unix:/y; {asks} {within} }}"):
                with self.subTest(server), Nginx(server, http=named):
                    pass


class Questions(NginxTest):
    """Over the ask socket, where an answer says more than OK and NO."""

    def settings(self, daemon, more="dthrottle_tag $arg_tag;"):
        return f"dthrottle on; dthrottle_ask unix:{daemon.ask_path}; dthrottle_timeout 30s; {more}"

    def test_clients_are_told_their_limit_and_when_to_come_back(self):
        with open_ask_daemon(rule(name="login", burst=2, rate=0.01)) as daemon:
            with Nginx(self.settings(daemon)) as server:
                served, _, refused = (server.get("/?tag=a") for _ in range(3))
                self.assertEqual(served.fields["RateLimit-Policy"], '"login";q=2;w=200')
                self.assertEqual(served.fields["RateLimit"], '"login";r=1;t=100')
                self.assertNotIn("Retry-After", served.fields)
                self.assertEqual(refused.status, 429)
                self.assertEqual(refused.fields["RateLimit-Policy"], '"login";q=2;w=200')
                self.assertRegex(refused.fields["RateLimit"], r'^"login";r=0;t=\d+$')
                self.assertTrue(100 - PATIENCE <= int(refused.fields["Retry-After"]) <= 100, refused.head)

    def test_the_body_is_made_by_nginx_and_the_fields_stay(self):
        more = """
          error_page 429 @limited;
          location @limited {
            default_type application/problem+json;
            return 429 '{"rule":"$dthrottle_rule","limit":$dthrottle_limit,"left":$dthrottle_remaining,"wait":$dthrottle_retry_after}';
          }
          location /old { dthrottle_headers draft-03; try_files /index.html =404; }
          location /none { dthrottle_headers off; try_files /index.html =404; }
          location /shadow { dthrottle_shadow on; try_files /index.html =404; }"""
        with open_ask_daemon(rule(name="login", burst=1, rate=0.01)) as daemon:
            with Nginx(self.settings(daemon) + more) as server:
                self.assertEqual(server.get("/?tag=a").status, 200)
                refused = server.get("/?tag=a")
                said = json.loads(refused.body)
                self.assertEqual(refused.status, 429)
                self.assertEqual((said["rule"], said["limit"], said["left"]), ("login", 1, 0))
                self.assertEqual(refused.fields["Retry-After"], str(said["wait"]))
                self.assertIn("RateLimit", refused.fields)
                old = server.get("/old?tag=a").fields
                self.assertEqual((old["X-RateLimit-Limit"], old["X-RateLimit-Remaining"]), ("1", "0"))
                self.assertNotIn("RateLimit", old)
                none = server.get("/none?tag=a").fields
                self.assertIn("Retry-After", none)
                self.assertFalse([name for name in none if "RateLimit" in name])
                shadow = server.get("/shadow?tag=a")
                self.assertEqual(shadow.status, 200)
                self.assertNotIn("Retry-After", shadow.fields)

    def test_a_worker_decides_questions_by_its_page_where_no_fields_are_wanted(self):
        more = 'dthrottle_tag $arg_user; dthrottle_tag "net:$arg_net"; dthrottle_headers none;'
        with open_ask_daemon(rule(name="users", match="a", burst=2), rule(name="nets", match="net:*", burst=1000),
                             page={"entries": 64}) as daemon:
            with Nginx(self.settings(daemon, more)) as server:
                served = server.statuses(2, "/?user=a&net=n") + server.statuses(400, "/?net=n")
                self.assertEqual(set(served), {200})
                self.assertGreater(daemon.stats()["page_served"], 0)
                wait_refused_by_page(daemon, server, "/?user=a&net=n")
                self.assertNotIn("Retry-After", server.get("/?user=a&net=n").fields)
                self.assertIn('throttled by dthrottle, tag "a"', server.log)
            wait_until(lambda: daemon.stats()["page_connections"] == 0, "its page is gone")
            left = daemon.ask(["net:n"] * 1000).count("OK")
            self.assertIn(1000 - 402 - left, range(4))    # lost tickets, as in test_worker_page.py

    def test_the_tags_of_a_location_are_one_question_with_their_costs(self):
        more = 'dthrottle_tag "user:$arg_user"; dthrottle_tag "net:$arg_net" cost=2; dthrottle_tag $arg_more;'
        with open_ask_daemon(rule(name="users", match="user:*", burst=10, rate=0.001),
                             rule(name="nets", match="net:*", burst=4, rate=0.001)) as daemon:
            with Nginx(self.settings(daemon, more)) as server:
                self.assertEqual(server.statuses(3, "/?user=a&net=n"), [200, 200, 429])
                self.assertEqual(int(daemon.admin_json("show user:a")["level"]), 8)    # the refusal paid nothing
                self.assertEqual(int(daemon.admin_json("show net:n")["level"]), 0)
                self.assertIn('throttled by dthrottle, tag "net:n"', server.log)
                self.assertEqual(server.get("/?user=b&net=m").fields["RateLimit"].split(";")[:2], ['"nets"', "r=2"])

    def test_requests_are_held_and_spaced_at_the_rate_rather_than_refused(self):
        with open_ask_daemon(rule(burst=1, rate=2, delay="60s")) as daemon, \
                Nginx(self.settings(daemon, "dthrottle_tag $arg_tag; dthrottle_delay 60s;")) as server:
            begin = time.monotonic()
            self.assertEqual(server.statuses(4, "/?tag=a"), [200] * 4)
            self.assertGreaterEqual(time.monotonic() - begin, 1.5)
            self.assertIn("DELAYED", {line[1] for line in server.access(4)})

    def test_a_held_request_holds_up_no_other_one_and_its_client_may_leave(self):
        with open_ask_daemon(rule(burst=1, rate=0.02, delay="1m")) as daemon, \
                Nginx(self.settings(daemon, "dthrottle_tag $arg_tag; dthrottle_delay 1m;"
                                    "location /short { dthrottle_delay 10s; }"
                                    "location /shadow { dthrottle_shadow on; try_files /index.html =404; }")) as server:
            self.assertEqual(server.statuses(1, "/?tag=a"), [200])
            with server.connect() as client:
                client.sendall(b"GET /?tag=a HTTP/1.1\r\nHost: a\r\n\r\n")
                wait_until(lambda: daemon.stats()["ask_waits"] == 1, "the request is held")
                self.assertEqual(server.statuses(1, "/?tag=b"), [200])
                self.assertEqual(server.statuses(1, "/short?tag=a"), [429])
                self.assertEqual(server.statuses(1, "/shadow?tag=a"), [200])
                self.assertLess(daemon.admin_json("show a")["level"], -0.5)
            wait_until(lambda: daemon.stats()["ask_waits_given_up"] == 1, "its slot is another's")
            self.assertGreater(daemon.admin_json("show a")["level"], -0.5)

    def test_what_a_client_leaves_while_it_waits_is_counted_so(self):
        more = "dthrottle_tag $arg_tag; dthrottle_delay 1m; location = /metrics { dthrottle off; dthrottle_metrics; }"
        with open_ask_daemon(rule(burst=1, rate=0.02, delay="1m")) as daemon, Nginx(self.settings(daemon, more)) as server:
            self.assertEqual(server.statuses(1, "/?tag=a"), [200])
            with server.connect() as client:
                client.sendall(b"GET /?tag=a HTTP/1.1\r\nHost: a\r\n\r\n")
                wait_until(lambda: daemon.stats()["ask_waits"] == 1, "the request is held")
            self.assertEqual(server.access(2)[1][:2], ["499", "LEFT"])
            with stopped(daemon):    # and one whose answer is not there yet
                with server.connect() as client:
                    client.sendall(b"GET /?tag=b HTTP/1.1\r\nHost: a\r\n\r\n")
                    time.sleep(0.05)
                self.assertEqual(server.access(3)[2][:2], ["499", "LEFT"])
            counts = metrics(server.get("/metrics").body)
            self.assertEqual({re.search('status="([A-Z]+)"', key)[1]: value for key, value in counts.items()
                              if "requests_total" in key and value}, {"SERVED": 1, "LEFT": 2})

    def test_a_held_request_keeps_its_turn_when_others_find_that_the_daemon_hangs(self):
        """That ends the connection on which the turn was granted. The request still goes on at it, so nobody else may
        have it; and when its client leaves, it is given up on another connection."""
        more = "dthrottle_tag $arg_tag; dthrottle_delay 1m; location /soon { dthrottle_timeout 100ms; }"
        with open_ask_daemon(rule(match="b", burst=1), rule(burst=1, rate=0.02, delay="1m")) as daemon, \
                Nginx(self.settings(daemon, more)) as server:
            self.assertEqual(server.statuses(1, "/?tag=a"), [200])
            with server.connect() as client:
                client.sendall(b"GET /?tag=a HTTP/1.1\r\nHost: a\r\n\r\n")
                wait_until(lambda: daemon.stats()["ask_waits"] == 1, "the request is held")
                with stopped(daemon):
                    wait_until(lambda: server.get("/soon?tag=b") and server.log.count("does not answer in time") >= 2,
                               "the connection has ended")
                wait_until(lambda: server.get("/?tag=b").status == 429, "the daemon is asked again")
                self.assertEqual(daemon.stats()["ask_waits_given_up"], 0)
                self.assertLess(daemon.admin_json("show a")["level"], -0.5)
            wait_until(lambda: daemon.stats()["ask_waits_given_up"] == 1, "its slot is another's")

    def test_counts_of_all_workers_say_what_became_of_requests_and_outlive_a_reload(self):
        more = "dthrottle_tag $arg_tag; location = /metrics { dthrottle off; dthrottle_metrics; }"
        with open_ask_daemon(rule(burst=2)) as daemon, Nginx(self.settings(daemon, more), workers=2) as server:
            server.statuses(3, "/?tag=a")
            old = server.reload()
            wait_until(lambda: not old & server.children(), "the old workers have left")
            server.get("/?tag=b")
            page = server.get("/metrics")
            self.assertTrue(page.fields["Content-Type"].startswith("text/plain; version=0.0.4"), page.head)
            name = f'daemon="unix:{daemon.ask_path}"'
            counts = metrics(page.body)
            self.assertEqual(counts[f'dthrottle_nginx_requests_total{{{name},status="SERVED"}}'], 3)
            self.assertEqual(counts[f'dthrottle_nginx_requests_total{{{name},status="THROTTLED"}}'], 1)
            self.assertEqual(counts[f"dthrottle_nginx_up{{{name}}}"], 1)

    def test_a_daemon_that_the_settings_do_not_name_any_more_is_neither_up_nor_down(self):
        more = "dthrottle_tag $arg_tag; location = /metrics { dthrottle off; dthrottle_metrics; }"
        with open_ask_daemon(rule(burst=2)) as daemon, Nginx(self.settings(daemon, more)) as server:
            conf = server.path("nginx.conf")
            right = conf.read_text()
            for path, up in ((f"{daemon.directory}/typo.sock", 0), (daemon.ask_path, 1), (f"{daemon.directory}/typo.sock", 0)):
                conf.write_text(right.replace(str(daemon.ask_path), str(path)))
                old = server.reload()
                wait_until(lambda old=old: not old & server.children(), "the old worker has left")
                server.get("/?tag=a")
                counts = metrics(server.get("/metrics").body)
                self.assertEqual({name: value for name, value in counts.items() if "_up{" in name},
                                 {f'dthrottle_nginx_up{{daemon="unix:{path}"}}': up})
            self.assertEqual(counts[f'dthrottle_nginx_requests_total{{daemon="unix:{daemon.ask_path}",status="SERVED"}}'], 1)

    def test_a_daemon_for_whose_counts_there_is_no_place_is_asked_and_has_one_with_the_next_reload(self):
        more = "dthrottle_tag $arg_tag; location = /metrics { dthrottle off; dthrottle_metrics; }"
        more += "".join(f"location /old{i}/ {{ dthrottle_server unix:/nowhere/old{i}.sock; }}" for i in range(20))
        with open_ask_daemon(rule(burst=2)) as daemon, Nginx(self.settings(daemon, more)) as server:
            conf = server.path("nginx.conf")
            conf.write_text(conf.read_text().replace("/old", "/new"))
            for asked in ("others", "unix:/nowhere/new19.sock"):
                old = server.reload()
                wait_until(lambda old=old: not old & server.children(), "the old worker has left")
                server.get("/new19/?tag=a")
                counts = metrics(server.get("/metrics").body)
                self.assertEqual(counts[f'dthrottle_nginx_failures_total{{daemon="{asked}",why="absent"}}'], 1)
            self.assertIn('9 of them are counted together, as "others"', server.log)
            self.assertEqual(len([label for label in counts if "_up{" in label]), 20 + 1)

    def test_a_reload_that_fails_leaves_the_daemon_up_that_is_asked(self):
        more = "dthrottle_tag $arg_tag; location = /metrics { dthrottle off; dthrottle_metrics; }"
        with open_ask_daemon(rule(burst=2)) as daemon, Nginx(self.settings(daemon, more)) as server, \
                socket.create_server(("127.0.0.1", 0)) as other:
            conf = server.path("nginx.conf")
            right = conf.read_text()
            taken = f"listen 127.0.0.1:{other.getsockname()[1]}; listen 127.0.0.1:{server.port}"
            conf.write_text(right.replace(str(daemon.ask_path), f"{daemon.directory}/typo.sock")
                            .replace(f"listen 127.0.0.1:{server.port}", taken))
            server.process.send_signal(signal.SIGHUP)
            wait_until(lambda: "still could not bind()" in server.log, "the reload has failed")
            self.assertEqual(server.get("/?tag=a").status, 200)
            counts = metrics(server.get("/metrics").body)
            self.assertEqual({name: value for name, value in counts.items() if "_up{" in name},
                             {f'dthrottle_nginx_up{{daemon="unix:{daemon.ask_path}"}}': 1})

    def test_a_socket_without_permission_shows_in_the_counts(self):
        more = "dthrottle_tag $arg_tag; location = /metrics { dthrottle off; dthrottle_metrics; }"
        with open_ask_daemon(rule(burst=2)) as daemon, Nginx(self.settings(daemon, more), user="www-data") as server:
            name = f'daemon="unix:{daemon.ask_path}"'
            os.chmod(daemon.ask_path, 0)
            self.assertEqual(server.get("/?tag=a").status, 200)
            counts = metrics(server.get("/metrics").body)
            self.assertEqual(counts[f'dthrottle_nginx_failures_total{{{name},why="permission"}}'], 1)
            self.assertEqual(counts[f"dthrottle_nginx_up{{{name}}}"], 0)
            self.assertIn("may not be asked by the user of this worker", server.log)
            os.chmod(daemon.ask_path, 0o666)
            wait_until(lambda: server.get("/?tag=a").status == 429, "the daemon is asked again")
            self.assertEqual(metrics(server.get("/metrics").body)[f"dthrottle_nginx_up{{{name}}}"], 1)


class Failures(NginxTest):
    """All of them are served, and none of them waits longer than the timeout."""

    def test_without_a_daemon_everything_is_served_and_the_log_is_short(self):
        with open_daemon(rule(burst=1)) as daemon, Nginx(module_settings(daemon)) as server:
            self.assertEqual(server.statuses(2, "/?tag=a"), [200, 429])
            daemon.kill()
            begin = time.monotonic()
            responses = [server.get("/?tag=a") for _ in range(300)]
            self.assert_all_served_in_time(responses)
            self.assertLessEqual({line[1] for line in server.access()[2:]}, {"OPEN_ERROR", "OPEN_BACKOFF"})
            self.assertLess(server.log.count("cannot be reached"), 20 + time.monotonic() - begin)
            daemon.start()
            self.wait_throttled(server, "/?tag=a")
            self.assertIn("answers again", server.log)

    def test_a_port_at_which_nobody_listens_is_told_from_a_daemon_that_hangs_up(self):
        with socket.socket() as nobody:    # bound, so that no one else takes the port
            nobody.bind(("127.0.0.1", 0))
            name = f"127.0.0.1:{nobody.getsockname()[1]}"
            settings = f"dthrottle on; dthrottle_server {name}; dthrottle_timeout 30s;"
            with Nginx(settings + "location = /metrics { dthrottle off; dthrottle_metrics; }") as server:
                self.assertEqual(server.get("/").status, 200)
                counts = metrics(server.get("/metrics").body)
                self.assertEqual({key for key, value in counts.items() if "failures" in key and value},
                                 {f'dthrottle_nginx_failures_total{{daemon="{name}",why="nobody"}}'})
                self.assertIn(f"{name} cannot be reached, no request asks it for ", server.log)

    def test_a_location_that_fails_closed_refuses_what_is_not_answered(self):
        locations = """
          location /closed { dthrottle_fail_closed on; try_files /index.html =404; }
          location /shadow { dthrottle_fail_closed on; dthrottle_shadow on; try_files /index.html =404; }"""
        paths = ["/closed?tag=a", "/?tag=a", "/shadow?tag=a"]
        with open_daemon(rule(burst=1000)) as daemon, Nginx(locations, http=module_settings(daemon)) as server:
            self.assertEqual([server.get(path).status for path in paths], [200, 200, 200])
            daemon.kill()
            self.assertEqual([server.get(path).status for path in paths], [503, 200, 200])
            self.assertEqual(server.access(6)[3][1], "CLOSED")
            self.assertIn("cannot be reached, no request asks it for ", server.log)    # whatever comes of them
            daemon.start()
            wait_until(lambda: server.get(paths[0]).status == 200, "the daemon is asked again")

    def test_a_daemon_that_hangs_costs_a_few_requests_their_timeout(self):
        with open_daemon(rule(burst=1)) as daemon, Nginx(module_settings(daemon, "100ms")) as server:
            self.wait_throttled(server, "/?tag=a")
            before = len(server.access())
            with stopped(daemon):
                responses = [server.get("/?tag=a") for _ in range(300)]
                with Load(server, 8, "/?tag=a") as load:
                    time.sleep(1)
            self.assertEqual(load.failures, [])
            self.assert_all_served_in_time(responses + load.responses)
            self.assertGreater(waited(responses, TIMEOUT_S), 0)
            self.assertLess(waited(responses, TIMEOUT_S), 150)
            self.assertLessEqual({line[1] for line in server.access()[before:]}, {"OPEN_TIMEOUT", "OPEN_BACKOFF"})
            self.wait_throttled(server, "/?tag=a")

    def test_a_late_answer_is_not_the_answer_to_the_next_query(self):
        with open_daemon(rule(burst=1, match="no"), rule(burst=1_000_000)) as daemon:
            with Nginx(module_settings(daemon, "100ms")) as server:
                self.wait_throttled(server, "/?tag=no")
                for _ in range(3):
                    with stopped(daemon):
                        self.assertEqual(server.get("/?tag=no").status, 200)
                    for _ in range(50):
                        self.assertEqual(server.get("/?tag=yes").status, 200)
                    self.wait_throttled(server, "/?tag=no")

    def test_answers_stay_in_step_behind_one_that_is_late(self):
        request = "GET /?tag=%s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        with fake_daemon() as (path, listener), Nginx(module_settings(None, "500ms", path)) as server:
            self.assertEqual(server.get("/?tag=late").status, 200)
            sock, _ = listener.accept()
            with sock, server.connect() as client:
                sock.settimeout(PATIENCE)
                self.assertEqual(sock.recv(5, socket.MSG_WAITALL), b"late\n")
                time.sleep(0.02)    # more than the first pause
                client.sendall((request % "here").encode())
                self.assertEqual(sock.recv(5, socket.MSG_WAITALL), b"here\n")
                sock.sendall(b"NO\nOK\n")
                self.assertIn(b" 200 ", client.recv(100))
                self.assertIn(server.access()[-1][1], ("SERVED", "OPEN_TIMEOUT"))

    def test_a_restart_goes_unnoticed(self):
        with open_daemon(rule(burst=1)) as daemon, Nginx(module_settings(daemon)) as server:
            self.assertEqual(server.statuses(2, "/?tag=a"), [200, 429])
            for _ in range(3):
                daemon.restart()
                self.assertEqual(server.get("/?tag=a").status, 429)
            self.assertNotIn("dthrottle:", server.log)

    def test_a_connection_that_ends_with_the_query_is_replaced(self):
        # A daemon of which each life answers one query and takes the next one with it.
        with fake_daemon() as (path, listener), Nginx(module_settings(None, path=path)) as server:
            sock = None
            for life in range(3):
                with contextlib.closing(server.connect()) as client:
                    client.sendall(b"GET /?tag=a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                    if sock is not None:
                        self.assertEqual(sock.recv(2, socket.MSG_WAITALL), b"a\n")
                        sock.close()
                    sock, _ = listener.accept()
                    sock.settimeout(PATIENCE)
                    self.assertEqual(sock.recv(2, socket.MSG_WAITALL), b"a\n", f"life {life}")
                    sock.sendall(b"NO\n")
                    self.assertIn(b" 429 ", client.recv(100))
            sock.close()

    def test_what_is_no_answer_is_not_taken_for_one(self):
        with fake_daemon() as (path, listener), Nginx(module_settings(None, path=path)) as server:
            with contextlib.closing(server.connect()) as client:
                client.sendall(b"GET /?tag=a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                sock, _ = listener.accept()
                with sock:
                    sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    self.assertIn(b" 200 ", client.recv(100))
            self.assertIn("does not speak the query protocol", server.log)

    def test_a_full_backlog_is_like_no_daemon(self):
        with full_backlog() as path, Nginx(module_settings(None, path=path)) as server:
            self.assert_all_served_in_time([server.get("/?tag=a") for _ in range(20)])
            self.assertLessEqual({line[1] for line in server.access()}, {"OPEN_ERROR", "OPEN_BACKOFF"})

    def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind(self):
        with fake_daemon() as (path, listener):
            with Nginx(module_settings(None, path=path)) as server:
                for _ in range(3):
                    with server.connect() as client:
                        client.sendall(b"GET /?tag=left HTTP/1.1\r\nHost: a\r\n\r\n")
                        time.sleep(0.02)
                    with server.connect() as client:    # at once
                        client.sendall(b"GET /?tag=left HTTP/1.1\r\nHost: a\r\n\r\n")
                wait_until(lambda: sum(line[0] == "499" for line in server.access()) == 6, "nginx has noticed")
                sock, _ = listener.accept()
                with contextlib.closing(sock), contextlib.closing(server.connect()) as client:
                    sock.settimeout(PATIENCE)
                    client.sendall(b"GET /?tag=here HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                    heard = b""
                    while b"here\n" not in heard:
                        heard += sock.recv(100)
                    late = heard.count(b"left\n")
                    sock.sendall(b"NO\n" * late + b"OK\n")
                    self.assertIn(b" 200 ", client.recv(100))
                self.assertGreater(late, 0)

    def test_a_client_that_leaves_while_it_tries_again_for_all_is_replaced(self):
        with fake_daemon() as (path, listener), Nginx(module_settings(None, "100ms", path)) as server:
            self.assertEqual(server.get("/?tag=a").status, 200)    # nobody answers
            sock, _ = listener.accept()
            with sock:
                sock.settimeout(PATIENCE)
                heard = sock.recv(100)
                while b"left" not in heard:
                    with server.connect() as client:
                        client.sendall(b"GET /?tag=left HTTP/1.1\r\nHost: a\r\n\r\n")
                        if select.select([sock], [], [], 0.02)[0]:
                            heard += sock.recv(100)
                wait_until(lambda: server.access()[-1][0] == "499", "nginx has noticed")
            wait_until(lambda: server.get("/?tag=a").status == 200 and select.select([listener], [], [], 0)[0],
                       "somebody else tries")


class Reload(NginxTest):
    def test_a_reload_under_load_fails_no_request_and_the_old_workers_leave(self):
        with open_daemon(rule(burst=1_000_000)) as daemon, Nginx(module_settings(daemon), workers=2) as server:
            self.assert_reloads_go_unnoticed(server, 3, Load(server, 6, "/?tag=a"))
            self.assertNotIn("open socket", server.log)

    def test_workers_with_idle_connections_leave_at_once(self):
        with open_daemon(rule(burst=10)) as daemon, Nginx(module_settings(daemon)) as server:
            self.assertEqual(server.get("/?tag=a").status, 200)
            old = server.reload()
            wait_until(lambda: not old & server.children(), "the old worker has left")
            wait_until(lambda: daemon.stats()["connections"] == 0, "its connection has ended")
            self.assertEqual(server.get("/?tag=a").status, 200)
            self.assertNotIn("open socket", server.log)

    def test_workers_leave_although_the_daemon_hangs(self):
        with open_daemon(rule(burst=10)) as daemon, Nginx(module_settings(daemon, "100ms")) as server:
            self.assertEqual(server.get("/?tag=a").status, 200)
            with stopped(daemon):
                self.assertEqual(server.get("/?tag=a").status, 200)
                old = server.reload()
                wait_until(lambda: not old & server.children(), "the old worker has left")
                self.assertNotIn("open socket", server.log)
