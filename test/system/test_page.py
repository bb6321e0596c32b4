"""The live page in a real browser: what it shows, and what it does with text that was meant to be more than text."""

import contextlib
import http.server
import json
import threading

from common import SystemTest
from browser import Browser
from daemon import override, rule, wait_until
from fleet import free_port_pair
from test_http import HttpDaemon

HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "<svg onload=alert(1)>", "</title></style><b>",
           "javascript:alert(1)", "<img src=http://evil.example/x>", "' onmouseover='alert(1)", "{{7*7}}${7*7}",
           "&lt;b&gt;&#60;b&#62;", "<!--", "]]>", "a\x1b[2Jb\x00\xff"]

# What the page says, cell by cell.
CELLS = """[...document.querySelectorAll("#%s tbody tr")].map((row) => [...row.cells].map((cell) => cell.textContent))"""


@contextlib.contextmanager
def stub(page, policy, live, past=None):
    """The page with other news than a daemon's: live() is what /live answers, `past` what /history does."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            is_page = self.path == "/"
            body = page if is_page else json.dumps(past if self.path == "/history" else live()).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8" if is_page else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Security-Policy", policy)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class LivePage(SystemTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.browser = cls.enterClassContext(Browser())

    def open(self, origin, **options):
        page = self.browser.page(f"{origin}/", **options)
        page.wait('document.getElementById("state")?.textContent === "live"', "the page is live")
        return page

    def origin(self, daemon):
        return f"http://127.0.0.1:{daemon.http_port}"

    def assert_harmless(self, page, origin):
        """No error, no dialog, no element that came from text, and no request to anybody else."""
        page.look()
        self.assertEqual(page.complaints, [])
        self.assertEqual(set(page.requests) - {f"{origin}/", f"{origin}/live", f"{origin}/history"}, set())
        self.assertGreater(page.requests.count(f"{origin}/live"), 0)
        counts = page.run('["script", "img", "b", "iframe", "[onload]", "[onerror]", "[onmouseover]", "[style]"]'
                          '.map((what) => document.querySelectorAll(what).length)')
        figures = page.run('document.querySelectorAll("#figures b").length')
        self.assertEqual(counts, [1, 0, figures, 0, 0, 0, 0, 0])

    def test_hostile_tags_and_rules_are_shown_as_text_without_an_error_or_a_request_elsewhere(self):
        limits = (rule(name="hostile", match="</td><img src=x onerror=alert(1)>*", burst=9), rule(name="all", burst=1),
                  override("<script>alert(1)</script>", burst=2))
        with HttpDaemon(*limits) as daemon:
            for times, tag in enumerate(HOSTILE, 3):
                daemon.ask([tag.encode("latin-1")] * times)
            page = self.open(self.origin(daemon))
            shown = {row[0] for row in page.run(CELLS % "top-throttled")}
            expected = [tag for tag in HOSTILE[:-1]][-9:] + ["a\\x1b[2Jb\\x00\\xff"]    # ten most throttled
            self.assertEqual(shown, set(expected))
            daemon.ask(["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>'] * 50)
            page.wait(f"({CELLS % 'top-throttled'}).some((row) => row[0] === '<script>alert(1)</script>')",
                      "the script is shown as text")
            self.assertIn('"><img src=x onerror=alert(1)>', {row[0] for row in page.run(CELLS % "top-throttled")})
            self.assertEqual(page.run(CELLS % "rules")[0][:2], ["hostile", "</td><img src=x onerror=alert(1)>*"])
            self.assert_harmless(page, self.origin(daemon))

    def test_it_shows_what_the_daemon_counts(self):
        limits = (rule(name="strict", match="s*", burst=1), rule(name="try", match="t*", burst=1, mode="shadow"),
                  rule(name="wide", burst=1e9))
        with HttpDaemon(*limits, peers={"connect": ["tcp://127.0.0.1:9"], "bind": f"tcp://127.0.0.1:{free_port_pair()}"}) as daemon:
            page = self.open(self.origin(daemon))
            stop = threading.Event()

            def ask():
                while not stop.wait(0.02):
                    daemon.ask(["s", "s", "t", "wide"])
            asking = threading.Thread(target=ask)
            asking.start()
            try:
                page.wait('document.querySelectorAll("#chart polygon").length === 3', "the chart has three areas")
                figures = '[...document.querySelectorAll("#figures b")].map((b) => parseFloat(b.textContent))'
                self.assertEqual(len(page.run(figures)), 3)
                page.wait(f"{figures}.every((figure) => figure > 0)", "a second in which the daemon was asked")
                self.assertRegex(page.run('document.getElementById("chart").getAttribute("aria-label")'),
                                 r"now [0-9.,]+ served, [0-9.,]+ throttled, [0-9.,]+ shadowed")
            finally:
                stop.set()
                asking.join()
            stats = daemon.stats()
            page.wait(f"({CELLS % 'rules'})[0]?.[9] === new Intl.NumberFormat('en').format({stats['throttled']})",
                      "the sums have settled")
            rows = page.run(CELLS % "rules")
            self.assertEqual([row[:1] + row[5:6] for row in rows],
                             [["strict", "enforce"], ["try", "shadow"], ["wide", "enforce"]])
            self.assertEqual([page.run(CELLS % "top-throttled")[0][0], page.run(CELLS % "peers")[1][:2]],
                             ["s", ["tcp://127.0.0.1:9", "connecting"]])
            self.assertRegex(page.run('document.getElementById("table-about").textContent'), "^(< )?[0-9.]+ % of 4 MiB used$")
            self.assertTrue(page.run('document.getElementById("shed").hidden'))
            self.assertTrue(page.run('document.getElementById("capacity").hidden'))
            self.assert_harmless(page, self.origin(daemon))

    def test_peers_with_hostile_names_and_the_shedding_curve(self):
        with HttpDaemon(rule(burst=1)) as daemon:
            live = daemon.get_json("/live")
            _, headers, page_text = daemon.get("/")
        peer = {"address": "tcp://10.0.0.2:7314", "state": "up", "heard_s_ago": 0.4, "age_s": 1.25, "reports": 99,
                "missed": 7, "lost": 1, "lost_hits": 3, "cut": HOSTILE[1], "version": "0.1.0", "note": None}
        live["peers"] = [{**peer, "name": HOSTILE[0]}, {**peer, "name": None, "state": "<b>", "heard_s_ago": None,
                                                        "age_s": None, "note": HOSTILE[1]}, {**peer, "state": "self"}]
        live["shed"] = {"signal": HOSTILE[0], "value": 2.9 * 2**30, "low": 2.8 * 2**30, "high": 3 * 2**30,
                        "priorities": [
                            {"priority": 0, "low": 2.8 * 2**30, "high": 3 * 2**30, "probability": 0.5},
                            {"priority": HOSTILE[1], "low": 2.9 * 2**30, "high": 3 * 2**30, "probability": 0.01}]}
        live["capacity"] = {"divides": True, "leased": False, "usual": 0.25, "members": [{"name": HOSTILE[0], "state": "up",
                            "heard_s_ago": 0.4, "weight": 1, "best_friend": True}],
                            "tags": [{"rule": HOSTILE[1], "rate": 400.0, "part": 0.5, "share": 200.0, "demand": 1e3,
                                      "tag": HOSTILE[0], "indicator": -0.25, "given": 10.5, "received": 20,
                                      "sum": 390, "sum_hosts": 2},
                                     {"rule": "r", "rate": 1, "part": 1, "share": 1, "demand": 0, "tag": "t", "sum": 1,
                                      "sum_hosts": 1}]}
        live["stats"]["uptime"] = 0
        with stub(page_text, headers["Content-Security-Policy"], lambda: live) as origin:
            page = self.open(origin)
            own, *rows = page.run(CELLS % "peers")
            self.assertEqual(own[1], "up")
            self.assertEqual(rows, [
                [f"{HOSTILE[0]}tcp://10.0.0.2:7314", "up", "0.4 s ago", "1.25 s", "0.1.0", "99", "7", "1", "1 %",
                 HOSTILE[1], ""],
                ["tcp://10.0.0.2:7314", "<b>", "never", "–", "0.1.0", "99", "7", "1", "1 %", HOSTILE[1], HOSTILE[1]]])
            self.assertEqual(page.run(CELLS % "capacity-tags"),
                             [[HOSTILE[0], HOSTILE[1], "400/s", "1,000/s", "200/s", "50 %", "-0.25", "10.5", "20",
                               "390/s"],
                              ["t", "r", "1/s", "0/s", "1/s", "100 %", "–", "–", "–", "not known"]])
            self.assertEqual(page.run(CELLS % "capacity-neighbours"), [[HOSTILE[0], "up", "0.4 s ago", "1", "yes"]])
            self.assertEqual(page.run('document.getElementById("capacity-about").textContent'),
                             "down to the reserve, 1 of 1 other hosts heard, 25 % of each tag that does not take part")
            self.assertFalse(page.run('document.getElementById("shed").hidden'))
            self.assertEqual(page.run('document.querySelectorAll("#shed-curve circle").length'), 2)
            curve, point = page.run("""[document.querySelector("#shed-curve polyline").points,
                [...document.querySelectorAll("#shed-curve circle")].map((c) => [+c.getAttribute("cx"), +c.getAttribute("cy")])]
                .map((x, i) => i ? x : [...x].map((p) => [p.x, p.y]))""")
            nearest = min(curve, key=lambda at: abs(at[0] - point[0][0]))
            self.assertAlmostEqual(nearest[1], point[0][1], delta=3, msg="the point is not on the curve")
            self.assertIn(f"{HOSTILE[0]} at 2.9 GiB, 50 % shed", page.run('document.getElementById("shed-about").textContent'))
            page.look()
            self.assertEqual((page.complaints, page.run('document.querySelectorAll("script").length')), ([], 1))

            # What the card does not understand hides it, and harms nothing else.
            for shed in (None, {"error": "unknown command"}, "off", [], {"low": 1, "high": 1, "value": 1}, {"low": "x"}):
                live["shed"] = shed
                page.wait('document.getElementById("shed").hidden', f"{shed} hides the card")
                live["shed"] = {"low": 1, "high": 2}
                page.wait('!document.getElementById("shed").hidden', "the card is back")
            page.look()
            self.assertEqual(page.complaints, [])

    def test_leases_with_hostile_names(self):
        with HttpDaemon(rule(burst=1)) as daemon:
            live = daemon.get_json("/live")
            _, headers, page_text = daemon.get("/")
        self.assertIsNone(live["leases"]["elector"])
        row = {"resource": HOSTILE[0], "algorithm": "fair_share", "capacity": 100, "has": 90.5, "wants": 170,
               "clients": 2, "shortfall": 0, "safe": 50, "expires_in_s": None, "learning_s": None}
        shown = {"elector": "etcd", "master": HOSTILE[1], "here": False, "token": 7, "valid_s": None, "note": None,
                 "resources": [row, {**row, "shortfall": 3, "learning_s": 12, "expires_in_s": 9.5}]}
        with stub(page_text, headers["Content-Security-Policy"], lambda: live) as origin:
            page = self.open(origin)
            self.assertTrue(page.run('document.getElementById("lease").hidden'))
            live["leases"] = shown
            page.wait('!document.getElementById("lease").hidden', "leases are shown")
            first = [HOSTILE[0], "fair_share", "100", "90.5", "170", "2"]
            self.assertEqual(page.run(CELLS % "leases"), [[*first, "–", "–", ""], [*first, "3", "9.5 s", "12 s more"]])
            self.assertEqual(page.run('document.getElementById("leases-about").textContent'), f"granted by {HOSTILE[1]}")
            self.assertEqual((page.complaints, page.run('document.querySelectorAll("script").length')), ([], 1))

    def test_accuracy_of_shared_limits_with_hostile_tags(self):
        with HttpDaemon(rule(burst=1)) as daemon:
            live = daemon.get_json("/live")
            _, headers, page_text = daemon.get("/")
        self.assertNotIn("accuracy", live["stats"])
        row = {"rule": "r", "share": "debit", "bound": 13, "over_percent": 12.5, "under_percent": 3, "over": 5, "under": 2,
               "served": 50, "debt": 7, "ahead": 7, "tolerance": 10, "alert": True}
        with stub(page_text, headers["Content-Security-Policy"], lambda: live) as origin:
            page = self.open(origin)
            self.assertTrue(page.run('document.getElementById("accuracy").hidden'))
            live["stats"].update(accuracy=[row, {**row, "rule": "s", "tolerance": 0, "alert": False, "bound": None}],
                                 accuracy_hottest=[{"over": 5, "under": 2, "debt": 7, "ahead": 7, "rule": None,
                                                    "tag": HOSTILE[0]}])
            page.wait('!document.getElementById("accuracy").hidden', "accuracy is shown")
            first, second = page.run(CELLS % "accuracy-rules")
            self.assertEqual((first[:2], first[4:]), (["r", "debit"], ["7", "13", "10 %"]))
            self.assertEqual(second[4:], ["7", "–", "–"])
            self.assertEqual(page.run(CELLS % "accuracy-tags"), [[HOSTILE[0], "–", "5", "2", "7"]])
            self.assertEqual((page.complaints, page.run('document.querySelectorAll("script").length')), ([], 1))

    def test_it_has_a_quarter_of_an_hour_of_past_when_it_is_opened_and_64_hosts_fit_on_it(self):
        with HttpDaemon(rule(name="r", burst=1)) as daemon:
            live = daemon.get_json("/live")
            _, headers, page_text = daemon.get("/")
        n = 180
        past = {"step_s": 5, "last_s_ago": 1, "served": [500] * n, "throttled": [50] * n, "shadowed": [0] * n, "shed": [0] * n,
                "latency_us": [20] * (n - 1) + [None], "lag_us": [2000] * n, "cpu_permille": [125] * n,
                "memory_kib": [2048] * n, "rules": [{"rule": "r", "served": [9] * n, "throttled": [None] + [1] * (n - 1)}]}
        peer = {"address": "tcp://10.0.0.2:7314", "state": "up", "heard_s_ago": 200, "age_s": 0.1, "reports": 1, "missed": 0,
                "lost": 0, "lost_hits": 0, "cut": None, "version": "0.1.0", "note": None}
        live.update(host="web-1", peers=[{**peer, "name": f"web-{i}"} for i in range(2, 65)])
        live["peers"].append({**peer, "name": "web-1", "state": "self"})
        live["stats"].update(owners=3, sites=2, sites_heard=1)
        with stub(page_text, headers["Content-Security-Policy"], lambda: live, past) as origin:
            page = self.open(origin, width=390)
            page.wait('document.querySelectorAll("#chart polygon").length > 0', "the chart is there")
            self.assertEqual(page.run('document.getElementById("peers-about").textContent'),
                             "63 of 63 up, 3 own the tags, 1 of 2 other sites heard")
            points = page.run('document.querySelector("#chart polygon").points.numberOfItems')
            self.assertGreaterEqual(points, 2 * n)
            self.assertEqual(page.run('document.getElementById("chart-about").textContent'), "the last 15 min")
            labels = page.run('[...document.querySelectorAll("#loads [role=img]")].map((e) => e.getAttribute("aria-label"))')
            self.assertEqual([label.split(",")[-2:] for label in labels],
                             [[" now 20 µs", " at most 20 µs"], [" now 2 ms", " at most 2 ms"],
                              [" now 12.5 %", " at most 12.5 %"], [" now 2 MiB", " at most 2 MiB"]])
            self.assertEqual(page.run('document.querySelectorAll("#rules .spark polyline").length'), 2)
            hosts = page.run(CELLS % "peers")
            self.assertEqual(len(hosts), 64)
            self.assertEqual(hosts[1][2], "3 min ago")
            self.assertEqual(page.run("document.title"), "web-1")
            cut = """[...document.querySelectorAll("main *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1 ||
                (getComputedStyle(e).overflowX === "auto" && e.scrollWidth > e.clientWidth + 1)).length"""
            self.assertEqual(page.run(cut), 0)
            self.assert_harmless(page, origin)

    def test_a_tag_says_why_by_keyboard_and_is_forgiven_where_that_is_allowed(self):
        for allowed in (True, False):
            with self.subTest(allowed), HttpDaemon(rule(burst=1, rate=0.001), admin={"http_forgives": allowed}) as daemon:
                tag = b"a\\x41 \xff<b>"
                daemon.ask([tag] * 5)
                page = self.open(self.origin(daemon))
                page.wait('document.querySelector("#top-throttled [data-tag]") !== null', "the tag is there")
                page.run('document.querySelector("#top-throttled [data-tag]").focus()')
                before = page.run('document.getElementById("top-throttled").textContent')
                daemon.ask([tag] * 5)
                page.wait(f'document.getElementById("top-throttled").textContent !== {json.dumps(before)}', "it is shown anew")
                self.assertEqual(page.run("document.activeElement.dataset.tag"), "a\\\\x41 \\xff<b>")    # the focus is kept
                for kind in ("rawKeyDown", "char", "keyUp"):
                    page.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r",
                              windowsVirtualKeyCode=13)
                page.wait('document.getElementById("why-lines").textContent.includes("burst 1")', "it says why")
                self.assertEqual(page.run('document.getElementById("forgive").hidden'), not allowed)
                if allowed:
                    page.run('document.getElementById("forgive").click()')
                    page.wait('document.getElementById("why-lines").textContent.includes("forgiven: true")', "it is forgiven")
                    self.assertEqual(daemon.ask([tag]), ["OK"])
                else:
                    self.assertEqual(daemon.get("/forgive?tag=a", method="POST")[0], 404)

    def test_only_rows_that_are_searched_for_are_shown(self):
        with HttpDaemon(rule(burst=1)) as daemon:
            daemon.ask(["alice"] * 5 + ["bob"] * 5)
            page = self.open(self.origin(daemon))
            shown = '[...document.querySelectorAll("#top-throttled tbody tr")].filter((r) => !r.hidden).length'
            page.wait(f"{shown} === 2", "both are there")
            page.run('const f = document.getElementById("filter"); f.value = "ALI"; f.dispatchEvent(new Event("input"))')
            self.assertEqual(page.run(shown), 1)

    def test_a_lost_connection_is_told_and_mends(self):
        # A port that no outgoing connection takes while the daemon is away.
        with HttpDaemon(rule(burst=1), admin={"http": f"127.0.0.1:{free_port_pair()}"}) as daemon:
            page = self.open(self.origin(daemon))
            daemon.stop()
            page.wait('document.getElementById("state").textContent.startsWith("connection lost")', "the loss is told")
            self.assertTrue(page.run('document.getElementById("main").classList.contains("stale")'))
            daemon.start()
            page.wait('document.getElementById("state").textContent === "live"', "it is live again")
            self.assertFalse(page.run('document.getElementById("main").classList.contains("stale")'))

    def test_the_policy_stops_what_escaping_would_have_missed(self):
        with HttpDaemon(rule(burst=1)) as daemon:
            page = self.open(self.origin(daemon))
            page.run("""document.body.insertAdjacentHTML("beforeend", '<img src=x onerror="window.hit = 1">')""")
            page.run("""document.body.append(Object.assign(document.createElement("script"), {text: "window.hit = 2"}))""")
            page.run("""document.body.append(Object.assign(document.createElement("script"), {src: "/live"}))""")
            self.assertTrue(page.run('fetch("http://127.0.0.1:9/").then(() => false, () => true)'))
            self.assertTrue(page.run('fetch("http://evil.example/").then(() => false, () => true)'))
            wait_until(lambda: (page.look(), len(page.complaints) >= 5)[1], "the browser complains of all five")
            self.assertTrue(all("Content Security Policy" in text for text in page.complaints), page.complaints)
            self.assertIsNone(page.run("window.hit ?? null"))

    def test_it_is_readable_on_any_screen(self):
        with HttpDaemon(rule(name="x" * 64, match="a" * 200, burst=1)) as daemon:
            daemon.ask(["a" * 200] * 9 + ["W" * 255] * 9)
            for options in ({"width": 360}, {"width": 800, "dark": True}, {"width": 2500}):
                page = self.open(self.origin(daemon), **options)
                page.wait(f"({CELLS % 'top-throttled'}).length + ({CELLS % 'top-served'}).length > 0", "there are tags")
                self.assertLessEqual(page.run("document.documentElement.scrollWidth"), options["width"],
                                     "it has to be scrolled sideways")
                background = page.run("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)")
                self.assertEqual(max(background) < 128, options.get("dark", False))
                self.assert_harmless(page, self.origin(daemon))
