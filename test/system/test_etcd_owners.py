"""Daemons whose list of owners is in etcd: they enter themselves, and take the place of one that is lost."""

import contextlib
import json
import os
import time
import unittest

import etcd
import nats
from common import ParallelTest
from daemon import PATIENCE, rule, wait_until
from fleet import Fleet, Ledger, Traffic, settle_owners
from test_owners import BURST, LIMIT, PLENTY, check_settings, up
from test_upgrade import upgrade

OWNERS = 3
HOSTS = 6
TTL = 3              # where an owner is to be lost
TTL_PATIENT = 8      # where none is, however slow the machine


@unittest.skipUnless(etcd.AVAILABLE, etcd.WHY_NOT)
class EtcdOwners(ParallelTest):
    @classmethod
    def setUpClass(cls):
        cls.stack = contextlib.ExitStack()
        cls.addClassCleanup(cls.stack.close)
        cls.etcd = cls.stack.enter_context(etcd.Etcd())
        super().setUpClass()

    def settings(self, ttl=TTL_PATIENT):
        return {"etcd": self.etcd.urls, "etcd_key": f"test/{self.id()}", "etcd_ttl": f"{ttl}s"}

    def fleet(self, limit=LIMIT, hosts=HOSTS, ttl=TTL_PATIENT, **options):
        return Fleet(limit, hosts=hosts, owners=OWNERS, period="500ms", etcd=self.settings(ttl), **options)

    def value(self):
        return self.etcd.members[0].get(f"test/{self.id()}")

    def wait_list(self, hosts, owners, seconds=4 * PATIENCE):
        names = {owner.name for owner in owners}

        def in_force():
            numbers = {host.stats()["owners_list"] for host in hosts}
            return len(numbers) == 1 and numbers != {0} and set(json.loads(self.value() or '{"owners": {}}')["owners"]) == names
        wait_until(in_force, f"{names} are the owners", seconds)
        wait_until(lambda: all(names - {host.name} <= set(up(host)) for host in hosts), "all hear them", seconds)

    def test_hosts_that_enter_themselves_own_the_tags(self):
        with self.fleet(keys=True) as hosts:
            self.wait_list(hosts, hosts[:OWNERS])
            self.assertEqual([host.stats()["owners_registered"] for host in hosts], [1] * OWNERS + [0] * (HOSTS - OWNERS))
            served = 0
            for host in hosts:
                served += host.served("client", BURST // 2)
                time.sleep(0.4)
            self.assertGreaterEqual(served, BURST)
            self.assertLessEqual(served, BURST * 1.2)
            self.assertEqual([host.stats()["owners_differ"] for host in hosts], [0] * HOSTS)

    def test_an_owner_that_is_killed_is_replaced_within_its_lease_and_a_second(self):
        with self.fleet(ttl=TTL) as hosts:
            self.wait_list(hosts, hosts[:OWNERS])
            tags = [f"client-{n}" for n in range(24)]
            one, asker, killed = hosts[4], hosts[5], hosts[0]
            for tag in tags:
                self.assertEqual(one.served(tag, BURST // 2), BURST // 2)
            time.sleep(1.5)    # until the owners know
            rest = hosts[1:]
            killed.crash(keep_table=False)
            began = time.monotonic()

            def owned():
                return all(host.stats()["owners"] == OWNERS - 1 and not host.stats()["owners_awaited"] for host in rest)
            wait_until(owned, "its tags have other owners", 4 * PATIENCE)
            took = time.monotonic() - began
            print(f"owned again {took:.2f} s after the kill, with a lease of {TTL} s")
            self.assertLess(took, 4 * TTL)    # a busy machine is slow

            def known():
                for tag in tags:
                    asker.served(tag, 1)
                time.sleep(1)
                return all(asker.level(tag) < BURST // 2 for tag in tags)
            wait_until(known, "the new owners have what the other hosts knew", PATIENCE)
            killed.start()
            self.wait_list(hosts, hosts[:OWNERS])

    def test_owners_that_leave_join_and_are_upgraded_under_load_cost_no_hit(self):
        with self.fleet(PLENTY) as hosts:
            self.wait_list(hosts, hosts[:OWNERS])
            ledger = Ledger()
            with Traffic(ledger, hosts):
                time.sleep(1)
                hosts[0].reload(owner=False)
                hosts[OWNERS].reload(owner=True)
                self.wait_list(hosts, hosts[1:OWNERS + 1])
                upgrade(hosts[1])    # it goes on as an owner
                time.sleep(TTL_PATIENT + 1)
            settle_owners(ledger, hosts[1:OWNERS + 1])
            for name in ("owners_missed", "owners_dropped", "reports_lost", "owners_awaited", "owners_giving"):
                self.assertEqual([host.stats()[name] for host in hosts], [0] * HOSTS, name)

    @unittest.skipUnless(nats.AVAILABLE, nats.WHY_NOT)
    def test_over_nats_as_well(self):
        with nats.Server() as server, nats.NatsFleet(
                LIMIT, urls=[server.url()], hosts=4, owners=0, period="500ms", peers=self.settings(TTL)) as hosts:
            for host in hosts[:2]:
                host.reload(owner=True)
            self.wait_list(hosts, hosts[:2])
            hosts[0].crash(keep_table=False)
            self.wait_list(hosts[1:], hosts[1:2])

    def test_without_etcd_the_list_stays_and_hosts_start_by_what_they_kept(self):
        with etcd.Etcd(1) as alone:
            member = alone.members[0]
            settings = {"etcd": alone.urls, "etcd_ttl": f"{TTL}s"}
            with Fleet(LIMIT, hosts=4, owners=2, period="500ms", etcd=settings) as hosts:
                wait_until(lambda: {host.stats()["owners"] for host in hosts} == {2}, "there are owners", 4 * PATIENCE)
                member.kill()
                hosts[0].wait_log("the list of owners stays as it is")
                hosts[0].crash(keep_table=True)
                hosts[3].stop()
                time.sleep(TTL + 1)    # nobody can take the lost one out
                self.assertEqual([host.stats()["owners"] for host in hosts[1:3]], [2, 2])
                hosts[0].start()
                hosts[3].start()
                wait_until(lambda: all({"a", "b"} - {host.name} <= set(up(host)) for host in hosts), "all hear the owners",
                           2 * PATIENCE)
                member.start()
                hosts[0].wait_log("etcd says the list of owners again")
                time.sleep(1)
                self.assertEqual([host.stats()["owners"] for host in hosts], [2] * 4)

    def test_what_etcd_has_may_be_anything_and_may_be_lost(self):
        with self.fleet() as hosts:
            self.wait_list(hosts, hosts[:OWNERS])
            key = f"test/{self.id()}"
            good = self.value()
            changes = [host.stats()["owners_changes"] for host in hosts]
            for bad in ("", "[]", '{"number": 9}', '{"number": 9, "owners": {"a/b": ""}, "before": []}',
                        '{"number": 99999999999999, "owners": {"a": ""}, "before": []}'):
                self.etcd.members[0].put(key, bad)
                wait_until(lambda: f"the value of {key}" in hosts[0].log, "an owner says so", PATIENCE)
            self.assertEqual([host.stats()["owners"] for host in hosts], [OWNERS] * HOSTS)
            self.etcd.members[0].delete(key)    # then owners write it again
            wait_until(lambda: (self.value() or "") == good, "the list is there again", PATIENCE)
            self.assertEqual([host.stats()["owners_changes"] for host in hosts], changes)

    def test_an_entry_that_somebody_writes_by_hand_is_no_host(self):
        with self.fleet() as hosts:
            self.wait_list(hosts, hosts[:OWNERS])
            entry = f"test/{self.id()}/{hosts[0].name}"
            self.etcd.members[0].put(entry, self.etcd.members[0].get(entry))    # without a lease
            hosts[0].wait_log(f"{entry} has no lease")
            self.assertEqual(hosts[0].stats()["owners_registered"], 0)
            hosts[0].crash(keep_table=False)
            self.wait_list(hosts[1:], hosts[1:OWNERS])
            self.etcd.members[0].delete(entry)
            hosts[0].start()
            self.wait_list(hosts, hosts[:OWNERS])

    def test_who_is_an_owner_now_and_then_keeps_no_descriptors(self):
        with self.fleet(hosts=OWNERS) as hosts:
            self.wait_list(hosts, hosts)
            opened = []
            for _ in range(12):
                for owner in (False, True):
                    hosts[0].reload(owner=owner)
                    wait_until(lambda: hosts[0].stats()["owners_registered"] == owner, "it is as it is to be", 4 * PATIENCE)
                opened.append(len(os.listdir(f"/proc/{hosts[0].process.pid}/fd")))
            self.assertLess(min(opened[-3:]), opened[0] + 8)


@unittest.skipUnless(etcd.AVAILABLE, etcd.WHY_NOT)
class FullEtcd(ParallelTest):
    def alarm(self, cluster, action):
        cluster.members[0].post("/v3/maintenance/alarm", {"action": action, "alarm": "NOSPACE"})

    def test_a_list_that_cannot_be_written_is_said_and_counted(self):
        with etcd.Etcd(1) as full:
            settings = {"etcd": full.urls, "etcd_ttl": f"{TTL}s"}
            with Fleet(LIMIT, hosts=3, owners=2, period="500ms", etcd=settings) as hosts:
                wait_until(lambda: {host.stats()["owners"] for host in hosts} == {2}, "there are owners", 4 * PATIENCE)
                self.alarm(full, "ACTIVATE")
                before = hosts[1].stats()["owners_etcd_failures"]
                hosts[0].crash(keep_table=False)
                hosts[1].wait_log("space exceeded: the list of owners stays as it is")
                self.assertGreater(hosts[1].stats()["owners_etcd_failures"], before)
                hosts[0].start()
                hosts[0].wait_log("space exceeded: this host is not entered among the owners")
                self.alarm(full, "DEACTIVATE")
                for host in hosts[:2]:
                    host.wait_log("etcd says the list of owners again")


class Settings(ParallelTest):
    def test_settings_that_do_not_fit(self):
        for peers, says in (
                ({"etcd": ["http://127.0.0.1:2379"]}, "peers.etcd with peers.spread = \"all\""),
                ({"owner": True}, "must be false"),
                ({"spread": "owners", "owners": ["a"], "etcd": ["http://127.0.0.1:2379"]}, "must be [], because etcd has"),
                ({"spread": "owners", "etcd": ["127.0.0.1"]}, "peers.etcd = [\"127.0.0.1\"]"),
                ({"spread": "owners", "etcd": ["http://127.0.0.1:2379"], "etcd_ttl": "3500ms"}, "must be whole seconds"),
                ({"spread": "owners", "etcd": ["http://127.0.0.1:2379"], "owner": True, "bind": "tcp://0.0.0.0:7314"},
                 "peers.advertise is \"\""),
                ({"spread": "owners", "etcd": ["http://127.0.0.1:2379"], "bind": "tcp://127.0.0.1:7314",
                  "advertise": "tcp://10.0.0.2:7314"}, "peers.advertise = \"tcp://10.0.0.2:7314\" is not loopback")):
            with self.subTest(says=says):
                checked = check_settings(self, peers)
                self.assertEqual(checked.returncode, 78)
                self.assertIn(says, checked.stdout + checked.stderr)
