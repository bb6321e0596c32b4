"""Runs test programs and test modules of one build directory and counts single cases.

    python3 test/support/run.py LABEL BUILD [--only unit,trace,wire,io,client,sim,paper,fuzz,python,system]

Prints a line a program and, for each failure, what it said; ends with "LABEL: N passed, N failed, N skipped". A program
that crashes, hangs or reports no case is a failure. The exit status is 1 if anything failed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import unittest
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 1200


class Totals:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def add(self, name, passed, failed, skipped=0):
        self.passed += passed
        self.failed += failed
        self.skipped += skipped
        print(f"  {name}: {passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""), flush=True)


def run(command):
    """Exit status (None: it had to be ended) and output."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS_MAX, cwd=ROOT)
    except subprocess.TimeoutExpired as hung:
        return None, (hung.stdout or b"").decode(errors="replace")
    return done.returncode, done.stdout.decode(errors="replace")


def catch(totals, program):
    status, text = run([program, "--durations", "no", "--reporter", "junit"])
    start = text.find("<?xml")
    try:
        suites = ET.fromstring(text[start:text.rindex("</testsuites>") + len("</testsuites>")]) if start >= 0 else []
    except (ET.ParseError, ValueError):
        suites = []
    cases = {}    # one test case of the source may be several of the report
    for case in [case for suite in suites for case in suite.iter("testcase")]:
        bad = case.find("failure") is not None or case.find("error") is not None
        name = case.get("name").split("/")[0]
        cases[name] = cases.get(name, False) or bad
    failed = sum(cases.values())
    # A crash or a sanitizer's report ends a program without blaming a case.
    if not cases or (status != 0 and failed == 0):
        failed += 1
    if failed:
        print(subprocess.run([program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS_MAX,
                             cwd=ROOT).stdout.decode(errors="replace")[-8000:])
    totals.add(program.name, sum(not bad for bad in cases.values()), failed)


def needs(totals, tool, package, program):
    """Runs a program whose every case needs a tool of somebody else's."""
    if shutil.which(tool):
        return catch(totals, program)
    cases = run([program, "--list-test-names-only"])[1].splitlines()
    for case in cases:
        print(f"SKIPPED {case}: {tool} is not installed (package {package})")
    totals.add(program.name, 0, 0 if cases else 1, len(cases))


def fuzz(totals, program):
    corpus = ROOT / "test/fuzz/corpus" / program.name.removeprefix("fuzz_")
    expected = len(list(corpus.iterdir()))
    status, text = run([program, corpus])
    cases = [line for line in text.splitlines() if (corpus / line).is_file() and line]
    failed = 0 if status == 0 and len(cases) == expected else 1
    if failed:
        print(text[-8000:])
    totals.add(program.name, len(cases) - failed, failed)


def python(totals, name, folder, but=()):
    loader = unittest.TestLoader()
    suite = unittest.TestSuite(module for module in loader.discover(str(folder), top_level_dir=str(folder))
                               if module.countTestCases() and not any(f"{m}." in str(module) for m in but))
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2 if os.environ.get("VERBOSE") else 0).run(suite)
    for test, reason in result.skipped:
        print(f"SKIPPED {test}: {reason}")
    failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    passed = result.testsRun - failed - len(result.skipped)
    if result.testsRun == 0:
        failed += 1
    totals.add(name, max(passed, 0), failed, len(result.skipped))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("label")
    parser.add_argument("build", type=Path)
    parser.add_argument("--only", default="unit,trace,wire,io,client,sim,paper,fuzz,python,system")
    parser.add_argument("--but", default="", help="modules of system tests that are left out")
    args = parser.parse_args()
    build = args.build.resolve()
    os.environ["DTHROTTLE_BUILD"] = str(build)
    kinds = args.only.split(",")
    totals = Totals()
    print(f"{args.label}:", flush=True)
    for kind in ("unit", "trace", "wire", "io", "client", "sim", "paper"):
        if kind in kinds:
            catch(totals, build / "test" / f"{kind}_tests")
    if "paper" in kinds:
        needs(totals, "csdp", "coinor-csdp", build / "test/paper_csdp_tests")
    if "fuzz" in kinds:
        for corpus in sorted((ROOT / "test/fuzz/corpus").iterdir()):
            fuzz(totals, build / "test/fuzz" / f"fuzz_{corpus.name}")
    if "python" in kinds:
        python(totals, "checks of the source", ROOT / "test/source")
    if "system" in kinds:
        python(totals, "system tests", ROOT / "test/system", [m for m in args.but.split(",") if m])
    print(f"{args.label}: {totals.passed} passed, {totals.failed} failed, {totals.skipped} skipped", flush=True)
    return 1 if totals.failed else 0


if __name__ == "__main__":
    sys.exit(main())
