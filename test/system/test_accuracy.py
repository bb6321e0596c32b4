"""Eight daemons share one limit as one bucket would, second by second."""

import random
import socket
import time

from common import ParallelTest, report
from daemon import SANITIZED, rule, wait_until
from fleet import Fleet, wait_all_hear

RATE, BURST, SECONDS = 100, 100, 10 if SANITIZED else 16


class OneBucket:
    """The ideal: every query goes to it."""

    def __init__(self, now):
        self.level, self.at = BURST, now

    def serves(self, now):
        self.level, self.at = min(BURST, self.level + RATE * (now - self.at)), now
        if self.level < 1:
            return False
        self.level -= 1
        return True


class Accuracy(ParallelTest):
    def over_and_under(self, share, seed):
        """In % of what one bucket serves, in windows of a second, of Poisson queries at twice the rate."""
        rng = random.Random(seed)
        with Fleet(rule(burst=BURST, rate=RATE, share=share), hosts=8, period="1s") as hosts:
            wait_all_hear(hosts)
            sockets = []
            for host in hosts:
                sockets.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                sockets[-1].connect(host.query_path)
                self.addCleanup(sockets[-1].close)
            begin = due = time.monotonic()
            ideal, served, wanted = OneBucket(begin), [0] * SECONDS, [0] * SECONDS
            while True:
                due += rng.expovariate(2 * RATE)
                time.sleep(max(due - time.monotonic(), 0))
                now = time.monotonic()
                window = int(now - begin)
                if window >= SECONDS:
                    break
                asked = rng.choice(sockets)
                asked.sendall(b"client\n")
                served[window] += asked.recv(3) == b"OK\n"
                wanted[window] += ideal.serves(now)
        over = sum(max(s - w, 0) for s, w in zip(served, wanted)) / sum(wanted)
        under = sum(max(w - s, 0) for s, w in zip(served, wanted)) / sum(wanted)
        return 100 * over, 100 * under

    def test_a_forecast_limit_of_eight_hosts_holds_in_every_second(self):
        over, under = self.over_and_under("forecast", 1)
        report(f"8 daemons, Poisson at 2x, forecast: over {over:.2f} %, under {under:.2f} %")
        # In the simulator (accuracy_bench) a fifth of that. Here a machine that is busy with other things takes part.
        self.assertLess(over, 8)
        self.assertLess(under, 8)

    def test_a_certificate_tells_what_two_daemons_served_beyond_the_limit(self):
        """In stats, why, show, the metrics and the log."""
        with Fleet(rule(name="r", burst=10, share="debit", tolerance=20), hosts=2, period="1s") as hosts:
            wait_all_hear(hosts)
            self.assertEqual(hosts[0].admin_json("stats")["accuracy"][0]["over"], 0)
            for host in hosts:
                self.assertEqual(host.served("C", 10), 10)

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
                self.assertTrue(row["alert"])
                self.assertEqual(host.stats()["accuracy_alerts"], 1)
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
            self.assertIn("It is foretold: asked for ", " ".join(hosts[0].admin_json("why C")["steps"]))


if __name__ == "__main__":
    import sys
    for scheme in sys.argv[1:] or ["debit", "forecast"]:
        for seed in range(1, 4):
            print(scheme, *(f"{x:.2f}" for x in Accuracy().over_and_under(scheme, seed)), flush=True)
