"""The least that can be called a name server: SRV and A records of a table, over UDP on loopback."""

import socket
import struct
import threading

A, SRV = 1, 33


def _name(text):
    return b"".join(bytes([len(label)]) + label.encode() for label in text.split(".")) + b"\0"


class NameServer:
    """`services` maps a service to its (host, port) pairs, and may change; every host is at 127.0.0.1."""

    def __init__(self, services):
        self.services = services
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sock.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._sock.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._sock.sendto(b"", self._sock.getsockname())    # ends the thread
        self._thread.join()
        self._sock.close()

    def _serve(self):
        while True:
            query, asker = self._sock.recvfrom(512)
            if not query:
                return
            self._sock.sendto(self._answer(query), asker)

    def _answer(self, query):
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1:at + 1 + query[at]].decode())
            at += 1 + query[at]
        name, (kind,) = ".".join(labels).lower(), struct.unpack(">H", query[at + 1:at + 3])
        records = []
        if kind == SRV:
            records = [struct.pack(">HHH", 0, 0, port) + _name(host) for host, port in self.services.get(name, [])]
        elif kind == A and any(name == host for hosts in self.services.values() for host, _ in hosts):
            records = [socket.inet_aton("127.0.0.1")]
        body = b"".join(b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 1, len(data)) + data for data in records)
        return query[:2] + struct.pack(">HHHHH", 0x8180, 1, len(records), 0, 0) + query[12:at + 5] + body
