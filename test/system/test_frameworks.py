"""Limits of web frameworks, held by the daemon in place of their own stores: workers with the real framework, several
processes on two hosts. A framework that is not installed is skipped."""

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
import unittest

from common import LineProcess, SystemTest, Unsanitized, report
from daemon import BUILD, PATIENCE, ROOT, SANITIZED, clean_environment, rule, run, wait_until
from fleet import Fleet, wait_all_hear
from test_ask import AskDaemon, Asker, ask_port

APPS = ROOT / "test/frameworks"
WORKERS = 8
HOSTS = 2
LIMIT, WINDOW_S = 100, 60
BURST = 103    # of which the forecast keeps 3 on two hosts (docs/frameworks.md)
SECONDS = 12    # more than it takes to pay back what a crowd gets too much of
SLACK_S = 20.0    # that a busy machine may take beyond a deadline


class Worker(LineProcess):
    """A process of an application."""

    def __init__(self, command, env):
        super().__init__(command, text=True, env=clean_environment(**env))

    def request(self, client="C"):
        """The status and Retry-After of the response to a request of that client."""
        status, retry_after = self._told(client + "\n").split()
        return int(status), retry_after

    def statuses(self, count, client="C"):
        return [self.request(client)[0] for _ in range(count)]


def unix(daemon):
    return f"unix:{daemon.ask_path}"


def installed(*command, env):
    return shutil.which(command[0]) is not None and subprocess.run(
        command, capture_output=True, env=clean_environment(**env), timeout=PATIENCE).returncode == 0


class Framework(SystemTest):
    """It says how a worker is started, and what shows that the framework is installed."""

    env = {}
    shows = ()

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if not installed(*cls.shows, env=cls.env):
            raise unittest.SkipTest(f"{cls.__name__}: {' '.join(map(str, cls.shows))} fails")

    def command(self, address, limit, deadline_s, on_failure):
        raise NotImplementedError

    def worker(self, address, limit=3, deadline_s=30, on_failure="serve"):
        return Worker(self.command(address, limit, deadline_s, on_failure), self.env)


class Claims:
    """What holds for every framework."""

    def test_a_limit_holds_and_a_refusal_says_when_to_come_back(self):
        with AskDaemon(rule(name="limit", burst=3, rate="3/m")) as daemon, self.worker(unix(daemon)) as worker:
            self.assertEqual(worker.statuses(3), [200, 200, 200])
            refused = worker.request()
            self.assertEqual(refused[0], 429)
            if refused[1] != "-":
                self.assertLessEqual(int(refused[1]), 21)
            self.assertEqual(worker.request("D")[0], 200)

    def test_without_a_daemon_the_application_serves_or_refuses_as_it_chose(self):
        for on_failure, alone, client, again in (("serve", 200, "C", 429), ("refuse", 429, "D", 200)):
            with AskDaemon(rule(burst=1)) as daemon, self.worker(unix(daemon), on_failure=on_failure) as worker:
                self.assertEqual(worker.statuses(2), [200, 429])
                daemon.kill()
                self.assertEqual(set(worker.statuses(50)), {alone})
                daemon.start()
                wait_until(lambda: worker.request(client)[0] == again, "it is asked again")

    def test_a_daemon_that_hangs_costs_a_few_deadlines(self):
        with AskDaemon(rule(burst=1)) as daemon, self.worker(unix(daemon), deadline_s=0.2) as worker:
            wait_until(lambda: worker.request()[0] == 429, "the limit holds")
            daemon.signal(signal.SIGSTOP)
            try:
                begin = time.monotonic()
                self.assertEqual(set(worker.statuses(100)), {200})
                self.assertLess(time.monotonic() - begin, 1.2 + SLACK_S)    # 20 s if each waited for its deadline
            finally:
                daemon.signal(signal.SIGCONT)
            wait_until(lambda: worker.request()[0] == 429, "it is asked again")


class Crowd:
    def test_workers_on_two_hosts_serve_the_limit_and_no_more(self):
        shared = rule(name="limit", burst=BURST, rate=LIMIT / WINDOW_S, share="forecast")
        with Fleet(shared, hosts=HOSTS, ask={"tcp": "127.0.0.1:0"}) as hosts, contextlib.ExitStack() as stack:
            wait_all_hear(hosts)
            workers = [stack.enter_context(self.worker(f"tcp:127.0.0.1:{ask_port(hosts[i % HOSTS])}", limit=LIMIT))
                       for i in range(WORKERS)]
            for worker in workers:
                self.assertEqual(worker.request("other")[0], 200)
            served, seconds = crowd(workers)
        share = served / (LIMIT + LIMIT / WINDOW_S * seconds)
        report(f"{type(self).__name__}: {WORKERS} workers on {HOSTS} hosts serve {served} in {seconds:.1f} s, "
               f"{share:.3f} of the limit")
        self.assertLess(share, 1.03)
        self.assertGreater(share, 0.97)


def crowd(workers):
    """How many requests of one client are served by workers that get them all the time, and in how many seconds."""
    served = [0] * len(workers)
    begin = time.monotonic()

    def ask(i):
        while time.monotonic() < begin + SECONDS:
            served[i] += workers[i].request()[0] == 200
            time.sleep(0.05)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(workers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(served), time.monotonic() - begin


class ByLibrary(Unsanitized):
    """Hits by libdthrottle, and so by the page of the worker."""

    library = BUILD / "src/client/libdthrottle.so.0"

    def test_a_limit_holds_and_the_worker_refuses_by_itself(self):
        with AskDaemon(rule(name="limit", burst=3, rate=0.001), page={"entries": 64}) as daemon, \
                self.worker(unix(daemon)) as worker:
            self.assertEqual(worker.statuses(4), [200, 200, 200, 429])

            def local():
                self.assertEqual(worker.request()[0], 429)
                return daemon.stats()["page_refused"] > 0
            wait_until(local, "the worker refuses by itself")
            self.assertEqual(worker.request("D")[0], 200)
            daemon.kill()
            self.assertEqual(worker.statuses(9, "E"), [200] * 9)


class Limits(Framework):
    """By the package limits."""

    env = {"PYTHONPATH": f"{ROOT}/src/integration/python"}
    python = os.environ.get("DTHROTTLE_PYTHON", "/usr/bin/python3")    # Debian's, which sees its packages

    def command(self, address, limit, deadline_s, on_failure):
        place = address.removeprefix("unix:").removeprefix("tcp:")
        uri = f"dthrottle://{place}?deadline={deadline_s}&on_failure={on_failure}"
        return [self.python, APPS / self.app, uri, f"{limit}/minute"]


class FlaskLimiter(Limits, Claims, Crowd):
    app = "flask_app.py"
    shows = (Limits.python, "-c", "import flask_limiter")


class FlaskLimiterByLibrary(ByLibrary, Limits, Claims):
    app = FlaskLimiter.app
    shows = FlaskLimiter.shows

    def command(self, address, limit, deadline_s, on_failure):
        python, app, uri, limit = super().command(address, limit, deadline_s, on_failure)
        return [python, app, f"{uri}&library={self.library}", limit]


class Slowapi(Limits, Claims, Crowd):
    """From PyPI: where DTHROTTLE_PYTHON finds it."""

    app = "slowapi_app.py"
    shows = (Limits.python, "-c", "import slowapi, fastapi.testclient")


class Aio(Limits, Claims):
    app = "aio_app.py"
    shows = (Limits.python, "-c", "import limits.aio")


STORAGE = """
import sys, time, limits, dthrottle.limits
from limits.storage import storage_from_string
from limits.strategies import FixedWindowRateLimiter
storage = storage_from_string(sys.argv[1])
limiter, item = FixedWindowRateLimiter(storage), limits.parse("3/minute")
print(storage.check())
print([limiter.hit(item, "C") for _ in range(4)], limiter.test(item, "C"), limiter.test(item, "D"))
reset, remaining = limiter.get_window_stats(item, "C")
print(remaining, 0 < reset - time.time() <= 21)
limiter.clear(item, "C")
print([limiter.hit(item, "C") for _ in range(4)])
gone = storage_from_string("dthrottle:///nonexistent?on_failure=raise")
print(gone.check())
try:
    FixedWindowRateLimiter(gone).hit(item, "C")
except ConnectionError as error:
    print("raised")
"""


PENALIZED = """
import asyncio, sys, time, limits, limits.aio.strategies, limits.strategies, dthrottle.limits
from limits.storage import storage_from_string
storage, item = storage_from_string(sys.argv[1]), limits.parse("3/minute")
limiter = limits.strategies.FixedWindowRateLimiter(storage)
print([limiter.hit(item, "C") for _ in range(4)], limiter.clear(item, "C"))
for each in (limiter, limits.strategies.MovingWindowRateLimiter(storage)):
    reset, remaining = each.get_window_stats(item, "C")
    print(each.test(item, "C"), each.test(item, "D"), remaining, 590 < reset - time.time() <= 601)
aio = storage_from_string("async+" + sys.argv[1])
print(asyncio.run(limits.aio.strategies.MovingWindowRateLimiter(aio).test(item, "C")))
"""


QUOTA = """
import sys, time, limits, dthrottle.limits
from limits.storage import storage_from_string
from limits.strategies import FixedWindowRateLimiter
storage = storage_from_string(sys.argv[1])
limiter, item, served = FixedWindowRateLimiter(storage), limits.parse("3/minute"), 0
for _ in range(30):
    served += limiter.hit(item, "C")
    time.sleep(0.01)
    limiter.clear(item, "C")
print(served)
"""


LONG_KEYS = """
import asyncio, sys, limits, limits.aio.strategies, limits.strategies, dthrottle.limits
from limits.storage import storage_from_string
uri, more = sys.argv[1:]
item, keys = limits.parse("3/minute"), (" " * 2050, chr(92) + "x20" + chr(92) * 8150, "x" * 9000, "x" * 4500 + "y" + "x" * 4499)
storage, aio_storage = storage_from_string(uri + more), storage_from_string("async+" + uri)
limiter = limits.strategies.MovingWindowRateLimiter(storage)
aio = limits.aio.strategies.MovingWindowRateLimiter(aio_storage)
for key in keys:
    print([limiter.hit(item, key) for _ in range(4)], limiter.test(item, key), limiter.get_window_stats(item, key)[1])
    print(asyncio.run(aio.hit(item, key)), asyncio.run(aio.test(item, key)))
    limiter.clear(item, key)
    print(limiter.test(item, key))
"""


class Storage(Limits):
    """What the frameworks above do not show."""

    shows = (Limits.python, "-c", "import limits")

    def test_a_key_of_any_length_has_the_rule_of_its_limit_and_a_bucket_of_its_own(self):
        for more in ("", "" if SANITIZED else f"&library={ByLibrary.library}"):
            with AskDaemon(rule(name="limit", match="*/3/1/minute", burst=3, rate=0.001)) as daemon:
                done = run(self.python, "-c", LONG_KEYS, f"dthrottle://{daemon.ask_path}?deadline=30", more, env=self.env)
            self.assertEqual(done.stdout.splitlines(), 4 * ["[True, True, True, False] False 0", "False False", "True"],
                             done.stderr)

    def test_a_fixed_window_counts_and_a_failure_may_be_raised(self):
        with AskDaemon(rule(name="limit", match="*/3/1/minute", burst=3, rate="3/m")) as daemon:
            done = run(self.python, "-c", STORAGE, f"dthrottle://{daemon.ask_path}?deadline=30", env=self.env)
        self.assertEqual(done.stdout.splitlines(), ["True", "[True, True, True, False] False True", "0 True",
                                                    "[True, True, True, False]", "False", "raised"], done.stderr)

    def test_a_key_that_is_penalized_is_over_its_limit_whatever_its_bucket_holds(self):
        with AskDaemon(rule(burst=3, rate="3/m", **{"penalty.after": 1, "penalty.lasts": "10m"})) as daemon:
            done = run(self.python, "-c", PENALIZED, f"dthrottle://{daemon.ask_path}?deadline=30", env=self.env)
        said, stands = ["[True, True, True, False] None"], "False True 0 True"
        self.assertEqual(done.stdout.splitlines(), said + [stands, stands, "False"], done.stderr)


    def test_what_a_key_has_not_spent_since_its_bucket_was_full_stays_counted_in_its_quota(self):
        with AskDaemon(rule(burst=3, rate=1000, quota=12)) as daemon:
            done = run(self.python, "-c", QUOTA, f"dthrottle://{daemon.ask_path}?deadline=30", env=self.env)
        self.assertEqual(done.stdout.splitlines(), ["12"], done.stderr)


class Node(Framework):
    """From npm: where NODE_PATH finds it."""

    env = {"NODE_PATH": os.environ.get("NODE_PATH", ""), "NODE_NO_WARNINGS": "1"}

    def command(self, address, limit, deadline_s, on_failure):
        return ["node", APPS / "node_app.js", self.app, address, str(limit), str(1000 * deadline_s), on_failure]


class ExpressRateLimit(Node, Claims, Crowd):
    app = "express"
    shows = ("node", "-e", "require('express'); require('express-rate-limit')")


class ExpressSkips(Node):
    """With skipSuccessfulRequests."""

    app = "skips"
    shows = ExpressRateLimit.shows

    def test_a_hit_that_does_not_count_comes_back(self):
        with AskDaemon(rule(name="limit", burst=3, rate="3/m")) as daemon, self.worker(unix(daemon)) as worker:
            self.assertEqual(worker.statuses(20), [200] * 20)
            self.assertEqual(worker.statuses(5, "bad"), [400] * 3 + [429] * 2)

    def test_a_hit_comes_back_after_refusals_too(self):
        with AskDaemon(rule(name="limit", burst=3, rate="3/h")) as daemon, self.worker(unix(daemon)) as worker, \
                Asker(daemon.ask_path) as asker:
            asker.ask("take 3 express:C")
            self.assertEqual(worker.statuses(20), [429] * 20)
            asker.ask("refund 2 express:C")
            self.assertEqual(worker.statuses(20), [200] * 20)


class ExpressSkipsFailed(Node):
    """With skipFailedRequests, under which a refusal is a failed request, too."""

    app = "fails"
    shows = ExpressRateLimit.shows

    def test_a_refusal_gives_nothing_back(self):
        with AskDaemon(rule(name="limit", burst=3, rate="3/h")) as daemon, self.worker(unix(daemon)) as worker:
            self.assertEqual(worker.statuses(20, "bad"), [400] * 20)
            self.assertEqual(worker.statuses(50), [200] * 3 + [429] * 47)

    def test_a_failed_request_comes_back_after_refusals_too(self):
        with AskDaemon(rule(name="limit", burst=3, rate="3/h")) as daemon, self.worker(unix(daemon)) as worker, \
                Asker(daemon.ask_path) as asker:
            asker.ask("take 3 express:bad")
            self.assertEqual(worker.statuses(20, "bad"), [429] * 20)
            asker.ask("refund 2 express:bad")
            self.assertEqual(worker.statuses(20, "bad"), [400] * 20)


class ExpressSkipsAll(Node):
    app = "both"
    shows = ExpressRateLimit.shows

    def test_a_refusal_gives_nothing_back_and_all_else_does(self):
        with AskDaemon(rule(name="limit", burst=3, rate="3/h")) as daemon, self.worker(unix(daemon)) as worker, \
                Asker(daemon.ask_path) as asker:
            self.assertEqual(worker.statuses(20), [200] * 20)
            asker.ask("take 3 express:C")
            self.assertEqual(worker.statuses(20), [429] * 20)
            asker.ask("refund 2 express:C")
            self.assertEqual(worker.statuses(20), [200] * 20)


DECREMENTS = """
const { ExpressStore } = require(process.argv[1] + '/src/integration/node')
let refunds = 0
const answers = {
  throttle: { verdict: 'throttle', serve: false, left: [0], waitMs: 1 },
  'timed out': { verdict: 'timed out', serve: true, left: [], waitMs: 0 }
}
const refund = async () => { refunds += 1; return 'serve' }
async function refundsAfter (verdict, between = 0) {
  refunds = 0
  const store = new ExpressStore({ throttle: { askQuestion: async () => answers[verdict], refund } })
  store.init({ limit: 3, windowMs: 1000, skipFailedRequests: true })
  const { resetTime } = await store.increment('C')
  for (let i = 0; i < between; i++) await store.increment(String(i))
  await store.decrement('C')
  const first = refunds
  await store.decrement('C')
  return [first, refunds, resetTime.getTime() > Date.now() + 500] // before that express-rate-limit decrements
}
(async () => {
  console.log(await refundsAfter('throttle'), await refundsAfter('timed out'))
  console.log(await refundsAfter('throttle', 9999), await refundsAfter('throttle', 10000))
})()
"""


class ExpressDecrements(Node):
    """Without a daemon and without express."""

    shows = ("node", "-e", "")

    def test_what_was_not_paid_is_not_given_back(self):
        done = run("node", "-e", DECREMENTS, ROOT, env=self.env)
        self.assertEqual(done.stdout.splitlines(),
                         ["[ 0, 1, true ] [ 0, 1, true ]", "[ 0, 1, true ] [ 1, 2, true ]"], done.stderr)


class Stores(Node):
    """Without their frameworks."""

    shows = ("node", "-e", "")

    def finds_no_fault(self, case, *arguments):
        done = run("node", ROOT / "test/client/node_stores.js", case, *arguments, env=self.env)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def look_at(self, *frameworks):
        with AskDaemon(rule(burst=3, rate=0.0001)) as daemon:
            self.finds_no_fault("look", unix(daemon), *frameworks)


class NodeStores(Stores):
    def test_a_look_says_that_a_key_is_over_its_limit(self):
        self.look_at("express", "fastify")

    def test_what_does_not_count_comes_back_after_a_slow_response_too(self):
        self.finds_no_fault("reset")

    def test_a_store_does_what_it_was_told_while_nobody_answers(self):
        self.finds_no_fault("failure")


RESETS = """
const [root, questions, kind, ...keys] = process.argv.slice(1)
const dthrottle = { questions, deadlineMs: 30000 }

function express () {
  const { ExpressStore } = require(root + '/src/integration/node')
  const store = new ExpressStore(dthrottle)
  store.init({ limit: () => 10, windowMs: 60000 })
  return (key) => store.resetKey(key)
}

function flexible () {
  const { RateLimiterDthrottle } = require(root + '/src/integration/node/flexible')
  const limiter = new RateLimiterDthrottle({ points: 10, duration: 60, keyPrefix: 'flexible', dthrottle })
  return (key) => limiter.delete(key)
}

(async () => {
  const reset = { express, flexible }[kind]()
  for (const key of keys) await reset(key)
  process.exit(0)
})()
"""


class Resets:
    """A key that is reset gets back what it has spent since its bucket was full, and so does what is charged with it."""

    def reset(self, daemon, *keys):
        done = run("node", "-e", RESETS, ROOT, unix(daemon), self.app, *keys, env=self.env)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_reset_gives_its_network_back_what_the_key_has_spent_and_no_more(self):
        limits = (rule(name="net", match=f"{self.app}:*/24", burst=8, rate=0.001),
                  rule(name="key", match=f"{self.app}:*", burst=10, rate=0.001, also=["ipv4/24"]))
        with AskDaemon(*limits) as daemon, Asker(daemon.ask_path) as asker:
            asker.ask(f"take 4 {self.app}:10.0.0.1")
            asker.ask(f"take 3 {self.app}:10.0.0.2")
            self.reset(daemon, "10.0.0.9", "10.0.0.9")
            self.assertEqual(asker.ask(f"peek 0 {self.app}:10.0.0.9"), "OK 1")
            self.reset(daemon, "10.0.0.1", "10.0.0.1")
            self.assertEqual(asker.ask(f"peek 0 {self.app}:10.0.0.1"), "OK 5")

    def test_a_reset_of_a_full_bucket_gives_its_quota_nothing_back(self):
        with AskDaemon(rule(burst=10, rate=1e6, quota=12)) as daemon, Asker(daemon.ask_path) as asker:
            asker.ask(f"take 9 {self.app}:C")    # which is there again after 9 us
            self.reset(daemon, "C")
            self.assertEqual(asker.ask(f"peek 0 {self.app}:C"), "OK 3")


class ExpressResets(Resets, Node):
    app = "express"
    shows = ("node", "-e", "")


class FlexibleResets(Resets, Node):
    app = "flexible"
    shows = ("node", "-e", "require('rate-limiter-flexible')")


class FlexibleStore(Stores):
    shows = FlexibleResets.shows

    def test_a_look_says_that_a_key_is_over_its_limit(self):
        self.look_at("flexible")


class RateLimiterFlexible(Node, Claims, Crowd):
    app = FlexibleResets.app
    shows = FlexibleResets.shows


FLEXIBLE = """
const { RateLimiterDthrottle } = require(process.argv[1] + '/src/integration/node/flexible')
const dthrottle = { questions: process.argv[2], deadlineMs: 30000 }
const options = { points: 3, duration: 60, keyPrefix: 'flexible', dthrottle }
const limiter = new RateLimiterDthrottle(options)
const calls = [
  () => new RateLimiterDthrottle({ ...options, blockDuration: 300 }),
  () => new RateLimiterDthrottle({ ...options, inMemoryBlockOnConsumed: 3 }),
  () => limiter.consume('a'), () => limiter.penalty('a', 4), () => limiter.consume('a'), () => limiter.reward('a', 2),
  () => limiter.consume('a'), () => limiter.reward('a', 2), () => limiter.consume('a'), () => limiter.penalty('a'),
  () => limiter.consume('b', 1.5), () => limiter.consume('b', NaN), () => limiter.penalty('b', 0.5),
  () => limiter.reward('b', 0.5), () => limiter.get('b')
]
;(async () => {
  for (const call of calls) {
    try {
      console.log((await call()).remainingPoints)
    } catch (refused) {
      console.log(refused instanceof Error ? refused.message : 'refused')
    }
  }
  process.exit(0)
})()
"""


class FlexiblePenalties(Node):
    shows = FlexibleResets.shows

    def test_a_penalty_is_owed_and_what_the_daemon_cannot_do_is_an_error(self):
        with AskDaemon(rule(burst=3, rate=0.001)) as daemon:
            done = run("node", "-e", FLEXIBLE, ROOT, unix(daemon), env=self.env)
        said = done.stdout.splitlines()
        self.assertIn("blockDuration", said.pop(0), done.stderr)
        self.assertIn("inMemoryBlockOnConsumed", said[0])
        self.assertEqual(said[1:9], ["2", "0", "refused", "0", "refused", "2", "1", "0"], "it owed 2")
        self.assertEqual([line.startswith("points are whole numbers") for line in said[9:]], [True] * 4 + [False])
        self.assertEqual(said[13], "3")


INSURED = """
const { RateLimiterMemory } = require('rate-limiter-flexible')
const { RateLimiterDthrottle } = require(process.argv[1] + '/src/integration/node/flexible')
const { Throttle } = require(process.argv[1] + '/src/integration/node')
const nobody = { query: 'unix:/nonexistent', questions: 'unix:/nonexistent', pages: false, deadlineMs: 30000 }
const insured = (dthrottle) => new RateLimiterDthrottle({
  points: 9, duration: 3600, insuranceLimiter: new RateLimiterMemory({ points: 2, duration: 3600 }), dthrottle
})
const left = (limiter) => limiter.consume('C').then((served) => served.remainingPoints, () => 'refused')
;(async () => {
  for (const dthrottle of [nobody, { ...nobody, onFailure: 'raise' }, { throttle: new Throttle(nobody) }]) {
    const limiter = insured(dthrottle)
    console.log(await left(limiter), await left(limiter), await left(limiter))
  }
  for (const onFailure of ['serve', 'refuse']) {
    try {
      insured({ ...nobody, onFailure })
      console.log('taken')
    } catch ({ message }) {
      console.log(message)
    }
  }
})()
"""


class FlexibleInsurance(Node):
    shows = FlexibleResets.shows

    def test_the_insurance_limiter_decides_while_nobody_answers(self):
        done = run("node", "-e", INSURED, ROOT, env=self.env)
        said = done.stdout.splitlines()
        self.assertEqual(said[:3], 3 * ["1 0 refused"], done.stderr)
        self.assertEqual(said[3:], 2 * ['onFailure is "raise" where there is an insuranceLimiter, which decides then'])


class FastifyRateLimit(Node, Claims, Crowd):
    app = "fastify"
    shows = ("node", "-e", "require('fastify'); require('@fastify/rate-limit')")


class FastifyStore(Stores):
    shows = FastifyRateLimit.shows

    def test_a_limiter_has_the_tag_of_its_route_or_its_group(self):
        self.finds_no_fault("tags")

    def test_what_needs_a_count_of_refusals_is_an_error(self):
        self.finds_no_fault("counts")


class Rack(Framework):
    shows = ("ruby", "-e", "require 'rack/attack'")

    def command(self, address, limit, deadline_s, on_failure):
        return ["ruby", APPS / "rack_app.rb", address, str(limit), str(deadline_s), on_failure]


class RackAttack(Rack, Claims, Crowd):
    def test_a_client_that_names_itself_like_a_ban_is_limited_as_others(self):
        with AskDaemon(rule(name="limit", burst=3, rate="3/m")) as daemon, self.worker(unix(daemon)) as worker:
            for client in ("fail2ban:bob", "allow2ban:count:bob"):
                self.assertEqual(worker.statuses(4, client), [200, 200, 200, 429])


FAILURES = """
require "dthrottle"
[true, false].each do |fail_open|
  options = { questions: "unix:/nonexistent", fail_open: fail_open }
  [options, { throttle: Dthrottle::Throttle.new(**options) }].each do |given|
    puts [{}, { on_failure: :serve }, { on_failure: :refuse }].map { |more|
      Dthrottle::RackAttackStore.new(**given, **more).increment("C") == 1
    }.join(" ")
  end
end
"""


KEYS = """
require "dthrottle"
class Others
  def increment(key, amount, expires_in:) = key
end
address, *keys = ARGV
module Rack
  module Attack
    def self.cache = Struct.new(:prefix).new(ENV["PREFIX"])
  end
end if ENV["PREFIX"]
store = Dthrottle::RackAttackStore.new(questions: address, deadline: 30, others: Others.new)
keys.each { |key| puts store.increment(key, 1, expires_in: 60) }
begin
  prefix = ENV.fetch("PREFIX", "rack::attack")
  Dthrottle::RackAttackStore.new(questions: address).increment("#{prefix}:7:fail2ban:count:bob")
rescue => error
  puts error.message
end
"""


class RackStore(Rack):
    """Which keys are which tags: those that Rack::Attack and rate_limit of Rails make."""

    shows = ("ruby", "-e", "")

    def increments(self, tag, *keys, **env):
        with AskDaemon(rule(name="one", match=tag, burst=1, rate=0.001), rule(burst=100)) as daemon:
            done = run("ruby", "-I", ROOT / "src/integration/ruby/lib", "-e", KEYS, unix(daemon), *keys, env=env)
        said = done.stdout.splitlines()
        self.assertIn("dthrottled keeps no values", said.pop(), done.stderr)
        return ["refused" if line == str(2**62) else line for line in said]

    def test_a_store_does_what_it_was_told_while_nobody_answers(self):
        done = run("ruby", "-I", ROOT / "src/integration/ruby/lib", "-e", FAILURES)
        self.assertEqual(done.stdout.splitlines(), 2 * ["true true false"] + 2 * ["false true false"], done.stderr)

    def test_only_the_window_of_rack_attack_is_no_part_of_the_tag(self):
        for tag, keys, said, env in (
                ("rack::attack:logins:17:a", ("rack::attack:1:logins:17:a", "rack::attack:2:logins:17:a",
                                              "rack::attack:2:logins:18:a"), ["1", "refused", "1"], {}),
                ("shop:logins:a", ("shop:1:logins:a", "shop:2:logins:a"), ["1", "refused"], {"PREFIX": "shop"}),
                ("rate-limit:sessions:17:a", ("rate-limit:sessions:17:a", "rate-limit:sessions:18:a",
                                              "rate-limit:sessions:17:a"), ["1", "1", "refused"], {})):
            self.assertEqual(self.increments(tag, *keys, **env), said)

    def test_the_other_store_counts_bans_and_nothing_that_clients_name(self):
        ban, named = "rack::attack:1:fail2ban:count:a", "rack::attack:1:logins:rack::attack:1:fail2ban:count:a"
        self.assertEqual(self.increments("*", ban, named, named, "fail2ban:count:a", "rate-limit:1:fail2ban:count:a"),
                         [ban, "1", "refused", "1", "1"])


class RackAttackByLibrary(ByLibrary, Rack, Claims):
    def command(self, address, limit, deadline_s, on_failure):
        return [*super().command(address, limit, deadline_s, on_failure), self.library]
