"""The completions of bash and zsh know every option and command, and none that there is not."""

import re
import shutil
import subprocess
import unittest

from common import SystemTest
from daemon import BUILD, DTHROTTLECTL, DTHROTTLED, ROOT, Daemon, rule, run

FOLDER = ROOT / "conf/completion"
SIM = BUILD / "dthrottle-sim"
LIMIT_VERBS = ("list", "set", "rules", "clear", "keygen")
OPTION = re.compile(r"(?<![\w-])-{1,2}[a-zA-Z][\w-]*")


def options_of(*command):
    """Those that --help lists in its first column."""
    columns = re.findall(r"^  (-\S+)", run(*command, "--help").stdout, re.M)
    return {option for column in columns for option in column.split(",")}


def subcommands_of(program):
    """Those that --help lists."""
    return re.findall(r"^  ([a-z]+) ", run(program, "--help").stdout.partition("\nSubcommands:\n")[2], re.M)


def bash_offers(program, *words):
    """What the completion of `program` offers after these words, of which the last is unfinished."""
    script = f"""
      . '{FOLDER / program}.bash'
      COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
      $(complete -p '{program}' | sed 's/.*-F \\([^ ]*\\).*/\\1/')
      printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script, "bash", program, *words], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return set(done.stdout.split())


def zsh_text(program):
    """The completion without descriptions, which may speak of other options."""
    return re.sub(r"\[[^]]*\]", "", (FOLDER / f"_{program}").read_text())


class Completion(SystemTest):
    def commands(self):
        with Daemon(rule()) as daemon:
            listed = {row["command"].split()[0] for row in daemon.admin_json("help")} - {"json"}
        return listed | {"keygen", "lease"}

    def test_bash_offers_exactly_the_options_and_commands(self):
        self.assertEqual(bash_offers("dthrottled", ""), options_of(DTHROTTLED))
        self.assertEqual(bash_offers("dthrottlectl", ""), options_of(DTHROTTLECTL) | self.commands())
        self.assertEqual(bash_offers("dthrottlectl", "--socket", "x", "re"), {"refusals", "reload"})
        self.assertEqual(bash_offers("dthrottlectl", "keygen", ""), options_of(DTHROTTLECTL, "keygen"))
        self.assertEqual(bash_offers("dthrottlectl", "lease", ""), options_of(DTHROTTLECTL, "lease"))
        self.assertEqual(bash_offers("dthrottlectl", "limit", ""),
                         {*LIMIT_VERBS}.union(*(options_of(DTHROTTLECTL, "limit", verb) for verb in LIMIT_VERBS)))
        self.assertLessEqual({"stop", "clear", "promote"} | options_of(DTHROTTLECTL, "candidate"),
                             bash_offers("dthrottlectl", "candidate", ""))
        self.assertEqual(bash_offers("dthrottlectl", "lease", "-m", "o"), {"optimistic"})
        self.assertEqual(bash_offers("dthrottlectl", "show", ""), set())

    def test_bash_knows_the_simulator_s_commands_and_their_options(self):
        commands = subcommands_of(SIM)
        self.assertLessEqual({"run", "compare", "replay"}, set(commands))
        self.assertEqual(bash_offers("dthrottle-sim", ""), options_of(SIM) | set(commands))
        for command in commands:
            self.assertEqual(bash_offers("dthrottle-sim", command, ""), options_of(SIM, command), command)
        self.assertEqual(bash_offers("dthrottle-sim", "replay", "--spread", "s"), {"sticky"})

    def test_zsh_knows_the_simulator_s_commands_and_their_options(self):
        commands = subcommands_of(SIM)
        text = zsh_text("dthrottle-sim")
        self.assertEqual(set(re.findall(r"'(\w+):", re.search(r"commands=\((.*?)^\)", text, re.S | re.M)[1])), set(commands))
        self.assertEqual(set(OPTION.findall(self.arguments("dthrottle-sim"))),
                         options_of(SIM).union(*(options_of(SIM, command) for command in commands)))

    def test_bash_offers_files_where_a_file_is_meant(self):
        self.assertIn(str(DTHROTTLED), bash_offers("dthrottled", "--check", str(DTHROTTLED)[:-1]))

    def test_zsh_knows_exactly_the_options_and_commands(self):
        self.assertEqual(set(OPTION.findall(self.arguments("dthrottled"))), options_of(DTHROTTLED))
        own = [("keygen",), ("lease",), ("candidate",), *(("limit", verb) for verb in LIMIT_VERBS)]
        self.assertEqual(set(OPTION.findall(self.arguments("dthrottlectl"))),
                         options_of(DTHROTTLECTL).union(*(options_of(DTHROTTLECTL, *words) for words in own)))
        listed = re.search(r"commands=\((.*?)^\)", zsh_text("dthrottlectl"), re.S | re.M)[1]
        self.assertEqual(set(re.findall(r"'(\w+):", listed)), self.commands())

    @staticmethod
    def arguments(program):
        """The specifications of _arguments, without its own options."""
        text = zsh_text(program)
        return "\n".join(line for line in text.splitlines() if re.match(r"\s+'[(*]?-", line))

    @unittest.skipUnless(shutil.which("zsh"), "NOT TESTED: zsh is not installed")
    def test_zsh_can_read_them(self):
        for program in ("dthrottled", "dthrottlectl", "dthrottle-sim"):
            done = subprocess.run(["zsh", "-n", FOLDER / f"_{program}"], capture_output=True, text=True, timeout=30)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
