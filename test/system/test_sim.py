"""dthrottle-sim from its command line: fleets, comparisons, logs, pictures, exit codes, and a terminal."""

import contextlib
import csv
import gzip
import io
import os
import pty
import re
import resource
import shutil
import signal
import subprocess
import time

from common import SystemTest, report
from daemon import DTHROTTLED, ROOT, SANITIZED, fresh_directory, wait_until
from webserver import Apache, Nginx

SIM = DTHROTTLED.parent / "dthrottle-sim"
EXAMPLE = ROOT / "conf/examples/fleet.toml"
EX_OK, EX_USAGE, EX_DATAERR, EX_NOINPUT, EX_UNAVAILABLE, EX_CANTCREAT, EX_CONFIG = 0, 64, 65, 66, 69, 73, 78
LINES_MANY = 20_000 if SANITIZED else 100_000

FLEET = """
[fleet]
hosts = 4
duration = "10s"
seeds = 2
[peers]
period = "1s"
[[rule]]
burst = 100
rate = 100
[[workload]]
rate = 200
"""
RULES = """
[[rule]]
name = "login"
match = "ip:10.*"
burst = 3
rate = "6/m"
"""


def sim(*arguments, text=None):
    return subprocess.run([SIM, *map(str, arguments)], input=text, capture_output=True, text=True, timeout=300)


def line(second, host="10.0.0.1", path="/", more=""):
    """Of a log that begins on 10 October 2000 at 13:55:00 UTC."""
    at = time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(971186100 + second))
    return f'{host} - - [{at}] "GET {path} HTTP/1.1" 200 5{more}\n'


class Sim(SystemTest):
    def setUp(self):
        self.directory = fresh_directory()
        self.addCleanup(shutil.rmtree, self.directory)

    def write(self, name, text):
        path = self.directory / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def ran(self, *arguments, text=None):
        done = sim(*arguments, text=text)
        self.assertEqual((done.returncode, done.stderr), (EX_OK, ""))
        return done.stdout

    def rows(self, text):
        return list(csv.DictReader(io.StringIO(text)))

    # ---- run ----

    def test_run_prints_every_measure_and_the_first_run_second_by_second(self):
        out = self.ran("run", "-", text=FLEET)
        self.assertIn("standard input: 4 hosts, period 1s, 10s, seeds 1 to 2", out)
        for name in ("asked", "served", "ideal", "over", "under", "excess", "fairness", "silence", "ideal_silence", "frames",
                     "entries", "bytes"):
            self.assertRegex(out, rf"(?m)^{name} +[\d.-]+ \+- [\d.]+ ")
        table = out.partition("\n second ")[2].splitlines()[1:]
        self.assertEqual(len(table), 10)
        asked = sum(int(row.split()[1]) for row in table)
        self.assertAlmostEqual(asked, 2000, delta=300)

    def test_csv_has_every_second_of_every_run_and_agrees_with_the_measures(self):
        fleet = self.write("fleet.toml", FLEET)
        seconds = self.rows(self.ran("run", fleet, "--csv", "-"))
        measures = self.rows(self.ran("run", fleet, "--measures", "-"))
        self.assertEqual([(row["seed"], row["second"]) for row in seconds],
                         [(seed, str(second)) for seed in "12" for second in range(10)])
        self.assertEqual([row["seed"] for row in measures], ["1", "2"])
        for run in measures:
            mine = [row for row in seconds if row["seed"] == run["seed"]]
            for name in ("asked", "served", "ideal"):
                self.assertEqual(sum(int(row[name]) for row in mine), float(run[name]))
            for name in ("over", "under"):
                self.assertAlmostEqual(100 * sum(int(row[name]) for row in mine) / float(run["ideal"]), float(run[name]))

    def test_a_seed_repeats_a_run(self):
        fleet = self.write("fleet.toml", FLEET)
        runs = [self.ran("run", fleet, "--seeds", 1, "--seed", seed, "--measures", "-") for seed in (7, 7, 8)]
        self.assertEqual(runs[0], runs[1])
        self.assertNotEqual(runs[0], runs[2])

    def test_the_example_runs(self):
        self.assertIn("16 hosts", self.ran("run", EXAMPLE, "--seeds", 1))

    def test_a_bad_fleet_is_said_as_bad_settings_are(self):
        fleet = self.write("fleet.toml", FLEET.replace("hosts = 4", "hosts = 0").replace("rate = 200", "rat = 2"))
        done = sim("run", fleet)
        self.assertEqual(done.returncode, EX_CONFIG)
        self.assertIn(f"{fleet}:3:9: error: fleet.hosts = 0: must be a whole number from 1 to 1024\n", done.stderr)
        self.assertRegex(done.stderr, r":\d+:1: error: unknown key workload.rat; must be one of rate, ")
        self.assertIn("error: workload without rate; must be a number from", done.stderr)
        self.assertEqual(done.stdout, "")

    def test_owners_in_etcd_are_three_of_the_hosts_and_nobody_reports_an_indicator(self):
        owners = FLEET.replace("[peers]", '[peers]\nspread = "owners"\netcd = ["http://etcd-1:2379"]')
        self.assertIn(": 4 hosts, 3 of which own all tags, period 1s, 10s, seeds 1 to 2", self.ran("run", "-", text=owners))
        done = sim("compare", "-", text=FLEET + '[capacity]\nindicator = "reported"\ngain = 0.1\n')
        self.assertEqual((done.returncode, done.stdout), (EX_CONFIG, ""))
        self.assertIn("capacity.indicator = \"reported\": must be another one, because nobody reports here", done.stderr)
        log = self.write("log", line(0))
        reported = RULES + '[capacity]\nindicator = "reported"\ngain = 0.1\n'
        self.replay(log, rules=reported)
        rules = self.write("divided.toml", reported.replace('rate = "6/m"', 'rate = "6/m"\nshare = "capacity"'))
        done = sim("replay", log, "--rules", rules)
        self.assertEqual(done.returncode, EX_CONFIG)
        self.assertIn("capacity.indicator = \"reported\": must be another one", done.stderr)

    def interrupted(self, *arguments):
        """What is left of a simulation that would last for minutes."""
        fleet = FLEET.replace("hosts = 4", "hosts = 64").replace('"10s"', '"10h"')
        with subprocess.Popen([SIM, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as process:
            process.stdin.write(fleet)
            process.stdin.close()
            time.sleep(4)
            process.send_signal(signal.SIGINT)
            out, errors = process.stdout.read(), process.stderr.read()
            self.assertEqual(process.wait(timeout=60), 130, errors)
        self.assertIn("interrupted: what was not reached is left out", errors)
        return out

    def test_ctrl_c_leaves_a_part_of_a_run_that_is_said_to_be_one(self):
        measures, seconds = self.directory / "measures", self.directory / "seconds"
        out = self.interrupted("run", "-", "--measures", measures, "--csv", seconds)
        reached = re.search(r"(?m)^fleet .*, period 1s, ((?:\d+[hms])+) of 10h, seed 1, 1 of 2$", out)[1]
        reached = sum(int(n) * {"h": 3600, "m": 60, "s": 1}[unit] for n, unit in re.findall(r"(\d+)([hms])", reached))
        self.assertEqual(self.rows(measures.read_text()), [])
        self.assertEqual(len(self.rows(seconds.read_text())), reached)

    def test_ctrl_c_leaves_no_part_of_a_run_in_a_comparison(self):
        self.assertEqual(self.interrupted("compare", "-", "--jobs", 1), "")

    # ---- compare ----

    def test_compare_puts_schemes_side_by_side(self):
        fleet = self.write("fleet.toml", FLEET)
        out = self.ran("compare", fleet, "--measures", self.directory / "measures")
        self.assertRegex(out, r"(?m)^ +local +debit +forecast +capacity$")
        rows = self.rows((self.directory / "measures").read_text())
        by = {(row["scheme"], row["seed"]): row for row in rows}
        self.assertEqual(len(by), 8)
        for seed in "12":
            self.assertEqual(by["local", seed]["asked"], by["debit", seed]["asked"])
            self.assertLess(float(by["local", seed]["excess"]), float(by["debit", seed]["excess"]))
            self.assertEqual(float(by["local", seed]["entries"]), 0)
            self.assertLess(float(by["capacity", seed]["excess"]), 1)
            self.assertGreater(float(by["capacity", seed]["served"]), 0.9 * float(by["capacity", seed]["ideal"]))
            self.assertLess(float(by["forecast", seed]["over"]), float(by["debit", seed]["over"]))

    def test_a_row_of_the_table_of_accuracy_is_what_its_fleet_gives(self):
        with open(ROOT / "protocol/accuracy.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        fleets = {path.stem for path in (ROOT / "conf/examples/accuracy").iterdir()}
        self.assertEqual({row["fleet"] for row in rows}, fleets)
        made = sim("compare", ROOT / "conf/examples/accuracy/poisson-4.toml", "--measures", "-")
        runs = list(csv.DictReader(io.StringIO(made.stdout)))
        for row in rows:
            if row["fleet"] != "poisson-4":
                continue
            for what in ("over", "under"):
                figures = [float(run[what]) for run in runs if run["scheme"] == row["share"]]
                self.assertEqual(len(figures), int(row["runs"]))
                deviation = float(row[f"{what}_deviation"])
                self.assertAlmostEqual(sum(figures) / len(figures), float(row[what]), delta=deviation + 0.01, msg=row)

    def test_compare_only_what_is_asked_for(self):
        out = self.ran("compare", "-", "--schemes", "local,debit", text=FLEET)
        self.assertRegex(out, r"(?m)^ +local +debit$")

    # ---- pictures ----

    def test_plots_are_pictures(self):
        if shutil.which("gnuplot") is None:
            self.skipTest("NOT TESTED: gnuplot is not installed (package gnuplot-nox)")
        for command, name, magic in (("run", "plot.svg", b"<?xml"), ("compare", "plot.png", b"\x89PNG")):
            self.ran(command, "-", "--plot", self.directory / name, text=FLEET)
            picture = (self.directory / name).read_bytes()
            self.assertTrue(picture.startswith(magic))
            self.assertGreater(len(picture), 3000)

    def test_a_picture_of_leases_that_cannot_be_is_said_as_everywhere(self):
        lease = ("lease", "--scenario", "one", "--minutes", 2)
        done = sim(*lease, "--plot", self.directory / "x.svg", "--gnuplot", "/no/gnuplot")
        self.assertEqual(done.returncode, EX_UNAVAILABLE)
        self.assertIn("/no/gnuplot is not installed (package gnuplot-nox)", done.stderr)
        self.assertIn("highest", done.stdout)
        for options, status, words in ((("--plot", "a.pdf"), EX_USAGE, "--plot: a.pdf: .svg or .png is drawn"),
                                       (("--plot", "/no/a.svg"), EX_CANTCREAT, "/no/a.svg: there is no directory /no"),
                                       (("--csv", "/no/dir/x"), EX_CANTCREAT, "/no/dir/x: there is no directory /no/dir")):
            with self.subTest(options=options):
                done = sim(*lease, *options)
                self.assertEqual((done.returncode, done.stdout), (status, ""), done.stderr)
                self.assertIn(words, done.stderr)

    def test_what_is_missing_is_said(self):
        done = sim("run", "-", "--gnuplot", "/no/gnuplot", "--plot", self.directory / "x.svg", text=FLEET)
        self.assertEqual(done.returncode, EX_UNAVAILABLE)
        self.assertIn("/no/gnuplot is not installed (package gnuplot-nox)", done.stderr)
        self.assertIn("over", done.stdout)

    # ---- lease ----

    def test_the_median_of_two_runs_is_between_them(self):
        def highest(*options):
            out = self.ran("lease", "--minutes", 30, *options)
            found = re.search(r"(?m)^highest +([\d.]+) %(?: \(([\d.]+) to ([\d.]+)\))?$", out)
            return [float(x) for x in found.groups("0")]

        first, second = sorted(highest("--seed", seed)[0] for seed in (1, 2))
        self.assertLess(first, second)
        expected = [first + part * (second - first) for part in (0.5, 0.1, 0.9)]
        for found, right in zip(highest("--seeds", 2), expected):
            self.assertAlmostEqual(found, right, delta=0.011)

    # ---- replay ----

    def replay(self, log, *options, rules=RULES):
        return self.ran("replay", log, "--rules", self.write("rules.toml", rules), *options)

    def test_replay_says_who_is_refused_when_and_by_which_rule(self):
        log = self.write("access.log", "".join(line(second) + line(second, "192.0.2.1") for second in range(20)))
        out = self.replay(log, "--hosts", 1, "--csv", self.directory / "csv")
        self.assertIn("40 lines, 2000-10-10T13:55:00Z to 2000-10-10T13:55:19Z\n", out)
        # 3 at once, and one at 10 s more.
        self.assertRegex(out, r"(?m)^refused +16 \(40\.00 %\); one bucket for all refuses 16 ")
        self.assertRegex(out, r"(?m)^login +20 +16 +16  2000-10-10T13:55:03Z  2000-10-10T13:55:19Z$")
        self.assertRegex(out, r"(?m)^\(no limit\) +20 +0 ")
        self.assertRegex(out, r"(?m)^ip:10\.0\.0\.1 +16  2000-10-10T13:55:03Z  2000-10-10T13:55:19Z  login$")
        rows = self.rows((self.directory / "csv").read_text())
        self.assertEqual(len(rows), 20)
        self.assertEqual([int(row["refused"]) for row in rows], [0] * 3 + [1] * 7 + [0] + [1] * 9)
        self.assertEqual((rows[0]["time"], rows[0]["unix_time"]), ("2000-10-10T13:55:00Z", "971186100"))

    def test_replay_has_as_many_owners_as_the_settings_name(self):
        log = self.write("access.log", "".join(line(second) for second in range(60)))
        peers = ('[peers]\nname = "a"\nperiod = "1s"\nconnect = ["tcp://127.0.0.1:1"]\n'
                 'spread = "owners"\nowners = ["a", "b"]\n')
        for hosts, owners in ((8, 2), (1, 1)):
            with self.subTest(hosts=hosts):
                out = self.replay(log, "--hosts", hosts, rules=RULES + peers)
                self.assertIn(f"fleet     {hosts} hosts, {owners} of which own all tags", out)
                refused, ideal = map(int, re.search(r"refused +(\d+) .* one bucket for all refuses (\d+) ", out).groups())
                self.assertEqual(ideal, 52)    # 3 at once, and 5 at 10 s more
                self.assertGreaterEqual(refused, 45)    # each of 8 hosts would serve 3 for itself

    def test_compressed_logs_and_standard_input_say_the_same(self):
        text = "".join(line(second, f"10.0.0.{second % 3}") for second in range(100))
        plain = self.write("a.log", text)
        packed = self.write("a.log.gz", gzip.compress(text.encode()))
        rules = self.write("rules.toml", RULES)
        outs = [self.replay(plain), self.replay(packed), self.ran("replay", "-", "--rules", rules, text=text)]
        self.assertEqual(len({out.partition("\n")[2] for out in outs}), 1)
        self.assertTrue(outs[2].startswith("log       standard input: 100 lines"))

    def test_logs_in_order_are_one_log(self):
        first = self.write("1.log", "".join(line(second) for second in range(10)))
        second = self.write("2.log.gz", gzip.compress("".join(line(s) for s in range(10, 20)).encode()))
        out = self.ran("replay", first, second, "--rules", self.write("rules.toml", RULES))
        self.assertIn("20 lines, 2000-10-10T13:55:00Z to 2000-10-10T13:55:19Z\n", out)

    def test_replay_says_that_logs_are_not_in_order_of_time(self):
        def line(minute):
            return f'10.0.0.1 - - [10/Oct/2000:13:{minute:02}:00 +0000] "GET / HTTP/1.1" 200 1\n'
        for first, void in ((20, False), (21, False), (22, True)):
            log = self.write("access.log", line(first) + line(20))
            self.assertEqual("figures are void" in self.replay(log), void)

    def test_a_tag_is_what_its_template_says(self):
        log = self.write("access.log", "".join(line(0, path=f"/a?{i}") + line(0, path="/b") for i in range(5)))
        out = self.replay(log, "--tag", "%m %U", rules=RULES.replace("ip:10.*", "GET /a"))
        self.assertRegex(out, r"(?m)^GET /a +\d+ ")
        self.assertNotIn("GET /b", out)
        done = sim("replay", log, "--rules", self.directory / "rules.toml", "--tag", "%H")
        self.assertEqual(done.returncode, EX_USAGE)
        self.assertIn("--tag: %H: must be one of %h ", done.stderr)

    def test_lines_that_are_unreadable_are_counted_and_shown_harmlessly(self):
        log = self.write("access.log", b"\x1b]0;owned\x07\n" + line(0).encode() + b"\xff\xfe\n" * 4 + line(1).encode() +
                         b"x" * 100_000 + b"\n" + line(2).encode()[:-1])
        out = self.replay(log)
        self.assertIn(": 9 lines, ", out)
        self.assertIn("6 unreadable", out)
        self.assertIn("access.log:1: no date in brackets with a request in quotes behind it: \\x1b]0;owned\\x07\n", out)
        self.assertRegex(out, r"(?m)^asked +3$")
        self.assertEqual(re.findall(r"[^\n\x20-\x7e]", out), [])

    def test_tags_of_strangers_do_not_reach_the_terminal_raw(self):
        log = self.write("access.log", "".join(line(0, path="/\x1b[2J\x85") for _ in range(9)))
        out = self.replay(log, "--tag", "ip:10.%U")
        self.assertIn(r"ip:10./\x1b[2J", out)
        self.assertEqual(re.findall(r"[^\n\x20-\x7e]", out), [])

    def test_logs_of_questions_that_web_servers_write_by_the_manual_are_replayed(self):
        manual = (ROOT / "man/dthrottle-sim.1").read_text()
        nginx, apache = re.search(r"# nginx\n(log_format question .*?;)\n# Apache\n(LogFormat .*?)\n", manual, re.S).groups()
        log = self.directory / "questions.log"
        servers = {
            "nginx": lambda: Nginx("", http=f"{nginx} access_log {log} question;", main="", shown="$status"),
            "apache": lambda: Apache(f"{apache}\nCustomLog {log} question", mpm="event"),
        }
        rules = """
            [[rule]]
            match = "ip:*"
            burst = 4
            rate = "1/h"
            in_flight = 100
            [[rule]]
            match = "site:*"
            burst = 2
            rate = "1/h"
        """
        for name, server in servers.items():
            with self.subTest(name):
                log.unlink(missing_ok=True)
                self.directory.chmod(0o755)
                with server() as running:
                    for host in ("a", "a", "a", "b", "b", "c"):
                        running.get(host=host)
                    wait_until(lambda: log.exists() and len(log.read_text().splitlines()) == 6, "all are in the log")
                out = self.replay(log, "--hosts", 1, rules=rules)
                # The third request of site a is refused by the site, and the last one by the address.
                self.assertRegex(out, r"(?m)^asked +6$")
                self.assertRegex(out, r"(?m)^refused +2 ")
                self.assertRegex(out, r"(?m)^site:a +1 ")
                self.assertRegex(out, r"(?m)^ip:127\.0\.0\.1 +1 ")
                self.assertRegex(out, r"(?m)^places +4: ")
                self.assertNotIn("unreadable", out)

    def test_a_log_of_questions_says_what_waits_holds_and_takes_places(self):
        def asks(second, words):
            return f"[10/Oct/2000:13:55:{second:02} +0000] {words}\n"

        rules = """
            [peers]
            period = "1s"
            [quota]
            file = "/var/lib/dthrottle/quota"
            [[rule]]
            name = "nets"
            match = "ip:*/24"
            burst = 5
            rate = 0.001
            [[rule]]
            name = "addresses"
            match = "ip:*"
            burst = 10
            rate = 0.001
            also = ["ipv4/24"]
            [[rule]]
            name = "users"
            match = "user:*"
            burst = 1
            rate = 1
            delay = "2s"
            [[rule]]
            name = "calls"
            match = "calls:*"
            burst = 1000
            rate = 1000
            in_flight = 2
            [[rule]]
            name = "models"
            match = "model:*"
            burst = 100
            rate = 0.001
            quota = 150
            per = "day"
        """
        first = self.write("first.log", "".join([
            *(asks(0, "- take 1 ip:10.0.0.1 1 user:eve") for _ in range(2)),    # the second has user:eve's token only later
            *(asks(1, f"- take 1 ip:10.0.0.{i}") for i in range(7)),            # 4 pass: their network has 4 left
            *(asks(2, "- take wait=1500 1 user:bob") for _ in range(3)),        # one at once, two wait
            asks(3, "17 tkae 1 ip:10.0.0.1")]))
        second = self.write("second.log", "".join([
            *(asks(20, f"c{i} enter 1 calls:acme") for i in range(3)),
            asks(21, "c0 give"), asks(22, "- enter lasts=0.5s 1 calls:acme"), asks(23, "c3 enter 1 calls:acme"),
            asks(30, "h1 hold 60000 100 model:a"), asks(31, "h1 commit 60"), asks(32, "h2 hold 60000 40 model:a"),
            asks(33, "h3 hold 60000 50 model:a"), asks(34, "h2 release"), asks(35, "h4 hold 5000 101 model:a"),
            asks(40, "t take 10 model:a"), asks(41, "t refund 10 model:a"), asks(42, "- peek 1 model:a")]))
        out = self.ran("replay", first, second, "--rules", self.write("rules.toml", rules), "--hosts", 1)
        self.assertIn("28 lines, 2000-10-10T13:55:00Z to 2000-10-10T13:55:42Z\n", out)
        self.assertIn("first.log:13: \"tkae\": must be take, peek, enter, hold, commit, release, give or refund, ", out)
        self.assertRegex(out, r"(?m)^refused +7 ")
        self.assertRegex(out, r"(?m)^waited +2 \(median 6\d\d\.\d ms, p99 1333\.3 ms, longest 1333\.3 ms\)$")
        self.assertRegex(out, r"(?m)^holds +2: 1 committed, 1 released, 0 expired; 80 tokens came back, 0 ")
        self.assertRegex(out, r"(?m)^places +4: at most 2 at once, of calls:acme; with one bucket for all 2$")
        self.assertIn("\nrefunded  10 tokens\n", out)
        self.assertIn("\n          1 peeked, which counts for nothing\n", out)
        self.assertIn("\n          1 found no place\n          1 cost more than a bucket or a quota holds\n", out)
        for rule, asked, refused in (("nets", 9, 3), ("addresses", 9, 0), ("users", 5, 1), ("calls", 5, 1), ("models", 5, 2)):
            self.assertRegex(out, rf"(?m)^{rule} +{asked} +{refused} +{refused}  ")
        self.assertRegex(out, r"(?m)^ip:10\.0\.0\.0/24 +3 .* nets$")

    def test_a_line_can_ask_about_several_tags_at_a_cost(self):
        log = self.write("access.log", "".join(line(0, f"10.0.0.{i % 2}", path="/a") for i in range(8)))
        rules = RULES + "[[rule]]\nname = \"paths\"\nmatch = \"path:*\"\nburst = 13\nrate = 0.001\n"
        out = self.replay(log, "--tag", "ip:%h", "--tag", "path:%U", "--cost", "1", "--cost", "3", "--hosts", 1, rules=rules)
        self.assertIn(", tag ip:%h, path:%U\n", out)
        self.assertRegex(out, r"(?m)^paths +8 +4 +4 ")    # 13 tokens: four times 3
        for options, words in ((("--cost", "1", "--cost", "2"), "--cost: must be given once, or as often as --tag"),
                               (("--wait", "soon"), "--wait: soon: must be a duration such as 500ms"),
                               (["--tag", "a"] * 17, "--tag: must be given at most 16 times"),
                               (("--cost", "%Q"), "--cost: %Q: must be one of %h ")):
            done = sim("replay", log, "--rules", self.directory / "rules.toml", *options)
            self.assertEqual(done.returncode, EX_USAGE)
            self.assertIn(words, done.stderr)
        done = sim("replay", log, "--rules", self.directory / "rules.toml", "--cost", "%m")
        self.assertEqual(done.returncode, EX_DATAERR)
        self.assertIn(f"or a question; {log}:1: cost GET: must be a whole number of tokens from 0 to 4294967295", done.stderr)

    def test_a_log_that_ends_early_counts_as_far_as_it_goes(self):
        text = "".join(line(i // 10, f"10.{i % 251}.{i % 241}.{i * 7919 % 256}") for i in range(5000)).encode()
        packed = gzip.compress(text)
        done = sim("replay", self.write("a.gz", packed[:len(packed) // 2]), "--rules", self.write("rules.toml", RULES))
        self.assertEqual(done.returncode, EX_DATAERR)
        self.assertIn("ends in the middle of compressed data; what was read of it counts\n", done.stderr)
        self.assertRegex(done.stdout, r"(?m)^asked +\d{3,}$")

    def test_what_is_behind_compressed_data_is_not_dropped_without_a_word(self):
        one, two = (gzip.compress(line(second).encode()) for second in (0, 1))
        done = sim("replay", self.write("a.gz", one + b"\0" + two), "--rules", self.write("rules.toml", RULES))
        self.assertEqual(done.returncode, EX_DATAERR)
        self.assertIn(f"a.gz: {1 + len(two)} bytes behind a member of gzip are none and were not read; "
                      "what was read of it counts\n", done.stderr)
        self.assertRegex(done.stdout, r"(?m)^asked +1$")

    def test_a_log_that_cannot_be_opened_leaves_what_was_read_of_the_others(self):
        first, last = self.write("1.log", line(0) + line(1)), self.write("3.log", line(2))
        rules, csv_file = self.write("rules.toml", RULES), self.directory / "seconds"
        done = sim("replay", first, "/no/2.log", last, "--rules", rules, "--csv", csv_file)
        self.assertEqual(done.returncode, EX_NOINPUT)
        self.assertIn("/no/2.log", done.stderr)
        self.assertRegex(done.stdout, r"(?m)^asked +3$")
        self.assertEqual(len(self.rows(csv_file.read_text())), 3)
        done = sim("replay", "/no/1.log", "/no/2.log", "--rules", rules)
        self.assertEqual((done.returncode, done.stdout), (EX_NOINPUT, ""))
        self.assertIn("/no/2.log", done.stderr)

    def test_hosts_that_a_replay_divides_a_limit_among_are_warned_of_as_those_of_a_fleet(self):
        log = self.write("access.log", line(0))
        divided = RULES.replace('rate = "6/m"', 'rate = "6/m"\nshare = "capacity"')
        for rules, hosts, warned in ((divided, 4, True), (divided.replace("burst = 3", "burst = 40").replace("6/m", "40/s"), 4, False),
                                     (divided, 1, False)):
            with self.subTest(rules=rules, hosts=hosts):
                done = sim("replay", log, "--rules", self.write("rules.toml", rules), "--hosts", hosts)
                self.assertEqual(done.returncode, EX_OK)
                self.assertNotIn("no other host", done.stderr)
                self.assertEqual("warning: rule \"login\": " in done.stderr, warned, done.stderr)

    def test_outputs_that_cannot_be_are_refused_before_the_run(self):
        fleet = self.write("fleet.toml", FLEET)
        for command in ("run", "compare"):
            for options, status, words in (
                    (("--csv", "-", "--measures", "-"), EX_USAGE, "only one of them goes to standard output"),
                    (("--plot", "a.pdf"), EX_USAGE, "--plot: a.pdf: .svg or .png is drawn"),
                    (("--plot", "/no/a.svg"), EX_CANTCREAT, "/no/a.svg: there is no directory /no"),
                    (("--measures", "/no/dir/x"), EX_CANTCREAT, "/no/dir/x: there is no directory /no/dir")):
                with self.subTest(command, options=options):
                    done = sim(command, fleet, *options)
                    self.assertEqual((done.returncode, done.stdout), (status, ""), done.stderr)
                    self.assertIn(words, done.stderr)

    def test_bad_input_is_named_and_has_its_exit_code(self):
        log, rules = self.write("log", line(0)), self.write("rules.toml", RULES)
        bad = self.write("bad.toml", "[[rule]]\nburst = 0\nrate = 1\n")
        for arguments, status, words in (
                ([], EX_USAGE, "subcommand"),
                (["fly"], EX_USAGE, "subcommand"),
                (["run"], EX_USAGE, "FLEET"),
                (["run", "/no/fleet"], EX_NOINPUT, "/no/fleet"),
                (["run", "/"], EX_NOINPUT, "/"),
                (["run", EXAMPLE, "--csv", "/no/dir/x"], EX_CANTCREAT, "/no/dir/x"),
                (["compare", EXAMPLE, "--schemes", "magic"], EX_USAGE, "magic"),
                *((["figure", figure, option, number], EX_USAGE, f"{option}: \"{number}\": must be a finite number from ")
                  for number in ("nan", "inf")
                  for figure, option in (("gdrl-3", "--alpha"), ("gdrl-3", "--gain"), ("dst-7", "--load"))),
                (["figure", "gdrl-3", "--network", "--loss", "nan"], EX_USAGE, "must be a finite number from 0 to 0.9"),
                (["lease", "--minutes", "nan"], EX_USAGE, "must be a finite number from 2 to 10000"),
                (["replay", log], EX_USAGE, "--rules"),
                (["replay", log, "--rules", bad], EX_CONFIG, "bad.toml:2:9: error: rule.burst = 0"),
                (["replay", log, "--rules", "/no/rules"], EX_NOINPUT, "/no/rules"),
                (["replay", "/no/log", "--rules", rules], EX_NOINPUT, "/no/log"),
                (["replay", "/", "--rules", rules], EX_NOINPUT, "is a directory"),
                (["replay", log, "--rules", rules, "--spread", "butter"], EX_USAGE, "--spread"),
                (["replay", log, "--rules", rules, "--csv", "/no/dir/x"], EX_CANTCREAT, "/no/dir/x"),
                (["replay", rules, "--rules", rules], EX_DATAERR, "no line is in the common or the combined format")):
            with self.subTest(arguments=arguments):
                done = sim(*arguments)
                self.assertEqual(done.returncode, status, done.stderr)
                self.assertIn(words, done.stderr)

    def test_progress_is_shown_on_a_terminal_and_nowhere_else(self):
        block = "".join(line(i // 200, f"10.0.{i % 200}.1") for i in range(2000))
        log = self.write("many.log", block * 20)
        command = [SIM, "replay", log, "--rules", self.write("rules.toml", RULES)]
        self.assertEqual(subprocess.run(command, capture_output=True, timeout=300).stderr, b"")
        main, terminal = pty.openpty()
        # Through a pipe that is filled slowly, because only what takes longer than two seconds says how far it is.
        with subprocess.Popen([SIM, "replay", "-", *command[3:]], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                              stderr=terminal) as process:
            os.close(terminal)
            for _ in range(20):
                process.stdin.write(block.encode())
                process.stdin.flush()
                time.sleep(0.15)
            process.stdin.close()
            shown = b""
            while True:
                try:
                    shown += os.read(main, 4096)
                except OSError:    # nobody has it open any more
                    break
            self.assertEqual(process.wait(timeout=300), EX_OK)
        os.close(main)
        self.assertRegex(shown, rb"\rdthrottle-sim: -: \d+ lines, \d+ s\x1b\[K")
        self.assertTrue(shown.endswith(b"\r\x1b[K"))

    def test_ctrl_c_leaves_what_has_been_replayed(self):
        block = "".join(line(i // 200, f"10.0.{i % 200}.1") for i in range(20_000))
        with subprocess.Popen([SIM, "replay", "-", "--rules", self.write("rules.toml", RULES)], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            process.stdin.write(block)    # more than a pipe holds: it has begun to read
            process.stdin.flush()
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(block)
                process.stdin.close()
            out, errors = process.stdout.read(), process.stderr.read()
            self.assertEqual(process.wait(timeout=60), 130, errors)
        self.assertIn("interrupted: what was not reached is left out", errors)
        self.assertLess(int(re.search(r"(?m)^asked +(\d+)$", out)[1]), 40_000)

    def test_ctrl_c_leaves_the_figures_that_are_whole(self):
        with subprocess.Popen([SIM, "figure", "shed-1", "gdrl-7", "--csv", "-o", self.directory], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as process:
            wait_until((self.directory / "shed-1.csv").exists, "the first figure is written")
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, errors)
        self.assertIn("interrupted: what was not reached is left out", errors)
        self.assertFalse((self.directory / "gdrl-7.csv").exists())

    def test_a_long_log_is_replayed_and_what_that_costs_is_reported(self):
        with gzip.open(self.directory / "long.gz", "wt", compresslevel=1) as log:
            for i in range(LINES_MANY):
                log.write(line(i // 12, f"10.{i * i % 101}.{i % 17}.1", f"/item/{i % 977}", ' "-" "Mozilla/5.0"'))

        def seconds_of(*command):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            self.assertEqual(done.returncode, 0)
            return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout

        rules = self.write("rules.toml", RULES)
        base, _ = seconds_of("sh", "-c", f"zcat {self.directory}/long.gz | wc -l")
        forecast = self.write("forecast.toml", RULES + 'share = "forecast"\n')
        costs = []
        for share, rules, hosts in (("debit", rules, 2), ("debit", rules, 16), ("forecast", forecast, 2)):
            cost, out = seconds_of(SIM, "replay", self.directory / "long.gz", "--rules", rules, "--hosts", hosts)
            self.assertRegex(out, rf"(?m)^asked +{LINES_MANY}$")
            self.assertNotIn("unreadable", out)
            report(f"replay, {share}, {hosts} hosts: {cost * 1e6 / LINES_MANY:.2f} us of CPU a line, "
                   f"{cost / base:.1f} of zcat | wc -l")
            costs.append(cost)
        # Hours of a log, in which a tag is asked for about once a minute, are not spent on looking at its forecast.
        self.assertLess(costs[2], 20 * costs[0])
