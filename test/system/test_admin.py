"""The admin socket, as a person with netcat and a program with a socket meet it."""

import contextlib
import json
import os
import random
import re
import shutil
import socket
import subprocess
import time
import unittest

from common import SystemTest
from daemon import (DTHROTTLECTL, PATIENCE, SANITIZED, AskDaemon, Daemon, override, receive_all, rule, run,
                    wait_until)

COMMANDS = ("help", "stats", "metrics", "show", "why", "top", "penalties", "refusals", "rules", "peers", "shed", "capacity",
            "indicate", "leases", "config", "forgive", "reload", "upgrade", "candidate", "limit", "sites")
COMMAND_BYTES_MAX = 64 * 1024


class Conversation(SystemTest):
    """One command a line, an empty line after each answer."""

    @unittest.skipIf(shutil.which("nc") is None, "netcat is not installed")
    def test_help_over_netcat_lists_every_command_and_itself_first(self):
        with Daemon(rule()) as daemon:
            nc = subprocess.run(["nc", "-N", "-U", daemon.admin_path], input=b"help\n", capture_output=True,
                                timeout=PATIENCE)
            self.assertEqual(nc.returncode, 0, nc.stderr)
            header, *lines = nc.stdout.decode().removesuffix("\n\n").split("\n")
            self.assertEqual(header.split(), ["command", "meaning"])
            self.assertEqual([line.split()[0] for line in lines], [*COMMANDS, "json"])

    def test_every_answer_ends_with_its_only_empty_line(self):
        with Daemon(rule(), override("a tag")) as daemon, daemon.connect_admin() as sock:
            for command in ("help", "stats", "metrics", "show C", "why C", "top", "rules", "peers", "shed", "leases", "config",
                            "forgive C", "reload", "nonsense", "json stats", "json nonsense", ""):
                sock.sendall(command.encode() + b"\n")
                received = b""
                while not received.endswith(b"\n\n"):
                    received += sock.recv(1 << 16)
                self.assertEqual(received.count(b"\n\n"), 1, command)
                self.assertGreater(len(received), 2, command)

    def test_commands_on_one_connection_are_answered_in_order(self):
        with Daemon(rule()) as daemon, daemon.admin_session() as admin:
            commands = []
            for i in range(300):
                commands += [f"json show tag-{i}", "json reload" if i % 50 == 0 else "json top 3"]
            admin.send("".join(command + "\r\n" for command in commands).encode())
            answers = [json.loads(admin.answer()) for _ in commands]
            self.assertEqual([answer["tag"] for answer in answers[::2]], [f"tag-{i}" for i in range(300)])
            self.assertEqual(sum("reloaded" in answer for answer in answers), 6)

    def test_what_is_sent_before_a_half_close_is_answered_and_a_line_without_end_is_not(self):
        with Daemon(rule()) as daemon, daemon.connect_admin() as sock:
            sock.sendall(b"json rules\njson reload\njson rules\nforgive C")
            sock.shutdown(socket.SHUT_WR)
            answers = receive_all(sock).decode().split("\n\n")
            self.assertEqual(answers.pop(), "")
            self.assertEqual([type(json.loads(answer)) for answer in answers], [list, dict, list])

    def test_an_unknown_command_is_an_error_that_points_to_help(self):
        with Daemon(rule()) as daemon:
            self.assertEqual(daemon.admin("frob x"), 'error: unknown command "frob"; try help\n')
            self.assertEqual(daemon.admin(b"\xff\x00"), 'error: unknown command "\\xff\\x00"; try help\n')
            self.assertEqual(daemon.admin_json("frob"), {"error": 'unknown command "frob"; try help'})
            self.assertEqual(daemon.admin("stats all"), "error: stats takes nothing after it\n")
            self.assertEqual(daemon.admin("show"), "error: show needs a TAG\n")

    def test_a_line_that_is_too_long_is_answered_with_an_error(self):
        too_long = f"error: a command has at most {COMMAND_BYTES_MAX} bytes\n\n".encode()
        for length in (70_000, 1_000_000, COMMAND_BYTES_MAX + 1):
            with self.subTest(length=length), Daemon(rule()) as daemon, daemon.connect_admin() as sock:
                line = b"show " + b"x" * (length - 5) + b"\n"
                try:
                    sock.sendall(line)
                except (BrokenPipeError, ConnectionResetError):
                    pass    # it had heard enough
                self.assertTrue(receive_some(sock, len(too_long)).startswith(too_long))
                self.assertIn("uptime", daemon.admin("stats"))

    def test_the_longest_line_is_answered(self):
        with Daemon(rule()) as daemon:
            tag = b"x" * (COMMAND_BYTES_MAX - 5)
            self.assertIn("verdict", daemon.admin(b"show " + tag))

    def test_answers_that_are_not_read_do_not_stop_anybody_else(self):
        with Daemon(rule(burst=5)) as daemon, daemon.connect_admin() as slow:
            slow.setblocking(False)
            before = daemon.resident_bytes()
            sent = 0
            try:
                while sent < 30_000_000:
                    sent += slow.send(b"help\n" * 1000)
            except BlockingIOError:
                pass
            self.assertLess(sent, 30_000_000, "it takes commands whose answers nobody reads without end")
            self.assertEqual(daemon.served("C", 9), 5)
            self.assertIn("uptime", daemon.admin("stats"))
            if not SANITIZED:
                self.assertLess(daemon.resident_bytes() - before, 4 << 20)

    def test_one_connection_too_many_is_closed_at_once(self):
        with Daemon(rule(), process={"source_share": 1.0}) as daemon:
            socks = [daemon.connect_admin() for _ in range(70)]
            ended = 0
            for sock in socks:
                try:
                    sock.sendall(b"help\n")
                    ended += sock.recv(100) == b""
                except (BrokenPipeError, ConnectionResetError):
                    ended += 1
            self.assertEqual(ended, 6)
            for sock in socks:
                sock.close()
            wait_until(lambda: "uptime" in daemon.admin("stats"), "there is room again")

    def test_the_connection_that_was_idle_longest_makes_room(self):
        with Daemon(rule()) as daemon, daemon.admin_session() as busy, contextlib.ExitStack() as stack:
            idle = [stack.enter_context(daemon.admin_session()) for _ in range(47)]    # with it a user's part of 64

            def comes_in():
                self.assertIn("help", busy.ask("help"))
                done = run(DTHROTTLECTL, "-s", daemon.admin_path, "stats")
                if done.returncode != 0:
                    self.assertRegex(done.stderr, "closed the connection unanswered: its admin connections are all in use")
                return done.returncode == 0
            wait_until(comes_in, "there is room")
            self.assertEqual(idle[0].sock.recv(1), b"")
            self.assertIn("help", idle[1].ask("help"))
            self.assertIn("help", busy.ask("help"))


def receive_some(sock, count):
    received = b""
    try:
        while len(received) < count and (data := sock.recv(1 << 16)):
            received += data
    except ConnectionResetError:
        pass
    return received


class Tags(SystemTest):
    """show, why and forgive."""

    def test_show_tells_rule_level_debt_and_when_the_tag_is_served_again(self):
        with Daemon(rule(name="login", match="login:*", burst=4, rate=0.01)) as daemon:
            shown = daemon.admin_json("show login:x")
            self.assertEqual(shown, {
                "tag": "login:x", "rule": "login", "override": False, "mode": "enforce", "burst": 4, "rate": 0.01,
                "level": 4, "debt": 0, "verdict": "OK", "served_again_in_s": 0, "full_in_s": 0, "recorded": False,
                "shed_probability": 0})
            daemon.ask(["login:x"] * 9)
            shown = daemon.admin_json("show login:x")
            self.assertEqual((shown["verdict"], shown["recorded"], shown["debt"]), ("NO", True, 0))
            waited = shown["level"] / 0.01    # since the bucket was empty
            self.assertLess(waited, PATIENCE)
            self.assertAlmostEqual(shown["served_again_in_s"], 100 - waited, places=3)
            self.assertAlmostEqual(shown["full_in_s"], 400 - waited, places=3)
            self.assertIsNone(daemon.admin_json("show search:x")["rule"])

    def test_looking_costs_the_tag_nothing(self):
        with Daemon(rule(burst=3)) as daemon:
            for command in ("show C", "why C", "top") * 5:
                daemon.admin(command)
            self.assertEqual(daemon.served("C", 9), 3)
            self.assertEqual(daemon.stats()["queries"], 9)

    def test_what_show_promises_comes_true(self):
        with Daemon(rule(burst=1, rate=0.5)) as daemon:
            begin = time.monotonic()
            daemon.ask(["C"])
            wait = daemon.admin_json("show C")["served_again_in_s"]
            self.assertTrue(2 - (time.monotonic() - begin) - 0.01 <= wait <= 2, wait)
            time.sleep(wait)
            self.assertEqual(daemon.ask(["C"]), ["OK"])

    def test_a_tag_is_written_with_xNN_for_what_cannot_be_typed(self):
        chance = random.Random(5)
        tags = [b"\x00", b"a\\b", b"\\x41", b"caf\xc3\xa9", b"\xff\xfe", b" lead and trail ", b"\r x", b"tab\tbed",
                bytes(byte for byte in range(256) if byte != 0x0a)[:-1], *(chance.randbytes(8) for _ in range(20))]
        tags = [tag.replace(b"\n", b"").removesuffix(b"\r") for tag in tags]
        # On a line of their own, these end with two: the last is part of the end of the line.
        tags += [b"ends with CR\r", b"so does a long one" * 20 + b"\r"]
        with Daemon(rule(burst=3)) as daemon:
            for tag in tags:
                line = tag + b"\r"
                daemon.ask([line] * 2)
                fully = "".join(f"\\x{byte:02x}" for byte in tag)
                shown = daemon.admin_json("show " + fully)
                self.assertEqual(round(shown["level"]), 1, tag)
                self.assertRegex(shown["tag"], r"^[ -~]*$")
                again = daemon.admin_json("show " + shown["tag"])
                self.assertEqual((again["tag"], again["recorded"]), (shown["tag"], True))
                self.assertTrue(daemon.admin_json("forgive " + fully)["forgiven"], tag)
                self.assertEqual(daemon.served(line, 9), 3, tag)

    def test_a_wrong_escape_is_an_error(self):
        with Daemon(rule()) as daemon:
            for wrong in ("\\", "\\x", "\\x1", "\\xg0", "\\n", "a\\ b"):
                for command in ("show", "why", "forgive"):
                    self.assertRegex(daemon.admin(f"{command} {wrong}"), "^error: TAG: a backslash", (command, wrong))

    def test_the_tag_of_no_bytes_is_a_blank_with_nothing_behind_it(self):
        with Daemon(rule(burst=3)) as daemon:
            daemon.ask([""])
            self.assertEqual(round(daemon.admin_json("show ")["level"]), 2)

    def test_forgive_fills_the_bucket_of_one_tag(self):
        long_tag = b"x" * 300
        with Daemon(rule(burst=3)) as daemon:
            for tag in (b"C", long_tag):
                daemon.ask([tag] * 9 + ["other"] * 9)
                self.assertEqual(daemon.admin_json(b"forgive " + tag), {"tag": tag.decode(), "forgiven": True})
                self.assertEqual(daemon.ask([tag, "other"]), ["OK", "NO"])
            self.assertEqual(daemon.admin_json("forgive nobody"), {"tag": "nobody", "forgiven": False})

    def test_why_tells_the_way_to_the_verdict(self):
        with Daemon(rule(name="login", match="login:*", burst=2),
                    rule(name="tried", match="t*", mode="shadow", burst=1),
                    rule(name="free", match="f*", mode="off"), rule(name="everyone", burst=3),
                    override("partner", burst=9)) as daemon:
            daemon.ask(["login:x"] * 3 + ["t1"] * 2)

            def why(tag):
                answer = daemon.admin_json("why " + tag)
                self.assertEqual(daemon.ask([tag]), [answer["verdict"]])
                return " ".join(answer["steps"])
            self.assertRegex(why("login:x"), r'No override.*"login" \(match "login:\*"\): applies.*burst 2, .*less '
                                             r"than one: the limit says NO")
            self.assertRegex(why("search"), r'"login".*does not match.*"everyone" \(default\): applies.*No bucket '
                                            r"is recorded")
            self.assertRegex(why("partner"), r"An override names the tag.*burst 9")
            self.assertRegex(why("t1"), r"says NO.*mode is shadow: .*answered OK all the same")
            self.assertRegex(why("f1"), r"mode is off: every query is answered OK")
            self.assertRegex(why("x" * 300), r"300 bytes, more than query\.max_tag_bytes = 255")
            self.assertRegex(daemon.admin("why login:x"), r"(?m)^Rule \"login\" .*applies")

    def test_why_says_nothing_of_mode_shadow_that_the_verdict_denies(self):
        penalty = 'penalty = { after = 2, within = "1d", lasts = "1d" }\n'
        with Daemon(rule(name="users", match="*/*", burst=50, also=["before /"]),
                    rule(name="counted", match="c*", quota=3, mode="shadow"),
                    rule(name="fined", match="p*", burst=2, mode="shadow") + penalty) as daemon:
            daemon.ask(["c/bob"] * 5 + ["p/bob"] * 5)
            for tag, no in (("c", "the answer is NO"), ("c/bob", "the answer is NO"),
                            ("p", "penalized"), ("p/bob", "penalized")):
                answer = daemon.admin_json(f"why {tag}")
                self.assertEqual(answer["verdict"], "OK")
                said, = [step for step in answer["steps"] if no in step]
                self.assertIn(", if the mode were not shadow", said)


class Overviews(SystemTest):
    def test_every_command_has_an_answer_in_json(self):
        with Daemon(rule(), override("a tag")) as daemon:
            daemon.ask(["C"] * 20)
            types = {"help": list, "stats": dict, "metrics": str, "show C": dict, "why C": dict, "top": dict,
                     "top 5": dict, "penalties": list, "refusals": list, "rules": list, "peers": list, "shed": dict,
                     "capacity": dict, "leases": dict, "config": str, "forgive C": dict, "limit list": list, "candidate": dict,
                     "sites": list, "reload": dict,
                     "upgrade": dict}
            self.assertEqual({command.split()[0] for command in types}, set(COMMANDS) - {"indicate"})    # nothing is divided
            for command, kind in types.items():
                answer = daemon.admin_json(command)
                self.assertIs(type(answer), kind, command)
                self.assertEqual(bool(answer), command not in ("peers", "sites", "penalties", "limit list"),
                                     command)    # nobody else here
                if kind is dict:
                    self.assertNotIn("error", answer)

    def test_stats_count_what_happened(self):
        with Daemon(rule(burst=3), rule(match="s*", mode="shadow", burst=1)) as daemon:
            daemon.ask(["C"] * 5 + ["s"] * 5 + ["x" * 300])
            stats = daemon.stats()
            expected = {"queries": 11, "served": 3 + 1 + 1, "throttled": 2, "shadowed": 4, "unmatched": 0,
                        "over_long_tags": 1, "rules": 2, "overrides": 0, "table_tags": 3, "table_memory": 4 << 20,
                        "connections_accepted": 1}
            self.assertEqual({key: stats[key] for key in expected}, expected)
            text = dict(line.split() for line in daemon.admin("stats").splitlines())
            self.assertEqual({key: int(text[key]) for key in expected}, expected)
            self.assertEqual(set(text), set(stats))

    def test_refusals_say_which_tag_by_which_rule_through_which_front_end_and_when(self):
        limits = (rule(name="login", match="login:*", burst=1, rate=0.001), rule(name="rest", burst=1000))
        with AskDaemon(*limits) as daemon:
            self.assertEqual(daemon.admin_json("refusals"), [])
            daemon.ask(["login:a"] * 3 + ["b"] * 3)

            def refusals():
                with socket.socket(socket.AF_UNIX) as sock:
                    sock.connect(daemon.ask_path)
                    sock.sendall(b"take 1 b 1 login:" + b"x" * 120 + b"\n" * 1)
                    sock.recv(4096)
                rows = daemon.admin_json("refusals 2")
                return rows if len(rows) == 2 else None
            newest, first = wait_until(refusals, "a question has been refused after the pause between two")
            self.assertEqual({key: first[key] for key in ("rule", "why", "front_end", "tag")},
                             {"rule": "login", "why": "limit", "front_end": "query", "tag": "login:a"})
            self.assertEqual((newest["front_end"], newest["tag"]), ("ask", "login:" + 90 * "x" + "..."))
            self.assertTrue(0 <= newest["s_ago"] <= first["s_ago"] < PATIENCE)
            self.assertIn("error", daemon.admin_json("refusals 65"))

    def test_the_audit_names_who_changed_what_and_nothing_else(self):
        for audits in (True, False):
            with self.subTest(audits), Daemon(rule(burst=1), admin={"audit": audits}) as daemon:
                for command in ("stats", "show C", "shed", "forgive C\\x0a", "forgive \\q", "json reload"):
                    daemon.admin(command)
                daemon.hang_up()
                said = re.findall(r"audit: (.*)", daemon.log)
                who = rf"user {os.getuid()}, process {os.getpid()}: "
                refused = r"forgive \q: refused: TAG: a backslash must begin \\ or \xNN"
                self.assertEqual(said, [who + r"forgive C\x0a", who + refused, who + "json reload", "SIGHUP: reload"]
                                 if audits else [])

    def test_top_names_the_most_throttled_and_the_most_served(self):
        with Daemon(rule(burst=10)) as daemon:
            chance = random.Random(2)
            tags = ["greedy"] * 600 + ["eager"] * 300 + [f"quiet-{i}" for i in range(50)] * 8
            chance.shuffle(tags)
            for i in range(0, len(tags), 50):
                daemon.ask(tags[i:i + 50])
            top = daemon.admin_json("top 2")
            self.assertEqual([(row["tag"], row["rule"]) for row in top["throttled"]],
                             [("greedy", "rule-1"), ("eager", "rule-1")])
            self.assertGreater(top["throttled"][0]["count"], top["throttled"][1]["count"])
            self.assertEqual(len(top["served"]), 2)
            self.assertIn("greedy", daemon.admin("top"))
            for wrong in ("0", "-1", "x", "1 2", "999999", "3x"):
                self.assertRegex(daemon.admin(f"top {wrong}"), "^error: N must be", wrong)

    def test_rules_are_listed_in_order_with_what_they_did(self):
        with Daemon(rule(name="login", match="login:*", burst=2), rule(name="everyone", burst=3, share="local"),
                    override("login:vip", burst=5)) as daemon:
            daemon.ask(["login:x"] * 4 + ["C"] * 4 + ["login:vip"] * 4)
            rows = daemon.admin_json("rules")
            self.assertEqual([(row["rule"], row["match"], row["served"], row["throttled"]) for row in rows],
                             [("login", "login:*", 2 + 4, 2), ("everyone", None, 3, 1)])
            lines = daemon.admin("rules").splitlines()
            self.assertEqual([line.split()[0] for line in lines], ["rule", "login", "everyone"])

    def test_config_is_a_settings_file_that_gives_the_same_daemon(self):
        limits = [rule(name="login", match="login:*", burst=7.5, rate="60/m"), rule(burst=3),
                  override('quote " and \\ and é', burst=7, mode="shadow")]
        with Daemon(*limits) as daemon:
            daemon.ask(["C"] * 2)
            config = daemon.admin("config")
            daemon.settings_path.write_text(config)
            self.assertEqual(daemon.admin_json("reload"), {"reloaded": True, "problems": []})
            self.assertEqual(daemon.admin("config"), config)
            self.assertEqual(daemon.admin_json('show quote " and \\\\ and é')["burst"], 7)
            daemon.restart()
            self.assertIn(" 1 tags kept", daemon.log, "the rules are not the same")

    def test_the_config_of_many_overrides_is_cut_short_and_says_so(self):
        count = 5_000
        with Daemon(rule(), *(override(f"o{i}") for i in range(count))) as daemon:
            config = daemon.admin("config")
            listed = config.count("\n[[override]]")
            self.assertTrue(10 <= listed < count, listed)
            self.assertIn(f"{count - listed} more", config)
