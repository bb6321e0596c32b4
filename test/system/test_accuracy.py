"""Eight daemons share one limit as one bucket would, second by second."""

import csv
import http.client
import random
import shutil
import socket
import subprocess
import time

from clocks import drifting
from common import ParallelTest, report
from daemon import BUILD, FIGURES, ROOT, SANITIZED, fresh_directory, rule, wait_until
from fleet import Fleet, wait_all_hear
from live import OneBucket, over_and_under

RATE, BURST, SECONDS = 100, 100, 10 if SANITIZED else 16
WITHIN_SECONDS = 20


class Accuracy(ParallelTest):
    def connect(self, hosts):
        sockets = []
        for host in hosts:
            sockets.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            sockets[-1].connect(host.query_path)
            self.addCleanup(sockets[-1].close)
        return sockets

    def over_and_under(self, share, seed):
        """Of Poisson queries at twice the rate."""
        with Fleet(rule(burst=BURST, rate=RATE, share=share), hosts=8, period="1s") as hosts:
            wait_all_hear(hosts)
            return over_and_under(hosts, "client", 2 * RATE, lambda now: OneBucket(now, BURST, RATE), SECONDS,
                                  random.Random(seed))[:2]

    def test_a_forecast_limit_of_eight_hosts_holds_in_every_second(self):
        over, under = self.over_and_under("forecast", 1)
        report(f"8 daemons, Poisson at 2x, forecast: over {over:.2f} %, under {under:.2f} %")
        # In the simulator (accuracy_bench) a fifth of 8. Here a machine that is busy with other things takes part: hosts
        # that share nothing would serve twice the limit, 100 % over.
        for percent in (over, under):
            self.assertLess(percent, 8 if FIGURES else 60)

    def test_a_client_that_asks_host_after_host_has_its_burst_once(self):
        burst, clients = 20, 4
        with Fleet(rule(burst=burst, rate=0.001, share="forecast"), hosts=8, period="5s") as hosts:
            wait_all_hear(hosts)
            served = []
            for client in range(clients):
                served.append(0)
                for i in range(3 * burst):
                    served[-1] += hosts[i % len(hosts)].ask([f"client{client}"]) == ["OK"]
                    time.sleep(0.03)
            report(f"8 daemons, asked in turns, burst {burst}, forecast: served {', '.join(map(str, served))}")
            self.assertGreaterEqual(min(served), burst)
            self.assertLessEqual(min(served), burst + 2 if FIGURES else burst + 5)    # a busy machine tells late

    def check_within_rate(self, name, ask=None, busy=0.5, cost=1, most=0.5, **fleet):
        """Poisson queries of `cost` tokens at 0.9 of the rate to two daemons, `busy` of them to the first, against one
        bucket that is asked at the same instants. `ask(host)` gives what asks it. At most `most` % may be refused beyond
        what that bucket refuses.
        """
        rng = random.Random(3)
        limit, burst = rule(burst=30 * cost, rate=RATE, share="forecast"), 30 * cost
        with Fleet(limit, hosts=2, period="1s", **fleet) as hosts:
            wait_all_hear(hosts)
            askers = [(ask or self.line)(host) for host in hosts]
            begin = due = time.monotonic()
            ideal, asked, served, wanted = OneBucket(begin, burst, RATE), 0, 0, 0
            while due < begin + WITHIN_SECONDS:
                due += rng.expovariate(0.9 * RATE / cost)
                time.sleep(max(due - time.monotonic(), 0))
                now = time.monotonic()
                served += askers[rng.random() >= busy]()
                wanted += ideal.serves(now, cost)
                asked += 1
        refused = 100 * (wanted - served) / asked
        report(f"2 daemons, Poisson at 0.9x, burst {burst}, {name}: {refused:.2f} % refused that one bucket serves, "
               f"of {asked}")
        # The figure is of a machine that does nothing else. A host that counted on half of the rate for itself would
        # refuse a fourth of what the busier one is asked, and many times the figure here.
        self.assertLessEqual(refused, most if FIGURES else 20)

    def line(self, host):
        [asker] = self.connect([host])

        def ask():
            asker.sendall(b"client\n")
            return asker.recv(3) == b"OK\n"
        return ask

    def test_two_daemons_serve_a_client_within_its_rate(self):
        self.check_within_rate("evenly")

    def test_two_daemons_of_which_one_is_busier_serve_a_client_within_its_rate(self):
        self.check_within_rate("two thirds to one of them", busy=0.67)
        self.check_within_rate("94 % to one of them", busy=0.94)

    def test_two_daemons_serve_queries_that_cost_several_tokens_within_the_rate(self):
        def http_asker(host):
            session = http.client.HTTPConnection("127.0.0.1", host.http_port)
            self.addCleanup(session.close)

            def ask():
                session.request("GET", "/check?tag=client&cost=5")
                answer = session.getresponse()
                answer.read()
                return answer.status == 200
            return ask
        self.check_within_rate("5 tokens each", http_asker, cost=5, admin={"http": "127.0.0.1:0"})

    def test_two_daemons_whose_clocks_drift_apart_serve_a_client_within_its_rate(self):
        self.check_within_rate("clocks 0.2 % apart", wrappers={0: drifting(1000), 1: drifting(-1000)})

    def test_a_certificate_tells_what_two_daemons_served_beyond_the_limit(self):
        """In stats, why, show, the metrics and the log."""
        for _ in range(6):    # fleets, until no report crosses between the two hosts, as one may where a host is held up
            with Fleet(rule(name="r", burst=10, share="debit", tolerance=20), hosts=2, period="1s") as hosts:
                wait_all_hear(hosts)
                self.assertEqual(hosts[0].admin_json("stats")["accuracy"][0]["over"], 0)
                if [host.served("C", 10) for host in hosts] == [10, 10]:
                    return self.check_certificates(hosts)
        self.fail("a report has crossed each time")

    def check_certificates(self, hosts):
        def certificate(host):
            return host.admin_json("stats")["accuracy"][0]
        for host in hosts:
            wait_until(lambda: certificate(host)["over"] > 9, "what the other served is seen")
            row = certificate(host)
            # Of 20 that were served 10 were too many, and one bucket would have served 10.
            self.assertLess(row["over"], 10.1)
            self.assertAlmostEqual(row["over_percent"], 100, delta=5)
            self.assertAlmostEqual(row["debt"], 10, delta=0.1)
            self.assertGreaterEqual(row["bound"], row["debt"] - 0.01)
            self.assertLess(row["bound"], 11)    # a burst, and hardly any refill
            wait_until(lambda: certificate(host)["alert"] and host.stats()["accuracy_alerts"] == 1, "one alert is counted")
            self.assertEqual(host.admin_json("stats")["accuracy_hottest"][0]["tag"], "C")
            wait_until(lambda: "over-admitted in the last minute, more than tolerance = 20" in host.log, "the alert")
            other = next(h for h in hosts if h is not host)
            why = " ".join(host.admin_json("why C")["steps"])
            self.assertRegex(why, f'share = "debit", heard: {other.name} [0-9.]+ s ago, with hits [0-9.]+ s old')
            self.assertRegex(why, r"2 hosts serve at most 10\.?[0-9]* tokens above burst \+ rate x time")
            self.assertRegex(why, r"Of this tag (9|10)\.[0-9] tokens were over-")
            self.assertFalse(host.admin_json("show C")["watched"])
            self.assertRegex(host.admin("metrics"), r'(?m)^dthrottled_accuracy_over_ratio\{rule="r"\} (1|0\.9)')

    def test_what_is_foretold_of_a_tag_is_shown(self):
        with Fleet(rule(burst=40, rate=20, share="forecast"), hosts=2, period="500ms") as hosts:
            wait_all_hear(hosts)

            def foretold():
                for host in hosts:
                    host.served("C", 5)
                shown = hosts[0].admin_json("show C")
                return shown["watched"] and shown.get("demand", 0) > 0 and shown["peers_demand"] > 0 and shown
            shown = wait_until(foretold, "both say how much they are asked for")
            self.assertLessEqual(shown["earns"], 1)
            self.assertLessEqual(shown["believed_level"], 40)
            wait_until(lambda: foretold() and "It is foretold: asked for " in " ".join(hosts[0].admin_json("why C")["steps"]),
                       "it is said why")


class LiveAndSimulated(ParallelTest):
    """scripts/live-and-simulated, with a fleet that takes no minutes. The ratio is for people: a busy machine is in it."""

    def shipped(self, share, **changed):
        text = (ROOT / "conf/examples/live" / f"{share}.toml").read_text()
        for old, new in changed.items():
            self.assertIn(old, text)
            text = text.replace(old, new)
        directory = fresh_directory()
        self.addCleanup(shutil.rmtree, directory)
        path = directory / f"{share}.toml"
        path.write_text(text)
        return path

    def compare(self, *arguments):
        return subprocess.run([ROOT / "scripts/live-and-simulated", *map(str, arguments)], capture_output=True, text=True)

    def test_each_way_of_sharing_has_a_shipped_fleet_that_is_run_and_simulated(self):
        shares = ["debit", "forecast", "capacity"]
        self.assertEqual({path.stem for path in (ROOT / "conf/examples/live").iterdir()}, set(shares))
        fleets = [self.shipped(share, **{'"20s"': '"3s"', "hosts = 8": "hosts = 2"})
                  for share in shares]
        done = self.compare("--hosts", 2, "--runs", 1, "--seeds", 3, "--at-once", 3, *fleets)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        rows = [line.replace("+-", "").split() for line in done.stdout.splitlines()[1:]]
        self.assertEqual([row[:2] for row in rows], [["2", share] for share in shares])
        for fleet, (_, share, live, _, simulated, _, ratio, _, asked) in zip(fleets, rows):
            made = subprocess.run([BUILD / "dthrottle-sim", "run", fleet, "--seeds", "3", "--measures", "-"],
                                  capture_output=True, text=True, check=True).stdout
            errors = [float(run["over"]) + float(run["under"]) for run in csv.DictReader(made.splitlines())]
            self.assertEqual(simulated, f"{sum(errors) / 3:.2f}")
            self.assertAlmostEqual(float(ratio), float(live) / float(simulated), delta=0.01 + 0.02 * float(ratio))
            self.assertGreater(int(asked), 0)
            report(f"2 daemons, {share}: error {live} %, simulated {simulated} %")

    def test_a_fleet_that_daemons_cannot_be_given_is_refused(self):
        for old, new, said in (("rate = 200", "rate = 200\noff = '1s'", "workload.off"),
                               ("[network]", "[[fault]]\nkind = 'kill'\n[network]", "not fault")):
            done = self.compare(self.shipped("debit", **{old: new}))
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(said, done.stderr)
            self.assertIn("debit.toml", done.stderr)


if __name__ == "__main__":
    import sys
    for scheme in sys.argv[1:] or ["debit", "forecast"]:
        for seed in range(1, 4):
            print(scheme, *(f"{x:.2f}" for x in Accuracy().over_and_under(scheme, seed)), flush=True)
