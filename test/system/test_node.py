"""What the Node package does beside answering as libdthrottle does (test_bindings.py): in a loop that is busy."""

import test_bindings
from common import SystemTest
from daemon import ROOT, rule, run
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


class Node(test_bindings.Node, SystemTest):
    def test_a_busy_loop_hears_answers_that_have_come_by_the_deadline(self):
        with AskDaemon(rule(burst=2, rate=0.001)) as daemon:
            done = run("node", "-e", BUSY, ROOT, f"unix:{daemon.query_path}")
        self.assertEqual(done.stdout.split(), ["serve"] * 2 + ["throttle"] * 4, done.stderr)
