"""Options and exit codes of dthrottled and dthrottlectl."""

import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import threading
import time

from common import SystemTest, report
from daemon import DTHROTTLECTL, DTHROTTLED, FIGURES, ROOT, Daemon, fresh_directory, rule, run, settings_text

EX_OK, EX_USAGE, EX_NOINPUT, EX_UNAVAILABLE, EX_CONFIG = 0, 64, 66, 69, 78
REFUSED = 1    # dthrottlectl: the daemon answered, but did not do it

# Each line with the place and the words that must be said about it.
BAD_SETTINGS = [
    ("[query]", None, ()),
    ("threads = 0", (2, 11), ("query.threads = 0", "whole number from 1 to 64")),
    ("tpc = \"127.0.0.1:1\"", (3, 1), ("unknown key query.tpc", "unix_mode, tcp, threads")),
    ("idle_timeout = 5", (4, 16), ("query.idle_timeout = 5", "duration such as")),
    ("[admin]", None, ()),
    ("http = \"0.0.0.0:80\"", (6, 8), ("admin.http = \"0.0.0.0:80\"", "loopback")),
    ("[[rule]]", None, ()),
    ("match = \"[a\"", (8, 9), ("rule.match = \"[a\"", "glob")),
    ("burst = \"ten\"", (9, 9), ("rule.burst = \"ten\"", "number of tokens from 1 to")),
    ("rate = \"60/fortnight\"", (10, 8), ("rule.rate = \"60/fortnight\"", "60/m")),
    ("share = \"none\"", (11, 9), ("rule.share = \"none\"", "\"local\", \"debit\"")),
    ("mode = \"soft\"", (12, 8), ("rule.mode = \"soft\"", "\"enforce\", \"shadow\", \"off\"")),
    ("[[override]]", (13, 1), ("override without tag",)),
    ("burst = 1", None, ()),
    ("rate = 1e-7", (15, 8), ("override.rate = ", "from 1e-06")),
    ("[tabel]", (16, 1), ("unknown key tabel", "[table]")),
]


class WithDirectory(SystemTest):
    def setUp(self):
        self.directory = fresh_directory()
        self.addCleanup(shutil.rmtree, self.directory)
        self.file = self.directory / "dthrottled.toml"


class Dthrottled(WithDirectory):
    def test_version_and_help_go_to_standard_output(self):
        version = run(DTHROTTLED, "--version")
        self.assertEqual((version.returncode, version.stderr), (EX_OK, ""))
        self.assertRegex(version.stdout, r"^dthrottled \d+\.\d+\.\d+\n$")
        usage = run(DTHROTTLED, "--help")
        self.assertEqual(usage.returncode, EX_OK)
        self.assertIn("--check", usage.stdout)

    def test_an_unknown_option_is_a_usage_error(self):
        for wrong in (["--bogus"], ["--config"], ["stray"], ["--check"]):
            done = run(DTHROTTLED, *wrong)
            self.assertEqual((done.returncode, done.stdout), (EX_USAGE, ""), wrong)
            self.assertNotEqual(done.stderr, "")

    def test_missing_settings_are_named(self):
        for option in ("--config", "--check"):
            done = run(DTHROTTLED, option, self.file)
            self.assertEqual(done.returncode, EX_NOINPUT)
            self.assertIn(f"{self.file}: cannot open: No such file or directory", done.stdout + done.stderr)

    def test_settings_may_be_named_by_the_environment(self):
        done = run(DTHROTTLED, env={"DTHROTTLED_CONFIG": str(self.file)})
        self.assertEqual(done.returncode, EX_NOINPUT)
        self.assertIn(str(self.file), done.stderr)

    def test_good_settings_pass_the_check(self):
        self.file.write_text(settings_text(self.directory, rule(), rule(match="x*")))
        done = run(DTHROTTLED, "--check", self.file)
        self.assertEqual((done.returncode, done.stdout), (EX_OK, f"{self.file}: ok, 2 rules, 0 overrides\n"))
        self.assertEqual(list(self.directory.iterdir()), [self.file], "a check leaves something behind")

    def test_every_error_is_said_at_once_with_place_key_value_and_what_is_allowed(self):
        self.file.write_text("\n".join(line for line, _, _ in BAD_SETTINGS) + "\n")
        expected = [(place, words) for _, place, words in BAD_SETTINGS if place is not None]
        for option in ("--check", "--config"):
            done = run(DTHROTTLED, option, self.file)
            self.assertEqual(done.returncode, EX_CONFIG)
            said = [line for line in (done.stdout + done.stderr).splitlines() if "error: " in line]
            for (line, column), words in expected:
                at_place = [text for text in said if f"{self.file}:{line}:{column}: " in text]
                self.assertEqual(len(at_place), 1, (line, column, said))
                for word in words:
                    self.assertIn(word, at_place[0])
            self.assertEqual(len(said), len(expected), said)

    def test_what_is_not_toml_is_an_error_with_its_place(self):
        for text, place in (("[query\n", ":1:"), ("[query]\nthreads = 1\nthreads = 2\n", ":3:"),
                            ("a = \"\xff\"".encode("latin1"), ":1:"), ("x = " + "[" * 100_000, ":1:")):
            self.file.write_bytes(text if isinstance(text, bytes) else text.encode())
            done = run(DTHROTTLED, "--check", self.file)
            self.assertEqual(done.returncode, EX_CONFIG, done.stdout[:500])
            self.assertIn(f"{self.file}{place}", done.stdout)

    def test_impossible_combinations_are_errors(self):
        slow = "[[rule]]\nburst = 1000\nrate = 1e-6\n"
        for text, words in (("[query]\nunix = \"\"\ntcp = \"\"\n", "nobody can ask"),
                            (slow, "at most"),
                            ("[[rule]]\nburst = 1\nrate = 1\n" * 2, "without match; must be one rule at most"),
                            ("[shed]\nlow = \"2GiB\"\nhigh = \"1GiB\"\n", "must be at most shed.high")):
            self.file.write_text(text)
            done = run(DTHROTTLED, "--check", self.file)
            self.assertEqual(done.returncode, EX_CONFIG, done.stdout)
            self.assertIn(words, done.stdout)

    def test_a_limit_that_contradicts_the_period_is_a_warning(self):
        self.file.write_text("[peers]\nperiod = \"5s\"\n[[rule]]\nburst = 10\nrate = 4\n")
        done = run(DTHROTTLED, "--check", self.file)
        self.assertEqual(done.returncode, EX_OK)
        self.assertRegex(done.stdout, r":3:1: warning: .*burst = 10 is less than rate x peers.period = 20")

    def test_a_hundred_thousand_overrides_are_checked(self):
        entry = '[[override]]\ntag = "login:partner-%d"\nburst = 100\nrate = 20.0\n'
        self.file.write_text("[[rule]]\nburst = 10\nrate = 1\n" + "".join(entry % i for i in range(100_000)))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = run(DTHROTTLED, "--check", self.file)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.assertEqual((done.returncode, done.stdout), (EX_OK, f"{self.file}: ok, 1 rules, 100000 overrides\n"))
        took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        report(f"100000 overrides are checked in {took:.2f} s of processor")
        if FIGURES:
            self.assertLess(took, 1)


class Unprivileged(WithDirectory):
    def test_where_run_is_not_writable_everything_is_in_the_runtime_directory(self):
        become = []
        if os.geteuid() == 0:
            if shutil.which("setpriv") is None:
                self.skipTest("NOT TESTED: root needs setpriv to become somebody else")
            become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        elif os.access("/run", os.W_OK) or os.access("/run/dthrottle", os.W_OK):
            self.skipTest("NOT TESTED: /run is writable")
        runtime = self.directory / "runtime"
        runtime.mkdir()
        # The programs may be where only we may go.
        program = shutil.copy(DTHROTTLED, self.directory)
        for path in (self.directory, runtime):
            path.chmod(0o777)
        daemon = Daemon(rule(burst=2), wrapper=become, program=program, env={"XDG_RUNTIME_DIR": str(runtime)},
                        query={"unix": None}, admin={"unix": None}, table={"file": None})
        daemon.directory.chmod(0o755)
        daemon.query_path = f"{runtime}/dthrottle/query.sock"
        daemon.admin_path = f"{runtime}/dthrottle/admin.sock"
        with daemon:
            self.assertEqual(daemon.served("C", 9), 2)
            self.assertEqual({path.name for path in (runtime / "dthrottle").iterdir()},
                             {"query.sock", "admin.sock", "table"})
            daemon.restart()
            self.assertEqual(daemon.served("C", 9), 0)


class Dthrottlectl(WithDirectory):
    def ctl(self, daemon, *words, **options):
        return run(DTHROTTLECTL, "--socket", daemon.admin_path, *words, **options)

    def test_answers_go_to_standard_output(self):
        with Daemon(rule(name="everyone", burst=4)) as daemon:
            daemon.ask(["a tag"] * 5)
            shown = self.ctl(daemon, "show", "a", "tag")
            self.assertEqual((shown.returncode, shown.stderr), (EX_OK, ""))
            self.assertRegex(shown.stdout, r"(?m)^rule +everyone$")
            self.assertRegex(shown.stdout, r"(?m)^verdict +NO$")
            self.assertEqual(json.loads(self.ctl(daemon, "--json", "show", "a tag").stdout)["burst"], 4)
            self.assertEqual(self.ctl(daemon, "forgive", "a tag").returncode, EX_OK)
            self.assertEqual(daemon.served("a tag", 5), 4)

    def test_its_help_and_its_manual_have_every_command_of_the_daemon(self):
        with Daemon(rule()) as daemon:
            rows = [row["command"] for row in daemon.admin_json("help")]
        shown = run(DTHROTTLECTL, "--help").stdout.partition("The daemon knows:")[2].partition("\nlease ")[0]
        listed = [" ".join(entry.split()) for entry in shown.split(",") if entry.strip()]
        self.assertEqual(sorted(entry.split()[0] for entry in listed), sorted(row.split()[0] for row in rows))
        self.assertEqual({row for row in rows if "VERB" not in row} - {*listed}, set())
        manual = (ROOT / "man/dthrottlectl.1").read_text()
        described = set(re.findall(r"^\.It Ic (\w+)", manual, re.M))
        self.assertEqual({row.split()[0] for row in rows} - {"json"} - described, set(), "json is --json there")

    def test_a_refusal_goes_to_standard_error_and_is_1(self):
        with Daemon(rule()) as daemon:
            for words in (["frobnicate"], ["show"], ["top", "0"], ["show", "\\"]):
                done = self.ctl(daemon, *words)
                self.assertEqual((done.returncode, done.stdout), (REFUSED, ""), words)
                self.assertRegex(done.stderr, "^error: ")
            done = self.ctl(daemon, "--json", "frobnicate")
            self.assertEqual((done.returncode, done.stderr), (REFUSED, ""))
            self.assertIn("unknown command", json.loads(done.stdout)["error"])

    def test_what_a_daemon_refuses_before_a_limit_is_signed_is_json_too(self):
        path = f"{self.directory}/admin.sock"
        run(DTHROTTLECTL, "limit", "keygen", "alice", "-d", self.directory)

        def refuse(listener):
            with listener.accept()[0] as sock:
                sock.recv(1 << 16)
                sock.sendall(b'error: unknown command "limit"; try help\n\n')    # as one that does not know limits

        with socket.create_server(path, family=socket.AF_UNIX) as listener:
            daemon = threading.Thread(target=refuse, args=(listener,))
            daemon.start()
            done = run(DTHROTTLECTL, "-s", path, "--json", "limit", "set", "C", "1", "1", "--key",
                       f"{self.directory}/alice.operator")
            daemon.join()
        self.assertEqual((done.returncode, done.stderr), (REFUSED, ""))
        self.assertEqual(json.loads(done.stdout), {"error": 'unknown command "limit"; try help'})

    def test_a_refused_reload_is_1_and_a_good_one_is_0(self):
        with Daemon(rule()) as daemon:
            done = self.ctl(daemon, "reload")
            self.assertEqual((done.returncode, done.stdout), (EX_OK, "reloaded  true\nproblems:\n(none)\n"))
            daemon.settings_path.write_text("[query]\nthreads = 0\n")
            done = self.ctl(daemon, "reload")
            self.assertEqual((done.returncode, done.stdout), (REFUSED, ""))
            self.assertIn(f"{daemon.settings_path}:2:11", done.stderr)
            self.assertEqual(self.ctl(daemon, "--json", "reload").returncode, REFUSED)

    def test_the_socket_may_be_named_by_the_environment(self):
        with Daemon(rule()) as daemon:
            done = run(DTHROTTLECTL, "rules", env={"DTHROTTLECTL_SOCKET": daemon.admin_path})
            self.assertEqual(done.returncode, EX_OK, done.stderr)

    def test_a_daemon_that_is_not_there_or_does_not_answer_is_69(self):
        done = run(DTHROTTLECTL, "--socket", f"{self.directory}/none", "stats")
        self.assertEqual((done.returncode, done.stdout), (EX_UNAVAILABLE, ""))
        self.assertIn("No such file", done.stderr)
        with Daemon(rule()) as daemon:
            daemon.signal(signal.SIGSTOP)
            begin = time.monotonic()
            done = self.ctl(daemon, "--timeout", "0.2", "stats")
            daemon.signal(signal.SIGCONT)
            self.assertEqual(done.returncode, EX_UNAVAILABLE)
            self.assertIn("does not answer in time", done.stderr)
            self.assertGreaterEqual(time.monotonic() - begin, 0.2)

    def test_an_answer_that_cannot_be_written_is_74_and_a_refusal_stays_one(self):
        self.file.write_text(settings_text(self.directory, rule()))
        with Daemon(rule()) as daemon, open("/dev/full", "w") as full:
            ctl = [DTHROTTLECTL, "--socket", daemon.admin_path]
            for command, status in (([*ctl, "rules"], os.EX_IOERR), ([*ctl, "show", "x"], os.EX_IOERR),
                                    ([*ctl, "--json", "bogus"], REFUSED), ([DTHROTTLECTL, "-V"], os.EX_IOERR),
                                    ([DTHROTTLED, "-V"], os.EX_IOERR), ([DTHROTTLED, "-t", self.file], os.EX_IOERR)):
                done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE)
                self.assertEqual((done.returncode, b"could not be written" in done.stderr), (status, True), command)

    def test_wrong_usage_is_64_and_version_is_0(self):
        for wrong in ([], ["--bogus"], ["--timeout", "never", "stats"]):
            self.assertEqual(run(DTHROTTLECTL, *wrong).returncode, EX_USAGE, wrong)
        version = run(DTHROTTLECTL, "--version")
        self.assertEqual(version.returncode, EX_OK)
        self.assertRegex(version.stdout, r"^dthrottlectl \d+\.\d+\.\d+\n$")
