"""Two sites with owners of their own, which have one limit with each other."""

import contextlib
import signal
import socket
import time

from common import ParallelTest
from daemon import DTHROTTLED, PATIENCE, Daemon, rule, run, wait_until
from fleet import Fleet, Ledger, Traffic, free_port_pair, make_keys, settle_owners, wait_owners_hear, wrong_at_owners
from test_ask import Asker, ask_port
from test_owners import BURST as CLIENTS
from test_owners import check_settings
from test_penalties import penalized
from test_set_limits import Operator, burst
from test_upgrade import upgrade

SITES = ("fra", "ams")
OWNERS = 2
HOSTS = 3
BURST = 20_000
QUOTA = 40
PLENTY = rule(burst=BURST, share="debit")
PERIOD = "500ms"


class Sites(contextlib.ExitStack):
    """The hosts of both sites, a list each, of which the first own their site's tags."""

    def __init__(self, *limits, keys=False, host=(), **sites):
        super().__init__()
        self.fleets = [Fleet(*limits, hosts=HOSTS, owners=OWNERS, period=PERIOD, keys=keys, **dict(host),
                             names=[f"{site}-{n}" for n in range(HOSTS)]) for site in SITES]
        for fleet in self.fleets:
            self.callback(fleet.close)
        bound = [[f"tcp://127.0.0.1:{free_port_pair()}" for _ in range(OWNERS)] for _ in SITES]
        for here, fleet in enumerate(self.fleets):
            there = 1 - here
            for host, address in zip(fleet.hosts, bound[here]):
                section = {"name": SITES[here], "others": [SITES[there]], "bind": address, "connect": bound[there],
                           "period": PERIOD, **sites}
                if keys:
                    section.update(key_file=f"{fleet.keys}/{host.name}.key",
                                   authorized_keys=str(self._foreign(fleet, self.fleets[there], host.name, bound[there])))
                host._sections["sites"] = section
                host.write_settings(*host.limits)

    @staticmethod
    def _foreign(fleet, other, name, addresses):
        """A directory with the keys of the other site's owners, each with its address between sites."""
        directory = fleet.keys / f"foreign-of-{name}"
        directory.mkdir()
        for host, address in zip(other.hosts, addresses):
            text = (other.keys / f"{host.name}.pub").read_text()
            (directory / f"{host.name}.pub").write_text(text.replace(host.address, address))
        return directory

    def __enter__(self):
        hosts = [self.enter_context(fleet) for fleet in self.fleets]
        for site in hosts:
            wait_owners_hear(site, OWNERS)
        wait_until(lambda: all(hears_all(host) for site in hosts for host in site[:OWNERS]),
                   "owners hear those of the other site", 3 * PATIENCE)
        return hosts


def hears_all(host):
    """Whether an owner hears all owners of the other site, and how many hosts that has."""
    return [(row["state"], row.get("hosts")) for row in host.admin_json("sites")] == [("up", HOSTS)] * OWNERS


def settle(ledger, sites):
    for hosts in sites:
        settle_owners(ledger, hosts[:OWNERS])


class TwoSites(ParallelTest):
    def _check_counted(self, sites):
        ledger = Ledger(BURST)
        for turn in range(3):
            for hosts in sites:
                for host in hosts:
                    for n in range(6):
                        ledger.serve(host, f"client-{n}", 1 + turn)
                ledger.serve(hosts[turn], f"over-long-{'x' * 300}", 2)
        settle(ledger, sites)
        for hosts in sites:
            for host in hosts[:OWNERS]:
                stats = host.stats()
                self.assertEqual((stats["sites"], stats["sites_heard"], stats["sites_lost"]), (1, 1, 0))
            self.assertGreater(sum(host.stats()["sites_heard_entries"] for host in hosts[:OWNERS]), 6)

    def test_each_site_counts_what_the_other_serves_once(self):
        with Sites(PLENTY) as sites:
            self._check_counted(sites)

    def test_with_keys_as_well(self):
        with Sites(PLENTY, keys=True) as sites:
            self._check_counted(sites)

    def test_a_client_that_goes_from_site_to_site_has_one_bucket(self):
        with Sites(rule(burst=CLIENTS, rate=0.01, share="forecast")) as sites:
            for n in range(4):
                served = 0
                for hosts in (*sites, *sites):
                    for host in hosts:
                        served += host.served(f"client-{n}", CLIENTS // 2)
                        time.sleep(0.3)
                    time.sleep(1)    # to the owner there, and down to its hosts
                self.assertGreaterEqual(served, CLIENTS)
                self.assertLessEqual(served, CLIENTS * 1.2)

    def test_both_sites_have_one_quota_for_each_client(self):
        with Sites(rule(burst=1000, rate=1000, quota=QUOTA, per="day")) as sites:
            served = [0] * 4
            for host in (sites[0][2], sites[1][2], sites[0][0], sites[1][1]):    # some of which own the tags
                for n in range(4):
                    served[n] += host.served(f"client-{n}", QUOTA // 2 + 1)
                time.sleep(2)    # to the owner there, and down to its hosts
            self.assertEqual(served, [QUOTA] * 4)

    def test_both_sites_have_the_same_places_until_one_has_been_gone_for_three_periods(self):
        with Sites(rule(name="jobs", burst=1e6, rate=1e6, share="debit", in_flight=10),
                   host={"ask": {"tcp": "127.0.0.1:0"}}) as sites, contextlib.ExitStack() as askers:
            asker = [[askers.enter_context(Asker(("127.0.0.1", ask_port(host)))) for host in hosts] for hosts in sites]
            everybody = [*asker[0], *asker[1]]
            def says(answer, *askers):
                return lambda: {one.ask("peek 1 job") for one in askers} == {answer}
            wait_until(says("OK 10", *everybody), "owners know all hosts", PATIENCE)
            for left in range(9, 3, -1):
                self.assertEqual(asker[0][2].ask("enter 1 job"), f"OK {left}")
            wait_until(says("OK 4", asker[1][2]), "the other site has heard of six places", PATIENCE)
            for left in (3, 2, 1, 0):
                self.assertEqual(asker[1][2].ask("enter 1 job"), f"OK {left}")
            wait_until(says("NO busy - 0 jobs job", *everybody), "all places are taken everywhere", PATIENCE)
            asker[0][2].ask("give job job")
            wait_until(says("OK 2", asker[1][0]), "two have come back", PATIENCE)
            for host in sites[0]:
                host.kill()
            wait_until(says("OK 6", asker[1][0]), "those of the dead site have come back", PATIENCE)

    def test_a_limit_that_is_set_at_one_site_is_in_force_at_both(self):
        alice = Operator()
        with Sites(rule(burst=100, share="debit"), host={"operator": {"keys": [alice.line]}}) as sites:
            everybody = [*sites[0], *sites[1]]
            self.assertEqual(alice.limit(sites[0][-1], "set", "bob", "5", "0.01").returncode, 0)
            wait_until(lambda: {burst(host, "bob") for host in everybody} == {5}, "all hosts know it", PATIENCE)
            self.assertEqual(sites[1][-1].served("bob", 9), 5)
            self.assertEqual(alice.limit(sites[1][0], "clear", "bob").returncode, 0)
            wait_until(lambda: {burst(host, "bob") for host in everybody} == {100}, "it is cleared", PATIENCE)

    def test_a_penalty_is_in_force_at_both_sites_until_it_is_forgiven(self):
        with Sites(rule(burst=5, **{"penalty.after": 3, "penalty.lasts": "1h"})) as (here, there):
            everybody = [*here, *there]
            here[-1].ask(["mallory"] * 20)
            wait_until(lambda: all("mallory" in penalized(host) for host in everybody),
                       lambda: f"all hosts know of it: {[penalized(host) for host in everybody]}", PATIENCE)
            self.assertEqual(there[-1].ask(["mallory"]), ["NO"])
            there[-1].admin("forgive mallory")
            wait_until(lambda: not any(penalized(host) for host in everybody),
                       lambda: f"it is forgiven everywhere: {[penalized(host) for host in everybody]}", PATIENCE)

    def test_refusals_of_both_sites_together_come_to_a_penalty(self):
        limit = rule(burst=5, rate=0.01, share="debit", **{"penalty.after": 30, "penalty.lasts": "1h"})
        with Sites(limit) as (here, there):
            self.assertEqual(here[-1].served("eve", 25), 5)
            wait_until(lambda: there[-1].ask(["eve"]) == ["NO"], "the other site knows the level", PATIENCE)
            there[-1].ask(["eve"] * 20)
            wait_until(lambda: all("eve" in penalized(host) for host in [*here, *there]),
                       lambda: f"all hosts know of it: {[penalized(host) for host in [*here, *there]]}", PATIENCE)

    def test_no_hit_is_lost_while_owners_are_upgraded_and_started_again(self):
        with Sites(PLENTY) as sites:
            ledger = Ledger(BURST)
            with Traffic(ledger, [host for hosts in sites for host in hosts]) as traffic:
                time.sleep(1)
                for hosts in sites:
                    with traffic.pause(hosts[0]):
                        upgrade(hosts[0])
                    time.sleep(0.5)
                    with traffic.pause(hosts[1]):
                        hosts[1].restart()
                    time.sleep(0.5)
            settle(ledger, sites)

    def test_a_site_that_is_gone_is_missed_and_its_hits_are_counted_when_it_is_back(self):
        with Sites(PLENTY) as sites:
            ledger = Ledger(BURST)
            here, there = sites
            for host in there[:OWNERS]:
                host.signal(signal.SIGSTOP)
            wait_until(lambda: here[0].stats()["sites_heard"] == 0, "the other site is missed", PATIENCE)
            rows = here[0].admin_json("sites")
            self.assertIn(("ams", "not heard"), [(row["site"], row["state"]) for row in rows])
            for n in range(6):
                ledger.serve(here[2], f"client-{n}", 5)
                ledger.serve(there[2], f"client-{n}", 7)
            steps = here[0].admin_json("why client-0")["steps"]
            self.assertTrue(any("Site ams has not been heard" in step and "the whole limit" in step for step in steps),
                            steps)
            for host in there[:OWNERS]:
                host.signal(signal.SIGCONT)
            settle(ledger, sites)
            wait_until(lambda: here[0].stats()["sites_heard"] == 1, "it is heard again", PATIENCE)

    def test_hits_that_an_owner_had_not_told_when_it_was_killed_are_counted(self):
        with Sites(PLENTY) as sites:
            ledger = Ledger(BURST)
            here, there = sites
            untold = unreported = kills = 0
            while kills < 4 or (untold == 0 and kills < 20):    # chance has it whether something is untold
                kills += 1
                for turn in range(12):
                    ledger.serve(here[0], f"client-{turn}", 3)
                    time.sleep(0.05)
                here[0].crash()
                here[0].start()
                wait_until(lambda: hears_all(here[0]), "it hears the other site again", PATIENCE)
                stats = here[0].stats()
                untold += stats["sites_untold_hits"]
                unreported += stats["owners_lost_hits"]    # so the other owner of its site told none of them

            def missing():
                return sum(min(those) for those in wrong_at_owners(ledger, there[:OWNERS]).values())

            def counted(together):
                """Each owner there counts all that it did not hear, of whichever tag."""
                return untold + unreported + together(host.stats()["sites_lost_hits"] for host in there[:OWNERS])
            wait_until(lambda: missing() < counted(sum) + 0.5, lambda: f"{missing()} are missing, {counted(sum)} counted",
                       PATIENCE)
            self.assertGreater(untold, 0)
            self.assertLessEqual(counted(max), 36 * kills)

    def test_without_the_other_site_a_limit_goes_on_with_its_part_where_the_rule_says_so(self):
        limit = 'cut_off = "part"\n'
        with Sites(rule(burst=400, rate=0.01, share="forecast") + limit, part=0.25) as sites:
            here, there = sites
            for host in there:
                host.kill()
            wait_until(lambda: all(host.stats()["sites_heard"] == 0 for host in here[:OWNERS]), "the other site is missed",
                       PATIENCE)
            served = 0
            for _ in range(20):
                for host in here:
                    served += host.served("client", 8)
                    time.sleep(0.25)
            self.assertGreaterEqual(served, 80)
            self.assertLessEqual(served, 140)    # of 400 a quarter, and what is served before the owner says so
            self.assertGreater(sum(host.stats()["sites_assumed"] for host in here[:OWNERS]), 200)

    def test_without_one_owner_of_the_other_site_a_limit_goes_on_with_its_part_where_the_rule_says_so(self):
        limit = 'cut_off = "part"\n'
        with Sites(rule(burst=400, rate=0.01, share="debit") + limit, part=0.25) as sites:
            here, there = sites
            there[0].signal(signal.SIGSTOP)
            wait_until(lambda: all(host.stats()["sites_partly"] == 1 for host in here[:OWNERS]), "an owner is missed",
                       PATIENCE)
            self.assertEqual(here[0].stats()["sites_heard"], 1)
            self.assertIn(("ams", "partly heard"), [(row["site"], row["state"]) for row in here[0].admin_json("sites")])
            steps = here[0].admin_json("why client")["steps"]
            self.assertTrue(any("Not all owners of site ams have been heard" in step and "0.25 of" in step for step in steps),
                            steps)
            here[-1].served("client", 50)
            wait_until(lambda: sum(host.stats()["sites_assumed"] for host in here[:OWNERS]) == 150,
                       "three times as many are assumed there", PATIENCE)
            there[0].signal(signal.SIGCONT)
            wait_until(lambda: here[0].stats()["sites_partly"] == 0, "all are heard again", PATIENCE)


class Mistakes(ParallelTest):
    def test_what_does_not_fit_is_said(self):
        owners = {"spread": "owners", "owners": ["a"], "name": "a", "connect": ["tcp://127.0.0.1:7314"], "period": "1s"}
        good = {"name": "fra", "others": ["ams"], "bind": "tcp://127.0.0.1:7315", "period": "2s"}
        part = rule() + 'cut_off = "part"\n'
        for peers, sites, limit, complaint in [
            (owners, good, rule(), None),
            (owners, {**good, "part": 0.5}, part, None),
            (owners, good, part, "must be from 0.001 to 1"),
            (owners, good, rule(share="debit", among="level", in_flight=5), None),
            (owners, good, rule(share="capacity"), 'must be "all"'),
            (owners, {}, part, "there is one site"),
            ({"period": "1s"}, good, rule(), 'must be "owners"'),
            (owners, {**good, "others": ["fra"]}, rule(), "without sites.name"),
            (owners, {**good, "others": []}, rule(), "must be 1 to 15"),
            (owners, {**good, "period": "10s"}, rule(), "must be from one to 3 of it"),
            (owners, {**good, "bind": "tcp://0.0.0.0:7315"}, rule(), "must have sites.key_file"),
            (owners, {**good, "connect": ["tcp://192.0.2.1:7315"]}, rule(), "must have sites.key_file"),
            (owners, {"others": ["ams"]}, rule(), "must be the name of this site"),
        ]:
            with self.subTest(complaint=complaint, sites=sites):
                done = check_settings(self, peers, limit, sites=sites)
                self.assertEqual(done.returncode == 0, complaint in (None, "there is one site"), done.stderr)
                self.assertIn(complaint or "", done.stderr + done.stdout)

    def test_a_start_whose_address_for_other_sites_is_taken_ends(self):
        address = f"tcp://127.0.0.1:{free_port_pair()}"
        peers = {"name": "one", "bind": address, "connect": [address], "spread": "owners", "owners": ["one"],
                 "period": PERIOD}
        with socket.socket() as busy, Daemon(PLENTY) as daemon:
            busy.bind(("127.0.0.1", 0))
            busy.listen()
            taken = f"tcp://127.0.0.1:{busy.getsockname()[1]}"
            daemon.stop()
            daemon._sections.update(peers=peers, sites={"name": "fra", "others": ["ams"], "bind": taken, "period": PERIOD})
            daemon.write_settings(PLENTY)
            failed = run(DTHROTTLED, "--config", daemon.settings_path)
            self.assertEqual(failed.returncode, 69, failed.stderr)
            self.assertIn(taken, failed.stderr)

    def test_a_host_of_the_same_site_is_turned_away_between_sites(self):
        port = free_port_pair()
        sites = {"name": "fra", "others": ["ams"], "bind": f"tcp://127.0.0.1:{port}", "period": "500ms"}
        with Fleet(PLENTY, hosts=1, owners=1, period=PERIOD, names=["one"], sites=sites) as (one,):
            other = {**sites, "bind": f"tcp://127.0.0.1:{free_port_pair()}", "connect": [sites["bind"]]}
            peers = {"name": "two", "bind": f"tcp://127.0.0.1:{free_port_pair()}", "spread": "owners", "owners": ["two"],
                     "period": PERIOD}
            peers["connect"] = [peers["bind"]]
            for section, complaint in [(other, "your site is also mine"),
                                       ({**other, "name": "lon"}, "your site is not among sites.others")]:
                with self.subTest(complaint), Daemon(PLENTY, peers=peers, sites=section) as two:
                    def refused():
                        return [row["note"] for row in two.admin_json("sites") if row["state"] == "refused"]
                    wait_until(lambda: refused() == [complaint], lambda: f"{complaint}: {two.admin_json('sites')}",
                               PATIENCE)
            with Daemon(PLENTY, peers={**peers, "spread": None, "owners": None, "connect": [sites["bind"]]}) as two:
                wait_until(lambda: "this is an address for other sites" in two.admin("peers"), "it is turned away",
                           PATIENCE)
            self.assertEqual(one.stats()["sites_heard"], 0)
