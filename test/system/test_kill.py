"""kill -9 under full load: whoever restarts the daemon gains nothing by it."""

import collections
import os
import random
import re
import time

from common import SystemTest, report
from daemon import SANITIZED, Daemon, lines_of, pump, rule


class Kill(SystemTest):
    BURST = 30
    TABLE = {"memory": "32MiB"}    # many times what the tags need: none is evicted for want of room

    def test_no_tag_gains_a_token_by_any_number_of_kills(self):
        kills = 15 if SANITIZED else 100
        chance = random.Random(7)
        groups = [[self.tag(chance, i, k) for i in range(400)] for k in range(kills)]
        served = collections.Counter()
        torn = in_the_middle = 0
        with Daemon(rule(burst=self.BURST), table=self.TABLE) as daemon:
            for life in range(kills):
                # Half of the queries are for tags that are new in this life, half for those of all lives before.
                older = [tag for group in groups[:life] for tag in chance.sample(group, 10)] or groups[0]
                in_the_middle += self.ask_until_killed(daemon, chance, groups[life], older, served) > 0
                daemon.start()
                kept, dropped = self.recovered(daemon)
                torn += dropped
                self.assertGreaterEqual(kept, len(served), f"buckets are missing after kill {life + 1}")
                self.assertLessEqual(max(served.values(), default=0), self.BURST)

            everyone = [tag for group in groups for tag in group]
            shown = chance.sample(everyone, 100)
            with daemon.admin_session() as admin:
                for tag in shown:
                    level = admin.ask_json(b"show " + tag)["level"]
                    self.assertLessEqual(level, self.BURST - served[tag] + 0.001, tag)
            in_last_life = self.spend_what_is_left(daemon, everyone, served)
            self.assertEqual({tag: n for tag, n in served.items() if n > self.BURST}, {})
            self.assertEqual(daemon.stats()["table_evicted"], 0)
            spent = sum(served.values())
            report(f"{kills} kills, {in_the_middle} while queries waited: {spent} of {self.BURST * len(everyone)} "
                   f"tokens were served, {in_last_life} of them in the last life; {torn} torn entries dropped")
            # Tokens may be lost with answers that were on their way, but not by the thousand.
            self.assertGreater(spent, 0.9 * self.BURST * len(everyone))
            self.assertLess(in_last_life, spent, "nothing was spent before a kill")
            self.assertGreater(in_the_middle, 0.9 * kills, "the load is too low for a kill to do harm")

    @staticmethod
    def tag(chance, i, group):
        """One of all lengths: in one cell of the table, in several, or by its digest."""
        length = chance.choice([12, 12, 12, 40, 120, 250, 300])
        return b"%d.%d." % (group, i) + b"t" * (length - 8)

    def ask_until_killed(self, daemon, chance, fresh, older, served):
        """Keeps several connections busy, kills the daemon meanwhile, and adds the OKs that it had sent to `served`.

        Returns how many queries were left without an answer.
        """
        queries = []
        streams = [daemon.stream(tcp=i == 0) for i in range(4)]
        for stream in streams:
            both = zip(chance.choices(fresh, k=10_000), chance.choices(older, k=10_000))
            queries.append([tag for pair in both for tag in pair])
            stream.send(lines_of(queries[-1]))
        kill_at = time.monotonic() + chance.uniform(0, 0.04 if SANITIZED else 0.008)
        pump(streams, lambda: time.monotonic() > kill_at)
        daemon.kill()
        # What it had sent is still to be read. An answer counts from its first byte.
        pump(streams, lambda: all(stream.ended for stream in streams))
        for stream, tags in zip(streams, queries):
            served.update(tag for tag, byte in zip(tags, stream.received[::3]) if byte == ord("O"))
            stream.close()
        return sum(len(tags) - stream.answers() for stream, tags in zip(streams, queries))

    def spend_what_is_left(self, daemon, tags, served):
        """Asks for every tag until it is throttled; how many were served."""
        before = sum(served.values())
        for _ in range(self.BURST + 1):
            tags = [tag for tag, verdict in zip(tags, daemon.ask(tags)) if verdict == "OK"]
            served.update(tags)
            if not tags:
                return sum(served.values()) - before
        raise AssertionError(f"{len(tags)} tags are served without end")

    def recovered(self, daemon):
        found = re.search(r"(\d+) tags kept, (\d+) torn entries dropped", daemon.log)
        self.assertIsNotNone(found, "the table was not kept")
        return int(found[1]), int(found[2])


class Table(SystemTest):
    """What becomes of the file when something about it has changed."""

    def test_a_clean_restart_keeps_buckets_as_well(self):
        with Daemon(rule(burst=5)) as daemon:
            self.assertEqual(daemon.served("C", 3), 3)
            daemon.restart()
            daemon.wait_log(" 1 tags kept, 0 torn")
            self.assertEqual(daemon.served("C", 9), 2)

    def test_a_kill_right_after_a_reload_keeps_buckets(self):
        for _ in range(3 if SANITIZED else 10):
            with Daemon(rule(burst=10), table={"memory": "64MiB"}) as daemon:
                tags = [f"t{i}" for i in range(5000)]
                daemon.ask(tags * 4)
                daemon.write_settings(rule(burst=8))
                daemon.admin("reload")
                daemon.kill()    # while buckets are being rewritten
                daemon.start()
                daemon.wait_log(" 5000 tags kept, 0 torn")
                served = collections.Counter(tag for tag, verdict in zip(tags * 9, daemon.ask(tags * 9))
                                             if verdict == "OK")
                self.assertLessEqual(max(served.values()), 8 - 4, "a kill gave tokens back")
                self.assertGreater(min(served.values()), 0)

    def test_a_table_that_cannot_be_used_is_started_afresh_and_the_log_says_why(self):
        def no_size(daemon):
            os.truncate(daemon.directory / "table", 0)

        def other_rules(daemon):
            daemon.write_settings(rule(burst=6))

        def other_version(daemon):
            with open(daemon.directory / "table", "r+b") as table:
                table.seek(8)
                table.write(b"\x63")

        for change, reason in ((no_size, "empty"), (other_rules, "other rules"), (other_version, "another version")):
            with self.subTest(reason), Daemon(rule(burst=5)) as daemon:
                daemon.ask(["C"] * 5)
                daemon.stop()
                change(daemon)
                daemon.start()
                self.assertRegex(daemon.log, f"new because .*{reason}")
                self.assertEqual(daemon.ask(["C"]), ["OK"])

    def test_a_table_full_of_noise_neither_stops_the_daemon_nor_its_decisions(self):
        noise = random.Random(3)
        with Daemon(rule(burst=5)) as daemon:
            daemon.ask([f"t{i}" for i in range(1000)])
            daemon.stop()
            path = daemon.directory / "table"
            content = path.read_bytes()
            # All but the header, which says that the rest is to be believed.
            path.write_bytes(content[:4096] + noise.randbytes(len(content) - 4096))
            daemon.start()
            self.assertRegex(daemon.log, r" 0 tags kept, [1-9]\d* torn")
            self.assertEqual(daemon.served("t1", 9), 5)

    def test_without_a_file_buckets_end_with_the_process(self):
        with Daemon(rule(burst=5), table={"file": ""}) as daemon:
            self.assertEqual(daemon.served("C", 9), 5)
            daemon.restart()
            daemon.wait_log("lost when this process ends")
            self.assertEqual(daemon.served("C", 9), 5)
