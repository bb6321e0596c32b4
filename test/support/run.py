"""Runs test programs and test modules of one build directory and counts single cases.

    python3 test/support/run.py LABEL BUILD [--only unit,thread,trace,wire,io,client,sim,paper,fuzz,python,system,alone]

Prints a line a program with the seconds it took, by the clock and of the processor, and, for each failure, what it said;
ends with "LABEL: N passed, N failed, N skipped". A program that crashes, hangs or reports no case is a failure. The exit
status is 1 if anything failed. With --failures FILE, what failed is added to the file too, so that nobody has to look for
it in a long log.

A test of what takes time judges the machine too. A module or program of such tests that fails runs once more, alone, and
counts as it ends then; the file of failures has both. A crash, a hang or a sanitizer's report counts at once, and so does
what fails in a program that only computes.
"""

import argparse
import concurrent.futures
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 2400

# Programs that only compute run at a low priority, beside tests that mostly wait; what is built meanwhile at a lower one.
COMPUTING = ["unit", "sim", "paper", "trace", "wire"]
WAITING = ["client", "io", "thread"]

# Some modules of system tests run at once: the longest first. Those that look at how long the machine lets somebody wait
# are a kind of their own, "alone", one after the other when all others have ended.
AT_ONCE = 4
LONGEST = ["test_package", "test_capacity", "test_rolling", "test_election", "test_bindings", "test_frameworks",
           "test_faults", "test_peers", "test_hostile", "test_kill"]
ALONE = ["test_liar", "test_reload", "test_storm", "test_upgrade"]
FINAL = re.compile(r"Sanitizer|sanitizer reported|runtime error: |exit status|left with|had died with")


class Totals:
    def __init__(self, label, failures):
        self.passed = self.failed = self.skipped = 0
        self.label, self.failures = label, failures
        self.again = []

    def add(self, seconds, name, passed, failed, skipped=0, said=""):
        self.passed += passed
        self.failed += failed
        self.skipped += skipped
        self.say(seconds, name, passed, failed, skipped, said)

    def judge(self, job, seconds, outcome):
        """The job, None for one that only computes, runs again if it fails for what may be the machine's."""
        name, passed, failed, skipped, said = outcome
        if not (job and failed) or FINAL.search(said):
            return self.add(seconds, *outcome)
        self.say(seconds, name, passed, failed, skipped, said, ", and runs again, alone")
        self.again.append(job)

    def say(self, seconds, name, passed, failed, skipped=0, said="", but=""):
        clock, cpu = seconds
        skips = f", {skipped} skipped" if skipped else ""
        print(f"{said}  {name}: {passed} passed, {failed} failed{skips} ({clock:.0f} s, {cpu:.0f} s CPU){but}", flush=True)
        if failed and self.failures:
            with self.failures.open("a") as file:
                file.write(f"{self.label}, {name}: {failed} failed{but}\n{said[-8000:]}\n")


spent = threading.local()    # seconds of the processor, by the programs of the job that this thread runs


def timed(job, *arguments):
    """The seconds that a job took, by the clock and of the processor, and what it returned."""
    spent.seconds = 0
    begin = time.monotonic()
    outcome = job(*arguments)
    return (time.monotonic() - begin, spent.seconds), outcome


def run(command, idle=False):
    """Exit status (None: it had to be ended) and output. An idle one has a low priority."""
    if idle:
        command = ["nice", "-n", "10", *command]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, cwd=ROOT)
        hung = threading.Event()
        timer = threading.Timer(SECONDS_MAX, lambda: (hung.set(), os.kill(process.pid, signal.SIGKILL)))
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        spent.seconds += usage.ru_utime + usage.ru_stime
        said.seek(0)
        return None if hung.is_set() else process.returncode, said.read().decode(errors="replace")


# Each of these returns what Totals.add wants to know.

def catch(program, idle=True):
    # Into a file, because children and libraries of a program under test say things of their own.
    with tempfile.NamedTemporaryFile(suffix=".xml") as results:
        status, text = run([program, "--durations", "no", "--reporter", "junit", "--out", results.name], idle)
        try:
            suites = ET.parse(results.name).getroot()
        except ET.ParseError:
            suites = []    # it was ended before it wrote them
    cases, said = {}, ""    # one test case of the source may be several of the report
    for case in [case for suite in suites for case in suite.iter("testcase")]:
        bad = case.findall("failure") + case.findall("error")
        name = case.get("name").split("/")[0]
        cases[name] = cases.get(name, False) or bool(bad)
        said += "".join(f"FAILED {case.get('name')}\n{fault.text}\n" for fault in bad)
    failed = sum(cases.values())
    # A crash or a sanitizer's report ends a program without blaming a case.
    if not cases or (status != 0 and failed == 0):
        failed += 1
        said += f"{program.name}: exit status {status}, {len(cases)} cases reported\n{text[-8000:]}\n"
    return program.name, sum(not bad for bad in cases.values()), failed, 0, said


def needs(tool, package, program):
    """Runs a program whose every case needs a tool of somebody else's."""
    if shutil.which(tool):
        return catch(program)
    cases = run([program, "--list-test-names-only"])[1].splitlines()
    skipped = "".join(f"SKIPPED {case}: {tool} is not installed (package {package})\n" for case in cases)
    return program.name, 0, 0 if cases else 1, len(cases), skipped


def fuzz(program):
    corpus = ROOT / "test/fuzz/corpus" / program.name.removeprefix("fuzz_")
    expected = len(list(corpus.iterdir()))
    if corpus.name == "gateway" and not (program.parents[2] / "dthrottle-grpc").exists():
        return program.name, 0, 0, expected, f"SKIPPED {program.name}: this build is without gRPC\n"
    status, text = run([program, corpus], idle=True)
    cases = [line for line in text.splitlines() if (corpus / line).is_file() and line]
    failed = 0 if status == 0 and len(cases) == expected else 1
    return program.name, len(cases) - failed, failed, 0, text[-8000:] if failed else ""


def python_module(folder, module):
    """Runs one module of tests; the last line says how many passed, failed and were skipped."""
    sys.path.insert(0, str(folder))
    suite = unittest.TestLoader().loadTestsFromName(module)
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2 if os.environ.get("VERBOSE") else 0).run(suite)
    for test, reason in result.skipped:
        print(f"SKIPPED {test}: {reason}")
    failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    passed = max(result.testsRun - failed - len(result.skipped), 0)
    print(passed, failed if result.testsRun or result.skipped else failed + 1, len(result.skipped))


def modules_of(folder, but=()):
    """The modules of tests in a folder, the longest first."""
    return sorted((file.stem for file in folder.glob("test_*.py") if file.stem not in but),
                  key=lambda module: (LONGEST + [module]).index(module))


def python(name, folder, module):
    """In a process of its own: one that dies is noticed, and takes no other with it."""
    status, text = run([sys.executable, "-u", __file__, "--module", folder, module])
    said, _, counts = text.rstrip("\n").rpartition("\n")
    complete = re.fullmatch(r"\d+ \d+ \d+", counts) is not None
    passed, failed, skipped = map(int, counts.split()) if complete else (0, 1, 0)
    said = said if complete else f"{text}{module}: exit status {status}"
    return f"{name}, {module}", passed, failed, skipped, said + "\n"


def modules(kind, but):
    """Jobs for the modules of tests of this kind."""
    name, folder = {"python": ("checks of the source", "source")}.get(kind, ("system tests", "system"))
    return [(python, name, ROOT / "test" / folder, module) for module in modules_of(ROOT / "test" / folder, but)
            if kind == "python" or (kind == "alone") == (module in ALONE)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--module", nargs=2, metavar=("FOLDER", "MODULE"), help="only this one, here and now")
    parser.add_argument("label", nargs="?")
    parser.add_argument("build", nargs="?", type=Path)
    parser.add_argument("--only", default="unit,thread,trace,wire,io,client,sim,paper,python,system,alone",
                        help="kinds; fuzz is for a build with a sanitizer")
    parser.add_argument("--but", default="", help="modules of system tests that are left out")
    parser.add_argument("--failures", type=Path, help="a file that what failed is added to")
    args = parser.parse_args()
    if args.module:
        return python_module(*args.module)
    build = args.build.resolve()
    os.environ["DTHROTTLE_BUILD"] = str(build)
    kinds = args.only.split(",")
    totals = Totals(args.label, args.failures)
    print(f"{args.label}:", flush=True)
    programs = build / "test"
    computing = [(catch, programs / f"{kind}_tests") for kind in COMPUTING if kind in kinds]
    if "paper" in kinds:
        computing.append((needs, "csdp", "coinor-csdp", programs / "paper_csdp_tests"))
    if "fuzz" in kinds:
        computing += [(fuzz, programs / "fuzz" / f"fuzz_{corpus.name}")
                      for corpus in sorted((ROOT / "test/fuzz/corpus").iterdir())]
    waiting, alone = [], []
    for kind, jobs in (("python", waiting), ("system", waiting), ("alone", alone)):
        if kind not in kinds:
            continue
        found = modules(kind, args.but.split(","))
        if not found:
            totals.add((0, 0), kind, 0, 1)
        jobs += found
    waiting += [(catch, programs / f"{kind}_tests", False) for kind in WAITING if kind in kinds]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as idle, \
         concurrent.futures.ThreadPoolExecutor(AT_ONCE) as threads:
        jobs = {idle.submit(timed, *job): None for job in computing}
        jobs |= {threads.submit(timed, *job): job for job in waiting}
        for done in concurrent.futures.as_completed(jobs):
            totals.judge(jobs[done], *done.result())
    for job in alone:
        totals.judge(job, *timed(*job))
    for job in totals.again:
        seconds, outcome = timed(*job)
        totals.add(seconds, *outcome)
    print(f"{args.label}: {totals.passed} passed, {totals.failed} failed, {totals.skipped} skipped", flush=True)
    return 1 if totals.failed else 0


if __name__ == "__main__":
    sys.exit(main())
