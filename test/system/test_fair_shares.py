"""A limit that daemons share is divided among the tags that are charged with it, also where one of them owns it."""

import time

from common import SystemTest
from daemon import rule
from fleet import Fleet, wait_all_hear, wait_owners_hear

RATE = 200


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
                    asked, served, hog = 0, 0, 0
                    begun = time.monotonic()
                    warm, ends = begun + 10, begun + 16    # a hog that begins is served first come for some seconds
                    while (now := time.monotonic()) < ends:
                        for host in hosts:
                            got = sum(host.served(f"acme/user-{i}", 1) for i in range(4))
                            much = host.served("acme/hog", 50)
                            if now >= warm:
                                asked, served, hog = asked + 4, served + got, hog + much
                        time.sleep(0.1)
                    seconds = time.monotonic() - warm
                    self.assertGreater(served, 0.95 * asked)
                    self.assertGreater(served + hog, 0.9 * RATE * seconds)
                    self.assertLess(served + hog, RATE * (seconds + 1.5))
                    self.assertGreater(sum(host.stats()["among_cut"] for host in hosts), 100)
