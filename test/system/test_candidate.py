"""Rules that are tried beside those in force, and then put in force."""

import json
import unittest

from clocks import Date
from common import ParallelTest
from daemon import AskDaemon, DTHROTTLECTL, SANITIZED, Daemon, fresh_directory, override, rule, run, wait_until
from fleet import Fleet, wait_all_hear
from test_ask import Asker
from test_set_limits import Operator
from test_upgrade import upgrade


def burst(host, tag):
    return host.admin_json(f"show {tag}").get("burst")


def ctl(host, *words):
    return run(DTHROTTLECTL, "-s", host.admin_path, "candidate", *words)


def written(text):
    path = fresh_directory() / "new.toml"
    path.write_text(text)
    return str(path)


def rules(**values):
    lines = "\n".join(f"{key} = {value}" for key, value in values.items())
    return f'[[rule]]\nname = "all"\n{lines}\n'


def compared(host):
    answer = host.admin_json("candidate")
    return answer["state"] == "comparing" and answer


class OneHost(ParallelTest):
    def begin(self, daemon, text):
        done = ctl(daemon, written(text), "--of", "100%")
        self.assertEqual(done.returncode, 0, done.stderr)
        wait_until(lambda: compared(daemon), "it is compared")

    def test_a_candidate_says_what_it_would_do_and_changes_no_answer(self):
        with Daemon(rule(name="all", burst=10, rate=0.001)) as daemon:
            self.assertEqual(daemon.admin_json("candidate"), {"state": "none"})
            daemon.ask(["before"] * 3)
            self.begin(daemon, rules(burst=4, rate=0.001))
            self.assertEqual(daemon.served("before", 4), 4)
            self.assertEqual(daemon.served("C", 12), 10)
            answer = compared(daemon)
            self.assertEqual({key: answer[key] for key in ("of", "queries", "refused", "candidate_refused", "newly_refused",
                                                           "newly_served", "notes")},
                             {"of": "100%", "queries": 16, "refused": 2, "candidate_refused": 11, "newly_refused": 9,
                              "newly_served": 0, "notes": []})
            self.assertEqual(answer["rules"], [{"rule": "all", "queries": 16, "refused": 2, "candidate_refused": 11,
                                                "newly_refused": 9, "newly_served": 0}])
            self.assertEqual([row["tag"] for row in answer["tags"]], ["C", "before"])
            self.assertEqual(daemon.stats()["candidate_newly_refused"], 9)
            self.assertEqual(ctl(daemon, "stop").returncode, 0)
            self.assertEqual(daemon.admin_json("candidate"), {"state": "none"})
            self.assertEqual(daemon.stats()["candidate_comparing"], 0)

    def test_refunds_are_noted_and_what_comes_back_of_refused_holds_is_not_given_back(self):
        with AskDaemon(rule(name="all", burst=1000, rate=0.001)) as daemon, Asker(daemon.ask_path) as asker:
            self.begin(daemon, rules(burst=30, rate=0.001))
            for _ in range(50):
                ok, hold, *_ = asker.ask("hold 60000 20 C").split()
                self.assertEqual((ok, asker.ask(f"commit {hold} 8")[:2]), ("OK", "OK"))
            answer = compared(daemon)
            self.assertEqual((answer["candidate_refused"], answer["notes"]), (48, []))
            asker.ask("refund 1 C")
            note, = compared(daemon)["notes"]
            self.assertIn("refunded", note)

    def test_what_is_wrong_with_a_candidate_is_said_with_its_place(self):
        with Daemon(rule()) as daemon:
            path = written(rules(burst=0, rate='"fast"'))
            done = ctl(daemon, path)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"{path}:3:9: error: rule.burst = 0: must be a number of tokens from 1", done.stderr)
            self.assertIn(f'{path}:4:8: error: rule.rate = "fast"', done.stderr)
            self.assertIn("No such file", ctl(daemon, "/nowhere/new.toml").stderr)
            self.assertIn("from 0.1% to 100%", ctl(daemon, path, "--of", "0%").stderr)
            self.assertIn("there is no candidate", ctl(daemon, "promote").stderr)
            self.assertIn("candidate start, candidate stop", daemon.admin("candidate begin"))
            self.assertEqual(daemon.admin_json("candidate"), {"state": "none"})

    def test_with_json_promote_says_one_line_of_it_refused_or_not(self):
        alice, mallory = Operator("alice"), Operator("mallory")
        with Daemon(rule(name="all", burst=10, rate=0.001), operator={"keys": [alice.line]}) as daemon:
            def promote(*words, status):
                done = run(DTHROTTLECTL, "-s", daemon.admin_path, "--json", "candidate", "promote", *words)
                self.assertEqual((done.returncode, done.stderr), (status, ""))
                return json.loads(done.stdout)

            self.assertEqual(promote(status=1), {"error": "there is no candidate"})
            self.begin(daemon, rules(burst=3, rate=0.001))
            self.assertIn("sign it", promote(status=1)["error"])
            self.assertIn("no operator has that key", promote("--key", mallory.file, status=1)["error"])
            self.assertIsNone(promote("--key", alice.file, status=0)["note"])
            self.assertEqual(daemon.admin_json("candidate"), {"state": "none"})
            self.assertEqual(burst(daemon, "C"), 3)

    def test_a_candidate_that_is_too_long_for_all_hosts_says_so(self):
        with Daemon(rule(name="all", burst=10)) as daemon:
            many = "".join(f'[[override]]\ntag = "t{n:04}"\nburst = 5\nrate = 1.0\n' for n in range(1100))
            self.begin(daemon, rules(burst=4, rate=0.001) + many)
            note, = daemon.admin_json("candidate")["notes"]
            refused = ctl(daemon, "promote").stderr
            self.assertRegex(refused, "the rules take [0-9]+ bytes")
            too_many = refused.split(": ")[-1].removesuffix(" too many\n")
            self.assertEqual(note, f"These rules are {too_many} bytes too long for promote without --here.")
            self.assertEqual(ctl(daemon, "promote", "--here").returncode, 0)

    def test_a_candidate_is_put_in_force_on_one_host_only(self):
        with Daemon(rule(name="all", burst=10, rate=0.001)) as daemon:
            self.begin(daemon, rules(burst=3, rate=0.001, mode='"shadow"'))
            self.assertEqual(daemon.served("C", 12), 10)
            self.assertEqual(ctl(daemon, "promote", "--here").returncode, 0)
            self.assertEqual(daemon.admin_json("candidate")["state"], "in force here")
            self.assertEqual(daemon.served("C", 12), 12)
            self.assertIn("candidate stop ends it", daemon.admin("reload"))
            self.assertEqual(burst(daemon, "C"), 3)
            self.assertEqual(ctl(daemon, "stop").returncode, 0)
            self.assertEqual(burst(daemon, "C"), 10)

    def test_an_upgrade_goes_on_with_what_is_in_force_here_and_a_start_does_not(self):
        for table in ({}, {"file": ""}):
            with self.subTest(table=table), Daemon(rule(name="all", burst=10, rate=0.001), table=table) as daemon:
                self.begin(daemon, rules(burst=6, rate=0.001) + '[[override]]\ntag = "-x"\nburst = 7\nrate = 0.001\n')
                self.assertEqual(ctl(daemon, "promote", "--here").returncode, 0)
                self.assertEqual((daemon.served("C", 4), daemon.served("-x", 4)), (4, 4))
                upgrade(daemon)
                self.assertEqual(daemon.admin_json("candidate")["state"], "in force here")
                self.assertNotIn("made under other rules", daemon.log)
                self.assertEqual((daemon.served("C", 9), daemon.served("-x", 9)), (2, 3))
                daemon.stop()
                daemon.start()
                self.assertEqual(daemon.admin_json("candidate"), {"state": "none"})
                self.assertEqual((burst(daemon, "C"), burst(daemon, "-x")), (10, 10))

    def test_a_start_after_a_kill_takes_the_rules_of_the_settings_and_keeps_every_bucket(self):
        for end in (Daemon.kill, Daemon.stop):
            with self.subTest(end=end.__name__), Daemon(rule(name="all", burst=10, rate=0.001), override("o")) as daemon:
                self.begin(daemon, rules(burst=6, rate=0.001))
                self.assertEqual(ctl(daemon, "promote", "--here").returncode, 0)
                self.assertEqual((daemon.served("C", 4), daemon.served("o", 9)), (4, 6))
                end(daemon)
                daemon.start()
                self.assertEqual(daemon.admin_json("candidate"), {"state": "none"})
                self.assertEqual((burst(daemon, "C"), burst(daemon, "o")), (10, 10))
                self.assertEqual((daemon.served("C", 12), daemon.served("o", 12)), (6, 4))

    def test_a_candidate_that_does_not_go_with_the_settings_of_this_host_is_not_put_in_force_here(self):
        owned = {"name": "a.test", "spread": "owners", "owners": ["a.test"], "connect": []}
        with Daemon(rule(name="all", burst=10, rate=0.001), peers=owned) as daemon:
            self.begin(daemon, rules(burst=100, rate=50, share='"capacity"'))
            done = ctl(daemon, "promote", "--here")
            self.assertEqual(done.returncode, 1)
            self.assertIn('share = "capacity" with peers.spread = "owners": must be "all"', done.stderr)
            self.assertTrue(compared(daemon))
            self.assertEqual(burst(daemon, "C"), 10)

    def test_what_is_in_force_here_takes_the_place_of_what_was_set_before_it(self):
        def limit(*words):
            self.assertNotIn("error: ", daemon.admin(" ".join(("limit", *words))))

        def state():
            return daemon.admin_json("candidate")["state"]

        def set_rules(of_all):
            limit("rules", "-", f'rule = [{{ name = "all", burst = {of_all}, rate = 0.001 }}]')

        with Daemon(rule(name="all", burst=10, rate=0.001)) as daemon:
            limit("set", "tag", "50", "0.001", "-", "C")
            limit("set", "rule", "40", "0.001", "-", "all")
            self.assertEqual((burst(daemon, "C"), burst(daemon, "D")), (50, 40))
            self.begin(daemon, rules(burst=6, rate=0.001))
            self.assertEqual(ctl(daemon, "promote", "--here").returncode, 0)
            self.assertEqual((burst(daemon, "C"), burst(daemon, "D")), (6, 6))
            self.assertEqual({row["note"] for row in daemon.admin_json("limit list")}, {"rules that were set later hold"})
            self.assertEqual(daemon.stats()["set_limits"], 0)
            limit("set", "tag", "30", "0.001", "-", "D")
            self.assertEqual((burst(daemon, "C"), burst(daemon, "D"), state()), (6, 30, "in force here"))
            set_rules(5)
            self.assertEqual((burst(daemon, "C"), burst(daemon, "D"), state()), (5, 5, "behind rules of all hosts"))
            self.assertNotIn("candidate stop ends it", daemon.admin("reload"))
            self.assertEqual(daemon.stats()["candidate_here"], 0)
            self.begin(daemon, rules(burst=4, rate=0.001))
            self.assertEqual(ctl(daemon, "promote", "--here").returncode, 0)
            self.assertEqual((burst(daemon, "C"), state()), (4, "in force here"))
            self.assertNotIn("has set the rules", daemon.admin("why C"))
            self.assertNotIn("limit rules --clear ends it", daemon.admin("reload"))
            self.assertEqual(ctl(daemon, "stop").returncode, 0)
            self.assertEqual((burst(daemon, "C"), burst(daemon, "D")), (5, 5))
            limit("clear", "rules")
            self.assertEqual((burst(daemon, "C"), burst(daemon, "D")), (50, 30))

    @unittest.skipIf(SANITIZED, "a sanitizer does not let another library come first")
    def test_a_limit_that_is_set_after_promote_here_holds_though_the_clock_went_back(self):
        with Date() as date, Daemon(rule(name="all", burst=10, rate=0.001), wrapper=date.wrapper()) as daemon:
            self.begin(daemon, rules(burst=6, rate=0.001))
            self.assertEqual(ctl(daemon, "promote", "--here").returncode, 0)
            date.jump("-600s")
            self.assertIsNone(daemon.admin_json("limit set tag 2 0.001 - C")["note"])
            self.assertEqual((burst(daemon, "C"), burst(daemon, "D")), (2, 6))
            self.assertNotIn("error", daemon.admin('limit rules - rule = [{ name = "all", burst = 5, rate = 0.001 }]'))
            self.assertEqual((burst(daemon, "C"), burst(daemon, "D")), (5, 5))


class Hosts(ParallelTest):
    def test_a_candidate_is_put_in_force_on_all_hosts(self):
        alice = Operator()
        text = rules(burst=5, rate=2.0) + '[[override]]\ntag = "-x y"\nburst = 7\nrate = 1.0\n'
        with Fleet(rule(name="all", burst=10, rate=1.0), hosts=3, operator={"keys": [alice.line]}) as hosts:
            wait_all_hear(hosts)
            for what in (("C", "3"), ("--rule", "all", "4")):
                self.assertEqual(alice.limit(hosts[1], "set", *what, "1").returncode, 0)
            wait_until(lambda: all((burst(host, "C"), burst(host, "D")) == (3, 4) for host in hosts), "limits are set")
            ctl(hosts[0], written(text))
            wait_until(lambda: compared(hosts[0]), "it is compared")
            refused = ctl(hosts[0], "promote")
            self.assertIn("sign it with one of them", refused.stderr)
            self.assertTrue(compared(hosts[0]))
            done = ctl(hosts[0], "promote", "--key", alice.file)
            self.assertEqual(done.returncode, 0, done.stderr)
            wait_until(lambda: all([burst(host, tag) for tag in ("C", "D", "-x y")] == [5, 5, 7] for host in hosts),
                       "all hosts have it, and what was set before is behind it")
            notes = [row["note"] for row in hosts[2].admin_json("limit list")]
            self.assertEqual(notes, ["rules that were set later hold"] * 2 + [None])
            self.assertEqual(hosts[2].stats()["set_limits"], 1)
            self.assertFalse(any("limit of the" in step for step in hosts[2].admin_json("why C")["steps"]))
            self.assertEqual(alice.limit(hosts[1], "rules", "--clear").returncode, 0)
            wait_until(lambda: all((burst(host, "C"), burst(host, "D")) == (3, 4) for host in hosts), "they hold again")

    def test_rules_that_come_go_and_match_otherwise_are_put_in_force_on_all_hosts_at_once(self):
        alice = Operator()
        text = ('[[rule]]\nname = "login"\nmatch = "login:*"\nburst = 3\nrate = 0.001\nquota = 4\nper = "day"\n'
                '[[rule]]\nname = "rest"\nburst = 20\nrate = 0.001\nmode = "shadow"\n[[override]]\ntag = "-x"\nburst = 7\nrate = 1.0\n')
        before, after = (10, 10, 10), (3, 20, 7)

        def bursts(host):
            return tuple(burst(host, tag) for tag in ("login:a", "C", "-x"))

        with Fleet(rule(name="all", burst=10, rate=0.001), hosts=3, keys=True, operator={"keys": [alice.line]}) as hosts:
            wait_all_hear(hosts)
            a, b, c = hosts
            ctl(a, written(text))
            wait_until(lambda: compared(a), "it is compared")
            self.assertIn("sign it with one of them", ctl(a, "promote").stderr)
            done = ctl(a, "promote", "--key", alice.file)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            wait_until(lambda: all(bursts(host) == after for host in hosts), "all hosts have it")
            self.assertEqual(a.admin_json("candidate"), {"state": "none"})
            for host in hosts:
                row, = host.admin_json("limit list")
                self.assertEqual((row["of"], row["by"], row["hosts"], row["note"]), ("rules", "alice", "all", None))
                self.assertTrue(any("alice has set the rules of all hosts" in step
                                    for step in host.admin_json("why C")["steps"]))
                self.assertEqual(host.served("rest", 30), 30)    # in shadow
            self.assertEqual(b.served("login:a", 9), 3)
            wait_until(lambda: b.admin_json("show login:a").get("quota_used") == 3, "the quota counts")
            self.assertIn("limit rules --clear ends it", b.admin("reload"))
            self.assertEqual(bursts(b), after)
            b.kill()
            b.start()
            self.assertEqual(bursts(b), after)
            self.assertEqual(alice.limit(c, "set", "C", "5", "1").returncode, 0)
            wait_until(lambda: all(bursts(host) == (3, 5, 7) for host in hosts), "a limit holds on top of it")
            self.assertEqual(alice.limit(c, "rules", "--clear").returncode, 0)
            wait_until(lambda: all(bursts(host) == (10, 5, 10) for host in hosts), "the settings hold again")
            self.assertEqual(alice.limit(b, "clear", "C").returncode, 0)
            wait_until(lambda: all(bursts(host) == before for host in hosts), "as at first")

    def test_what_peers_report_is_charged_to_the_candidate_too(self):
        with Fleet(rule(name="all", burst=10, rate=0.001), hosts=2, period="250ms") as (a, b):
            wait_all_hear((a, b))
            ctl(a, written(rules(burst=6, rate=0.001)), "--of", "100%")
            wait_until(lambda: compared(a), "it is compared")
            self.assertEqual(b.served("C", 5), 5)
            wait_until(lambda: a.admin_json("show C")["level"] < 5.5, "a has heard of the hits")
            self.assertEqual(a.served("C", 3), 3)
            self.assertEqual(compared(a)["newly_refused"], 2)
