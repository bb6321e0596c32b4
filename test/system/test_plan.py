"""dthrottle-plan from its command line: input, output, exit codes, and the programs it needs."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time

from common import SystemTest
from daemon import DTHROTTLED, fresh_directory, wait_until

PLAN = DTHROTTLED.parent / "dthrottle-plan"
EX_OK, EX_USAGE, EX_DATAERR, EX_NOINPUT, EX_UNAVAILABLE, EX_CANTCREAT, EX_CONFIG = 0, 64, 65, 66, 69, 73, 78

GRAPH_1 = "0 6\n0 1\n1 2\n1 4\n2 3\n4 5\n6 7\n6 9\n7 8\n"
GRAPH_2 = GRAPH_1 + "0 2\n0 3\n0 4\n0 5\n2 7\n3 6\n3 7\n5 6\n5 9\n6 8\n8 9\n"


def plan(*arguments, text=None):
    return subprocess.run([PLAN, *map(str, arguments)], input=text, capture_output=True, text=True, timeout=300)


class Plan(SystemTest):
    def setUp(self):
        self.directory = fresh_directory()
        self.addCleanup(shutil.rmtree, self.directory)

    def quick(self, *arguments, text=None):
        """As JSON, without what takes long."""
        done = plan(*arguments, "--json", "--no-weights", "--rounds", 0, "--suggest", 0, text=text)
        self.assertEqual((done.returncode, done.stderr), (EX_OK, ""))
        return json.loads(done.stdout)

    def test_too_few_rounds_to_simulate_are_refused(self):
        done = plan("ring:5", "--no-weights", "--rounds", 5)
        self.assertEqual((done.returncode, "allowed are 0 and 640 to" in done.stderr), (64, True))

    def test_the_paper_s_two_graphs_have_the_figures_of_its_tables_3_and_4(self):
        for number, links, cycle, speed, noise in ((1, GRAPH_1, 0.4226, 0.9969, 334.80), (2, GRAPH_2, 0.2222, 0.9727, 69.31)):
            (self.directory / "graph").write_text(links)
            for graph in (self.directory / "graph", f"dst:{number}"):
                found = self.quick(graph, "--gamma", 0.02)
                self.assertEqual(round(found["best"]["fastest_cycle"], 4), cycle)
                self.assertEqual(round(found["phi_cr"], 4), speed)
                self.assertEqual(round(found["phi_ss"], 2), noise)

    def test_table_2_by_csdp(self):
        if shutil.which("csdp") is None:
            self.skipTest("csdp is not installed (package coinor-csdp)")
        for graph, fastest, robust in (("complete:5", 0.2, 0.2), ("star:5", 1 / 3, 0.3189)):
            found = json.loads(plan(graph, "--gamma", 1, "--json", "--rounds", 0).stdout)
            for weight in found["fastest"]["weights"]:
                self.assertAlmostEqual(weight, fastest, delta=1e-5)
            for weight in found["most_robust"]["weights"]:
                self.assertAlmostEqual(weight, robust, delta=1e-4)
            self.assertLess(found["fastest"]["gap"], 1e-6)
            self.assertLess(found["most_robust"]["gap"], 1e-3)

    def test_text_has_everything_and_is_aligned(self):
        done = plan("dst:1", "--gamma", 0.02, "--limit", 372, "--period", 5, "--rounds", 30000, "--no-weights")
        self.assertEqual((done.returncode, done.stderr), (EX_OK, ""))
        for words in ("lambda_2 0.156091", "gamma 0.422583 (27)", "gamma 0.379872 (31): Phi_ss 22.9851", "0.996878 (15)",
                      "1473 rounds, 2.05 h", "334.796 (20)", " +- ", " simulated", "6.69593 (24)", "6.65 (25)", "6.205 %",
                      "0.166667 (GDRL 15)", "133 over all pairs"):
            self.assertIn(words, done.stdout)
        table = re.search(r"^node .*\n((?:.+\n){10})", done.stdout, re.M).group(1)
        self.assertEqual(len({len(line) for line in table.splitlines()}), 1)

    def test_a_graph_that_is_slow_is_simulated_only_for_long_enough(self):
        for graph, gamma, rounds in (("path:100", 0.02, ()), ("path:30", 0.1, ("--rounds", 5000))):
            with self.subTest(graph):
                options = (graph, "--gamma", gamma, "--no-weights", "--suggest", 0)
                found = json.loads(plan(*options, *rounds, "--json").stdout)
                self.assertIsNone(found["phi_ss_simulated"])
                needed = 20 * found["rounds_to_settle"]
                self.assertIn(f"not simulated: that takes --rounds {needed}\n", plan(*options, *rounds).stdout)
        # As far from the formula as the standard error has it.
        distances = []
        for seed in range(8):
            found = json.loads(plan(*options, "--rounds", needed, "--seed", seed, "--json").stdout)
            simulated = found["phi_ss_simulated"]
            distances.append((simulated["mean"] - found["phi_ss"]) / simulated["standard_error"])
        self.assertLess(max(map(abs, distances)), 5, distances)
        self.assertLess(sum(z * z for z in distances) / 8, 3, distances)
        slow = plan("ring:10000", "--no-weights", "--rounds", 1000).stdout
        self.assertRegex(slow, r"(?m)^Phi_ss +not simulated: that takes --rounds \d+$")
        self.assertIn("\nPhi_ss             not simulated\n", plan("ring:1200", "--no-weights", "--rounds", 0).stdout)

    def test_the_same_seed_simulates_the_same(self):
        runs = [self.simulated(seed) for seed in (1, 1, 2)]
        self.assertEqual(runs[0], runs[1])
        self.assertNotEqual(runs[0], runs[2])

    def simulated(self, seed):
        return json.loads(plan("ring:5", "--json", "--no-weights", "--rounds", 1000, "--seed", seed).stdout)["phi_ss_simulated"]

    def test_suggested_links_are_absent_and_each_makes_it_steadier(self):
        found = json.loads(plan("path:8", "--json", "--no-weights", "--rounds", 0, "--suggest", 4).stdout)
        links = {frozenset((link["a"], link["b"])) for link in found["links"]}
        best = found["best"]["steadiest_phi_ss"]
        self.assertEqual(len(found["suggestions"]), 4)
        for suggestion in found["suggestions"]:
            link = frozenset((suggestion["a"], suggestion["b"]))
            self.assertNotIn(link, links)
            links.add(link)
            self.assertLess(suggestion["steadiest_phi_ss"], best)
            best = suggestion["steadiest_phi_ss"]

    def test_an_unstable_gamma_is_told_not_computed(self):
        found = self.quick("ring:10", "--gamma", 0.6)
        self.assertEqual((found["stable"], found["phi_ss"], found["rounds_to_settle"]), (False, None, None))

    def test_a_gamma_at_the_limit_is_not_stable(self):
        for graph, gamma in (("ring:4", 0.5), ("path:2", 1), ("complete:5", 0.4)):
            with self.subTest(graph):
                found = self.quick(graph, "--gamma", gamma)
                self.assertEqual((found["stable"], found["phi_ss"], found["rounds_to_settle"]), (False, None, None))
                self.assertTrue(self.quick(graph, "--gamma", gamma * (1 - 1e-9))["stable"])

    def test_ten_thousand_nodes_have_the_ends_of_their_spectrum_and_a_simulation(self):
        done = plan("regular:10000:4", "--no-weights", "--json")
        self.assertEqual((done.returncode, done.stderr), (EX_OK, ""))
        found = json.loads(done.stdout)
        self.assertAlmostEqual(found["best"]["lambda_2"], 0.539524, delta=1e-6)
        self.assertAlmostEqual(found["best"]["lambda_n"], 7.464388, delta=1e-6)
        self.assertEqual(found["rounds_to_settle"], 32)
        self.assertLess(found["phi_ss_simulated"]["standard_error"], 0.01 * found["phi_ss_simulated"]["mean"])
        for unknown in ("phi_ss", "phi_ss_eq24", "phi_ss_eq25", "resistance_total"):
            self.assertIsNone(found[unknown])
        self.assertIn("not simulated: that takes --rounds", plan("ring:10000", "--no-weights").stdout)
        self.assertIn("2 to 10000 nodes", plan("ring:10001").stderr)
        self.assertIn("at most 1000000 links", plan("complete:10000").stderr)

    def solver_that_waits(self):
        """A csdp that says when it runs, and ends only after a word."""
        begun, word, script = (self.directory / name for name in ("begun", "word", "csdp"))
        script.write_text(f"#!/bin/sh\ntouch {begun}\nuntil [ -e {word} ]; do sleep 0.05; done\n")
        script.chmod(0o755)
        return begun, word, script

    def test_ctrl_c_leaves_what_is_done(self):
        begun, _, script = self.solver_that_waits()
        with subprocess.Popen([PLAN, "ring:12", "--csdp", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              start_new_session=True) as process:
            wait_until(begun.exists, "csdp runs")
            os.killpg(process.pid, signal.SIGINT)
            out, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, errors)
        self.assertIn("interrupted: what was not reached is left out", errors)
        for words in ("lambda_2 0.267949", "simulated", "link to add"):
            self.assertIn(words, out)

    def test_ctrl_c_that_csdp_has_not_heard_of_is_heeded(self):
        begun, _, script = self.solver_that_waits()
        for times in (1, 3):
            with self.subTest(times):
                begun.unlink(missing_ok=True)
                with subprocess.Popen([PLAN, "ring:12", "--csdp", script], stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True,
                                      env={**os.environ, "TMPDIR": str(self.directory)}) as process:
                    wait_until(begun.exists, "csdp runs")
                    for _ in range(times):
                        process.send_signal(signal.SIGINT)
                        time.sleep(0.02)
                    out, errors = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 130, errors)
                self.assertIn("interrupted: what was not reached is left out", errors)
                self.assertIn("link to add", out)
                self.assertEqual(list(self.directory.glob("dthrottle-*")), [])

    def test_ctrl_c_is_not_lost_while_csdp_ends_well(self):
        if shutil.which("csdp") is None:
            self.skipTest("csdp is not installed (package coinor-csdp)")
        script, again = self.directory / "csdp", self.directory / "again"
        script.write_text(f'#!/bin/sh\ncsdp "$@" || exit\n[ ! -e {again} ] || kill -INT $PPID\ntouch {again}\n')
        script.chmod(0o755)
        done = plan("ring:12", "--rounds", 0, "--csdp", script)
        self.assertEqual(done.returncode, 130, done.stderr)
        self.assertIn("interrupted: what was not reached is left out", done.stderr)

    def test_a_terminal_is_told_how_far_it_is(self):
        begun, word, script = self.solver_that_waits()
        ours, theirs = os.openpty()
        self.addCleanup(os.close, ours)
        os.set_blocking(ours, False)
        said = bytearray()

        def told(words):
            with contextlib.suppress(BlockingIOError, OSError):
                said.extend(os.read(ours, 4096))
            return re.search(words, bytes(said))

        with subprocess.Popen([PLAN, "ring:12", "--rounds", "0", "--csdp", script], stdout=subprocess.PIPE, stderr=theirs) as process:
            os.close(theirs)
            wait_until(lambda: told(rb"dthrottle-plan: fastest weights, \d+ s"), "a line of progress")
            word.touch()
            process.communicate(timeout=60)
        self.assertEqual(process.returncode, EX_OK)
        told(b"")
        self.assertTrue(said.endswith(b"\r\x1b[K"), said)

    def test_the_dot_file_reads_back_as_the_same_graph(self):
        dot = self.directory / "out.dot"
        before = self.quick("-", "--dot", dot, text='a"b c 2\nc d 0.5\nd \\\\e\\ 3\n')
        after = self.quick(dot)
        for member in ("best", "resistances"):
            self.assertEqual(before[member], after[member])
        self.assertEqual([n["name"] for n in after["nodes"]], [n["name"] for n in before["nodes"]])

    def test_plots_are_pictures(self):
        if shutil.which("gnuplot") is None:
            self.skipTest("gnuplot is not installed (package gnuplot-nox)")
        for name, magic in (("plot.svg", b"<?xml"), ("plot.png", b"\x89PNG")):
            self.quick("dst:2", "--plot", self.directory / name)
            self.assertTrue((self.directory / name).read_bytes().startswith(magic))

    def test_what_is_missing_is_said(self):
        done = plan("ring:5", "--csdp", "/no/csdp", "--rounds", 0)
        self.assertEqual(done.returncode, EX_OK)
        self.assertEqual(done.stdout.count("not found: /no/csdp is not installed (package coinor-csdp)"), 2)
        done = plan("ring:5", "--no-weights", "--gnuplot", "/no/gnuplot", "--plot", self.directory / "x.svg")
        self.assertEqual(done.returncode, EX_UNAVAILABLE)
        self.assertIn("/no/gnuplot is not installed (package gnuplot-nox)", done.stderr)
        done = plan("ring:5", "--no-weights", "--plot", self.directory / "x.pdf")
        self.assertIn(".svg or .png", done.stderr)

    def test_bad_input_is_named_and_has_its_exit_code(self):
        (self.directory / "bad").write_text("a b\nb c x\n")
        (self.directory / "bad.toml").write_text("[peers]\nconnekt = []\n")
        for arguments, status, words in (
                ([], EX_USAGE, "GRAPH, or --settings"),
                (["ring:5", "--bogus"], EX_USAGE, "--bogus"),
                (["ring:5", "--gamma", "0"], EX_USAGE, "--gamma"),
                (["wheel"], EX_NOINPUT, "ring:N"),
                (["ring:many"], EX_USAGE, "ring:N"),
                ([self.directory / "bad"], EX_DATAERR, 'bad:2: weight "x"'),
                (["--settings", self.directory / "bad.toml"], EX_CONFIG, "unknown key peers.connekt"),
                (["ring:5", "--no-weights", "--dot", self.directory / "none" / "x"], EX_CANTCREAT, "none/x")):
            done = plan(*arguments)
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertIn(words, done.stderr)
        done = plan("-", text="a b\nc d\n")
        self.assertEqual((done.returncode, done.stdout), (EX_DATAERR, ""))
        self.assertIn("not connected: a does not reach c", done.stderr)

    def test_settings_of_a_fleet_are_a_graph_and_a_round_takes_their_period(self):
        files = []
        for i, peers in enumerate(([1, 2], [0, 2], [0, 1], [0])):
            connect = ", ".join(f'"tcp://127.0.0.1:{7000 + 2 * j}"' for j in peers)
            files.append(self.directory / f"host-{i}.toml")
            files[-1].write_text(f'[peers]\nname = "host-{i}"\nbind = "tcp://127.0.0.1:{7000 + 2 * i}"\nconnect = [{connect}]\n'
                                 'period = "4s"\n[[rule]]\nburst = 10\nrate = 1.0\n')
        found = self.quick("--settings", *files)
        self.assertEqual([n["name"] for n in found["nodes"]], [f"host-{i}" for i in range(4)])
        self.assertEqual(len(found["links"]), 4)
        self.assertEqual(found["seconds_to_settle"], 4 * found["rounds_to_settle"])

    def test_settings_that_divide_a_capacity_have_its_graph_and_its_rounds(self):
        members = json.dumps([f"host-{i}" for i in range(6)])

        def write(i, degree):
            others = ", ".join(f'"tcp://127.0.0.1:{7000 + 2 * j}"' for j in range(6) if j != i)
            path = self.directory / f"host-{i}.toml"
            path.write_text(f'[peers]\nname = "host-{i}"\nbind = "tcp://127.0.0.1:{7000 + 2 * i}"\nconnect = [{others}]\n'
                            f'[capacity]\nmembers = {members}\ngraph = "regular"\ndegree = {degree}\n'
                            'interval = "250ms"\n[[rule]]\nburst = 100\nrate = 100.0\nshare = "capacity"\n')
            return path
        files = [write(i, 2) for i in range(6)]
        found = self.quick("--settings", *files)
        self.assertEqual([n["name"] for n in found["nodes"]], [f"host-{i}" for i in range(6)])
        self.assertEqual(len(found["links"]), 6)    # 15 connections
        self.assertEqual(found["seconds_to_settle"], 0.25 * found["rounds_to_settle"])
        write(5, 3)
        refused = plan("--settings", *files)
        self.assertEqual(refused.returncode, EX_CONFIG)
        self.assertIn("host-5.toml: divides over other links than", refused.stderr)

    def test_variances_of_a_gain_that_is_too_large_are_infinite(self):
        done = plan("ring:5", "--gamma", 5, "--rounds", 0, "--no-weights", "--suggest", 0, "--variances", "0,1,1,1,1")
        self.assertEqual((done.returncode, done.stderr), (EX_OK, ""))
        self.assertNotIn("nan", done.stdout)


if __name__ == "__main__":
    import unittest
    unittest.main()
