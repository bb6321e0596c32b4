"""Which limit applies to a tag, and what the modes do."""

from common import SystemTest
from daemon import Daemon, override, rule, wait_until


class Rules(SystemTest):
    def test_the_first_rule_that_matches_wins(self):
        with Daemon(rule(name="admin", match="login:admin-*", burst=1), rule(name="login", match="login:*", burst=2),
                    rule(name="everyone", burst=3), rule(name="too-late", match="login:*", burst=9)) as daemon:
            self.assertEqual(daemon.served("login:admin-7", 9), 1)
            self.assertEqual(daemon.served("login:x", 9), 2)
            self.assertEqual(daemon.served("search:x", 9), 3)
            self.assertEqual(daemon.admin_json("show login:admin-7")["rule"], "admin")

    def test_the_rule_without_match_is_the_default_wherever_it_stands(self):
        with Daemon(rule(name="everyone", burst=3), rule(name="login", match="login:*", burst=2)) as daemon:
            self.assertEqual(daemon.served("login:x", 9), 2)
            self.assertEqual(daemon.served("search:x", 9), 3)

    def test_without_a_default_rule_other_tags_are_always_served(self):
        with Daemon(rule(match="login:*", burst=2)) as daemon:
            self.assertEqual(daemon.served("login:x", 9), 2)
            self.assertEqual(daemon.served("search:x", 100), 100)
            self.assertEqual(daemon.stats()["unmatched"], 100)

    def test_a_glob_has_stars_question_marks_and_sets(self):
        with Daemon(rule(name="glob", match="a?[0-9][!x]*\\*", burst=1), rule(name="rest", burst=2)) as daemon:
            for tag in ("ab1yz*", "a?0-*", "ab1y*"):
                self.assertEqual(daemon.admin_json("show " + tag)["rule"], "glob", tag)
            for tag in ("ab1xz*", "a1y*", "ab1yz", "ab1yz*z", "xab1yz*"):
                self.assertEqual(daemon.admin_json("show " + tag)["rule"], "rest", tag)

    def test_an_override_takes_the_place_of_the_rule_for_one_tag(self):
        with Daemon(rule(name="login", match="login:*", burst=2), override("login:partner-7", burst=20),
                    override("ümlaut", burst=1)) as daemon:
            self.assertEqual(daemon.served("login:partner-7", 30), 20)
            self.assertEqual(daemon.served("login:partner-77", 30), 2)
            self.assertEqual(daemon.served("ümlaut", 30), 1)
            shown = daemon.admin_json("show login:partner-7")
            self.assertEqual((shown["rule"], shown["override"], shown["burst"]), ("login", True, 20))

    def test_an_override_counts_for_the_rule_that_it_is_an_exception_to(self):
        with Daemon(rule(name="login", match="login:*", burst=2), override("login:partner", burst=5)) as daemon:
            daemon.ask(["login:partner"] * 7 + ["login:x"] * 3)
            (row,) = daemon.admin_json("rules")
            self.assertEqual((row["served"], row["throttled"]), (5 + 2, 2 + 1))


    def test_limits_that_tags_name_have_room_again_when_their_buckets_are_full(self):
        with Daemon(rule(name="own", burst=1000, rate=100.0, max_own_limit=100_000)) as daemon:
            def crowd():
                daemon.ask([f"e|{i}/s" for i in range(1, 3501)])
                return daemon.stats()["own_limits_crowded"] > 0

            wait_until(crowd, "some limit found no room")
            wait_until(lambda: daemon.stats()["own_limits"] < 2000, "full buckets need no limit")
            self.assertEqual(daemon.served("y|9/m", 100), 9)
            daemon.wait_log("limits that differ are in use, and their rules decided")


class Modes(SystemTest):
    def test_shadow_answers_ok_and_counts_what_it_would_have_throttled(self):
        with Daemon(rule(name="tried", mode="shadow", burst=4)) as daemon:
            self.assertEqual(daemon.served("C", 10), 10)
            (row,) = daemon.admin_json("rules")
            self.assertEqual((row["served"], row["throttled"], row["shadowed"]), (4, 0, 6))
            stats = daemon.stats()
            self.assertEqual((stats["queries"], stats["shadowed"]), (10, 6))

    def test_off_answers_ok_and_keeps_nothing(self):
        with Daemon(rule(mode="off", burst=1)) as daemon:
            self.assertEqual(daemon.served("C", 10), 10)
            self.assertEqual(daemon.stats()["table_tags"], 0)

    def test_an_override_may_exempt_a_tag_or_throttle_it_in_earnest(self):
        with Daemon(rule(mode="shadow", burst=1), override("exempt", burst=1, mode="off"),
                    override("strict", burst=1, mode="enforce")) as daemon:
            self.assertEqual([daemon.served(tag, 5) for tag in ("exempt", "strict", "other")], [5, 1, 5])
            self.assertEqual(daemon.admin_json("show exempt")["recorded"], False)

    def test_enforcing_a_rule_that_was_in_shadow_finds_its_buckets_spent(self):
        with Daemon(rule(name="tried", mode="shadow", burst=4)) as daemon:
            daemon.ask(["C"] * 10)
            daemon.write_settings(rule(name="tried", burst=4))
            daemon.admin("reload")
            self.assertEqual(daemon.ask(["C"]), ["NO"])
