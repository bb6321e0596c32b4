"""Daemons of which three own all tags: the others connect to these alone, and have one bucket with each other."""

import shutil
import time

from common import ParallelTest
from daemon import DTHROTTLED, PATIENCE, fresh_directory, rule, run, settings_text, wait_until
from dns import NameServer
from fleet import Fleet, Ledger, Traffic, settle_owners
from test_ask import Asker, ask_port
from test_upgrade import upgrade

OWNERS = 3
HOSTS = 7
BURST = 40
LIMIT = rule(burst=BURST, rate=0.01, share="forecast")
PLENTY = rule(burst=20_000, share="debit")


def owned(**options):
    return Fleet(LIMIT, hosts=HOSTS, owners=OWNERS, period="500ms", **options)


def up(host):
    return [row["name"] for row in host.admin_json("peers") if row["state"] == "up" and row["reports"] > 0]


def wait_up(hosts, owners=OWNERS):
    """An owner hears all others, another host the owners."""
    wait_until(lambda: all(len(up(host)) == (len(hosts) - 1 if i < owners else owners) for i, host in enumerate(hosts)),
               "owners hear everybody, and everybody the owners", 3 * PATIENCE)


def check_settings(case, peers, limit=LIMIT, **sections):
    """What --check says of settings with these of peers."""
    directory = fresh_directory()
    case.addCleanup(shutil.rmtree, directory)
    path = directory / "settings.toml"
    path.write_text(settings_text(directory, limit, peers=peers, **sections))
    return run(DTHROTTLED, "--check", str(path))


class Owners(ParallelTest):
    def _check_one_bucket(self, hosts, owners):
        for tag in (f"client-{n}" for n in range(6)):
            served = 0
            for host in [*hosts, *hosts[:4]]:    # some are asked again, who know the others' hits by then
                served += host.served(tag, BURST // 2)
                wait_until(lambda: min(owner.level(tag) for owner in owners) <= max(BURST - served, 0) + 1,
                           "its owner knows of them", PATIENCE)
                if served >= BURST:
                    wait_until(lambda: max(host.level(tag) for host in hosts) < BURST // 2,
                               "all hosts are told of an empty bucket", PATIENCE)
                time.sleep(0.3)    # down again
            self.assertGreaterEqual(served, BURST)
            self.assertLessEqual(served, BURST * 1.2)

    def _drain(self, hosts, tag):
        for host in hosts[:4]:
            host.served(tag, BURST // 2)
            time.sleep(0.3)

    def test_hosts_that_do_not_know_each_other_have_one_bucket(self):
        with owned() as hosts:
            wait_up(hosts)
            self._check_one_bucket(hosts, hosts[:OWNERS])
            self.assertEqual(len(hosts[-1].admin_json("peers")), OWNERS)

    def test_with_keys_as_well(self):
        with owned(keys=True) as hosts:
            wait_up(hosts)
            self._check_one_bucket(hosts[::-1], hosts[:OWNERS])

    def test_of_two_hosts_with_one_name_one_is_refused_and_both_are_named(self):
        with Fleet(LIMIT, hosts=4, owners=1, period="500ms", names=["a", "b", "c", "c"]) as hosts:
            wait_until(lambda: sum("another host has your name" in host.log for host in hosts) == 1,
                       "one of them is refused", 3 * PATIENCE)
            refused = next(host for host in hosts[2:] if "another host has your name" in host.log)
            other = hosts[2] if refused is hosts[3] else hosts[3]
            wait_until(lambda: up(other) == ["a"], "the other one is a host", PATIENCE)
            other.served("client", 10)
            wait_until(lambda: hosts[0].level("client") <= BURST - 9, "its hits count", PATIENCE)
            self.assertEqual(up(refused), [])

    def test_an_owner_that_is_killed_loses_no_hits_of_the_others(self):
        with owned() as hosts:
            wait_up(hosts)
            tags = [f"client-{n}" for n in range(12)]
            owner, one, other = hosts[0], hosts[3], hosts[4]
            served = dict.fromkeys(tags, 0)
            for third in hosts[5:]:    # has not used the tags, so it foretells nothing of them
                owner.crash(keep_table=True)
                for tag in tags:
                    for host in (one, other):
                        served[tag] += host.served(tag, BURST // 6)
                time.sleep(1)
                owner.start()
                wait_up(hosts)

                def missing(host, tag):    # hits that it does not know of; less than 0: it believes in more
                    return host.level(tag) - (BURST - served[tag])
                wait_until(lambda: all(any(missing(host, tag) <= 1 for host in hosts[:OWNERS]) for tag in tags),
                           "owners have counted what both hosts served while one of them was away", PATIENCE)

                # What everybody hears of a tag near its limit contains hits that are only foretold. The answer to a hit
                # is the owner's own level; one that is slower than the next report is passed over, as the next says it.
                def known():
                    return all(abs(missing(third, tag)) <= 1 for tag in tags)
                for _ in range(10):
                    for tag in (tag for tag in tags if abs(missing(third, tag)) > 1):
                        served[tag] += third.served(tag, 1)
                    soon = time.monotonic() + 3
                    while time.monotonic() < soon and not known():
                        time.sleep(0.1)
                self.assertTrue(known(), "each hit is counted once")
            self.assertEqual([host.stats()["owners_dropped"] for host in hosts], [0] * HOSTS)

    def test_an_owner_that_comes_back_without_its_table_counts_what_is_lost(self):
        with owned() as hosts:
            wait_up(hosts)
            hosts[0].crash(keep_table=False)
            for host in hosts[3:]:
                for tag in (f"client-{n}" for n in range(12)):
                    host.served(tag, 2)
            time.sleep(1.5)    # so that reports are published which nobody hears
            hosts[0].start()
            wait_until(lambda: hosts[0].stats()["owners_dropped"] >= HOSTS - 1, "it says how many frames are lost",
                       PATIENCE)

    def test_a_host_that_is_killed_says_how_many_hits_no_owner_has_counted(self):
        with Fleet(PLENTY, hosts=3, owners=1, period="500ms") as hosts:
            wait_up(hosts, owners=1)
            owner, _, host = hosts

            def tell(hits):
                entries = host.stats()["reports_sent_entries"]
                self.assertEqual(host.served("client", hits), hits)
                wait_until(lambda: host.stats()["reports_sent_entries"] > entries, "they are told", PATIENCE)
                frames = host.stats()["reports_sent"]
                wait_until(lambda: host.stats()["reports_sent"] >= frames + 2, "all of them are", PATIENCE)

            def lost_by_kill():
                host.crash()
                host.start()
                wait_until(lambda: host.stats()["owners_list"] > 0, "the exchange has begun", PATIENCE)
                return host.stats()["owners_lost_hits"]

            owner.crash()
            tell(30)
            upgrade(host)    # the next program has the ledger, too
            self.assertEqual(host.stats()["owners_lost_hits"], 0)
            owner.start()
            wait_until(lambda: owner.level("client") < 20_000 - 29, "the owner has counted them", PATIENCE)
            wait_until(lambda: host.stats()["history_bytes"] == 0, "and has said so", PATIENCE)
            self.assertEqual(lost_by_kill(), 0)

            wait_up(hosts, owners=1)
            owner.crash()
            tell(20)
            self.assertEqual(lost_by_kill(), 20)
            self.assertEqual(lost_by_kill(), 0)    # each is said once
            owner.start()
            wait_up(hosts, owners=1)

    def test_a_host_that_joins_is_known_by_what_it_serves(self):
        with owned() as hosts:
            wait_up(hosts)
            late = hosts[-1]
            late.crash(keep_table=False)
            self._drain(hosts, "client")
            late.start()
            wait_up(hosts)
            wait_until(lambda: late.served("client", BURST) <= 1, "the new host has the level", PATIENCE)

    def test_tokens_that_come_back_are_served_by_hosts_that_have_only_refused(self):
        for share in ("debit", "forecast"):
            with Fleet(rule(burst=BURST, share=share), hosts=4, owners=1, period="250ms",
                       ask={"tcp": "127.0.0.1:0"}) as hosts:
                wait_up(hosts, owners=1)
                with Asker(("127.0.0.1", ask_port(hosts[1]))) as asker:
                    hold = asker.ask(f"hold 60000 {BURST} client").split()[1]
                    wait_until(lambda: max(host.level("client") for host in hosts) < 1, "all hosts know")
                    time.sleep(1)
                    self.assertEqual([host.ask(["client"]) for host in hosts[2:]], [["NO"]] * 2)
                    self.assertEqual(asker.ask(f"release {hold}"), "OK released")
                    for host in hosts[2:]:
                        wait_until(lambda host=host: host.ask(["client"]) == ["OK"], "it serves what has come back", 10)

    def test_other_owners_by_reloads_take_over_what_was_counted(self):
        with owned() as hosts:
            wait_up(hosts)
            tags = [f"client-{n}" for n in range(24)]
            for tag in tags:
                self.assertEqual(hosts[3].served(tag, BURST // 2), BURST // 2)
            addresses = [host.address for host in hosts]
            for first in (1, 3):    # two join and two leave, twice
                names = [host.name for host in hosts[first:first + 3]]
                for host in hosts:
                    host.reload(owners=names, connect=addresses[first:first + 3])
                wait_until(lambda: all(up(host) and set(names) - {host.name} <= set(up(host)) for host in hosts),
                           "every host hears the new owners", 3 * PATIENCE)
                time.sleep(1)
            wait_until(lambda: not any(host.stats()["owners_differ"] for host in hosts), "all name them", PATIENCE)
            self.assertGreaterEqual(min(host.stats()["owners_changes"] for host in hosts), 2)
            self.assertEqual(sum(host.stats()["owners_missed"] for host in hosts), 0)
            asker = hosts[0]    # which owns nothing any more, and hears of a tag when it has asked for it
            for tag in tags:
                self.assertEqual(asker.served(tag, 1), 1)
            wait_until(lambda: all(asker.level(tag) < BURST // 2 for tag in tags), "owners tell the levels", PATIENCE)
            served = {tag: BURST // 2 + 1 for tag in tags}

            def take():    # what is kept back while hosts are rationed comes later
                for tag in tags:
                    served[tag] += asker.served(tag, BURST)
                return min(served.values()) >= BURST * 0.9
            wait_until(take, "what is left is served", PATIENCE)
            self.assertLessEqual(max(served.values()), BURST + 1)

    def test_an_owner_that_is_removed_under_load_costs_no_hit(self):
        with Fleet(PLENTY, hosts=HOSTS, owners=OWNERS, period="500ms") as hosts:
            wait_up(hosts)
            ledger = Ledger()
            names, addresses = ([getattr(host, what) for host in hosts[1:OWNERS + 1]] for what in ("name", "address"))
            with Traffic(ledger, hosts):
                time.sleep(1)
                for host in hosts:
                    host.reload(owners=names, connect=addresses)
                wait_until(lambda: all(host.stats()["owners_list"] == 2 for host in hosts), "all have it", PATIENCE)
                time.sleep(2)
            settle_owners(ledger, hosts[1:OWNERS + 1])
            for name in ("owners_missed", "owners_dropped", "reports_lost", "owners_awaited", "owners_giving"):
                self.assertEqual([host.stats()[name] for host in hosts], [0] * HOSTS, name)

    def test_owners_are_found_by_a_service_record(self):
        service = "_dthrottle._tcp.fleet.test"
        with NameServer({service: []}) as names, owned(keys=True) as hosts:
            wait_up(hosts)
            names.services[service] = [(f"{host.name}.fleet.test", host.port) for host in hosts[:OWNERS]]
            for host in hosts:    # one file for all, without an address in it
                host.stop()
                host.peers.update(connect=[f"srv://{service}"], name_servers=names.address, resolve_interval="1s")
                host.write_settings(*host.limits)
                host.start()
            wait_up(hosts)
            self._check_one_bucket(hosts, hosts[:OWNERS])
            self.assertEqual(len(hosts[-1].admin_json("peers")), OWNERS)

    def test_settings_with_other_owners_do_no_harm_are_counted_and_said(self):
        with Fleet(LIMIT, hosts=3, owners=1, period="500ms") as hosts:
            a, b, _ = hosts
            wait_until(lambda: all(up(host) == ["a"] for host in hosts[1:]), "the hosts hear the owner", PATIENCE)
            names, addresses = ["a", "b"], [a.address, b.address]
            b.reload(owners=names, connect=addresses)    # it owns nothing, so nothing changes
            b.wait_log("list 1 of owners is in force: a; peers.owners of this host names others")

            def differ():
                return [host.stats()["owners_differ"] for host in hosts]
            self.assertEqual(differ(), [0, 1, 0])
            b.stop()
            b.start()    # where it left off
            wait_until(lambda: up(b) == ["a"], "the host hears the owner", PATIENCE)
            wait_until(lambda: differ() == [0, 1, 0], "it still names others", PATIENCE)
            b.crash(keep_table=False)
            b.start()    # anew: nobody can say which list is right, until an owner says so
            wait_until(lambda: "differ" in str((b.link_to(a) or {}).get("note")), "the owner refuses it", PATIENCE)
            a.reload(owners=names, connect=addresses)
            wait_until(lambda: all(host.stats()["owners_list"] == 2 for host in hosts), "it is in force", PATIENCE)
            wait_until(lambda: differ() == [0, 0, 1], "one is left", PATIENCE)
            hosts[2].reload(owners=names, connect=addresses)
            wait_up(hosts, 2)
            self.assertEqual(differ(), [0, 0, 0])
            self.assertIn("owns tags", a.link_to(b)["note"])
            bad = a.stats()["reload_failures"]
            a.reload(owners=[])
            self.assertEqual(a.stats()["reload_failures"], bad + 1)
            self.assertEqual(a.stats()["owners"], 2)

    def test_settings_that_do_not_fit(self):
        for peers, limit, says in (
                ({"spread": "owners"}, LIMIT, "peers.owners has 0 names"),
                ({"spread": "owners", "owners": ["a", "a"]}, LIMIT, "must be 1 to 64"),
                ({"owners": ["a"]}, LIMIT, "must be \"owners\""),
                ({"spread": "owners", "owners": ["a"]}, rule(share="capacity"), "share = \"capacity\" with peers.spread"),
                ({"spread": "some"}, LIMIT, "one of \"all\", \"owners\"")):
            with self.subTest(says=says):
                checked = check_settings(self, {"connect": ["tcp://127.0.0.1:7314"], **peers}, limit)
                self.assertEqual(checked.returncode, 78)
                self.assertIn(says, checked.stdout + checked.stderr)
