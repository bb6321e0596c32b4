"""Daemons of which three own all tags: the others connect to these alone, and have one bucket with each other."""

import shutil
import time

from common import ParallelTest
from daemon import DTHROTTLED, PATIENCE, fresh_directory, rule, run, settings_text, wait_until
from fleet import Fleet

OWNERS = 3
HOSTS = 7
BURST = 40
LIMIT = rule(burst=BURST, rate=0.01, share="forecast")


def owned(**options):
    return Fleet(LIMIT, hosts=HOSTS, owners=OWNERS, period="500ms", **options)


def up(host):
    return [row["name"] for row in host.admin_json("peers") if row["state"] == "up" and row["reports"] > 0]


def wait_up(hosts):
    """An owner hears all others, another host the owners."""
    wait_until(lambda: all(len(up(host)) == (HOSTS - 1 if i < OWNERS else OWNERS) for i, host in enumerate(hosts)),
               "owners hear everybody, and everybody the owners", 3 * PATIENCE)


class Owners(ParallelTest):
    def _check_one_bucket(self, hosts):
        for tag in (f"client-{n}" for n in range(6)):
            served = 0
            for host in hosts:
                served += host.served(tag, BURST // 2)
                time.sleep(0.3)    # up to the owner, and down again
            self.assertGreaterEqual(served, BURST)
            self.assertLessEqual(served, BURST * 1.2)

    def _drain(self, hosts, tag):
        for host in hosts[:4]:
            host.served(tag, BURST // 2)
            time.sleep(0.3)

    def test_hosts_that_do_not_know_each_other_have_one_bucket(self):
        with owned() as hosts:
            wait_up(hosts)
            self._check_one_bucket(hosts)
            self.assertEqual(len(hosts[-1].admin_json("peers")), OWNERS)

    def test_with_keys_as_well(self):
        with owned(keys=True) as hosts:
            wait_up(hosts)
            self._check_one_bucket(hosts[::-1])

    def test_an_owner_that_is_killed_loses_no_hits_of_the_others(self):
        with owned() as hosts:
            wait_up(hosts)
            tags = [f"client-{n}" for n in range(12)]
            owner, one, other = hosts[0], hosts[4], hosts[5]
            owner.crash(keep_table=True)
            for tag in tags:
                self.assertEqual(one.served(tag, BURST // 2), BURST // 2)
            time.sleep(1)
            owner.start()
            wait_up(hosts)

            def known():
                return all(other.served(tag, 1) == 1 or True for tag in tags) and all(
                    other.level(tag) <= BURST // 2 + 2 for tag in tags)
            wait_until(known, "hosts know through the owner what was served while it was away", PATIENCE)

    def test_a_host_that_joins_is_known_by_what_it_serves(self):
        with owned() as hosts:
            wait_up(hosts)
            late = hosts[-1]
            late.crash(keep_table=False)
            self._drain(hosts, "client")
            late.start()
            wait_up(hosts)
            wait_until(lambda: late.served("client", BURST) <= 1, "the new host has the level", PATIENCE)

    def test_hosts_with_other_owners_are_refused(self):
        with Fleet(LIMIT, hosts=2, owners=1, period="500ms") as (a, b):
            wait_until(lambda: up(b) == ["a"], "the host hears the owner", PATIENCE)
            b.stop()
            b.peers["owners"] = ["a", "b"]
            b.write_settings(*b.limits)
            b.start()
            wait_until(lambda: "differ" in str((b.link_to(a) or {}).get("note")), "the owner refuses it", PATIENCE)

    def test_settings_that_do_not_fit(self):
        for peers, limit, says in (
                ({"spread": "owners"}, LIMIT, "peers.owners has 0 names"),
                ({"spread": "owners", "owners": ["a", "a"]}, LIMIT, "must be 1 to 64"),
                ({"owners": ["a"]}, LIMIT, "must be \"owners\""),
                ({"spread": "owners", "owners": ["a"]}, rule(share="debit", quota=5), "quota with peers.spread"),
                ({"spread": "some"}, LIMIT, "one of \"all\", \"owners\"")):
            with self.subTest(says=says):
                directory = fresh_directory()
                self.addCleanup(shutil.rmtree, directory)
                path = directory / "settings.toml"
                path.write_text(settings_text(directory, limit, peers={"connect": ["tcp://127.0.0.1:7314"], **peers}))
                checked = run(DTHROTTLED, "--check", str(path))
                self.assertEqual(checked.returncode, 78)
                self.assertIn(says, checked.stdout + checked.stderr)
