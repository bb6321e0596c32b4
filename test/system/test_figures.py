"""dthrottle-sim figure from its command line: the papers' figures as a table, CSV and pictures; exit codes."""

import csv
import re
import shutil
import signal
import subprocess
import xml.etree.ElementTree as ET

from common import SystemTest
from daemon import DTHROTTLED, ROOT, fresh_directory

SIM = DTHROTTLED.parent / "dthrottle-sim"
EX_OK, EX_USAGE, EX_UNAVAILABLE, EX_CANTCREAT = 0, 64, 69, 73
SVG = "{http://www.w3.org/2000/svg}"


def figure(*arguments):
    return subprocess.run([SIM, "figure", *map(str, arguments)], capture_output=True, text=True, timeout=300)


class Figures(SystemTest):
    def setUp(self):
        self.directory = fresh_directory()
        self.addCleanup(shutil.rmtree, self.directory)

    def write(self, *arguments):
        done = figure(*arguments, "--output", self.directory)
        self.assertEqual((done.returncode, done.stderr), (EX_OK, ""))
        return done.stdout

    def test_the_table_has_what_is_expected_and_what_is_printed(self):
        table = figure("dst-5", "gdrl-6").stdout
        self.assertRegex(table, r"(?m)^dst-5: .* \(seed 1\)$")
        self.assertRegex(table, r"(?m)^  ratio of the two +\d\.\d+ +expected 1\.4 to 4\.5 +print: 2\.2$")
        self.assertRegex(table, r"(?m)^  exact: rounds to 0\.95 after the jump +34 +expected 34$")
        self.assertNotIn("NOT", table)

    def test_csv_has_the_figure_s_data(self):
        self.write("dst-5", "gdrl-5", "--csv")
        with open(self.directory / "dst-5.csv") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([row["cycle"] for row in rows], [str(k) for k in range(1001)])
        first, second, ideal = 0, 0, 0
        for row in rows:
            ideal += min(float(row["requests"]), float(row["limit"]))
            first += float(row["accepted_1"])
            second += float(row["accepted_2"])
        percent = [float(x) for x in re.findall(r"over-throttling of graph #\d, % +([\d.]+)", figure("dst-5").stdout)]
        self.assertAlmostEqual(100 * (ideal - first) / ideal, percent[0], places=3)
        self.assertAlmostEqual(100 * (ideal - second) / ideal, percent[1], places=3)
        with open(self.directory / "gdrl-5.csv") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(len(rows), 800)
        self.assertEqual([row["demand_1"] for row in rows if row["round"] in ("10000", "10050")],
                         ["0.0909090909", "0.909090909"])
        self.assertEqual({path.name for path in self.directory.iterdir()}, {"dst-5.csv", "gdrl-5.csv"})

    def test_the_seed_decides(self):
        tables = [figure("dst-5", "--seed", seed).stdout for seed in (7, 7, 8)]
        self.assertEqual(tables[0], tables[1])
        self.assertNotEqual(tables[0].splitlines()[1:], tables[2].splitlines()[1:])

    def test_pictures_name_axes_and_curves(self):
        self.assertIsNotNone(shutil.which("gnuplot"), "gnuplot is not installed (package gnuplot-nox)")
        self.write("dst-5", "dst-7", "--svg", "--png")
        for name, expected in {"dst-5": {"cycle", "requests a cycle, all servers", "accepted, graph #2", "limit"},
                               "dst-7": {"client, by its requests", "throttled", "allowed", "level"}}.items():
            picture = ET.parse(self.directory / f"{name}.svg").getroot()
            texts = {"".join(text.itertext()).strip() for text in picture.iter(f"{SVG}text")}
            self.assertLessEqual(expected, texts)
            self.assertGreater(len(list(picture.iter(f"{SVG}path"))), 4)
            self.assertEqual((self.directory / f"{name}.png").read_bytes()[:8], b"\x89PNG\r\n\x1a\n")

    def test_the_manual_has_every_figure_and_option(self):
        listed = [line.split()[0] for line in figure("--list").stdout.splitlines()]
        self.assertEqual(listed, ["dst-5", "dst-7", "gdrl-3", "gdrl-4", "gdrl-5", "gdrl-6", "gdrl-7", "shed-1", "shed-2",
                                  "shed-3"])
        manual = (ROOT / "man/dthrottle-sim.1").read_text()
        for name in listed:
            self.assertIn(f".It Cm {name}\n", manual)
        for option in re.findall(r"--[a-z]+", figure("--help").stdout):
            self.assertIn(f"Fl -{option[2:]}", manual.replace("Fl h", "Fl -help"))

    def test_over_a_network_hosts_run_the_exchange_of_the_daemon(self):
        table = figure("dst-5", "--network", "--loss", "0", "--delay", "0s").stdout
        self.assertRegex(table, r"(?m)^  over-throttling of graph #1, hosts, % +\d\.\d+ +print: 6\.2$")
        self.assertRegex(table, r"(?m)^  most that all hosts had at once, graph #2, of the limit +1 +expected 0\.999 to 1$")
        done = figure("dst-5", "gdrl-5", "--network")
        self.assertEqual((done.returncode, done.stdout), (EX_USAGE, ""))
        self.assertIn("--network: hosts tell each other nothing in gdrl-5", done.stderr)

    def test_loss_and_delay_without_a_network_are_refused(self):
        for option, value in (("--loss", 0.5), ("--delay", "10s"), ("--loss", 0.01)):
            with self.subTest(option=option):
                done = figure("gdrl-4", option, value)
                self.assertEqual((done.returncode, done.stdout), (EX_USAGE, ""))
                self.assertIn(f"{option} requires --network", done.stderr)

    def test_other_numbers_than_the_source_s_are_taken_where_the_figure_has_them(self):
        table = figure("gdrl-4", "--nodes", 20, "--load", 0.8, "--alpha", 0.01, "--gain", 0.2, "--rounds", 3000).stdout
        self.assertRegex(table, r"(?m)^  exact: rounds to 0\.95 +\d+$")
        self.assertNotIn("expected", table)
        self.assertEqual(len(figure("gdrl-7", "--nodes", 30, "--rounds", 100).stdout.splitlines()), 4)
        done = figure("dst-7", "--alpha", 0.5)
        self.assertEqual((done.returncode, done.stdout), (EX_USAGE, ""))
        self.assertIn("--alpha: there is none in dst-7", done.stderr)

    def test_a_table_says_when_limiters_become_equal_after_the_picture_ends(self):
        table = figure("gdrl-7", "--nodes", 10, "--alpha", 0.0002, "--rounds", 4000).stdout
        rounds = re.findall(r"(?m)filtered: rounds to 0\.9 +(\d+)$", table)
        self.assertEqual(len(rounds), 3)
        for at in rounds:    # the filter alone needs some 3 / alpha
            self.assertAlmostEqual(int(at), 13_500, delta=3000)

    def test_the_end_of_gnuplot_is_heard_of_also_where_the_caller_blocks_every_signal(self):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())    # which a child inherits
        try:
            done = figure("dst-7", "--svg", "--gnuplot", shutil.which("true"), "--output", self.directory)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.assertIn("true ended with status 0", done.stderr)

    def test_what_cannot_be_done_is_said(self):
        done = figure("dst-6")
        self.assertEqual(done.returncode, EX_USAGE)
        self.assertIn("no figure dst-6: there are dst-5, ", done.stderr)
        done = figure("dst-7", "--svg", "--gnuplot", "/nonexistent", "--output", self.directory)
        self.assertEqual(done.returncode, EX_UNAVAILABLE)
        self.assertIn("/nonexistent is not installed (package gnuplot-nox)", done.stderr)
        (self.directory / "file").write_text("")
        done = figure("dst-7", "--csv", "--output", self.directory / "file" / "below")
        self.assertEqual(done.returncode, EX_CANTCREAT)
        self.assertIn("file/below: ", done.stderr)
        (self.directory / "dst-7.csv").mkdir()
        self.assertEqual(figure("dst-7", "--csv", "--output", self.directory).returncode, EX_CANTCREAT)
