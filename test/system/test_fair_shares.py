"""A limit that daemons share is divided among the tags that are charged with it, also where one of them owns it."""

import time
from types import SimpleNamespace

from common import SystemTest
from daemon import rule
from fleet import Fleet, wait_all_hear, wait_owners_hear

RATE = 200
STRETCHES = 4    # of which one has to be fair: on a busy machine hosts hear of each other late


def ask_for(hosts, seconds):
    """Four users and a hog ask all hosts ten times a second: what was asked and served, and the longest time between."""
    done = SimpleNamespace(asked=0, served=0, hog=0, stood_still=0.0)
    begun = last = time.monotonic()
    while (now := time.monotonic()) < begun + seconds:
        done.stood_still = max(done.stood_still, now - last)
        last = now
        for host in hosts:
            done.asked += 4
            done.served += sum(host.served(f"acme/user-{i}", 1) for i in range(4))
            done.hog += host.served("acme/hog", 50)
        time.sleep(0.1)
    done.seconds = time.monotonic() - begun
    return done


class FairShares(SystemTest):
    def test_a_hog_on_all_hosts_takes_nothing_of_what_others_ask_for(self):
        for share, hosts, owners in (("debit", 2, 0), ("forecast", 2, 0), ("forecast", 3, 1)):
            with self.subTest(share, owners=owners):
                tenant = rule(name="tenant", match="acme", burst=RATE, rate=float(RATE), share=share, among="level")
                user = rule(name="user", match="*/*", burst=100_000, rate=100_000.0, share=share, also=["before /"])
                with Fleet(tenant + user, hosts=hosts, owners=owners, period="500ms", admin={"http": ""}) as hosts:
                    if owners:
                        wait_owners_hear(hosts, owners)
                    else:
                        wait_all_hear(hosts)
                    ask_for(hosts, 10)    # a hog that begins is served first come for some seconds
                    for _ in range(STRETCHES):
                        done = ask_for(hosts, 6)
                        if done.stood_still < 0.5 and done.served > 0.95 * done.asked:
                            break
                    self.assertGreater(done.served, 0.95 * done.asked, done)
                    self.assertGreater(done.served + done.hog, 0.9 * RATE * done.seconds, done)
                    self.assertLess(done.served + done.hog, RATE * (done.seconds + 1.5), done)
                    self.assertGreater(sum(host.stats()["among_cut"] for host in hosts), 100)
