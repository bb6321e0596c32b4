"""Certificates for TLS, made for tests."""

import shutil
import ssl

from daemon import fresh_directory, run
from envoy import grpc


class Authority:
    """Makes certificates, for a `with` block."""

    def __enter__(self):
        self.folder = fresh_directory()
        self.certificate = self._openssl("root", "req", "-x509", "-subj", "/CN=root")
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder)

    def _openssl(self, name, *words):
        done = run("openssl", *words, "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-days", "2",
                   "-keyout", self.folder / f"{name}.key", "-out", self.folder / f"{name}.pem")
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        return self.folder / f"{name}.pem"

    def sign(self, name):
        """Writes NAME.pem and NAME.key, of this host."""
        self._openssl(name, "req", "-x509", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
                      "-CA", self.certificate, "-CAkey", self.certificate.with_suffix(".key"))

    def settings(self, name, **keys):
        """Of [tls]."""
        files = {"certificate_file": f"{name}.pem", "key_file": f"{name}.key", **keys}
        return {key: str(self.folder / file) for key, file in files.items()}

    def context(self, name=None):
        """What a client in Python begins TLS with: it believes this authority, and has that certificate."""
        context = ssl.create_default_context(cafile=self.certificate)
        if name:
            context.load_cert_chain(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        return context

    def client(self, name=None):
        """Credentials that believe this authority, with that certificate of a client."""
        own = [(self.folder / f"{name}.{kind}").read_bytes() for kind in ("key", "pem")] if name else []
        return grpc.ssl_channel_credentials(self.certificate.read_bytes(), *own)
