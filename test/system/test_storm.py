"""kill -9 while reports go out: what peers know of a host's hits and what they count as lost is what the host served."""

import random
import time

from common import SystemTest, report
from daemon import SANITIZED, rule, wait_until
from fleet import BURST, Fleet, wait_all_hear

PERIOD = 0.25
TAGS = 500 if SANITIZED else 4000
KILLS = 3 if SANITIZED else 8    # of each host
MORE_KILLS = 3 if SANITIZED else 16


def charged(host, tags):
    """Hits that the host knows of, of all these tags."""
    with host.admin_session() as admin:
        return sum(round(BURST - admin.ask_json(f"show {tag}")["level"]) for tag in tags)


class Storm(SystemTest):
    def test_what_is_known_and_what_is_lost_is_what_was_served(self):
        chance, told = random.Random(5), []
        with Fleet(rule(burst=BURST), hosts=3, period=f"{PERIOD:g}s") as hosts:
            wait_all_hear(hosts)
            for victim in hosts:
                others = [host for host in hosts if host is not victim]
                before = {host: host.stats()["reports_lost_hits"] for host in others}

                def lost(host, before=before):
                    return host.stats()["reports_lost_hits"] - before[host]

                tags = [f"{victim.name}{i}" for i in range(TAGS)]
                served = kills = 0
                # Few kills hit the moment between taking hits out of buckets and the wire.
                while kills < KILLS or (victim is hosts[-1] and not any(told) and not lost(others[0])
                                        and kills < MORE_KILLS):
                    served += self.ask_and_kill(victim, tags, chance)
                    kills += 1
                    for host in others:    # load goes on beside it
                        host.ask([f"other-{host.name}"] * 50)
                    victim.start()
                    wait_all_hear(hosts)
                for host in others:
                    # Hits are counted as told a moment before they leave their bucket: of the tag at which a kill
                    # falls between the two they count as lost and come too.
                    def accounted(host=host):
                        return served <= charged(host, tags) + lost(host) <= served + kills

                    wait_until(accounted, lambda: f"{host.name} accounts for {served} hits of {victim.name}, "
                                                  f"not {charged(host, tags)} known and {lost(host)} lost")
                    time.sleep(4 * PERIOD)
                    self.assertTrue(accounted(), "it did, and does not any more")
                told.append(lost(host))
                report(f"{kills} times kill -9: {served} hits served, {lost(host)} of them lost, as both others count")

    def ask_and_kill(self, host, tags, chance):
        """Serves hits, and kills the host at about the moment when the report of them goes out; returns how many."""
        sent = host.stats()["reports_sent"]
        wait_until(lambda: host.stats()["reports_sent"] > sent, "a report goes out")
        began = time.monotonic()
        self.assertEqual(host.ask(tags).count("OK"), len(tags))
        due = began + PERIOD + chance.uniform(-0.004, 0.004)
        while time.monotonic() < due:
            time.sleep(0.0005)
        host.kill()
        return len(tags)
