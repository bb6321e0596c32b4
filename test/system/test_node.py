"""What the Node package does beside answering as libdthrottle does (test_bindings.py): in a loop that is busy,
and when it is asked for what is no tag."""

import shutil
import socket
import subprocess
import time

import test_bindings
from common import SystemTest
from daemon import PATIENCE, ROOT, fresh_directory, rule, run
from test_ask import AskDaemon

BUSY = """
const { Throttle } = require(process.argv[1] + '/src/integration/node')
const throttle = new Throttle({ query: process.argv[2], pages: false, deadlineMs: 20 })
function burn (ms) {
  for (const end = performance.now() + ms; performance.now() < end;);
}
(async () => {
  console.log((await throttle.ask('C', 30000)).verdict) // a connection is there
  for (let i = 0; i < 5; i++) {
    const asked = throttle.ask('C')
    burn(200) // after which the deadline has passed and the answer has come
    console.log((await asked).verdict)
  }
  throttle.close()
})()
"""

ODD = """
const { Throttle } = require(process.argv[1] + '/src/integration/node')
const [query, questions] = process.argv.slice(2)
const throttle = new Throttle({ query, questions, pages: false, deadlineMs: 30000 })
const none = JSON.parse('{ "toString": 1 }')
const calls = [
  () => throttle.ask(none), () => throttle.ask(Object.create(null)), () => throttle.ask(undefined),
  () => throttle.askBatch(['C', none]), () => throttle.askBatch(undefined), () => throttle.askQuestion(undefined),
  () => throttle.askQuestion(null), () => throttle.askQuestion([none]), () => throttle.askQuestion(new Map([[none, 1]])),
  () => throttle.peek([none]), () => throttle.hold(undefined, 1000), () => throttle.hold('C', 1n),
  () => throttle.commit(none, 1), () => throttle.commit('x', none), () => throttle.refund(undefined),
  () => throttle.refundAll(null), () => throttle.indicate('C', Symbol('x')), () => throttle.learn(undefined)
]
;(async () => {
  for (const call of calls) {
    const said = [await call()].flat().map((answer) => answer.verdict || answer)
    console.log(said.join('/'))
  }
  throttle.close()
})()
"""

BAD = """
const { Throttle } = require(process.argv[1] + '/src/integration/node')
const throttle = new Throttle({ questions: process.argv[2], pages: false, deadlineMs: 30000 })
;(async () => {
  for (const [ttl, cost] of [[3600000, 1], [1000, 0.5]]) console.log((await throttle.hold({ C: cost }, ttl)).error)
  throttle.close()
})()
"""

ALONE = """
const { Throttle } = require(process.argv[1] + '/src/integration/node')
const [, , query, ...deadlines] = process.argv
const throttle = new Throttle({ query, pages: false, backoffMinMs: 1 })
;(async () => {
  for (const ms of deadlines) {
    console.log((await throttle.ask('C', Number(ms))).verdict)
    await new Promise((resolve) => setTimeout(resolve, 10)) // the pause after a failure
  }
})()
"""

NO_NUMBER = """
const { Throttle } = require(process.argv[1] + '/src/integration/node')
const throttle = new Throttle({ questions: process.argv[2], pages: false, deadlineMs: 30000 })
;(async () => {
  const { hold } = await throttle.hold('C', 60000)
  for (const actual of [null, [null], undefined, 0.5]) console.log(await throttle.commit(hold, actual))
  console.log((await throttle.peek('C')).left[0], await throttle.commit(hold, 0), (await throttle.peek('C')).left[0])
  throttle.close()
})()
"""

OPTIONS = """
const { Throttle } = require(process.argv[1] + '/src/integration/node')
const query = process.argv[2]
;(async () => {
  for (const name of ['deadlineMs', 'questions', 'pages']) {
    const throttle = new Throttle({ query, pages: false, backoffMinMs: 1, backoffMaxMs: 1, [name]: undefined })
    let verdict
    for (let i = 0; i < 1000 && verdict !== 'throttle'; i++) { // the daemon may be slow
      ({ verdict } = await throttle.ask('C'))
      await new Promise((resolve) => setTimeout(resolve, 5))
    }
    console.log(verdict)
    throttle.close()
  }
  for (const name of ['failOpen', 'backoffMinMs', 'backoffMaxMs']) {
    const throttle = new Throttle({ query: 'unix:/nonexistent', pages: false, [name]: undefined })
    const { verdict, serve } = await throttle.ask('C', 30000)
    console.log(verdict, serve, (await throttle.ask('C', 30000)).verdict)
  }
})()
"""

NO_TIMES = """
const { Throttle } = require(process.argv[1] + '/src/integration/node')
for (const name of ['deadlineMs', 'backoffMinMs', 'backoffMaxMs']) {
  for (const value of [NaN, null, '20', -1]) {
    try {
      new Throttle({ [name]: value })
      console.log('taken')
    } catch ({ message }) {
      console.log(message)
    }
  }
}
"""


# Asks in every turn of the loop while connecting fails.
GONE = """
const { Throttle } = require(process.argv[1] + '/src/integration/node')
const throttle = new Throttle({ query: process.argv[2], pages: false })
const answers = []
function turn (left) {
  for (let i = 0; i < 20; i++) answers.push(throttle.ask('C', 30000))
  if (left > 0) setImmediate(turn, left - 1)
  else Promise.all(answers).then((all) => console.log([...new Set(all.map(({ verdict }) => verdict))].join()))
}
turn(5)
"""


class Node(test_bindings.Node, SystemTest):
    def test_a_busy_loop_hears_answers_that_have_come_by_the_deadline(self):
        with AskDaemon(rule(burst=2, rate=0.001)) as daemon:
            done = run("node", "-e", BUSY, ROOT, f"unix:{daemon.query_path}")
        self.assertEqual(done.stdout.split(), ["serve"] * 2 + ["throttle"] * 4, done.stderr)

    def asking(self, *deadlines_ms):
        """A process that asks for C with these deadlines, one call after the other, and the connection that it asks on."""
        directory = fresh_directory()
        self.addCleanup(shutil.rmtree, directory)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{directory}/sock")
            listener.listen()
            command = ["node", "-e", ALONE, ROOT, f"unix:{directory}/sock", *map(str, deadlines_ms)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            self.addCleanup(process.__exit__, None, None, None)
            self.addCleanup(process.kill)
            return process, listener.accept()[0]

    def test_a_process_ends_when_its_only_call_is_given_up(self):
        process, connection = self.asking(20)
        with connection:
            self.assertEqual(process.communicate(timeout=PATIENCE)[0], "timed out\n")

    def test_a_process_ends_when_answers_have_come_late_and_in_time(self):
        process, connection = self.asking(20, 30_000)
        with connection, connection.makefile("rb") as lines:
            self.assertEqual([lines.readline() for _ in range(2)], 2 * [b"C\n"])
            connection.sendall(b"OK\nNO\n")
            self.assertEqual(process.communicate(timeout=PATIENCE)[0], "timed out\nthrottle\n")

    def test_a_deadline_may_be_without_end(self):
        process, connection = self.asking("Infinity", 2**31)
        with connection, connection.makefile("rb") as lines:
            for _ in range(2):
                self.assertEqual(lines.readline(), b"C\n")
                time.sleep(0.2)
                connection.sendall(b"OK\n")
            self.assertEqual(process.communicate(timeout=PATIENCE)[0], "serve\nserve\n")

    def test_many_calls_while_connecting_fails_are_no_leak_to_node(self):
        for address in ("unix:/nonexistent", "tcp:127.0.0.1:1"):
            with self.subTest(address):
                done = run("node", "-e", GONE, ROOT, address)
                self.assertEqual((done.stdout, done.stderr), ("unreachable,backing off\n", ""))

    def test_nothing_rejects_whatever_a_caller_names(self):
        with AskDaemon(rule(burst=3, rate=0.001)) as daemon:
            done = run("node", "-e", ODD, ROOT, f"unix:{daemon.query_path}", f"unix:{daemon.ask_path}")
        bad = ["bad question"]
        self.assertEqual(done.stdout.splitlines(),
                         ["serve"] * 3 + ["serve/serve"] + bad * 3 + ["throttle"] * 3 + bad * 8, done.stderr)

    def test_a_bad_question_says_what_is_wrong_and_the_first_is_a_warning(self):
        with AskDaemon(rule(burst=3)) as daemon:
            done = run("node", "-e", BAD, ROOT, f"unix:{daemon.ask_path}")
        ttl, cost = done.stdout.splitlines()
        self.assertIn("hold.max_ttl", ttl)
        self.assertIn("whole numbers", cost)
        self.assertEqual((done.stderr.count("Warning:"), done.stderr.count(ttl)), (1, 1), done.stderr)

    def test_a_hold_stands_that_is_committed_at_no_number(self):
        with AskDaemon(rule(burst=10, rate=0.001)) as daemon:
            done = run("node", "-e", NO_NUMBER, ROOT, f"unix:{daemon.ask_path}")
        self.assertEqual(done.stdout.splitlines(), 4 * ["bad question"] + ["9 serve 10"], done.stderr)

    def test_an_option_that_is_undefined_is_the_one_by_default(self):
        with AskDaemon(rule(burst=1, rate=0.001)) as daemon:
            daemon.ask(["C"])
            done = run("node", "-e", OPTIONS, ROOT, f"unix:{daemon.query_path}")
        self.assertEqual(done.stdout.splitlines(), 3 * ["throttle"] + 3 * ["unreachable true backing off"], done.stderr)

    def test_a_time_that_is_no_number_is_an_error(self):
        done = run("node", "-e", NO_TIMES, ROOT)
        self.assertEqual(done.stdout.splitlines(), [f"{name} is a number of milliseconds from 0 on, not {value}"
                                                    for name in ("deadlineMs", "backoffMinMs", "backoffMaxMs")
                                                    for value in ("NaN", "null", "20", "-1")], done.stderr)
