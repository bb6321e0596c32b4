"""Upgrades and restarts of a fleet, host after host: no hit is lost or counted twice, and parts stay where they were."""

import signal
import statistics
import time

from common import SystemTest, report
from daemon import FIGURES, PATIENCE, SANITIZED, rule, wait_until
from demand import Demand
from fleet import BURST, Fleet, Ledger, Traffic, wait_all_hear, wait_settled
from test_capacity import TAG, fleet, parts
from test_upgrade import lives

EVERY = 0.3    # s, between two upgrades


def counts(hosts, name):
    return [host.stats()[name] for host in hosts]


class Hits(SystemTest):
    def upgrades(self, times, **limit):
        """Round robin, under traffic on all hosts."""
        with Fleet(rule(burst=BURST, **limit), hosts=3, period="500ms") as hosts:
            wait_all_hear(hosts)
            ledger = Ledger()
            begin = time.monotonic()
            with Traffic(ledger, hosts):
                for i in range(times):
                    host = hosts[i % len(hosts)]
                    before = lives(host)
                    host.signal(signal.SIGUSR2)
                    wait_until(lambda: lives(host) > before, "the program has taken over")
                    time.sleep(max(0, begin + (i + 1) * EVERY - time.monotonic()))
            took = ledger.settle(hosts, quiet=2)
            passed = time.monotonic() - begin
            report(f"{times} upgrades of 3 hosts within {passed:.0f} s, {limit or 'debit'}: "
                   f"{sum(ledger.hits.values())} hits, each known everywhere {took:.1f} s after the last")
            self.assertEqual(counts(hosts, "reports_lost"), [0, 0, 0])
            # The same life for its peers: nobody joined again.
            self.assertEqual(counts(hosts, "snapshots_taken"), [0, 0, 0])

    def test_fifty_upgrades_lose_no_hit(self):
        self.upgrades(15 if SANITIZED else 50)

    def test_upgrades_lose_no_hit_of_a_rule_that_foretells(self):
        self.upgrades(15, share="forecast")

    def test_orderly_restarts_lose_no_hit(self):
        with Fleet(rule(burst=BURST), hosts=3, period="500ms") as hosts:
            wait_all_hear(hosts)
            ledger = Ledger()
            with Traffic(ledger, hosts) as traffic:
                for i in range(9):
                    host = hosts[i % len(hosts)]
                    with traffic.pause(host):
                        host.stop()
                        time.sleep(0.1 * (i // 3))    # while which the others go on
                        host.start()
                    time.sleep(EVERY)
            took = ledger.settle(hosts, quiet=2)
            report(f"9 restarts of 3 hosts: {sum(ledger.hits.values())} hits, each known everywhere {took:.1f} s after")
            self.assertEqual(counts(hosts, "reports_lost"), [0, 0, 0])

    def test_what_a_stop_has_left_is_used_once(self):
        with Fleet(rule(burst=BURST), hosts=2, period="250ms") as hosts:
            a, b = hosts
            wait_all_hear(hosts)
            ledger = Ledger()
            ledger.serve(a, "C", 10)
            a.stop()
            state = a.directory / "table.state"
            kept = state.read_bytes()
            a.start()
            self.assertFalse(state.exists())
            a.wait_log("where it left off")
            ledger.serve(a, "C", 10)
            ledger.settle(hosts)
            a.kill()
            state.write_bytes(kept)    # as a restored backup
            a.start()
            self.assertFalse(state.exists())
            a.wait_log("sharing begins anew")
            wait_all_hear(hosts)
            ledger.serve(a, "C", 10)
            ledger.settle(hosts)
            a.stop()
            for damaged in (kept[:-1], kept[:40] + bytes([kept[40] ^ 1]) + kept[41:], b"dthrottle state\n"):
                state.write_bytes(damaged)
                a.start()
                a.wait_log("is damaged, or of another version")
                a.stop()
            a.start()    # stopped in order once more
            ledger.serve(b, "C", 10)
            ledger.settle(hosts)


class Parts(SystemTest):
    RATE, HOSTS, APART = 200, 4, 3

    def rolls(self, change, throughout):
        """Each host in turn, `APART` seconds apart; returns what was served in each second, as part of the whole."""
        demands = (160, 100, 80, 60)
        with fleet(self.RATE, hosts=self.HOSTS, burst=20, lease=10) as hosts:    # which no held up host lets lapse
            wait_settled(hosts)
            with Demand(hosts, TAG, demands) as demand:
                wait_until(lambda: sum(parts(hosts)) > 0.98 and parts(hosts)[0] > 0.45, "parts are where demand is",
                           6 * PATIENCE)
                time.sleep(1)
                generation = hosts[0].admin_json("capacity")["generation"]
                begin = time.monotonic()
                served, seconds = [sum(demand.served())], [0]
                last = (self.HOSTS + 1) * self.APART - 1
                for second in range(last + 1):
                    if second % self.APART == 0 and second // self.APART < self.HOSTS:
                        change(hosts[second // self.APART])
                    until = begin + second + 1 - time.monotonic()
                    if until < 0 and second < last:
                        continue    # this second went by during the change: it is measured together with the next
                    time.sleep(max(until, 0))
                    seconds.append(time.monotonic() - begin)
                    served.append(sum(demand.served()))
                rates = [(after - before) / self.RATE / (end - start) for before, after, start, end
                         in zip(served, served[1:], seconds, seconds[1:])]
                passed = seconds[-1]
                share = (served[-1] - served[0]) / (self.RATE * passed)
                report(f"4 hosts in turn, {self.APART} s apart: {share:.3f} of the capacity served; by second "
                       + " ".join(f"{rate:.2f}" for rate in rates))
                self.assertEqual(counts(hosts, "capacity_generation"), [generation] * self.HOSTS)
                self.assertEqual(sum(counts(hosts, "capacity_fenced")), 0)
                # A host that stands still for a second serves nothing in it: the figures are of a machine that does
                # nothing else.
                self.assertGreater(share, 0.95 if FIGURES else 0.4)
                if FIGURES:
                    self.assertGreater(min(map(statistics.mean, zip(rates, rates[1:], rates[2:]))), throughout)
                # A burst in each host's bucket at the most, and never above the rate.
                self.assertLess(served[-1] - served[0], self.RATE * passed + 20 + self.HOSTS)

    def test_four_upgrades_in_turn_keep_the_capacity(self):
        def upgrade(host):
            before = lives(host)
            host.signal(signal.SIGUSR2)
            wait_until(lambda: lives(host) > before, "the program has taken over")
        self.rolls(upgrade, 0.85)

    def test_four_orderly_restarts_in_turn_keep_most_of_the_capacity(self):
        def restart(host):
            host.stop()
            host.start()
        self.rolls(restart, 0.6)
