"""The rate limit service of Envoy: calls as Envoy makes them, by messages made from protocol/rate_limit.proto."""

import os
import re
import signal
import threading
import unittest

from common import ParallelTest, SystemTest, report
from daemon import BUILD, DTHROTTLED, PATIENCE, rule, run, wait_until
from envoy import EnvoyDaemon, LimitClient, built_with_grpc, grpc
from test_grpc import gateway, is_alive, upgrade

if DTHROTTLED.exists() and not built_with_grpc():
    raise unittest.SkipTest(f"{BUILD} is built without gRPC: ENVOY'S RATE LIMIT SERVICE IS NOT TESTED")

ADDRESSES = rule(name="addresses", match="edge|remote_address=*", burst=10, rate=0.01)


class Calls(ParallelTest):
    def test_all_descriptors_of_a_call_pay_or_none_does_and_the_answer_says_how_each_stands(self):
        paths = rule(name="paths", match="edge|path=*", burst=3, rate=0.01)
        with EnvoyDaemon(ADDRESSES, paths) as daemon, LimitClient(daemon.envoy_port) as client:
            both = ({"remote_address": "10.0.0.1"}, {"path": "/login"})
            answers = [client.ask(*both) for _ in range(5)]
            self.assertEqual([answer.overall_code for answer in answers], 3 * [1] + 2 * [2])
            self.assertEqual([status.code for status in answers[-1].statuses], [1, 2])
            self.assertEqual([status.limit_remaining for status in answers[-1].statuses], [7, 0])
            self.assertTrue(90 <= answers[-1].statuses[1].duration_until_reset.seconds <= 100)
            fields = {header.key: header.value for header in answers[-1].response_headers_to_add}
            self.assertEqual(fields["ratelimit-policy"], '"paths";q=3;w=300')
            self.assertTrue(90 <= int(fields["retry-after"]) <= 100)
            stats = daemon.stats()
            self.assertEqual((stats["envoy_calls"], stats["envoy_refused"], stats["served"], stats["throttled"]),
                             (5, 2, 6, 2))
            self.assertIn("envoy", daemon.admin("refusals"))

    def test_a_call_without_domain_or_descriptor_fails_and_one_of_an_unknown_domain_is_served(self):
        with EnvoyDaemon(ADDRESSES) as daemon, LimitClient(daemon.envoy_port) as client:
            self.assertTrue(client.served({"remote_address": "10.0.0.1"}, domain="other"))
            for request in (client.request({"remote_address": "a"}, domain=""), client.request()):
                with self.assertRaises(grpc.RpcError) as caught:
                    client.call(request, timeout=PATIENCE)
                self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
            self.assertEqual(daemon.stats()["envoy_calls_invalid"], 2)

    def test_a_reload_changes_the_header_fields(self):
        with EnvoyDaemon(ADDRESSES) as daemon, LimitClient(daemon.envoy_port) as client:
            self.assertEqual(len(client.ask({"remote_address": "a"}).response_headers_to_add), 2)
            daemon._sections["envoy"]["headers"] = "off"
            daemon.write_settings(ADDRESSES)
            daemon.admin("reload")
            client.ask({"remote_address": "a"})    # brings the news
            self.assertEqual(len(client.ask({"remote_address": "a"}).response_headers_to_add), 0)

    def test_the_services_of_grpc_are_there(self):
        with EnvoyDaemon(ADDRESSES) as daemon, LimitClient(daemon.envoy_port) as client:
            check = client.channel.unary_unary("/grpc.health.v1.Health/Check")
            name = b"envoy.service.ratelimit.v3.RateLimitService"
            self.assertEqual(check(b"\x0a" + bytes([len(name)]) + name, timeout=PATIENCE), b"\x08\x01")    # SERVING
            info = client.channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
            (listed,) = info(iter([b"\x3a\x00"]), timeout=PATIENCE)    # list_services
            self.assertIn(name, listed)

    def test_junk_is_survived(self):
        with EnvoyDaemon(ADDRESSES) as daemon, LimitClient(daemon.envoy_port) as client:
            raw = client.channel.unary_unary("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
            for sent in (b"", b"\xff" * 50, os.urandom(1000), b"\x0a\x01a", b"\x0a" * (1 << 21)):
                with self.assertRaises(grpc.RpcError):
                    raw(sent, timeout=PATIENCE)
            self.assertTrue(client.served({"remote_address": "a"}))


class Caller:
    """Calls all the time, for a `with` block."""

    def __init__(self, port):
        self.client, self.calls, self.failures = LimitClient(port), 0, []
        self._end, self._thread = threading.Event(), threading.Thread(target=self._run)

    def _run(self):
        while not self._end.is_set():
            try:
                self.client.ask({"remote_address": "10.0.0.1"})
                self.calls += 1
            except grpc.RpcError as failure:
                self.failures.append(failure)

    def await_more(self, calls=100):
        until = self.calls + calls
        wait_until(lambda: self.calls >= until, "there are more calls")

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()
        self.client.channel.close()


class Lives(SystemTest):
    def test_no_call_fails_during_an_upgrade_and_the_program_goes_on(self):
        with EnvoyDaemon(ADDRESSES) as daemon:
            first = gateway(daemon)
            with Caller(daemon.envoy_port) as caller:
                for _ in range(3):
                    caller.await_more()
                    upgrade(daemon)
                    caller.await_more()
                self.assertEqual(caller.failures, [])
                self.assertEqual((gateway(daemon), daemon.stats()["envoy_connections"]), (first, 1))
                waits = re.findall(r"took over \d+ connections; they waited ([\d.]+) ms", daemon.log)
                report(f"3 upgrades under {caller.calls} calls: nobody was answered for {', '.join(waits)} ms")

    def test_a_program_that_dies_is_started_again(self):
        with EnvoyDaemon(ADDRESSES) as daemon:
            before = gateway(daemon)
            os.kill(before, signal.SIGKILL)
            wait_until(lambda: daemon.log.count("dthrottle-grpc is process") == 2, "another one is there")
            self.assertFalse(is_alive(before))
            with LimitClient(daemon.envoy_port) as client:
                self.assertTrue(client.served({"remote_address": "a"}))
            self.assertEqual(daemon.stats()["envoy_restarts"], 1)

    def test_leases_and_envoy_have_a_program_each(self):
        with EnvoyDaemon(ADDRESSES, lease={"grpc": "127.0.0.1:0"}) as daemon, LimitClient(daemon.envoy_port) as client:
            self.assertTrue(client.served({"remote_address": "a"}))
            self.assertEqual(daemon.log.count("dthrottle-grpc is process"), 2)
            upgrade(daemon)
            self.assertTrue(client.served({"remote_address": "a"}))


class Settings(ParallelTest):
    def test_an_address_that_strangers_reach_is_warned_of(self):
        with EnvoyDaemon(ADDRESSES) as daemon:
            daemon._sections["envoy"]["tcp"] = "0.0.0.0:0"
            daemon.write_settings(ADDRESSES)
            said = run(DTHROTTLED, "--check", daemon.settings_path)
            self.assertIn("envoy.tcp", said.stdout + said.stderr)


if __name__ == "__main__":
    unittest.main()
