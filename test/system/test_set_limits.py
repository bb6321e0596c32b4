"""Limits that operators set while daemons run: signed, known on all hosts, kept, and ended by themselves."""

import base64
import contextlib
import ctypes
import http.client
import os
import re
import subprocess
import time
import unittest

from clocks import Date
from common import ParallelTest, SystemTest, report
from daemon import DTHROTTLECTL, DTHROTTLED, FIGURES, SANITIZED, Daemon, fresh_directory, override, rule, run, wait_until
from fleet import Fleet, wait_all_hear
from test_upgrade import upgrade

EX_USAGE, EX_DATAERR, EX_CONFIG = 64, 65, 78
TOKEN = "a token of 24 characters"
A_MINUTE = r"^in (1m|5\ds)$"    # by what is shown some seconds later at most
MANY = 64 if FIGURES else 8


def signed_by(line):
    """The key that has signed a limit, checked as protocol/limit.md shows."""
    sodium = ctypes.CDLL("libsodium.so.23")
    key, signature, text = line.split(" ", 2)
    genuine = sodium.crypto_sign_verify_detached(
        base64.b64decode(signature), text.encode(), ctypes.c_ulonglong(len(text)), base64.b64decode(key)) == 0
    return key if genuine else None


class Operator:
    """An operator's key, made by dthrottlectl in a directory of its own."""

    def __init__(self, name="alice"):
        self.directory = fresh_directory()
        made = run(DTHROTTLECTL, "limit", "keygen", name, "-d", self.directory)
        self.file = f"{self.directory}/{name}.operator"
        self.line = made.stdout.splitlines()[1].split('"')[1]

    def limit(self, host, *words, wrapper=()):
        return run(*wrapper, DTHROTTLECTL, "-s", host.admin_path, "limit", words[0], *words[1:], "--key", self.file)


def burst(host, tag):
    return host.admin_json(f"show {tag}").get("burst")


class OneHost(ParallelTest):
    def test_without_keys_the_owner_of_the_admin_socket_sets_limits_for_this_host(self):
        with Daemon(rule(name="login", match="login:*", burst=10), rule(burst=7)) as daemon:
            daemon.ask(["login:bob"] * 4)
            ctl = [DTHROTTLECTL, "-s", daemon.admin_path, "limit"]
            self.assertEqual(run(*ctl, "set", "login:bob", "6", "0.001").returncode, 0)
            self.assertEqual(daemon.served("login:bob", 9), 6 - 4)
            self.assertEqual(run(*ctl, "set", "--rule", "login", "3", "1/d", "--for", "1h").returncode, 0)
            self.assertEqual(daemon.served("login:eve", 9), 3)
            self.assertEqual(daemon.served("other", 9), 7)
            rows = daemon.admin_json("limit list")
            self.assertEqual([(row["of"], row["name"], row["burst"], row["hosts"]) for row in rows],
                             [("tag", "login:bob", 6, "this one"), ("rule", "login", 3, "this one")])
            why = daemon.admin_json("why login:eve")["steps"]
            self.assertTrue(any("has set the limit of the rule" in step for step in why), why)
            daemon.kill()
            daemon.start()
            self.assertEqual((burst(daemon, "login:bob"), burst(daemon, "login:eve")), (6, 3))
            self.assertEqual(daemon.served("login:bob", 9), 0)
            daemon.hang_up()
            self.assertEqual(burst(daemon, "login:bob"), 6)
            self.assertEqual(run(*ctl, "clear", "login:bob").returncode, 0)
            self.assertEqual((burst(daemon, "login:bob"), burst(daemon, "login:eve")), (3, 3))
            self.assertEqual(daemon.stats()["set_limits"], 1)

    def test_an_upgrade_keeps_limits_that_no_file_has_and_the_buckets_under_them(self):
        for sections in ({"table": {"file": ""}}, {}):
            with self.subTest(sections=sections), Daemon(rule(name="all", burst=10, rate=0.001), **sections) as daemon:
                ctl = [DTHROTTLECTL, "-s", daemon.admin_path, "limit", "set"]
                self.assertEqual(run(*ctl, "C", "6", "0.001").returncode, 0)
                self.assertEqual(run(*ctl, "--rule", "all", "7", "0.001", "--for", "1h").returncode, 0)
                self.assertEqual((daemon.served("C", 4), daemon.served("D", 4)), (4, 4))
                upgrade(daemon)
                self.assertEqual([row["burst"] for row in daemon.admin_json("limit list")], [6, 7])
                self.assertEqual((daemon.served("C", 9), daemon.served("D", 9)), (2, 3))
                daemon.stop()
                daemon.start()
                self.assertEqual(len(daemon.admin_json("limit list")), 0 if sections else 2)

    def test_a_stop_leaves_limits_that_their_file_could_not_keep_to_the_next_start(self):
        directory = fresh_directory() / "kept"
        directory.mkdir()
        away = directory.with_name("away")
        with Daemon(rule(burst=10), operator={"limits_file": f"{directory}/limits"}) as daemon:
            for tag in ("cleared", "kept"):
                self.assertIsNone(daemon.admin_json(f"limit set tag 5 1 - {tag}")["note"])
            directory.rename(away)
            for command in ("clear tag cleared", "set tag 6 1 - new"):
                self.assertIn("not kept over a restart: ", daemon.admin_json(f"limit {command}")["note"])
            daemon.stop()
            away.rename(directory)
            older = (directory / "limits").read_text()
            state = (daemon.directory / "table.state").read_bytes()
            daemon.start()
            def bursts():
                return [burst(daemon, tag) for tag in ("cleared", "kept", "new")]
            self.assertEqual(bursts(), [10, 5, 6])
            wait_until(lambda: (directory / "limits").read_text() != older, "the file is written anew")
            self.assertIsNone(daemon.admin_json("limit set tag 7 1 - new")["note"])
            daemon.kill()
            (daemon.directory / "table.state").write_bytes(state)    # as where another table was beside the file since
            daemon.start()
            self.assertEqual(bursts(), [10, 5, 7])

    def test_what_is_wrong_with_a_limit_is_said(self):
        with Daemon(rule()) as daemon:
            ctl = [DTHROTTLECTL, "-s", daemon.admin_path, "limit"]
            for words, complaint in [
                (["set", "x", "0", "1"], "burst must be a number of tokens from 1"),
                (["set", "x", "1", "fast"], "rate must be tokens a second"),
                (["set", "x", "1", "1", "--for", "soon"], "the time must be a duration"),
                (["set", "x" * 256, "1", "1"], "at most 255 bytes"),
            ]:
                with self.subTest(words):
                    done = run(*ctl, *words)
                    self.assertEqual(done.returncode, EX_USAGE)
                    self.assertIn(complaint, done.stderr)
            self.assertIn("a tag or of a rule", daemon.admin("limit set host 1 1 - x"))
            self.assertIn("limit list, limit set", daemon.admin("limit forget x"))
            self.assertEqual(run(*ctl, "set", "--rule", "gone", "1", "1").returncode, 0)
            self.assertEqual(daemon.admin_json("limit list")[0]["note"], "no rule here has that name")

    def test_rules_are_set_for_a_while_and_what_is_wrong_with_them_is_said(self):
        with Daemon(rule(burst=10)) as daemon:
            def set_rules(text, *words):
                return subprocess.run([DTHROTTLECTL, "-s", daemon.admin_path, "limit", "rules", *words], input=text, text=True,
                                      capture_output=True, timeout=60, check=False)

            new = "[[rule]]\nburst = 3\nrate = 1.0\n"
            for text, complaint in [
                ("[[rule]]\nburst = 0\nrate = 1.0\n", "rules:2:9: error: rule.burst = 0: must be a number of tokens"),
                ("[query]\nunix = ''\n", "unknown key query; must be [[rule]] or [[override]]"),
                ('[[rule]]\nmatch_cidrs = "/nowhere"\nburst = 1\nrate = 1.0\n', "No such file"),
                (new + "#" * 60000, "must be at most 59800"),
                (new + "#\n" * 12000, "the rules take 60039 bytes"),
                ("", "a text that is not empty"),
                ("# nothing", "no [[rule]] and no [[override]]"),
            ]:
                with self.subTest(text[:40]):
                    done = set_rules(text, "-")
                    self.assertNotEqual(done.returncode, 0)
                    self.assertIn(complaint, done.stderr)
            self.assertEqual(set_rules("", "--clear", "x").returncode, EX_USAGE)
            self.assertIn("limit clear rules", daemon.admin("limit clear rules # nothing"))
            self.assertEqual(daemon.admin_json("limit list"), [])
            self.assertEqual(set_rules(new, "-", "--for", "5s").returncode, 0)
            self.assertEqual(burst(daemon, "C"), 3)
            wait_until(lambda: burst(daemon, "C") == 10, "they have ended")

    def test_a_limit_ends_by_itself(self):
        with Daemon(rule(burst=10)) as daemon:
            daemon.admin("limit set tag 3 0.001 1s C")
            self.assertEqual(burst(daemon, "C"), 3)
            wait_until(lambda: burst(daemon, "C") == 10, "what the settings say holds again")

    def test_a_limit_that_ends_while_nobody_runs_costs_no_bucket(self):
        rules = "limit rules 2s [[rule]]\\x0aname = \"all\"\\x0aburst = 20\\x0arate = 0.000001"
        for command in (b"limit set tag 40 50 2s \\xff", "limit set rule 20 0.000001 2s all", rules):
            for end in (Daemon.kill, Daemon.stop):
                with self.subTest(command=command, end=end.__name__), \
                        Daemon(rule(name="all", burst=10), override("x")) as daemon:
                    self.assertNotIn("error", daemon.admin(command))
                    tags = [f"t{n}" for n in range(200)]
                    self.assertEqual(daemon.ask(tags * 7).count("OK"), 1400)
                    end(daemon)
                    time.sleep(2.1)
                    daemon.start()
                    self.assertIn(" tags kept, 0 torn entries dropped, rewritten because other limits", daemon.log)
                    self.assertEqual(burst(daemon, "t0"), 10)
                    self.assertEqual(daemon.ask(tags * 7).count("OK"), 600)
                    daemon.restart()
                    self.assertNotIn("rewritten", daemon.log)
                    self.assertEqual(daemon.ask(tags).count("OK"), 0)

    def test_a_kill_keeps_every_bucket_where_the_file_of_limits_could_not_be_written(self):
        directory = fresh_directory() / "kept"
        directory.mkdir()
        with Daemon(rule(burst=10), operator={"limits_file": f"{directory}/limits"}) as daemon:
            directory.rename(directory.with_name("away"))
            self.assertIn("not kept over a restart: ", daemon.admin_json("limit set tag 5 1 - C")["note"])
            self.assertIn("not kept over a restart: ", daemon.admin_json("limit set tag 6 1 - D")["note"])
            self.assertEqual(daemon.served("other", 12), 10)
            daemon.kill()
            daemon.start()
            self.assertEqual(burst(daemon, "C"), 10)
            self.assertEqual(daemon.served("other", 12), 0)

    def test_a_limit_that_is_set_while_a_bad_file_is_read_is_in_force(self):
        with Daemon(rule(burst=10)) as daemon:
            overrides = "".join(f'[[override]]\ntag = "t{n}"\nburst = 5\nrate = 1\n' for n in range(20000))
            daemon.settings_path.write_text(overrides + "[[rule]]\nburst = 0\nrate = 1\n")
            with contextlib.ExitStack() as stack:
                admins = [stack.enter_context(daemon.connect_admin()) for _ in range(3)]
                for admin in admins[:2]:    # the second waits for the first, and the limit with it
                    admin.sendall(b"reload\n")
                admins[2].sendall(b"limit set tag 3 0.001 - C\n")
                self.assertIn(b"burst = 0", b"".join(admin.recv(4096) for admin in admins))
            wait_until(lambda: burst(daemon, "C") == 3, "the limit that was set holds")

    def test_limits_from_before_the_clock_went_back_hold_and_what_is_set_then_counts(self):
        ahead = int((time.time() + 600) * 1e6)
        daemon = Daemon(rule(name="all", burst=10))
        kept = [f"- - dthrottle-limit 1 {ahead} 0 {what}" for what in ("tag 5 1 C", "tag 5 1 D", "rule 4 1 all")]
        (daemon.directory / "table.limits").write_text(f"dthrottle-limits 1 {ahead}\n" + "\n".join(kept) + "\n")
        with daemon:
            def bursts():
                return tuple(burst(daemon, tag) for tag in "CDE")
            self.assertEqual(bursts(), (5, 5, 4))
            for command in ("limit set tag 6 1 - C", "limit clear tag D"):
                self.assertNotIn("error", daemon.admin(command))
            self.assertEqual(bursts(), (6, 4, 4))
            self.assertNotIn("error", daemon.admin("limit rules - [[rule]]\\x0aburst = 3\\x0arate = 1.0"))
            self.assertEqual(bursts(), (3, 3, 3))    # whatever was set before is behind them
            self.assertNotIn("error", daemon.admin("limit set tag 7 1 - E"))
            daemon.kill()
            daemon.start()
            self.assertEqual(bursts(), (3, 3, 7))

    @unittest.skipIf(SANITIZED, "a sanitizer does not let another library come first")
    def test_a_limit_that_is_set_after_the_clock_went_back_lasts_as_long_as_was_asked(self):
        with Date() as date, Daemon(rule(name="all", burst=10), wrapper=date.wrapper()) as daemon:
            for command in ("set tag 5 1 - C", "set rule 5 1 - all"):
                self.assertNotIn("error", daemon.admin(f"limit {command}"))
            date.jump("-600s")
            for command in ("set tag 3 1 1m C", "set rule 3 1 1m all", "rules 1m rule = [{ burst = 2, rate = 1.0 }]"):
                self.assertRegex(daemon.admin_json(f"limit {command}")["ends"], A_MINUTE)

    @unittest.skipIf(SANITIZED, "a sanitizer does not let another library come first")
    def test_a_limit_that_ended_while_the_clock_was_ahead_holds_again(self):
        with Date() as date, Daemon(rule(burst=10), wrapper=date.wrapper()) as daemon:
            self.assertNotIn("error", daemon.admin("limit set tag 3 1 1h C"))
            for by, holds in (("+2h", 10), ("+0", 3), ("+2h", 10)):
                date.jump(by)
                wait_until(lambda: burst(daemon, "C") == holds, f"the date is taken as {by}")
                self.assertEqual(len(daemon.admin_json("limit list")), holds == 3)

    def test_a_limit_that_cannot_be_kept_says_so(self):
        directory = fresh_directory() / "kept"
        directory.mkdir()
        away = directory.with_name("away")
        with Daemon(rule(burst=10), operator={"limits_file": f"{directory}/limits"}) as daemon:
            for times in (1, 2):
                directory.rename(away)
                for _ in range(2):
                    self.assertIn("not kept over a restart: ", daemon.admin_json("limit set tag 5 1 - C")["note"])
                self.assertEqual(daemon.log.count("limits that are set are not kept: "), times)
                self.assertIn("not kept over a restart: ", daemon.admin_json("limit clear tag C")["note"])
                away.rename(directory)
                self.assertIsNone(daemon.admin_json("limit set tag 5 1 - C")["note"])
            self.assertEqual(burst(daemon, "C"), 5)
            self.assertGreaterEqual(daemon.stats()["set_limits_unsaved"], 6)

    def test_a_file_that_cannot_be_made_is_warned_of_and_the_list_says_which_limits_are_not_kept(self):
        directory = fresh_directory() / "kept"
        with Daemon(rule(burst=10), operator={"limits_file": f"{directory}/limits"}) as daemon:
            warning = f"operator.limits_file: {directory}/limits: cannot make it: No such file or directory"
            checked = run(DTHROTTLED, "--check", daemon.settings_path)
            self.assertEqual((checked.returncode, warning in checked.stdout, warning in daemon.log), (0, True, True),
                             checked.stdout + daemon.log)
            notes = lambda: {row["name"]: row["note"] for row in daemon.admin_json("limit list")}
            daemon.admin("limit set tag 5 1 - lost")
            self.assertIn("not kept over a restart: ", notes()["lost"])
            directory.mkdir()
            daemon.admin("limit set tag 5 1 - kept")
            self.assertEqual(notes(), {"lost": None, "kept": None})
            directory.rename(directory.with_name("away"))
            daemon.admin("limit set tag 6 1 - lost")
            self.assertIsNone(notes()["kept"])
            self.assertIn("not kept over a restart: ", notes()["lost"])

    def test_the_next_program_knows_which_limits_the_file_has_that_cannot_be_written(self):
        directory = fresh_directory()
        with Daemon(rule(burst=10), operator={"limits_file": f"{directory}/limits"}) as daemon:
            notes = lambda: {row["name"]: row["note"] for row in daemon.admin_json("limit list")}
            self.assertIsNone(daemon.admin_json("limit set tag 5 1 - kept")["note"])
            (directory / ".limits.dthrottle-new").mkdir()    # in the way of a new text
            self.assertIn("not kept over a restart: ", daemon.admin_json("limit set tag 5 1 - lost")["note"])
            for goes_on in (upgrade, Daemon.restart):
                goes_on(daemon)
                wait_until(lambda: notes()["lost"] is not None, "the file was to be written")
                self.assertIsNone(notes()["kept"])

    def test_a_limit_of_a_tag_that_no_query_can_have_says_so(self):
        with Daemon(rule(), query={"max_tag_bytes": 32}) as daemon:
            notes = [daemon.admin_json(f"limit set tag 5 1 - {'a' * size}")["note"] for size in (32, 33)]
            self.assertEqual(notes, [None, "longer than query.max_tag_bytes: it never applies here"])
            self.assertIsNone(daemon.admin_json(f"limit clear tag {'a' * 33}")["note"])

    def test_a_limit_where_the_mode_refuses_nothing_says_so(self):
        off, shadow = "its mode is off: nothing is limited", "its mode is shadow: it refuses nothing"
        with Daemon(rule(name="vip", match="vip*", mode="off"), rule(name="tried", match="t*", mode="shadow"),
                    rule(name="all"), override("gold", mode="off"), override("silver", mode="shadow")) as daemon:
            for name, note in (("rule vip", off), ("rule tried", shadow), ("rule all", None), ("tag vip1", off),
                               ("tag t1", shadow), ("tag gold", off), ("tag silver", shadow), ("tag C", None)):
                what, of = name.split()
                with self.subTest(name):
                    self.assertEqual(daemon.admin_json(f"limit set {what} 1 0.001 - {of}")["note"], note)
                    self.assertIsNone(daemon.admin_json(f"limit clear {what} {of}")["note"])

    def test_a_second_daemon_on_the_same_file_gives_up_and_an_upgrade_does_not(self):
        limits = {"limits_file": f"{fresh_directory()}/limits"}
        with Daemon(rule(burst=10), operator=limits) as daemon:
            second = Daemon(rule(burst=10), operator=limits)
            with self.assertRaises(AssertionError):
                second.start()
            self.assertIn("limits: another daemon holds it", second.log)
            self.assertNotIn("error", daemon.admin("limit set tag 5 1 - C"))
            upgrade(daemon)
            with self.assertRaises(AssertionError):
                second.start()
            daemon.restart()
            self.assertEqual(burst(daemon, "C"), 5)

    def test_a_file_that_is_somebody_else_s_stops_the_start_and_stays(self):
        directory = fresh_directory()
        foreign = directory / "notes"
        foreign.write_text("do not lose me\n")
        daemon = Daemon(rule(), operator={"limits_file": str(foreign)})
        with self.assertRaises(AssertionError):
            daemon.start()
        self.assertEqual(foreign.read_text(), "do not lose me\n")
        self.assertIn("operator.limits_file", daemon.log)
        checked = run(DTHROTTLED, "--check", daemon.settings_path)
        self.assertEqual(checked.returncode, EX_CONFIG, checked.stdout)
        self.assertIn(f'error: operator.limits_file = "{foreign}": {foreign}: was not written by dthrottle', checked.stdout)


class Rules(ParallelTest):
    def with_rules(self, toml, **sections):
        """A daemon that begins with rules that an operator has set."""
        stamp = int(time.time() * 1e6)
        daemon = Daemon(rule(burst=10), **sections)
        text = toml.replace("\n", "\\x0a")
        (daemon.directory / "table.limits").write_text(
            f"dthrottle-limits 1 {stamp}\n- - dthrottle-limit 1 {stamp} 0 rules - - {text}\n")
        return daemon

    def test_a_reload_judges_rules_of_all_hosts_by_the_settings_that_it_brings(self):
        with self.with_rules('[[rule]]\nburst = 3\nrate = 1.0\nshare = "capacity"\n') as daemon:
            good = daemon.settings_path.read_text()
            for _ in range(2):
                daemon.settings_path.write_text(good + '[capacity]\nindicator = "reported"\n')    # without a gain
                answer = daemon.admin("reload")
                self.assertIn("cannot be used here: rules: error: capacity.gain", answer)
                self.assertNotIn("has set rules that hold", answer)
                self.assertEqual((burst(daemon, "C"), daemon.stats()["set_rules_unusable"]), (10, 1))
                daemon.settings_path.write_text(good)
                answer = daemon.admin("reload")
                self.assertIn("has set rules that hold", answer)
                self.assertNotIn("cannot be used here", answer)
                self.assertEqual((burst(daemon, "C"), daemon.stats()["set_rules_unusable"]), (3, 0))

    def test_a_reload_that_fails_leaves_unusable_rules_unusable(self):
        with self.with_rules('[[rule]]\nmatch_cidrs = "/nowhere"\nburst = 3\nrate = 1.0\n') as daemon:
            settings = daemon.settings_path.read_text()
            daemon.settings_path.write_text(settings + "[[rule]]\nburst = 0\nrate = 1\n")
            self.assertIn("reloaded  false", daemon.admin("reload"))
            self.assertEqual(daemon.stats()["set_rules_unusable"], 1)
            self.assertIn("No such file", daemon.admin_json("limit list")[0]["note"])
            self.assertFalse(any("has set the rules" in step for step in daemon.admin_json("why C")["steps"]))
            daemon.settings_path.write_text(settings)
            answer = daemon.admin("reload")
            self.assertIn("cannot be used here", answer)
            self.assertNotIn("has set rules that hold", answer)


class Signed(ParallelTest):
    def test_with_keys_only_a_signed_limit_is_taken_and_all_hosts_know_it(self):
        alice, eve = Operator(), Operator("eve")
        with Fleet(rule(name="all", burst=10), hosts=3, keys=True, operator={"keys": [alice.line]},
                   admin={"audit": True}) as hosts:
            wait_all_hear(hosts)
            a, b, c = hosts
            refused = run(DTHROTTLECTL, "-s", a.admin_path, "limit", "set", "C", "5", "0.001")
            self.assertIn("sign it with one of them", refused.stderr)
            self.assertIn("sign it with one of them", a.admin(f"limit put - - dthrottle-limit 1 1{'0' * 15} 0 tag 5 1 C"))
            self.assertIn("no operator has that key", eve.limit(a, "set", "C", "5", "0.001").stderr)
            self.assertEqual(alice.limit(a, "set", "C", "5", "0.001", "--for", "1h").returncode, 0)
            wait_until(lambda: all(burst(host, "C") == 5 for host in hosts), "all hosts know the limit")
            said = re.findall(r"audit: user \d+, process \d+: (.*)", a.log)
            self.assertIn("limit put of alice: tag C, burst 5, rate 0.001/s, for 1h", said)
            self.assertRegex("\n".join(said), r"put of \S{44}: tag C, burst 5, rate 0.001/s: refused: no operator has")
            for host in hosts:
                self.assertEqual(host.admin_json("limit list")[0]["by"], "alice")
                if host is not a:
                    host.wait_log("audit: limit: alice has set dthrottle-limit 1 ")
            kept = b.directory / "table.limits"
            wait_until(kept.exists, "a limit in force is kept too")
            line = kept.read_text().splitlines()[1]
            self.assertEqual(signed_by(line), alice.line.split()[1])
            self.assertIsNone(signed_by(line.replace(" 5 ", " 6 ")))
            self.assertIn("the signature is not", a.admin("limit put " + line.replace(" 5 ", " 6 ")))
            self.assertEqual(alice.limit(b, "set", "C", "6", "0.001").returncode, 0)
            wait_until(lambda: all(burst(host, "C") == 6 for host in hosts), "the newest counts")
            self.assertIn("a newer limit is known", c.admin("limit put " + line))
            self.assertEqual(alice.limit(c, "clear", "C").returncode, 0)
            wait_until(lambda: all(burst(host, "C") == 10 for host in hosts), "it is cleared everywhere")

    @unittest.skipIf(SANITIZED, "a sanitizer does not let another library come first")
    def test_what_was_signed_where_the_clock_is_ahead_is_replaced_from_a_host_where_it_is_right(self):
        alice = Operator()
        with Date() as date, Daemon(rule(burst=10), operator={"keys": [alice.line]}) as daemon:
            date.jump("+240s")
            there = date.wrapper()
            self.assertEqual(alice.limit(daemon, "set", "C", "5", "1", wrapper=there).returncode, 0)
            self.assertEqual((alice.limit(daemon, "clear", "C").returncode, burst(daemon, "C")), (0, 10))
            rules = "[[rule]]\\x0aburst = 3\\x0arate = 1.0"
            self.assertEqual(alice.limit(daemon, "rules", rules, wrapper=there).returncode, 0)
            self.assertEqual((alice.limit(daemon, "set", "D", "7", "1").returncode, burst(daemon, "D")), (0, 7))
            self.assertEqual((alice.limit(daemon, "rules", "--clear").returncode, burst(daemon, "C")), (0, 10))
            date.jump("-301s")    # what it would sign is ahead of its own clock
            self.assertIn("5 minutes ahead", alice.limit(daemon, "clear", "D", wrapper=there).stderr)

    def test_a_host_that_was_away_has_the_whole_set_when_it_is_back(self):
        alice = Operator()
        with Fleet(rule(burst=10), hosts=3, operator={"keys": [alice.line]}) as hosts:
            wait_all_hear(hosts)
            a, b, c = hosts
            alice.limit(a, "set", "C", "5", "1")
            wait_until(lambda: burst(c, "C") == 5, "the limit is known")
            c.crash(keep_table=False)
            alice.limit(a, "clear", "C")
            alice.limit(b, "set", "D", "6", "1")
            c.start()    # its file still says that C has a limit
            wait_until(lambda: (burst(c, "C"), burst(c, "D")) == (10, 6), "it has what was set and cleared meanwhile")
            b.kill()
            b.start()
            self.assertEqual(burst(b, "D"), 6)

    def test_limits_of_an_operator_whose_key_goes_hold_again_when_it_is_back(self):
        alice, eve = Operator(), Operator("eve")
        with Daemon(rule(burst=10), operator={"keys": [alice.line]}) as daemon:
            kept = daemon.directory / "table.limits"
            for tag in ("C", "D"):
                self.assertEqual(alice.limit(daemon, "set", tag, "5", "1").returncode, 0)
            complaint = "operator.keys: warning: limits that do not hold because none of these keys has signed them: {};"
            settings = daemon.settings_path.read_text()
            daemon.settings_path.write_text(settings.replace(alice.line, eve.line))
            self.assertIn(complaint.format(2), daemon.admin("reload"))
            wait_until(lambda: burst(daemon, "C") == 10, "no operator has set it any more")
            self.assertEqual(daemon.admin_json("limit list"), [])
            self.assertEqual(eve.limit(daemon, "set", "D", "6", "1").returncode, 0)    # takes the place of alice's
            daemon.restart()
            self.assertIn(complaint.format(1), daemon.log)
            self.assertEqual((burst(daemon, "C"), burst(daemon, "D")), (10, 6))
            self.assertEqual(kept.read_text().count(" tag 5 1 "), 1)
            daemon.settings_path.write_text(settings)
            self.assertIn(complaint.format(1), daemon.admin("reload"))    # eve's
            wait_until(lambda: burst(daemon, "C") == 5, "alice is an operator again")
            self.assertEqual(burst(daemon, "D"), 10)
            wait_until(lambda: signed_by(kept.read_text().splitlines()[1]) == alice.line.split()[1], "the file follows")

    def test_a_host_that_cannot_use_rules_says_so_and_keeps_those_of_its_settings(self):
        alice = Operator()
        networks = fresh_directory() / "networks"
        networks.write_text("192.0.2.0/24\n")
        with Fleet(rule(burst=10), hosts=2, operator={"keys": [alice.line]}) as (a, b):
            wait_all_hear((a, b))
            rules = f'[[rule]]\nmatch_cidrs = "{networks}"\nburst = 3\nrate = 1.0\n'.replace("\n", "\\x0a")
            self.assertEqual(alice.limit(a, "rules", rules).returncode, 0)
            wait_until(lambda: burst(b, "192.0.2.1") == 3, "both hosts have the rules")
            b.kill()
            networks.unlink()
            b.start()
            self.assertEqual((burst(a, "192.0.2.1"), burst(b, "192.0.2.1")), (3, 10))
            b.wait_log("rules that are set for all hosts cannot be used here: rules:")
            self.assertIn("No such file", b.admin_json("limit list")[0]["note"])
            self.assertEqual((a.stats()["set_rules_unusable"], b.stats()["set_rules_unusable"]), (0, 1))
            networks.write_text("192.0.2.0/24\n")
            b.admin("reload")
            self.assertEqual((burst(b, "192.0.2.1"), b.stats()["set_rules_unusable"]), (3, 0))

    def test_rules_that_differ_in_how_they_are_shared_alone_are_in_force(self):
        alice = Operator()
        with Fleet(rule(name="all", burst=10, rate=0.001), hosts=2, period="200ms", operator={"keys": [alice.line]}) as (a, b):
            wait_all_hear((a, b))
            for share, left in (("local", 10), ("debit", 0), ("forecast", 0)):
                rules = f'[[rule]]\\x0aname = "all"\\x0aburst = 10\\x0arate = 0.001\\x0ashare = "{share}"'
                self.assertEqual(alice.limit(a, "rules", rules).returncode, 0)
                wait_until(lambda: f'share = "{share}"' in b.admin("config"), "both hosts have the rules")
                self.assertEqual(a.served(share, 12), 10)
                if left == 0:
                    wait_until(lambda: b.admin_json(f"show {share}")["level"] < 1, "the other host has heard")
                else:
                    time.sleep(1)    # five periods
                self.assertEqual(b.served(share, 12), left)

    def test_hosts_that_divide_a_limit_divide_its_new_rate(self):
        alice = Operator()
        with Fleet(rule(name="api", burst=100, rate=100.0, share="capacity"), hosts=2, keys=True,
                   operator={"keys": [alice.line]}) as hosts:
            wait_all_hear(hosts)
            alice.limit(hosts[0], "set", "--rule", "api", "50", "40")
            wait_until(lambda: all(burst(host, "C") == 50 for host in hosts), "both have the new rate")
            self.assertIn("hosts divide this limit", hosts[0].admin_json("limit list")[0]["note"])

            def parts():
                for host in hosts:
                    host.ask(["C"])
                return [host.admin_json("show C")["part"] for host in hosts]
            wait_until(lambda: 0.99 < sum(parts()) <= 1.000001 and min(parts()) > 0, "they divide it again")


class Post(ParallelTest):
    def alice(self):
        """An operator, and the settings of hosts that sign for her what is posted."""
        alice = Operator()
        token = alice.directory / "token"
        token.write_text(TOKEN + "\n")
        token.chmod(0o600)
        return alice, {"keys": [alice.line], "http_token_file": str(token), "http_key_file": alice.file}

    def post(self, daemon, target, token=TOKEN, **fields):
        connection = http.client.HTTPConnection("127.0.0.1", daemon.http_port)
        with contextlib.closing(connection):
            connection.request("POST", target, headers={"Authorization": f"Bearer {token}", **fields})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def test_a_program_with_the_token_sets_limits_over_http(self):
        _, operator = self.alice()
        with Fleet(rule(burst=10), hosts=2, admin={"http": "127.0.0.1:0"}, operator=operator) as (a, b):
            wait_all_hear((a, b))
            status, body = self.post(a, "/limit?tag=C&burst=4&rate=1/h&for=1h")
            self.assertEqual(status, 202, body)
            wait_until(lambda: (burst(a, "C"), burst(b, "C")) == (4, 4), "both hosts know it")
            self.assertEqual(self.post(a, "/limit?tag=C&burst=4&rate=1", token="another token of 24 ch")[0], 401)
            self.assertEqual(self.post(a, "/limit?tag=C&rate=1")[0], 400)
            self.assertEqual(self.post(a, "/limit?tag=C&rule=D&burst=1&rate=1")[0], 400)
            for words in ("fro=1h", "for=", "tag=D", "cost=9", "mode=off", "clear=true", "clear=1"):
                self.assertEqual(self.post(a, f"/limit?tag=C&burst=1&rate=1&{words}")[0], 400, words)
            self.assertEqual(self.post(a, "/limit?tag=C&clear=1", **{"Sec-Fetch-Site": "cross-site"})[0], 400)
            self.assertEqual(self.post(a, "/limit?tag=C&clear=1", Host="evil.example")[0], 421)
            self.assertEqual(burst(a, "C"), 4)
            self.assertEqual(self.post(a, "/limit?tag=C&clear=1")[0], 202)
            wait_until(lambda: (burst(a, "C"), burst(b, "C")) == (10, 10), "it is cleared")

    def test_the_check_and_a_start_warn_of_the_same_in_the_files_that_post_needs(self):
        alice = Operator()
        files = {name: alice.file.replace("alice.operator", name) for name in ("junk", "short", "open", "missing")}
        for name, text in (("junk", "x"), ("short", "x" * 15), ("open", TOKEN)):
            with open(files[name], "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                file.write(text)
        os.chmod(files["open"], 0o644)
        for key, token, words in ((alice.file, files["short"], ["at least 16 characters"]),
                                  (files["junk"], files["open"], ["junk: ", "chmod 600"]),
                                  (files["missing"], files["missing"], ["missing: "] * 2)):
            settings = {"keys": [alice.line], "http_key_file": key, "http_token_file": token}
            with Daemon(rule(), operator=settings) as daemon:
                checked = run(DTHROTTLED, "--check", daemon.settings_path)
                self.assertEqual(checked.returncode, 0, checked.stdout)
                said = re.findall(r": (operator\.http.*)", checked.stdout)
                self.assertEqual(len(said), len(words), said)
                for word, line in zip(words, said):
                    self.assertIn(word, line)
                    self.assertIn(line, daemon.log)

    @unittest.skipIf(SANITIZED, "a sanitizer does not let another library come first")
    def test_a_signed_limit_that_replaces_one_from_ahead_lasts_as_long_as_was_asked(self):
        alice, operator = self.alice()
        admin = {"http": "127.0.0.1:0", "audit": True}
        with Date() as date, Daemon(rule(burst=10), admin=admin, operator=operator) as daemon:
            date.jump("+240s")

            def ends_of_the_next(set_limit):
                alice.limit(daemon, "set", "C", "5", "1", wrapper=date.wrapper())
                set_limit()
                return daemon.admin_json("limit list")[0]["ends"]

            signed = ends_of_the_next(lambda: alice.limit(daemon, "set", "C", "6", "1", "--for", "1m"))
            self.assertRegex(signed, A_MINUTE)
            self.assertRegex(daemon.log, r"put of alice: tag C, burst 6, rate 1/s, for (1m|5\ds)\n")
            posted = ends_of_the_next(lambda: self.post(daemon, "/limit?tag=C&burst=7&rate=1&for=1m"))
            self.assertRegex(posted, A_MINUTE)
            wait_until(lambda: burst(daemon, "C") == 7, "it is in force")

    @unittest.skipIf(SANITIZED, "a sanitizer does not let another library come first")
    def test_a_host_signs_nothing_that_is_far_ahead_of_its_clock(self):
        _, operator = self.alice()
        admin = {"http": "127.0.0.1:0"}
        with Date() as date, Daemon(rule(burst=10), admin=admin, operator=operator, wrapper=date.wrapper()) as daemon:
            self.assertEqual(self.post(daemon, "/limit?tag=C&burst=4&rate=1")[0], 202)
            date.jump("-400s")
            status, why = self.post(daemon, "/limit?tag=C&burst=5&rate=1")
            self.assertEqual(status, 409)
            self.assertIn("more than 5 minutes ahead", why)
            self.assertEqual(self.post(daemon, "/limit?tag=D&burst=5&rate=1")[0], 202)

    def test_without_a_token_nothing_is_posted(self):
        with Daemon(rule(), admin={"http": "127.0.0.1:0"}) as daemon:
            self.assertEqual(self.post(daemon, "/limit?tag=C&burst=4&rate=1")[0], 404)


class Many(SystemTest):
    def test_many_hosts_know_a_limit_soon(self):
        alice = Operator()
        with Fleet(rule(burst=10), hosts=MANY, period="5s", names=[f"h{i}" for i in range(MANY)],
                   operator={"keys": [alice.line]}, table={"memory": "1MiB"}) as hosts:
            wait_all_hear(hosts, 600 if FIGURES else 120)
            begun = time.monotonic()
            self.assertEqual(alice.limit(hosts[0], "set", "C", "5", "1").returncode, 0)
            taken = [host.stats()["set_limits_known"] == 1 for host in hosts]
            first = time.monotonic() - begun, sum(taken)
            wait_until(lambda: all(host.stats()["set_limits_known"] == 1 for host in hosts), "all hosts know it")
            report(f"{MANY} daemons: {first[1]} knew a set limit when looked at within {first[0]:.2f} s, all within "
                   f"{time.monotonic() - begun:.2f} s, with dthrottlectl and looking")
