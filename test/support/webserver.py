"""Real web servers for a `with` block: as processes of the test, in a directory and on a port of their own.

Debian's packages bring them; none of them has to run as a service of the machine. As root they serve as another user,
so that a daemon they shall ask has to be one of open_daemon().
"""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

from daemon import BUILD, PATIENCE, ROOT, AskDaemon, Daemon, clean_environment, fresh_directory, wait_until
from fleet import free_port_pair
from leases import Asking

NGINX_MODULE = BUILD / "src/integration/ngx_http_dthrottle_module.so"
APACHE_MODULE = BUILD / "src/integration/mod_dthrottle.so"
EXAMPLES = ROOT / "conf/examples"

# Seconds: of a module, where the daemon hangs; elsewhere it has all the time it takes on a busy machine.
TIMEOUT_S = 0.1
# Seconds that a busy machine may take beyond the timeout of a query, and fewer than a server that is patient waits.
SLACK = 20.0


@contextlib.contextmanager
def open_daemon(*limits, kind=Daemon, **sections):
    """A daemon that every user of this machine may ask, for servers that do not stay root."""
    query = {"unix_mode": "0666", **sections.pop("query", {})}
    daemon = kind(*limits, query=query, **sections)
    daemon.directory.chmod(0o755)
    with daemon:
        yield daemon


def open_ask_daemon(*limits, **sections):
    """The same, and questions may be asked of it."""
    return open_daemon(*limits, kind=AskDaemon, ask={"unix_mode": "0666"}, **sections)


def wait_refused_by_page(daemon, server, path):
    """The server, which is to refuse this path always, does so by the page of a worker."""
    def by_page():
        assert server.statuses(20, path) == [429] * 20, f"{path} was served"
        return daemon.stats()["page_refused"]
    wait_until(by_page, "a worker has a page")


@contextlib.contextmanager
def stopped(daemon):
    """The daemon hangs: connections to it are accepted by the kernel, and nobody answers."""
    daemon.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        daemon.signal(signal.SIGCONT)


@contextlib.contextmanager
def fake_daemon(backlog=10):
    """The path of a listening socket that is nobody's daemon, and the socket."""
    directory = fresh_directory()
    directory.chmod(0o755)
    path = f"{directory}/query.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        os.chmod(path, 0o666)
        listener.listen(backlog)
        listener.settimeout(PATIENCE)
        yield path, listener
    os.unlink(path)
    directory.rmdir()


@contextlib.contextmanager
def full_backlog():
    """The path of a socket with as many connections as it takes, which nobody accepts."""
    with fake_daemon(backlog=0) as (path, _), contextlib.ExitStack() as stack:
        for _ in range(10):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.connect(path)
        yield path


def adapted(text, *replacements):
    """The text of a recipe with every part replaced, all of which have to be there."""
    for old, new in replacements:
        if old not in text:
            raise AssertionError(f"{old!r} is not in the recipe any more")
        text = text.replace(old, new)
    return text


def metrics(page):
    """The samples of a page for Prometheus by their names with labels."""
    return {name: float(value) for name, value in
            (line.rsplit(" ", 1) for line in page.decode().splitlines() if not line.startswith("#"))}


def waited(responses, timeout):
    """How many of the responses took as long as the timeout of a query."""
    return sum(response.seconds >= 0.9 * timeout for response in responses)


class Response:
    def __init__(self, data, seconds):
        head, _, self.body = data.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 "):
            raise AssertionError(f"not a response: {data[:200]!r}")
        self.status = int(head.split()[1])
        self.head = head.decode("latin-1")
        self.fields = dict(line.split(": ", 1) for line in self.head.split("\r\n")[1:])
        self.seconds = seconds


class WebServer:
    """One server. What differs is how its settings are written and how it is started."""

    def __init__(self):
        self.port = free_port_pair()
        self.other_ports = ()    # that it is to listen on too before it is asked
        self.directory = fresh_directory()
        self.directory.chmod(0o755)
        self.process = None

    def command(self):
        raise NotImplementedError

    def path(self, name):
        return self.directory / name

    def __enter__(self):
        try:
            # Apache ends its whole process group when it leaves, so it needs one of its own.
            with open(self.path("stderr"), "wb") as log:
                self.process = subprocess.Popen([str(word) for word in self.command()], stdin=subprocess.DEVNULL,
                                                stdout=log, stderr=log, env=clean_environment(),
                                                cwd=self.directory, start_new_session=True)
            wait_until(self._listens, f"the server listens; it says:\n{self.log}")
        except BaseException as error:
            self._leave(error)
            raise
        return self

    def __exit__(self, _type, error, _traceback):
        self._leave(error)

    def _leave(self, error):
        try:
            if self.process is not None:
                self.process.terminate()
                try:
                    self.process.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    self.process.kill()
                    self.process.wait()
                    raise AssertionError("the server did not leave") from error
        finally:
            if error is not None:
                error.add_note("The server said:\n" + self.log[-4000:])
            shutil.rmtree(self.directory, ignore_errors=True)

    def _listens(self):
        if self.process.poll() is not None:
            raise AssertionError(f"the server left with {self.process.returncode}:\n{self.log}")
        with contextlib.suppress(OSError):
            for port in (self.port, *self.other_ports):
                socket.create_connection(("127.0.0.1", port), 1).close()
            return True
        return False

    @property
    def log(self):
        texts = [path.read_text(errors="replace") for path in (self.path("stderr"), self.path("error.log"))
                 if path.exists()]
        return "".join(texts)

    def access(self, count=1):
        """The lines of the access log, `count` or more, a list of words each: a request is logged after its answer."""
        def lines():
            return [line.split() for line in self.path("access.log").read_text().splitlines()]
        return wait_until(lambda: len(found := lines()) >= count and found, f"{count} requests are in the access log")

    def children(self):
        pid = self.process.pid
        return set(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split())

    # ---- Asking ----

    def connect(self, source="127.0.0.1"):
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE, source_address=(source, 0))

    def get(self, path="/", host="test", fields="", method="GET", source="127.0.0.1"):
        """One request on a connection of its own. `fields` are whole lines."""
        begin = time.monotonic()
        with self.connect(source) as sock:
            sock.sendall(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{fields}Connection: close\r\n\r\n".encode())
            data = b""
            while piece := sock.recv(1 << 16):
                data += piece
        return Response(data, time.monotonic() - begin)

    def statuses(self, count, path="/"):
        return [self.get(path).status for _ in range(count)]


class Nginx(WebServer):
    """`server` is the inside of a server block; `http` stands in front of it, `main` in front of all."""

    SHOWN = "$status $dthrottle_status $dthrottle_time $uri"

    def __init__(self, server, http="", main=None, workers=1, shown=SHOWN, listen="", user="root"):
        super().__init__()
        main = f"load_module {NGINX_MODULE};" if main is None else main
        places = "\n".join(f"{kind}_temp_path {self.directory}/{kind};"
                           for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        root = self.path("root")
        root.mkdir()
        root.joinpath("index.html").write_text("served\n")
        self.path("nginx.conf").write_text(f"""\
{main}
daemon off;
worker_processes {workers};
{f"user {user};" if os.geteuid() == 0 else ""}
pid {self.directory}/pid;
error_log {self.directory}/error.log info;
events {{ worker_connections 512; }}
http {{
  log_format shown '{shown}';
  access_log {self.directory}/access.log shown;
  root {root};
  {places}
  {http}
  server {{
    listen 127.0.0.1:{self.port} {listen};
    {server}
  }}
}}
""")

    def command(self):
        return ["/usr/sbin/nginx", "-e", self.path("error.log"), "-c", self.path("nginx.conf")]

    def reload(self):
        """Asks for new workers and returns the old ones, which may be there for a while."""
        old = self.children()
        self.process.send_signal(signal.SIGHUP)
        wait_until(lambda: self.children() - old, "there are new workers")
        return old


class Apache(WebServer):
    """`settings` stand at the level of the server. `modules` are loaded besides those that every page needs."""

    MODULES = "/usr/lib/apache2/modules"
    THREADS = 8    # that serve, whatever the MPM

    def __init__(self, settings, mpm="event", modules=(), processes=1):
        super().__init__()
        root = self.path("root")
        root.mkdir()
        root.joinpath("index.html").write_text("served\n")
        loaded = "\n".join(f"LoadModule {name}_module {self.MODULES}/mod_{name}.so"
                           for name in (f"mpm_{mpm}", "authz_core", "dir", *modules))
        if mpm == "prefork":
            workers = f"StartServers {self.THREADS}\nMaxRequestWorkers {self.THREADS}"
        else:
            workers = (f"StartServers {processes}\nServerLimit {2 * processes}\nThreadsPerChild {self.THREADS}\n"
                       f"MaxRequestWorkers {self.THREADS * processes}\nMinSpareThreads 1\n"
                       f"MaxSpareThreads {self.THREADS * processes}")
        self.path("apache.conf").write_text(f"""\
ServerRoot {self.directory}
ServerName test
PidFile {self.directory}/pid
DefaultRuntimeDir {self.directory}
Listen 127.0.0.1:{self.port}
{loaded}
{workers}
{"User www-data" if os.geteuid() == 0 else ""}
{"Group www-data" if os.geteuid() == 0 else ""}
ErrorLog {self.directory}/error.log
LogLevel info
LogFormat "%>s %{{DTHROTTLE_STATUS}}e %{{DTHROTTLE_TIME}}e %U" shown
CustomLog {self.directory}/access.log shown
DocumentRoot {root}
DirectoryIndex index.html
<Directory {root}>
  Require all granted
</Directory>
{settings}
""")

    def command(self):
        return ["/usr/sbin/apache2", "-f", self.path("apache.conf"), "-DFOREGROUND"]

    def reload(self):
        """Asks for new processes and returns the old ones, which may be there for a while."""
        old = self.children()
        self.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: self.children() - old, "there are new processes")
        return old


class Haproxy(WebServer):
    """`text` is a whole file of settings, which has to bind the port."""

    def __init__(self):
        super().__init__()

    def write_settings(self, text):
        self.path("haproxy.cfg").write_text(text)

    def command(self):
        return ["/usr/sbin/haproxy", "-db", "-f", self.path("haproxy.cfg")]


class Caddy(WebServer):
    """`text` is a whole Caddyfile, which has to bind the port."""

    def write_settings(self, text):
        self.path("Caddyfile").write_text(text)

    def command(self):
        return ["/usr/bin/env", f"HOME={self.directory}", f"XDG_CONFIG_HOME={self.directory}",
                f"XDG_DATA_HOME={self.directory}", "/usr/bin/caddy", "run", "--config", self.path("Caddyfile")]


class Envoy(WebServer):
    """`text` is a whole file of settings, which has to bind the port. Not in Debian: there where a PATH has it."""

    PROGRAM = shutil.which("envoy")

    def write_settings(self, text):
        self.path("envoy.yaml").write_text(text)

    def command(self):
        return [self.PROGRAM, "--disable-hot-restart", "--concurrency", "2", "-c", self.path("envoy.yaml")]


class ModuleTest:
    """Mixed into the tests of a server's module, the file `module`; `package` has what it is built with."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if not cls.module.exists():
            raise AssertionError(f"{cls.module} is not there: install {cls.package}, and configure and build again")

    def assert_all_served_in_time(self, responses, timeout=TIMEOUT_S):
        self.assertEqual({response.status for response in responses}, {200})
        self.assertLess(max(response.seconds for response in responses), timeout + SLACK)

    def wait_throttled(self, server, path):
        """Until limits hold again: a few requests may be served unasked before."""
        wait_until(lambda: server.get(path).status == 429, "the daemon is asked again")

    def assert_answers_reach_their_own_requests(self, server, refused, served):
        """Under load, of paths that are always refused and always served."""
        server.get(refused)
        with Load(server, 4, refused) as refusals, Load(server, 4, served) as others:
            time.sleep(1)
        self.assertEqual(refusals.failures + others.failures, [])
        self.assertEqual({response.status for response in refusals.responses}, {429})
        self.assertEqual({response.status for response in others.responses}, {200})

    def assert_reloads_go_unnoticed(self, server, times, load):
        with load:
            for _ in range(times):
                before = len(load.responses)
                wait_until(lambda: len(load.responses) > before + 50, "there is load")
                old = server.reload()
                wait_until(lambda: not old & server.children(), "the old processes have left")
        self.assertEqual(load.failures, [])
        self.assert_all_served_in_time(load.responses)
        self.assertEqual({line[1] for line in server.access()}, {"SERVED"})


class Load(Asking):
    """Requests by several threads until the block ends. What they got is in `responses`; `failures` are none."""

    def __init__(self, server, threads=4, path="/"):
        super().__init__()
        self.responses = []
        self.failures = []
        for _ in range(threads):
            self._will(self._ask, server, path)

    def _ask(self, server, path):
        while not self._ending:
            try:
                self.responses.append(server.get(path))
            except (OSError, AssertionError) as failure:
                self.failures.append(repr(failure))
