"""Penalties: refused too often on one host, refused at once on all."""

import contextlib
import time
import unittest

from common import SystemTest, report
from daemon import Daemon, rule, wait_until
from fleet import Fleet, wait_all_hear, wait_owners_hear

LOGIN = rule(name="login", match="login:*", burst=5, **{"penalty.after": 3, "penalty.lasts": "1h"})

AFTER = 24
MANY = rule(name="login", match="login:*", burst=1, rate=0.01, **{"penalty.after": AFTER, "penalty.lasts": "1h"})


def penalized(host):
    return {row["tag"]: row["from"] for row in host.admin_json("penalties")}


@contextlib.contextmanager
def mesh(limit):
    with Fleet(limit, hosts=8, period="5s") as hosts:
        wait_all_hear(hosts)
        yield hosts


@contextlib.contextmanager
def owned(limit):
    with Fleet(limit, hosts=8, owners=2, period="500ms") as hosts:
        wait_owners_hear(hosts, 2)
        yield hosts


class Penalties(SystemTest):
    def test_a_penalty_is_known_on_all_hosts_at_once_until_it_is_forgiven(self):
        with mesh(LOGIN) as hosts:
            self._check(hosts)

    def test_owners_tell_everybody_of_it(self):
        with owned(LOGIN) as hosts:
            self._check(hosts[::-1])    # begins at a host that owns nothing

    def test_a_client_that_goes_from_host_to_host_is_found_out(self):
        with mesh(MANY) as hosts:
            self._go_round(hosts)

    def test_owners_find_out_a_client_that_goes_from_host_to_host(self):
        with owned(MANY) as hosts:
            self._go_round(hosts)

    def test_a_shorter_penalty_after_a_reload_holds_for_those_in_force_too(self):
        def login(lasts):
            return rule(name="login", match="login:*", burst=2, **{"penalty.after": 1, "penalty.lasts": lasts})

        with Daemon(login("1h"), rule()) as daemon:
            daemon.ask(["login:a"] * 5)
            (row,) = daemon.admin_json("penalties")
            self.assertGreater(row["left_s"], 3000)
            daemon.write_settings(login("2s"), rule())
            daemon.hang_up()
            wait_until(lambda: penalized(daemon) == {}, "it is over")

    def _go_round(self, hosts):
        refused = 0
        while not any(penalized(host) for host in hosts):
            for host in hosts:
                refused += host.ask(["login:mallory"]) == ["NO"]
                time.sleep(0.02)    # hosts tell each other every 50 ms
            self.assertLess(refused, 8 * AFTER, "nobody finds out")
        report(f"a client that asks 8 hosts in turns is penalized after {refused} refusals, {AFTER} wanted")
        self.assertGreaterEqual(refused, AFTER)
        self.assertLess(refused, 2 * AFTER)
        wait_until(lambda: all(penalized(host) for host in hosts), "all hosts know the penalty")

    def _check(self, hosts):
        began = time.monotonic()
        hosts[0].ask(["login:mallory"] * 8)
        wait_until(lambda: all(penalized(host) for host in hosts), "all hosts know the penalty")
        took = time.monotonic() - began
        report(f"a penalty is known on 8 hosts after {took * 1000:.0f} ms, asked one after the other")
        for host in hosts[1:]:
            self.assertEqual(penalized(host), {"login:mallory": "peer"})
            self.assertEqual(host.ask(["login:mallory", "login:alice"]), ["NO", "OK"])
        self.assertIn("penalized", "".join(hosts[1].admin_json("why login:mallory")["steps"]))

        hosts[2].kill()
        hosts[2].start()
        wait_until(lambda: penalized(hosts[2]), "a host that was killed hears of it again")
        hosts[4].restart()
        self.assertTrue(penalized(hosts[4]), "an orderly restart keeps it")
        hosts[3].admin("forgive login:mallory")
        wait_until(lambda: not any(penalized(host) for host in hosts), "it is forgiven everywhere")


if __name__ == "__main__":
    unittest.main()
