"""An outside client fills the tables of two hosts with tags in debt, and finds that every tag is limited still."""

import time

from common import SystemTest, report
from daemon import rule, wait_until
from fleet import Fleet, wait_all_hear

FLOOD, BATCH, FRESH, QUERIES = 36_200, 1_000, 40, 50


class FullTable(SystemTest):
    def served_of_fresh(self, host, name):
        tags = [f"slow:{name}-{i}" for i in range(FRESH)]
        answers = host.ask(tag for tag in tags for _ in range(QUERIES))
        return [answers[i * QUERIES:(i + 1) * QUERIES].count("OK") for i in range(FRESH)]

    def test_tags_in_debt_on_two_hosts_make_no_fresh_tag_unlimited(self):
        slow, other = (rule(name="slow", match="slow:*", burst=1, rate="1/h", share="debit"),
                       rule(name="other", burst=10, rate="1/h", share="debit"))
        with Fleet(slow, other, period="500ms", table={"memory": "1MiB"}) as (a, b):
            wait_all_hear([a, b])
            drained, refused = [f"drained-{i}" for i in range(100)], [f"slow:refused-{i}" for i in range(20)]
            self.assertEqual(set(a.ask(drained * 10)), {"OK"})
            a.ask(refused * 21)
            begun = time.monotonic()
            for begin in range(0, FLOOD, BATCH):
                flood = [f"slow:flood-{i}" for i in range(begin, min(begin + BATCH, FLOOD))]
                a.ask(flood)
                b.ask(flood)
                time.sleep(max(begun + (begin + BATCH) / 4_000 - time.monotonic(), 0))
            took = time.monotonic() - begun
            wait_until(lambda: a.stats()["merged_entries"] > FLOOD * 0.9, "the last hits have come")
            worst = {}
            for rest, name in ((0, "at once"), (20, "20 s later"), (10, "30 s later")):
                time.sleep(rest)
                served = self.served_of_fresh(a, name.replace(" ", "-"))
                worst[name] = max(served)
                self.assertLessEqual(sum(served) / FRESH, 1.05, (name, served))
            self.assertEqual(set(a.ask(refused)), {"NO"})
            self.assertEqual(set(a.ask(drained)), {"NO"})    # of another rule, none forgotten
            stats, rules = a.stats(), {row["rule"]: row for row in a.admin_json("rules")}
            report(f"{FLOOD} tags in {took:.0f} s on each of two hosts: at most {worst} of {QUERIES} served of fresh tags, "
                   f"{stats['table_evicted']} evicted, {stats['merged_unrecorded']} of a peer not recorded")
            self.assertEqual(rules["other"]["evicted"], 0)
            self.assertGreater(rules["slow"]["evicted"], FLOOD // 4)
            self.assertLess(rules["slow"]["retention_s"], 3600)
            self.assertEqual(stats["table_evicted_refusing"], 0)
            a.wait_log("buckets of the rule slow are forgotten")
