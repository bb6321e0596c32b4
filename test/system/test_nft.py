"""dthrottle-nft: what is penalized is in sets of the packet filter, in a network namespace of the test."""

import contextlib
import json
import pathlib
import shutil
import subprocess
import time
import unittest

from common import SystemTest
from daemon import BUILD, ROOT, Daemon, rule, wait_until

NFT = BUILD / "dthrottle-nft"
EXAMPLE = ROOT / "conf/examples/nftables/penalized.nft"
# Becomes the program, in a namespace where it has one privilege.
ALONE = ["setpriv", "--inh-caps=-all,+net_admin", "--bounding-set=-all,+net_admin", "--no-new-privs"]
LIMITS = rule(name="ips", match="ip:*", burst=1, **{"penalty.after": 1, "penalty.lasts": "1h"})


def namespaces_work():
    return shutil.which("nft") and subprocess.run(
        ["unshare", "-n", "nft", "list", "ruleset"], capture_output=True).returncode == 0


@unittest.skipUnless(NFT.exists() and namespaces_work(), "no dthrottle-nft, no nft, or no network namespaces here")
class Nft(SystemTest):
    def setUp(self):
        self.holder = subprocess.Popen(["unshare", "-n", "sleep", "600"])
        self.addCleanup(self.holder.wait)
        self.addCleanup(self.holder.kill)
        self.enter = ["nsenter", "-n", "-t", str(self.holder.pid)]
        own = pathlib.Path("/proc/self/ns/net").readlink()
        wait_until(lambda: pathlib.Path(f"/proc/{self.holder.pid}/ns/net").readlink() != own, "the namespace is there")

    def elements(self):
        listed = subprocess.run([*self.enter, "nft", "-j", "list", "ruleset"], capture_output=True, text=True, check=True)
        sets = [item["set"] for item in json.loads(listed.stdout)["nftables"] if "set" in item]
        return {one["name"]: [e["elem"]["val"] if "elem" in e else e for e in one.get("elem", [])] for one in sets}

    def test_sets_follow_penalties_and_their_end(self):
        with Daemon(LIMITS) as daemon:
            command = [*self.enter, *ALONE, NFT, "--socket", daemon.admin_path, "--prefix", "ip:", "--every", "0.05"]
            with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as program:
                wait_until(lambda: self.elements() == {"penalized4": [], "penalized6": []}, "the sets are there")
                subprocess.run([*self.enter, "nft", "-f", EXAMPLE], check=True)
                daemon.ask(["ip:192.0.2.7"] * 2 + ["ip:2001:db8::7"] * 2 + ["ip:192.0.2.8"])
                wait_until(lambda: self.elements() == {"penalized4": ["192.0.2.7"], "penalized6": ["2001:db8::7"]},
                           "the penalized addresses are in the sets")
                daemon.admin("forgive ip:192.0.2.7")
                wait_until(lambda: not self.elements()["penalized4"], "what is forgiven is taken out")
                program.terminate()
                self.assertEqual(program.wait(), 0)
                self.assertEqual(program.stderr.read(), "")
        self.assertEqual(self.elements()["penalized6"], ["2001:db8::7"])    # until its timeout

    @contextlib.contextmanager
    def following(self, daemon, tags, wanted):
        """Runs the program while the block does, which begins when these tags are penalized and the sets as wanted."""
        command = [*self.enter, *ALONE, NFT, "--socket", daemon.admin_path, "--prefix", "ip:", "--every", "0.05"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as program:
            try:
                daemon.ask(tags * 2)
                wait_until(lambda: self.elements() == wanted, "the penalized addresses are in the sets")
                yield
            finally:
                program.terminate()
            self.assertEqual((program.wait(), program.stderr.read()), (0, ""))

    def test_sets_are_restored_when_somebody_else_has_changed_the_ruleset(self):
        wanted = {"penalized4": ["192.0.2.7", "192.0.2.8"], "penalized6": ["2001:db8::7"]}
        with Daemon(LIMITS) as daemon:
            with self.following(daemon, ["ip:192.0.2.7", "ip:192.0.2.8", "ip:2001:db8::7"], wanted):
                for change in ("flush ruleset", "delete set inet dthrottle penalized6",
                               "delete element inet dthrottle penalized4 { 192.0.2.7 }",
                               "flush set inet dthrottle penalized4",
                               "add element inet dthrottle penalized4 { 198.51.100.7 }",
                               "add element inet dthrottle penalized4 { 198.51.100.0/24 timeout 1h }",
                               "add element inet dthrottle penalized4 { 198.51.100.1-198.51.100.5 }"):
                    with self.subTest(change):
                        subprocess.run([*self.enter, "nft", change], check=True)
                        wait_until(lambda: self.elements() == wanted, "the sets are as before", 10)
                daemon.admin("forgive ip:192.0.2.7")
                wait_until(lambda: self.elements()["penalized4"] == ["192.0.2.8"], "penalties are followed as before")

    def test_a_ruleset_that_holds_what_it_should_is_left_alone(self):
        wanted = {"penalized4": ["192.0.2.7", "192.0.2.8"], "penalized6": ["2001:db8::7"]}
        with Daemon(LIMITS) as daemon:
            with self.following(daemon, ["ip:192.0.2.7", "ip:192.0.2.8", "ip:2001:db8::7"], wanted):
                subprocess.run([*self.enter, "nft", "add table inet other"], check=True)
                with subprocess.Popen([*self.enter, "nft", "monitor"], stdout=subprocess.PIPE, text=True) as watch:
                    time.sleep(1)    # 20 looks
                    watch.terminate()
                    self.assertEqual(watch.stdout.read(), "")

    def test_a_daemon_that_is_not_there_is_said_once(self):
        done = subprocess.run([*self.enter, NFT, "--socket", "/nowhere", "--once"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (69, "dthrottle-nft: /nowhere: No such file or directory\n"))


if __name__ == "__main__":
    unittest.main()
