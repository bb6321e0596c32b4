"""Leases over gRPC: the calls of the public interface, by messages made from protocol/doorman.proto."""

import concurrent.futures
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from common import ParallelTest, SystemTest, report
from daemon import BUILD, DTHROTTLED, PATIENCE, SANITIZED, rule, run, wait_until
from leases import LeaseDaemon, resource

READY = resource("calls", learning_mode_duration="0s")
PROTO = pathlib.Path(__file__).resolve().parents[2] / "protocol"


def built_with_grpc():
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as settings:
        settings.write('[lease]\ngrpc = "127.0.0.1:1"\n')
        settings.flush()
        return run(DTHROTTLED, "--check", settings.name).returncode == 0


def messages():
    """The module of the messages."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["protoc", f"--proto_path={PROTO}", f"--python_out={folder}", "doorman.proto"], check=True)
        sys.path.insert(0, folder)
        try:
            import doorman_pb2
        finally:
            sys.path.remove(folder)
        return doorman_pb2


if DTHROTTLED.exists() and not built_with_grpc():
    raise unittest.SkipTest(f"{BUILD} is built without gRPC: LEASES OVER GRPC ARE NOT TESTED")
sys.path.append("/usr/lib/python3/dist-packages")    # for a Python that is not Debian's
import grpc    # noqa: E402
pb = messages()


class Client:
    """Calls of doorman.Capacity, without generated stubs."""

    def __init__(self, port):
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)])
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

    @property
    def grpc_port(self):
        return int(re.search(r"granting leases by gRPC on tcp:\S*:(\d+)", self.log)[1])

    def client(self):
        return Client(self.grpc_port)


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
            self.assertIn("num_clients", self.refused(bad, client.get_for, "s", [(0, -1, 1)]))
            self.assertIn("outstanding", self.refused(bad, client.get_for, "s", [(0, 1, 1)], outstanding=-1))
            self.assertIn("at most 3", self.refused(bad, client.ReleaseCapacity, pb.ReleaseCapacityRequest(
                client_id="a", resource_id=["x"] * 4)))
            self.assertEqual(len(client.get("a", 1, 1, 1).response), 3)
            stats = daemon.stats()
            self.assertEqual((stats["lease_grpc_invalid"], stats["lease_requests"]), (14, 3))

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
        with GrpcDaemon(lease={"grpc_max_calls": 1}) as daemon, daemon.client() as client, \
                concurrent.futures.ThreadPoolExecutor(16) as pool:
            def outcome(i):
                try:
                    return client.lease(f"c{i}", 1).gets.capacity
                except grpc.RpcError as error:
                    return error.code()
            def refusals():
                outcomes = set(pool.map(outcome, range(200)))
                self.assertLessEqual(outcomes, {1, grpc.StatusCode.RESOURCE_EXHAUSTED} | {100 / n for n in range(1, 201)})
                return daemon.stats()["lease_grpc_refused"] > 0
            wait_until(refusals, "one call too many was refused")
            self.assertEqual(client.get("z", 1).response[0].resource_id, "calls")

    def test_after_an_upgrade_leases_go_on_under_the_same_token_and_port(self):
        with GrpcDaemon() as daemon, daemon.client() as client:
            port, first = daemon.grpc_port, client.lease("a", 80).gets
            daemon.admin("upgrade")
            wait_until(lambda: daemon.log.count(" ready: ") == 2, "the other program is there")
            with Client(port) as again:
                second = again.lease("a", 80, has=first).gets
            self.assertEqual(second.capacity, 80)
            self.assertEqual(second.token, first.token)

    def test_queries_do_not_wait_until_grpc_is_loaded_again(self):
        with GrpcDaemon() as daemon, daemon.client() as client:
            client.lease("a", 80)
            for turn in range(5):
                before = daemon.log.count("leases: gRPC is loaded")
                daemon.admin("upgrade")
                wait_until(lambda: daemon.log.count("leases: gRPC is loaded") > before, "gRPC is there again")
                with Client(daemon.grpc_port) as again:
                    again.lease("a", 80)
            events = re.findall(r"took over (?=\d+ connections)|leases: gRPC is loaded", daemon.log)
            self.assertEqual(events, ["took over ", "leases: gRPC is loaded"] * 5)
            waits = re.findall(r"took over \d+ connections; they waited ([\d.]+) ms", daemon.log)
            report(f"5 upgrades with gRPC: nobody was answered for {', '.join(waits)} ms")


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
            before = daemon.stats()["cpu"]
            threads = [threading.Thread(target=ask, args=(i,)) for i in range(clients)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            cpu = daemon.stats()["cpu"] - before
            with daemon.client() as client:
                many = [1.0] * 500
                began = daemon.stats()["cpu"]
                for _ in range(20):
                    self.assertEqual(len(client.get("many", *many).response), 500)
                each = (daemon.stats()["cpu"] - began) / 20 / 500
        report(f"GetCapacity over gRPC: {sum(done) / seconds:.0f} calls a second from one Python process, "
               f"{sum(done) / max(cpu, 1e-9):.0f} a second of the daemon's CPU; {1 / max(each, 1e-9):.0f} resources a "
               f"second of CPU in calls of 500")
        self.assertGreater(min(done), 0)


if __name__ == "__main__":
    unittest.main()
