"""dthrottle-plan model: every golden case of the sources, answered by the command."""

import csv
import json
import math
import os
import shutil
import subprocess
import tempfile
from fractions import Fraction
from pathlib import Path

from common import SystemTest
from daemon import DTHROTTLED

PLAN = DTHROTTLED.parent / "dthrottle-plan"
CASES = Path(__file__).resolve().parents[1] / "paper" / "cases.jsonl"
EX_OK, EX_USAGE, EX_DATAERR = 0, 64, 65


def plan(*arguments, text=None):
    return subprocess.run([PLAN, *map(str, arguments)], input=text, capture_output=True, text=True, timeout=300)


def edges(case):
    """The graph as a list of links."""
    weights = case.get("weights", [1] * len(case["edges"]))
    return "".join(f"{a} {b} {weight!r}\n" for (a, b), weight in zip(case["edges"], weights))


def joined(values):
    return ",".join(repr(value) for value in values)


class Answer:
    """A table of `model`, by the names of its columns."""

    def __init__(self, found):
        self.facts, self.columns, self.rows = found["facts"], found["columns"], found["rows"]

    def column(self, name):
        return [row[self.columns.index(name)] for row in self.rows]

    def row(self, index, prefix):
        """Cells of the columns of a prefix, one a node."""
        return [cell for name, cell in zip(self.columns, self.rows[index]) if name.startswith(prefix + ":")]


class Model(SystemTest):
    case = ""    # the golden case that runs, for messages

    def near(self, found, expected, tolerance):
        """Within a tolerance, absolute below 1 and relative above."""
        if not isinstance(expected, list):
            found, expected = [found], [expected]
        self.assertEqual(len(found), len(expected))
        for value, wanted in zip(found, expected):
            self.assertLessEqual(abs(value - wanted), max(tolerance, 1e-12) * max(1, abs(wanted)), (found, expected))

    def model(self, *arguments, text=None):
        done = plan("model", *arguments, "--json", text=text)
        self.assertEqual((done.returncode, done.stderr), (EX_OK, ""))
        return Answer(json.loads(done.stdout))

    def planned(self, case, *arguments):
        done = plan("-", "--json", "--rounds", 0, "--suggest", 0, "--gamma", repr(case["gamma"]), *arguments, text=edges(case))
        self.assertEqual((done.returncode, done.stderr), (EX_OK, ""))
        return json.loads(done.stdout)

    def each(self, kind, count):
        cases = [case for case in map(json.loads, CASES.read_text().splitlines()) if case["kind"] == kind]
        self.assertEqual(len(cases), count)
        for case in cases:
            self.case = case["id"]
            yield case["input"], case["expect"], case["tol"]

    def _formatMessage(self, message, standard):    # noqa: N802  unittest's own name
        return super()._formatMessage(message, f"{self.case}: {standard}")

    def test_no_golden_case_is_left_out(self):
        kinds = {json.loads(line)["kind"] for line in CASES.read_text().splitlines()}
        self.assertEqual(kinds, {name[len("test_golden_"):] for name in dir(self) if name.startswith("test_golden_")})
        self.assertEqual(len(CASES.read_text().splitlines()), 130)

    def dst(self, case, number, rounds):
        return self.model("dst", "-", "--case", number, "--demands", joined(case["r"]), "--limits", joined(case["x0"]),
                          "--gamma", case["gamma"], "--rounds", rounds, text=edges(case))

    def test_golden_dst_step(self):
        for case, expected, tolerance in self.each("dst_step", 11):
            found = self.dst(case, case["case"], 5)
            self.near(found.row(0, "p"), expected["p0"], tolerance)
            self.near(found.row(1, "x"), expected["x1"], tolerance)
            self.near(found.row(5, "x"), expected["x5"], tolerance)
            self.near(found.column("sum"), [expected["sum"]] * 6, tolerance)

    def test_golden_dst_case4(self):
        for case, expected, tolerance in self.each("dst_case4", 6):
            found = self.dst(case, 4, 60)
            for name, limits in expected.items():
                if name[0] == "x":
                    self.near(found.row(int(name[1:]), "x"), limits, tolerance)
            self.near(found.column("sum")[-1], expected["sum"], tolerance)

    def test_golden_dst_overthrottle(self):
        for case, expected, tolerance in self.each("dst_overthrottle", 4):
            cycles = [f"--cycle={joined(x)}:{joined(r)}" for x, r in zip(case["x"], case["r"])]
            found = self.model("over-throttling", *cycles)
            self.near(found.column("accepted"), expected["a_total"], tolerance)
            self.near(found.column("ideal"), expected["a_ideal"], tolerance)
            self.near(found.facts["percent"], expected["pct"], tolerance)

    def test_golden_dst_alg(self):
        for case, expected, tolerance in self.each("dst_alg", 11):
            found = self.model("divide", "--requests", joined(case["requests"]), "--limit", case["limit"])
            self.near(found.column("algorithm_1"), expected["alg1"], tolerance)
            self.near(found.column("algorithm_2"), expected["alg2"], tolerance)
            if expected["level"] is None:
                self.assertIsNone(found.facts["level"])
            else:
                self.near(found.facts["level"], expected["level"], tolerance)

    def test_golden_dst_phi(self):
        for case, expected, tolerance in self.each("dst_phi", 11):
            found = self.planned(case, "--no-weights", "--variances", joined(case["var_diag"]))
            best = found["best"]
            for value, name in ((best["lambda_2"], "lambda2"), (best["lambda_n"], "lambda_n"),
                                (best["fastest_cycle"], "gamma_opt"), (best["steadiest_cycle"], "gamma_nonsteady_CovI"),
                                (found["phi_cr"], "phi_cr"), (found["phi_ss"], "phi_ss_CovI"),
                                (found["phi_ss_eq24"], "phi_ss_eq24_sigma1"), (found["phi_ss_eq25"], "eq25_sigma1"),
                                (found["phi_ss_of_variances"], "phi_ss_CovDiag")):
                self.near(value, expected[name], tolerance)
            self.near([node["centrality"] for node in found["nodes"]], expected["centrality"], tolerance)

    def test_a_covariance_counts_as_variances_do_and_changes_in_common_count_nothing(self):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "cov"
            diagonal = [[3.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 2, 0], [0, 0, 0, 5]]
            for matrix, expected in ((diagonal, "phi_ss_of_variances"), ([[1.0] * 4] * 4, None)):
                path.write_text("\n".join(" ".join(map(str, row)) for row in matrix))
                done = plan("ring:4", "--json", "--no-weights", "--gamma", 0.1, "--variances", "3,1,2,5", "--covariance", path)
                self.assertEqual((done.returncode, done.stderr), (EX_OK, ""))
                found = json.loads(done.stdout)
                self.near(found["phi_ss_of_covariance"], found[expected] if expected else 0, 1e-9)
            for text, words in (("1 2\n3 4\n", "symmetric"), ("1 2 3\n", "as many numbers"), ("1 x\n", "as many numbers"),
                                ("-1", "below 0"),
                                ("1 50 0 0\n50 1 0 0\n0 0 1 0\n0 0 0 1\n",
                                 "cov: is no covariance: its smallest eigenvalue is -49\n")):
                path.write_text(text)
                done = plan("ring:4", "--covariance", path)
                self.assertEqual((done.returncode, done.stdout), (EX_DATAERR, ""))
                self.assertIn(words, done.stderr)

    def test_golden_dst_phi_unstable(self):
        for case, _, _ in self.each("dst_phi_unstable", 1):
            found = self.planned(case, "--no-weights")
            self.assertEqual((found["stable"], found["phi_ss"]), (False, None))

    def test_golden_dst_sdp(self):
        if shutil.which("csdp") is None:
            self.skipTest("csdp is not installed (package coinor-csdp)")
        for case, expected, tolerance in self.each("dst_sdp", 6):
            found = self.planned(case)
            self.near(found["fastest"]["value"], expected["theta"], tolerance)
            self.near(found["most_robust"]["value"], expected["robust_value"], tolerance)

    def gdrl(self, case, *arguments):
        return self.model("gdrl", "-", "--demands", joined(case["lam"]), "--capacity", case["C"], *arguments, text=edges(case))

    def test_golden_gdrl_sync(self):
        for case, expected, tolerance in self.each("gdrl_sync", 8):
            found = self.gdrl(case, "--gain", case["eta"], "--rounds", 60)
            self.near(found.facts["gain_max"], expected["eta_bound_9"], tolerance)
            for name, shares in expected.items():
                if name[0] == "C":
                    self.near(found.row(int(name[1:]), "C"), shares, tolerance)
            self.near([found.column("jain")[t] for t in (0, 1, 10, 60)], expected["jfi_0_1_10_60"], tolerance)
            self.near(found.facts["equilibrium"], expected["q_star"], tolerance)

    def test_golden_gdrl_mrt(self):
        for case, expected, tolerance in self.each("gdrl_mrt", 4):
            self.assertEqual(case["eta"], "0.9 * bound")
            found = self.gdrl(case, "--indicator", "response-time", "--part", 0.9, "--rounds", 200)
            self.near(found.facts["gain_max"], expected["bound_9"], tolerance)
            for round_, shares in zip((1, 10, 200), expected["C_1_10_200"]):
                self.near(found.row(round_, "C"), shares, tolerance)
            self.near(found.facts["equilibrium"], expected["q_star"], tolerance)

    def test_golden_gdrl_pairwise(self):
        for case, expected, tolerance in self.each("gdrl_pairwise", 4):
            found = self.gdrl(case, "--gain", case["eta"], "--pairs", joined(case["edge_sequence"]))
            self.near(found.row(-1, "C"), expected["C"], tolerance)
            self.near(found.column("jain")[-1], expected["jfi"], tolerance)

    def test_golden_jfi(self):
        for case, expected, tolerance in self.each("jfi", 4):
            self.near(self.model("jain", f"--values={joined(case['q'])}").facts["jain"], expected["jfi"], tolerance)

    def test_golden_dthrottle_trace(self):
        def decimal(fraction):
            nanoseconds = int(Fraction(fraction) * 1_000_000_000)
            return f"{nanoseconds // 1_000_000_000}.{nanoseconds % 1_000_000_000:09}"

        for case, expected, tolerance in self.each("dthrottle_trace", 11):
            requests = ",".join(f"{decimal(at)}:{host}:{count}" for at, host, count in case["events"])
            found = self.model("debits", "--hosts", case["nodes"], "--burst", case["burst"], "--rate", case["rate"], "--delay",
                               decimal(case["processing_delay"]), "--until", expected["buckets_at"], "--requests", requests,
                               "--reports", ",".join(map(decimal, case["report_times"])))
            self.assertEqual([row[1:] for row in found.rows], expected["admitted_denied"])
            self.near([found.facts[f"level:{host}"] for host in range(case["nodes"])], expected["buckets"], tolerance)

    def test_golden_dthrottle_bound(self):
        for case, expected, tolerance in self.each("dthrottle_bound", 6):
            found = self.model("excess", "--hosts", case["nodes"], *(
                part for name in ("burst", "rate", "period", "delay", "loss") for part in ("--" + name, case[name]))).facts
            self.near(found["max_excess"], expected["max_excess"], tolerance)
            self.near(found["refuses_s"], expected["blackout_after_saturated_period_s"], tolerance)
            self.near(found["long_run_error"], expected["long_run_error_lost_deltas"], tolerance)
            wasted = 2 * case["rate"] * case["period"]
            self.near(found["daemon_bound"], expected["max_excess"] + wasted, tolerance)

    def test_golden_logistic(self):
        for case, expected, tolerance in self.each("logistic", 14):
            found = self.model("curve", "--low", case["start"], "--high", case["full"], "--at", case["x"])
            for name, column in (("p", "logistic"), ("p_rescaled", "rescaled"), ("linear", "linear")):
                self.near(found.column(column), [expected[name]], tolerance)

    def test_golden_doorman_alloc(self):
        for case, expected, tolerance in self.each("doorman_alloc", 14):
            clients = ",".join(f"{name}:{wants}:{count}" for name, (wants, count) in case["clients"].items())
            found = self.model("leases", "--capacity", case["capacity"], "--clients", clients)
            for name, column in (("fair", "fair_share"), ("proportional", "proportional_share"), ("static", "static")):
                self.near(found.column(column), [expected[name][client] for client in found.column("client")], tolerance)

    def test_golden_doorman_store(self):
        for case, expected, tolerance in self.each("doorman_store", 8):
            requests = ",".join(f"{client}:{wants}" for client, wants, _ in case["requests"])
            algorithm = {"fair": "fair_share", "prop": "proportional_share"}[case["algorithm"]]
            found = self.model("grants", "--capacity", case["capacity"], "--algorithm", algorithm, "--requests", requests)
            self.near(found.column("gets"), expected["gets"], tolerance)
            self.near(found.facts["has"], expected["sum_has"], tolerance)

    def test_golden_doorman_lease(self):
        for case, expected, _ in self.each("doorman_lease", 7):
            parent = [] if case["parent_expiry"] is None else ["--parent-expiry", case["parent_expiry"]]
            found = self.model("terms", "--now", case["now"], "--lease-length", case["lease_length"], "--refresh-interval",
                               case["base_refresh"], "--decay", case["decay"], *parent)
            self.assertEqual(found.rows[case["level"]], [case["level"], expected["expiry"], expected["refresh"]])

    def test_stability_limits_of_the_cases_are_where_rounds_begin_to_diverge(self):
        for number in (1, 2, 3):
            spreads = []
            for part in (0.98, 1.02):
                common = ("dst", "dst:1", "--case", number, "--demands", "20,30,25,40,10,20,30,15,25,35",
                          "--limits", "16.01,24,20,32,7.99,16,24,12,20,28")    # all but in proportion
                limit = self.model(*common, "--gamma", 0.001, "--rounds", 0).facts["stable_below"]
                found = self.model(*common, "--gamma", part * limit, "--rounds", 60 if part > 1 else 2000)
                first, last = (found.row(i, "p") for i in (0, -1))
                spreads.append((max(last) - min(last), max(first) - min(first)))
            if number != 1:    # in case I the first limits are no equilibrium
                self.assertLess(spreads[0][0], spreads[0][1])
            self.assertGreater(spreads[1][0], spreads[0][0])

    def test_filtered_demands_look_fair_before_they_are(self):
        lam = [i / 11 for i in range(1, 11)]
        arguments = ("gdrl", "ring:10", "--demands", joined(lam), "--capacity", 5.5, "--filter", 0.001, "--rounds", 5000)
        found = self.model(*arguments)
        self.assertGreater(min(found.column("jain_measured")[1:]), 0.99)
        self.assertLess(found.column("jain")[1000], 0.9)
        self.assertGreater(found.column("jain")[-1], 0.9)
        self.assertEqual(found.rows, self.model(*arguments).rows)
        self.assertNotEqual(found.rows, self.model(*arguments, "--seed", 2).rows)

    def test_a_table_reads_as_text_csv_and_json(self):
        arguments = ("model", "divide", "--requests", "1,2,10,10", "--limit", "12")
        self.assertEqual(plan(*arguments, "--csv").stdout.splitlines()[:2],
                         ["application,request,algorithm_1,algorithm_2", "0,1,0.5217391304347826,1"])
        lines = plan(*arguments).stdout.splitlines()
        self.assertEqual(lines[:2], ["level              4.5", "reserve            0"])
        self.assertEqual(len({len(line) for line in lines[3:]}), 1)
        self.assertTrue(math.isclose(self.model(*arguments[1:]).facts["level"], 4.5))

    def test_csv_quotes_what_it_has_to_and_has_facts_where_there_are_no_rows(self):
        header, row = csv.reader(plan("model", "leases", "-C", 10, "--clients", 'x"y:5', "--csv").stdout.splitlines())
        self.assertEqual((len(header), row[0]), (len(row), 'x"y'))
        self.assertEqual(plan("model", "jain", "--values", "1,1", "--csv").stdout, "name,value\njain,1\nspread,0\n")

    def test_output_that_cannot_be_written_is_an_error_with_a_status(self):
        long = ["model", "dst", "dst:1", "-r", joined(range(1, 11)), "-x", joined(range(1, 11)), "-g", "0.1",
                "--rounds", "5000", "--csv"]
        for arguments, stream in ((long, "stdout"), (["no-such-file"], "stderr")):
            with open("/dev/full", "w") as full:
                streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: full}
                done = subprocess.run([PLAN, *arguments], **streams)
            self.assertEqual(done.returncode, os.EX_IOERR, arguments)

    def test_the_manual_s_examples_print_what_it_says(self):
        manual = (CASES.parents[2] / "man/dthrottle-plan.1").read_text()
        examples = [part.partition(".Ed")[0] for part in manual.split("$ dthrottle-plan ")[1:]]
        examples = [example for example in examples if example.startswith("model ")]
        self.assertEqual(len(examples), 3)
        for example in examples:
            command, _, said = example.partition("\n")
            self.assertEqual(plan(*command.split()).stdout, said)

    def test_a_number_that_is_none_or_has_no_end_is_refused(self):
        for command in (
                "dst ring:4 -r 1,2,3,4 -x 1,1,1,1 -g X", "dst ring:4 -r 1,2,3,X -x 1,1,1,1 -g .1",
                "dst ring:4 -r 1,2,3,4 -x X,1,1,1 -g .1", "divide --requests 2,1 --limit X",
                "divide --requests X,1 --limit 2", "over-throttling --cycle 1,X:1,2", "gdrl ring:3 --demands .1,.2,.3 -C X",
                "gdrl ring:3 --demands .1,.2,.3 -C 1 --part X", "gdrl ring:3 --demands .1,.2,.3 -C 1 --gain X",
                "gdrl ring:3 --demands .1,.2,.3 -C 1 --filter X", "gdrl ring:3 --demands X,.2,.3 -C 1",
                "gdrl ring:3 --demands .1,.2,.3 --start 1,X,1", "jain --values 1,X", "curve --low X --high 1",
                "curve --low 1 --high X", "curve --low 0 --high 1 --at X", "debits --until X", "debits --until 5 --burst X",
                "debits --until 5 --rate X", "debits --until 5 --reports 1,X", "debits --until 5 --delay X",
                "debits --until 5 --requests X:0:1", "excess --hosts X", "excess --burst X", "excess --rate X",
                "excess --period X", "excess --delay X", "excess --loss X", "leases -C X --clients a:1",
                "grants -C X --requests a:1", "terms --decay X"):
            for number in ("nan", "-nan", "inf", "1e999"):
                arguments = command.replace("X", number).split()
                done = plan("model", *arguments)
                self.assertEqual((done.returncode, done.stdout), (EX_USAGE, ""), arguments)
                self.assertIn(f"\"{number}\": must be a finite number from ", done.stderr, arguments)
        for arguments in (["-g", "nan"], ["-s", "nan"], ["--variances", "1,nan,1"], ["--limit", "nan"],
                          ["--period", "inf"]):
            done = plan("ring:3", *arguments)
            self.assertEqual((done.returncode, done.stdout), (EX_USAGE, ""), arguments)
            self.assertIn(": must be a finite number from ", done.stderr)
        done = plan("ring:3", "--gamma", "0")
        self.assertIn("--gamma: \"0\": must be a finite number from 1e-09 to 1e+09\n", done.stderr)

    def test_a_report_without_delay_debits_when_it_is_cut(self):
        for delay, level in ((0, 7), (0.5, 6.5)):    # the refill of the time before is lost to a full bucket
            answer = self.model("debits", "--until", 2, "--burst", 10, "--rate", 1, "--requests", "0.5:0:4",
                                "--reports", 1, "--delay", delay)
            self.assertEqual([answer.facts[f"level:{host}"] for host in (0, 1)], [7.5, level])
        answer = self.model("debits", "--until", 2, "--reports", 1)
        self.assertEqual(answer.rows, [])

    def test_rounds_that_diverge_are_said_to(self):
        for arguments in (["dst", "ring:4", "-r", "1,2,3,4", "-x", "1,1,1,1", "-g", "1e9", "--rounds", "100"],
                          ["gdrl", "ring:3", "-l", ".1,.2,.3", "-C", "1", "--gain", "1e9", "--rounds", "100"]):
            done = plan("model", *arguments)
            self.assertEqual((done.returncode, done.stdout), (EX_USAGE, ""), arguments)
            self.assertRegex(done.stderr, r"round \d+: numbers have grown beyond all bounds")

    def test_what_cannot_be_is_named(self):
        for arguments, words in (
                (["dst", "ring:3", "-r", "1,2", "-x", "1,2", "-g", "1"], "ring:3 has 3 nodes, and there are 2 numbers"),
                (["dst", "ring:3", "-r", "1,2,0", "-x", "1,2,3", "-g", "1", "--case", "2"], "demands above 0"),
                (["dst", "ring:3", "-r", "9,9,9", "-x", "0,2,3", "-g", "1", "--case", "3"], "round 0: node 0 has the limit 0"),
                (["gdrl", "ring:12", "-l", ",".join(["1"] * 12), "--rounds", "1000000"], "1000000 rounds of 12 nodes are too many"),
                (["gdrl", "ring:3", "-l", ".1,.2,.3"], "--capacity or --start"),
                (["gdrl", "ring:3", "-l", ".1,.2,.3", "-C", "1", "--pairs", "3"], "no link 3; they are 0 to 2"),
                (["gdrl", "ring:3", "-l", "1,2,3", "-C", "1", "--indicator", "response-time"], "not defined for node 0"),
                (["curve", "--low", "5", "--high", "5"], "--low must be below --high"),
                (["leases", "-C", "9", "--clients", "a:x"], "NAME:WANTS:CLIENTS:PRIORITY is wanted"),
                (["grants", "-C", "9", "--requests", "a"], "NAME:WANTS"),
                (["debits", "--until", "5", "--requests", "1:2:3"], "a host from 0 to 1"),
                (["debits", "--until", "5", "--requests", "1:0.5:3"], "whole numbers of a host"),
                (["leases", "-C", "9", "--clients", "a:1:1:1.5"], "the priority a whole number"),
                (["over-throttling", "--cycle", "1,2:1"], "as many limits as requests"),
                ([], "subcommand")):
            done = plan("model", *arguments)
            self.assertEqual((done.returncode, done.stdout), (EX_USAGE, ""), arguments)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    import unittest
    unittest.main()
