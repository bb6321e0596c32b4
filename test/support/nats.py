"""A real nats-server on loopback, with users and permissions of its own, and hosts that talk over it."""

import base64
import binascii
import contextlib
import json
import os
import shutil
import socket
import subprocess
import time

from daemon import BUILD, PATIENCE, Daemon, clean_environment, fresh_directory, wait_until
from fleet import Host, free_port_pair

SERVER = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin:/sbin")
MODULE = BUILD / "dthrottle-nats.so"
AVAILABLE = SERVER is not None and MODULE.exists()
WHY_NOT = "needs nats-server and a build with libnats"

PREFIX = "dthrottle"


def token(name):
    return name.replace(".", "~")


def permissions(name, owner, prefix=PREFIX):
    """What a host may publish and hear, as protocol/nats.md has it."""
    verbs = ["ask", "answer"] if owner else ["ask"]
    hears = ["ask", "answer"] if owner else ["answer"]
    return {"publish": [f"{prefix}.{verb}.{token(name)}.*" for verb in verbs],
            "subscribe": [f"{prefix}.{verb}.*.{token(name)}" for verb in hears]}


class Server:
    """For a `with` block. `users` are as in the server's settings; without them anybody is let in."""

    def __init__(self, *, users=None, tls=None, cluster=None, routes=(), settings=None):
        self.port = free_port_pair()
        self.cluster_port = cluster or None
        self.directory = fresh_directory()
        self.process = None
        self.settings = {"host": "127.0.0.1", "port": self.port, "write_deadline": "2s", **(settings or {})}
        if tls:
            self.settings["tls"] = tls
        if cluster:
            self.settings["cluster"] = {"name": "fleet", "host": "127.0.0.1", "port": cluster,
                                        "routes": [f"nats-route://127.0.0.1:{port}" for port in routes]}
        self.give(users)

    def give(self, users):
        """Other users, from the next start or reload on."""
        if users is not None:
            self.settings["authorization"] = {"users": users}
        (self.directory / "server.conf").write_text(json.dumps(self.settings, indent=1))

    def url(self, scheme="nats"):
        return f"{scheme}://127.0.0.1:{self.port}"

    def start(self):
        log = open(self.directory / "log", "ab")
        with log:
            self.process = subprocess.Popen([SERVER, "-c", str(self.directory / "server.conf")], stdout=log, stderr=log,
                                            env=clean_environment())
        wait_until(self._answers, "nats-server answers", PATIENCE)

    def _answers(self):
        if self.process.poll() is not None:
            raise AssertionError(f"nats-server ended: {self.log()}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def log(self):
        return (self.directory / "log").read_text()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        if self.process is not None and self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


class NatsFleet(contextlib.ExitStack):
    """So many hosts, of which the first own all tags, on the given servers. Gives the hosts as a list. `peers` are more
    settings of the section; `credentials` makes the path of a host's credentials from its name."""

    def __init__(self, *limits, urls, hosts=5, owners=2, period="250ms", names=None, credentials=None, peers=None,
                 **sections):
        super().__init__()
        names = names or [f"{'owner' if i < owners else 'web'}-{i}.test" for i in range(hosts)]
        self.hosts = []
        for name in names:
            mine = {"spread": "owners", "owners": names[:owners], "period": period, "transport": "nats", "nats": urls,
                    **(peers or {})}
            if credentials is not None:
                mine["nats_credentials"] = str(credentials(name))
            host = Host(name, "tcp://127.0.0.1:7314", *limits, peers=mine, **sections)
            self.hosts.append(host)
            self.callback(shutil.rmtree, host.directory, ignore_errors=True)

    def __enter__(self):
        try:
            for host in self.hosts:
                self.enter_context(host)
        except BaseException:
            self.close()
            raise
        return self.hosts


def secret(directory, name, text):
    """A file with credentials that nobody else may read."""
    path = directory / f"{name}.secret"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text + "\n")
    return path


class Wire:
    """A client of NATS by hand, for what no host would say."""

    def __init__(self, server, user=None, password=None):
        self.sock = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
        self.file = self.sock.makefile("rb")
        self.info = json.loads(self.file.readline().split(None, 1)[1])
        options = {"verbose": False, "pedantic": False, "lang": "test", "version": "0"}
        if user:
            options.update(user=user, **{"pass": password})
        self.sock.sendall(b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n")
        self.said = []
        self.flush()

    def subscribe(self, subject):
        self.sock.sendall(f"SUB {subject} 1\r\nPING\r\n".encode())
        self.flush()

    def publish(self, subject, body):
        self.sock.sendall(f"PUB {subject} {len(body)}\r\n".encode() + body + b"\r\nPING\r\n")
        return self.flush()

    def flush(self):
        """What the server says until it has answered a PING; messages are kept in `said`."""
        lines = []
        while (line := self.file.readline().strip()) != b"PONG":
            if not line:
                raise AssertionError(f"the server closed the connection: {lines}")
            if line.startswith(b"MSG"):
                self._keep(line)
            elif line == b"PING":
                self.sock.sendall(b"PONG\r\n")
            else:
                lines.append(line.decode())
        return lines

    def _keep(self, line):
        words = line.decode().split()
        self.said.append((words[1], self.file.read(int(words[-1]))))
        self.file.readline()

    def message(self, seconds=PATIENCE):
        """The next message that is heard: its subject and body."""
        end = time.monotonic() + seconds
        while not self.said and time.monotonic() < end:
            self.sock.sendall(b"PING\r\n")
            self.flush()
            time.sleep(0.01)
        return self.said.pop(0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()
        self.sock.close()


def make_nkey(directory, name):
    """A user's nkey: its public key, and the file with its seed."""
    pem = directory / f"{name}.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", pem], check=True)
    private, public = (subprocess.run(["openssl", "pkey", "-in", pem, "-outform", "DER", *words], capture_output=True,
                                      check=True).stdout[-32:] for words in ([], ["-pubout"]))
    seed_kind, user_kind = 18 << 3, 20 << 3
    head = bytes([seed_kind | user_kind >> 5, (user_kind & 31) << 3])
    return _base32(bytes([user_kind]) + public), secret(directory, name, _base32(head + private))


def _base32(data):
    checked = data + binascii.crc_hqx(data, 0).to_bytes(2, "little")
    return base64.b32encode(checked).decode().rstrip("=")
