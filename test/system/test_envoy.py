"""The rate limit service of Envoy: calls as Envoy makes them, by messages made from protocol/rate_limit.proto."""

import contextlib
import os
import re
import shutil
import signal
import socket
import struct
import threading
import time
import unittest

from authority import Authority
from common import ParallelTest, SystemTest, report
from daemon import BUILD, DTHROTTLED, PATIENCE, rule, run, wait_until
from envoy import EnvoyDaemon, LimitClient, QuotaClient, built_with_grpc, envoy_port, grpc
from fleet import Fleet, all_hear
from leases import resource
from test_grpc import gateway, is_alive, upgrade

if DTHROTTLED.exists() and not built_with_grpc():
    raise unittest.SkipTest(f"{BUILD} is built without gRPC: ENVOY'S RATE LIMIT SERVICE IS NOT TESTED")

LIMITS = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
QUOTAS = b"/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas"
OPENING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])    # and SETTINGS


def headers(stream, path, further=None):
    """The frame by which a call begins."""
    fields = {b":method": b"POST", b":scheme": b"http", b":path": path, b":authority": b"a", b"te": b"trailers",
              b"content-type": b"application/grpc", **(further or {})}
    block = b"".join(b"\0" + bytes([len(k)]) + k + bytes([len(v)]) + v for k, v in fields.items())
    return len(block).to_bytes(3, "big") + bytes([1, 4]) + stream.to_bytes(4, "big") + block


def data(stream, message):
    """The frame with the only message of a call."""
    return (5 + len(message)).to_bytes(3, "big") + bytes([0, 1]) + stream.to_bytes(4, "big") + b"\0" + \
        len(message).to_bytes(4, "big") + message


def segments_with_data(connection):
    """How many have come (tcp_info of linux/tcp.h)."""
    return struct.unpack_from("<I", connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), 152)[0]


def asks_when_silent(connection):
    """Whether the kernel keeps a timer for that at the other end of a connection over loopback (proc(5), /proc/net/tcp)."""
    _, here = connection.getsockname()
    _, there = connection.getpeername()
    with open("/proc/net/tcp") as rows:
        sockets = [row.split() for row in rows]
    return any(s[1].endswith(f":{there:04X}") and s[2].endswith(f":{here:04X}") and s[5].startswith("02:") for s in sockets)


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

    def test_nothing_of_a_call_is_left_over_for_the_next_one(self):
        paths = rule(name="paths", match="edge|path=*", burst=1, rate=0.01)
        with EnvoyDaemon(ADDRESSES, paths) as daemon, LimitClient(daemon.envoy_port) as client:
            self.assertTrue(client.served({"path": "/login"}))
            for i in range(3):
                address = {"remote_address": f"10.0.0.{i}"}
                many = client.ask(address, {"path": "/login"}, {"note": 400 * i * "long"})
                self.assertEqual((many.overall_code, len(many.statuses), len(many.response_headers_to_add)), (2, 3, 3))
                one = client.ask(address)
                self.assertEqual((one.overall_code, len(one.statuses), len(one.response_headers_to_add)), (1, 1, 2))
                self.assertEqual(one.statuses[0].limit_remaining, 9)
                none = client.ask({"x": "y"}, domain="other")
                self.assertEqual((len(none.response_headers_to_add), none.statuses[0].HasField("current_limit")), (0, False))

    def test_answers_of_calls_that_come_together_go_together(self):
        with EnvoyDaemon(ADDRESSES) as daemon, LimitClient(daemon.envoy_port) as client:
            message = client.request({"remote_address": "10.0.0.1"}).SerializeToString()

            def segments(calls=50):
                with socket.create_connection(("127.0.0.1", daemon.envoy_port), PATIENCE) as connection, \
                        connection.makefile("rb") as frames:
                    connection.sendall(OPENING + b"".join(headers(stream, LIMITS) + data(stream, message)
                                                          for stream in range(1, 2 * calls, 2)))
                    while calls > 0:
                        head = frames.read(9)
                        frames.read(int.from_bytes(head[:3], "big"))
                        calls -= head[3] == 1 and head[4] & 1    # HEADERS that end a stream
                    return segments_with_data(connection)

            # Some 5 each; 20 by what gRPC does itself.
            self.assertLess(sum(segments() for _ in range(10)), 100)

    def test_a_reload_changes_the_header_fields(self):
        with EnvoyDaemon(ADDRESSES) as daemon, LimitClient(daemon.envoy_port) as client:
            self.assertEqual(len(client.ask({"remote_address": "a"}).response_headers_to_add), 2)
            daemon._sections["envoy"]["headers"] = "off"
            daemon.write_settings(ADDRESSES)
            daemon.admin("reload")
            client.ask({"remote_address": "a"})    # brings the news
            self.assertEqual(len(client.ask({"remote_address": "a"}).response_headers_to_add), 0)

    def test_a_descriptor_brings_a_limit_along_where_its_rule_allows_it_and_every_host_holds_it(self):
        HOUR = 3
        plans = rule(name="plans", match="edge|plan=*", burst=2, rate=0.001, max_own_limit=100)
        with Fleet(plans, ADDRESSES, envoy={"tcp": "127.0.0.1:0"}) as hosts, contextlib.ExitStack() as stack:
            a, b = (stack.enter_context(LimitClient(envoy_port(host))) for host in hosts)
            wait_until(lambda: all_hear(hosts), "they hear each other")

            def ask(client, requests, unit=HOUR, hits=1, **entries):
                request = client.request(entries or {"plan": "gold"})
                request.descriptors[0].hits_addend.SetInParent()    # where 0 means none
                request.descriptors[0].hits_addend.value = hits
                request.descriptors[0].limit.requests_per_unit = requests
                request.descriptors[0].limit.unit = unit
                answer = client.call(request, timeout=PATIENCE)
                limit = answer.statuses[0].current_limit
                return answer.overall_code, limit.requests_per_unit, limit.unit, answer.statuses[0].limit_remaining

            wait_until(lambda: ask(a, 10, plan="probe")[1:3] == (10, HOUR), "the daemon has told that limits count")
            self.assertEqual(ask(a, 42, hits=40), (1, 42, HOUR, 2))
            wait_until(lambda: ask(b, 42, hits=0)[3] == 2, "the other host has heard of it")
            self.assertEqual(ask(b, 42, hits=3)[0], 2)
            self.assertEqual(ask(b, 42, hits=2), (1, 42, HOUR, 0))
            wait_until(lambda: ask(a, 42)[0] == 2, "the first host has heard of it")
            why = hosts[0].admin("why edge|plan=gold|42/h")
            self.assertIn("The tag names its limit itself", why)
            self.assertEqual(hosts[1].admin_json("show edge|plan=gold|42/h")["burst"], 42)
            refused = hosts[0].stats()["envoy_limits_refused"]
            self.assertEqual(ask(a, 101)[3], 1)    # by the rule
            self.assertEqual(ask(a, 0)[3], 0)
            self.assertEqual(ask(a, 5, unit=9)[0], 2)
            self.assertEqual(ask(a, 5, remote_address="10.0.0.1")[3], 9)
            self.assertEqual(hosts[0].stats()["envoy_limits_refused"], refused + 4)

    def test_limits_that_descriptors_bring_along_are_passed_over_where_no_rule_allows_them(self):
        with EnvoyDaemon(ADDRESSES) as daemon, LimitClient(daemon.envoy_port) as client:
            request = client.request({"remote_address": "a"})
            for requests in (1000, 2000):
                request.descriptors[0].limit.requests_per_unit = requests
                request.descriptors[0].limit.unit = 1
                answer = client.call(request, timeout=PATIENCE)
            self.assertEqual(answer.statuses[0].limit_remaining, 8)
            self.assertEqual(daemon.stats()["envoy_limits_refused"], 0)

    def test_bytes_that_are_no_text_evade_no_limit(self):
        with EnvoyDaemon(rule(burst=1, rate=0.01)) as daemon, LimitClient(daemon.envoy_port) as client:
            entry = client.pb.RateLimitDescriptor.Entry(key="path", value=b"/\xff\xfe\n")
            request = client.pb.RateLimitRequest(
                domain="edge", descriptors=[client.pb.RateLimitDescriptor(entries=[entry])])
            self.assertEqual([client.call(request, timeout=PATIENCE).overall_code for _ in range(2)], [1, 2])

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


WEB = {"rule": "web"}


def quotas(**keys):
    return resource("edge|*", lease_length="15s", refresh_interval="5s",
                    **{"learning_mode_duration": "0s", **keys})


class Quotas(ParallelTest):
    def test_a_bucket_is_a_lease_client_by_the_name_of_its_envoy(self):
        with EnvoyDaemon(quotas()) as daemon, QuotaClient(daemon.envoy_port, "edge-1") as one:
            self.assertEqual(one.ask(WEB, {"rule": "other"}), [100, 100])
            with QuotaClient(daemon.envoy_port, "edge-1") as same, QuotaClient(daemon.envoy_port) as nameless:
                self.assertEqual((same.ask(WEB), nameless.ask(WEB)), ([0], [0]))
                clients = {row["client"] for row in daemon.admin_json("leases edge|rule=web")["clients"]}
            self.assertEqual(clients, {"edge-1#0", "edge-1#1", "envoy#0"})
            self.assertEqual(daemon.stats()["envoy_reports"], 3)

    def test_an_envoy_that_comes_back_has_what_it_had(self):
        with EnvoyDaemon(quotas(), lease={"min_request_interval": "0s"}) as daemon:
            with QuotaClient(daemon.envoy_port, "edge-1") as first:
                self.assertEqual(first.ask(WEB), [100])
            def again():
                with QuotaClient(daemon.envoy_port, "edge-1") as second:
                    return second.ask(WEB) == [100]
            wait_until(again, "the end of its stream was noticed")

    def test_a_stream_whose_path_has_gone_silent_ends_and_leaves_its_name(self):
        with EnvoyDaemon(quotas()) as daemon, socket.create_connection(("127.0.0.1", daemon.envoy_port)) as silent:
            silent.sendall(OPENING + headers(1, QUOTAS, {b"dthrottle-client": b"edge-1"}))
            silent.settimeout(PATIENCE)
            while silent.recv(65536):    # pings among it, which nobody answers
                pass
            with QuotaClient(daemon.envoy_port, "edge-1") as again:
                again.ask(WEB)
                (row,) = daemon.admin_json("leases edge|rule=web")["clients"]
            self.assertEqual(row["client"], "edge-1#0")

    def test_a_connection_without_calls_stays_and_is_asked_when_it_is_silent(self):
        with EnvoyDaemon(ADDRESSES) as daemon, socket.create_connection(("127.0.0.1", daemon.envoy_port)) as idle:
            wait_until(lambda: asks_when_silent(idle), "the kernel asks a connection that is silent")

    def test_a_stream_that_names_no_domain_is_told_so_and_ends(self):
        with EnvoyDaemon(quotas()) as daemon, QuotaClient(daemon.envoy_port) as client:
            client.report(WEB, domain="")
            with self.assertRaises(grpc.RpcError) as caught:
                next(client.stream)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)

    def test_a_long_report_is_answered_whole(self):
        with EnvoyDaemon(quotas()) as daemon, QuotaClient(daemon.envoy_port) as client:
            rates = client.ask(*({"rule": str(i)} for i in range(1000)))
            while len(rates) < 1000:
                rates += [0 for _ in next(client.stream).bucket_action]
            self.assertEqual(len(rates), 1000)
            self.assertEqual(daemon.stats()["envoy_reports"], 5)


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


    def test_a_stream_outlives_an_upgrade(self):
        with EnvoyDaemon(quotas(), lease={"min_request_interval": "0s"}) as daemon, \
                QuotaClient(daemon.envoy_port, "edge-1") as client:
            self.assertEqual(client.ask(WEB), [100])
            upgrade(daemon)
            self.assertEqual(client.ask(WEB), [100])

    def test_a_daemon_that_was_killed_learns_and_assigns_nothing_meanwhile(self):
        with EnvoyDaemon(quotas(learning_mode_duration="1h")) as daemon:
            with QuotaClient(daemon.envoy_port) as client:
                client.report(WEB)
                wait_until(lambda: daemon.stats()["envoy_reports"] == 1, "it was asked")
                daemon.kill()
                with self.assertRaises(grpc.RpcError):
                    next(client.stream)    # nothing has been said before the end

    def test_tls_with_certificates_is_for_envoy_too(self):
        with Authority() as ours:
            ours.sign("host"), ours.sign("envoy")
            with EnvoyDaemon(ADDRESSES, tls=ours.settings("host", client_ca_file="root.pem")) as daemon:
                with LimitClient(daemon.envoy_port, ours.client("envoy")) as client:
                    self.assertTrue(client.served({"remote_address": "a"}))
                for tls in (None, ours.client()):
                    with LimitClient(daemon.envoy_port, tls) as stranger, self.assertRaises(grpc.RpcError):
                        stranger.ask({"remote_address": "a"})

    def test_files_of_tls_that_do_not_fit_keep_the_ones_before_in_force_and_are_said(self):
        with Authority() as ours, Authority() as later:
            ours.sign("host"), ours.sign("envoy"), later.sign("host"), later.sign("envoy")
            files = ("host.pem", "host.key", "root.pem")
            with EnvoyDaemon(ADDRESSES, tls=ours.settings("host", client_ca_file="root.pem")) as daemon:
                def lets_in(credentials):
                    with LimitClient(daemon.envoy_port, credentials) as client, contextlib.suppress(grpc.RpcError):
                        return client.ask({"remote_address": "a"}).overall_code > 0
                    return False
                before, after = ours.client("envoy"), later.client("envoy")
                self.assertTrue(lets_in(before))
                for i, name in enumerate(("root.pem", "host.pem")):
                    kept = (ours.folder / name).read_bytes()
                    (ours.folder / name).write_text("garbage")
                    said = lambda: daemon.log.count("the certificate stays what it was") == i + 1
                    wait_until(lambda: lets_in(before) and said(), f"{name} is passed over")
                    (ours.folder / name).write_bytes(kept)
                    wait_until(lambda: not time.sleep(2.1) and lets_in(before), "it is as it was")
                for name in files:
                    shutil.copy(later.folder / name, ours.folder / name)
                wait_until(lambda: lets_in(after), "the new files are in force")
                self.assertFalse(lets_in(before))


class Settings(ParallelTest):
    def test_an_address_that_strangers_reach_is_warned_of(self):
        with EnvoyDaemon(ADDRESSES) as daemon:
            daemon._sections["envoy"]["tcp"] = "0.0.0.0:0"
            daemon.write_settings(ADDRESSES)
            said = run(DTHROTTLED, "--check", daemon.settings_path)
            self.assertIn("envoy.tcp", said.stdout + said.stderr)


if __name__ == "__main__":
    unittest.main()
