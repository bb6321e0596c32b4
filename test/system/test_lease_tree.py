"""Lease servers without a single centre: a tree of them, and parts of a capacity that hosts agree on."""

import socketserver
import tempfile
import threading
import time
import unittest

from common import ParallelTest, SystemTest, report
from daemon import PATIENCE, rule, wait_until
from fleet import Fleet
from leases import LeaseDaemon, Lessees, resource

CALLS = resource("calls", capacity=100, lease_length="5s", refresh_interval="2s", strict=True)
ROUNDING = 1e-3    # answers are rounded down, in each of them


def leaf(parents, node, **lease):
    return LeaseDaemon(CALLS, lease={"node": node, "level": 1, "parent": [p.lease_address for p in parents], **lease})


def row(daemon):
    (only,) = daemon.leases()["resources"] or [{"from": None, "capacity": 0, "has": 0, "wants": 0}]
    return only


class Tree(ParallelTest):
    def test_clients_of_two_leaves_never_have_more_than_the_root_through_its_death_and_return(self):
        with LeaseDaemon(CALLS, lease={"node": "root"}) as root, leaf([root], "leaf-a") as a, \
                leaf([root], "leaf-b") as b, Lessees("calls", {
                    "a1": (a.lease_path, 40), "a2": (a.lease_path, 40), "b1": (b.lease_path, 30),
                    "b2": (b.lease_path, 0)}) as clients:
            wait_until(lambda: clients.holds() > 95, "all is leased out", 3 * PATIENCE)
            wait_until(lambda: abs(clients.holds("b1") - 30) < 1, "who wants less than his share has it")
            shown = a.leases()
            self.assertEqual((shown["node"], shown["level"], shown["parent"], shown["parent_note"]),
                             ("leaf-a", 1, root.lease_address, None))
            self.assertEqual(row(a)["from"], "parent")
            self.assertLessEqual(row(a)["expires_in_s"], 5)
            wait_until(lambda: abs(row(a)["capacity"] + row(b)["capacity"] - 100) < 5, "the leaves have all of it")
            holders = {h["client"]: h["has"] for h in root.leases("calls")["clients"]}
            self.assertEqual(sorted(holders), ["leaf-a", "leaf-b"])

            clients.want("b2", 90)    # capacity moves only after it has come back
            wait_until(lambda: clients.holds("b1", "b2") > 48, "the other leaf gets its half", 2 * PATIENCE)
            wait_until(lambda: clients.holds() > 95, "all is leased out again", 2 * PATIENCE)

            killed = time.monotonic()
            root.kill()    # for less than a lease, unless the machine holds somebody up
            time.sleep(1)
            self.holds_what_lasts(clients, killed)
            root.start()
            wait_until(lambda: a.leases()["parent_note"] is None and b.leases()["parent_note"] is None,
                       "the leaves have found it", 2 * PATIENCE)
            self.holds_what_lasts(clients, killed)

            wait_until(lambda: root.leases()["resources"] and row(root)["learning_s"] is None, "it has learned")
            wait_until(lambda: clients.holds() > 95, "all is leased out by the new root", 2 * PATIENCE)
            root.kill()    # for longer
            wait_until(lambda: row(a)["from"] == row(b)["from"] == "safe", "their leases have ended", 2 * PATIENCE)
            self.assertIn("cannot be reached", a.leases()["parent_note"])
            self.assertEqual(row(a)["capacity"], 25)    # an equal part for each of four clients
            wait_until(lambda: 20 < clients.holds("a1", "a2") <= 25, "clients share the safe capacity", PATIENCE)
            root.start()
            wait_until(lambda: row(a)["from"] == row(b)["from"] == "parent", "the root grants again", 2 * PATIENCE)
            wait_until(lambda: clients.holds() > 95, "all is leased out again", 3 * PATIENCE)
            self.assertLessEqual(clients.most(), 100 + ROUNDING)
            self.assertGreater(a.stats()["lease_parent_asks"], 5)
            self.assertGreater(a.stats()["lease_parent_failures"], 0)

    def holds_what_lasts(self, clients, killed):
        """Leases of 5 s that are refreshed after 2 go on for another 2 at least, on a machine that held nobody up."""
        held = clients.holds()
        if time.monotonic() - killed < 2:
            self.assertGreater(held, 90)

    def test_a_leaf_finds_the_master_by_whoever_answers(self):
        now = resource("calls", learning_mode_duration="0s")
        with LeaseDaemon(now) as master, \
                LeaseDaemon(now, lease={"elector": "static", "master": master.lease_address}) as other, \
                LeaseDaemon(now, lease={"level": 1, "parent": ["unix:/nonexistent", other.lease_address]}) as below:
            wait_until(lambda: below.lease("get a calls 30").split()[1] == "30", "it has a lease", 2 * PATIENCE)
            self.assertEqual(below.leases()["parent"], master.lease_address)

    def test_a_leaf_that_is_sent_to_a_master_by_tls_says_why_it_does_not_ask_there(self):
        with LeaseDaemon(CALLS, lease={"elector": "static", "master": "tls:127.0.0.1:9"}) as other, \
                leaf([other], "leaf") as below:
            below.lease("get a calls 1")
            wait_until(lambda: "tls:127.0.0.1:9 cannot be asked: a server speaks no TLS" in
                       (below.leases()["parent_note"] or ""), "it is said")

    def test_who_is_before_any_capacity_comes_back_soon(self):
        now = resource("calls", learning_mode_duration="0s")
        with LeaseDaemon(now, lease={"level": 1, "parent": ["unix:/nonexistent"]}) as below:
            self.assertEqual(below.lease("get a calls 30").split()[1:4:2], ["0", "2.000"])

    def test_a_parent_with_a_smaller_token_is_heard_when_the_lease_of_the_greater_one_has_ended(self):
        tokens = [2000]

        class Parent(socketserver.StreamRequestHandler):
            def handle(self):
                for _ in self.rfile:
                    self.wfile.write(b"lease 50 3.000 0.500 5 %d 50\n" % tokens[-1])

        now = resource("calls", learning_mode_duration="0s")
        with tempfile.TemporaryDirectory() as folder, \
                socketserver.ThreadingUnixStreamServer(f"{folder}/parent.sock", Parent) as parent:
            thread = threading.Thread(target=parent.serve_forever)
            thread.start()
            try:
                with LeaseDaemon(now, lease={"level": 1, "parent": [f"unix:{folder}/parent.sock"]}) as below:
                    wait_until(lambda: below.lease("get a calls 40").split()[1] == "40", "it has a lease")
                    tokens.append(1000)
                    wait_until(lambda: "smaller token" in (below.leases()["parent_note"] or ""), "it is said")
                    wait_until(lambda: below.leases()["parent_note"] is None, "the parent is heard")
                    self.assertEqual(row(below)["from"], "parent")
                    self.assertGreater(below.stats()["lease_parent_failures"], 0)
            finally:
                parent.shutdown()
                thread.join()

    def test_what_a_parent_is_asked_and_says(self):
        now = resource("calls", learning_mode_duration="0s")
        with LeaseDaemon(now) as root:
            self.assertEqual(root.lease("server leaf calls 0:2:60,7:1:30 12.5 0").split()[::2],
                             ["lease", "60.000", "33.333333", "90"])
            self.assertTrue(root.lease("server leaf none - 0 0").startswith("error no [[resource]]"))
            for bad in ("server leaf calls", "server leaf calls 0:1 0 0", "server leaf calls 0:1:1, 0 0",
                        "server leaf calls 0:1:-1 0 0", "server leaf calls 0:1:1 0 2", "server leaf calls - 0 0 1",
                        "server leaf calls " + ",".join(["0:1:1"] * 65) + " 0 0"):
                self.assertTrue(root.lease(bad).startswith("error server NODE"), bad)


class Consensus(SystemTest):
    CAPACITY = 100

    def hosts(self):
        names = ["a", "b", "c"]
        return Fleet(rule(name="calls", match="calls", burst=100, rate=100.0, share="capacity"),
                     resource("calls", capacity=self.CAPACITY, source="capacity", lease_length="10s",
                              refresh_interval="2s", learning_mode_duration="0s"),
                     hosts=3, names=names, period="500ms", lease={"tcp": "127.0.0.1:0", "min_request_interval": "0s"},
                     capacity={"interval": "200ms", "lease": "4s", "degree": 64, "members": names})

    @staticmethod
    def port(host):
        return LeaseDaemon.lease_port.fget(host)

    def test_hosts_lease_out_their_parts_and_parts_follow_what_is_wanted(self):
        with self.hosts() as hosts:
            wait_until(lambda: all(h.admin_json("capacity").get("leased") for h in hosts), "they divide", 2 * PATIENCE)
            a, b, c = (self.port(h) for h in hosts)
            with Lessees("calls", {"a1": (a, 60), "a2": (a, 60), "b1": (b, 4), "c1": (c, 4)}, often={"b1": 0.1}, every=2) as clients:
                began = time.monotonic()
                wait_until(lambda: clients.holds() >= 0.95 * self.CAPACITY, "nearly all is leased out", 4 * PATIENCE)
                report(f"95 % of a capacity wanted on one host of three was leased out after "
                       f"{time.monotonic() - began:.1f} s")
                self.assertGreater(clients.holds("a1", "a2"), 80)
                (shown,) = hosts[0].admin_json("leases")["resources"]
                self.assertEqual(shown["from"], "capacity")
                self.assertLessEqual(shown["expires_in_s"], 4)

                clients.want("b1", 120)    # as much as on the other host, which has leased out nearly all
                wait_until(lambda: clients.holds("b1") > 20, "the demand is followed", 6 * PATIENCE)
                wait_until(lambda: clients.holds() >= 0.95 * self.CAPACITY, "nearly all is leased out", 6 * PATIENCE)
            report(f"at most {clients.most():.3f} of {self.CAPACITY} was held at once, by all clients of 3 hosts")
            self.assertLessEqual(clients.most(), self.CAPACITY + ROUNDING)

    def test_a_host_alone_leases_out_the_whole(self):
        with LeaseDaemon(resource("calls", source="capacity", learning_mode_duration="0s"),
                         rule(name="calls", match="calls", share="capacity")) as daemon:
            wait_until(lambda: daemon.lease("get a calls 70").split()[1] == "70", "it has the whole")


if __name__ == "__main__":
    unittest.main()
