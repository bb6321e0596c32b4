"""Load shedding: the host runs hot, and rules that say so refuse more and more."""

import contextlib
import pathlib
import re
import shutil
import subprocess
import sys
import time
import unittest

from common import ParallelTest, SystemTest
from daemon import DTHROTTLECTL, Daemon, fresh_directory, rule, run, wait_until
from test_upgrade import upgrade

MIB = 1 << 20
LOW, HIGH = 3_000_000_000, 3_221_225_472    # the source's example
MIDDLE = (LOW + HIGH) // 2
QUERIES = 3000


class Group:
    """A directory that looks like a control group of version 2."""

    def __init__(self, current=0, maximum="max"):
        self.directory = fresh_directory()
        self.write("memory.max", maximum)
        self.use(current)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.directory)

    def write(self, name, value):
        # As the kernel's files, whole whenever they are read.
        fresh = self.directory / "fresh"
        fresh.write_text(f"{value}\n")
        fresh.rename(self.directory / name)

    def use(self, current):
        self.write("memory.current", current)


def shedding(*limits, **shed):
    """A daemon that looks every 50 ms."""
    return Daemon(*(limits or [rule(name="all", burst=10**6, shed=True)]), shed={"interval": "50ms", **shed})


def watching(group, *limits, **shed):
    return shedding(*limits, cgroup=str(group.directory), **{"low": f"{LOW}B", "high": f"{HIGH}B", **shed})


def priorities(daemon):
    return {row["priority"]: row["probability"] for row in daemon.admin_json("shed")["priorities"]}


def wait_value(daemon, value):
    return wait_until(lambda: (s := daemon.admin_json("shed"))["value"] == value and s, f"the signal is at {value}")


class Cgroup(ParallelTest):
    def test_a_group_that_fills_up_is_shed_along_the_curve_and_served_again_when_it_empties(self):
        with Group(LOW - 1) as group, watching(group) as daemon:
            served = 0

            def ask(level, probability):
                nonlocal served
                group.use(level)
                wait_value(daemon, level)
                self.assertAlmostEqual(priorities(daemon)[0], probability, places=6)
                ok = daemon.served("C", QUERIES)
                served += ok
                # 7 sigma: once in 10^11 runs.
                self.assertLessEqual(abs(ok - QUERIES * (1 - probability)),
                                     7 * (QUERIES * probability * (1 - probability)) ** 0.5, level)

            ask(LOW - 1, 0)
            ask(LOW, 0.01)
            ask(MIDDLE, 0.5)
            ask(HIGH - 1, 0.99)
            ask(HIGH, 1)
            ask(2 * HIGH, 1)
            ask(MIDDLE, 0.5)
            ask(0, 0)
            daemon.wait_log("shedding begins")
            daemon.wait_log("shedding ends")
            # Every query is accounted for, and only those that were served cost the tag something.
            stats = daemon.stats()
            self.assertEqual((stats["served"], stats["shed"], stats["throttled"]), (served, 8 * QUERIES - served, 0))
            self.assertEqual(daemon.admin_json("rules")[0]["shed"], stats["shed"])
            self.assertEqual(round(daemon.admin_json("show C")["level"]), 10**6 - served)

    def test_why_and_show_and_stats_say_what_is_shed_and_how_much(self):
        with Group(MIDDLE) as group, watching(group) as daemon:
            wait_value(daemon, MIDDLE)
            self.assertIn("The rule sheds with priority 0, and now a query with probability 0.5", daemon.admin("why C"))
            self.assertIn(f'shed.signal = "cgroup" is at {MIDDLE} bytes', daemon.admin("why C"))
            shown = daemon.admin_json("show C")
            self.assertEqual((shown["verdict"], shown["shed_probability"]), ("OK", 0.5))
            stats = daemon.stats()
            self.assertAlmostEqual(stats["shed_signal"], MIDDLE / HIGH, places=5)
            self.assertEqual(stats["shed_probability"], 0.5)
            group.use(HIGH)
            wait_value(daemon, HIGH)
            self.assertEqual(daemon.admin_json("why C")["verdict"], "NO")
            self.assertIn("and now every query", daemon.admin("why C"))
            self.assertEqual(daemon.admin_json("show C")["verdict"], "NO")

    def test_the_least_important_rules_are_refused_first_and_others_never(self):
        limits = [rule(name="crawler", match="c*", burst=10**6, shed=True),
                  rule(name="guest", match="g*", burst=10**6, shed=True, shed_priority=4),
                  rule(name="member", burst=10**6, match="m*")]
        with Group(0) as group, watching(group, *limits, low="100B", high="300B") as daemon:
            for level, expected in ((99, (50, 50, 50)), (200, (0, 50, 50)), (300, (0, 0, 50)), (0, (50, 50, 50))):
                group.use(level)
                wait_value(daemon, level)
                served = tuple(daemon.served(tag, 50) for tag in ("crawler", "guest", "member"))
                if level == 200:    # where the second priority begins: 1 in 100
                    self.assertEqual(served[0::2], (0, 50))
                    self.assertGreater(served[1], 30)
                else:
                    self.assertEqual(served, expected, level)

    def test_percentages_are_of_memory_max_also_when_it_changes(self):
        with Group(500 * MIB, 1000 * MIB) as group, watching(group, low="80%", high="90%") as daemon:
            shed = wait_value(daemon, 500 * MIB)
            self.assertEqual((shed["maximum"], shed["low"], shed["high"]), (1000 * MIB, 800 * MIB, 900 * MIB))
            self.assertEqual(daemon.served("C", 20), 20)
            group.write("memory.max", 400 * MIB)
            wait_until(lambda: priorities(daemon)[0] == 1, "everything is shed")
            self.assertEqual(daemon.served("C", 20), 0)

    def test_without_bounds_memory_is_shed_between_90_and_98_percent(self):
        with Group(0, 1000) as group, watching(group, low=None, high=None) as daemon:
            shed = wait_value(daemon, 0)
            self.assertEqual((shed["low"], shed["high"]), (900, 980))

    def test_a_group_without_a_maximum_is_measured_against_the_host_with_a_warning(self):
        with Group(0, "max") as group, watching(group, low="80%", high="90%") as daemon:
            shed = wait_value(daemon, 0)
            total = int(re.search(r"MemTotal:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text())[1]) * 1024
            self.assertEqual(shed["maximum"], total)
            self.assertEqual(daemon.log.count("has no memory.max"), 1)

    def _check_dropped(self, stat):
        """Of a full group whose memory.stat is that, all but 1,000 bytes do not count."""
        with Group(HIGH) as group, watching(group) as daemon:
            wait_until(lambda: priorities(daemon)[0] == 1, "everything is shed")
            group.write("memory.stat", stat)
            wait_value(daemon, 1000)
            self.assertEqual(daemon.served("C", 20), 20)

    def test_file_pages_that_the_kernel_can_drop_do_not_count(self):
        self._check_dropped(f"anon 1\ninactive_anon {HIGH}\ninactive_file {HIGH - 1000}\nactive_file 5")

    def test_neither_do_those_of_the_children_of_a_group_of_version_1(self):
        self._check_dropped(f"cache 0\ninactive_file 0\ntotal_cache {HIGH}\ntotal_inactive_file {HIGH - 1000}")

    def test_what_cannot_be_read_sheds_nothing_and_is_said_once(self):
        with Group(HIGH) as group, watching(group) as daemon:
            wait_until(lambda: priorities(daemon)[0] == 1, "everything is shed")
            for broken in (lambda: (group.directory / "memory.current").unlink(), lambda: group.use("nonsense"),
                           lambda: group.write("memory.current", "")):
                before = daemon.stats()["shed_failures"]
                broken()
                wait_until(lambda: daemon.stats()["shed_failures"] >= before + 3, "it has tried")
                self.assertEqual(daemon.served("C", 20), 20)
            self.assertEqual(daemon.log.count(": nothing is shed"), 1)
            self.assertIn("memory.current", daemon.admin_json("shed")["note"])
            group.use(HIGH)
            wait_until(lambda: priorities(daemon)[0] == 1, "everything is shed again")
            daemon.wait_log("can be measured again")

    def test_off_and_shadow_refuse_nobody(self):
        limits = [rule(name="off", match="o*", shed=True, mode="off"),
                  rule(name="shadow", match="s*", burst=10**6, shed=True, mode="shadow"),
                  rule(name="all", shed=True)]
        with Group(HIGH) as group, watching(group, *limits) as daemon:
            wait_until(lambda: priorities(daemon)[0] == 1, "everything is shed")
            self.assertEqual([daemon.served(tag, 20) for tag in ("o", "s", "x")], [20, 20, 0])
            counts = {row["rule"]: (row["served"], row["shadowed"], row["shed"]) for row in daemon.admin_json("rules")}
            self.assertEqual(counts, {"off": (20, 0, 0), "shadow": (0, 20, 0), "all": (0, 0, 20)})
            self.assertIn("what is shed is counted and answered OK", daemon.admin("why s"))


class OtherSignals(ParallelTest):
    def test_a_reported_value_sheds_until_it_falls_or_its_reporter_is_dead(self):
        with shedding(signal="reported", low=100, high=200, expiry="5s") as daemon:
            self.assertEqual(daemon.served("C", 20), 20)
            self.assertEqual(daemon.admin_json("shed")["note"], "nothing is reported")
            self.assertEqual(daemon.stats()["shed_blind"], 1)
            self.assertEqual(daemon.admin_json("shed 150")["priorities"][0]["probability"], 0.5)
            daemon.admin("shed 200")
            self.assertEqual(daemon.served("C", 20), 0)
            self.assertEqual(daemon.stats()["shed_blind"], 0)
            daemon.admin("shed 99.5")
            self.assertEqual(daemon.served("C", 20), 20)
            last = time.monotonic()
            self.assertEqual(daemon.admin_json("shed 1e6")["value"], 1e6)
            wait_until(lambda: daemon.stats()["shed_expired"] == 1, "the value has expired")
            self.assertGreaterEqual(time.monotonic() - last, 4.9)
            self.assertEqual(daemon.served("C", 20), 20)
            self.assertIn("older than shed.expiry", daemon.admin_json("shed")["note"])
            time.sleep(0.3)
            stats = daemon.stats()
            self.assertEqual((stats["shed_expired"], stats["shed_blind"]), (1, 1))
            self.assertEqual(daemon.log.count("is older than shed.expiry"), 1)

    def test_a_reported_value_is_in_force_over_an_upgrade_and_a_restart_until_it_expires(self):
        limits = [rule(name="all", burst=10**6, shed=True)]
        with shedding(*limits, signal="reported", low=100, high=200, expiry="1h") as daemon:
            daemon.admin("shed 200")
            for another in (upgrade, Daemon.restart):
                age = daemon.admin_json("shed")["age_s"]
                another(daemon)
                self.assertEqual(daemon.served("C", 20), 0)
                self.assertGreater(daemon.admin_json("shed")["age_s"], age)
            daemon.stop()
            daemon._sections["shed"]["expiry"] = "200ms"
            daemon.write_settings(*limits)
            time.sleep(0.2)
            daemon.start()
            self.assertEqual(daemon.served("C", 20), 20)
            self.assertEqual(daemon.admin_json("shed")["note"], "nothing is reported")
            self.assertNotIn("is older than shed.expiry", daemon.log)

    def test_the_curve_is_the_one_that_is_set(self):
        for curve, probability in (("linear", 0.25), ("step", 1)):
            with shedding(signal="reported", low=100, high=200, curve=curve) as daemon:
                shed = daemon.admin_json("shed 125")
                self.assertEqual((shed["curve"], shed["priorities"][0]["probability"]), (curve, probability))
                self.assertEqual(priorities(daemon)[0], probability)

    def test_the_control_program_reports_and_shows_and_passes_errors_on(self):
        def ctl(daemon, *words):
            return run(DTHROTTLECTL, "--socket", daemon.admin_path, *words)
        with shedding(signal="reported", low=-5, high=5) as daemon:
            told = ctl(daemon, "shed", "0")
            self.assertEqual((told.returncode, told.stderr), (0, ""))
            self.assertRegex(told.stdout, r"\npriorities:\npriority +low +high +probability +rules\n0 +-5 +5 +0\.5 +all\n")
            self.assertEqual(daemon.admin_json("shed")["value"], 0)
            for wrong in ("much", "nan", "inf", "1e999", "5 6", "0x5", "1,5"):
                refused = ctl(daemon, "shed", wrong)
                self.assertEqual((refused.returncode, refused.stdout + refused.stderr),
                                 (1, "error: VALUE must be a number\n"), wrong)
        with shedding(signal="host", low="1MiB", high="2MiB") as daemon:
            self.assertIn("is taken only for \"reported\"", daemon.admin("shed 5"))

    def test_the_memory_of_the_host(self):
        with shedding(signal="host", low="1MiB", high="2MiB") as daemon:
            wait_until(lambda: priorities(daemon)[0] == 1, "everything is shed")
            self.assertEqual(daemon.served("C", 20), 0)
            shed = daemon.admin_json("shed")
            info = {key: int(value) * 1024 for key, value in
                    re.findall(r"(\w+):\s+(\d+) kB", pathlib.Path("/proc/meminfo").read_text())}
            self.assertEqual(shed["maximum"], info["MemTotal"])
            # Others use the host as well: all that can be told is that the number and its unit are meant.
            used = info["MemTotal"] - info["MemAvailable"]
            self.assertTrue(used / 4 < shed["value"] < 4 * used, (shed["value"], used))

    def test_pressure_is_avg10_of_some_in_percent(self):
        with Group() as group:
            def press(avg10):
                group.write("memory.pressure", f"some avg10={avg10} avg60=99.00 avg300=99.00 total=1\n"
                                               "full avg10=99.00 avg60=99.00 avg300=99.00 total=1")
            press("0.00")
            with shedding(signal="pressure", cgroup=str(group.directory), low="10%", high="30%") as daemon:
                for avg10, probability in (("9.99", 0), ("20.00", 0.5), ("30.00", 1), ("0.00", 0)):
                    press(avg10)
                    wait_value(daemon, float(avg10))
                    self.assertEqual(priorities(daemon)[0], probability)

    @unittest.skipUnless(pathlib.Path("/proc/pressure/memory").exists(), "the kernel keeps no PSI: /proc/pressure is missing")
    def test_without_a_group_pressure_is_the_hosts(self):
        with shedding(signal="pressure", low="20%", high="100%") as daemon:
            shed = wait_until(lambda: (s := daemon.admin_json("shed"))["value"] is not None and s, "it is measured")
            self.assertEqual(shed["source"], "/proc/pressure/memory")
            self.assertTrue(0 <= shed["value"] <= 100, shed)

    def test_every_query_thread_sheds(self):
        with Daemon(rule(name="all", burst=10**6, shed=True), query={"threads": 3},
                    shed={"signal": "reported", "low": 1, "high": 2}) as daemon:
            daemon.admin("shed 2")
            with contextlib.ExitStack() as stack:
                socks = [stack.enter_context(daemon.connect()) for _ in range(6)]
                for sock in socks:
                    sock.sendall(b"C\n")
                    self.assertEqual(sock.recv(3), b"NO\n")


class Reload(ParallelTest):
    def test_everything_about_shedding_changes_with_a_reload(self):
        def put(daemon, *limits, **shed):
            daemon._sections["shed"] = {"interval": "50ms", **shed}
            daemon.write_settings(*limits)
            outcome = daemon.admin_json("reload")
            self.assertTrue(outcome["reloaded"], outcome)
            return outcome["problems"]

        sheds, other = rule(name="all", burst=10**6, shed=True), rule(name="all", burst=10**6)
        with Group(HIGH) as hot, Group(0) as cold, watching(cold, sheds) as daemon:
            bounds = {"low": f"{LOW}B", "high": f"{HIGH}B"}
            wait_value(daemon, 0)
            self.assertEqual(put(daemon, sheds, cgroup=str(hot.directory), **bounds), [])
            wait_value(daemon, HIGH)
            self.assertEqual(daemon.served("C", 20), 0)
            # Bounds and rules are in force with the answer.
            self.assertEqual(put(daemon, sheds, cgroup=str(hot.directory), low=f"{HIGH + 1}B", high=f"{2 * HIGH}B"), [])
            self.assertEqual(daemon.served("C", 20), 20)
            put(daemon, sheds, cgroup=str(hot.directory), **bounds)
            self.assertEqual(daemon.served("C", 20), 0)
            self.assertRegex(put(daemon, other, cgroup=str(hot.directory), **bounds)[0], "no rule has shed = true")
            self.assertEqual(daemon.served("C", 20), 20)
            self.assertEqual(daemon.admin_json("shed")["note"], "no rule has shed = true")
            put(daemon, sheds, signal="reported", low=1, high=2)
            self.assertEqual(daemon.served("C", 20), 20)
            daemon.admin("shed 2")
            self.assertEqual(daemon.served("C", 20), 0)
            # A value outlives a reload that does not change the signal.
            put(daemon, sheds, signal="reported", low=1, high=3)
            self.assertEqual(daemon.admin_json("shed")["priorities"][0]["probability"], 0.5)


# ---- A group of the kernel's ----


def real_groups():
    """A directory in which groups with a memory limit can be made and the name of the limit's file, or a reason."""
    for mount in pathlib.Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, options, *_ = mount.split()
        place = pathlib.Path(place)
        if kind == "cgroup2" and "memory" in (place / "cgroup.controllers").read_text().split():
            with contextlib.suppress(OSError):
                if "memory" not in (place / "cgroup.subtree_control").read_text().split():
                    (place / "cgroup.subtree_control").write_text("+memory")
            name = "memory.max"
        elif kind == "cgroup" and "memory" in options.split(","):
            name = "memory.limit_in_bytes"
        else:
            continue
        probe = place / "dthrottle-test-probe"
        try:
            probe.mkdir()
            possible = (probe / name).exists()
            probe.rmdir()
        except OSError:
            possible = False
        if possible:
            return place, name
    return None, "NO REAL CONTROL GROUP: no mounted hierarchy lets us make a group with a memory limit"


def real_group(test, bytes_max):
    """A group with that limit of memory, for the time of a test, which is skipped where none can be made."""
    parent, limit = real_groups()
    if parent is None:
        test.skipTest(limit)
    group = parent / f"dthrottle-test-{time.monotonic_ns()}"
    group.mkdir()

    def removed():
        with contextlib.suppress(OSError):
            group.rmdir()
        return not group.exists()
    test.addCleanup(lambda: wait_until(removed, "the group is gone"))
    (group / limit).write_text(str(bytes_max))
    return group


class RealGroup(SystemTest):
    """A process allocates within a group of its own, and gives it back."""

    HOG = ("import sys\n"
           "held = b''\n"
           "print('in', flush=True)\n"
           "for line in sys.stdin:\n"
           "    held = bytearray(b'x') * int(line)\n"
           "    print('held', flush=True)\n")

    def test_shedding_begins_when_a_real_group_fills_up_and_ends_when_it_empties(self):
        group = real_group(self, 256 * MIB)
        hog = subprocess.Popen([sys.executable, "-c", self.HOG], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.end, hog)
        self.assertEqual(hog.stdout.readline(), "in\n")
        (group / "cgroup.procs").write_text(str(hog.pid))

        def hold(count):
            hog.stdin.write(f"{count}\n")
            hog.stdin.flush()
            self.assertEqual(hog.stdout.readline(), "held\n")

        limits = [rule(name="all", burst=10**6, shed=True)]
        with shedding(*limits, cgroup=str(group), low="40%", high="60%") as daemon:
            wait_until(lambda: daemon.admin_json("shed")["maximum"] == 256 * MIB, "the group is measured")
            self.assertEqual(daemon.served("C", 100), 100)
            hold(180 * MIB)
            wait_until(lambda: priorities(daemon)[0] == 1, "everything is shed")
            wait_until(lambda: daemon.admin_json("shed")["value"] >= 180 * MIB, "all of it is counted")
            self.assertEqual(daemon.served("C", 100), 0)
            hold(0)
            wait_until(lambda: priorities(daemon)[0] == 0, "nothing is shed")
            self.assertEqual(daemon.served("C", 100), 100)

    @staticmethod
    def end(process):
        process.stdin.close()
        process.wait()
        process.stdout.close()


if __name__ == "__main__":
    unittest.main()
