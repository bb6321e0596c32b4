"""Metrics as Prometheus scrapes them, the dashboard and the alerts that are made of them."""

import json
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from common import SystemTest, report
from daemon import FIGURES, PATIENCE, ROOT, SANITIZED, THREADS, Daemon, override, rule, wait_until
from fleet import Fleet, wait_all_hear

_FETCHED = ROOT / "build/promtool"
PROMTOOL = shutil.which("promtool") or (str(_FETCHED) if _FETCHED.exists() else None)
needs_promtool = unittest.skipIf(PROMTOOL is None, "promtool is not there; scripts/test fetches it into build/")

DASHBOARD = ROOT / "conf/grafana-dashboard.json"
ALERTS = ROOT / "conf/prometheus-rules.yml"
NAME = re.compile(r"\b(?:dthrottled|process)_\w+")


def scrape(daemon):
    return daemon.admin("metrics")


def series(text):
    """Samples by name and labels, as they are written."""
    pairs = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    found = {name: float(value) for name, value in pairs}
    if len(found) != len(pairs):
        raise AssertionError("a series comes twice")
    return found


def names(text):
    """Of all metrics, those of histograms with what Prometheus makes of them."""
    found = set()
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.M):
        found |= {name + end for end in ("_bucket", "_sum", "_count")} if kind == "histogram" else {name}
    return found


def promtool(*arguments, text=""):
    done = subprocess.run([PROMTOOL, *map(str, arguments)], input=text.encode(), capture_output=True, timeout=PATIENCE)
    return done.returncode, (done.stdout + done.stderr).decode()


def answered(rule_name, verdict):
    return f'dthrottled_queries_total{{rule="{rule_name}",verdict="{verdict}"}}'


class Metrics(SystemTest):
    def test_queries_are_counted_by_rule_and_verdict_and_add_up(self):
        limits = (rule(name="login", match="login:*", burst=10),
                  rule(name="try", match="try:*", burst=4, mode="shadow"),
                  rule(name="off", match="off:*", burst=1, mode="off"), override("vip", burst=2))
        with Daemon(*limits) as daemon:
            for tag, queries in (("login:x", 13), ("try:x", 9), ("off:x", 5), ("vip", 6), ("nobody", 7)):
                daemon.ask([tag] * queries)
            found = series(scrape(daemon))
            expected = {("login", "served"): 10, ("login", "throttled"): 3, ("login", "shadowed"): 0,
                        ("try", "served"): 4, ("try", "throttled"): 0, ("try", "shadowed"): 5,
                        ("off", "served"): 5, ("off", "throttled"): 0, ("off", "shadowed"): 0,
                        ("", "served"): 2, ("", "throttled"): 4, ("", "shadowed"): 0, ("", "unmatched"): 7}
            expected.update({(name, "shed"): 0 for name in ("login", "try", "off", "")})
            self.assertEqual({name: value for name, value in found.items() if name.startswith("dthrottled_queries_")},
                             {answered(*key): value for key, value in expected.items()})
            near = [found[f'dthrottled_near_limit_total{{rule="{name}"}}'] for name in ("login", "try", "off", "")]
            self.assertEqual(near, [2, 1, 0, 1])    # below 2 of 10, 0.8 of 4 and 0.4 of 2
            self.assertEqual(found["dthrottled_query_duration_seconds_count"], 40)
            self.assertEqual(found["dthrottled_connections_accepted_total"], 5)

    def test_counters_only_grow_and_series_stay(self):
        with Daemon(rule(burst=50)) as daemon:
            counters = set(re.findall(r"^# TYPE (\w+) counter$", scrape(daemon), re.M))
            before = series(scrape(daemon))
            for i in range(5):
                daemon.ask([f"tag-{k % 7}" for k in range(100)])
                daemon.hang_up()
                now = series(scrape(daemon))
                self.assertEqual(now.keys(), before.keys())
                for name, value in now.items():
                    if name.split("{")[0] in counters or name.startswith("dthrottled_query_duration"):
                        self.assertGreaterEqual(value, before[name], name)
                before = now
            self.assertEqual(before["dthrottled_reloads_total"], 5)
            self.assertEqual(before["dthrottled_query_duration_seconds_count"], 500)

    def test_a_stall_of_the_daemon_is_seen_as_lag(self):
        def beyond_200_ms(found):
            count = found["dthrottled_loop_lag_seconds_count"]
            return count - found['dthrottled_loop_lag_seconds_bucket{le="0.2"}']
        with Daemon(rule()) as daemon:
            # Other stalls, of a machine that is busy, are no matter: one more is waited for.
            wait_until(lambda: series(scrape(daemon))["dthrottled_loop_lag_seconds_count"] > 0, "the loop was timed")
            before = beyond_200_ms(series(scrape(daemon)))
            daemon.signal(signal.SIGSTOP)
            time.sleep(0.6)
            daemon.signal(signal.SIGCONT)
            wait_until(lambda: beyond_200_ms(series(scrape(daemon))) >= before + THREADS, "every loop has seen the lag")
            self.assertGreater(series(scrape(daemon))["dthrottled_loop_lag_seconds_sum"], 0.4)

    def test_a_refused_reload_shows_until_a_good_one(self):
        with Daemon(rule()) as daemon:
            def state():
                found = series(scrape(daemon))
                return (found["dthrottled_config_last_reload_success"], found["dthrottled_reloads_total"],
                        found["dthrottled_reload_failures_total"], found["dthrottled_config_age_seconds"])
            self.assertEqual(state()[:3], (1, 0, 0))
            good = daemon.settings_path.read_text()
            daemon.settings_path.write_text(good + "\nnonsense = 1\n")
            daemon.hang_up()
            refused = state()
            self.assertEqual(refused[:3], (0, 0, 1))
            daemon.settings_path.write_text(good)
            daemon.hang_up()
            again = state()
            self.assertEqual(again[:3], (1, 1, 1))
            uptime = series(scrape(daemon))["dthrottled_uptime_seconds"]
            self.assertLess(again[3], uptime)

    def test_the_process_and_the_table_are_told_as_the_system_has_them(self):
        with Daemon(rule()) as daemon:
            daemon.ask(f"tag-{i}" for i in range(5000))
            found = series(scrape(daemon))
            self.assertEqual(found["dthrottled_table_tags"], 5000)
            self.assertTrue(0 < found["dthrottled_table_fill_ratio"] < 1)
            self.assertGreater(found["process_cpu_seconds_total"], 0)
            self.assertLess(abs(found["process_start_time_seconds"] - time.time()), 600)
            if not SANITIZED:
                resident = daemon.resident_bytes()
                self.assertLess(abs(found["process_resident_memory_bytes"] - resident), resident / 2)

    def test_rules_that_go_and_come_take_their_series_with_them(self):
        with Daemon(rule(name="old", burst=2)) as daemon:
            daemon.ask(["x"] * 5)
            self.assertEqual(series(scrape(daemon))[answered("old", "throttled")], 3)
            daemon.write_settings(rule(name="new", burst=2))
            daemon.hang_up()
            found = series(scrape(daemon))
            self.assertNotIn(answered("old", "throttled"), found)
            self.assertEqual(found[answered("new", "throttled")], 0)

    def test_peers_have_series_by_address_and_late_hits_show_as_over_admission(self):
        with Fleet(rule(name="r", burst=10), hosts=2) as (a, b):
            wait_all_hear([a, b])
            debited, over = (f'dthrottled_{name}_total{{rule="r"}}' for name in ("debited", "overadmitted_tokens"))
            # Both serve a burst before either can know of the other, if no report crosses just then.
            served = {a: 0, b: 0}
            for tag in range(20):
                at_a, at_b = a.served(f"tag-{tag}", 10), b.served(f"tag-{tag}", 10)
                served[a] += at_a
                served[b] += at_b
                if at_b == 10:
                    break
            beyond = served[a] + served[b] - 10 * (tag + 1)
            self.assertGreaterEqual(beyond, 10)
            for host, peer in ((a, b), (b, a)):
                wait_until(lambda: series(scrape(host))[debited] == served[peer], "the peer's hits are debited")
                # A peer is silent for a moment whenever the machine holds one of both up.
                found = wait_until(lambda: (f := series(scrape(host)))[f'dthrottled_peer_up{{peer="{peer.address}"}}'] == 1
                                   and f, "the peer is up")
                self.assertAlmostEqual(found[over], beyond, places=2)
                self.assertGreater(found[f'dthrottled_peer_reports_total{{peer="{peer.address}"}}'], 0)
                entries = f'dthrottled_peer_entries_total{{peer="{peer.address}"}}'
                wait_until(lambda: series(scrape(host))[entries] > 0, "the peer's report shows, which is told later")
                self.assertLess(found[f'dthrottled_peer_heard_ago_seconds{{peer="{peer.address}"}}'], PATIENCE)
                info = next(name for name in found if name.startswith("dthrottled_peer_info"))
                self.assertIn(f'peer="{peer.address}",name="{peer.name}",version="', info)
            if PROMTOOL:
                self.assertEqual(promtool("check", "metrics", text=scrape(a)), (0, ""))
            b.stop()
            wait_until(lambda: series(scrape(a))[f'dthrottled_peer_up{{peer="{b.address}"}}'] == 0, "a misses b")
            b.start()

    def test_the_answer_is_bounded_and_cheap_with_many_tags(self):
        tags = 20_000 if SANITIZED else 200_000
        with Daemon(rule(), table={"memory": "32MiB"}) as daemon:
            before = len(scrape(daemon))
            daemon.ask(f"tag-{i}" for i in range(tags))
            text = scrape(daemon)
            self.assertNotIn("tag-", text)
            self.assertLess(len(text), before + 1000)
            scrapes = 50
            start = series(text)["process_cpu_seconds_total"]
            for _ in range(scrapes):
                scrape(daemon)
            spent = series(scrape(daemon))["process_cpu_seconds_total"] - start
            report(f"a scrape with {tags} tags: {spent / scrapes * 1e3:.2f} ms of CPU, {len(text)} bytes")
            if FIGURES:
                self.assertLess(spent / scrapes, 0.02)

    @needs_promtool
    def test_promtool_finds_nothing_to_say(self):
        with Daemon(rule(), override("x")) as daemon:
            daemon.ask(["x", "y"])
            self.assertEqual(promtool("check", "metrics", text=scrape(daemon)), (0, ""))
        code, said = promtool("check", "metrics", text="# TYPE requests counter\nrequests 1\n")
        self.assertNotEqual((code, said), (0, ""), "promtool has nothing to say about anything")


class Views(SystemTest):
    """Grafana is not in Debian: of the dashboard only its form, its names and its expressions can be checked here."""

    def setUp(self):
        self.dashboard = json.loads(DASHBOARD.read_text())

    def alerts(self, key):
        return re.findall(rf"^ +{key}: (.*)$", ALERTS.read_text(), re.M)

    def expressions(self):
        return [target["expr"] for panel in self.dashboard["panels"] for target in panel["targets"]]

    def test_every_metric_of_the_dashboard_and_the_alerts_is_there(self):
        with Daemon(rule()) as daemon:
            known = names(scrape(daemon))
        queries = [variable["query"] for variable in self.dashboard["templating"]["list"]]
        used = set(NAME.findall("\n".join(self.expressions() + queries)))
        self.assertGreater(len(used), 15)
        self.assertEqual(used - known, set())
        used = set(NAME.findall(ALERTS.read_text()))
        self.assertGreater(len(used), 5)
        self.assertEqual(used - known, set())

    def test_every_expression_is_about_one_job_alone(self):
        selectors = {"the dashboard": (re.findall(rf"({NAME.pattern})(\{{[^}}]*\}})?", "\n".join(self.expressions())), 'job="$job"'),
                     "an alert": (re.findall(rf"({NAME.pattern})(\{{[^}}]*\}})?", "\n".join(self.alerts("expr"))),
                                  'job="dthrottled"')}
        for where, (found, job) in selectors.items():
            self.assertGreater(len(found), 20)
            self.assertEqual([name for name, labels in found if job not in labels], [], where)

    def test_an_alert_about_a_peer_names_it(self):
        for expression, summary in zip(self.alerts("expr"), self.alerts("summary")):
            if re.search(r"dthrottled_peer_(up|lost|lost_hits|cut|hits_disbelieved)(_total)?\b", expression):
                self.assertIn("{{ $labels.peer }}", summary)

    def test_the_alert_about_ceilings_names_a_setting_for_each(self):
        ceilings = re.findall(r'\{"(\w+)",', (ROOT / "src/admin/cut.h").read_text())
        self.assertIn("frames", ceilings)
        settings = set(re.findall(r"(?m)^(max_\w+) =", (ROOT / "conf/dthrottled.toml").read_text()))
        summary = next(text for text in self.alerts("summary") if "$labels.ceiling" in text)
        for ceiling in ceilings:
            self.assertTrue(f"max_{ceiling}" in settings or f"eq $labels.ceiling `{ceiling}`" in summary, ceiling)

    def test_what_matters_for_leases_shedding_capacity_and_redis_has_a_panel_and_an_alert(self):
        panels, alerts = "\n".join(self.expressions()), "\n".join(self.alerts("expr"))
        for counter in ("lease_shortfalls", "lease_full", "lease_parent_failures", "shed_failures", "shed_expired",
                        "capacity_fenced", "capacity_overdrawn", "capacity_other_settings", "capacity_tags_refused",
                        "resp_evicted", "resp_protocol_errors"):
            self.assertIn(f"dthrottled_{counter}_total", panels)
            self.assertIn(f"dthrottled_{counter}_total", alerts)
        self.assertIn("dthrottled_shed_blind", panels)
        self.assertIn("dthrottled_shed_blind", alerts)    # a reporter that is gone steps no counter any more

    def test_the_dashboard_has_the_form_that_grafana_imports(self):
        for key, kind in (("uid", str), ("title", str), ("schemaVersion", int), ("panels", list), ("time", dict)):
            self.assertIsInstance(self.dashboard[key], kind, key)
        panels = self.dashboard["panels"]
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        taken = set()
        variables = {variable["name"] for variable in self.dashboard["templating"]["list"]}
        for panel in panels:
            place = panel["gridPos"]
            cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                     for y in range(place["y"], place["y"] + place["h"])}
            self.assertLessEqual(place["x"] + place["w"], 24, panel["title"])
            self.assertFalse(cells & taken, f"{panel['title']} lies over another panel")
            taken |= cells
            self.assertIn(panel["type"], ("timeseries", "stat"))
            self.assertTrue(panel["description"].endswith("."), panel["title"])
            references = [target["refId"] for target in panel["targets"]]
            self.assertEqual(len(set(references)), len(references))
            for target in panel["targets"]:
                used = set(re.findall(r"\$\{?(\w+)", target["expr"] + target["datasource"]["uid"]))
                self.assertLessEqual(used, variables | {"__rate_interval"})

    @needs_promtool
    def test_every_expression_of_the_dashboard_is_promql(self):
        plain = [re.sub(r"\$\w+", "any", each.replace("$__rate_interval", "5m")) for each in self.expressions()]
        records = [{"record": f"panel:{i}", "expr": expression} for i, expression in enumerate(plain)]
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "rules.yml"
            path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": records}]}))    # JSON is YAML
            code, said = promtool("check", "rules", path)
            self.assertEqual(code, 0, said)
            self.assertIn(f"{len(records)} rules found", said)

    @needs_promtool
    def test_the_alerts_are_rules_that_prometheus_takes(self):
        code, said = promtool("check", "rules", ALERTS)
        self.assertEqual(code, 0, said)
