"""What people read is true: generated pages match the code, manuals are well formed, links lead somewhere."""

import os
import re
import shutil
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("DTHROTTLE_BUILD", ROOT / "build"))
UNIT = ROOT / "conf/dthrottled.service"
EXPOSURE_MAX = 20    # of systemd-analyze, in tenths


def run(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


class Documents(unittest.TestCase):
    def test_example_and_manual_say_what_the_code_says(self):
        done = run("scripts/docs", "--check", str(BUILD))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_settings_that_we_ship_are_accepted_without_a_warning(self):
        for path in ("conf/dthrottled.toml", "conf/minimal.toml"):
            done = run(str(BUILD / "dthrottled"), "--check", path)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertRegex(done.stdout, r"\A\S+: ok, \d+ rules, \d+ overrides\n\Z")

    def test_manual_pages_are_clean(self):
        self.assertIsNotNone(shutil.which("mandoc"), "mandoc is not installed")
        pages = sorted(p for p in (ROOT / "man").iterdir() if re.fullmatch(r"\.\d", p.suffix))
        self.assertEqual({p.name for p in pages} >= {"dthrottled.8", "dthrottled.toml.5", "dthrottlectl.1",
                                                      "dthrottle-nft.8", "dthrottle-plan.1", "dthrottle-protocol.7",
                                                      "dthrottle-sim.1", "libdthrottle.3"}, True)
        for page in pages:
            done = run("mandoc", "-Tlint", "-W", "warning", str(page))
            self.assertEqual((done.returncode, done.stdout), (0, ""), page.name)

    def test_manual_pages_name_every_option(self):
        for program, page in (("dthrottled", "dthrottled.8"), ("dthrottlectl", "dthrottlectl.1"),
                              ("dthrottle-plan", "dthrottle-plan.1")):
            manual = (ROOT / "man" / page).read_text().replace("\\-", "-").replace("Fl -", "--")
            for option in re.findall(r"--[a-z]+", run(str(BUILD / program), "--help").stdout):
                self.assertIn(option, manual, page)

    def test_the_simulator_s_page_names_every_command_and_option(self):
        program, manual = str(BUILD / "dthrottle-sim"), (ROOT / "man/dthrottle-sim.1").read_text()
        listed = run(program, "--help").stdout.partition("\nSubcommands:\n")[2]
        commands = re.findall(r"^  ([a-z]+) ", listed, re.M)
        self.assertIn("replay", commands)
        for command in commands:
            self.assertIn(f".Cm {command}\n", manual)
            for option in re.findall(r"--([a-z-]+)", run(program, command, "--help").stdout):
                if option != "help":
                    self.assertRegex(manual, rf"\.It Fl -{option}[ \n]", command)

    def test_the_unit_is_hardened(self):
        if shutil.which("systemd-analyze") is None:
            self.skipTest("systemd-analyze is not installed")
        done = run("systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(UNIT))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_unit_lets_threads_stand_behind_queries(self):
        if shutil.which("systemd-analyze") is None:
            self.skipTest("systemd-analyze is not installed")
        listed = re.findall(r"(?m)^    (\w+)$", run("systemd-analyze", "syscall-filter", "@resources").stdout)
        sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.*") if path.suffix in (".cc", ".h"))
        made = set(re.findall(rf"\b({'|'.join(listed)})\(", sources)) - {"setrlimit"}    # of libc: prlimit64
        self.assertIn("setpriority", made)
        allowed = re.findall(r"(?m)^SystemCallFilter=([^~@].*)$", UNIT.read_text())
        self.assertLessEqual(made, set(" ".join(allowed).split()))

    def test_pages_state_one_bound_of_metrics(self):
        said = r"at most (\d+) KiB, and (\d+) KiB more for each\s+rule\s+and (\d+) KiB for each peer"
        bounds = [re.search(said, (ROOT / page).read_text()) for page in ("protocol/admin.md", "man/dthrottle-protocol.7")]
        self.assertEqual(bounds[0].groups(), bounds[1].groups())

    def test_links_lead_somewhere(self):
        for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "protocol").glob("*.md")]:
            for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
                self.assertTrue((page.parent / target).exists(), f"{page.name}: {target}")

    def test_versions_agree(self):
        version = re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text()).group(1)
        self.assertIn(f"dthrottled {version}", run(str(BUILD / "dthrottled"), "--version").stdout)
        self.assertIn(f"## {version}", (ROOT / "CHANGELOG.md").read_text())


if __name__ == "__main__":
    unittest.main()
