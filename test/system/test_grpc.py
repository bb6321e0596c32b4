"""Leases over gRPC: the calls of the public interface, by messages made from protocol/doorman.proto."""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

from authority import Authority
from common import ParallelTest, SystemTest, report
from daemon import BUILD, DTHROTTLED, PATIENCE, clean_environment, fresh_directory, run, settings_text, wait_until
from envoy import built_with_grpc, channel, grpc, messages
from leases import LeaseDaemon, resource

READY = resource("calls", learning_mode_duration="0s")


if DTHROTTLED.exists() and not built_with_grpc():
    raise unittest.SkipTest(f"{BUILD} is built without gRPC: LEASES OVER GRPC ARE NOT TESTED")
pb = messages("doorman")


class Client:
    """Calls of doorman.Capacity, without generated stubs."""

    def __init__(self, port, tls=None):
        self.channel = channel(port, tls)
        self.start = self.channel.unary_unary("/doorman.Capacity/GetCapacity").future    # of bytes
        for name in ("Discovery", "GetCapacity", "GetServerCapacity", "ReleaseCapacity"):
            call = self.channel.unary_unary(f"/doorman.Capacity/{name}",
                                            request_serializer=lambda m: m.SerializeToString(),
                                            response_deserializer=getattr(pb, f"{name}Response").FromString)
            setattr(self, name, lambda request, c=call: c(request, timeout=PATIENCE))

    def get(self, client, *wants, priority=0, has=None, name="calls"):
        """Leases, one for each of the wants."""
        asked = [pb.ResourceRequest(resource_id=name, priority=priority, wants=w, has=has) for w in wants]
        return self.GetCapacity(pb.GetCapacityRequest(client_id=client, resource=asked))

    def lease(self, client, wants, **options):
        (one,) = self.get(client, wants, **options).response
        return one

    def get_for(self, server, bands, **fields):
        bands = [pb.PriorityBandAggregate(priority=p, num_clients=n, wants=w) for p, n, w in bands]
        asked = pb.ServerCapacityResourceRequest(resource_id="calls", wants=bands, **fields)
        return self.GetServerCapacity(pb.GetServerCapacityRequest(server_id=server, resource=[asked]))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()


class GrpcDaemon(LeaseDaemon):
    def __init__(self, *limits, lease=None, **options):
        super().__init__(*(limits or (READY,)), lease={"grpc": "127.0.0.1:0", **(lease or {})}, **options)

    def refused(self, tls=None):
        """The code by which a call fails."""
        with Client(self.grpc_port, tls) as client:
            try:
                client.lease("a", 5)
            except grpc.RpcError as error:
                return error.code()

    @property
    def grpc_port(self):
        return int(re.search(r"granting leases by gRPC on tcp:\S*:(\d+)", self.log)[1])

    def client(self, tls=None):
        return Client(self.grpc_port, tls)


class Calls(ParallelTest):
    def refused(self, code, call, *words, **options):
        with self.assertRaises(grpc.RpcError) as caught:
            call(*words, **options)
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        return caught.exception.details()

    def test_a_lease_is_granted_refreshed_and_released(self):
        with GrpcDaemon() as daemon, daemon.client() as client:
            before = time.time()
            one = client.lease("a", 30, priority=7)
            self.assertEqual((one.resource_id, one.gets.capacity, one.gets.refresh_interval, one.safe_capacity),
                             ("calls", 30, 16, 100))
            self.assertTrue(before + 58 < one.gets.expiry_time <= time.time() + 60)
            (held,) = daemon.leases("calls")["clients"]
            self.assertEqual((held["client"], held["has"], held["priority"]), ("a", 30, 7))
            self.assertEqual(one.gets.token, daemon.leases()["token"])
            self.assertEqual(client.lease("a", 50, has=one.gets).gets.capacity, 50)
            self.assertFalse(client.ReleaseCapacity(
                pb.ReleaseCapacityRequest(client_id="a", resource_id=["calls", "other"])).HasField("mastership"))
            self.assertEqual(sum(row["has"] for row in daemon.leases()["resources"]), 0)
            self.assertEqual(daemon.stats()["lease_released"], 1)

    def test_clients_of_both_kinds_share_one_resource(self):
        with GrpcDaemon() as daemon, daemon.client() as client:
            client.lease("a", 80)
            self.assertEqual(daemon.lease("get b calls 80").split()[1], "20")
            self.assertEqual(client.lease("a", 80).gets.capacity, 50)

    def test_a_resource_without_settings_is_left_out(self):
        with GrpcDaemon() as daemon, daemon.client() as client:
            answer = client.GetCapacity(pb.GetCapacityRequest(client_id="a", resource=[
                pb.ResourceRequest(resource_id=name, priority=0, wants=1) for name in ("none", "calls")]))
            self.assertEqual([r.resource_id for r in answer.response], ["calls"])

    def test_a_lease_expires(self):
        short = resource("calls", lease_length="2s", refresh_interval="1s", learning_mode_duration="0s")
        with GrpcDaemon(short) as daemon, daemon.client() as client:
            client.lease("a", 100)
            self.assertEqual(client.lease("b", 100).gets.capacity, 0)
            wait_until(lambda: client.lease("b", 100).gets.capacity == 100, "the other lease has expired")
            self.assertEqual(daemon.stats()["lease_expired"], 1)

    def test_a_new_master_believes_the_lease_that_its_client_sends_back(self):
        with GrpcDaemon(resource("calls", safe_capacity=10)) as daemon, daemon.client() as client:
            has = pb.Lease(expiry_time=int(time.time()) + 30, refresh_interval=1, capacity=40)
            self.assertEqual(client.lease("no token", 50, has=has).gets.capacity, 10)
            has.token = daemon.leases()["token"] - 5
            self.assertEqual(client.lease("token", 50, has=has).gets.capacity, 40)
            self.assertEqual(client.lease("new", 50).gets.capacity, 0)
            has.expiry_time = int(time.time()) - 1
            self.assertEqual(client.lease("over", 50, has=has).gets.capacity, 0)
            has.expiry_time = 2**62
            self.assertEqual(client.lease("odd", 50, has=has).gets.capacity, 40)

    def test_discovery_and_who_is_not_master_names_the_master(self):
        with GrpcDaemon() as alone, alone.client() as client:
            said = client.Discovery(pb.DiscoveryRequest())
            self.assertTrue(said.is_master)
            self.assertEqual(said.mastership.master_address, f"127.0.0.1:{alone.grpc_port}")
            master = f"{alone.lease_address},grpc:127.0.0.1:{alone.grpc_port}"
            with GrpcDaemon(lease={"elector": "static", "master": master}) as other, other.client() as asking:
                said = asking.Discovery(pb.DiscoveryRequest())
                self.assertEqual((said.is_master, said.mastership.master_address),
                                 (False, f"127.0.0.1:{alone.grpc_port}"))
                for answer in (asking.get("a", 5), asking.get_for("s", [(0, 1, 5)]),
                               asking.ReleaseCapacity(pb.ReleaseCapacityRequest(client_id="a"))):
                    self.assertEqual(answer.mastership.master_address, f"127.0.0.1:{alone.grpc_port}")
                self.assertEqual(other.lease("discover"), f"elsewhere {alone.lease_address}")
            with GrpcDaemon(lease={"elector": "static", "master": "tcp:10.0.0.1:7"}) as other, \
                    other.client() as asking:    # a master without gRPC
                answer = asking.get("a", 5)
                self.assertEqual((answer.HasField("mastership"), answer.mastership.HasField("master_address")),
                                 (True, False))

    def test_a_master_named_by_its_socket_for_lines_is_found_by_grpc(self):
        daemon = GrpcDaemon()
        daemon._sections["lease"].update(elector="static", master=daemon.lease_address)
        daemon.write_settings(*daemon.limits)
        with daemon, daemon.client() as client:
            said = client.Discovery(pb.DiscoveryRequest())
            self.assertEqual((said.is_master, said.mastership.master_address), (True, f"127.0.0.1:{daemon.grpc_port}"))
            self.assertEqual(daemon.lease("discover").split()[1], daemon.lease_address)

    def test_a_server_gets_capacity_for_its_clients_by_priority(self):
        with GrpcDaemon() as daemon, daemon.client() as client:
            (one,) = client.get_for("leaf-1", [(1, 2, 60), (5, 1, 30)], outstanding=7.5).response
            self.assertEqual((one.resource_id, one.gets.capacity, one.share, one.safe_capacity),
                             ("calls", 90, 90, 100 / 3))
            self.assertEqual((one.algorithm.kind, one.algorithm.lease_length, one.algorithm.refresh_interval),
                             (pb.Algorithm.FAIR_SHARE, 60, 16))
            (row,) = daemon.leases()["resources"]
            self.assertEqual((row["clients"], row["wants"]), (3, 90))
            # A single client wants an equal share of the whole: one of four.
            self.assertEqual(client.lease("a", 80).gets.capacity, 10)
            (one,) = client.get_for("leaf-1", [(1, 2, 60), (5, 1, 30)]).response
            self.assertEqual(one.gets.capacity, 75)
            self.assertEqual(client.lease("a", 80).gets.capacity, 25)

    def test_what_cannot_be_is_refused_and_changes_nothing(self):
        with GrpcDaemon(lease={"grpc_max_resources": 3}) as daemon, daemon.client() as client:
            bad = grpc.StatusCode.INVALID_ARGUMENT
            self.assertIn("client_id", self.refused(bad, client.get, "", 1))
            self.assertIn("client_id", self.refused(bad, client.get, "a\n", 1))
            self.assertIn("client_id", self.refused(bad, client.get, "a" * 256, 1))
            self.assertIn("resource_id", self.refused(bad, client.get, "a", 1, name=""))
            for wants in (-1, float("nan"), float("inf"), 1e16):
                self.assertIn("wants must be", self.refused(bad, client.get, "a", wants))
            self.assertIn("has.capacity", self.refused(bad, client.get, "a", 1, has=pb.Lease(
                capacity=-1, expiry_time=1, refresh_interval=1)))
            self.assertIn("at most 3", self.refused(bad, client.get, "a", 1, 1, 1, 1))
            self.assertIn("64 bands", self.refused(bad, client.get_for, "s", [(i, 1, 1) for i in range(65)]))
            for clients in (-1, 10**9 + 1):
                self.assertIn("num_clients", self.refused(bad, client.get_for, "s", [(0, clients, 1)]))
            self.assertIn("outstanding", self.refused(bad, client.get_for, "s", [(0, 1, 1)], outstanding=-1))
            self.assertIn("at most 3", self.refused(bad, client.ReleaseCapacity, pb.ReleaseCapacityRequest(
                client_id="a", resource_id=["x"] * 4)))
            self.assertEqual(len(client.get("a", 1, 1, 1).response), 3)
            stats = daemon.stats()
            self.assertEqual((stats["lease_grpc_invalid"], stats["lease_requests"]), (15, 3))

    def test_junk_and_large_calls_are_survived(self):
        with GrpcDaemon(lease={"idle_timeout": "1s"}) as daemon, daemon.client() as client:
            preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 1000, b"get a calls 5\n", preface + os.urandom(5000),
                         preface + b"\0\0\0\4\0\0\0\0\0" + b"\xff" * 3000, preface[:10], b""):
                with socket.create_connection(("127.0.0.1", daemon.grpc_port)) as sock:
                    sock.settimeout(PATIENCE)
                    sock.sendall(junk)
                    while True:    # it is hung up on, however little it sends
                        try:
                            if not sock.recv(1 << 16):
                                break
                        except ConnectionResetError:
                            break
            raw = client.channel.unary_unary("/doorman.Capacity/GetCapacity")
            for sent in (b"", b"\xff" * 50, os.urandom(1000), b"\x0a\x01a"):
                try:
                    raw(sent, timeout=PATIENCE)
                except grpc.RpcError:
                    pass
            self.refused(grpc.StatusCode.RESOURCE_EXHAUSTED, raw, b"\x0a" * (1 << 21), timeout=PATIENCE)
            self.refused(grpc.StatusCode.UNIMPLEMENTED, client.channel.unary_unary("/doorman.Capacity/Other"), b"",
                         timeout=PATIENCE)
            self.assertEqual(client.lease("a", 5).gets.capacity, 5)
            wait_until(lambda: daemon.stats()["lease_grpc_connections"] <= 1, "connections are counted to their end")

    def test_connections_are_bounded(self):
        with GrpcDaemon(lease={"max_connections": 2}) as daemon:
            with socket.create_connection(("127.0.0.1", daemon.grpc_port)), daemon.client() as client:
                client.lease("a", 5)
                with socket.create_connection(("127.0.0.1", daemon.grpc_port)) as third:
                    third.settimeout(PATIENCE)
                    self.assertEqual(third.recv(1), b"")
                self.assertEqual(daemon.stats()["lease_grpc_connections"], 2)
            wait_until(lambda: daemon.stats()["lease_grpc_connections"] == 0, "both are over")
            self.assertEqual(daemon.stats()["lease_connections_rejected"], 1)

    def test_calls_that_wait_are_bounded(self):
        with GrpcDaemon(resource(capacity=1000, learning_mode_duration="0s"), lease={"grpc_max_calls": 1}) as daemon, \
                daemon.client() as client, concurrent.futures.ThreadPoolExecutor(16) as pool:
            def outcome(i):
                try:
                    return client.lease(f"c{i}", 1).gets.capacity
                except grpc.RpcError as error:
                    return error.code()
            def refusals():
                outcomes = set(pool.map(outcome, range(200)))
                self.assertLessEqual(outcomes, {1, grpc.StatusCode.RESOURCE_EXHAUSTED})
                return daemon.stats()["lease_grpc_refused"] > 0
            wait_until(refusals, "one call too many was refused")
            self.assertEqual(client.get("z", 1).response[0].resource_id, "calls")

    def test_the_services_of_grpc_are_there(self):
        with GrpcDaemon() as daemon, daemon.client() as client:
            check = client.channel.unary_unary("/grpc.health.v1.Health/Check")
            self.assertEqual(check(b"", timeout=PATIENCE), b"\x08\x01")    # SERVING
            info = client.channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
            (listed,) = info(iter([b"\x3a\x00"]), timeout=PATIENCE)    # list_services
            self.assertIn(b"doorman.Capacity", listed)

    def test_names_with_blanks_are_the_same_by_lines(self):
        with GrpcDaemon(resource("two words", learning_mode_duration="0s")) as daemon, daemon.client() as client:
            self.assertEqual(client.lease("the client", 80, name="two words").gets.capacity, 80)
            self.assertEqual(daemon.lease(r"get b two\x20words 80").split()[1], "20")
            (held,) = [c for c in daemon.leases("two words")["clients"] if c["client"] == "the client"]
            self.assertEqual(held["has"], 80)


class Tls(SystemTest):
    def test_only_clients_whose_certificate_the_authority_signed_are_served(self):
        with Authority() as ours, Authority() as other:
            for authority, name in ((ours, "host"), (ours, "job"), (other, "job")):
                authority.sign(name)
            shutil.copy(other.folder / "job.pem", ours.folder / "stranger.pem")
            shutil.copy(other.folder / "job.key", ours.folder / "stranger.key")
            with GrpcDaemon(tls=ours.settings("host", client_ca_file="root.pem")) as daemon:
                with daemon.client(ours.client("job")) as client:
                    self.assertEqual(client.lease("a", 5).gets.capacity, 5)
                    for tls in (None, ours.client(), ours.client("stranger")):
                        self.assertEqual(daemon.refused(tls), grpc.StatusCode.UNAVAILABLE)
                    wait_until(lambda: daemon.stats()["lease_grpc_connections"] == 1, "the others are gone")
                    upgrade(daemon)
                    self.assertEqual(client.lease("a", 5).gets.capacity, 5)

    def test_without_an_authority_clients_need_no_certificate_and_a_new_one_is_in_force_by_itself(self):
        with Authority() as ours, Authority() as next_one:
            ours.sign("host")
            next_one.sign("host")
            with GrpcDaemon(tls=ours.settings("host")) as daemon:
                self.assertIsNone(daemon.refused(ours.client()))
                for name in ("host.key", "host.pem"):
                    shutil.copy(next_one.folder / name, ours.folder / name)
                wait_until(lambda: daemon.refused(next_one.client()) is None, "the new certificate is in force")

    def test_an_upgrade_puts_certificates_of_the_settings_in_force(self):
        with Authority() as ours:
            ours.sign("host")
            with GrpcDaemon() as daemon:
                daemon._sections["tls"] = ours.settings("host")
                daemon.write_settings(*daemon.limits)
                upgrade(daemon)
                wait_until(lambda: daemon.refused(ours.client()) is None, "it speaks TLS")
                self.assertEqual(daemon.refused(), grpc.StatusCode.UNAVAILABLE)

    def test_files_that_cannot_be_used_are_named_before_the_start(self):
        with Authority() as ours:
            ours.sign("host")
            ours.sign("other")
            (ours.folder / "empty.pem").write_text("")
            for keys, said in (({"key_file": "other.key"}, "other.key: key values mismatch"),
                               ({"certificate_file": "none.pem"}, "none.pem: cannot open: No such file or directory"),
                               ({"client_ca_file": "empty.pem"}, "empty.pem: ")):
                text = settings_text(ours.folder, lease={"grpc": "127.0.0.1:0"}, tls=ours.settings("host", **keys))
                (ours.folder / "dthrottled.toml").write_text(text)
                for words in (["--check"], ["--config"]):
                    done = run(DTHROTTLED, *words, ours.folder / "dthrottled.toml")
                    self.assertEqual(done.returncode, 78)
                    self.assertIn(f"lease.grpc: {ours.folder}/{said}", done.stdout + done.stderr)


class Caller:
    """One channel, with a connection of its own, that calls all the time, or with a pause after each call."""

    def __init__(self, port, name, pause):
        self.client, self.name, self.pause = Client(port), name, pause
        self.calls, self.failures, self.longest = 0, [], 0.0
        self.client.lease(name, 1)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._end.is_set():
            began = time.monotonic()
            try:
                self.client.lease(self.name, 1)
                self.calls += 1
            except Exception as error:
                self.failures.append(error)
            self.longest = max(self.longest, time.monotonic() - began)
            self._end.wait(self.pause)

    def stop(self):
        self._end.set()
        self._thread.join()
        self.client.channel.close()


class Callers:
    def __init__(self, port, count, pause=0):
        self.callers = [Caller(port, f"caller-{i}", pause) for i in range(count)]

    @property
    def calls(self):
        return sum(caller.calls for caller in self.callers)

    @property
    def failures(self):
        return [failure for caller in self.callers for failure in caller.failures]

    @property
    def longest(self):
        """The longest call, in seconds."""
        return max(caller.longest for caller in self.callers)

    def await_more(self, calls=100):
        until = self.calls + calls
        wait_until(lambda: self.calls >= until, "there are more calls")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for caller in self.callers:
            caller.stop()


class CallersElsewhere:
    """The same in a process of its own, so that a test beside it can look at how long others wait."""

    def __init__(self, port, count, pause):
        paths = [str(pathlib.Path(__file__).parent), *sys.path]
        script = f"import sys; sys.path[:0] = {paths}; import test_grpc; test_grpc.call({port}, {count}, {pause})"
        self._process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         text=True, env=clean_environment())
        if self._process.stdout.readline() != "calling\n":
            raise AssertionError("the calls have not begun")

    def end(self):
        """Calls, failures as text, and the longest call in seconds."""
        return json.loads(self._process.communicate(timeout=PATIENCE)[0])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.communicate()


def call(port, count, pause):
    """What that process does."""
    with Callers(port, count, pause) as callers:
        print("calling", flush=True)
        sys.stdin.read()
        print(json.dumps([callers.calls, [str(failure) for failure in callers.failures], callers.longest]))


def lives(daemon):
    return daemon.log.count(" ready: ")


def upgrade(daemon):
    before = lives(daemon)
    daemon.admin("upgrade")
    wait_until(lambda: lives(daemon) > before, "the other program is there")


def gateway(daemon, name="dthrottle-grpc"):
    """The process that speaks gRPC, or what else it is for, for the daemon."""
    children = pathlib.Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()
    (pid,) = [int(pid) for pid in children if name in pathlib.Path(f"/proc/{pid}/comm").read_text()]
    return pid


def is_alive(pid):
    try:
        return "(zombie)" not in pathlib.Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):    # gone before the file was opened, or before it was read
        return False


class Lives(SystemTest):
    """The program that speaks gRPC, and the daemon, which may end before the other does."""

    def test_an_upgrade_closes_no_connection_and_no_call_fails(self):
        with GrpcDaemon(resource("calls", capacity=1e6, learning_mode_duration="0s")) as daemon:
            first, waits = gateway(daemon), []
            with Callers(daemon.grpc_port, 8) as callers:
                for turn in range(5):
                    callers.await_more()
                    upgrade(daemon)
                    callers.await_more()
                    stats = daemon.stats()
                    self.assertEqual((stats["lease_grpc_connections"], stats["lease_connections_accepted"]), (8, 0))
                    self.assertGreater(stats["lease_grpc_calls"], 0)
                self.assertEqual(callers.failures, [])
                self.assertEqual(gateway(daemon), first)
                waits = re.findall(r"took over \d+ connections; they waited ([\d.]+) ms", daemon.log)
                report(f"5 upgrades under {callers.calls} gRPC calls: nobody was answered for {', '.join(waits)} ms")
            wait_until(lambda: daemon.stats()["lease_grpc_connections"] == 0, "the connections are over")
            self.assertEqual(daemon.stats()["lease_grpc_restarts"], 0)

    def test_leases_and_the_token_go_on_and_settings_that_have_changed_are_in_force(self):
        with GrpcDaemon() as daemon, daemon.client() as client:
            first = client.lease("a", 80).gets
            daemon._sections["lease"]["grpc_max_resources"] = 2
            daemon.write_settings(*daemon.limits)
            upgrade(daemon)
            second = client.lease("a", 80, has=first).gets
            self.assertEqual((second.capacity, second.token), (80, first.token))
            with self.assertRaises(grpc.RpcError) as caught:
                client.get("a", 1, 1, 1)
            self.assertIn("at most 2", caught.exception.details())

    def test_a_program_that_dies_is_started_again_and_counted(self):
        with GrpcDaemon() as daemon, daemon.client() as client:
            client.lease("a", 5)
            for turn in range(2):
                if turn == 1:
                    upgrade(daemon)    # the child of the program before
                before = gateway(daemon)
                os.kill(before, signal.SIGKILL)
                wait_until(lambda: not is_alive(before) and daemon.stats()["lease_grpc_connections"] == 0, "it is gone")
                wait_until(lambda: daemon.log.count("dthrottle-grpc is process") == turn + 2, "another one is there")
                with daemon.client() as again:
                    self.assertEqual(again.lease("a", 5).gets.capacity, 5)
                self.assertNotEqual(gateway(daemon), before)
                self.assertEqual(daemon.stats()["lease_grpc_restarts"], 1)
            daemon.wait_log("it died of signal 9; its connections are closed")

    def test_a_program_that_is_told_to_leave_does_and_clients_find_the_next_one(self):
        with GrpcDaemon(resource("calls", capacity=1e6, learning_mode_duration="0s")) as daemon:
            before = gateway(daemon)
            with Callers(daemon.grpc_port, 4) as callers:
                callers.await_more()
                os.kill(before, signal.SIGTERM)
                wait_until(lambda: "dthrottle-grpc has left" in daemon.log, "it has left")
                callers.await_more()
                # Calls that meet the end may fail, as the library cancels what comes before clients know; no others.
                codes = [failure.code() for failure in callers.failures]
                self.assertLessEqual(set(codes), {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})
                callers.await_more()
                self.assertEqual(len(callers.failures), len(codes))
            self.assertNotEqual(gateway(daemon), before)

    def test_it_ends_with_the_daemon_however_that_ends(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            with self.subTest(signal=number), GrpcDaemon() as daemon, daemon.client() as client:
                client.lease("a", 5)
                pid = gateway(daemon)
                daemon.signal(number)
                daemon.wait_exit(0 if number == signal.SIGTERM else -number)
                wait_until(lambda: not is_alive(pid), "both are gone")

    def test_it_leaves_when_an_upgrade_finds_no_place_for_it_in_the_settings(self):
        with GrpcDaemon() as daemon, daemon.client() as client:
            client.lease("a", 5)
            pid = gateway(daemon)
            del daemon._sections["lease"]["grpc"]
            daemon.write_settings(*daemon.limits)
            upgrade(daemon)
            wait_until(lambda: not pathlib.Path(f"/proc/{pid}").exists(), "it is gone, and nothing of it is left")
            self.assertEqual(daemon.lease("discover").split()[0], "here")

    def test_a_new_version_of_it_is_said_at_an_upgrade(self):
        with programs() as folder, GrpcDaemon(program=folder / "dthrottled") as daemon, daemon.client() as client:
            client.lease("a", 5)
            replaced = (folder / "dthrottle-grpc").read_bytes()
            (folder / "dthrottle-grpc").unlink()
            (folder / "dthrottle-grpc").write_bytes(replaced)
            (folder / "dthrottle-grpc").chmod(0o755)
            upgrade(daemon)
            daemon.wait_log(f"it has been replaced, and `kill {gateway(daemon)}` starts the new one")
            self.assertEqual(client.lease("a", 5).gets.capacity, 5)

    def test_without_the_program_there_is_no_start_and_no_upgrade(self):
        with programs() as folder, GrpcDaemon(program=folder / "dthrottled") as daemon:
            (folder / "dthrottle-grpc").unlink()
            said = run(folder / "dthrottled", "--check", daemon.settings_path)
            self.assertEqual(said.returncode, 78)
            self.assertIn("lease.grpc: ", said.stdout)
            self.assertIn("(package dthrottle-grpc)", said.stdout)
            self.assertIn("(package dthrottle-grpc)", daemon.admin("upgrade"))
            daemon.stop()
            failed = run(folder / "dthrottled", "--config", daemon.settings_path)
            self.assertEqual(failed.returncode, 78)

    def test_one_that_ends_at_once_is_not_started_again_at_once_and_connections_wait_for_one_that_lives(self):
        with programs() as folder:
            program = folder / "dthrottle-grpc"
            program.rename(folder / "good")
            program.write_text("#!/bin/sh\nexit 3\n")
            program.chmod(0o755)
            with GrpcDaemon(program=folder / "dthrottled") as daemon:
                wait_until(lambda: daemon.stats()["lease_grpc_restarts"] == 2, "it was tried again")
                daemon.wait_log("it left with 3; its connections are closed, and another one begins in 2 s")
                with daemon.client() as client:
                    call = client.start(pb.GetCapacityRequest(client_id="a").SerializeToString(), timeout=PATIENCE)
                    wait_until(lambda: daemon.stats()["lease_grpc_connections"] == 1, "it is connected")
                    (folder / "good").rename(program)
                    upgrade(daemon)
                    self.assertEqual(call.result(), b"")
                    stats = daemon.stats()
                    self.assertEqual((stats["lease_grpc_connections"], stats["lease_connections_accepted"]), (1, 0))

    def test_nobody_else_can_start_it(self):
        said = run(DTHROTTLED.parent / "dthrottle-grpc", "1", "0")
        self.assertEqual(said.returncode, 64)
        self.assertIn("is started by a dthrottled", said.stderr)


@contextlib.contextmanager
def programs():
    """A folder with copies of the daemon and of the program beside it."""
    folder = fresh_directory()
    try:
        for name in ("dthrottled", "dthrottle-grpc"):
            shutil.copy(DTHROTTLED.parent / name, folder / name)
        yield folder
    finally:
        shutil.rmtree(folder)


def spent(daemon):
    """The processor's time of both programs, in seconds."""
    fields = [pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
              for pid in (daemon.pid, gateway(daemon))]
    return sum(int(f[11]) + int(f[12]) for f in fields) / os.sysconf("SC_CLK_TCK")


class Figures(SystemTest):
    def test_calls_a_second(self):
        """Many calls at once, as a busy server has them: with one at a time it would mostly wake up and go to sleep."""
        seconds, clients, at_once = 2, 8, 32
        with GrpcDaemon(resource("calls", capacity=1e6, learning_mode_duration="0s")) as daemon:
            done, end = [0] * clients, time.monotonic() + seconds

            def ask(i):
                asked = pb.ResourceRequest(resource_id="calls", priority=0, wants=5.0)
                request = pb.GetCapacityRequest(client_id=f"client-{i}", resource=[asked]).SerializeToString()
                with daemon.client() as client:
                    calls = [client.start(request, timeout=PATIENCE) for _ in range(at_once)]
                    while time.monotonic() < end:
                        for k in range(at_once):
                            calls[k].result()
                            done[i] += 1
                            calls[k] = client.start(request, timeout=PATIENCE)
                    for call in calls:
                        call.result()
            before = spent(daemon)
            threads = [threading.Thread(target=ask, args=(i,)) for i in range(clients)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            cpu = spent(daemon) - before
            with daemon.client() as client:
                many = [1.0] * 500
                began = spent(daemon)
                for _ in range(20):
                    self.assertEqual(len(client.get("many", *many).response), 500)
                each = (spent(daemon) - began) / 20 / 500
        report(f"GetCapacity over gRPC: {sum(done) / seconds:.0f} calls a second from one Python process, "
               f"{sum(done) / max(cpu, 1e-9):.0f} a second of CPU of both programs; {1 / max(each, 1e-9):.0f} resources a "
               f"second of CPU in calls of 500")
        self.assertGreater(min(done), 0)


if __name__ == "__main__":
    unittest.main()
