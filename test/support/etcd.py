"""A cluster of etcd for tests: three members on loopback, which can be killed, stopped and cut off."""

import base64
import contextlib
import json
import shutil
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request

from daemon import PATIENCE, fresh_directory, wait_until
from fleet import free_port_pair

AVAILABLE = shutil.which("etcd") is not None
WHY_NOT = "etcd is not installed (package etcd-server)"


class Member:
    def __init__(self, directory, name, client_port, peer_port, cluster):
        self.name, self.url = name, f"http://127.0.0.1:{client_port}"
        self._log = open(directory / f"{name}.log", "wb")
        self._command = [
            "etcd", "--name", name, "--data-dir", str(directory / name), "--listen-client-urls", self.url,
            "--advertise-client-urls", self.url, "--listen-peer-urls", f"http://127.0.0.1:{peer_port}",
            "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer_port}", "--initial-cluster", cluster,
            "--initial-cluster-state", "new", "--logger", "zap"]
        self.process = None

    def start(self):
        self.process = subprocess.Popen(self._command, stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL)

    def kill(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None

    def close(self):
        self.kill()
        self._log.close()

    def post(self, path, body, timeout=2):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode())
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout) as reply:
            return json.load(reply)

    def put(self, key, value):
        self.post("/v3/kv/put", {"key": base64.b64encode(key.encode()).decode(), "value": base64.b64encode(value.encode()).decode()})

    def get(self, key):
        """The value of a key, or None."""
        kvs = self.post("/v3/kv/range", {"key": base64.b64encode(key.encode()).decode()}).get("kvs", [])
        return base64.b64decode(kvs[0].get("value", "")).decode() if kvs else None

    def delete(self, key):
        self.post("/v3/kv/deleterange", {"key": base64.b64encode(key.encode()).decode()})

    def status(self):
        """Of a member that is up and knows a leader, else None."""
        if self.process is None:
            return None
        try:
            status = self.post("/v3/maintenance/status", {})
        except (OSError, urllib.error.URLError, ValueError):
            return None
        return status if status.get("leader", "0") != "0" else None


class Etcd:
    def __init__(self, size=3):
        self.directory = fresh_directory()    # in memory: it waits for every write to be on disk
        # None that an outgoing connection may take, also while a member is dead.
        ports = [port for first in [free_port_pair() for _ in range(size)] for port in (first, first + 1)]
        names = [f"m{i}" for i in range(size)]
        cluster = ",".join(f"{n}=http://127.0.0.1:{p}" for n, p in zip(names, ports[size:]))
        self.members = [Member(self.directory, n, ports[i], ports[size + i], cluster) for i, n in enumerate(names)]

    def __enter__(self):
        try:
            for member in self.members:
                member.start()
            wait_until(lambda: all(m.status() for m in self.members), "etcd is up", 4 * PATIENCE)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for member in self.members:
            member.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def urls(self):
        return [member.url for member in self.members]

    def leader(self):
        for member in self.members:
            status = member.status()
            if status is not None and status["header"]["member_id"] == status["leader"]:
                return member
        return None


class Wire:
    """Forwards connections to a port until it is cut: then nothing gets through, and nobody is told."""

    def __init__(self, port):
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._through = threading.Event()
        self._through.set()
        self._ending = False
        self._socks, self._pumps = [], []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._ending = True
        self._through.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        for sock in self._socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._pumps:
            thread.join()
        for sock in self._socks:
            sock.close()

    def cut(self):
        self._through.clear()

    def mend(self):
        self._through.set()

    def _accept(self):
        while not self._ending:
            try:
                one, _ = self._listener.accept()
            except OSError:
                continue
            try:
                other = socket.create_connection(("127.0.0.1", self._to))
            except OSError:    # the member is dead
                one.close()
                continue
            self._socks += [one, other]
            for source, sink in ((one, other), (other, one)):
                self._pumps.append(threading.Thread(target=self._pump, args=(source, sink), daemon=True))
                self._pumps[-1].start()

    def _pump(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._through.wait()
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
