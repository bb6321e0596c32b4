"""The addon with which Node decides by the page of its thread, as libdthrottle does. Skipped where it is not built."""

import subprocess
import unittest

import test_bindings
import test_client
import test_worker_page
from common import SystemTest
from daemon import BUILD, PATIENCE, ROOT, Daemon, rule, run, wait_until
from test_bindings import PROGRAMS
from test_worker_page import PAGES

ADDON = BUILD / "src/integration/dthrottle-pages.node"


class NodePages(test_bindings.Node):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if not ADDON.exists():
            raise unittest.SkipTest(f"{ADDON} is not built")

    def application(self, address, deadline_ms=30_000, mode="tags"):
        return super().application(address, deadline_ms, mode, ADDON)


class NodePagesClient(NodePages, test_bindings.UnderLoad, test_bindings.InFlight, test_client.Client):
    pass


class NodeWorkerPages(NodePages, test_worker_page.WorkerPages):
    pass


class Addon(NodePages, SystemTest):
    def command(self, case, address, *options):
        return ["node", *options, PROGRAMS / "node_pages.js", case, address, ADDON]

    def play(self, case, address, *options):
        done = run(*self.command(case, address, *options))
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)

    def play_unix(self, case, *options, pages=0):
        """On a daemon of its own, which hears of so many pages at least: what that has counted."""
        with Daemon(rule(burst=1, rate=0.0001), page=PAGES) as daemon:
            self.play(case, f"unix:{daemon.query_path}", *options)
            wait_until(lambda: daemon.stats()["page_connections_accepted"] >= pages, "all pages were opened")
            wait_until(lambda: daemon.stats()["page_connections"] == 0, "no page is left")
            return daemon.stats()

    def test_a_tag_has_the_name_that_a_query_gives_it(self):
        stats = self.play_unix("tags")
        self.assertEqual(stats["page_strange"], 0, "no other tag is told")

    def test_a_store_that_asks_for_verdicts_alone_decides_by_the_page(self):
        stats = self.play_unix("store")
        self.assertGreater(stats["page_refused"], 4)
        self.assertEqual(stats["served"], 1)

    def test_no_argument_does_any_harm(self):
        self.play_unix("arguments")

    def test_a_page_ends_with_the_last_that_may_use_it(self):
        self.play_unix("garbage", "--expose-gc", pages=301)

    def test_a_batch_is_decided_in_order_as_far_as_the_page_says_something(self):
        stats = self.play_unix("batch")
        self.assertGreater(stats["page_refused"], 4)
        self.assertEqual(stats["served"], 2)

    def test_threads_have_a_page_each_which_ends_with_them(self):
        burst = 5000
        with Daemon(rule(burst=burst, rate=0.001), page=PAGES) as daemon, \
                subprocess.Popen(self.command("threads", f"unix:{daemon.query_path}"), stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, text=True) as process:
            served = int(process.stdout.readline())
            wait_until(lambda: daemon.stats()["page_connections"] == 0, "their pages are gone")
            stats = daemon.stats()
            process.communicate(timeout=PATIENCE)
            self.assertEqual(process.returncode, 0)
        self.assertEqual(stats["page_connections_accepted"], 8)
        self.assertGreater(stats["page_served"], 1000)
        self.assertTrue(served <= stats["served"] <= burst, f"{served} were served, and {stats['served']} are counted")

    def test_over_tcp_and_where_nobody_wants_it_there_is_no_page(self):
        with Daemon(rule(burst=1), page=PAGES) as daemon:
            for address in (f"tcp:127.0.0.1:{daemon.tcp_port}", f"unix:{daemon.query_path}"):
                self.play("none", address)
            self.assertEqual(daemon.stats()["page_connections_accepted"], 0)

    def test_a_missing_addon_is_an_error_only_where_it_is_named(self):
        def new(options):
            script = f"""
                const {{ Throttle }} = require({str(ROOT / 'src/integration/node')!r})
                try {{ new Throttle({options}); console.log('made') }} catch (error) {{ console.log(error.message) }}"""
            return run("node", "-e", script).stdout
        self.assertEqual(new("{}"), "made\n")
        self.assertEqual(new("{ pages: false }"), "made\n")
        for path in ("/nowhere/at/all.node", str(PROGRAMS / "ask_lines.c"), str(BUILD / "src/client/libdthrottle.so")):
            self.assertTrue(new(f"{{ pages: {path!r} }}").startswith(f"pages: {path} cannot be loaded: "), path)
        self.assertIn("cannot be loaded", new("{ query: 'tcp:127.0.0.1:1', pages: '/nowhere/at/all.node' }"))


if __name__ == "__main__":
    unittest.main()
