"""The packages for other languages (src/integration) do what libdthrottle does, claim by claim; and a tag is the same
bucket by each of them. One whose language is not installed is skipped."""

import concurrent.futures
import contextlib
import math
import shutil
import signal
import socket
import threading
import time
import unittest
from urllib.parse import quote, quote_from_bytes

import test_capacity
import test_client
import test_worker_page
from common import SystemTest, Unsanitized, report
from daemon import BUILD, ROOT, Daemon, fresh_directory, rule, run, wait_until
from fleet import wait_settled
from test_ask import AskDaemon
from webserver import stopped

PROGRAMS = ROOT / "test/client"

TAGS = [b"a b", b"\\x20", b"\\x5cx20", b"a\\x2", b"line\nfeed", b"return\r", b"\r", b"\xff\x00\xc3\xa4",
        b"a\tb", b"a\rb", b"a\vb", b"a\fb", b"\t", b"\0a\x1fb\0", b"a\xc2\xa0b\xc2\x85c\xe2\x80\xa8d",
        b"x" * 9000, b"x" * 8174 + b"  ", b"x" * 8175 + b" \\x20", b"\\x5c" * 3000]


class Binding:
    """Mixed into the claims of test_client. `language` is the program that runs it."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if shutil.which(cls.language) is None:
            raise unittest.SkipTest(f"{cls.language} is not installed")


class UnderLoad:
    APPLICATIONS = 4
    DEADLINE_MS = 20

    def test_no_call_is_longer_than_its_deadline_while_the_daemon_hangs_dies_and_returns(self):
        asked, ending = [[] for _ in range(self.APPLICATIONS)], threading.Event()

        def ask(application, answers):
            while not ending.is_set():
                answers.append(application.ask(b"C"))

        def wait_answered():
            for answers in asked:
                begin = len(answers)
                wait_until(lambda: "throttle" in [verdict for verdict, _ in answers[begin:]], "it is asked again")

        with Daemon(rule(burst=1)) as daemon, contextlib.ExitStack() as stack:
            address = f"unix:{daemon.query_path}"
            applications = [stack.enter_context(self.application(address, self.DEADLINE_MS)) for _ in asked]
            with concurrent.futures.ThreadPoolExecutor(self.APPLICATIONS) as threads:
                stack.callback(ending.set)
                asking = [threads.submit(ask, *pair) for pair in zip(applications, asked)]
                wait_answered()
                daemon.signal(signal.SIGSTOP)
                time.sleep(0.5)
                daemon.signal(signal.SIGCONT)
                wait_answered()
                daemon.kill()
                time.sleep(0.2)
                daemon.start()
                wait_answered()
                daemon.restart()
                wait_answered()
                ending.set()
                for each in asking:
                    each.result()
        said = [verdict for answers in asked for verdict, _ in answers]
        times = sorted(seconds for answers in asked for _, seconds in answers)
        self.assertEqual(set(said) - test_client.UNANSWERED - {"serve"}, {"throttle"})    # one may be late for its answer
        self.assertIn("timed out", said)
        self.assertLess(times[-1], self.DEADLINE_MS / 1000 + test_client.SLACK_S)
        report(f"{type(self).__name__}: {len(said)} calls, deadline {self.DEADLINE_MS} ms; the longest took "
               f"{1000 * times[-1]:.1f} ms, half of them {1e6 * times[len(times) // 2]:.0f} us")


def answer_one_then_hang_up(listener, asked):
    """A daemon that is killed with a question on its way, and one that is back at once."""
    for answers in (1, 2):
        with listener.accept()[0] as connection:
            lines = connection.makefile("rb")
            for i in range(2):
                asked.append(lines.readline())
                if i < answers:
                    connection.sendall(b"OK\n")
            lines.close()


class InFlight:
    def test_a_question_that_a_daemon_took_with_it_is_asked_again_once(self):
        directory, asked = fresh_directory(), []
        self.addCleanup(shutil.rmtree, directory)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{directory}/sock")
            listener.listen()
            daemon = threading.Thread(target=answer_one_then_hang_up, args=(listener, asked), daemon=True)
            daemon.start()
            with self.application(f"unix:{directory}/sock") as application:
                self.assertEqual(application.verdicts(b"C", 3), ["serve", "serve", "serve"])
            daemon.join()
        self.assertEqual(asked, 4 * [b"C\n"])


class Holds:
    def test_what_a_hold_did_not_need_comes_back_once(self):
        with AskDaemon(rule(burst=10, rate=0.001)) as daemon, self.asking(daemon) as application:
            verdict, said = application.question(b"hold 60000 6 C")
            self.assertEqual((verdict, said[-2]), ("serve", "4"))
            hold = said[-1].encode()
            self.assertEqual([application.question(b"commit " + hold + b" 2")[0] for _ in range(2)], ["serve", "serve"])
            self.assertEqual(application.question(b"1 C"), ("serve", ["0", "0", "0", "-", "7"]))
            verdict, said = application.question(b"hold 60000 7 C")
            self.assertEqual(application.question(b"release " + said[-1].encode())[0], "serve")
            self.assertEqual(application.question(b"1 C")[1][-1], "6")
            self.assertEqual(application.question(b"hold 60000 7 C")[1][-1], "-", "it is refused")
            self.assertEqual(application.question(b"release ffffffff")[0], "bad question")


    def test_tags_of_a_hold_may_be_long(self):
        tags = b" ".join(b"5 " + bytes([letter]) * 200 for letter in b"xyz")
        with AskDaemon(rule(burst=10, rate=0.001)) as daemon, self.asking(daemon) as application:
            verdict, said = application.question(b"hold 60000 5 C " + tags)
            self.assertEqual((verdict, said[-5:-1]), ("serve", ["5"] * 4))
            self.assertEqual(application.question(b"release " + said[-1].encode())[0], "serve")
            self.assertEqual(application.question(b"5 C " + tags)[1][-4:], ["5"] * 4)


class Costs:
    def test_a_cost_beyond_all_that_can_be_asked_for_is_refused(self):
        with AskDaemon(rule(burst=10, rate=0.001)) as daemon, self.asking(daemon) as application:
            for cost in (2**32, 2**32 + 1, 10**11):
                self.assertEqual(application.question(b"%d C" % cost), ("throttle", ["2", "0", "0", "rule-1", "10"]), cost)
                verdict, said = application.question(b"hold 60000 5 C")
                self.assertEqual(application.question(b"commit " + said[-1].encode() + b" 5")[0], "serve")
                self.assertEqual(application.question(b"refund %d C" % cost)[0], "serve")


class Waits:
    def test_a_question_waits_rather_than_being_refused_and_can_give_up(self):
        with AskDaemon(rule(burst=1, rate=0.1, delay="60s")) as daemon, self.asking(daemon) as application:
            self.assertEqual(application.question(b"wait 60000 1 C")[1][-2:], ["0", "-"], "it has its token")
            self.assertEqual(application.question(b"1 C")[0], "throttle", "without a wait")
            verdict, said = application.question(b"wait 60000 1 C")
            delay_ms, hold = int(said[-2]), said[-1]
            self.assertEqual(verdict, "serve")
            self.assertTrue(9000 <= delay_ms <= 10_000, delay_ms)
            self.assertEqual(application.question(b"release " + hold.encode())[0], "serve")
            again = application.question(b"wait 60000 1 C")[1]
            self.assertLessEqual(int(again[-2]), delay_ms, "the turn that was given up")
            self.assertNotEqual(again[-1], hold)
            verdict, said = application.question(b"wait 1000 1 C")
            self.assertEqual((verdict, said[0], said[-2:]), ("throttle", "1", ["0", "-"]), "it would wait for too long")

    def test_a_turn_is_given_to_nobody_else_when_another_call_is_late(self):
        """A call that is late ends the connection on which the turn was granted. The caller still goes on at it, unless
        it gives it up by name on another connection."""
        with AskDaemon(rule(burst=1, rate=0.1, delay="60s")) as daemon, \
                self.application(f"unix:{daemon.ask_path}", 5 * test_client.DEADLINE_MS, "questions") as application:
            first = [said for _, said in (application.question(b"wait 60000 1 C") for _ in range(2))]
            with stopped(daemon):
                verdicts = []
                while verdicts.count("timed out") < 2:
                    verdicts.append(application.question(b"1 D")[0])
            wait_until(lambda: application.question(b"1 D")[0] == "throttle", "the daemon is asked again")
            self.assertEqual(daemon.stats()["ask_connections"], 1, "that of the first turn has ended")
            self.assertEqual(daemon.stats()["ask_waits_given_up"], 0)
            self.assertGreater(int(application.question(b"wait 60000 1 C")[1][-2]), 10_000, "behind the first turn")
            self.assertEqual(application.question(b"release " + first[1][-1].encode())[0], "serve")


class Learns:
    def test_what_to_do_while_nobody_answers_is_learned_from_the_rules(self):
        rules = rule(name="login", match="login:*", fail_closed=True), rule(name="rest")
        with AskDaemon(*rules) as daemon, self.asking(daemon) as application:
            self.assertEqual(application.question(b"learn C"), ("serve", ["serve"]))
            self.assertEqual(application.question(b"learn C login:b%20b"), ("serve", ["refuse"]))
            daemon.kill()
            self.assertIn(application.question(b"learn C")[0], test_client.UNANSWERED)
            self.assertEqual(application.question(b"learn C")[1], ["refuse"], "it stays as it was")


class Refunds:
    def test_what_did_not_count_comes_back(self):
        with AskDaemon(rule(burst=5, rate=0.001)) as daemon, self.asking(daemon) as application:
            self.assertEqual(application.question(b"5 C 1 D")[0], "serve")
            self.assertEqual(application.question(b"refund 3 C 9 D")[0], "serve")
            self.assertEqual(application.question(b"4 C 1 D")[0], "throttle")
            self.assertEqual(application.question(b"3 C 5 D")[0], "serve", "what was given back, and a full bucket at most")
            daemon.kill()
            self.assertIn(application.question(b"refund 1 C")[0], test_client.UNANSWERED)


class Indicates:
    def test_what_an_application_reports_counts(self):
        fleet = test_capacity.fleet(200, hosts=2, indicator="reported", gain=0.005)
        for host in fleet.hosts:
            host.ask_path = f"{host.directory}/ask.sock"
            host._sections["ask"] = {"unix": host.ask_path}
            host.write_settings(*host.limits)
        with fleet as hosts, self.asking(hosts[0]) as application:
            wait_settled(hosts)
            for value, tag in ((0.042, "api"), (1.5e-7, "api:a b"), (250_000, "a\\x20b"), (1e12, "x" * 200)):
                def counts():
                    self.assertEqual(application.question(f"indicate {value!r} {quote(tag)}".encode())[0], "serve")
                    shown = hosts[0].admin_json("capacity " + tag.replace("\\", "\\\\")).get("indicator")
                    return shown is not None and abs(shown - math.log(value)) < 1e-3
                wait_until(counts, f"{value} of {tag} counts")

    def test_what_is_no_report_is_not_taken(self):
        with AskDaemon(rule(burst=10, rate=0.001)) as daemon, self.asking(daemon) as application:
            for wrong in ("0", "-1", "1.1e12", "nan", "inf"):
                self.assertEqual(application.question(f"indicate {wrong} C".encode())[0], "bad question", wrong)
            self.assertEqual(application.question(b"indicate 1 C")[0], "bad question", "nothing is divided")
            self.assertEqual(application.question(b"1 C")[0], "serve", "the connection goes on")
            daemon.kill()
            self.assertIn(application.question(b"indicate 1 C")[0], test_client.UNANSWERED)


class OneTag:
    """In Go the types say what a list is."""

    def test_one_tag_may_stand_in_place_of_a_list(self):
        with AskDaemon(rule(burst=10, rate=0.001)) as daemon, self.asking(daemon) as application:
            for tag in (b"C", b"login:bob", b"login:someone-with-a-long-name", b"a%20b"):
                self.assertEqual(application.question(b"one " + tag), ("serve", ["9", "8", "1"]), tag)


class SameBuckets:
    def test_a_tag_is_the_same_bucket_as_by_the_library(self):
        with AskDaemon(rule(burst=10, rate=0.001)) as daemon, self.asking(daemon) as ours, \
                test_client.Application(f"unix:{daemon.ask_path}", 30_000, "questions") as library:
            for tag in TAGS:
                line = b"1 " + quote_from_bytes(tag, safe="").encode()
                before = int(library.question(line)[1][-1])
                self.assertEqual(ours.question(line)[1][-1], str(before - 1), tag[:20])

    def test_whatever_is_in_a_tag_its_refusal_is_one(self):
        with AskDaemon(rule(burst=10, rate=0.001)) as daemon, self.asking(daemon) as application:
            for tag in TAGS:
                line = b"1 D 11 " + quote_from_bytes(tag, safe="").encode()
                self.assertEqual(application.question(line), ("throttle", ["2", "1", "0", "rule-1", "0", "10"]), tag[:20])

    def test_what_is_no_question_is_not_asked(self):
        with AskDaemon(rule(burst=10, rate=0.001)) as daemon, self.asking(daemon) as application:
            line = b" ".join(b"1 %d" % i for i in range(17))
            self.assertEqual(application.question(line)[0], "bad question")
            self.assertEqual(application.question(b"1 C")[0], "serve")


class Library(Waits, Learns, Refunds, Indicates, test_client.Asking):
    """libdthrottle itself."""


class Python(Binding):
    language = "python3"
    program = ["python3", PROGRAMS / "ask_lines.py"]


class PythonClient(Python, UnderLoad, InFlight, test_client.Client):
    pass


class PythonQuestions(Python, Costs, Holds, Waits, Learns, Refunds, Indicates, OneTag, SameBuckets, test_client.Questions):
    pass


class ByLibrary(Unsanitized):
    """One tag by libdthrottle."""

    def application(self, address, deadline_ms=30_000, *mode):
        return super().application(address, deadline_ms, *mode, "library", BUILD / "src/client/libdthrottle.so")


class PythonLibrary(ByLibrary, Python):
    pass


class PythonLibraryClient(PythonLibrary, UnderLoad, InFlight, test_client.Client):
    pass


class PythonLibraryPages(PythonLibrary, test_worker_page.QuestionPages):
    pass


class Asyncio(Python):
    def application(self, address, deadline_ms=30_000, *mode):
        return super().application(address, deadline_ms, *mode, "async")


class AsyncioClient(Asyncio, UnderLoad, InFlight, test_client.Client):
    pass


class AsyncioQuestions(Asyncio, Costs, Holds, Waits, Learns, Refunds, Indicates, OneTag, SameBuckets, test_client.Questions):
    pass


class Node(Binding):
    language = "node"
    program = ["node", PROGRAMS / "ask_lines.js"]


class NodeClient(Node, UnderLoad, InFlight, test_client.Client):
    pass


class NodeQuestions(Node, Costs, Holds, Waits, Learns, Refunds, Indicates, OneTag, SameBuckets, test_client.Questions):
    pass


class Ruby(Binding):
    language = "ruby"
    program = ["ruby", PROGRAMS / "ask_lines.rb"]


class RubyClient(Ruby, UnderLoad, InFlight, test_client.Client):
    pass


class RubyQuestions(Ruby, Costs, Holds, Waits, Learns, Refunds, Indicates, OneTag, SameBuckets, test_client.Questions):
    pass


class RubyPrograms(Ruby, SystemTest):
    def said(self, script, *arguments):
        """The words that a program with the package prints."""
        done = run("ruby", "-I", ROOT / "src/integration/ruby/lib", "-rdthrottle", "-e", script, *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return done.stdout.split()


class RubyPackage(RubyPrograms):
    def test_an_answer_that_is_there_is_heard_however_late_its_thread_looks(self):
        self.assertEqual(self.said("""
            ours, daemon = UNIXSocket.pair
            channel, read = Dthrottle::Channel.new("unix:/nowhere", 0.01, 5), []
            talk = -> { channel.send(:talk, ours, [Dthrottle::TagLine.new("C")], read, 0) }
            begin; talk.call; rescue Dthrottle::Channel::Late; puts "late"; end
            daemon.write("NO\n")
            talk.call
            puts read.flatten.first"""), ["late", "throttle"])

    def test_an_address_that_is_none_is_an_error_that_says_so(self):
        wrong = ("", "unix:", "/path", "tcp:localhost:1", "tcp::1", "tcp:127.0.0.1:0", "tcp:127.0.0.1:65536",
                 "tcp:127.0.0.1:99999", "tcp:127.0.0.1:1x", "tcp:1.2.3:4", "tcp:10.0.0.7/8:7311", "tcp:[127.0.0.1]:1",
                 "tcp:::1:1", "tcp:[::1/64]:1", "tcp:[fe80::1%lo]:1")
        self.assertEqual(self.said("""
            ARGV.each do |address|
              Dthrottle::Throttle.new(query: address)
              puts address
            rescue ArgumentError => error
              puts error.message.start_with?("#{address} is neither unix:/path nor tcp:ADDRESS:PORT")
            end""", *wrong, "unix:s", "tcp:127.0.0.1:65535", "tcp:[::1]:1"),
                         len(wrong) * ["true"] + ["unix:s", "tcp:127.0.0.1:65535", "tcp:[::1]:1"])

    def test_a_call_that_an_exception_ends_leaves_nothing_behind(self):
        """Rack::Timeout ends the one call that finds out whether the daemon is back."""
        with Daemon(rule(burst=1, rate=0.001)) as daemon:
            self.assertEqual(self.said("""
                require "timeout"
                daemon = ARGV[1].to_i
                throttle = Dthrottle::Throttle.new(query: ARGV[0], deadline: 30, backoff_max: 0.01)
                2.times { puts throttle.ask("C").verdict }
                Process.kill(:STOP, daemon)
                puts throttle.ask("C", 0.05).verdict
                sleep 0.02
                begin
                  Timeout.timeout(0.05) { throttle.ask("C") }
                rescue Timeout::Error
                  puts "ended"
                ensure
                  Process.kill(:CONT, daemon)
                end
                puts throttle.ask("C").verdict
                puts ObjectSpace.each_object(Socket).count { |socket| !socket.closed? }""",
                                       f"unix:{daemon.query_path}", daemon.process.pid),
                             ["serve", "throttle", "timed_out", "ended", "throttle", "1"])

    def test_times_may_be_without_end(self):
        with AskDaemon(rule(burst=10)) as daemon:
            self.assertEqual(self.said("""
                $stderr = File.open("/dev/null", "w") # which is told of the bad question
                throttle = Dthrottle::Throttle.new(query: ARGV[0], questions: ARGV[1])
                [2.0**31, 1e300, Float::INFINITY].each do |time|
                  puts throttle.ask("C", time).verdict, throttle.ask_question("C", time).verdict
                  puts throttle.hold("C", time, time).error.include?("hold.max_ttl")
                end""", f"unix:{daemon.query_path}", f"unix:{daemon.ask_path}"), 3 * ["serve", "serve", "true"])

    def test_a_hold_stands_that_is_committed_at_no_number(self):
        with AskDaemon(rule(burst=10, rate=0.001)) as daemon:
            self.assertEqual(self.said("""
                throttle = Dthrottle::Throttle.new(questions: ARGV[0], deadline: 30)
                hold = throttle.hold("C", 60).hold
                puts [nil, [nil], 0.5].map { |actual| throttle.commit(hold, actual) }, throttle.peek("C").left
                puts throttle.commit(hold, [0]), throttle.peek("C").left""", f"unix:{daemon.ask_path}"),
                             3 * ["bad_question"] + ["9", "serve", "10"])


class RubyLibrary(ByLibrary, Ruby):
    pass


class RubyLibraryClient(RubyLibrary, UnderLoad, InFlight, test_client.Client):
    pass


class RubyLibraryPackage(ByLibrary, RubyPrograms):
    def said_by_library(self, daemon, script):
        return self.said("throttle = Dthrottle::LibraryThrottle.new(query: ARGV[0], questions: ARGV[1], library: ARGV[2], "
                         f"deadline: 30)\n{script}", f"unix:{daemon.query_path}", f"unix:{daemon.ask_path}",
                         BUILD / "src/client/libdthrottle.so")

    def test_a_tag_that_is_named_twice_pays_twice(self):
        with AskDaemon(rule(burst=10, rate=0.001)) as daemon:
            self.assertEqual(self.said_by_library(daemon, """
                puts throttle.ask_all(%w[d d]).verdict, throttle.peek("d").left
                puts throttle.ask_all("d" => 3, "e" => 1).verdict, throttle.peek("d").left"""),
                             ["serve", "8", "serve", "5"])

    def test_a_throttle_that_nobody_uses_any_more_leaves_nothing_open(self):
        with AskDaemon(rule(burst=1000)) as daemon:
            opened, left, verdict = self.said_by_library(daemon, """
                open_files = -> { Dir.children("/proc/self/fd").size }
                before = open_files.call
                ask = -> do
                  others = Array.new(50) { Dthrottle::LibraryThrottle.new(query: ARGV[0], library: ARGV[2], deadline: 30) }
                  others.each { |other| other.ask("C") }
                  others.first.close
                  open_files.call - before
                end
                puts ask.call
                5.times { GC.start }
                puts open_files.call - before, throttle.ask("C").verdict""")
        self.assertEqual((int(opened) >= 49, int(left) < 25, verdict), (True, True, "serve"), (opened, left))

    def test_a_deadline_may_be_without_end(self):
        with AskDaemon(rule(burst=10)) as daemon:
            self.assertEqual(self.said_by_library(daemon, """
                [2.0**31, 1e300, Float::INFINITY].each { |time| puts throttle.ask("C", time).verdict }"""), 3 * ["serve"])

    def test_a_deadline_below_a_millisecond_is_one(self):
        with AskDaemon(rule(burst=1, rate=0.001)) as daemon:
            self.assertEqual(self.said_by_library(daemon, """
                puts throttle.ask("C").verdict, throttle.ask("C", 0).verdict
                ending = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 60
                verdict = throttle.ask("C", 0.0005).verdict
                while verdict != :throttle && Process.clock_gettime(Process::CLOCK_MONOTONIC) < ending
                  sleep 0.003
                  verdict = throttle.ask("C", 0.0005).verdict
                end
                puts verdict"""), ["serve", "timed_out", "throttle"])


class RubyLibraryPages(RubyLibrary, test_worker_page.QuestionPages):
    pass


class Go(Binding):
    language = "go"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        directory = fresh_directory()
        cls.addClassCleanup(shutil.rmtree, directory)
        built = run("go", "build", "-o", directory / "ask_lines", ".", cwd=PROGRAMS / "go", env={"GOFLAGS": "-mod=mod"})
        if built.returncode != 0:
            raise AssertionError(built.stderr)
        cls.program = [directory / "ask_lines"]


class GoClient(Go, UnderLoad, InFlight, test_client.Client):
    pass


class GoQuestions(Go, Holds, Waits, Learns, Refunds, Indicates, SameBuckets, test_client.Questions):
    pass


class GoModule(Go, SystemTest):
    def test_its_own_tests_pass(self):
        done = run("go", "test", "./...", cwd=ROOT / "src/integration/go")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class Lua(Unsanitized, Binding):
    """Over the library itself, which a sanitizer would have to be loaded for."""

    language = "luajit"
    program = ["luajit", PROGRAMS / "ask_lines.lua", BUILD / "src/client/libdthrottle.so"]


class LuaClient(Lua, UnderLoad, InFlight, test_client.Client):
    pass


NO_COST = """
package.path = arg[1] .. "/src/integration/lua/?.lua;" .. package.path
local throttle = require("dthrottle").open { library = arg[2], questions = "unix:" .. arg[3], deadline_ms = 30000 }
local tags = { "C", { "D" } }
print(throttle:learn(tags), throttle:refund(tags), throttle:peek(tags).verdict, throttle:ask_all(tags).verdict)
print(throttle:learn({ "C", { "D", 1 } }))
"""


COLLECTED = """
package.path = arg[1] .. "/src/integration/lua/?.lua;" .. package.path
local open = require("dthrottle").open
do
  local throttle = open { library = arg[2], query = "unix:" .. arg[3] }
  print(throttle:ask("C").verdict)
end
print(pcall(open, { library = arg[2], questions = "tcp:localhost:1" }))
collectgarbage()
collectgarbage()
print("goes on")
"""


LEFT = """
package.path = arg[1] .. "/src/integration/lua/?.lua;" .. package.path
local throttle = require("dthrottle").open { library = arg[2], questions = "unix:" .. arg[3], deadline_ms = 30000 }
local function told(answer)
  print(answer.verdict, answer.refused, answer.left[1], answer.left[2], answer.left[3])
end
told(throttle:ask_question { "C", "D", { "none", 5 } })
told(throttle:ask_question { "C", { "D", 9 }, "none" })
told(throttle:peek { "C", { "D", 10 }, "none" })
told(throttle:ask_question({ "C" }, 0))
"""


COUNTS = """
package.path = arg[1] .. "/src/integration/lua/?.lua;" .. package.path
local throttle = require("dthrottle").open { library = arg[2], questions = "unix:" .. arg[3], deadline_ms = 30000 }
local many = {}
for i = 1, 17 do many[i] = "C" .. i end
for _, tags in ipairs { {}, many, { { "C", 0.5 } } } do
  for _, verb in ipairs { "ask_question", "ask_all", "peek", "hold" } do
    local said = throttle[verb](throttle, tags, verb == "hold" and 1000 or nil)
    print(said.verdict, said.error, #said.left)
  end
  print(throttle:refund(tags), throttle:learn(tags))
end
"""


class LuaPackage(Lua, SystemTest):
    def test_a_refusal_says_what_is_left_of_the_tag_that_refuses_and_of_no_other(self):
        with AskDaemon(rule(match="?", burst=9, rate=0.001)) as daemon:
            done = run("luajit", "-", ROOT, self.program[-1], daemon.ask_path, stdin=LEFT.encode())
        said = (("serve", None, 8, 8, "inf"), ("throttle", 2, None, 8, None), ("throttle", 2, None, 8, None),
                ("timed out", None, None, None, None))
        self.assertEqual(done.stdout.splitlines(),
                         ["\t".join("nil" if word is None else str(word) for word in line) for line in said], done)

    def test_a_question_that_names_no_tag_or_too_many_says_what_is_wrong(self):
        with AskDaemon(rule(burst=9)) as daemon:
            done = run("luajit", "-", ROOT, self.program[-1], daemon.ask_path, stdin=COUNTS.encode())
        wrong = "bad question\ta question names 1 to 16 tags, at costs that are whole numbers from 0 on\t0"
        self.assertEqual(done.stdout.splitlines(), 3 * [*4 * [wrong], "bad question\tbad question"], done)

    def test_a_program_goes_on_when_its_last_handle_is_collected(self):
        done = run("luajit", "-", ROOT, self.program[-1], "/nonexistent", stdin=COLLECTED.encode())
        self.assertEqual((done.returncode, done.stdout.splitlines()[::2]), (0, ["unreachable", "goes on"]), done)

    def test_a_pair_without_a_cost_is_a_bad_question(self):
        with AskDaemon(rule(burst=10, rate=0.001)) as daemon:
            done = run("luajit", "-", ROOT, self.program[-1], daemon.ask_path, stdin=NO_COST.encode())
        self.assertEqual(done.stdout.splitlines(), ["\t".join(4 * ["bad question"]), "serve"], done)


class LuaPages(Lua, test_worker_page.QuestionPages):
    pass


class LuaQuestions(Lua, Costs, Holds, Learns, Refunds, Indicates, OneTag, SameBuckets, test_client.Questions):
    pass
