"""Daemons that Envoy asks, and what Envoy sends them, for tests."""

import os
import pathlib
import queue
import re
import subprocess
import sys
import tempfile

from daemon import DTHROTTLED, PATIENCE, Daemon, run

sys.path.append("/usr/lib/python3/dist-packages")    # for a Python that is not Debian's
os.environ["GRPC_VERBOSITY"] = "NONE"    # clients that are refused are part of the story
import grpc    # noqa: E402

PROTO = pathlib.Path(__file__).resolve().parents[2] / "protocol"


def built_with_grpc():
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as settings:
        settings.write('[lease]\ngrpc = "127.0.0.1:1"\n')
        settings.flush()
        return run(DTHROTTLED, "--check", settings.name).returncode == 0


def messages(name):
    """The module of the messages of protocol/NAME.proto."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["protoc", f"--proto_path={PROTO}", f"--python_out={folder}", f"{name}.proto"], check=True)
        sys.path.insert(0, folder)
        try:
            return __import__(f"{name}_pb2")
        finally:
            sys.path.remove(folder)


def channel(port, tls=None):
    """A connection of its own: channels of a process share connections otherwise. `tls` are credentials."""
    options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
    address = f"127.0.0.1:{port}"
    return grpc.secure_channel(address, tls, options) if tls else grpc.insecure_channel(address, options)


def envoy_port(daemon):
    return int(re.findall(r"answering Envoy on tcp:\S*:(\d+)", daemon.log)[-1])


class EnvoyDaemon(Daemon):
    """A daemon that answers Envoy on TCP."""

    def __init__(self, *limits, envoy=None, **options):
        super().__init__(*limits, envoy={"tcp": "127.0.0.1:0", **(envoy or {})}, **options)

    @property
    def envoy_port(self):
        return envoy_port(self)


class LimitClient:
    """Calls of the rate limit service."""

    def __init__(self, port, tls=None):
        self.pb = messages("rate_limit")
        self.channel = channel(port, tls)
        self.call = self.channel.unary_unary("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
                                             request_serializer=lambda m: m.SerializeToString(),
                                             response_deserializer=self.pb.RateLimitResponse.FromString)

    def request(self, *descriptors, domain="edge", **fields):
        """Each descriptor is a dictionary of its entries."""
        made = [self.pb.RateLimitDescriptor(
            entries=[self.pb.RateLimitDescriptor.Entry(key=k, value=v.encode()) for k, v in entries.items()])
            for entries in descriptors]
        return self.pb.RateLimitRequest(domain=domain, descriptors=made, **fields)

    def ask(self, *descriptors, **fields):
        return self.call(self.request(*descriptors, **fields), timeout=PATIENCE)

    def served(self, *descriptors, **fields):
        return self.ask(*descriptors, **fields).overall_code == self.pb.RateLimitResponse.OK

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()


class QuotaClient:
    """A stream of the quota service, as an Envoy has one."""

    def __init__(self, port, name=None):
        self.pb = messages("rate_limit_quota")
        self.channel = channel(port)
        self._reports = queue.Queue()
        self.stream = self.channel.stream_stream(
            "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas",
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=self.pb.RateLimitQuotaResponse.FromString)(
                iter(self._reports.get, None), metadata=[("dthrottle-client", name)] if name else None)

    def report(self, *buckets, allowed=1, denied=0, domain="edge"):
        usages = [self.pb.RateLimitQuotaUsageReports.BucketQuotaUsage(
            bucket_id=self.pb.BucketId(bucket={k: v.encode() for k, v in bucket.items()}), num_requests_allowed=allowed, num_requests_denied=denied)
            for bucket in buckets]
        self._reports.put(self.pb.RateLimitQuotaUsageReports(domain=domain, bucket_quota_usages=usages))

    def ask(self, *buckets, **counts):
        """Reports, and what the next response assigns: a rate for each bucket."""
        self.report(*buckets, **counts)
        actions = next(self.stream).bucket_action
        return [action.quota_assignment_action.rate_limit_strategy.token_bucket.tokens_per_fill.value / 60
                for action in actions]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._reports.put(None)
        self.channel.close()
